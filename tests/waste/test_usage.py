"""Usage by week: hours lost and recovered, recomputed in plain Python from the demo."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from dataclasses import fields
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import tachograph
from jobframes import frame
from tachograph.api.choices import JobChoice
from tachograph.api.job_sums import sum_usage
from tachograph.api.needs import read_ledger
from tachograph.api.open_lake import OpenLake
from tachograph.catalog.errors import NotFoundError
from tachograph.catalog.tables import DEVICES, JOB_SUMMARIES, WASTE
from tachograph.judge.ledger import WASTE_BUCKETS
from tachograph.judge.node_history import NODE_GPU_COLUMNS, build_node_report, sick_rows
from tachograph.judge.usage import (
    DAY_PARTS,
    USAGE_COLUMNS,
    UsageReport,
    daily_use,
    weekly_use,
)
from tachograph.lake.query import read_answers


@pytest.fixture(scope="module")
def lake(demo: Path) -> OpenLake:
    return tachograph.open(str(demo / "lake"), str(demo / "tachograph.toml"))


def test_weeks_add_up_to_the_ledger(lake: OpenLake) -> None:
    usage = lake.usage(user="user000")
    zone = ZoneInfo(usage.zone_name)
    ledger = lake.waste(user="user000").report
    hours: defaultdict[date, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for job in lake.jobs(user="user000").iter_rows(named=True):
        over = (
            job["end"] is not None
            and job["state"] != "RUNNING"
            and job["attribution"] != "ambiguous"
        )
        if over and job["samples"] and job["gpu_hours_idle"] is not None:
            day = job["end"].astimezone(zone).date()
            sums = hours[day - timedelta(days=day.weekday())]
            sums[0] += job["gpu_hours"]
            sums[1] += sum(job[f"gpu_hours_{cause}"] for cause in WASTE)
    assert [week["week"] for week in usage.weeks.iter_rows(named=True)] == sorted(hours)
    for week in usage.weeks.iter_rows(named=True):
        assert [week["gpu_hours"], week["lost"]] == pytest.approx(hours[week["week"]])
    assert usage.weeks["gpu_hours"].sum() == pytest.approx(ledger.gpu_hours)
    assert usage.weeks["lost"].sum() == pytest.approx(ledger.lost)


def _spread_hours(jobs: pl.DataFrame, zone: ZoneInfo) -> dict[tuple[date, str], float]:
    """{(day, part): GPU-hours}, in seconds of a clock that counts in UTC."""
    hours: defaultdict[tuple[date, str], float] = defaultdict(float)
    for job in jobs.iter_rows(named=True):
        counted = (
            job["end"] is not None
            and job["attribution"] != "ambiguous"
            and job["gpu_hours_in_use"] is not None
        )
        parts = {name: job[f"gpu_hours_{name}"] or 0.0 for name in WASTE_BUCKETS} if counted else {}
        parts["left_out"] = 0.0 if counted else job["gpu_hours"] or 0.0
        begin, end = job["start"].timestamp(), (job["end"] or job["as_of"]).timestamp()
        day = job["start"].astimezone(zone).date()
        while True:
            today, tomorrow = (
                datetime.combine(day + timedelta(days=later), time(), zone).timestamp()
                for later in (0, 1)
            )
            share = 1.0
            if end > begin:
                share = (min(end, tomorrow) - max(begin, today)) / (end - begin)
            for name, value in parts.items():
                hours[day, name] += share * value
            if end <= tomorrow:
                break
            day += timedelta(days=1)
    return {key: value for key, value in hours.items() if value}


def test_days_add_up_to_the_ledger_and_to_what_is_not_in_it(lake: OpenLake) -> None:
    choices: tuple[JobChoice, ...] = (
        {},
        {"user": "user000"},
        {"account": "proj00", "since": "2025-03-04"},
    )
    for which in choices:
        usage = lake.usage(**which)
        ledger = lake.waste(**which).report
        days = usage.days
        recomputed = _spread_hours(lake.jobs(**which), ZoneInfo(usage.zone_name))
        drawn = {
            (row["day"], name): row[name]
            for row in days.to_dicts()
            for name in DAY_PARTS
            if row[name]
        }
        assert drawn == pytest.approx(recomputed)
        assert days["day"].to_list() == sorted({day for day, _ in recomputed})
        for bucket in WASTE_BUCKETS:
            assert days[bucket].sum() == pytest.approx(ledger.hours(bucket))
        assert sum(drawn.values()) == pytest.approx(usage.gpu_hours, rel=1e-4)
        assert days["left_out"].sum() == pytest.approx(
            sum(filter(None, ledger.left_out["gpu_hours"]))
        )


@pytest.mark.parametrize(
    ("zone_name", "start", "expected"),
    [
        # a day of 25 hours
        ("Europe/Berlin", "2025-10-25T22:00Z", {date(2025, 10, 26): 25, date(2025, 10, 27): 15}),
        # the clock goes from 23:59 to 01:00: a day of 23 hours without midnight
        (
            "Africa/Cairo",
            "2025-04-24T12:00Z",
            {date(2025, 4, 24): 10, date(2025, 4, 25): 23, date(2025, 4, 26): 7},
        ),
        # there was no 30 December
        ("Pacific/Apia", "2011-12-29T10:00Z", {date(2011, 12, 29): 24, date(2011, 12, 31): 16}),
    ],
)
def test_hours_are_divided_at_midnight_of_the_zone(
    zone_name: str, start: str, expected: dict[date, int]
) -> None:
    begin = datetime.fromisoformat(start)
    rows: list[dict[str, Any]] = [
        {"start": begin, "as_of": begin + timedelta(hours=40), "gpu_hours": 40.0},
        {"start": begin, "as_of": begin, "gpu_hours": 2.0},  # of no length
        {"start": begin, "as_of": begin},  # of no hours
        {"start": None, "as_of": begin, "gpu_hours": 1.0},
    ]
    days = daily_use(frame(JOB_SUMMARIES, rows), zone_name)
    hours = {row["day"]: row["left_out"] for row in days.to_dicts() if row["left_out"]}
    first = min(expected)
    assert hours == pytest.approx({**expected, first: expected[first] + 2, None: 1.0})


def test_jobs_with_most_recoverable_hours_come_first(lake: OpenLake) -> None:
    usage = lake.usage(top=5)
    ledger = lake.waste(jobs_of="all", top=5).report
    assert ledger.concerned is not None
    shared = ["job_key", "recoverable", "cause", "gpu_hours_lost"]
    assert usage.queue.select(shared).equals(ledger.concerned.select(shared))
    assert all(usage.queue["findings"].to_list())
    assert usage.waste.concerned is None


def test_jobs_from_which_nothing_is_gained_are_not_proposed(lake: OpenLake) -> None:
    ledger = lake.waste(jobs_of="all", top=1000).report
    assert ledger.concerned is not None
    gains = ledger.concerned.filter(pl.col("recoverable") > 0)
    assert 0 < gains.height < ledger.concerned.height
    assert lake.usage(top=1000).queue["job_key"].equals(gains["job_key"])


@pytest.mark.parametrize(
    ("slice_jobs", "top", "which"),
    [(1, 3, {"user": "user000"}), (37, 10, {}), (100, 1000, {}), (2, 2, {"since": "2025-03-06"})],
)
def test_use_is_the_same_from_slices_of_jobs(
    lake: OpenLake, slice_jobs: int, top: int, which: JobChoice
) -> None:
    settings, wanted = lake.configuration.waste, lake.filter(which)
    jobs, intervals, freed = read_ledger(lake.lake, lake.configuration, wanted, USAGE_COLUMNS)
    assert jobs.height > 2 * slice_jobs
    lengths = []

    def read_reported(rows: pl.DataFrame) -> pl.DataFrame:
        lengths.append(rows.height)
        return read_answers(lake.lake, rows, reported=True)

    whole, parts = (
        sum_usage(
            jobs,
            intervals,
            settings,
            read_reported,
            freed=freed,
            top=top,
            zone_name="Europe/Berlin",
            slice_jobs=most,
        )
        for most in (jobs.height, slice_jobs)
    )
    assert lengths[0] == sum(lengths[1:]) == jobs.height
    assert max(lengths[1:]) == slice_jobs
    for field in fields(UsageReport):
        expected, value = getattr(whole, field.name), getattr(parts, field.name)
        if isinstance(expected, pl.DataFrame):
            assert_frame_equal(value, expected, rel_tol=1e-9, abs_tol=1e-9)
        elif field.name != "waste":
            assert value == (pytest.approx(expected) if field.name == "gpu_hours" else expected)
    assert_frame_equal(parts.waste.causes, whole.waste.causes, rel_tol=1e-9, abs_tol=1e-9)
    assert_frame_equal(parts.waste.users, whole.waste.users, rel_tol=1e-9, abs_tol=1e-9)


def test_recovered_is_measured_against_the_weeks_before() -> None:
    sunday = datetime(2026, 3, 1, 23, tzinfo=UTC)  # Monday in Berlin
    hours = [(100.0, 40.0), (100.0, 20.0), (50.0, 20.0)]
    jobs = [
        {"end": sunday + timedelta(weeks=week), "samples": 1, "gpu_hours_in_use": 0.0}
        | {"state": "COMPLETED", "gpu_hours": held, "gpu_hours_idle": lost}
        for week, (held, lost) in enumerate(hours)
    ]
    weeks = weekly_use(frame(JOB_SUMMARIES, jobs), "Europe/Berlin")
    assert weeks["week"].to_list() == [date(2026, 3, day) for day in (2, 9, 16)]
    assert weeks["recovered"].to_list() == [None, 40 / 100 * 100 - 20, 60 / 200 * 50 - 20]


def test_running_jobs_and_those_that_lost_most(lake: OpenLake) -> None:
    usage = lake.usage(top=5)
    assert usage.running["end"].is_null().all()
    assert usage.worst["gpu_hours_lost"].to_list() == sorted(
        usage.worst["gpu_hours_lost"], reverse=True
    )
    assert usage.jobs == lake.jobs().height
    jobs_with = {row["code"]: row["jobs"] for row in usage.findings.iter_rows(named=True)}
    assert jobs_with["job_hang"] == lake.findings().filter(code="job_hang").height


def test_no_job_of_that_name_is_an_error(lake: OpenLake) -> None:
    with pytest.raises(NotFoundError, match="no job of user absent"):
        lake.usage(user="absent")


def test_advice_on_a_problem_is_that_of_the_report_of_the_job_that_lost_most(
    lake: OpenLake,
) -> None:
    lost = {
        row["job_key"]: row["gpu_hours_lost"] for row in lake.usage(top=10_000).worst.to_dicts()
    }
    reported = lake.findings().to_dicts()
    shown = {row["code"]: row for row in lake.usage().findings.to_dicts()}
    assert "given whole" in shown["one_gpu_of_many"]["advice"]
    for code, row in shown.items():
        jobs = [finding["job_key"] for finding in reported if finding["code"] == code]
        assert row["job_key"] == min(jobs, key=lambda key: (-lost.get(key, 0.0), key)), code
        report = lake.job(row["job_key"]).report
        assert row["advice"] in [found.advice for found in report.findings if found.code == code]


Row = dict[str, Any]


def test_the_history_of_a_node_is_that_of_its_rows() -> None:
    """Of random jobs, with what was not measured, intervals that are not known or zero, a slice."""
    source = random.Random(4)
    draw = source.choice
    start = datetime(2026, 3, 1, 22, 30, tzinfo=UTC)  # in Paris the last minutes of a Sunday
    jobs: dict[str, Row] = {}
    gpus: list[Row] = []
    texts = ("display_id", "cluster", "name", "user", "account", "partition", "state")
    for key in "abcdefghij":
        begin = start + timedelta(hours=draw([0, 0, 1, 30, 170, 400]))
        jobs[key] = {"job_key": key, "job_id": f"1{key}", **dict.fromkeys(texts, key)}
        jobs[key] |= {"start": begin, "as_of": begin + timedelta(hours=draw([1, 2.5]))}
        jobs[key] |= {"interval_s": draw([None, 0.0, 0.5, 60.0])}
        for gpu, mig in ((0, None), (1, None), (1, 7)):
            row: Row = {
                "job_key": key,
                "node": "n1",
                "gpu": gpu,
                "mig": mig,
                "samples": draw([0, 7, 90, 900]),
            }
            row |= {"interval_s": draw([None, 0.5, 20.0]), "first_t": begin}
            row |= {
                "last_t": begin + timedelta(hours=1),
                "health": draw([None, "OK", "HOT", "CRIT"]),
            }
            row |= {
                name: draw([None, 0.0, 1.0, 2.0]) for name in NODE_GPU_COLUMNS if name not in row
            }
            gpus.append(row)
    gpus = [row for row in gpus if source.random() < 0.7]
    devices = pl.DataFrame(
        {"gpu": [0, 1, 2], "mig": [None, 7, None], "model": "H100", "hbm_mib": 5.0}
    )
    never = pl.lit(None, DEVICES.schema["history"])
    devices = devices.with_columns(
        node=pl.lit("n1"), uuid=pl.lit("u"), pci=pl.lit("p"), history=never
    )
    report = build_node_report(
        "n1", pl.DataFrame([*jobs.values()]), pl.DataFrame(gpus), devices, zone_name="Europe/Paris"
    )
    weeks: defaultdict[tuple[object, ...], list[Row]] = defaultdict(list)
    of_gpu: defaultdict[tuple[object, ...], list[Row]] = defaultdict(list)
    of_job: defaultdict[str, list[Row]] = defaultdict(list)
    for row in gpus:
        job = jobs[row["job_key"]]
        own_s, seconds = row["interval_s"], (job["as_of"] - job["start"]).total_seconds()
        interval_s = job["interval_s"] if own_s is None else own_s
        whole = job | row | {"interval_s": interval_s, "seconds": seconds}
        day = job["start"].astimezone(ZoneInfo("Europe/Paris")).date()
        weeks[day - timedelta(days=day.weekday()), row["gpu"], row["mig"]].append(whole)
        of_gpu[row["gpu"], row["mig"]].append(whole)
        of_job[row["job_key"]].append(whole)
    of_gpu[2, None] = []  # no job held it
    keys = ("week", "gpu", "mig")
    for found, wanted, names in ((report.weeks, weeks, keys), (report.gpus, of_gpu, keys[1:])):
        order = found.select(names).rows()
        assert order == sorted(
            wanted, key=lambda key: [-1 if part is None else part for part in key]
        )
        for place, sums in zip(order, found.iter_rows(named=True), strict=True):
            for name, value in _sums_of_gpu(wanted[place]).items():
                assert sums[name] == (
                    value if isinstance(value, str | None) else pytest.approx(value)
                ), name
    days: defaultdict[tuple[object, ...], list[float | None]] = defaultdict(list)
    for row in gpus:
        for minutes in (0, 30):  # from its first to its last sample
            at = (row["first_t"] + timedelta(minutes=minutes)).astimezone(ZoneInfo("Europe/Paris"))
            days[at.date(), row["gpu"], row["mig"]].append(row["gpu_util_mean"])
    for row in report.days.iter_rows(named=True):
        levels = days.pop((row["day"], row["gpu"], row["mig"]))
        known = [level for level in levels if level is not None]
        assert row["hours"] == pytest.approx(len(levels) / 2)
        assert row["gpu_util_mean"] == (pytest.approx(sum(known) / len(known)) if known else None)
    assert not days
    assert report.sick.equals(sick_rows(report.gpus))
    newest = sorted(of_job, key=lambda key: (-jobs[key]["start"].timestamp(), key))
    for key, row in zip(newest, report.jobs.iter_rows(named=True), strict=True):
        sums = _sums_of_gpu(of_job[key])
        assert (row["job_key"], row["gpus_here"], row["health"]) == (
            key,
            len(of_job[key]),
            sums["health"],
        )
        assert [row["gpu_util_mean"], row["xid_events"]] == [
            sums["gpu_util_mean"],
            sums["xid_events"],
        ]
        assert {name: row[name] for name in texts} == {name: jobs[key][name] for name in texts}


def test_gpus_with_errors_or_a_state_that_is_not_ok_are_sick() -> None:
    errors = ("xid_events", "remapped_rows", "row_remap_failures", "ecc_dbe")
    states, counts = ("CRIT", "WARN", "HOT", "OK", "unknown", None), (None, 0.0, 1.0)
    rows = itertools.product(states, *[counts] * len(errors))
    every = pl.DataFrame([*rows], schema=["health", *errors], orient="row")
    sick = [row for row in every.rows() if row[0] in states[:3] or 1.0 in row[1:]]
    assert sick_rows(every).rows() == sick


def _sums_of_gpu(rows: list[Row]) -> Row:
    def known(name: str) -> list[Any]:
        return [row[name] for row in rows if row[name] is not None]

    def weighted(name: str) -> float | None:
        total = weight = 0.0
        for row in rows:
            sampled_s = row["samples"] * (1.0 if row["interval_s"] is None else row["interval_s"])
            if row[name] is not None:
                total, weight = total + row[name] * sampled_s, weight + sampled_s
        return total / weight if weight else None

    sampled = [row for row in rows if row["interval_s"]]
    expected = sum(row["seconds"] / row["interval_s"] for row in sampled)
    measured = sum(row["samples"] for row in sampled)
    ranks = ("CRIT", "WARN", "HOT", "unknown", "OK")
    return {
        "jobs": len({row["job_key"] for row in rows}) or None,
        "hours": sum(row["seconds"] for row in rows) / 3600 if rows else None,
        "coverage": min(1.0, measured / expected) if expected else None,
        "gpu_util_mean": weighted("gpu_util_mean"),
        "throttled": weighted("throttle_reasons_mean"),
        "gpu_temp_c_max": max(known("gpu_temp_c_max"), default=None),
        "xid_events": sum(known("xid_events")) if known("xid_events") else None,
        "xid": max(known("xid_event_max"), default=None),
        "pcie_replays": sum(known("pcie_replays_max")) if known("pcie_replays_max") else None,
        "remapped_rows": max(known("remapped_rows_uncorrectable_last"), default=None),
        "row_remap_failures": max(known("row_remap_failure_max"), default=None),
        "health": min(known("health"), key=ranks.index, default=None),
    }
