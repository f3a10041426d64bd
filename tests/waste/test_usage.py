"""Usage by week: hours lost and recovered, recomputed in plain Python from the demo."""

from __future__ import annotations

from collections import defaultdict
from datetime import date, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import polars as pl
import pytest

import tachograph
from tachograph.api.open_lake import OpenLake
from tachograph.catalog.errors import NotFoundError
from tachograph.catalog.tables import WASTE


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
    from tachograph.judge.usage import _recovered

    weeks = pl.DataFrame({"gpu_hours": [100.0, 100.0, 50.0], "lost": [40.0, 20.0, 20.0]})
    got = weeks.select(_recovered()).to_series().to_list()
    assert got[0] is None
    assert got[1:] == pytest.approx([40.0 / 100.0 * 100.0 - 20.0, 60.0 / 200.0 * 50.0 - 20.0])


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
