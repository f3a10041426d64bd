"""Lemons: GPUs on which the jobs of several users fail, and who had a GPU before and after an
error.
"""

from __future__ import annotations

import json
from datetime import timedelta
from fractions import Fraction
from itertools import combinations
from typing import Any

import polars as pl
import pytest

from jobframes import frame
from madelake import utc
from tachograph.catalog.tables import DEVICES, JOB_GPUS, JOB_SUMMARIES
from tachograph.judge.node_history import NodeReport, build_node_report, lemon_verdict
from tachograph.report.node import node_headline

START = utc(1)


def node_report(*jobs: tuple[str, str, dict[int, float]], **devices: Any) -> NodeReport:
    """Return the report of a node with jobs of an hour, one after the other: (user, state, {GPU:
    XID events}).
    """
    summaries, gpus = [], []
    for place, (user, state, events) in enumerate(jobs):
        begin = START + place * timedelta(hours=1)
        key = f"c:{place:03}:0"
        times = {"start": begin, "as_of": begin + timedelta(hours=1)}
        summaries.append(
            {"job_key": key, "job_id": str(place), "user": user, "state": state} | times
        )
        gpus += [
            {"job_key": key, "node": "n1", "gpu": gpu, "xid_events": count, "xid_event_max": 79,
             "samples": 60, "first_t": begin, "last_t": times["as_of"]}
            for gpu, count in events.items()
        ]  # fmt: skip
    rows = [{"node": "n1", "gpu": gpu, "uuid": f"GPU-{gpu}"} | devices for gpu in range(4)]
    return build_node_report(
        "n1",
        frame(JOB_SUMMARIES, summaries),
        frame(JOB_GPUS, gpus),
        frame(DEVICES, rows),
        zone_name="UTC",
    )


def lemons(report: NodeReport) -> dict[int, tuple[int, int, str]]:
    columns = report.gpus.select("gpu", "users_failed", "users", "lemon").drop_nulls("users")
    return {gpu: (failed, users, lemon) for gpu, failed, users, lemon in columns.iter_rows()}


def alone(user: str, gpu: int, state: str = "COMPLETED", events: float = 0) -> Any:
    return user, state, {gpu: events}


USERS = [f"u{number}" for number in range(12)]
GOOD = [alone(user, gpu) for user in USERS for gpu in range(1, 4)]


def test_a_gpu_on_which_all_users_fail_is_a_lemon() -> None:
    """4 of 4 users on GPU 0 and none of 36 elsewhere: 1 of C(40, 4) = 91,390 ways."""
    bad = [alone(user, 0, "FAILED") for user in USERS[:4]]
    report = node_report(*bad, *GOOD)
    assert lemons(report) == {0: (4, 4, "yes")} | dict.fromkeys((1, 2, 3), (0, 12, "no"))
    assert node_headline(report).endswith(
        " GPU 0 may be faulty: jobs of 4 of its 4 users failed, on its neighbours far fewer."
    )


@pytest.mark.parametrize(
    ("bad", "verdict"),
    [
        ([alone("u1", 0, "FAILED")] * 9, "unknown"),  # one user's program
        ([alone(user, 0, "FAILED") for user in USERS[:2]], "unknown"),
        ([alone(user, 0, "CANCELLED") for user in USERS], "no"),
        ([alone(user, 0, "RUNNING") for user in USERS], None),
        ([alone(user, 0) for user in USERS], "no"),
        ([alone(user, 0, "COMPLETED", 1) for user in USERS[:3]], "yes"),
    ],
)
def test_few_users_are_not_enough(bad: list[Any], verdict: str | None) -> None:
    found = lemons(node_report(*bad, *GOOD))
    assert found.get(0, (0, 0, None))[2] == verdict


def test_failures_everywhere_refute_a_lemon() -> None:
    """Jobs on all GPUs fail on none of them more than on others, unless one had an XID."""
    everywhere: list[Any] = [(user, "FAILED", dict.fromkeys(range(4), 0.0)) for user in USERS]
    assert {row[2] for row in lemons(node_report(*everywhere)).values()} == {"no"}
    with_xid: list[Any] = [(user, "FAILED", {0: 1.0, 1: 0.0, 2: 0.0, 3: 0.0}) for user in USERS]
    found = lemons(node_report(*with_xid))
    assert found == {0: (12, 12, "yes")} | dict.fromkeys((1, 2, 3), (0, 12, "no"))


def test_failures_on_a_gpu_that_was_replaced_are_not_those_of_the_new_one() -> None:
    bad = [alone(user, 0, "FAILED") for user in USERS[:4]]
    renewed = START + timedelta(hours=4)
    begin, change = START.isoformat(), renewed.isoformat()
    spans = [["GPU-old", begin, change], ["GPU-new", change, "2026-12-01T00:00:00+00:00"]]
    assert lemons(node_report(*bad, *GOOD, history=json.dumps(spans))).get(0) is None


@pytest.mark.parametrize("users", range(6))
@pytest.mark.parametrize("failed", range(6))
def test_the_verdict_is_that_of_all_ways_to_fail(failed: int, users: int) -> None:
    """Every way in which `all_failed` of 11 pairs can fail is equally likely."""
    for all_failed in range(failed, failed + 11 - users + 1):
        if not failed <= users <= 11 or all_failed > 11:
            continue
        ways = [len([pair for pair in way if pair < users]) >= failed
                for way in combinations(range(11), all_failed)]  # fmt: skip
        chance = Fraction(sum(ways), len(ways))
        expected = failed >= 3 and chance < Fraction(1, 1000)
        assert (lemon_verdict(failed, users, all_failed, 11) == "yes") == expected


def test_without_neighbours_nothing_is_known() -> None:
    assert lemon_verdict(9, 9, 9, 9) == "unknown"


def test_who_had_the_gpu_before_and_after_an_error() -> None:
    report = node_report(
        alone("ann", 0), alone("bob", 1), alone("eve", 0, events=2), alone("dan", 0), alone("x", 1)
    )
    (row,) = report.errors.rows(named=True)
    assert (row["job"], row["user"], row["gpu"], row["xid"]) == ("2", "eve", 0, 79)
    assert (row["job_before"], row["user_before"]) == ("0", "ann")
    assert (row["job_after"], row["user_after"]) == ("3", "dan")
    assert row["job_key_after"] == "c:003:0"
    first = node_report(alone("ann", 0, events=1)).errors
    assert first.select(pl.col("^job_key_.*$")).row(0) == (None, None)
