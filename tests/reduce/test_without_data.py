"""GPUs and counters without data change no number of what was measured; a number that nothing
gives is null, never NaN.

Every column of job_summaries is compared. One that a missing counter may change, or that counts
GPUs whether they have data or not, is declared here.
"""

from __future__ import annotations

import math
import random
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from random_cluster import A100_40, BEGIN, stripe

from madelake import Rows, held, job, make_lake, summarized
from tachograph.catalog.counters import COUNTER_NAMES
from tachograph.catalog.table_columns import statistics
from tachograph.catalog.tables import (
    FINDINGS,
    GPU_SAMPLES,
    JOB_GPUS,
    JOB_SUMMARIES,
    JUDGED,
    PIPES,
)
from tachograph.judge.checks import OF_RECORDING
from tachograph.lake.query import read_gpus, read_summaries

STEP_S = 30.0
IDENTITY = {"job_key", "job_id", "display_id", "node", "seq", "as_of"}
MEANS = tuple(
    column.name
    for column in statistics()
    if column.name.endswith("_mean") and column.name in JOB_GPUS.schema
)
# {column of a GPU: that of a job}, where they differ: power_w_mean of jobs is of energy, too
MEANS_OF_JOBS = {"power_w_mean": "power_w_sampled_mean"}
# of the GPUs of a job and of rows that name it, with data or without
COUNTING = {
    "gpus",
    "gpus_seen",
    "gpu_hours",
    "gpu_hours_unmeasured",
    "coverage",
    "samples",
    "interval_s",
    "workload_fractions",  # the last one: of samples without data
}
# where little of a job was measured, a hang is unknown, and so is what limited or kept it busy
UNDETERMINED = {"limiter", "workload"}
CLOCKS = {"sm_clock_mhz", "mem_clock_mhz"}  # of a GPU without them: those of the others
# Hours of GPUs at work. Where a GPU has no data, `imbalanced_gpus` may be unknown: then no hours are
# lost to it, and they are in use. There are never more of them.
AT_WORK = ("gpu_hours_in_use", "gpu_hours_imbalance")
# (columns, the counters that they are computed from), beside `<counter>_mean` and `_max`
_ROOFLINE = (
    r"(bound|(compute|memory|idle)_fraction)(_fp32|_fp16|_tensor)?|intensity_histogram|pipes|"
    r"main_pipe(_at_work)?|work_fraction"
)
COMPUTED_FROM: tuple[tuple[str, Set[str]], ...] = (
    (_ROOFLINE, {*PIPES.values(), "dram_active"}),
    (r"dram_(at_work|work_fraction)", {"dram_active"}),
    (r"hbm_peak_fraction", {"hbm_used_mib"}),
    (r"xid_events|xid_event_max", {"xid"}),
    (r"energy_\w+|power_w(_sampled)?_mean", {"energy_j", "power_w"}),
    (r"(spatial|temporal)_imbalance|spatial_(windows|zero_fraction)", {"gpu_util"}),
    (r"zero_util_fraction|gpus_never_used|excluded", {"gpu_util"}),
    *(
        (rf"{link}_(bytes_per_s_at_work|work_fraction|[tr]x_bytes)", {f"{link}_{way}_bytes_per_s"})
        for link in ("nvlink", "pcie")
        for way in ("tx", "rx")
    ),
    *(
        (rf"{name}_(mean|max)|(spatial|temporal)_imbalance_{name}", {name})
        for name in COUNTER_NAMES
    ),
    ("|".join(JUDGED), set(COUNTER_NAMES)),
)


def changed_by(missing: Set[str]) -> set[str]:
    """The columns of summaries that may change where these counters are missing."""
    patterns = [pattern for pattern, counters in COMPUTED_FROM if counters & missing]
    return {
        name
        for name in JOB_SUMMARIES.schema
        if any(re.fullmatch(pattern, name) for pattern in patterns)
    }


@dataclass(frozen=True, slots=True)
class MeasuredJob:
    """A job on GPUs that are measured, of which copies lack counters, or have more GPUs.

    more: GPUs of a copy that have no data. missing: counters that a copy lacks.
    """

    seed: int
    gpus: int
    minutes: int
    more: int
    missing: frozenset[str]

    def samples(self) -> list[Rows]:
        """The samples of each GPU."""
        dice = random.Random(self.seed)
        count = round(self.minutes * 60 / STEP_S)
        return [stripe(dice, ("", gpu, None), count, STEP_S, set()) for gpu in range(self.gpus)]


def without(rows: Rows, missing: Iterable[str], value: float | None = None) -> Rows:
    """The samples with a value in place of these counters; where they are integers, with null."""
    values = {name: None if GPU_SAMPLES.schema[name].is_integer() else value for name in missing}
    return [{**row, **values} for row in rows]


def copies(measured: MeasuredJob) -> Iterator[tuple[str, list[Rows]]]:
    """Yield names of copies of a job, with the samples of each of their GPUs."""
    gpus = measured.samples()
    missing = measured.missing
    yield "as it is", gpus
    yield "silent GPUs", [*gpus, *([] for _ in range(measured.more))]
    mute = without(gpus[0], COUNTER_NAMES)
    yield "GPUs that report nothing", [*gpus, *(mute for _ in range(measured.more))]
    not_numbers = without(gpus[0], COUNTER_NAMES, math.nan)
    yield "GPUs that report NaN", [*gpus, *(not_numbers for _ in range(measured.more))]
    yield "without counters", [without(rows, missing) for rows in gpus]
    yield "counters are NaN", [without(rows, missing, math.nan) for rows in gpus]
    yield "one GPU without counters", [without(gpus[0], missing), *gpus[1:]]


@dataclass(frozen=True, slots=True)
class JobResult:
    """What the program computes of a job: its summary, and that of each GPU by its index.

    verdicts: by code of the finding.
    """

    summary: Mapping[str, Any]
    gpus: Mapping[int, Mapping[str, Any]]
    verdicts: Mapping[str, str]


def results(jobs: list[MeasuredJob]) -> list[dict[str, JobResult]]:
    """The results of all copies of each job, by name, each on a node of its own."""
    tables: dict[str, list[Mapping[str, Any]]] = {
        name: [] for name in ("jobs", "allocations", "devices", "gpu_samples")
    }
    job_ids: list[dict[str, str]] = []
    for measured in jobs:
        job_ids.append({})
        for name, gpus in copies(measured):
            job_id = str(len(tables["jobs"]) + 1)
            job_ids[-1][name] = job_id
            add_job(tables, job_id, gpus, BEGIN + timedelta(minutes=measured.minutes))
    with tempfile.TemporaryDirectory() as folder:
        lake = make_lake(Path(folder), **tables)
        _, summaries = summarized(lake)
        by_gpu: dict[str, dict[int, Mapping[str, Any]]] = {}
        for row in read_gpus(lake, read_summaries(lake)).iter_rows(named=True):
            by_gpu.setdefault(row["job_id"], {})[row["gpu"]] = row
        verdicts: dict[str, dict[str, str]] = {}
        for row in lake.latest(FINDINGS).iter_rows(named=True):
            verdicts.setdefault(row["job_id"], {})[row["code"]] = row["verdict"]
    return [
        {
            name: JobResult(summaries[job_id], by_gpu[job_id], verdicts[job_id])
            for name, job_id in ids.items()
        }
        for ids in job_ids
    ]


def add_job(
    tables: Mapping[str, list[Mapping[str, Any]]], job_id: str, gpus: list[Rows], end: datetime
) -> None:
    """Add a job on a node of its own, with the samples of each of its GPUs, empty if it has none."""
    node = f"n{job_id}"
    tables["jobs"].append(job(job_id, BEGIN, end, gpus=len(gpus)))
    tables["allocations"] += held(job_id, node, range(len(gpus)), BEGIN, end)
    for gpu, rows in enumerate(gpus):
        device = {"node": node, "gpu": gpu, "model": A100_40, "hbm_mib": 40960.0}
        tables["devices"].append(device)
        tables["gpu_samples"] += [{**row, "node": node, "gpu": gpu} for row in rows]


def differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that differ, with both values."""
    return {
        name: (found[name], value)
        for name, value in expected.items()
        if name not in IDENTITY and not same(found[name], value)
    }


def same(found: Any, expected: Any) -> bool:
    """Equal; numbers but for their last digits."""
    if isinstance(found, float) and isinstance(expected, float):
        return math.isclose(found, expected, rel_tol=1e-12)
    return bool(found == expected)


def assert_numbers(row: Mapping[str, Any]) -> None:
    """No column has NaN or an infinite number, nor has a list of numbers one."""
    for name, value in row.items():
        for number in value if isinstance(value, list) else [value]:
            assert not isinstance(number, float) or math.isfinite(number), name


def assert_means_of_gpus(result: JobResult) -> None:
    """The mean of a job is that of the GPUs that have one; without any it is null."""
    for name in MEANS:
        values = [gpu[name] for gpu in result.gpus.values() if gpu[name] is not None]
        mean = math.fsum(values) / len(values) if values else None
        expected = None if mean is None else pytest.approx(mean, rel=1e-9)
        assert result.summary[MEANS_OF_JOBS.get(name, name)] == expected, name


def assert_same_but_for_gpus(result: JobResult, measured: JobResult) -> None:
    """More GPUs without data change the numbers of GPUs alone, and no GPU that was measured."""
    changed = differences(result.summary, measured.summary)
    at_work = [
        sum(row[name] or 0.0 for name in AT_WORK) for row in (result.summary, measured.summary)
    ]
    assert at_work[0] == pytest.approx(at_work[1], abs=1e-9)
    lost = [row["gpu_hours_imbalance"] or 0.0 for row in (result.summary, measured.summary)]
    assert lost[0] <= lost[1] + 1e-9
    for name, (found, before) in changed.items():
        assert name in {*COUNTING, *UNDETERMINED, *AT_WORK}, (name, found, before)
    for gpu, row in measured.gpus.items():
        assert differences(result.gpus[gpu], row) == {}
    for gpu in set(result.gpus) - set(measured.gpus):
        assert [name for name in MEANS if result.gpus[gpu][name] is not None] == []


def assert_no_other_verdict(
    result: JobResult, measured: JobResult, but_for: Set[str] = frozenset()
) -> None:
    """What is not measured makes verdicts unknown, and never the opposite."""
    for code, verdict in result.verdicts.items():
        if code not in OF_RECORDING and code not in but_for:
            assert verdict in {measured.verdicts[code], "unknown"}, code


def assert_same_but_for_counters(
    result: JobResult, measured: JobResult, missing: Set[str], everywhere: bool
) -> None:
    """Missing counters change what follows from them; where no GPU has them, means are null."""
    changed = differences(result.summary, measured.summary)
    assert set(changed) <= changed_by(missing)
    lacking = result.gpus.values() if everywhere else [result.gpus[0]]
    for counter in missing:
        assert [gpu[f"{counter}_mean"] for gpu in lacking] == [None] * len(lacking)


MEASURED = st.builds(
    MeasuredJob,
    seed=st.integers(0, 2**32),
    gpus=st.integers(1, 3),
    minutes=st.integers(4, 25),
    more=st.integers(1, 3),
    missing=st.frozensets(st.sampled_from(COUNTER_NAMES), min_size=1)
    | st.just(frozenset(COUNTER_NAMES)),
)


# making examples smaller would take minutes: a failure names the column anyway
@settings(max_examples=4, phases=(Phase.generate,))
@given(st.lists(MEASURED, min_size=2, max_size=4))
def test_what_has_no_data_changes_no_number(jobs: list[MeasuredJob]) -> None:
    for measured, result in zip(jobs, results(jobs), strict=True):
        whole = result["as it is"]
        assert set(whole.summary) == set(JOB_SUMMARIES.schema)
        for found in result.values():
            assert_means_of_gpus(found)
            for row in (found.summary, *found.gpus.values()):
                assert_numbers(row)
        for name in ("silent GPUs", "GPUs that report nothing", "GPUs that report NaN"):
            assert_same_but_for_gpus(result[name], whole)
            assert_no_other_verdict(result[name], whole)
        for name in ("without counters", "counters are NaN", "one GPU without counters"):
            everywhere = name != "one GPU without counters"
            assert_same_but_for_counters(result[name], whole, measured.missing, everywhere)
        if measured.gpus > 1:  # where no GPU has a counter, another one may decide
            of_others = {"score_gpumem"} if measured.missing & CLOCKS else set()
            assert_no_other_verdict(result["one GPU without counters"], whole, of_others)
        nan, null = result["counters are NaN"], result["without counters"]
        assert differences(nan.summary, null.summary) == {}


def test_the_means_of_all_counters_are_compared() -> None:
    assert {name.removesuffix("_mean") for name in MEANS} == set(COUNTER_NAMES)
    assert changed_by({"xid"}) - JUDGED == {"xid_mean", "xid_max", "xid_events", "xid_event_max"}


def test_a_gpu_without_utilisation_makes_no_imbalance() -> None:
    """It has samples: a GPU that is not known to be idle. Of the others the imbalance is known."""
    busy, half = ({"gpu_util": level, "power_w": 300.0, "sm_active": level} for level in (0.8, 0.4))
    mute = {"gpu_util": None, "power_w": 300.0, "sm_active": 0.8}
    tables: dict[str, list[Mapping[str, Any]]] = {
        name: [] for name in ("jobs", "allocations", "devices", "gpu_samples")
    }
    end = BEGIN + timedelta(minutes=20)
    jobs = {"1": (busy, mute), "2": (busy, half, mute), "3": (busy, busy), "4": (busy, {})}
    for job_id, levels in jobs.items():
        gpus: list[Rows] = []
        for of_gpu in levels:
            times = [BEGIN + timedelta(seconds=STEP_S * k) for k in range(40 if of_gpu else 0)]
            gpus.append([{"t": t, **of_gpu} for t in times])
        add_job(tables, job_id, gpus, end)
    with tempfile.TemporaryDirectory() as folder:
        lake = make_lake(Path(folder), **tables)
        _, summaries = summarized(lake)
        verdicts = lake.latest(FINDINGS).filter(pl.col("code") == "imbalanced_gpus")
    imbalance = {key: row["spatial_imbalance"] for key, row in summaries.items()}
    assert imbalance == {"1": None, "2": pytest.approx(0.25), "3": 0.0, "4": None}
    by_job = {row["job_id"]: row for row in verdicts.iter_rows(named=True)}
    assert {key: row["verdict"] for key, row in by_job.items()} == {
        "1": "unknown",
        "2": "unknown",
        "3": "no",
        "4": "unknown",
    }
    assert by_job["1"]["sentence"] == ("Unknown: gpu_util was not measured on some of its GPUs.")
