"""The report of the ledger against plain Python over the columns of its jobs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waste_cases import columns

from jobframes import summary
from tachograph.catalog.config import WasteOptions
from tachograph.catalog.tables import IN_USE, WASTE
from tachograph.judge.ledger import (
    WASTE_BUCKETS,
    WasteReport,
    assumptions_in_use,
    build_waste_report,
)

Row = Mapping[str, Any]
PRICES = WasteOptions(prices={"H100": 3.0, "A40": 0.5})
NO_INTERVALS = pl.DataFrame(
    schema={
        **dict.fromkeys(("job_key", "code", "verdict", "confidence", "covered_by"), pl.String),
        **dict.fromkeys(("begin", "end"), pl.Datetime("us", "UTC")),
    }
)
# exact as floats, so that sums are the same in any order
EIGHTHS = st.integers(0, 16).map(lambda number: number / 8)


def job(number: int, **columns_of_job: Any) -> dict[str, Any]:
    """A judged job of one GPU; what it does not give is zero."""
    hours = dict.fromkeys((f"gpu_hours_{bucket}" for bucket in WASTE_BUCKETS), 0.0)
    known = {"samples": 1, "gpu_util_mean": 0.5, "gpus": 1, "gpu_hours_idle_long": 0.0}
    names = {"job_key": f"c:{number}:1", "job_id": str(number)}
    return summary(**names, **hours | known | columns_of_job)


@st.composite
def jobs(draw: st.DrawFn) -> list[dict[str, Any]]:
    rows = []
    for number in range(draw(st.integers(0, 7))):
        hours = {f"gpu_hours_{bucket}": draw(EIGHTHS) for bucket in WASTE_BUCKETS}
        hours["gpu_hours_idle_long"] = hours["gpu_hours_idle"] / 2
        hours["gpu_hours"] = sum(hours[f"gpu_hours_{bucket}"] for bucket in WASTE_BUCKETS)
        who = {
            "user": draw(st.sampled_from(["ada", "bob", "eve", None])),
            "gpu_model": draw(st.sampled_from(["H100", "A40", "L40S"])),
        }
        rows.append(job(number, **hours, **who))
    return rows


def report(rows: Sequence[Row], **options: Any) -> WasteReport:
    return build_waste_report(columns(rows), NO_INTERVALS, PRICES, **options)


def recoverable_of(row: Row) -> dict[str, float]:
    """By the assumptions: all of never used, half of the imbalance, nothing without an interval."""
    recovered = dict.fromkeys(WASTE, 0.0)
    recovered["never_used"] = row["gpu_hours_never_used"]
    recovered["idle"] = row["gpu_hours_idle_long"]
    recovered["imbalance"] = row["gpu_hours_imbalance"] / 2
    return recovered


def lost_of(row: Row) -> float:
    return float(sum(row[f"gpu_hours_{cause}"] for cause in WASTE))


def money_of(row: Row, hours: float) -> float | None:
    price = PRICES.prices.get(row["gpu_model"])
    return None if price is None else hours * price


def known_sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


@settings(max_examples=max(1, settings().max_examples // 2))
@given(jobs())
def test_causes_are_sums_over_jobs(rows: list[dict[str, Any]]) -> None:
    found = report(rows)
    total = sum(row["gpu_hours"] for row in rows)
    assert (found.jobs, found.gpu_hours) == (len(rows), total)
    assert found.causes["cause"].to_list() == list(WASTE_BUCKETS)
    for entry in found.causes.iter_rows(named=True):
        bucket = entry["cause"]
        hours = [row[f"gpu_hours_{bucket}"] for row in rows]
        assert entry["gpu_hours"] == sum(hours)
        assert entry["jobs"] == sum(value > 0 for value in hours)
        assert entry["share"] == (pytest.approx(sum(hours) / total) if total else None)
        money = [money_of(row, value) for row, value in zip(rows, hours, strict=True)]
        assert entry["money"] == known_sum(money)
        assert found.hours(bucket) == sum(hours)
    lost = [lost_of(row) for row in rows]
    assert found.lost == sum(lost)
    prices = [money_of(row, value) for row, value in zip(rows, lost, strict=True)]
    assert found.lost_money == (known_sum(prices) or 0.0)
    assert found.recoverable == sum(sum(recoverable_of(row).values()) for row in rows)
    parts = [found.hours(*WASTE), found.hours(*IN_USE), found.hours("unmeasured")]
    assert math.fsum(parts) == total


@settings(max_examples=max(1, settings().max_examples // 2))
@given(jobs(), st.sampled_from([None, 1, 2]))
def test_groups_are_sums_in_order_of_loss(rows: list[dict[str, Any]], top: int | None) -> None:
    groups = report(rows, by="user", top=top).groups
    assert groups is not None
    of_users: dict[str | None, list[Row]] = {}
    for row in rows:
        of_users.setdefault(row["user"], []).append(row)

    def order(user: str | None) -> tuple[float, bool, str]:
        # of equal losses by name, the unknown one first
        return (-sum(map(lost_of, of_users[user])), user is not None, user or "")

    users = sorted(of_users, key=order)
    first = users if top is None else users[:top]
    others = users[len(first) :]
    expected = [(user, 0, of_users[user]) for user in first]
    if others:
        rest = [row for user in others for row in of_users[user]]
        expected.append((None, len(others), rest))
    assert groups.height == len(expected)
    for entry, (user, number, mine) in zip(groups.iter_rows(named=True), expected, strict=True):
        total, lost = sum(row["gpu_hours"] for row in mine), sum(map(lost_of, mine))
        assert (entry["user"], entry["others"], entry["jobs"]) == (user, number, len(mine))
        assert (entry["gpu_hours"], entry["lost"]) == (total, lost)
        assert entry["lost_share"] == (pytest.approx(lost / total) if total else None)
        assert entry["lost_money"] == known_sum([money_of(row, lost_of(row)) for row in mine])
        for bucket in WASTE_BUCKETS:
            assert entry[bucket] == sum(row[f"gpu_hours_{bucket}"] for row in mine)


def test_the_share_of_no_hours_is_null() -> None:
    rows = [job(number, user=f"user{number}", gpu_hours=0.0) for number in range(3)]
    found = report(rows, by="user", top=1)
    assert found.groups is not None
    assert found.groups["others"].to_list() == [0, 2]
    assert found.groups["lost_share"].to_list() == [None, None]
    assert set(found.causes["share"]) == {None}


def test_groups_of_equal_loss_are_in_order_of_name() -> None:
    users = ["eve", None, "ada", "bob"]
    rows = [job(number, user=user, gpu_hours_idle=1.0) for number, user in enumerate(users)]
    rows.append(job(9, user="zoe", gpu_hours_idle=2.0))
    groups = report(rows, by="user").groups
    assert groups is not None
    assert groups["user"].to_list() == ["zoe", None, "ada", "bob", "eve"]


@settings(max_examples=max(1, settings().max_examples // 2))
@given(jobs(), st.sampled_from(["all", *WASTE]))
def test_jobs_of_a_cause_are_in_order(rows: list[dict[str, Any]], cause: str) -> None:
    concerned = report(rows, jobs_of=cause).concerned
    assert concerned is not None
    expected = []
    for row in rows:
        back = recoverable_of(row)
        hours = lost_of(row) if cause == "all" else row[f"gpu_hours_{cause}"]
        if hours <= 0:
            continue
        recovered = sum(back.values()) if cause == "all" else back[cause]
        first = recovered if cause == "all" else 0.0
        expected.append((-first, -hours, row["job_key"], recovered))
    expected.sort()
    hours_column = "gpu_hours_lost" if cause == "all" else f"gpu_hours_{cause}"
    shown = concerned.select("job_key", hours_column, "recoverable").rows()
    assert shown == [(key, -hours, recovered) for _, hours, key, recovered in expected]


def test_jobs_of_all_causes_with_equal_amounts_are_in_order_of_loss_and_key() -> None:
    hung = [1.0, 3.0, 2.0, 3.0]  # how long is not known: nothing is recoverable
    rows = [job(number, gpu_hours_hung=hours) for number, hours in enumerate(hung)]
    rows.append(job(4, gpu_hours_never_used=0.5))
    concerned = report(rows, jobs_of="all").concerned
    assert concerned is not None
    assert concerned["job_id"].to_list() == ["4", "1", "3", "2", "0"]
    concerned = report(rows[::-1], jobs_of="hung").concerned
    assert concerned is not None
    assert concerned["job_id"].to_list() == ["1", "3", "2", "0"]


def reason_of(row: Row) -> str | None:
    """The reason for which the ledger leaves a job out."""
    left_out = report([row]).left_out.drop_nulls("jobs")
    assert left_out.height <= 1
    return left_out["reason"][0] if left_out.height else None


NOTHING = dict.fromkeys((f"gpu_hours_{bucket}" for bucket in WASTE_BUCKETS), None)
NO_UTILISATION = NOTHING | {"gpu_util_mean": None}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"state": "RUNNING"}, "running"),
        ({"end": None}, "running"),
        ({"end": None, "attribution": "ambiguous"}, "running"),
        ({"attribution": "ambiguous", "samples": 0}, "ambiguous"),
        ({"samples": 0}, "no_samples"),
        ({"samples": None}, "no_samples"),
        ({"samples": 1}, None),
        ({"gpu_hours": None, "shards": 1, **NO_UTILISATION}, "shares"),
        ({"gpu_hours": None, "mps": 1, **NOTHING}, "shares"),
        ({"gpu_hours": None, "mps": 1, "shards": 0, **NOTHING}, "shares"),
        ({"gpu_hours": None, "shards": 0, "mps": 0, **NOTHING}, "no_activity"),
        ({"gpu_hours": None, **NOTHING}, "no_activity"),
        ({"shards": 1}, None),  # its whole GPUs are known as well
        (NOTHING, "not_judged"),
        ({"gpu_hours_in_use": None, "gpu_hours_in_use_unknown": None}, "not_judged"),
        ({**NO_UTILISATION, "gr_engine_active_mean": 0.5}, "not_judged"),
        ({**NO_UTILISATION, "sm_active_mean": 0.0}, "not_judged"),
        (NO_UTILISATION, "no_activity"),
    ],
)
def test_why_a_job_is_left_out(changes: dict[str, Any], reason: str | None) -> None:
    assert reason_of(job(1, **changes)) == reason


def test_lost_money_is_that_of_causes_with_a_price() -> None:
    spent = {"gpu_hours_idle": 2.0, "gpu_hours_in_use": 8.0, "gpu_hours_unmeasured": 4.0}
    rows = [job(1, gpu_model="H100", **spent), job(2, gpu_model="L40S", **spent)]
    assert report(rows).lost_money == 6.0
    assert report(rows[1:]).lost_money == 0.0
    assert report(rows[:1]).total("money") == 3.0 * 14.0


def test_assumptions_name_their_value_in_its_unit() -> None:
    options = WasteOptions(
        never_used_share=0.25, watchdog_minutes=90, start_minutes=0.5, idle_minutes=45
    )
    words = {message.cause: message.words for message in assumptions_in_use(options)}
    assert words["never_used"].startswith("25 % of them")
    assert words["hung"].endswith("after 1 h 30 min")
    assert words["cold_start"].startswith("setup longer than 30 s before")
    assert words["idle"].startswith("GPUs are released after 45 min in")
    assert words["imbalance"].startswith("50 % of the imbalance")
    sources = {message.cause: message.source for message in assumptions_in_use(options)}
    assert sources["hung"] == "configured"
    assert sources["imbalance"] == "our assumption"
