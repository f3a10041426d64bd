"""Jobs of a simulated lake, recomputed from its raw samples in plain Python: loops, lists, math and
statistics.

Who owned which GPU when is the simulator's truth, not the lake's. The metrics are those of
plain_reference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from neighbours import neighbour
from simulated_lake import lake_of, sample_rows

from tachograph.annexes.lab.figures.correlation import COMPARED
from tachograph.annexes.lab.figures.numbers import Study, StudyOptions
from tachograph.annexes.lab.simulate.cluster import simulate
from tachograph.annexes.lab.simulate.plan import SimulationPlan
from tachograph.catalog.config import AnalysisOptions, StudyFilters
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries

plain = neighbour("reduce", "plain_reference")
Job = dict[str, Any]
_OPEN = datetime.max.replace(tzinfo=UTC)  # the end of a run that goes on
PIPES = {
    "fp64": "fp64_active",
    "fp32": "fp32_active",
    "fp16": "fp16_active",
    "tensor": "tensor_active",
}
ENDS = {"fp64": "", "fp32": "_fp32", "fp16": "_fp16", "tensor": "_tensor"}
# A100: FLOP/s of each pipe and B/s of each capacity, from NVIDIA's datasheet
PEAK_FLOP_PER_S = {"fp64": 9.7e12, "fp32": 19.5e12, "fp16": 78e12, "tensor": 312e12}
PEAK_B_PER_S = {"A100 SXM 40GB": 1.555e12, "A100 SXM 80GB": 2.039e12}
HBM_GB = {"A100 SXM 40GB": 40, "A100 SXM 80GB": 80}
# columns of the figures
USED = (
    "gpus",
    "elapsed_s",
    "gpu_hours",
    "samples",
    "gpus_seen",
    "gpus_never_used",
    "gpu_model",
    "hbm_mib",
    "hbm_peak_fraction",
    "energy_j",
    "energy_j_estimated",
    "energy_gpus",
    "spatial_imbalance",
    "temporal_imbalance",
    "pipes",
    "intensity_histogram",
    *(
        f"{what}{end}"
        for end in ENDS.values()
        for what in ("bound", "memory_fraction", "idle_fraction")
    ),
    *(f"{name}_mean" for name in COMPARED),
)


@dataclass(frozen=True, slots=True)
class Recomputed:
    """A study of a lake; its jobs from raw samples, in order of start; labelled samples by
    (pipe, label), counted.
    """

    lake: Lake
    study: Study
    jobs: list[Job]
    labelled: Mapping[tuple[str, str], int]
    gpus: list[Job]

    def of_pipe(self, pipe: str) -> Study:
        """The study judged by another pipe."""
        return Study(self.study.jobs, StudyOptions(pipe=pipe))


def recomputed(plan: SimulationPlan, folder: Path) -> Recomputed:
    """Return the study of a simulated cluster and what its raw samples come to."""
    cluster = simulate(plan, folder / "cluster")
    lake = lake_of(cluster.folder, folder / "lake", plan.end)
    telemetry = plain.Telemetry.of(sample_rows(lake))
    model_of = {node.name: plan.groups[node.group].model for node in plan.nodes()}
    held: dict[int, list[Any]] = {}
    for row in cluster.gpus.iter_rows(named=True):
        held.setdefault(row["run"], []).append((row["node"], row["gpu"], None))
    jobs, gpus = [], []
    labelled: dict[tuple[str, str], int] = {}
    ran = [
        truth
        for truth in cluster.jobs.iter_rows(named=True)
        if truth["start"] and truth["run"] in held
    ]
    runs = plain.with_taken_over(
        plain.Run(truth["job_id"], truth["start"], truth["end"] or _OPEN, tuple(held[truth["run"]]))
        for truth in ran
    )
    for truth, run in zip(ran, runs, strict=True):
        row, own = _job(truth, run, telemetry, model_of)
        if _reasons(row, truth):
            continue
        jobs.append(row)
        gpus += own
        for key, number in row.pop("labelled").items():
            labelled[key] = labelled.get(key, 0) + number
    jobs.sort(key=lambda row: (row["start"], row["job_id"]))
    summaries = read_summaries(lake)
    study = Study(
        summaries.filter(summaries.get_column("excluded").is_null()).sort("start", "job_id")
    )
    for row in jobs:
        row["pipes"] = [
            pipe
            for pipe, name in PIPES.items()
            if (row[f"{name}_mean"] or 0) > _threshold(pipe, jobs)
        ]
        if all(row[f"{name}_mean"] is None for name in PIPES.values()):
            row["pipes"] = None
    return Recomputed(lake, study, jobs, labelled, gpus)


def _job(
    truth: Mapping[str, Any], run: Any, telemetry: Any, model_of: Mapping[str, str]
) -> tuple[Job, list[Job]]:
    models = {unit: model_of[unit[0]] for unit in run.units}
    capacities = {unit: HBM_GB[model] * 1024.0 for unit, model in models.items()}
    ridges = {
        unit: {pipe: peak / PEAK_B_PER_S[model] for pipe, peak in PEAK_FLOP_PER_S.items()}
        for unit, model in models.items()
    }
    row, per_gpu = plain.job_reference(run, telemetry, capacities, ridges, AnalysisOptions())
    row |= {
        "job_id": truth["job_id"],
        "start": truth["start"],
        "gpu_model": "+".join(sorted(set(models.values()))),
    }
    row |= {
        "hbm_mib": min(capacities.values()),
        "request_gb": min(HBM_GB[model] for model in models.values()),
    }
    row["labelled"] = _labelled([sample for gpu in per_gpu.values() for sample in gpu["rows"]])
    return row, [gpu | {"unit": unit, "job_id": truth["job_id"]} for unit, gpu in per_gpu.items()]


def _labelled(samples: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], int]:
    """Samples at work of which all pipes and the memory were measured, by pipe and label."""
    found: dict[tuple[str, str], int] = {}
    for sample in samples:
        values, memory = {pipe: sample[name] for pipe, name in PIPES.items()}, sample["dram_active"]
        if memory is None or None in values.values() or not any(values.values()):
            continue
        for pipe, value in values.items():
            label = "compute" if value >= memory and value > 0 else "memory"
            found[pipe, label] = found.get((pipe, label), 0) + 1
    return found


def _reasons(row: Job, truth: Mapping[str, Any]) -> list[str]:
    """Why the study leaves it out."""
    filters = StudyFilters()
    util = row["gpu_util_mean"]
    tests = {
        "ambiguous": truth["attribution"] == "ambiguous",
        "running": truth["end"] is None,
        "no samples": row["samples"] == 0,
        "short": row["elapsed_s"] < filters.min_elapsed_s,
        "idle": util is not None and util < filters.min_gpu_util_mean,
    }
    return [name for name, is_so in tests.items() if is_so]


def _threshold(pipe: str, jobs: Sequence[Job]) -> float:
    """0.005, and no percentile: the lakes of these tests hold fewer than a hundred jobs that
    measured a pipe.
    """
    assert sum(job[f"{PIPES[pipe]}_mean"] is not None for job in jobs) <= 100
    return 0.005


def same(stored: Any, wanted: Any, rel: float = 1e-9) -> bool:
    """Whether a stored value is the recomputed one; numbers up to the rounding of sums."""
    if isinstance(wanted, float) and isinstance(stored, int | float):
        return math.isclose(stored, wanted, rel_tol=rel, abs_tol=1e-12)
    return bool(stored == wanted)


def agreed(found: Recomputed) -> list[Job]:
    """Return the jobs with the lake's values, each of which is the recomputed one up to the last
    digits.

    The last digits decide on which side of the border of a bin a value like 0.75 lies; borders are
    no metric.
    """
    stored = list(found.study.jobs.iter_rows(named=True))
    assert [row["job_id"] for row in stored] == [row["job_id"] for row in found.jobs]
    for mine, row in zip(found.jobs, stored, strict=True):
        wrong = {name: (row[name], mine[name]) for name in USED if not same(row[name], mine[name])}
        assert not wrong, (row["job_id"], wrong)
    return [
        # the ledger has tests of its own
        mine | {name: row[name] for name in (*USED, "gpu_hours_never_used")}
        for mine, row in zip(found.jobs, stored, strict=True)
    ]
