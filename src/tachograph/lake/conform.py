"""`conform`, the one gate into the tables, and `resolve`, one row per key.

A source hands over a frame whose columns carry contract names; `conform` converts units, adds missing columns as null,
removes impossible values and unusable rows, and counts each removal by reason. Nothing is clamped, nothing is dropped
without a count.

Of rows with one key, `resolve` takes for each column the last value that is not null, in the order of ingest (`seq`);
a job's record that has an end counts as later than one that has none. In tables whose rows do not complete each other
the last row is taken whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

import polars as pl

from tachograph.catalog.chunks import TEXT_BLANKS, Reject, counted, first_as_text
from tachograph.catalog.counters import COUNTERS, HOST_COUNTERS, Counter, HostCounter
from tachograph.catalog.errors import SchemaError
from tachograph.catalog.limits import ValueLimits
from tachograph.catalog.tables import GPU_SAMPLES, JOBS, NODE_SAMPLES, STORAGE_TYPES, LakeTable
from tachograph.catalog.units import factor

FIRST_CREDIBLE_TIME = datetime(2006, 1, 1, tzinfo=UTC)  # before CUDA no GPU counter existed


CLOCK_TOLERANCE = timedelta(minutes=10)  # a node's clock may run ahead of ours


@dataclass(frozen=True, slots=True)
class Conformed:
    """A frame in the table's schema (without `seq`) and what was removed to get there."""

    frame: pl.DataFrame
    rejects: tuple[Reject, ...] = field(default=())


def conform(
    frame: pl.DataFrame, table: LakeTable, *, now: datetime, units: Mapping[str, str] | None = None, origin: str = ""
) -> Conformed:
    """Return `frame` in the schema of `table`, with every removal counted.

    Grain: that of the input. `units` gives the unit of a column where it is not the contract's.
    Missing columns become null; null keys, times before 2006 or more than ten minutes after `now` cost the row;
    marks for "no value", NaN, infinities and values outside a counter's range cost the value.
    Errors: SchemaError naming unknown columns, or columns whose type cannot be that of the table.
    """
    schema = {name: dtype for name, dtype in table.schema.items() if name != "seq"}
    unknown = [name for name in frame.columns if name not in schema]
    if unknown:
        raise SchemaError(
            f"table {table.name} has no column {', '.join(unknown)}", where=origin, do=f"it has: {', '.join(schema)}"
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


def _check_type(name: str, given: pl.DataType, wanted: pl.DataType, *, table: LakeTable, origin: str) -> None:
    numeric = wanted.is_numeric()
    fits = (
        given == wanted
        or given == pl.Null
        or (numeric and (given.is_numeric() or given in (pl.String, pl.Boolean)))
        or (wanted == pl.String and given in (pl.Categorical, pl.Enum))
        or (isinstance(wanted, pl.Datetime) and isinstance(given, pl.Datetime) and given.time_zone is not None)
    )
    if not fits:
        hint = "times must carry their zone" if isinstance(given, pl.Datetime) else f"give it as {wanted}"
        raise SchemaError(f"column {name} of table {table.name} is {given}, not {wanted}", where=origin, do=hint)


def _cast(frame: pl.DataFrame, schema: Mapping[str, pl.DataType]) -> tuple[pl.DataFrame, list[Reject]]:
    """Types made the table's, except counters, which stay numbers as given until their units are converted."""
    rejects: list[Reject] = []
    columns: list[pl.Series] = []
    for series in frame.get_columns():
        wanted = schema[series.name]
        if series.dtype == pl.String and wanted.is_numeric():
            stripped = series.str.strip_chars()
            blank = stripped.is_in(TEXT_BLANKS)
            numbers = stripped.cast(pl.Float64, strict=False)
            bad = numbers.is_null() & series.is_not_null() & ~blank
            rejects += counted("missing_mark", series.name, blank & (stripped != ""), series)
            rejects += counted("not_a_number", series.name, bad, series)
            series = numbers
        if wanted.is_integer() and series.dtype.is_float():
            fits = series.is_nan() | series.is_infinite() | (series != series.round()) | (series.abs() > 9.2e18)
            if fits.any() and series.name not in _COUNTER_NAMES:
                rejects += counted("not_an_integer", series.name, fits.fill_null(value=False), series)
                series = pl.select(pl.when(~fits).then(series)).to_series().alias(series.name)
        if series.name in _COUNTER_NAMES:
            columns.append(series)
        else:
            cast = series.cast(wanted, strict=False)
            rejects += counted("out_of_range", series.name, cast.is_null() & series.is_not_null(), series)
            columns.append(cast)
    return pl.DataFrame(columns), rejects


_COUNTERS_OF: Mapping[str, tuple[Counter | HostCounter, ...]] = MappingProxyType(
    {GPU_SAMPLES.name: COUNTERS, NODE_SAMPLES.name: HOST_COUNTERS}
)


_COUNTER_NAMES = frozenset(counter.name for counters in _COUNTERS_OF.values() for counter in counters)


def _remove_impossible(
    frame: pl.DataFrame, counters: Iterable[Counter | HostCounter], units: Mapping[str, str]
) -> tuple[pl.DataFrame, list[Reject]]:
    """Counters in contract units and types; marks, NaN, infinities and values out of range become null."""
    rejects: list[Reject] = []
    columns: list[pl.Series] = []
    for counter in counters:
        if counter.name not in frame.columns:
            continue
        given = frame.get_column(counter.name)
        float32 = given.dtype == pl.Float32
        limits = ValueLimits.of([(counter, units.get(counter.name, counter.unit))], float32=float32)
        raw = given.cast(pl.Float64)
        numbers = raw.to_numpy()
        kept = pl.Series(counter.name, limits.convert(numbers), nan_to_null=True)
        if kept.null_count() > raw.null_count() or limits.clamps(numbers):
            present = raw.is_not_null()
            for reason, changed in limits.changes(numbers).items():
                rejects += counted(reason, counter.name, pl.Series(changed) & present, raw)
        columns.append(kept.cast(STORAGE_TYPES[counter.storage]))
    return frame.with_columns(columns), rejects


def _remove_non_finite(frame: pl.DataFrame) -> tuple[pl.DataFrame, list[Reject]]:
    rejects: list[Reject] = []
    columns: list[pl.Series] = []
    for series in frame.get_columns():
        if series.dtype.is_float():
            bad = (series.is_nan() | series.is_infinite()).fill_null(value=False)
            if bad.any():
                rejects += counted("not_finite", series.name, bad, series)
                columns.append(pl.select(pl.when(~bad).then(series)).to_series().alias(series.name))
    return frame.with_columns(columns), rejects


def _remove_rows(frame: pl.DataFrame, table: LakeTable, now: datetime) -> tuple[pl.DataFrame, list[Reject]]:
    """Rows without a key, outside credible time, or ending before they start, removed and counted."""
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
    for reason, column, expression in checks:
        mask = frame.select(expression.fill_null(value=False)).to_series()
        if mask.any():
            first = frame.filter(mask).head(1)
            texts = [(series.name, first_as_text(series)) for series in first]
            shown = ", ".join(f"{name}={text}" for name, text in texts if text is not None)
            rejects.append(Reject(reason, None, int(mask.sum()), f"{column}: {shown}"[:200]))
            frame = frame.filter(~mask)
    return frame, rejects


def resolve(frame: pl.DataFrame, table: LakeTable) -> tuple[pl.DataFrame, int]:
    """Return `frame` sorted by the table's `sort` with each key once, and how many rows were merged away."""
    key = list(table.key)
    if set(table.sort) == set(key):
        if is_resolved(frame, table):
            return frame, 0
        ordered = frame.sort(*table.sort, *_order(table), nulls_last=False, maintain_order=True)
        repeated = _repeats(ordered, key)
    else:
        ordered = frame.sort(*(table.sort or key), *_order(table), nulls_last=False, maintain_order=True)
        repeated = ordered.select(pl.struct(key).is_duplicated()).to_series()
    if not repeated.any():
        return ordered, 0
    several = ordered.filter(repeated).sort(*key, *_order(table), nulls_last=False, maintain_order=True)
    rest = [pl.col(name) for name in frame.columns if name not in (*key, "seq")]
    last = [(column.drop_nulls() if table.completes else column).last() for column in rest]
    last.append(pl.col("seq").max().alias("seq"))  # the last seq shows what is new, even where another row counts
    merged = several.group_by(key, maintain_order=True).agg(last)
    result = pl.concat([ordered.filter(~repeated), merged.select(*frame.columns)])
    return result.sort(*(table.sort or key), nulls_last=False, maintain_order=True), frame.height - result.height


def is_resolved(frame: pl.DataFrame, table: LakeTable) -> bool:
    """True when each row's key is greater than the one above (null is least): nothing to sort, nothing repeated."""
    if frame.height < 2:
        return True
    greater, equal_so_far = pl.lit(value=False), pl.lit(value=True)
    for name in table.sort:
        above, here = pl.col(name).shift(1), pl.col(name)
        greater |= equal_so_far & (above < here).fill_null(above.is_null() & here.is_not_null())
        equal_so_far &= above.eq_missing(here)
    return bool(frame.select(greater.slice(1).all()).item())


def _order(table: LakeTable) -> list[pl.Expr]:
    """What makes a row later than another of the same key."""
    return [pl.col("end").is_not_null(), pl.col("seq")] if table is JOBS else [pl.col("seq")]


def _repeats(ordered: pl.DataFrame, key: list[str]) -> pl.Series:
    """True for rows whose neighbour above or below has the same key."""
    as_above = pl.all_horizontal(pl.col(name).eq_missing(pl.col(name).shift(1)) for name in key)
    first = pl.int_range(pl.len()) == 0
    marked = ordered.select((as_above & ~first).alias("above"))
    return marked.select(pl.col("above") | pl.col("above").shift(-1, fill_value=False)).to_series()
