"""Jobs with shares of GPUs: samples of a GPU are of all that hold it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pytest

from in_memory import Unit, owners
from madelake import held, job, utc

T = utc(23, 12)
ONE: list[Unit] = [("n1", 0, None)]
TWO: list[Unit] = [("n1", 0, None), ("n1", 1, None)]
Rows = list[dict[str, Any]]


def after(seconds: float) -> datetime:
    return T + timedelta(seconds=seconds)


def share(job_id: str, start: float = 0, end: float = 1000, **given: Any) -> dict[str, Any]:
    return job(job_id, after(start), after(end), **({"gpus": 0, "shards": 2} | given))


def live(job_id: str, gpu: int, **given: Any) -> Rows:
    return [{**row, "shared": True} for row in held(job_id, "n1", [gpu], provenance="live_index", **given)]


def result(jobs: Rows, allocations: Rows, units: list[Unit]) -> dict[str, tuple[str, int]]:
    """{job id: (attribution, number of its intervals)}"""
    found = owners(jobs, allocations, units)
    count = dict(found.intervals.group_by("run").len().iter_rows())
    rows = found.runs.select("job_id", "attribution", "run", "gpus", "shares").iter_rows()
    assert found.runs.filter("shares").get_column("gpus").is_null().all()
    return {job_id: (attribution, count.get(run, 0)) for job_id, attribution, run, _, _ in rows}


def test_two_holders_of_a_gpu_are_both_ambiguous() -> None:
    jobs = [share("1"), share("2", 500, 1500)]
    assert result(jobs, [*live("1", 0), *live("2", 0)], TWO) == {"1": ("ambiguous", 0), "2": ("ambiguous", 0)}
    because = owners(jobs, [*live("1", 0), *live("2", 0)], TWO).runs.get_column("ambiguous_because")
    assert because.to_list() == ["shared_gpus", "shared_gpus"]


def test_holders_of_two_gpus_or_one_after_the_other_have_their_samples() -> None:
    jobs = [share("1"), share("2", 500, 1500), share("3", 1030, 2000)]  # a late epilog is a hand-over
    maps = [*live("1", 0), *live("2", 1), *live("3", 0)]
    assert result(jobs, maps, TWO) == dict.fromkeys(("1", "2", "3"), ("live_index", 1))


@pytest.mark.parametrize("other", [{"gpus": 0, "mps": 30, "shards": None}, {"gpus": None, "shards": None}])
def test_one_beside_whose_gpu_is_not_known_may_hold_the_same(other: dict[str, Any]) -> None:
    jobs = [share("1"), share("2", **other)]
    assert result(jobs, [*live("1", 0), *held("2", "n1")], TWO)["1"] == ("ambiguous", 0)


def test_a_whole_gpu_is_no_other_share() -> None:
    jobs = [share("1"), share("2", gpus=1, shards=None)]
    assert result(jobs, [*live("1", 0), *held("2", "n1")], TWO)["1"] == ("live_index", 1)
    of_map = [*live("1", 0), *held("2", "n1", [1])]
    assert result(jobs, of_map, TWO) == {"1": ("live_index", 1), "2": ("explicit", 1)}


def test_the_only_gpu_of_a_node_is_of_the_only_job_with_shares() -> None:
    assert result([share("1")], held("1", "n1"), ONE) == {"1": ("whole_node", 1)}
    assert result([share("1")], held("1", "n1"), TWO) == {"1": ("ambiguous", 0)}
    assert result([share("1", exclusive=True)], held("1", "n1"), TWO) == {"1": ("ambiguous", 0)}
    both = result([share("1"), share("2", 100, 900)], [*held("1", "n1"), *held("2", "n1")], ONE)
    assert both == {"1": ("ambiguous", 0), "2": ("ambiguous", 0)}


def test_a_share_that_only_a_map_knows() -> None:
    maps = [{**row, "shared": True} for row in held("1", "n1", [0], after(0), after(1000))]
    assert result([], maps, TWO) == {"1": ("explicit", 1)}
    other = [{**row, "shared": True} for row in held("2", "n1", [0], after(0), after(1000))]
    assert result([], [*maps, *other], TWO) == {"1": ("ambiguous", 0), "2": ("ambiguous", 0)}


def test_shares_beside_whole_gpus_are_not_the_gpus_of_the_job() -> None:
    found = owners([share("1", gpus=1)], held("1", "n1", [0]), TWO)
    assert found.runs.select("attribution", "gpus", "shares").rows() == [("explicit", 1, False)]
    assert found.intervals.height == 1
    assert isinstance(found.intervals, pl.DataFrame)
