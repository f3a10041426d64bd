"""`conform`, the one gate into the tables, and `resolve`, one row per key.

A source hands over a frame whose columns carry contract names; `conform` converts units, adds
missing columns as null, removes impossible values and unusable rows, and counts each removal by
reason. Nothing is dropped without a count.

Of rows with one key, `resolve` takes for each column the last value that is not null, in the order
of ingest (`seq`); a job's record that has an end counts as later than one that has none. In tables
whose rows do not complete each other the last row is taken whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING

import polars as pl

from tachograph.catalog.chunks import TEXT_BLANKS, Reject, chosen_cells, counted, first_as_text
from tachograph.catalog.counters import (
    COUNTERS,
    HOST_COUNTERS,
    JOB_COUNTERS,
    Counter,
    HostCounter,
)
from tachograph.catalog.errors import SchemaError
from tachograph.catalog.tables import (
    GPU_SAMPLES,
    JOB_NODE_SAMPLES,
    JOBS,
    JUDGED,
    NODE_SAMPLES,
    STORAGE_TYPES,
    TIME,
    LakeTable,
)
from tachograph.catalog.units import DAY_US, factor
from tachograph.lake.filters import FINAL_STATES

if TYPE_CHECKING:
    from tachograph.catalog.limits import ValueLimits

FIRST_CREDIBLE_TIME = datetime(2006, 1, 1, tzinfo=UTC)  # before CUDA no GPU counter existed


CLOCK_TOLERANCE = timedelta(minutes=10)  # a node's clock may run ahead of ours

FIRST_DAY = date(1970, 1, 1)
_MOST_CODES = 1 << 32
_ABOVE = "row above has its key"


@dataclass(frozen=True, slots=True)
class Conformed:
    """A frame in the table's schema (without `seq`), and what conforming removed."""

    frame: pl.DataFrame
    rejects: tuple[Reject, ...] = field(default=())


def conform(
    frame: pl.DataFrame,
    table: LakeTable,
    *,
    now: datetime,
    units: Mapping[str, str] | None = None,
    origin: str = "",
) -> Conformed:
    """Return `frame` in the schema of `table`, with every removal counted.

    Grain: that of the input. `units` gives the unit of a column where it is not the contract's.
    Missing columns become null; null keys, times before 2006 or more than ten minutes after `now`
    cost the row; marks for "no value", NaN, infinities and values outside a counter's range cost
    the value. Errors: SchemaError naming unknown columns, or columns whose type cannot be that of
    the table.
    """
    schema = table.row_schema
    unknown = [name for name in frame.columns if name not in schema]
    if unknown:
        raise SchemaError(
            f"table {table.name} has no column {', '.join(unknown)}",
            where=origin,
            do=f"it has: {', '.join(schema)}",
        )
    for name in frame.columns:
        _check_type(name, frame.schema[name], schema[name], table=table, origin=origin)
    cast, rejects = _cast(frame, schema)
    counters = _COUNTERS_OF.get(table.name)
    if counters:
        cast, removed = _remove_impossible(cast, counters, units or {})
        rejects += removed
    else:
        cast = cast.with_columns(
            (pl.col(name) * factor(unit, _unit_of(table, name))).cast(schema[name])
            for name, unit in (units or {}).items()
            if name in cast.columns and unit != _unit_of(table, name)
        )
        cast, removed = _remove_non_finite(cast)
        rejects += removed
    cast = cast.with_columns(
        pl.lit(None, dtype=dtype).alias(name) for name, dtype in schema.items() if name not in cast
    )
    cast, removed = _remove_rows(cast.select(*schema), table, now)
    return Conformed(cast, tuple(rejects + removed))


def _unit_of(table: LakeTable, name: str) -> str:
    return next(column.unit for column in table.columns if column.name == name)


def _check_type(
    name: str, given: pl.DataType, wanted: pl.DataType, *, table: LakeTable, origin: str
) -> None:
    numeric = wanted.is_numeric()
    fits = (
        given == wanted
        or given == pl.Null
        or (numeric and (given.is_numeric() or given in (pl.String, pl.Boolean)))
        or (wanted == pl.String and given in (pl.Categorical, pl.Enum))
        or (
            isinstance(wanted, pl.Datetime)
            and isinstance(given, pl.Datetime)
            and given.time_zone is not None
        )
    )
    if not fits:
        hint = (
            "times must have a time zone"
            if isinstance(given, pl.Datetime)
            else f"give it as {wanted}"
        )
        raise SchemaError(
            f"column {name} of table {table.name} is {given}, not {wanted}", where=origin, do=hint
        )


def _cast(
    frame: pl.DataFrame, schema: Mapping[str, pl.DataType]
) -> tuple[pl.DataFrame, list[Reject]]:
    """Cast columns to the table's types, except counters, whose units are converted later."""
    rejects: list[Reject] = []
    columns: list[pl.Series] = []
    for series in frame.get_columns():
        dtype = schema[series.name]
        if series.dtype == pl.String and dtype.is_numeric():
            stripped = series.str.strip_chars()
            blank = stripped.is_in(TEXT_BLANKS)
            numbers = stripped.cast(pl.Float64, strict=False)
            bad = numbers.is_null() & series.is_not_null() & ~blank
            rejects += counted("missing_mark", series.name, blank & (stripped != ""), series)
            rejects += counted("not_a_number", series.name, bad, series)
            series = numbers
        if dtype.is_integer() and series.dtype.is_float():
            fits = (
                series.is_nan()
                | series.is_infinite()
                | (series != series.round())
                | (series.abs() > 9.2e18)
            )
            if fits.any() and series.name not in _COUNTER_NAMES:
                rejects += counted(
                    "not_an_integer", series.name, fits.fill_null(value=False), series
                )
                series = chosen_cells(~fits, series)
        if series.name in _COUNTER_NAMES:
            columns.append(series)
        else:
            cast = series.cast(dtype, strict=False)
            rejects += counted(
                "out_of_range", series.name, cast.is_null() & series.is_not_null(), series
            )
            columns.append(cast)
    return pl.DataFrame(columns), rejects


_COUNTERS_OF: Mapping[str, tuple[Counter | HostCounter, ...]] = MappingProxyType(
    {
        GPU_SAMPLES.name: COUNTERS,
        NODE_SAMPLES.name: HOST_COUNTERS,
        JOB_NODE_SAMPLES.name: JOB_COUNTERS,
    }
)


_COUNTER_NAMES = frozenset(
    counter.name for counters in _COUNTERS_OF.values() for counter in counters
)


def _remove_impossible(
    frame: pl.DataFrame, counters: Iterable[Counter | HostCounter], units: Mapping[str, str]
) -> tuple[pl.DataFrame, list[Reject]]:
    """Convert counters to contract units and types; impossible values become null."""
    import numpy as np  # which few readers need

    from tachograph.catalog.limits import ValueLimits

    rejects: list[Reject] = []
    columns: list[pl.Series | pl.Expr] = []
    present = [counter for counter in counters if counter.name in frame.columns]
    limits_of = {
        counter.name: ValueLimits.of(
            [(counter, units.get(counter.name, counter.unit))],
            float32=frame.schema[counter.name] == pl.Float32,
        )
        for counter in present
    }
    fine = _within(frame, limits_of)
    slices = frame["mig"].is_not_null().to_numpy() if "mig" in frame.columns else None
    for counter in present:
        name, limits, storage = (
            counter.name,
            limits_of[counter.name],
            STORAGE_TYPES[counter.storage],
        )
        converted = _converted(name, float(limits.factors[0]), frame.schema[name], storage)
        if name in fine:
            columns.append(converted)
            continue
        raw = frame[name].cast(pl.Float64)
        # Few values are doubtful: these alone are looked at for what is wrong with them.
        rows = np.flatnonzero(limits.doubtful(raw.to_numpy()) & raw.is_not_null().to_numpy())
        doubtful = raw.gather(rows)
        numbers = doubtful.to_numpy()
        of_rows = limits if slices is None else limits.of_slices(slices[rows])
        result = pl.Series(name, of_rows.convert(numbers), nan_to_null=True)
        for reason, changed in of_rows.changes(numbers).items():
            rejects += counted(reason, name, pl.Series(changed), doubtful)
        columns.append(frame.select(converted).to_series().scatter(rows, result.cast(storage)))
    return frame.with_columns(columns), rejects


def _within(frame: pl.DataFrame, limits: Mapping[str, ValueLimits]) -> frozenset[str]:
    """Return columns whose minimum and maximum show that all values are valid."""
    floats = [name for name in limits if frame.schema[name].is_float()]
    numeric = [name for name in limits if frame.schema[name].is_numeric()]
    if not numeric or frame.is_empty():
        return frozenset()
    extremes = frame.select(
        *(pl.col(name).min().cast(pl.Float64).alias(f"min {name}") for name in numeric),
        *(pl.col(name).max().cast(pl.Float64).alias(f"max {name}") for name in numeric),
        *(pl.col(name).is_nan().any().alias(f"nan {name}") for name in floats),
    ).row(0, named=True)
    fine = set()
    for name in numeric:
        low, high = extremes[f"min {name}"], extremes[f"max {name}"]
        if not extremes.get(f"nan {name}") and (low is None or limits[name].holds(low, high)):
            fine.add(name)
    return frozenset(fine)


def _converted(name: str, by: float, given: pl.DataType, wanted: pl.DataType) -> pl.Expr:
    """A counter's values in its unit and type; what its type cannot hold is null."""
    value = pl.col(name)
    if by == 1.0 and (given == wanted or (given.is_integer() and wanted.is_integer())):
        return value.cast(wanted, strict=False)
    value = value.cast(pl.Float64) * by if by != 1.0 else value.cast(pl.Float64)
    rounded = value.round(mode="half_to_even") if wanted.is_integer() else value
    return rounded.cast(wanted, strict=False)


def _remove_non_finite(frame: pl.DataFrame) -> tuple[pl.DataFrame, list[Reject]]:
    rejects: list[Reject] = []
    columns: list[pl.Series] = []
    for series in frame.get_columns():
        if series.dtype.is_float():
            bad = (series.is_nan() | series.is_infinite()).fill_null(value=False)
            if bad.any():
                rejects += counted("not_finite", series.name, bad, series)
                columns.append(chosen_cells(~bad, series))
    return frame.with_columns(columns), rejects


def _remove_rows(
    frame: pl.DataFrame, table: LakeTable, now: datetime
) -> tuple[pl.DataFrame, list[Reject]]:
    """Remove and count rows without a key, at implausible times, or ending before they start."""
    checks: list[tuple[str, str, pl.Expr]] = [
        (f"no_{name}", name, pl.col(name).is_null()) for name in table.required if name != "seq"
    ]
    if "t" in frame.columns:
        checks.append(("time_too_early", "t", pl.col("t") < FIRST_CREDIBLE_TIME))
        checks.append(("time_in_future", "t", pl.col("t") > now + CLOCK_TOLERANCE))
    if "gpu" in frame.columns:
        checks.append(("negative_gpu", "gpu", pl.col("gpu") < 0))
    if "start" in frame.columns:
        checks.append(("start_too_early", "start", pl.col("start") < FIRST_CREDIBLE_TIME))
        checks.append(("start_in_future", "start", pl.col("start") > now + CLOCK_TOLERANCE))
        checks.append(("end_before_start", "end", pl.col("end") < pl.col("start")))
    rejects: list[Reject] = []
    occurring = frame.select(
        expression.any().alias(reason) for reason, _, expression in checks
    ).row(0, named=True)
    for reason, column, expression in checks:
        if not occurring[reason]:
            continue
        mask = frame.select(expression.fill_null(value=False)).to_series()
        if mask.any():
            first = frame.filter(mask).head(1)
            texts = [(series.name, first_as_text(series)) for series in first]
            shown = ", ".join(f"{name}={text}" for name, text in texts if text is not None)
            rejects.append(Reject(reason, None, int(mask.sum()), f"{column}: {shown}"[:200]))
            frame = frame.filter(~mask)
    return frame, rejects


def resolve(
    frame: pl.DataFrame, table: LakeTable, *, repeats: bool = False
) -> tuple[pl.DataFrame, int]:
    """Return `frame` sorted by `sort` with unique keys, and the number of rows merged away.

    `repeats`: without those that add a counter to a sample.
    """
    key = list(table.key)
    if set(table.sort) == set(key) and is_resolved(frame, table):
        return frame, 0
    ordered = _sorted(frame, table)
    by_key = (
        ordered
        if set(table.sort) == set(key)
        else ordered.sort(*key, *precedence(table), maintain_order=True)
    )
    as_above = _as_above(by_key, key)
    if not as_above.any():
        return ordered, 0
    result = _merged(by_key, as_above, table)
    if by_key is not ordered:
        result = result.sort(*(table.sort or key), nulls_last=False, maintain_order=True)
    if repeats:
        return result, _repeated(by_key, as_above, table)
    return result, frame.height - result.height


def split_apart(frame: pl.DataFrame, table: LakeTable) -> list[pl.DataFrame]:
    """Return `frame` split into the rows of each file; no frames if it has no rows."""
    if table.apart is None:
        return [frame] if frame.height else []
    name, value = table.apart
    wanted = frame[name].eq_missing(value)
    return [part for part in (frame.filter(wanted), frame.filter(~wanted)) if part.height]


def resolve_days(frame: pl.DataFrame, table: LakeTable) -> Iterator[tuple[date, pl.DataFrame, int]]:
    """Yield each day (UTC) of `frame`, its rows resolved, and how many of them repeat others."""
    if frame.is_empty():
        return
    number = frame["t"].to_physical() // DAY_US
    first, last = int(_number(number.min())), int(_number(number.max()))
    if first == last:
        yield FIRST_DAY + timedelta(days=first), *resolve(frame, table, repeats=True)
        return
    order = _row_order([number, *(frame[name] for name in table.sort)])
    ordered = frame if order is None else _gather(frame, order)
    number = number if order is None else number.gather(order)
    for day in range(first, last + 1):
        if order is None:
            rows = ordered.filter(number == day)
        else:
            begin = int(number.search_sorted(day, "left"))
            rows = ordered.slice(begin, int(number.search_sorted(day, "right")) - begin)
        if rows.height:
            yield FIRST_DAY + timedelta(days=day), *resolve(rows, table, repeats=True)


def _sorted(frame: pl.DataFrame, table: LakeTable) -> pl.DataFrame:
    """Return rows sorted by the table's `sort`, rows of one key in order of precedence."""
    by = table.sort or table.key
    if table is not JOBS and frame["seq"].is_sorted():
        order = _row_order([frame[name] for name in by])
        if order is not None:
            return _gather(frame, order)
    return frame.sort(*by, *precedence(table), nulls_last=False, maintain_order=True)


def _row_order(columns: Sequence[pl.Series]) -> pl.Series | None:
    """Return row numbers sorted by `columns`, the last of which is a time; None if not applicable.

    Equal rows stay in their order. The columns but the last become one number per row, by which
    sorting takes two passes over the rows at most; rows that were in the order of time within it
    are sorted then.
    """
    *groups, times = columns
    if times.dtype != TIME or times.has_nulls() or not groups:
        return None
    size, coded = 1, pl.lit(0, dtype=pl.UInt64)
    for number, column in enumerate(groups):
        codes, count = _codes(column)
        if count == 1:  # all are null
            continue
        size *= count
        if codes is None or size > _MOST_CODES:
            return None
        coded = coded * count + pl.lit(codes.alias(str(number)))
    import numpy as np  # for many rows only, not for readers of a few jobs

    kind = pl.UInt16 if size <= 1 << 16 else pl.UInt32
    codes_of_rows = pl.select(coded.cast(kind)).to_series().to_numpy()
    if len(codes_of_rows) != len(times):
        return None
    order = np.argsort(codes_of_rows.astype(np.uint16), kind="stable")  # of 16 bits: a radix sort
    if size > 1 << 16:
        order = order[np.argsort((codes_of_rows >> 16).astype(np.uint16)[order], kind="stable")]
    us = times.to_physical().to_numpy()
    codes_in_order, us_in_order = codes_of_rows[order], us[order]
    if ((codes_in_order[1:] == codes_in_order[:-1]) & (us_in_order[1:] < us_in_order[:-1])).any():
        span = int(us.max() - us.min()) + 1
        if size * span >= 1 << 63:
            return None
        order = np.argsort(codes_of_rows.astype(np.int64) * span + (us - us.min()), kind="stable")
    # As rows are numbered.
    return pl.Series("row", order.astype(np.uint32) if len(order) < 1 << 32 else order)


def _codes(column: pl.Series) -> tuple[pl.Series | None, int]:
    """Whole numbers from 0 in the order of the values, null least, and how many there may be."""
    if column.null_count() == len(column):
        return None, 1
    if column.dtype.is_integer():
        low, high = column.min(), column.max()
        first, count = int(_number(low)), int(_number(high)) - int(_number(low)) + 2
        if count > _MOST_CODES:
            return None, 0
        return (column.cast(pl.Int64) - (first - 1)).fill_null(0).cast(pl.UInt64), count
    if column.dtype == pl.String:
        values = column.unique().drop_nulls().sort()
        codes = column.cast(pl.Enum(values)).to_physical().cast(pl.UInt64) + 1
        return codes.fill_null(0), len(values) + 1
    return None, 0


def _number(value: object) -> int:
    """Errors: TypeError for what is no whole number."""
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is no whole number")
    return value


def _gather(frame: pl.DataFrame, order: pl.Series) -> pl.DataFrame:
    """Rows in another order; what holds no value is not moved."""
    blank = {column.name for column in frame.get_columns() if column.null_count() == frame.height}
    moved = frame.select(pl.col(name).gather(order) for name in frame.columns if name not in blank)
    return moved.with_columns(
        pl.lit(None, dtype=frame.schema[name]).alias(name) for name in blank
    ).select(frame.columns)


def _as_above(ordered: pl.DataFrame, key: list[str]) -> pl.Series:
    """True for rows whose neighbour above has the same key."""
    equal = pl.all_horizontal(pl.col(name).eq_missing(pl.col(name).shift(1)) for name in key)
    return ordered.select(equal & (pl.int_range(pl.len()) > 0)).to_series()


def _merged(ordered: pl.DataFrame, as_above: pl.Series, table: LakeTable) -> pl.DataFrame:
    """Last row of each key, completed from earlier ones; the greatest seq shows what is new."""
    is_last = ~as_above.shift(-1, fill_value=False)
    of_several = as_above | ~is_last
    rows, row_as_above = ordered.filter(of_several), as_above.filter(of_several)
    gaps = [
        column.name
        for column in rows.get_columns()
        if table.completes
        and column.name not in (*table.key, "seq")
        and 0 < column.null_count() < rows.height
    ]
    completed = _completed(rows.select("seq", *gaps), row_as_above)
    last_rows = ordered.filter(is_last)
    # Keys of one row, nearly all of them, stay as they are.
    numbers = as_above.filter(is_last).arg_true()
    return last_rows.with_columns(
        last_rows[column.name].scatter(numbers, column) for column in completed.get_columns()
    )


def _completed(rows: pl.DataFrame, as_above: pl.Series) -> pl.DataFrame:
    """Last row of each key: each column's last value that is not null, and the greatest seq.

    rows: seq and columns to complete, sorted by key and precedence.
    """
    run = (~as_above).cum_sum()
    gaps = [name for name in rows.columns if name != "seq"]
    filled, distance = rows, 1
    # Each row has then seen twice as many above it.
    while (has_same_run := run == run.shift(distance)).any():
        above = pl.lit(has_same_run.fill_null(value=False))
        earlier = {name: pl.col(name).shift(distance) for name in rows.columns}
        filled = filled.with_columns(
            *(
                pl.when(above & pl.col(name).is_null())
                .then(earlier[name])
                .otherwise(pl.col(name))
                .alias(name)
                for name in gaps
            ),
            pl.when(above)
            .then(pl.max_horizontal("seq", earlier["seq"]))
            .otherwise("seq")
            .alias("seq"),
        )
        distance *= 2
    return filled.filter(~as_above.shift(-1, fill_value=False))


def _repeated(ordered: pl.DataFrame, as_above: pl.Series, table: LakeTable) -> int:
    """Return how many rows have no value that the rows of their key above lack."""
    if not (table.completes and table.by_day):
        return int(as_above.sum())
    of_several = as_above | as_above.shift(-1, fill_value=False)
    rows = ordered.filter(of_several)
    values = [
        column.name
        for column in rows.get_columns()
        if column.name not in (*table.key, "seq") and column.null_count() < rows.height
    ]
    not_null = rows.select(
        as_above.filter(of_several).alias(_ABOVE),
        pl.col(values).is_not_null(),
    )
    adds = pl.lit(value=False)
    for name in values:
        # Counted from the first row on; less what was counted before the rows of this key.
        before = pl.col(name).cum_sum() - pl.col(name)
        of_others = pl.when(pl.col(_ABOVE).not_()).then(before).forward_fill()
        adds |= pl.col(name) & (before == of_others)
    return int(not_null.select((~adds & pl.col(_ABOVE)).sum()).item())


def is_resolved(frame: pl.DataFrame, table: LakeTable) -> bool:
    """Return whether keys are strictly ascending (null first): sorted, and none repeated."""
    if frame.height < 2:
        return True
    greater, equal_so_far = pl.lit(value=False), pl.lit(value=True)
    for name in table.sort:
        above, here = pl.col(name).shift(1), pl.col(name)
        greater |= equal_so_far & (above < here).fill_null(above.is_null() & here.is_not_null())
        equal_so_far &= above.eq_missing(here)
    return bool(frame.select(greater.slice(1).all()).item())


def precedes(earlier: pl.DataFrame, later: pl.DataFrame, table: LakeTable) -> bool:
    """Return whether the last row of `earlier` sorts before the first of `later`; none is empty."""
    ends = pl.concat([frame.select(table.sort) for frame in (earlier.tail(1), later.head(1))])
    return is_resolved(ends, table)


def precedence(table: LakeTable) -> list[pl.Expr]:
    """What makes a row later than another of the same key."""
    if table is not JOBS:
        return [pl.col("seq")]
    return [*later_record(), pl.col("seq")]


def later_record() -> tuple[pl.Expr, ...]:
    """What makes a record of a run later than another, in whichever order they came.

    A record with an end; one in a final state; a job that has started; one that is polled, so it
    runs on; the longest run that a saved file knows.
    """
    ended = pl.col("end").is_not_null()
    over = ended | pl.col("state").is_in(FINAL_STATES).fill_null(value=False)
    polled = pl.col("saved").eq_missing(pl.lit(value=False))
    known_s = pl.when(~over & ~polled).then("elapsed_s")
    waiting = ~over & (pl.col("state") == "PENDING").fill_null(value=False)
    return ended, over, ~waiting, ~over & polled, known_s.fill_null(0.0)


def in_schema(frame: pl.DataFrame, table: LakeTable) -> pl.DataFrame:
    """Return `frame` in a computed table's schema without `seq`; judged columns are null."""
    columns: list[pl.Expr] = []
    for name, dtype in table.row_schema.items():
        if name in JUDGED and name not in frame.columns:
            columns.append(pl.lit(None, dtype).alias(name))
        else:
            columns.append(pl.col(name).cast(dtype))
    return frame.select(columns)
