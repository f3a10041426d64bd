"""What is not sure: ends that are missing, clusters that are not named, nodes that were not seen whole."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pytest

from in_memory import Unit, owners
from madelake import held, job, utc
from own_time import own_seconds
from tachograph.pipeline.attribution import INTERVALS_SCHEMA, separate

T = utc(23, 12)
TWO: list[Unit] = [("n1", 0, None), ("n1", 1, None)]
BOTH: list[Unit] = [*TWO, ("n2", 0, None), ("n2", 1, None)]


def after(seconds: float) -> datetime:
    return T + timedelta(seconds=seconds)


def ran(job_id: str, start: float, end: float | None, **given: Any) -> dict[str, Any]:
    return job(job_id, after(start), None if end is None else after(end), **given)


def owned(found: Any) -> list[tuple[str, str, int, float, float]]:
    """(job id, node, gpu, seconds from T to the start, to the end)"""
    names = dict(found.runs.select("run", "job_id").iter_rows())
    rows = found.intervals.select("run", "node", "gpu", "start", "end").iter_rows()
    return sorted(
        (names[run], node, gpu, (start - T).total_seconds(), (end - T).total_seconds())
        for run, node, gpu, start, end in rows
    )


def attributions(found: Any) -> dict[str, str]:
    return dict(found.runs.select("job_id", "attribution").iter_rows())


def test_map_without_end_of_a_requeued_job_is_of_the_run_it_began_in() -> None:
    """The node failed, so nobody wrote the end of the first run's map; the second run is on another node."""
    jobs = [ran("1", 0, 1800, gpus=1, state="NODE_FAIL"), ran("1", 3600, 7200, gpus=1), ran("2", 3600, 7200, gpus=1)]
    maps = [*held("1", "n1", [0], after(0)), *held("1", "n2", [0], after(3600), after(7200)), *held("2", "n1", [0])]
    found = owners(jobs, maps, BOTH)
    assert owned(found) == [("1", "n1", 0, 0, 1800), ("1", "n2", 0, 3600, 7200), ("2", "n1", 0, 3600, 7200)]


def test_map_without_end_written_before_the_second_run_began() -> None:
    jobs = [ran("1", 0, 1800, gpus=1), ran("1", 3600, None, gpus=1)]
    found = owners(jobs, held("1", "n1", [1], after(3598)), TWO, now=after(4000))
    assert owned(found) == [("1", "n1", 1, 3600, 4000)]


def test_map_that_was_told_anew_and_then_ended_is_over() -> None:
    """Who wrote it was started again while the job ran, and never came back to the first row."""
    anew = [*held("1", "n1", [0], after(0)), *held("1", "n1", [0], after(100), after(200))]
    found = owners([], anew, TWO, now=after(4000))
    assert owned(found) == [("1", "n1", 0, 0, 200)]
    assert found.runs.get_column("end").to_list() == [after(200)]
    other = held("1", "n1", [1], after(0))
    assert owners([], [*anew, *other], TWO, now=after(4000)).runs.get_column("end").to_list() == [None]


@pytest.mark.parametrize(("elapsed", "expected"), [(100.0, [("1", "n1", 0, 0, 100)]), (None, [])])
def test_run_that_is_over_without_an_end_does_not_hold_its_node(
    elapsed: float | None, expected: list[tuple[str, str, int, float, float]]
) -> None:
    lost = ran("1", 0, None, gpus=1, state="CANCELLED", elapsed_s=elapsed)
    jobs = [lost, ran("2", 200, 300, gpus=1)]
    found = owners(jobs, [*held("1", "n1", [0]), *held("2", "n1", [0])], TWO)
    assert owned(found) == [*expected, ("2", "n1", 0, 200, 300)]
    assert found.runs.filter(pl.col("job_id") == "1").get_column("end").to_list() == [None]


def test_record_without_a_cluster_is_of_the_only_one_of_the_job() -> None:
    named = ran("1", 0, 100, gpus=2, cluster="a")
    nameless = ran("1", 0, 100, gpus=2, cluster=None, user="anna")
    other = ran("2", 200, 300, gpus=2, cluster="b")
    found = owners([nameless, named, other], held("1", "n1"), TWO)
    assert attributions(found) == {"1": "whole_node", "2": "ambiguous"}
    row = found.runs.filter(pl.col("job_id") == "1").row(0, named=True)
    assert (row["cluster"], row["user"]) == ("a", "anna")
    assert len(owned(found)) == 2


def test_record_without_a_cluster_is_of_the_only_one_there_is() -> None:
    found = owners([ran("1", 0, 100, gpus=2), ran("2", 200, 300, gpus=2, cluster="a")], held("1", "n1"), TWO)
    assert found.runs.get_column("cluster").to_list() == ["a", "a"]


def test_record_without_a_cluster_of_a_job_on_two_stays_without() -> None:
    jobs = [ran("1", 200 * at, 200 * at + 100, gpus=2, cluster=name) for at, name in enumerate(("a", "b", None))]
    found = owners(jobs, [], TWO)
    assert found.runs.sort("start").get_column("cluster").to_list() == ["a", "b", None]


def test_map_with_and_without_a_cluster_is_one_run() -> None:
    maps = [*held("1", "n1", [0], after(0), after(50), cluster="a"), *held("1", "n1", [1], after(0), after(60))]
    assert owned(owners([], maps, TWO)) == [("1", "n1", 0, 0, 50), ("1", "n1", 1, 0, 60)]
    assert owners([], maps, TWO).runs.height == 1


def test_equal_job_ids_to_the_minute_on_two_clusters() -> None:
    jobs = [ran("1", 0, end, gpus=2, cluster=name, time_precision_s=60.0) for name, end in (("a", 60), ("b", 120))]
    found = owners(jobs, [*held("1", "n1", cluster="a"), *held("1", "n2", cluster="b")], BOTH)
    assert owned(found) == [
        ("1", "n1", 0, 0, 60),
        ("1", "n1", 1, 0, 60),
        ("1", "n2", 0, 0, 120),
        ("1", "n2", 1, 0, 120),
    ]


def test_as_many_gpus_as_were_seen_beside_another_job_is_ambiguous() -> None:
    """Two of the node's GPUs were seen so far; another job is there, so it has more."""
    jobs = [ran("1", 0, 1000, gpus=2), ran("2", 500, 800, gpus=1)]
    found = owners(jobs, [*held("1", "n1"), *held("2", "n1")], TWO)
    assert attributions(found) == {"1": "ambiguous", "2": "ambiguous"}


@pytest.mark.parametrize(
    "other",
    [ran("2", 500, 800, gpus=0), ran("2", 1000, 1800, gpus=1), ran("2", 940, 1800, gpus=1)],
    ids=["without GPUs", "after it", "hand-over"],
)
def test_as_many_gpus_as_were_seen_beside_no_job_with_gpus(other: dict[str, Any]) -> None:
    found = owners([ran("1", 0, 1000, gpus=2), other], [*held("1", "n1"), *held("2", "n1")], TWO)
    assert attributions(found)["1"] == "whole_node"


def test_many_claims_on_one_gpu_take_their_time_in_proportion() -> None:
    """Eight thousand claims that follow one another, one of which overlaps its successor: seconds, not minutes."""
    count = 8000
    starts = [T + timedelta(minutes=5 * at) for at in range(count)]
    ends = [start + timedelta(minutes=5, seconds=5 if at == 7 else 0) for at, start in enumerate(starts)]
    claims = pl.DataFrame(
        {"run": range(count), "node": ["n1"] * count, "gpu": [0] * count, "mig": [None] * count}
        | {"start": starts, "end": ends, "rank": [2] * count},
        schema=INTERVALS_SCHEMA | {"rank": pl.Int8()},
    )
    found: list[tuple[pl.DataFrame, pl.DataFrame]] = []
    assert own_seconds(lambda: found.append(separate(claims)), enough=2) < 2
    intervals, contested = found[0]
    assert (intervals.height, contested.height) == (count, 0)
    assert intervals.row(7, named=True)["end"] == starts[8]
