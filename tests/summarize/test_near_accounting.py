"""Of a long history only the accounting near in time to what is new is read, and results are
those of all of it.
"""

from __future__ import annotations

import random
import shutil
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from madelake import fill, held, job, make_lake, summarized, utc
from tachograph.catalog.config import Configuration
from tachograph.judge.job_judge import JobJudge
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries
from tachograph.pipeline.near import HOPS, Accounting, read_accounting
from tachograph.pipeline.run import analyze
from tachograph.pipeline.state import news_since, seen_last, seen_now

CONFIGURATION = Configuration()
DIGEST = JobJudge(CONFIGURATION).digest
HOUR = timedelta(hours=1)
BEGIN = utc(1)
MANY = 12


def hour(number: int, job_id: str | None = None, **given: Any) -> dict[str, Any]:
    """A job from one hour to the next, with whose predecessor and successor it shares an
    instant.
    """
    return job(
        job_id or str(number), BEGIN + number * HOUR, BEGIN + (number + 1) * HOUR, gpus=1, **given
    )


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a lake of jobs 0 to MANY - 1, analyzed."""
    folder = tmp_path_factory.mktemp("hours") / "lake"
    jobs = [hour(number, cluster="c1") for number in range(MANY)]
    lake = make_lake(
        folder,
        jobs=jobs,
        allocations=[row for one in jobs for row in held(one["job_id"], "n1", (0,))],
    )
    summarized(lake)
    return folder


@pytest.fixture
def lake(template: Path, tmp_path: Path) -> Lake:
    """A copy of it."""
    return Lake.open(str(shutil.copytree(template, tmp_path / "lake")))


def add(lake: Lake, *jobs: dict[str, Any]) -> None:
    rows = [row for one in jobs for row in held(one["job_id"], "n1", (0,))]
    fill(
        lake,
        {"jobs": list(jobs), "allocations": rows},
        chunk=f"{jobs[0]['job_id']} {jobs[0]['end']}",
    )


def read(lake: Lake, now: datetime = BEGIN + 100 * HOUR) -> Accounting:
    last = seen_last(lake)
    return read_accounting(
        lake, news_since(lake, last, seen_now(lake, CONFIGURATION, DIGEST)), last, now=now
    )


def ids(known: Accounting) -> set[str]:
    assert set(known.allocations["job_id"]) == set(known.jobs["job_id"])
    return set(known.jobs["job_id"])


def test_jobs_some_steps_before_what_is_new(lake: Lake) -> None:
    add(lake, hour(MANY))
    known = read(lake)
    near = {str(number) for number in range(MANY - HOPS, MANY)}
    assert ids(known) == near | {str(MANY)}
    assert set(known.summaries["job_id"]) == near
    add(lake, hour(MANY + 50))  # far behind all others: what lies between is near both
    assert str(0) not in ids(read(lake))


def test_all_that_a_long_job_is_beside(lake: Lake) -> None:
    add(lake, job("long", BEGIN, BEGIN + (MANY + 1) * HOUR, gpus=1))
    assert len(ids(read(lake))) == MANY + 1


def test_job_that_seemed_to_run_on_and_ended_is_not_near(lake: Lake) -> None:
    """Its row without an end lies in the lake beside the one that completed it."""
    running = hour(0, cluster="c1") | {"end": None, "state": "RUNNING"}
    fill(lake, {"jobs": [running]}, chunk="late")
    summarized(lake)
    add(lake, hour(MANY))
    assert "0" not in ids(read(lake))
    add(lake, job("open", BEGIN, None, gpus=1))
    summarized(lake)
    add(lake, hour(MANY + 1))
    assert "open" in ids(read(lake))


def test_job_that_only_a_map_names(lake: Lake) -> None:
    for name, start in (("near", BEGIN + MANY * HOUR), ("far", BEGIN - 5 * HOUR)):
        rows = held(name, "n1", (1,), start, start + HOUR / 2)
        fill(lake, {"allocations": rows}, chunk=name)
    summarized(lake)
    add(lake, hour(MANY))
    known = read(lake)
    assert "near" in set(known.allocations["job_id"])
    assert "far" not in set(known.allocations["job_id"])


def test_all_jobs_that_have_a_name(lake: Lake) -> None:
    """Maps may name a task as people write it: whether it is one job's alone depends on all of
    them.
    """
    add(lake, hour(-100, "90", display_id="7_1"))
    summarized(lake)
    add(lake, hour(MANY, "91", display_id="7_1"))
    assert {"90", "91"} <= ids(read(lake))


def test_another_cluster_may_change_the_keys_of_all(lake: Lake) -> None:
    """Rows that name none belong to the only one there is."""
    fill(lake, {"jobs": [hour(-3, "unnamed")]}, chunk="unnamed")
    summarized(lake)
    fill(lake, {"jobs": [hour(MANY, cluster="c1")]}, chunk="same")
    known = read(lake)
    assert known.jobs.height < MANY
    assert known.clusters.to_list() == ["c1"]
    fill(lake, {"jobs": [hour(MANY, cluster="c2")]}, chunk="other")
    assert read(lake).jobs.height == MANY + 3


def made(seed: int) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Jobs of an hour or less on two nodes of two GPUs, some beside others on the same GPU, some
    told late.
    """
    chance = random.Random(seed)
    jobs = []
    for number in range(90):
        start = BEGIN + timedelta(minutes=chance.randrange(0, 60 * 48))
        node, gpus = chance.choice(("n1", "n2")), chance.choice(((0,), (1,), (0, 1), (None,)))
        length = timedelta(minutes=chance.choice((1, 20, 40, 60)))
        exclusive = chance.choice((True, False, None))
        one = job(
            str(number),
            start,
            start + length,
            gpus=2 if gpus == (None,) else len(gpus),
            exclusive=exclusive,
        )
        jobs.append((one, held(str(number), node, gpus)))
    jobs.sort(key=lambda one: one[0]["start"] + timedelta(minutes=chance.choice((0, 0, 0, 300))))
    return jobs


@pytest.mark.slow
def test_history_part_by_part_is_that_at_once(tmp_path: Path) -> None:
    jobs = made(0)
    samples = [
        {"t": BEGIN + timedelta(minutes=minute), "node": node, "gpu": gpu, "gpu_util": 0.5}
        for minute in range(0, 60 * 50, 10)
        for node in ("n1", "n2")
        for gpu in (0, 1)
    ]
    lake = make_lake(tmp_path / "lake", gpu_samples=samples)
    fewer = 0
    for part in range(0, len(jobs), 15):
        some = jobs[part : part + 15]
        rows = {
            "jobs": [one for one, _ in some],
            "allocations": [row for _, rows in some for row in rows],
        }
        fill(lake, rows, chunk=str(part))
        if part:
            fewer += read(lake).jobs.height < part + len(some)
        summarized(lake)
    assert fewer > 2  # parts for which not all was read
    found = read_summaries(lake).drop("seq", "pipes").sort("job_key").rows()
    analyze(lake, CONFIGURATION, judge=JobJudge, now=utc(1, month=11), full=True)
    assert read_summaries(lake).drop("seq", "pipes").sort("job_key").rows() == found
