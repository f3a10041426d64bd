"""Time zone of the accounting and partitions of whole nodes, as the data show them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from madelake import utc
from tachograph.catalog.config import SlurmOptions
from tachograph.catalog.tables import TIME
from tachograph.pipeline.site_evidence import (
    ZONES,
    best_zone,
    earlier_zone,
    whole_node_names,
    work_onsets,
)

HOUR = timedelta(hours=1)


def starts_read_in(zone_name: str, read_in: str, starts: Sequence[datetime | None]) -> pl.DataFrame:
    """Starts that clocks of `zone_name` showed, read as if they were of `read_in`."""
    instants = pl.Series("start", starts, dtype=TIME).dt.convert_time_zone(zone_name)
    local = instants.dt.replace_time_zone(None).dt.replace_time_zone(
        read_in, ambiguous="earliest", non_existent="null"
    )
    return (
        pl.DataFrame({"start": local.dt.convert_time_zone("UTC")})
        .with_row_index("run")
        .with_columns(node=pl.lit("n1"))
    )


def samples(spans: Sequence[tuple[datetime, int, float]]) -> pl.DataFrame:
    """Samples every minute: (first, minutes, utilisation), of one GPU."""
    rows = [
        {"node": "n1", "gpu": 0, "t": first + timedelta(minutes=minute), "util": util}
        for first, minutes, util in spans
        for minute in range(minutes)
    ]
    return pl.DataFrame(
        rows, schema={"node": pl.String, "gpu": pl.Int16, "t": TIME, "util": pl.Float64}
    )


@settings(max_examples=20)
@given(
    zone_name=st.sampled_from(ZONES[1:]),
    gaps=st.lists(st.integers(61, 400), min_size=5, max_size=30, unique=True),
)
def test_a_planted_zone_is_found_or_nothing_is(zone_name: str, gaps: list[int]) -> None:
    """The zone that is proposed has the same times as the planted one."""
    starts = [utc(1, 12) + timedelta(minutes=sum(gaps[:number])) for number in range(len(gaps))]
    onsets = work_onsets(samples([(start, 30, 0.8) for start in starts]))
    read = starts_read_in(zone_name, "UTC", starts)
    evidence = best_zone(read, onsets, "UTC")
    if evidence is not None:
        assert evidence.fitting == evidence.jobs == len(gaps)
        assert starts_read_in(evidence.zone_name, "UTC", starts).equals(read)
    assert best_zone(starts_read_in("UTC", "UTC", starts), onsets, "UTC") is None


def test_work_between_idle_hours_shows_a_zone() -> None:
    """Nodes are sampled all the time; jobs are where GPUs begin to work. Summer time begins."""
    begin = utc(27, 0, month=3)
    starts = [begin + timedelta(minutes=437 * number) for number in range(12)]
    spans = []
    for start in starts:
        spans += [(start, 60, 0.9), (start + HOUR, 377, 0.0)]
    onsets = work_onsets(samples(spans))
    evidence = best_zone(starts_read_in("Europe/Berlin", "UTC", starts), onsets, "UTC")
    assert evidence is not None
    assert (evidence.zone_name, evidence.fitting, evidence.jobs) == ("Europe/Berlin", 12, 12)


Waits = Sequence[tuple[int, int, int | None]]


def records(clocks: str, read_in: str, jobs: Waits) -> pl.DataFrame:
    """Jobs (id, seconds of waiting, and of running or None), one every 29 days, read in a zone."""
    submits = [utc(1) + 29 * 24 * HOUR * number for number in range(len(jobs))]
    starts = [
        submit + timedelta(seconds=wait) for submit, (_, wait, _) in zip(submits, jobs, strict=True)
    ]
    ends = [
        None if lasts is None else start + timedelta(seconds=lasts)
        for start, (_, _, lasts) in zip(starts, jobs, strict=True)
    ]
    moments: dict[str, Sequence[datetime | None]] = {
        "submit": submits,
        "start": starts,
        "end": ends,
    }
    columns = {
        name: starts_read_in(clocks, read_in, instants)["start"].alias(name)
        for name, instants in moments.items()
    }
    return pl.DataFrame({"cluster": "c", "job_id": [str(job[0]) for job in jobs], **columns})


@settings(max_examples=settings().max_examples // 2)
@given(
    zones=st.tuples(*[st.sampled_from(ZONES)] * 3),
    jobs=st.lists(
        st.tuples(st.integers(1, 99), st.integers(0, 1800), st.none() | st.integers(1, 1800)),
        min_size=1,
        max_size=20,
        unique_by=lambda job: job[0],
    ),
    is_requeued=st.booleans(),
)
def test_records_read_in_another_zone_before_are_noticed(
    zones: tuple[str, str, str], jobs: Waits, is_requeued: bool
) -> None:
    """The zone that is named gives the rows of the lake; other jobs are not taken for them."""
    clocks, before, now = zones
    known, read = records(clocks, before, jobs), records(clocks, now, jobs)
    offsets = [
        {later - earlier for later, earlier in zip(one[2:], other[2:], strict=True) if later}
        for one, other in zip(known.rows(), read.rows(), strict=True)
    ]
    # A record about a change of clocks has several offsets.
    shifted = sum(len(of_job) == 1 and timedelta(0) not in of_job for of_job in offsets)
    if is_requeued:  # a second run of each job
        later = pl.col("submit", "start", "end") + timedelta(seconds=1801)
        known = pl.concat([known, known.with_columns(later)])
        read = pl.concat([read, read.with_columns(later)])
    evidence = earlier_zone(read, known, now)
    assert (evidence is not None) == (10 * shifted > len(jobs))
    if evidence is not None:
        assert (evidence.jobs, evidence.known) == (shifted, len(jobs))
        assert evidence.zone_name is not None
        named = records(clocks, evidence.zone_name, jobs)
        assert named["start"].equals(records(clocks, before, jobs)["start"])
    assert earlier_zone(read, read, now) is None
    assert earlier_zone(read, known.with_columns(job_id="0" + pl.col("job_id")), now) is None
    assert earlier_zone(read, known.with_columns(cluster=pl.lit("d")), now) is None


def test_a_run_that_was_requeued_is_of_no_other_zone() -> None:
    """It has the same id, but waits and lasts as long only by chance."""
    read = records("UTC", "UTC", [(1, 5, 600), (2, 5, 600)])
    run = pl.col("submit", "start") + timedelta(hours=1)
    later = read.with_columns(run, end=pl.col("end") + timedelta(minutes=61))
    assert earlier_zone(later, read, "UTC") is None
    same = read.with_columns(run, end=pl.col("end") + timedelta(hours=1)).head(1)
    assert earlier_zone(pl.concat([read, same]), read, "UTC") is None


@pytest.mark.parametrize("util", [0.0, 0.9])
def test_samples_without_an_onset_are_no_evidence(util: float) -> None:
    starts = [utc(2, 1) + 2 * HOUR * number for number in range(20)]
    onsets = work_onsets(samples([(utc(1), 4 * 1440, util)]))
    assert best_zone(starts_read_in("Asia/Tokyo", "UTC", starts), onsets, "UTC") is None


def test_a_job_every_hour_fits_every_zone() -> None:
    starts = [utc(2) + HOUR * number for number in range(60)]
    onsets = work_onsets(samples([(start, 30, 0.8) for start in starts]))
    assert best_zone(starts_read_in("Asia/Tokyo", "UTC", starts), onsets, "UTC") is None


def test_four_jobs_are_too_few() -> None:
    starts = [utc(2) + timedelta(minutes=137 * number) for number in range(5)]
    onsets = work_onsets(samples([(start, 30, 0.8) for start in starts]))
    assert best_zone(starts_read_in("Asia/Tokyo", "UTC", starts), onsets, "UTC") is not None
    assert best_zone(starts_read_in("Asia/Tokyo", "UTC", starts[:4]), onsets, "UTC") is None


def stay(run: int, **values: Any) -> dict[str, Any]:
    """A run of an hour on a node of its own hours; 4 GPUs there, its own not known."""
    row: dict[str, Any] = {
        "run": run, "cluster": "c", "partition": "gpu", "qos": "normal", "gpus": None, "cpus": 128,
        "nodes": 1, "node": "n1", "node_gpus": 4, "start": utc(1) + 2 * run * HOUR,
        "end": utc(1) + (2 * run + 1) * HOUR,
    }  # fmt: skip
    return row | values


def proposed(rows: Sequence[dict[str, Any]], slurm: SlurmOptions | None = None) -> list[str]:
    frame = pl.DataFrame(rows, schema_overrides={"gpus": pl.Int64, "start": TIME, "end": TIME})
    return [name.name for name in whole_node_names(frame, slurm or SlurmOptions())]


SMALL = stay(90, partition="shared", qos="small", cpus=32)
WHOLE = [*(stay(run) for run in range(5)), SMALL]


def test_jobs_with_all_cpus_and_alone_had_whole_nodes() -> None:
    assert proposed(WHOLE) == ["gpu"]


def test_jobs_with_all_gpus_and_alone_had_whole_nodes() -> None:
    assert proposed([row | {"gpus": 4} for row in WHOLE[:-1]]) == ["gpu"]


def test_a_qos_is_proposed_where_no_partition_is_recorded() -> None:
    assert proposed([row | {"partition": None} for row in WHOLE]) == ["normal"]


@pytest.mark.parametrize(
    "contrary",
    [
        stay(50, cpus=32),
        stay(50, gpus=1),
        stay(50, partition="shared", qos="small", start=utc(1), end=utc(1) + HOUR, cpus=32),
    ],
    ids=["fewer CPUs", "fewer GPUs", "a second job on the node"],
)
def test_one_job_with_a_part_of_a_node_refutes_it(contrary: dict[str, Any]) -> None:
    assert proposed([*WHOLE, contrary]) == []


@pytest.mark.parametrize(
    "rows",
    [
        WHOLE[1:],
        WHOLE[:-1],
        [row | {"partition": "gpu*", "qos": 'x"]'} for row in WHOLE[:-1]] + [SMALL],
    ],
    ids=["four jobs", "all jobs have as many CPUs", "a pattern as a name"],
)
def test_thin_evidence_proposes_nothing(rows: list[dict[str, Any]]) -> None:
    assert proposed(rows) == []


def test_what_the_configuration_says_is_not_asked_again() -> None:
    assert proposed(WHOLE, SlurmOptions(exclusive=("gpu",))) == []
    assert proposed(WHOLE, SlurmOptions(shared=("gpu",))) == []
