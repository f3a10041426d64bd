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


@pytest.mark.parametrize(
    ("start", "end", "run_s", "expected"),
    [
        ("00:30", "01:30", 3600, ((4, 30), (5, 30))),  # ended in the first 1:30
        ("00:30", "01:30", 7200, ((4, 30), (6, 30))),  # in the second
        ("01:30", "02:30", 3600, ((6, 30), (7, 30))),  # started in the second
        ("01:30", "02:30", 7200, ((5, 30), (7, 30))),
        ("01:50", "01:10", 1200, ((5, 50), (6, 10))),  # the clock went back while it ran
        ("01:10", "01:50", 2400, ((5, 10), (5, 50))),  # either; the first
        ("01:10", "01:50", 6000, ((5, 10), (6, 50))),
    ],
)
def test_the_run_time_tells_which_of_two_hours(
    start: str, end: str, run_s: float, expected: tuple[tuple[int, int], ...]
) -> None:
    times = [(), (), *(instants(f"2026-11-01T{written}:00", NEW_YORK) for written in (start, end))]
    settled = settle(times, run_s)
    assert settled[2:] == [utc(2026, 11, 1, *parts) for parts in expected]


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


@given(st.integers(0, 16 * 3600), st.integers(0, 6 * 3600))
def test_a_jobs_run_time_is_kept_over_the_change(begun_s: int, run_s: int) -> None:
    start = utc(2026, 10, 31, 20) + timedelta(seconds=begun_s)
    end = start + timedelta(seconds=run_s)
    local = [
        moment.astimezone(zone(NEW_YORK)).strftime("%Y-%m-%dT%H:%M:%S") for moment in (start, end)
    ]
    settled = settle([(), (), *(instants(text, NEW_YORK) for text in local)], run_s)
    assert settled[2] is not None
    assert settled[3] is not None
    assert (settled[3] - settled[2]).total_seconds() == run_s
    if len(instants(local[0], NEW_YORK)) == 1 or len(instants(local[1], NEW_YORK)) == 1:
        assert settled[2:] == [start, end]
