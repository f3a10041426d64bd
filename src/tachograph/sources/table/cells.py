"""Cells of a table as people and tools write them: numbers with a unit behind, decimal commas, marks for nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import polars as pl

from tachograph.errors import InputError
from tachograph.rejects import BLANK_FLOATS, TEXT_BLANKS, Reject
from tachograph.sources.times import counted
from tachograph.units import factor, slurm_duration_s

# the catalogue's marks, nvidia-smi's, and those of spreadsheets and databases
MARKS = (
    *TEXT_BLANKS, "[N/A]", "[Not Supported]", "[Unknown Error]", "[Insufficient Permissions]", "[GPU requires reset]",
    "Not Supported", "n/a", "NA", "-", "null", "NULL", "None", "Unknown", "NaT",
)  # fmt: skip
_NAMES_OF_UNITS = (
    "W", "mW", "kW", "J", "mJ", "kJ", "Wh", "kWh", "B", "KiB", "MiB", "GiB", "MB", "GB", "s", "ms", "jiffy", "C",
    "percent", "B/s", "KiB/s", "MiB/s", "GiB/s", "kB/s", "MB/s", "GB/s", "Hz", "kHz", "MHz", "GHz",
)  # fmt: skip
UNITS: Mapping[str, str] = MappingProxyType(
    {unit: unit for unit in _NAMES_OF_UNITS}
    | {"%": "percent", "°C": "C", "bytes": "B", "KB/s": "kB/s", "jiffies": "jiffy"}
)
_NUMBER = r"^([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([^\d\s.].*)?$"


@dataclass(frozen=True, slots=True)
class Cells:
    """Numbers of a column in `unit`; null where nothing or no number is written, the latter counted."""

    values: pl.Series
    unit: str
    rejects: tuple[Reject, ...] = ()


def stripped(given: pl.Series) -> pl.Series:
    """Return a column as text without the blanks around it; marks for nothing are null.

    >>> stripped(pl.Series([" a", "[N/A]", None])).to_list()
    ['a', None, None]
    """
    if given.dtype != pl.String:
        return given.cast(pl.String)
    text = given.str.strip_chars()
    return pl.select(pl.when(~text.is_in(MARKS)).then(text)).to_series().alias(given.name)


def numbers(given: pl.Series, *, wanted: str, unit: str = "", scale: float = 1.0, decimal: str = ".") -> Cells:
    """Return a column as numbers.

    `wanted`: the contract's unit; `unit`: that of the column, where the cell itself does not tell ("": the contract's).
    A unit behind the number wins. Rejects: `missing_mark`, `not_a_number`, `wrong_unit`, counting values.

    >>> numbers(pl.Series(["45 %", "0.5 %", "[N/A]"]), wanted="fraction").values.to_list()
    [0.45, 0.005, None]
    >>> numbers(pl.Series(["1.024,5"]), wanted="MiB", decimal=",").values.to_list()
    [1024.5]
    """
    unit = unit or wanted
    if given.dtype.is_numeric() or given.dtype == pl.Boolean:
        plain = given.cast(pl.Float64) if given.dtype.is_decimal() or given.dtype == pl.Boolean else given
        return _scaled(plain, unit, scale)
    text = stripped(given)
    marks = text.is_null() & given.is_not_null() & (given.cast(pl.String).str.strip_chars() != "")
    rejects = counted("missing_mark", given.name, marks, given)
    if decimal == ",":
        comma = text.str.contains(",", literal=True)
        spelled = text.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
        text = pl.select(pl.when(comma).then(spelled).otherwise(text)).to_series().alias(given.name)
    values = text.cast(pl.Float64, strict=False)
    if values.null_count() > text.null_count():
        cells = _with_units(text, values, wanted=wanted, unit=unit, scale=scale)
    else:
        cells = _scaled(values, unit, scale)
    return Cells(cells.values, cells.unit, (*rejects, *cells.rejects))


def durations(given: pl.Series) -> Cells:
    """Return a column of `[days-][hours:]minutes:seconds` in seconds.

    >>> durations(pl.Series(["1-00:00:10", "UNLIMITED"])).values.to_list()
    [86410.0, None]
    """
    text = stripped(given)
    once = text.drop_nulls().unique()
    known = {written: slurm_duration_s(written) for written in once.to_list()}
    values = text.replace_strict(known, default=None, return_dtype=pl.Float64)
    bad = values.is_null() & text.is_not_null() & ~text.is_in(("UNLIMITED", "Partition_Limit", "INVALID"))
    return Cells(values, "s", counted("not_a_number", given.name, bad, text))


def truths(given: pl.Series) -> Cells:
    """Return a column of yes and no as booleans.

    >>> truths(pl.Series(["yes", "0", "maybe"])).values.to_list()
    [True, False, None]
    """
    if given.dtype == pl.Boolean:
        return Cells(given, "")
    text = stripped(given).str.to_lowercase()
    values = pl.select(
        pl.when(text.is_in(("true", "yes", "y", "1", "1.0"))).then(pl.lit(value=True))
        .when(text.is_in(("false", "no", "n", "0", "0.0"))).then(pl.lit(value=False))
    ).to_series().alias(given.name)  # fmt: skip
    bad = values.is_null() & text.is_not_null()
    return Cells(values, "", counted("not_a_truth_value", given.name, bad, given))


def _scaled(values: pl.Series, unit: str, scale: float) -> Cells:
    """Multiplied; marks are taken out before, because after it nothing would know them."""
    if scale == 1:
        return Cells(values, unit)
    numbers_only = values.cast(pl.Float64)
    marks = numbers_only.is_in(BLANK_FLOATS).fill_null(value=False)
    kept = pl.select(pl.when(~marks).then(numbers_only * scale)).to_series().alias(values.name)
    return Cells(kept, unit, counted("missing_mark", values.name, marks, values))


def _with_units(text: pl.Series, plain: pl.Series, *, wanted: str, unit: str, scale: float) -> Cells:
    """Cells of which some are more than a number: a unit behind it, a hexadecimal bit mask, or no number at all."""
    number = text.str.extract(_NUMBER, 1).cast(pl.Float64, strict=False)
    suffix = text.str.extract(_NUMBER, 2)
    bare = _scaled(plain, unit, scale)
    values = bare.values.cast(pl.Float64) * factor(unit, wanted)
    wrong = pl.Series([False]).new_from_index(0, len(text))
    for written in suffix.drop_nulls().unique().to_list():
        here = (suffix == written).fill_null(value=False)
        try:
            of_cell = factor(UNITS[written.strip()], wanted) if written.strip() in UNITS else None
        except InputError:
            of_cell = None
        if of_cell is None:
            wrong = wrong | here
        else:
            values = pl.select(pl.when(here).then(number * scale * of_cell).otherwise(values)).to_series()
    hexadecimal = text.str.starts_with("0x").fill_null(value=False)
    if hexadecimal.any():
        masks = text.str.slice(2).str.to_integer(base=16, strict=False).cast(pl.Float64)
        values = pl.select(pl.when(hexadecimal).then(masks).otherwise(values)).to_series()
        wrong = wrong & ~hexadecimal
    values = values.alias(text.name)
    no_number = values.is_null() & text.is_not_null() & ~wrong & ~(bare.values.is_null() & plain.is_not_null())
    rejects = (
        *bare.rejects,
        *counted("wrong_unit", text.name, wrong, text),
        *counted("not_a_number", text.name, no_number, text),
    )
    return Cells(values, wanted, rejects)
