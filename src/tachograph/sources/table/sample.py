"""What a mapping is proposed from: the layout of a file, its first rows, and ranges of values in all of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from tachograph.catalog.errors import InputError
from tachograph.catalog.units import printable
from tachograph.sources.files import (
    TableLayout,
    format_of,
    listed,
    open_file,
    parquet_columns,
    read_csv,
    read_json,
    read_parquet,
    records,
)
from tachograph.sources.table.mapping import numbers, stripped

_ROWS = 500
_BYTES = 1 << 18
_SCAN_ROWS, _SCAN_BYTES = 1_000_000, 8 << 20  # of a piece when all of a file is read
_MOST_METRICS = 10_000  # names of a long file; more are no names of metrics
_DELIMITERS = (",", ";", "\t", "|")


@dataclass(slots=True)
class TableSample:
    """The first rows of a file, and what had to be known to read them, also as lines of a mapping."""

    path: Path
    rows: pl.DataFrame
    layout: TableLayout = field(default_factory=TableLayout)
    decimal: str = "."
    lines: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether the file has no further rows."""
        return self.rows.height < _ROWS


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The values of a column or metric: the smallest and largest number, and in how many rows they were looked for."""

    low: float | None
    high: float | None
    rows: int
    whole: bool = False

    def joined(self, other: ValueRange) -> ValueRange:
        """Return the range of both."""
        lows = [value for value in (self.low, other.low) if value is not None]
        highs = [value for value in (self.high, other.high) if value is not None]
        return ValueRange(min(lows, default=None), max(highs, default=None), self.rows + other.rows, self.whole)

    def __str__(self) -> str:
        rows = f"{self.rows:,} rows" if self.rows != 1 else "row"
        high = f"{self.high:,.0f}" if (self.high or 0) >= 1000 else f"{self.high:.4g}"
        return f"values up to {high} in " + (f"all {rows}" if self.whole else f"the first {rows}")


def sample(path: Path) -> TableSample:
    """Return the first rows of a file and its layout.

    Errors: InputError when it cannot be read, or has no rows.
    """
    match format_of(path):
        case "parquet":
            found = TableSample(path, next(read_parquet(path, list(parquet_columns(path)), rows=_ROWS)).rows)
        case "json":
            keys, content = _list_of_records(path)
            rows = records(content[:_ROWS] if isinstance(content, list) else content, origin=str(path))
            found = TableSample(path, rows, lines=[f"records = {quoted('.'.join(keys))}"] if keys else [])
        case "csv":
            found = TableSample(path, pl.DataFrame())
            found.layout = _layout(path, found)
            found.rows = next(iter(read_csv(path, found.layout, block_bytes=_BYTES))).rows.head(_ROWS)
    if not found.rows.height:
        raise InputError("the file has no rows to judge by", where=str(path), do="name a file with some")
    return found


def _list_of_records(path: Path) -> tuple[list[str], object]:
    """The keys under which the rows of a JSON file are, and the rows."""
    content, _ = read_json(path)
    keys: list[str] = []
    while isinstance(content, dict):
        lists = [
            key for key, value in content.items() if isinstance(value, list) and value and isinstance(value[0], dict)
        ]
        inner = lists[:1] or [key for key, value in content.items() if isinstance(value, dict)][:1]
        if not inner:
            raise InputError("no list of records", where=str(path), do=f"it has: {listed(map(str, content))}")
        keys.append(str(inner[0]))
        content = content[inner[0]]
    return keys, content


def _scan(of: TableSample, columns: list[str]) -> Iterator[pl.DataFrame]:
    """Yield these columns of all rows, a bounded piece at a time; of JSON, which is read whole, at once."""
    path = of.path
    match format_of(path):
        case "parquet":
            yield from (piece.rows for piece in read_parquet(path, columns, rows=_SCAN_ROWS))
        case "json":
            yield records(_list_of_records(path)[1], origin=str(path)).select(columns)
        case "csv":
            yield from (piece.rows.select(columns) for piece in read_csv(path, of.layout, block_bytes=_SCAN_BYTES))


def _layout(path: Path, found: TableSample) -> TableLayout:
    """Encoding, comment, delimiter, header and decimal sign of a CSV file."""
    with open_file(path) as file:
        start = file.read(_BYTES)
    encoding = "utf-8"
    try:
        text = start.decode("utf-8")
    except UnicodeDecodeError as problem:
        if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
            encoding = "utf-16"
        elif problem.start < len(start) - 4:
            encoding = "latin-1"
        text = start.decode(encoding, errors="ignore")
    if encoding != "utf-8":
        found.lines.append(f'encoding = "{encoding}"')
    lines = [line for line in text.removeprefix("\ufeff").splitlines() if line.strip()]
    comment = "#" if len(lines) > 1 and lines[0].startswith("# ") and not _same_fields(lines[0], lines[1]) else ""
    if comment:
        found.lines.append('comment = "#"')
        lines = [line for line in lines if not line.startswith("#")]
    if not lines:
        raise InputError("the file holds no line", where=str(path), do="export it again")
    delimiter = _delimiter(lines[:20])
    if delimiter != ",":
        found.lines.append(f"delimiter = {quoted(delimiter)}")
    first = [cell.strip().strip('"') for cell in lines[0].split(delimiter)]
    names: tuple[str, ...] = ()
    if any(re.fullmatch(r"[-+]?\d+([.,]\d+)?", cell) for cell in first):
        names = tuple(f"c{number}" for number in range(1, len(first) + 1))
        found.lines.append(f"names = {json.dumps(list(names))}  # the file has no header line: name its columns")
    if delimiter != "," and any(re.search(rf"(^|{re.escape(delimiter)})\d+,\d+", line) for line in lines[1:20]):
        found.decimal = ","
        found.lines.append('decimal = ","')
    return TableLayout(delimiter, comment, names, encoding)


def _same_fields(one: str, other: str) -> bool:
    """Whether two lines are divided alike: then the first is a header, whatever it starts with."""
    return any(one.count(sign) == other.count(sign) > 0 for sign in _DELIMITERS)


def _delimiter(lines: list[str]) -> str:
    """The sign that divides each of the lines into the same number of fields, most fields first."""
    counts = {sign: {line.count(sign) for line in lines} for sign in _DELIMITERS}
    steady = {sign: min(seen) for sign, seen in counts.items() if len(seen) == 1 and min(seen) > 0}
    if steady:
        return max(steady, key=lambda sign: steady[sign])
    return max(_DELIMITERS, key=lines[0].count)


def range_in_head(of: TableSample, names: list[str], unit: str) -> ValueRange:
    """Return the range of columns in the first rows, cells with a unit of their own converted to `unit`."""
    values = pl.concat([stripped(of.rows.get_column(name)).alias("v") for name in names])
    read = numbers(values, wanted=unit, decimal=of.decimal).values.cast(pl.Float64)
    return ValueRange(*_ends(read), of.rows.height, of.is_whole)


def range_in_all(of: TableSample, names: list[str]) -> ValueRange:
    """Return the range of columns in all rows; cells with a unit of their own are left out."""
    found = ValueRange(None, None, 0, whole=True)
    for piece in _scan(of, names):
        ends = [_ends(_floats(piece.get_column(name))) for name in names]
        for low, high in ends:
            found = found.joined(ValueRange(low, high, 0))
        found = found.joined(ValueRange(None, None, piece.height))
    return found


def _ends(values: pl.Series) -> tuple[float | None, float | None]:
    known = values.filter(values.is_finite().fill_null(value=False))
    low, high = known.min(), known.max()
    return (low if isinstance(low, float) else None, high if isinstance(high, float) else None)


def _floats(values: pl.Series) -> pl.Series:
    plain = values.str.strip_chars() if values.dtype == pl.String else values
    return plain.cast(pl.Float64, strict=False)


def metric_ranges(of: TableSample, metric: str, value: str) -> dict[str, ValueRange]:
    """Return {metric: range of its values} of all rows, in the order in which they first come.

    Memory: one piece of the file, and a row per name.
    """
    found: dict[str, ValueRange] = {}
    number = pl.col("value")
    for piece in _scan(of, [metric, value]):
        text = stripped(piece.get_column(metric)).alias("metric")
        frame = pl.DataFrame([text, _floats(piece.get_column(value)).alias("value")]).drop_nulls("metric")
        finite = number.filter(number.is_finite())
        ranges = frame.group_by("metric", maintain_order=True).agg(finite.min().alias("low"), finite.max(), n=pl.len())
        for name, low, high, count in ranges.iter_rows():
            of_piece = ValueRange(low, high, count, whole=True)
            found[name] = found[name].joined(of_piece) if name in found else of_piece
        if len(found) > _MOST_METRICS:
            raise InputError(
                f"column {metric!r} holds more than {_MOST_METRICS:,} names of metrics", where=str(of.path),
                do="write the mapping, with the columns of names and of values under [metric]",
            )  # fmt: skip
    return found


def quoted(text: str) -> str:
    """Return a TOML string that can be shown: escapes for what steers terminals or the direction of writing."""
    return "".join(
        letter if printable(letter) == letter else f"\\U{ord(letter):08x}"
        for letter in json.dumps(text, ensure_ascii=False)
    )
