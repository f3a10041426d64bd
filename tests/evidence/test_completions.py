"""Jobs completed by hand: means, maxima and minutes of the time without samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import polars as pl
import pytest

from jobframes import frame, gpus, minutes, summary
from tachograph.catalog.tables import JOB_NODE_MINUTES, JOB_SUMMARIES
from tachograph.judge.completions import (
    Completed,
    Questions,
    completed,
    refuted,
    unmeasured,
    until_last_sample,
)
from tachograph.judge.fills import FILLS
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
    tables = _tables(ROW, [0.8] * 120, [0.6] * 60 + [None] * 60)
    return completed(tables, unmeasured(tables.jobs, tables.timelines), idle_util=IDLE)


def _named(whole: Completed, number: int) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    key = f"{ROW['job_key']}\n{number}"
    tables = whole.tables
    return tuple(  # type: ignore[return-value]
        each.filter(job_key=key) for each in (tables.jobs, tables.gpus, tables.timelines)
    )


def test_a_row_of_each_table_and_fill(whole: Completed) -> None:
    tables = whole.tables
    assert whole.of["job"].to_list() == [ROW["job_key"]] * len(FILLS)
    for each, rows in ((tables.jobs, 1), (tables.gpus, 2), (tables.timelines, 120)):
        counts = each.group_by("job_key").len()
        assert set(counts["job_key"]) == set(whole.of["job_key"])
        assert set(counts["len"]) == {rows}


@pytest.mark.parametrize(("number", "level"), [(0, 0.0), (2, 0.5), (1, 1.0)])
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


def test_each_gpu_lacks_what_its_own_interval_expects() -> None:
    """The second GPU has all samples that its interval expects, the first half as many."""
    rows = GPUS.with_columns(samples=pl.Series([119, 119]), interval_s=pl.Series([30.0, 60.0]))
    coverage = 119 * (30 + 60) / (2 * 7200)
    row = ROW | {"coverage": coverage, "interval_s": 45.0, "samples": 238}
    tables = replace(_tables(row, [0.8] * 60 + [None] * 60, [0.6] * 120), gpus=rows)
    gaps = unmeasured(tables.jobs, tables.timelines)
    _, of_gpus, _ = _named(completed(tables, gaps, idle_util=IDLE), 1)
    assert of_gpus["gpu_util_mean"].to_list() == pytest.approx([0.9, 0.6])
    assert of_gpus["interval_s"].to_list() == [30.0, 60.0]


def test_errors_and_heat_may_have_happened_in_one_of_them(whole: Completed) -> None:
    hottest = whole.tables.jobs["gpu_temp_c_max"].to_list()
    assert max(hottest) == 150
    assert hottest.count(60.0) == len(FILLS) - 1


def test_jobs_measured_whole_are_not_completed() -> None:
    tables = _tables(ROW | {"coverage": 1.0}, [0.8] * 120)
    again = completed(tables, unmeasured(tables.jobs, tables.timelines), idle_util=IDLE)
    assert not again.tables.jobs.height
    assert not again.of.height


def _tables(row: Mapping[str, Any], *levels: list[float | None]) -> JobTables:
    jobs = frame(JOB_SUMMARIES, [dict(row)])
    timelines = timelines_of(minutes(*levels), idle_util=IDLE)
    return JobTables(jobs, GPUS, timelines, JOB_NODE_MINUTES.empty().drop("seq"))


def _of_levels(asked: list[set[str]]) -> Callable[[Completed, Questions], pl.DataFrame]:
    """Judge "busy" (above a half), "long" (an hour or more) and "hot"; note what is in question."""

    def judge(whole: Completed, questions: Questions) -> pl.DataFrame:
        tables = whole.tables
        asked.append(set(questions))
        holds = {
            "busy": pl.col("gpu_util_mean") > 0.5,
            "long": pl.col("elapsed_s") >= 3600,
            "hot": pl.col("gpu_temp_c_max") > 90,
        }
        found = [
            tables.jobs.select(
                "job_key",
                code=pl.lit(code),
                verdict=pl.when(condition).then(pl.lit("yes")).otherwise(pl.lit("no")),
            )
            for code, condition in holds.items()
        ]
        return pl.concat(found)

    return judge


@pytest.mark.parametrize("most_rows", [1, 120, 500, 10**6])
def test_a_verdict_is_in_question_until_a_completion_refutes_it(most_rows: int) -> None:
    """However many completions are made at a time: the same is refuted."""
    tables = _tables(ROW, [0.8] * 120, [0.6] * 60 + [None] * 60)
    asked: list[set[str]] = []
    judge = _of_levels(asked)
    own = judge(Completed(tables, tables.jobs, {}), {})
    found = refuted(
        tables,
        unmeasured(tables.jobs, tables.timelines),
        own,
        judge,
        idle_util=IDLE,
        most_rows=most_rows,
    )
    assert set(found["code"]) == {"hot"}, "a quarter without work leaves it busy"
    assert {"busy", "long"} <= asked[-1], "no completion refutes these: all are tried"
    if most_rows <= 120:
        assert len(asked) == 1 + len(FILLS)
        assert "hot" not in asked[-1]


def test_nothing_is_completed_where_nothing_is_in_question() -> None:
    tables = _tables(ROW, [0.8] * 120, [0.6] * 60 + [None] * 60)
    asked: list[set[str]] = []
    judge = _of_levels(asked)
    own = judge(Completed(tables, tables.jobs, {}), {}).filter(code="hot")
    gaps = unmeasured(tables.jobs, tables.timelines)
    assert refuted(tables, gaps, own, judge, idle_util=IDLE, most_rows=1).height == 1
    assert len(asked) < 1 + len(FILLS)
    assert not refuted(tables, gaps, own.clear(), judge, idle_util=IDLE).height


DAY = 1440


@pytest.mark.parametrize("begins", [True, False])
def test_a_long_time_without_samples_is_cut_alike_at_both_ends(begins: bool) -> None:
    """Ten days before the first sample, or behind the last: a day of them is completed."""
    hour, days = [0.8] * 60, [None] * (10 * DAY)
    levels = [*days, *hour] if begins else [*hour, *days]
    row = ROW | {"gpus": 1, "elapsed_s": 60.0 * len(levels), "coverage": 60 / len(levels)}
    row |= {"as_of": row["start"] + timedelta(minutes=len(levels))}
    tables = _tables(row, levels)
    rows: list[int] = []

    def judge(whole: Completed, _: Questions) -> pl.DataFrame:
        of = whole.tables
        rows.extend(of.timelines.group_by("job_key").len()["len"])
        ran = of.jobs["as_of"] - of.jobs["start"]
        assert set(ran.dt.total_minutes()) == {DAY + 60}
        return of.jobs.select("job_key", code=pl.lit("any"), verdict=pl.lit("no"))

    own = tables.jobs.select("job_key", code=pl.lit("any"), verdict=pl.lit("no"))
    gaps = unmeasured(tables.jobs, tables.timelines)
    refuted(tables, gaps, own, judge, idle_util=IDLE)
    assert set(rows) == {DAY + 60}
    assert len(rows) == len(FILLS)


@pytest.mark.parametrize(
    ("interval_s", "lag_min", "is_late"),
    [(30, 3, False), (30, 15, False), (30, 16, True), (600, 30, False), (600, 31, True)],
)
def test_a_running_job_ends_at_a_recent_last_sample(
    interval_s: int, lag_min: int, *, is_late: bool
) -> None:
    """Of 15 minutes or three intervals: behind it the time counts as not measured."""
    ran = 120 + lag_min
    last = ROW["start"] + timedelta(minutes=120)
    row = ROW | {"state": "RUNNING", "interval_s": float(interval_s), "elapsed_s": 60.0 * ran}
    row |= {"as_of": ROW["start"] + timedelta(minutes=ran), "coverage": 120 / ran}
    tables = _tables(row, [0.8] * 120, [0.6] * 120)
    tables = replace(tables, gpus=GPUS.with_columns(last_t=pl.lit(last).cast(GPUS["last_t"].dtype)))
    ended = until_last_sample(tables)
    share = unmeasured(ended.jobs, tables.timelines)["share"].item()
    assert (share > 0) == is_late
    assert (ended.jobs["as_of"].item() == last) != is_late
    over = until_last_sample(
        replace(tables, jobs=tables.jobs.with_columns(state=pl.lit("COMPLETED")))
    )
    assert over.jobs["elapsed_s"].item() == 60 * ran, "the end of a job that is over is known"


def test_a_row_without_samples_is_no_further_gpu() -> None:
    """A slice, and a row of its GPU: the job held one."""
    slice_: dict[str, object] = {"samples": 216, "mig": 7, "gpu": 0}
    slice_ |= {"gpu_util_mean": 0.8, "gpu_util_max": 0.9}
    tables = _tables(ROW | {"gpus": 1, "gpus_seen": 1, "coverage": 0.9}, [0.8] * 108 + [None] * 12)
    gaps = unmeasured(tables.jobs, tables.timelines)
    cases: list[tuple[dict[str, object], int]] = [({"gpu": 0}, 1), ({"gpu": 0, "samples": 9}, 2)]
    for other, held in cases:
        whole = completed(replace(tables, gpus=gpus(slice_, other)), gaps, idle_util=IDLE)
        assert set(whole.tables.timelines["measured_gpus"]) == {held}
        assert set(whole.tables.gpus.group_by("job_key").len()["len"]) == {held}


def test_completions_that_are_alike_are_judged_once() -> None:
    """Four minutes of samples are missing here and there: where GPUs were busy is all the same."""
    rows = gpus({"samples": 232, "gpu_util_mean": 0.8, "gpu_util_max": 0.9})
    tables = _tables(ROW | {"gpus": 1, "gpus_seen": 1, "coverage": 0.966}, [0.8] * 120)
    tables = replace(tables, gpus=rows)
    whole = completed(tables, unmeasured(tables.jobs, tables.timelines), idle_util=IDLE)
    assert whole.tables.timelines.equals(
        tables.timelines.with_columns(job_key=pl.lit(f"{ROW['job_key']}\n0"))
    )
    numbers = {int(key.split("\n")[1]) for key in whole.of["job_key"]}
    assert numbers == set(whole.tables.jobs["job_key"].str.split("\n").list[1].cast(pl.Int64))
    with_pieces = [number for number, fill in enumerate(FILLS) if fill.when in ("begin", "end")]
    assert len(numbers.intersection(with_pieces)) <= 1
    assert len(numbers) < len(FILLS) - 3
