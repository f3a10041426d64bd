"""Time columns: epoch numbers, ISO text and custom formats to UTC, with reject reasons.

The unit of a number is recognised by its size: seconds since 1970 reach 1e11 in the year 5138, and
each finer unit starts a thousand times higher. Wall-clock times need a zone, and twice a year the
wall clock is not enough.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from tachograph.catalog.chunks import TEXT_BLANKS, Reject, chosen_cells, counted
from tachograph.catalog.errors import InputError
from tachograph.catalog.tables import TIME
from tachograph.catalog.units import zone

AUTO = "auto"
ISO = "iso"
EPOCH = "epoch"
_PER_US = {"epoch_s": 1e6, "epoch_ms": 1e3, "epoch_us": 1.0, "epoch_ns": 1e-3}
EPOCHS = (EPOCH, *_PER_US)
_LIMITS = ((1e11, "epoch_s"), (1e14, "epoch_ms"), (1e17, "epoch_us"))
# The years 1 and 9999: what a calendar can hold.
_FIRST_US, _LAST_US = -62135596800_000_000, 253402300799_999_999
_NAIVE = pl.Datetime("us")
_ISO_FORMATS = ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M", "%Y-%m-%d")
_OFFSET = r"^.{10}[ T].*?\d\s*([Zz]|UTC|GMT|[+-]\d{2}(?::?\d{2})?)$"


@dataclass(frozen=True, slots=True)
class TimeColumn:
    """UTC times (us); null for empty cells, and where `bad` marks an invalid time."""

    values: pl.Series
    bad: pl.Series
    rejects: tuple[Reject, ...] = field(default=())


def read_times(
    column: pl.Series,
    *,
    form: str = AUTO,
    zone_name: str = "UTC",
    order: pl.DataFrame | None = None,
) -> TimeColumn:
    """Return the times of a column, row by row.

    `form`: auto, iso, epoch (unit by size), epoch_s, epoch_ms, epoch_us, epoch_ns, or a strptime
    format. `zone_name` is the zone of what carries none; `order` holds the columns whose rows,
    taken together, follow one another in time (see `local_to_utc`). Rejects: `unreadable_time`,
    `nonexistent_time`, both counting rows. Errors: InputError when the type of the column cannot be
    a time, or the format is not one.

    >>> read_times(pl.Series([1776204532000, None])).values.to_list()[0].isoformat()
    '2026-04-14T22:08:52+00:00'
    >>> read_times(pl.Series(["2026-04-14T22:08:52.5+02:00"])).values.to_list()[0].isoformat()
    '2026-04-14T20:08:52.500000+00:00'
    """
    if isinstance(column.dtype, pl.Datetime) or column.dtype == pl.Date:
        return _from_datetime(column, zone_name, order)
    if column.dtype == pl.Null:
        return TimeColumn(
            pl.Series(column.name, [None] * len(column), dtype=TIME), _none_bad(column)
        )
    if column.dtype.is_numeric() and column.dtype != pl.Boolean:
        return _from_numbers(column, form)
    if column.dtype not in (pl.String, pl.Categorical, pl.Enum):
        raise InputError(
            f"column {column.name!r} is {column.dtype}, which is not a time",
            do="name the column of the times",
        )
    return _from_text(_blank_to_null(column), form, zone_name, order)


def is_local(form: str, zone_name: str) -> bool:
    """Return whether reading depends on row order, as wall-clock hours may repeat.

    >>> is_local("auto", "UTC"), is_local("epoch_ms", "Europe/Berlin"), is_local("iso", "Europe/Berlin")
    (False, False, True)
    """
    return zone_name not in ("UTC", "Etc/UTC", "GMT") and form not in EPOCHS


def local_to_utc(naive: pl.Series, zone_name: str, order: pl.DataFrame | None = None) -> TimeColumn:
    """Return the UTC times of wall-clock times.

    A time that the zone has twice is the first one, unless the rows of one group of `order`
    otherwise only rise (or only fall) and fall back (or jump up) once inside that hour: from there
    on it is the second one. Rejects: `nonexistent_time` for a time that the zone skipped. Errors:
    ConfigError for an unknown zone.
    """
    zone(zone_name)
    name = naive.name
    naive = naive.cast(_NAIVE)
    first = naive.dt.replace_time_zone(zone_name, ambiguous="earliest", non_existent="null")
    last = naive.dt.replace_time_zone(zone_name, ambiguous="latest", non_existent="null")
    twice = (first != last).fill_null(value=False)
    bad = first.is_null() & naive.is_not_null()
    if twice.any():
        second = _second_pass(naive, twice, order)
        first = chosen_cells(second, last, first)
    return TimeColumn(
        first.dt.convert_time_zone("UTC").alias(name),
        bad,
        counted("nonexistent_time", None, bad, naive),
    )


def _none_bad(column: pl.Series) -> pl.Series:
    return pl.repeat(False, len(column), dtype=pl.Boolean, eager=True)


def _blank_to_null(column: pl.Series) -> pl.Series:
    text = column.cast(pl.String).str.strip_chars()
    blank = text.is_in(TEXT_BLANKS)
    return chosen_cells(~blank, text) if blank.any() else text


def _from_datetime(column: pl.Series, zone_name: str, order: pl.DataFrame | None) -> TimeColumn:
    if isinstance(column.dtype, pl.Datetime) and column.dtype.time_zone is not None:
        return TimeColumn(column.dt.convert_time_zone("UTC").cast(TIME), _none_bad(column))
    return local_to_utc(column, zone_name, order)


def _from_numbers(column: pl.Series, form: str) -> TimeColumn:
    """Epochs; whole numbers stay whole, because nanoseconds need more digits than a Float64 has."""
    if form not in (AUTO, *EPOCHS):
        raise InputError(
            f"column {column.name!r} holds numbers, not times written as {form}",
            do="use format = 'epoch'",
        )
    whole_numbers = _from_whole_numbers(column, form)
    if whole_numbers is not None:
        return whole_numbers
    typical = column.cast(pl.Float64).abs().quantile(0.5, interpolation="lower")
    size = typical if isinstance(typical, float) else 0.0
    unit = form if form in _PER_US else _unit_of(size)
    per_us = _PER_US[unit]
    rough = column.cast(pl.Float64) * per_us
    fits = rough.is_between(_FIRST_US, _LAST_US).fill_null(
        value=False
    ) & rough.is_finite().fill_null(value=False)
    whole = chosen_cells(fits, column)
    if column.dtype.is_float():
        us = (whole.cast(pl.Float64) * per_us).round().cast(pl.Int64)
    elif per_us >= 1:
        us = whole.cast(pl.Int64) * int(per_us)
    else:
        us = (whole // 1000).cast(pl.Int64)  # nanoseconds may need more than 63 bits
    bad = ~fits & column.is_not_null()
    values = us.cast(_NAIVE).dt.replace_time_zone("UTC").alias(column.name)
    return TimeColumn(values, bad, counted("unreadable_time", None, bad, column))


def _from_whole_numbers(column: pl.Series, form: str) -> TimeColumn | None:
    """Times of whole numbers after 1970 of one size; None unless all are valid."""
    least, greatest = column.min(), column.max()
    if (
        not column.dtype.is_integer()
        or not isinstance(least, int)
        or not isinstance(greatest, int)
        or least < 0
    ):
        return None
    unit = form if form in _PER_US else _unit_of(least)
    per_us = _PER_US[unit]
    if (form not in _PER_US and unit != _unit_of(greatest)) or greatest * per_us > _LAST_US - 1:
        return None
    us = column.cast(pl.Int64) * int(per_us) if per_us >= 1 else (column // 1000).cast(pl.Int64)
    return TimeColumn(us.cast(TIME).alias(column.name), _none_bad(column))


def days_of(column: pl.Series) -> pl.Series | None:
    """Return days since 1970 (UTC) of a column of integers or zoned times; None for other types."""
    times = column
    if column.dtype.is_integer():
        read = _from_whole_numbers(column, AUTO)
        if read is None:
            return None
        times = read.values
    if not isinstance(times.dtype, pl.Datetime):
        return None
    return times.dt.epoch("d")


def _unit_of(size: float) -> str:
    return next((unit for limit, unit in _LIMITS if size < limit), "epoch_ns")


def _from_text(
    text: pl.Series, form: str, zone_name: str, order: pl.DataFrame | None
) -> TimeColumn:
    if form in EPOCHS or (form == AUTO and _are_numbers(text)):
        return _from_number_text(text, form)
    parsed = _parse_unique(text, form)
    naive, offset = parsed["naive"], parsed["offset"]
    bad = naive.is_null() & text.is_not_null()
    rejects = counted("unreadable_time", None, bad, text)
    if offset.null_count() == len(offset):
        local = local_to_utc(naive, zone_name, order)
    else:
        local = local_to_utc(chosen_cells(offset.is_null(), naive), zone_name, order)
        fixed = (naive - offset).dt.replace_time_zone("UTC")
        merged = chosen_cells(offset.is_null(), local.values, fixed)
        local = TimeColumn(merged, local.bad, local.rejects)
    return TimeColumn(
        local.values.cast(TIME).alias(text.name), bad | local.bad, (*rejects, *local.rejects)
    )


def _are_numbers(text: pl.Series) -> bool:
    filled = text.drop_nulls()
    numbers = filled.str.contains(r"^[-+]?\d+(\.\d*)?([eE][-+]?\d+)?$")
    return len(filled) > 0 and (numbers.sum() or 0) * 2 > len(filled)


def _from_number_text(text: pl.Series, form: str) -> TimeColumn:
    whole = text.cast(pl.Int64, strict=False)
    numbers = (
        whole if whole.null_count() == text.null_count() else text.cast(pl.Float64, strict=False)
    )
    if numbers.dtype == pl.Float64 and (whole.drop_nulls().abs() > 2**53).any():
        numbers = whole  # nanoseconds: the digits of a Float64 do not suffice
    unreadable = numbers.is_null() & text.is_not_null()
    times = _from_numbers(numbers.alias(text.name), form)
    bad = times.bad | unreadable
    return TimeColumn(times.values, bad, counted("unreadable_time", None, bad, text))


def _parse_unique(text: pl.Series, form: str) -> pl.DataFrame:
    """Parse each distinct text to wall-clock time `naive` and UTC `offset` (null: none written)."""
    once = text.drop_nulls().unique()
    parts = _parse_iso(once) if form in (AUTO, ISO) else _parse_format(once, form)
    table = pl.DataFrame({"text": once, "naive": parts[0], "offset": parts[1]})
    return pl.DataFrame({"text": text}).join(table, on="text", how="left", maintain_order="left")


def _parse_iso(text: pl.Series) -> tuple[pl.Series, pl.Series]:
    offset = text.str.extract(_OFFSET)
    length = offset.str.len_chars().fill_null(0).cast(pl.Int64)
    bare = pl.DataFrame({"text": text, "n": text.str.len_chars().cast(pl.Int64) - length}).select(
        pl.col("text").str.slice(0, pl.col("n")).str.strip_chars()
    )
    plain = bare.to_series().str.replace(r"^(.{10})T", "${1} ").str.replace(",", ".", literal=True)
    plain = plain.str.replace(r"^(\d{4})/(\d{2})/(\d{2})", "${1}-${2}-${3}")
    tries = [plain.str.to_datetime(form, strict=False, time_unit="us") for form in _ISO_FORMATS]
    naive = pl.select(pl.coalesce(*tries)).to_series()
    digits = offset.str.replace(":", "", literal=True)
    minutes = digits.str.slice(1, 2).cast(pl.Int64, strict=False) * 60
    minutes = minutes + digits.str.slice(3, 2).cast(pl.Int64, strict=False).fill_null(0)
    minutes = chosen_cells(offset.str.contains(r"^[+-]"), minutes, 0)  # no digits after Z, UTC
    signed = chosen_cells(offset.str.starts_with("-"), -minutes, minutes)
    signed = chosen_cells(offset.is_not_null(), signed)
    return naive, (signed * 60_000_000).cast(pl.Duration("us"))


def _parse_format(text: pl.Series, form: str) -> tuple[pl.Series, pl.Series]:
    """Parse with a strptime format; Python's fraction `.%f` is `%.f` in this parser."""
    try:
        naive = text.str.to_datetime(form.replace(".%f", "%.f"), strict=False, time_unit="us")
    except pl.exceptions.PolarsError as problem:
        raise InputError(
            f"{form!r} is no time format: {str(problem).splitlines()[0]}",
            do="use iso, epoch, epoch_ms or a format such as '%d.%m.%Y %H:%M:%S'",
        ) from None
    fixed = isinstance(naive.dtype, pl.Datetime) and naive.dtype.time_zone is not None
    if fixed:
        naive = naive.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    nothing = pl.lit(0 if fixed else None, dtype=pl.Int64)
    offset = pl.select(pl.repeat(nothing, len(text)).cast(pl.Duration("us"))).to_series()
    return naive, offset


def _second_pass(naive: pl.Series, twice: pl.Series, order: pl.DataFrame | None) -> pl.Series:
    """True where row order shows the second of two equal wall-clock hours."""
    keys = (
        order if order is not None else pl.DataFrame({"all": pl.repeat(0, len(naive), eager=True)})
    )
    keys = keys.select(pl.struct(pl.all()).rank("dense").alias("group"))
    frame = keys.with_columns(naive.alias("wall"), twice.alias("twice")).with_row_index("row")
    dated = frame.filter(pl.col("wall").is_not_null())
    step = pl.col("wall").diff().over("group")
    direction = dated.group_by("group").agg(
        (
            (pl.col("wall").diff() < pl.duration()).sum()
            > (pl.col("wall").diff() > pl.duration()).sum()
        ).alias("falling")
    )
    dated = dated.join(direction, on="group", maintain_order="left")
    rising = pl.concat(
        [dated.filter(~pl.col("falling")), dated.filter(pl.col("falling")).reverse()]
    )
    day = pl.col("wall").dt.date()
    back = (step < pl.duration()).fill_null(value=False)
    judged = rising.with_columns(back.alias("back"), day.alias("day")).with_columns(
        pl.col("back").sum().over("group").alias("falls"),
        (pl.col("back") & pl.col("twice")).sum().over("group").alias("explained"),
        pl.col("back").sum().over("group", "day").alias("falls_of_day"),
        (pl.col("back").cast(pl.Int64).cum_sum().over("group", "day") > 0).alias("after"),
    )
    sure = (pl.col("falls") == pl.col("explained")) & (pl.col("falls_of_day") <= 1)
    second = judged.filter(sure & pl.col("after") & pl.col("twice"))["row"]
    return frame["row"].is_in(second.implode())
