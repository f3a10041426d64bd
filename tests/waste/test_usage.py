"""Usage by week: hours lost and recovered, recomputed in plain Python from the demo."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

import tachograph
from jobframes import frame
from tachograph.api.open_lake import OpenLake
from tachograph.catalog.errors import NotFoundError
from tachograph.catalog.tables import JOB_SUMMARIES, WASTE
from tachograph.judge.usage import weekly_use


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
