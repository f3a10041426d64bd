"""The report of the ledger against plain Python over the columns of its jobs.

Numbers are sums of powers of two, so that sums are the same in any order.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from waste_cases import INTERVALS

from jobframes import START
from tachograph.api.job_sums import sum_waste
from tachograph.catalog.config import WasteOptions
from tachograph.catalog.errors import UsageError
from tachograph.catalog.tables import JOB_SUMMARIES, WASTE, WASTE_ENERGY
from tachograph.judge.ledger import (
    LEDGER_COLUMNS,
    WASTE_BUCKETS,
    WASTE_GROUPINGS,
    WASTE_LEFT_OUT,
    WasteReport,
    assumptions_in_use,
    build_waste_report,
    in_ledger,
)

Row = Mapping[str, Any]
Amounts = dict[str, float | None]
SETTINGS = WasteOptions(
    prices={"debug": 0.5, "free": 0.0, "H100": 3.0},
    price_per_kwh=0.25,
    pue=1.25,
    emissions_g_per_kwh=400.0,
    never_used_share=0.5,
    watchdog_minutes=64,
    start_minutes=16,
    imbalance_share=0.25,
    currency="CHF",
)
NAMES = (
    *("gpu_hours", "energy_j", "co2_g", "money", "energy_money"),
    *("recoverable", "recoverable_money"),
)
WHO = (
    "job_key",
    "job_id",
    "display_id",
    "user",
    "account",
    "partition",
    "gpu_model",
    "gpus",
    "elapsed_s",
)
HOURS = st.sampled_from([0.0, 0.0, 0.0, 0.125, 0.5, 1.0, 4.0])
# minutes of a hang and of a cold start, around the minutes that are assumed
HANGS = st.sampled_from([None, 0, 32, 64, 128, 256])
STARTS = st.sampled_from([None, 16, 32, 64])
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
# besides those that count: (confidence, covered_by) of findings that do not
UNSURE = [("low", None), ("high", "job_hang")]


def job(number: int, **columns_of_job: Any) -> dict[str, Any]:
    """A judged job of one GPU; what it does not give is zero, or not known."""
    known: dict[str, Any] = dict.fromkeys((f"gpu_hours_{bucket}" for bucket in WASTE_BUCKETS), 0.0)
    known |= dict.fromkeys(WHO) | {"job_key": f"c:{number}:1", "job_id": str(number), "gpus": 1}
    known |= {"state": "COMPLETED", "attribution": "explicit", "samples": 1, "gpu_util_mean": 0.5}
    times_of = {"start": START, "end": START + 2 * HOUR, "as_of": START + 2 * HOUR}
    known |= {"gpu_hours": 2.0, "gpu_hours_idle_long": 0.0, "cluster": "c", "elapsed_s": 7200.0}
    return known | times_of | columns_of_job


@st.composite
def jobs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Jobs of a ledger; `lengths`: minutes of their intervals, {} where none is known."""
    rows = []
    scale = draw(st.sampled_from([1.0, 1 / 64]))
    for number in range(draw(st.integers(0, 7))):
        of_job = scale * draw(st.sampled_from([0.0, 1.0, 1.0]))
        hours = {f"gpu_hours_{bucket}": of_job * draw(HOURS) for bucket in WASTE_BUCKETS}
        values: Amounts = {**hours, "gpu_hours": sum(hours.values())}
        for cause in WASTE_ENERGY:
            values[f"energy_j_{cause}"] = draw(st.none() | HOURS.map(lambda kwh: 3.6e6 * kwh))
        values["gpu_hours_idle_long"] = draw(st.sampled_from([None, 0.0, 0.5]))
        who = {
            "user": draw(st.sampled_from(["ada", "bob", "eve", None])),
            "account": draw(st.sampled_from(["ml", None])),
            "partition": draw(st.sampled_from(["gpu", "debug", "free", None])),
            "gpu_model": draw(st.sampled_from(["H100", "A40"])),
        }
        hang = draw(HANGS)
        codes = draw(st.sets(st.sampled_from(["job_hang", "stall", "busy_waiting"])))
        lengths = {"cold_start": draw(STARTS)} | dict.fromkeys(codes, hang)
        end = START + HOUR * draw(st.integers(0, 3))
        row = job(number, start=end - HOUR, as_of=end, **values, **who)
        rows.append(row | {"lengths": lengths})
    return rows


def report(rows: Sequence[Row], slice_jobs: int | None = None, **options: Any) -> WasteReport:
    """The ledger, with intervals that hold surely behind such that do not count.

    slice_jobs: how many jobs are added up at a time; None: all at once.
    """
    intervals = []
    for row in rows:
        for code, minutes in row.get("lengths", {}).items():
            unsure = [
                (row["job_key"], code, "yes", *doubt, START, START + 9 * MINUTE) for doubt in UNSURE
            ]
            sure = (row["job_key"], code, "yes", "high", None, START)
            intervals += unsure
            if minutes is not None:
                intervals.append((*sure, START + minutes * MINUTE))
    found = pl.DataFrame(intervals, schema=INTERVALS, orient="row")
    schema = {name: JOB_SUMMARIES.schema[name] for name in LEDGER_COLUMNS}
    known = [{name: row.get(name) for name in schema} for row in rows]
    freed = {row["job_key"]: freed_of(row) for row in rows if freed_of(row)}
    jobs = pl.DataFrame(known, schema=schema)
    if slice_jobs is None:
        return build_waste_report(jobs, found, SETTINGS, freed=freed, **options)
    return sum_waste(jobs, found, SETTINGS, freed=freed, slice_jobs=slice_jobs, **options)


def freed_of(row: Row) -> float:
    """The share of unused GPUs that a change of the request frees, here by the job's number."""
    return (0.0, 1.0, 0.5)[int(row["job_id"]) % 3]


def behind(row: Row, codes: Sequence[str], minutes: float) -> float:
    """The share of intervals that lies behind some minutes of each."""
    lengths = [row["lengths"].get(code) or 0.0 for code in codes]
    after = sum(max(0.0, length - minutes) for length in lengths)
    return after / sum(lengths) if sum(lengths) else 0.0


def amounts(row: Row, bucket: str) -> Amounts:
    """What a bucket took of a job, and what of it is recoverable under SETTINGS."""
    hours = row[f"gpu_hours_{bucket}"]
    energy = row[f"energy_j_{bucket}"] if bucket in WASTE_ENERGY and hours > 0 else None
    price = SETTINGS.prices.get(row["partition"], SETTINGS.prices.get(row["gpu_model"]))
    shares = {  # by SETTINGS
        "never_used": 0.5 * freed_of(row),
        "hung": behind(row, ("job_hang", "stall", "busy_waiting"), 64),
        "cold_start": behind(row, ("cold_start",), 16),
        "imbalance": 0.25,
    }
    back = row["gpu_hours_idle_long"] if bucket == "idle" else hours * shares.get(bucket, 0.0)
    return {
        "gpu_hours": hours,
        "energy_j": energy,
        "money": times(hours, price),
        "co2_g": None if energy is None else energy / 3.6e6 * 1.25 * 400,
        "energy_money": None if energy is None else energy / 3.6e6 * 0.25,
        "recoverable": back,
        "recoverable_money": times(back, price),
    }


def times(amount: float | None, price: float | None) -> float | None:
    return None if amount is None or price is None else amount * price


def known_sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def sums(parts: Sequence[Amounts]) -> Amounts:
    return {name: known_sum([part[name] for part in parts]) for name in NAMES}


def causes_of(rows: Sequence[Row]) -> list[dict[str, Any]]:
    total = sum(row["gpu_hours"] for row in rows)
    found = []
    for bucket in WASTE_BUCKETS:
        parts = [amounts(row, bucket) for row in rows]
        entry: dict[str, Any] = {"cause": bucket, **sums(parts)}
        entry["jobs"] = sum(row[f"gpu_hours_{bucket}"] > 0 for row in rows)
        entry["gpu_hours"] = entry["gpu_hours"] or 0.0
        entry["recoverable"] = entry["recoverable"] or 0.0
        entry["share"] = entry["gpu_hours"] / total if total else None
        found.append(entry)
    return found


def group_of(rows: Sequence[Row]) -> dict[str, Any]:
    entry: dict[str, Any] = {"jobs": len(rows), "gpu_hours": sum(row["gpu_hours"] for row in rows)}
    for bucket in WASTE_BUCKETS:
        entry[bucket] = sum(row[f"gpu_hours_{bucket}"] for row in rows)
    parts = sums([amounts(row, cause) for row in rows for cause in WASTE])
    entry["lost"] = sum(entry[cause] for cause in WASTE)
    entry["lost_energy_j"], entry["lost_money"] = parts["energy_j"], parts["money"]
    entry["recoverable"] = parts["recoverable"] or 0.0
    entry["lost_share"] = entry["lost"] / entry["gpu_hours"] if entry["gpu_hours"] else None
    return entry


def groups_of(rows: Sequence[Row], by: str, top: int | None) -> list[dict[str, Any]]:
    """Most lost first, of equal ones by name, the unknown one first."""
    members: dict[str | None, list[Row]] = {}
    for row in rows:
        members.setdefault(row[by], []).append(row)
    named = [{by: name, "others": 0, **group_of(mine)} for name, mine in members.items()]
    named.sort(key=lambda entry: (-entry["lost"], entry[by] is not None, entry[by] or ""))
    first = named if top is None else named[:top]
    others = [entry[by] for entry in named[len(first) :]]
    if not others:
        return first
    rest = group_of([row for name in others for row in members[name]])
    return [*first, {by: None, "others": len(others), **rest}]


def concerned_of(rows: Sequence[Row], cause: str) -> list[dict[str, Any]]:
    """Jobs of a cause by hours; of all causes by what is recoverable, then by hours."""
    column = "gpu_hours_lost" if cause == "all" else f"gpu_hours_{cause}"
    found = []
    for row in rows:
        parts = {one: amounts(row, one) for one in (WASTE if cause == "all" else (cause,))}
        parts = {one: part for one, part in parts.items() if (part["gpu_hours"] or 0) > 0}
        if not parts:
            continue
        entry: dict[str, Any] = sums(list(parts.values()))
        entry[column] = entry.pop("gpu_hours")
        if cause == "all":
            entry["cause"] = min(parts, key=lambda one: order(parts[one], "gpu_hours"))
        found.append({name: row[name] for name in (*WHO, "gpu_hours")} | entry)
    if cause == "all":
        return sorted(found, key=lambda entry: (order(entry, column), entry["job_key"]))
    return sorted(found, key=lambda entry: (-entry[column], entry["job_key"]))


def order(entry: Row, hours: str) -> tuple[bool, float, float]:
    return entry["recoverable"] is None, -(entry["recoverable"] or 0.0), -entry[hours]


def check_rows(frame: pl.DataFrame | None, expected: Sequence[Mapping[str, Any]]) -> None:
    """Only quotients are rounded."""
    assert frame is not None
    assert frame.height == len(expected)
    for row, wanted in zip(frame.iter_rows(named=True), expected, strict=True):
        assert row.keys() == wanted.keys()
        for name, value in wanted.items():
            close = pytest.approx(value, rel=1e-12) if isinstance(value, float) else value
            assert row[name] == close, name


@given(
    jobs(),
    st.sampled_from([name for name in WASTE_GROUPINGS if name != "cause"]),
    st.sampled_from([None, 1, 2]),
    st.sampled_from([None, *["all"] * 8, *WASTE_BUCKETS]),
    st.sampled_from([None, 1, 2, 3]),
)
def test_every_number_of_the_ledger(
    rows: list[dict[str, Any]], by: str, top: int | None, cause: str | None, slice_jobs: int | None
) -> None:
    found = report(rows, slice_jobs, by=by, top=top, jobs_of=cause)
    causes, concerned = causes_of(rows), concerned_of(rows, cause) if cause else []
    check_rows(found.causes, causes)
    check_rows(found.users, groups_of(rows, "user", None))
    check_rows(found.groups, groups_of(rows, by, top))
    if cause is not None:
        check_rows(found.concerned, concerned if top is None else concerned[:top])
    assert found.concerned_jobs == len(concerned)
    assert found.jobs == len(rows)
    assert found.gpu_hours == sum(row["gpu_hours"] for row in rows)
    assert found.first == min((row["start"] for row in rows), default=None)
    assert found.last == max((row["as_of"] for row in rows), default=None)
    priced = [amounts(row, "idle")["money"] is not None for row in rows]
    assert (found.unpriced_jobs, found.currency) == (priced.count(False), "CHF")
    assert found.priced == any(priced)
    assert found.energy_priced == any(entry["energy_money"] is not None for entry in causes)
    lost = [entry for entry in causes if entry["cause"] in WASTE]
    assert found.lost == sum(entry["gpu_hours"] for entry in lost)
    assert found.lost_money == (known_sum([entry["money"] for entry in lost]) or 0.0)
    assert found.recoverable == sum(entry["recoverable"] for entry in causes)
    for name in ("gpu_hours", "energy_j", "money"):
        assert found.total(name) == known_sum([entry[name] for entry in causes])


@pytest.mark.parametrize("slice_jobs", [None, 2])
def test_groups_of_equal_loss_are_in_order_of_name(slice_jobs: int | None) -> None:
    users = ["eve", None, "ada", "bob"]
    rows = [job(number, user=user, gpu_hours_idle=1.0) for number, user in enumerate(users)]
    rows.append(job(9, user="zoe", gpu_hours_idle=2.0))
    groups = report(rows, slice_jobs, by="user").groups
    assert groups is not None
    assert groups["user"].to_list() == ["zoe", None, "ada", "bob", "eve"]


@pytest.mark.parametrize("slice_jobs", [None, 2])
def test_jobs_of_equal_amounts_are_in_order_of_loss_and_key(slice_jobs: int | None) -> None:
    hung = [1.0, 3.0, 2.0, 3.0]  # how long is not known: nothing is recoverable
    rows = [job(number, gpu_hours_hung=hours) for number, hours in enumerate(hung)]
    rows.append(job(4, gpu_hours_never_used=0.5))
    rows.append(job(5, gpu_hours_idle=9.0, gpu_hours_idle_long=None))  # not known: last
    for cause, expected in (("all", "413205"), ("hung", "1320")):
        concerned = report(rows[::-1], slice_jobs, jobs_of=cause).concerned
        assert concerned is not None
        assert concerned["job_id"].to_list() == list(expected)


@pytest.mark.parametrize("wrong", [{"by": "colour"}, {"top": 0}, {"jobs_of": "nothing"}])
def test_wrong_options_of_sums_are_errors(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        report([job(number) for number in range(3)], 1, **wrong)


def test_the_ledger_reads_each_column_once() -> None:
    assert len(set(LEDGER_COLUMNS)) == len(LEDGER_COLUMNS)


# what decides whether a job is in the ledger, in every combination
DECIDING: dict[str, list[Any]] = {
    "end": [START, None],
    "state": ["COMPLETED", "RUNNING"],
    "attribution": ["explicit", "ambiguous"],
    "samples": [None, 0, 1],
    "shards": [None, 0, 1],
    "mps": [None, 0, 1],
    "gpu_hours": [None, 1.0],
    "gpu_hours_in_use": [None, 0.0],
    "gpu_util_mean": [None, 0.0],
    "gr_engine_active_mean": [None, 0.0],
    "sm_active_mean": [None, 0.0],
}


def reason_of(row: Row) -> str | None:
    """The reason for which the ledger leaves a job out."""
    activity = (row["gpu_util_mean"], row["gr_engine_active_mean"], row["sm_active_mean"])
    measured = any(value is not None for value in activity)
    if row["end"] is None or row["state"] == "RUNNING":
        return "running"
    if row["attribution"] == "ambiguous":
        return "ambiguous"
    if not row["samples"]:
        return "no_samples"
    if row["gpu_hours"] is None and ((row["shards"] or 0) > 0 or (row["mps"] or 0) > 0):
        return "shares"
    if row["gpu_hours_in_use"] is not None:
        return None
    return "not_judged" if measured and row["gpu_hours"] is not None else "no_activity"


@pytest.mark.parametrize("slice_jobs", [10_000, 1000])
def test_why_jobs_are_left_out(slice_jobs: int) -> None:
    combined = [
        dict(zip(DECIDING, values, strict=True)) for values in itertools.product(*DECIDING.values())
    ]
    schema = {name: JOB_SUMMARIES.schema[name] for name in (*LEDGER_COLUMNS, *DECIDING)}
    rows = pl.DataFrame([job(1) | row for row in combined], schema=schema)
    reasons = [reason_of(row) for row in combined]
    intervals = pl.DataFrame(schema=INTERVALS)
    found = sum_waste(rows, intervals, SETTINGS, slice_jobs=slice_jobs)
    expected = []
    for reason in WASTE_LEFT_OUT:
        mine = [row for row, why in zip(combined, reasons, strict=True) if why == reason]
        hours = known_sum([row["gpu_hours"] for row in mine])
        expected.append({"reason": reason, "jobs": len(mine), "gpu_hours": hours})
    check_rows(found.left_out, expected)
    assert rows.select(in_ledger()).to_series().to_list() == [why is None for why in reasons]
    assert found.jobs == reasons.count(None)


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
