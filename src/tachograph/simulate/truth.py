"""What is true of the simulated cluster, to compare with what the pipeline finds.

Sums are taken from the samples before defects were planted; `defects` counts those that touch a job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from tachograph.schema import TIME
from tachograph.simulate.defects import measured
from tachograph.simulate.kinds import FACTS
from tachograph.simulate.placement import Run
from tachograph.simulate.plan import Plan
from tachograph.simulate.samples import F64, I64, SUMMED, Array, Segments
from tachograph.simulate.timeline import Allocation
from tachograph.simulate.workload import Request

_PERCENT = {"gpu_util": 0.01}


@dataclass(slots=True)
class Sums:
    """Per allocation: samples, sums of SUMMED (producer's units), maxima, first and last energy (J)."""

    samples: I64
    total: F64
    util_max: F64
    hbm_max: F64
    energy_first: F64
    energy_last: F64

    @classmethod
    def none(cls, allocations: int) -> Sums:
        """Nothing summed yet."""
        flat = [np.zeros(allocations) for _ in range(4)]
        flat[2][:] = np.nan
        flat[3][:] = np.nan
        return cls(np.zeros(allocations, np.int64), np.zeros((allocations, len(SUMMED))), *flat)

    def add(self, segments: Segments, times: I64, out: Mapping[str, Array]) -> None:
        """Add the samples of one node and day; days come in order."""
        busy = segments.allocation >= 0
        owners, firsts = segments.allocation[busy], segments.first[busy]
        if not owners.size:
            return
        np.add.at(self.samples, owners, segments.count[busy])
        for place, name in enumerate(SUMMED):
            if name in out:
                sums = np.add.reduceat(out[name], segments.first, dtype=np.float64)[busy]
                np.add.at(self.total[:, place], owners, sums)
        for name, target in (("gpu_util", self.util_max), ("hbm_used_mib", self.hbm_max)):
            if name in out:
                maxima = np.maximum.reduceat(out[name], segments.first)[busy]
                np.maximum.at(target, owners, maxima)
        if "energy_j" in out:
            lasts = firsts + segments.count[busy] - 1
            for owner, first, last in zip(owners, firsts, lasts, strict=True):
                if np.isnan(self.energy_first[owner]):
                    self.energy_first[owner] = out["energy_j"][first] / 1e3
                self.energy_last[owner] = out["energy_j"][last] / 1e3


def gpus_frame(
    plan: Plan, runs: Sequence[Run], allocations: Sequence[Allocation], sums: Sums, defects: pl.DataFrame
) -> pl.DataFrame:
    """Return one row per (run, node, gpu): means over its samples before defects; null without samples.

    Columns: run, job_id, node, gpu, start, end, samples, <counter>_mean, gpu_util_max (fraction), hbm_used_mib_max,
    energy_counter_j (last minus first sample), defects.
    """
    names = [node.name for node in plan.nodes()]
    there = sums.samples > 0
    count = np.where(there, sums.samples, 1)
    columns: dict[str, object] = {
        "run": pl.Series([row.run for row in allocations], dtype=pl.Int64),
        "job_id": pl.Series([str(raw_id(runs[row.run].request)) for row in allocations], dtype=pl.String),
        "node": pl.Series([names[row.node] for row in allocations], dtype=pl.String),
        "gpu": pl.Series([row.gpu for row in allocations], dtype=pl.Int16),
        "start": _times(plan, [row.start_s for row in allocations]),
        "end": _times(plan, [min(row.end_s, plan.seconds) for row in allocations]),
        "samples": sums.samples,
    }
    for place, name in enumerate(SUMMED):
        columns[f"{name}_mean"] = sums.total[:, place] / count * _PERCENT.get(name, 1.0)
    columns["gpu_util_max"] = sums.util_max / 100
    columns["hbm_used_mib_max"] = sums.hbm_max
    columns["energy_counter_j"] = sums.energy_last - sums.energy_first
    frame = pl.DataFrame(columns)
    values = [name for name in frame.columns if _counter_of(name) in plan.counters]
    kept = [pl.when(_is_known(plan, name)).then(name) for name in values]
    frame = frame.select("run", "job_id", "node", "gpu", "start", "end", "samples", *kept)
    return frame.with_columns(defects=_touching(frame, defects))


def _counter_of(column: str) -> str:
    """The counter behind a column of the truth."""
    return "energy_j" if column == "energy_counter_j" else column.removesuffix("_mean").removesuffix("_max")


def _is_known(plan: Plan, column: str) -> pl.Expr:
    """Whether there are samples and somebody measures the counter on the node."""
    silent = [node.name for node in plan.nodes() if _counter_of(column) not in measured(plan, plan.groups[node.group])]
    return (pl.col("samples") > 0) & ~pl.col("node").is_in(silent)


def jobs_frame(plan: Plan, runs: Sequence[Run], gpus: pl.DataFrame) -> pl.DataFrame:
    """Return one row per run of a job, those that never started too (start null), in order of submission.

    `problem` is the finding that was planted, null when nothing is wrong; `planted_start`, `planted_end` its interval.
    `attribution`: explicit, whole_node, ambiguous; null without GPUs. `end` null: still running or never started.
    `expected_gpu_util`: mean of the design; `<counter>_mean`: mean over GPUs of the mean over their samples.
    """
    names = [node.name for node in plan.nodes()]
    rows = [_row(plan, number, run, names) for number, run in enumerate(runs)]
    frame = pl.DataFrame(rows, infer_schema_length=None)
    seconds = ("submit", "start", "end", "planted_start", "planted_end")
    frame = frame.with_columns(_as_time(plan, pl.col(name)).alias(name) for name in seconds)
    means = [name for name in gpus.columns if name.endswith("_mean")]
    summed = gpus.group_by("run").agg(
        pl.col("samples").sum(),
        pl.col(means).mean(),
        pl.col("gpu_util_max", "hbm_used_mib_max").max(),
        pl.col("energy_counter_j").sum(),
        gpus_never_used=(pl.col("gpu_util_max") == 0).sum(),
        defects=pl.col("defects").sum(),
    )
    return frame.join(summed, on="run", how="left", maintain_order="left")


def raw_id(request: Request) -> int:
    """Return Slurm's raw id; the first id of a heterogeneous job belongs to its part without GPUs."""
    return request.job_id + int(request.het)


def display_id(request: Request) -> str:
    """Return the id as people write it."""
    if request.array:
        return f"{request.array[0]}_{request.array[1]}"
    return f"{request.job_id}+1" if request.het else str(request.job_id)


def state_of(plan: Plan, run: Run) -> str:
    """Return the state as of the plan's end."""
    if run.start_s is not None and (run.end_s or 0) > plan.seconds:
        return "RUNNING"
    if run.start_s is None and run.end_s is not None and run.end_s > plan.seconds:
        return "PENDING"
    return run.state


def _row(plan: Plan, number: int, run: Run, names: Sequence[str]) -> dict[str, object]:
    request, start = run.request, run.start_s
    facts = FACTS[request.kind]
    state = state_of(plan, run)
    group = plan.groups[request.group] if run.gpus else None
    return {
        "run": number,
        "job_id": str(raw_id(request)),
        "display_id": display_id(request),
        "submit": run.submit_s,
        "start": start,
        "end": None if state in ("RUNNING", "PENDING") else run.end_s,
        "state": state,
        "user": user_name(request),
        "account": request.account,
        "kind": request.kind.value,
        "problem": facts.problem if run.gpus and start is not None else None,
        "planted_start": _planted(plan, run, 0),
        "planted_end": _planted(plan, run, 1),
        "attribution": _attribution(run),
        "nodes": [names[node] for node, _ in run.places],
        "gpus": run.gpus,
        "model": group.driver.name if group else None,
        "expected_gpu_util": _expected(plan, run),
    }


def user_name(request: Request) -> str:
    """Return the user's name."""
    return f"user{request.user:03d}"


def _planted(plan: Plan, run: Run, which: int) -> int | None:
    """Begin or end of what was planted, as far as it is recorded: a part of the run, or all of it."""
    if run.behaviour is None or run.start_s is None or FACTS[run.request.kind].problem is None:
        return None
    interval = run.behaviour.planted or (0, (run.end_s or 0) - run.start_s)
    return min(run.start_s + interval[which], plan.seconds)


def _attribution(run: Run) -> str | None:
    if not run.gpus:
        return None
    if run.request.nodes:
        return "whole_node"
    return "explicit" if run.mapped else "ambiguous"


def _expected(plan: Plan, run: Run) -> float | None:
    """Mean utilisation by design over all GPUs and the recorded run time."""
    if run.behaviour is None or run.start_s is None or run.end_s is None or not run.gpus:
        return None
    length = min(run.end_s, plan.seconds) - run.start_s
    total = 0.0
    for slot in range(run.gpus):
        phases = run.behaviour.phases(slot, run.gpus)
        ends = [phase.begin_s for phase in phases[1:]] + [length]
        for phase, end in zip(phases, ends, strict=True):
            seconds = max(0, min(end, length) - phase.begin_s)
            total += phase.level.util * phase.level.mean_factor * seconds
    return total / max(1, length) / run.gpus


def _touching(gpus: pl.DataFrame, defects: pl.DataFrame) -> pl.Series:
    """Number of defects that touch the samples of each allocation; a counter missing everywhere is none."""
    real = defects.filter(pl.col("kind") != "missing_counter")
    rows = gpus.select("node", "gpu", "start", "end").with_row_index("row")
    pairs = rows.join(real.select("node", "start", "end", "gpu", "value"), on="node", suffix="_defect")
    skew = pl.duration(seconds=pl.col("value").abs().fill_nan(0).fill_null(0).clip(0, 120)) + pl.duration(minutes=2)
    same_gpu = pl.col("gpu_defect").is_null() | (pl.col("gpu_defect") == pl.col("gpu"))
    meets = (pl.col("start") <= pl.col("end_defect") + skew) & (pl.col("end") >= pl.col("start_defect") - skew)
    counted = pairs.filter(same_gpu & meets).group_by("row").len()
    return rows.join(counted, on="row", how="left", maintain_order="left")["len"].fill_null(0).cast(pl.Int64)


def _as_time(plan: Plan, seconds: pl.Expr) -> pl.Expr:
    micro = (seconds.cast(pl.Int64) + plan.start_s) * 1_000_000
    return micro.cast(pl.Datetime("us")).dt.replace_time_zone("UTC")


def _times(plan: Plan, seconds: list[int]) -> pl.Series:
    return pl.Series(seconds, dtype=pl.Int64).to_frame("s").select(_as_time(plan, pl.col("s"))).to_series().cast(TIME)
