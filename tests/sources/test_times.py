"""Time columns: what each spelling means, and what cannot be read is counted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.catalog.errors import ConfigError, InputError
from tachograph.sources.times import days_of, read_times

MOMENT = datetime(2026, 4, 14, 22, 8, 52, tzinfo=UTC)
SECONDS = 1776204532

# zone, the UTC hour in which its clock goes back (the second pass starts there), how far
FOLDS = [
    ("Europe/Berlin", datetime(2026, 10, 25, 1, tzinfo=UTC), 60),
    ("America/Los_Angeles", datetime(2026, 11, 1, 9, tzinfo=UTC), 60),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC), 30),
]


@pytest.mark.parametrize(
    "written",
    [
        SECONDS,
        float(SECONDS),
        SECONDS * 10**3,
        SECONDS * 10**6,
        SECONDS * 10**9,
        str(SECONDS),
        f"{SECONDS}.000000",
        str(SECONDS * 10**9),
        "2026-04-14 22:08:52",
        "2026-04-14T22:08:52Z",
        "2026/04/14 22:08:52.000",
        "2026-04-15T00:08:52+02:00",
        "2026-04-14T15:08:52.000-0700",
        "2026-04-15T00:08:52+02",
        float(SECONDS * 10**3),
        f"{SECONDS * 10**3}.0",
        f"{SECONDS}e3",
        datetime(2026, 4, 14, 22, 8, 52),  # noqa: DTZ001
        MOMENT.astimezone(ZoneInfo("Asia/Tokyo")),
    ],
)
def test_every_spelling_of_one_moment(written: object) -> None:
    times = read_times(pl.Series("t", [written]))
    assert times.values.to_list() == [MOMENT]
    assert times.values.dtype == pl.Datetime("us", "UTC")
    assert times.rejects == ()


def test_what_is_no_time_is_counted_and_blanks_are_null() -> None:
    times = read_times(pl.Series(["2026-04-14 22:08:52", "yesterday", "", None, "N/A"]))
    assert times.values.to_list() == [MOMENT, None, None, None, None]
    assert times.bad.to_list() == [False, True, False, False, False]
    assert [(r.reason, r.count, r.example) for r in times.rejects] == [
        ("unreadable_time", 1, "yesterday")
    ]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ([SECONDS, SECONDS, SECONDS * 1000], [True, True, False]),  # all in the unit of most
        ([SECONDS, -SECONDS * 1000, SECONDS], [True, False, True]),
        ([str(SECONDS), str(SECONDS), "yesterday"], [True, True, False]),
        ([str(SECONDS), "yesterday"], [False, False]),  # not mostly numbers
        ([SECONDS * 10**6, SECONDS * 10**6, 2**62], [True, True, False]),
        ([None, None], [None, None]),
        ([], []),
    ],
)
def test_columns_of_which_a_part_is_no_time(written: list[Any], read: list[bool | None]) -> None:
    dtype = None if any(written) else pl.Int64
    times = read_times(pl.Series("t", written, dtype=dtype))
    assert times.values.to_list() == [MOMENT if known else None for known in read]
    assert times.bad.to_list() == [known is False for known in read]
    assert sum(reject.count for reject in times.rejects) == read.count(False)


@pytest.mark.parametrize("unit", [1, 10**3, 10**6, 10**9])
def test_days_since_1970(unit: int) -> None:
    """Of the first and the last second of a day."""
    seconds = pl.Series([20_557 * 86_400, 20_558 * 86_400 - 1])
    days = days_of(seconds * unit)
    assert days is not None
    assert days.to_list() == [20_557, 20_557]
    zoned = days_of(read_times(seconds).values)
    assert zoned is not None
    assert zoned.to_list() == [20_557, 20_557]
    assert days_of(pl.Series([SECONDS, SECONDS * 1000])) is None  # of which unit?
    assert days_of(pl.Series(["2026-04-14"])) is None


def test_numbers_beyond_the_calendar_are_counted() -> None:
    times = read_times(pl.Series([SECONDS, SECONDS, 2**63 - 1, -(2**62)]))
    assert times.values.to_list() == [MOMENT, MOMENT, None, None]
    assert [(r.reason, r.count) for r in times.rejects] == [("unreadable_time", 2)]


@pytest.mark.parametrize("others", [[], [10**21]])
def test_nanoseconds_may_need_64_bits(others: list[int]) -> None:
    """Alone, and beside a number that is no time."""
    found = read_times(
        pl.Series("t", [2**63, *others], dtype=pl.Int128 if others else pl.UInt64), form="epoch_ns"
    )
    assert found.values[0] == datetime(2262, 4, 11, 23, 47, 16, 854775, tzinfo=UTC)
    assert found.bad.to_list() == [False, *(True for _ in others)]


def test_written_formats() -> None:
    written = pl.Series(["25.10.2026 12:00:00.5", "32.10.2026 12:00:00.5"])
    times = read_times(written, form="%d.%m.%Y %H:%M:%S.%f", zone_name="Europe/Berlin")
    assert times.values.to_list() == [datetime(2026, 10, 25, 11, 0, 0, 500_000, tzinfo=UTC), None]
    with_offset = read_times(
        pl.Series(["14.04.2026 22:08 +0200"]), form="%d.%m.%Y %H:%M %z", zone_name="Asia/Tokyo"
    )
    assert with_offset.values.to_list() == [datetime(2026, 4, 14, 20, 8, tzinfo=UTC)]


def test_wrong_types_formats_and_zones_say_so() -> None:
    with pytest.raises(InputError, match="not a time"):
        read_times(pl.Series("t", [[1]]))
    with pytest.raises(InputError, match="numbers"):
        read_times(pl.Series("t", [1]), form="%d.%m.%Y")
    with pytest.raises(InputError, match="format"):
        read_times(pl.Series("t", ["1.1.2026 04"]), form="%d.%m.%Y %H")
    with pytest.raises(ConfigError, match="Mars"):
        read_times(pl.Series("t", ["2026-01-01"]), zone_name="Mars/Olympus")


def test_an_ambiguous_time_alone_or_out_of_order_is_the_first() -> None:
    first = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    alone = read_times(pl.Series(["2026-10-25 02:30:00"]), zone_name="Europe/Berlin")
    assert alone.values.to_list() == [first]
    minutes = (30, 10, 50, 0, 40, 5)
    times = read_times(
        pl.Series([f"2026-10-25 02:{m:02}:00" for m in minutes]), zone_name="Europe/Berlin"
    )
    assert times.values.to_list() == [first + timedelta(minutes=m - 30) for m in minutes]


@given(
    fold=st.sampled_from(FOLDS),
    before_s=st.integers(0, 7200),
    share=st.floats(0.01, 0.98),
    gpus=st.integers(1, 3),
    newest_first=st.booleans(),
)
def test_regular_samples_over_the_repeated_hour_come_back(
    fold: tuple[str, datetime, int], before_s: int, share: float, gpus: int, newest_first: bool
) -> None:
    zone_name, change, minutes = fold
    step = timedelta(seconds=max(1, int(minutes * 60 * share)))
    start = change - timedelta(minutes=minutes, seconds=before_s)
    count = min(400, int((timedelta(hours=5)) / step))
    utc = [start + i * step for i in range(count) for _ in range(gpus)]
    order = pl.DataFrame({"node": ["n"] * len(utc), "gpu": list(range(gpus)) * count})
    if newest_first:
        utc, order = utc[::-1], order.reverse()
    wall = [t.astimezone(ZoneInfo(zone_name)).strftime("%Y-%m-%d %H:%M:%S") for t in utc]
    times = read_times(pl.Series("t", wall), zone_name=zone_name, order=order)
    assert times.rejects == ()
    assert times.values.to_list() == utc


@given(
    zone_name=st.sampled_from(
        ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"]
    ),
    wall=st.datetimes(datetime(2010, 1, 1), datetime(2035, 1, 1)),  # noqa: DTZ001
)
def test_one_wall_clock_time_agrees_with_the_standard_library(
    zone_name: str, wall: datetime
) -> None:
    wall = wall.replace(microsecond=0)
    times = read_times(pl.Series("t", [wall.isoformat(sep=" ")]), zone_name=zone_name)
    expected = wall.replace(tzinfo=ZoneInfo(zone_name), fold=0).astimezone(UTC)
    exists = expected.astimezone(ZoneInfo(zone_name)).replace(tzinfo=None) == wall
    assert times.values.to_list() == ([expected] if exists else [None])
    assert times.bad.to_list() == [not exists]
