"""Jobs completed by hand: means, maxima and minutes of the time without samples."""

from __future__ import annotations

import polars as pl
import pytest

from jobframes import frame, gpus, minutes, summary
from tachograph.catalog.tables import JOB_NODE_MINUTES, JOB_SUMMARIES
from tachograph.judge.completions import FILLS, Completed, completed, unmeasured
from tachograph.pipeline.summaries import JobTables
from tachograph.pipeline.timelines import timelines_of

IDLE = 0.01
# two hours on two GPUs, of which one has no sample in the last hour
ROW = summary(
    gpus=2, samples=359, coverage=0.75, interval_s=30.0, gpus_seen=2, gpu_util_mean=0.7,
    gpu_util_max=0.9, power_w_max=300.0, gpu_temp_c_max=60.0, zero_util_fraction=0.0,
)  # fmt: skip
GPUS = gpus(
    {
        "samples": 240,
        "gpu_util_mean": 0.8,
        "gpu_util_max": 0.9,
        "zero_util_fraction": 0.0,
        "gpu_temp_c_max": 60.0,
    },
    {
        "samples": 119,
        "gpu_util_mean": 0.6,
        "gpu_util_max": 0.7,
        "zero_util_fraction": 0.0,
        "gpu_temp_c_max": 60.0,
    },
)


@pytest.fixture(scope="module")
def whole() -> Completed:
    jobs = frame(JOB_SUMMARIES, [ROW])
    series = minutes([0.8] * 120, [0.6] * 60 + [None] * 60)
    timelines = timelines_of(series, idle_util=IDLE)
    tables = JobTables(jobs, GPUS, timelines, JOB_NODE_MINUTES.empty().drop("seq"))
    return completed(tables, unmeasured(jobs, timelines), idle_util=IDLE)


def _named(whole: Completed, number: int) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    key = f"{ROW['job_key']}\n{number}"
    tables = whole.tables
    return tuple(  # type: ignore[return-value]
        each.filter(job_key=key) for each in (tables.jobs, tables.gpus, tables.timelines)
    )


def test_the_job_itself_comes_first_and_unchanged(whole: Completed) -> None:
    assert whole.tables.jobs.head(1).equals(frame(JOB_SUMMARIES, [ROW]))
    assert whole.tables.gpus.head(2).equals(GPUS)
    assert whole.of["job"].to_list() == [ROW["job_key"]] * len(FILLS)
    assert whole.of["job_key"].n_unique() == len(FILLS)


@pytest.mark.parametrize(("number", "level"), [(0, 0.0), (1, 0.5), (7, 1.0)])
def test_means_over_the_whole_time(whole: Completed, number: int, level: float) -> None:
    """One sample of the edge counts as there: half of the second GPU's time is missing."""
    job, of_gpus, of_minutes = _named(whole, number)
    second = 0.6 * 0.5 + level * 0.5
    assert of_gpus["gpu_util_mean"].to_list() == pytest.approx([0.8, second])
    assert of_gpus["gpu_util_max"].to_list() == pytest.approx([0.9, max(0.7, level)])
    assert job["gpu_util_mean"].item() == pytest.approx((0.8 + second) / 2)
    zeros = 0.25 if level == 0 else 0.0
    assert job["zero_util_fraction"].item() == pytest.approx(zeros)
    assert job["coverage"].item() == 1.0
    assert job["sm_active_mean"].item() is None, "what was never measured stays unknown"
    assert of_minutes["measured_gpus"].to_list() == [2] * 120
    assert of_minutes["idle_gpus"].sum() == (60 if level == 0 else 0)
    late = of_minutes.filter(pl.col("minute") >= 60)
    assert late["mean_gpu_util"].to_list() == pytest.approx([(0.8 + level) / 2] * 60, rel=1e-6)
    assert late["gpu_util"].to_list() == pytest.approx([max(0.8, level)] * 60, rel=1e-6)


def test_errors_and_heat_may_have_happened_in_one_of_them(whole: Completed) -> None:
    hottest = whole.tables.jobs["gpu_temp_c_max"].to_list()
    assert max(hottest) == 150
    assert hottest.count(60.0) == len(FILLS)


def test_jobs_measured_whole_are_not_completed() -> None:
    row = ROW | {"coverage": 1.0}
    jobs = frame(JOB_SUMMARIES, [row])
    timelines = timelines_of(minutes([0.8] * 120), idle_util=IDLE)
    tables = JobTables(jobs, GPUS, timelines, JOB_NODE_MINUTES.empty().drop("seq"))
    again = completed(tables, unmeasured(jobs, timelines), idle_util=IDLE)
    assert again.tables.jobs.equals(jobs)
    assert not again.of.height
