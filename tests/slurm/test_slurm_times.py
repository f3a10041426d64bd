"""Local times of a site: hours that occur twice, hours that do not exist, marks for "not set"."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tachograph.catalog.units import zone
from tachograph.sources.slurm.fields import BadRowError, instants, settle

NEW_YORK = "America/New_York"  # 2026: clocks forward on 8 March at 2:00, back on 1 November at 2:00


def utc(
    year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0
) -> datetime:
    return datetime(year, month, day, hour, minute, second, tzinfo=UTC)


@pytest.mark.parametrize("written", ["Unknown", "None", "N/A", "", "0", "4294967294"])
def test_nothing_written(written: str) -> None:
    assert instants(written, "UTC") == ()


@given(st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)))  # noqa: DTZ001
@example(datetime(2026, 3, 8, 2, 30))  # noqa: DTZ001
@example(datetime(2026, 11, 1, 1, 30))  # noqa: DTZ001
def test_a_wall_clock_time_is_each_instant_that_shows_it(wall: datetime) -> None:
    wall = wall.replace(microsecond=0)
    passes = {wall.replace(tzinfo=zone(NEW_YORK), fold=fold).astimezone(UTC) for fold in (0, 1)}
    shown = tuple(
        sorted(t for t in passes if t.astimezone(zone(NEW_YORK)).replace(tzinfo=None) == wall)
    )
    if shown:
        assert instants(wall.isoformat(), NEW_YORK) == shown
    else:
        with pytest.raises(BadRowError, match="time_does_not_exist"):
            instants(wall.isoformat(), NEW_YORK)


def test_other_notations() -> None:
    assert instants("1795245390", NEW_YORK) == (utc(2026, 11, 21, 7, 16, 30),)
    assert instants("2026-11-01T01:30:00-05:00", NEW_YORK) == (utc(2026, 11, 1, 6, 30),)
    assert instants("2026-04-14 14:43", "America/Los_Angeles") == (utc(2026, 4, 14, 21, 43),)


@pytest.mark.parametrize(
    "written", ["yesterday", "2026-13-01T00:00:00", "2026-01-01", "COMPLETED", "9999999999999"]
)
def test_what_is_no_time_is_refused(written: str) -> None:
    with pytest.raises(BadRowError, match="bad_time"):
        instants(written, "UTC")


def test_without_run_time_times_stay_in_order() -> None:
    times = [
        instants(f"2026-11-01T{written}:00", NEW_YORK)
        for written in ("01:40", "01:40", "01:20", "02:00")
    ]
    assert settle(times, None) == [
        utc(2026, 11, 1, 5, 40),
        utc(2026, 11, 1, 5, 40),
        utc(2026, 11, 1, 6, 20),
        utc(2026, 11, 1, 7),
    ]


@given(st.integers(0, 8 * 3600), st.integers(0, 4 * 3600))
@example(2 * 3600 + 600, 2400)  # within either of two equal hours: the first
@example(2 * 3600 + 600, 6000)  # from the first into the second
@example(3 * 3600 + 600, 1200)  # the wall clock may have gone back while it ran
def test_the_run_time_tells_which_of_two_hours(begun_s: int, run_s: int) -> None:
    """Of the instants that the wall clock may mean the first two that lie that far apart."""
    start, run = utc(2026, 11, 1, 3) + timedelta(seconds=begun_s), timedelta(seconds=run_s)
    starts, ends = (
        instants(
            moment.astimezone(zone(NEW_YORK)).strftime("%Y-%m-%dT%H:%M:%S"),
            NEW_YORK,
        )
        for moment in (start, start + run)
    )
    expected = next(moment for moment in starts if moment + run in ends)
    assert settle([(), (), starts, ends], run_s)[2:] == [expected, expected + run]
