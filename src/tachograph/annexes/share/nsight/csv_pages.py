"""The two pages of a CSV of Nsight Compute, raw and details, with numbers as in the C locale.

ncu writes its output between that of the application. Numbers have a point before the fraction and
may have commas between thousands. In other locales a point or comma may mean either, so that a file
with such numbers is not used at all.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tachograph.annexes.share.nsight.launches import (
    DEFAULT_DOMAIN,
    DEVICE_ATTRIBUTE,
    LaunchReader,
    encodable,
)
from tachograph.annexes.share.nsight.metrics import metric_of, unit_factor

BAD_ROW = "a row that is damaged or has too few cells"
NO_UNITS = "a table without the row of units"
NOT_C_LOCALE = "not a number as the C locale writes it, or too large"

_HEADER_WITHIN = 4000  # characters that contain the names of a launch's own columns
_BEGINS_ROW = re.compile(r'"(?:\d+|ID|Process ID)","|==[A-Z]+==')
_ERROR = re.compile(r"==ERROR==\s*(.{1,500})")
# As many digits as are a finite number in any unit.
_DIGITS = (
    r"-?(?:[0-9]{1,3}(?:,[0-9]{3}){1,9}+|[0-9]{1,30}+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]{1,2}+)?+"
)
_NUMBER = re.compile(_DIGITS)
_ROW = re.compile(rf"(?:{_DIGITS})?+(?:;(?:{_DIGITS})?+)*+")
# Digits with any signs between them; 0xA0 is the space in files that are no UTF-8.
_OTHER_LOCALE = re.compile(r"[+-]?[0-9][0-9.,'\u2019\s\udca0]*")
_SIZE = re.compile(r"\((\d{1,18}), *(\d{1,18}), *(\d{1,18})\)")
_ID = re.compile(r"[0-9]{1,18}")
_NO_METRIC = "launch__tpc_enabled"  # a list of numbers
_DETAILS_COLUMNS = ("Section Name", "Metric Name", "Metric Unit", "Metric Value")
_CLOCK = re.compile(rf"{DEVICE_ATTRIBUTE}\w*(?:clock|frequency)")
_RANGES = (":Push/Pop_Range:", ":Start/Stop_Range:")
_RANGE_FIELDS = 6  # after the name of a range, each after a colon


@dataclass(slots=True)
class CsvContent(LaunchReader):
    """Content of a text: its tables and the first error. `tables`: number found."""

    error: str = ""
    tables: int = 0
    cut: bool = False
    other_locale: bool = False

    def reject(self, cell: str, metric: str) -> None:
        """Count a cell that begins as a number does and is none."""
        if cell.lstrip("+-")[:1].isdecimal():
            self.other_locale |= _OTHER_LOCALE.fullmatch(cell) is not None
            self.rejects.add(NOT_C_LOCALE, metric, cell)


@lru_cache(maxsize=1 << 14)
def _number(cell: str) -> float | None:
    """Return the number as the C locale writes it.

    Instances behind the value, as in `6 (1; 2; 3)`, are left out.

    >>> _number("1,205.50"), _number("65,77"), _number("6 (1; 5)"), _number("n/a")
    (1205.5, None, 6.0, None)
    """
    text = cell.partition(" (")[0]
    return float(text.replace(",", "")) if _NUMBER.fullmatch(text) else None


def read_csv(lines: Iterable[str], content: CsvContent) -> None:
    """Add the launches of all tables in these lines; skip other text between them."""
    table: _RawTable | _DetailsTable | None = None
    for record in _records(lines):
        header = _header(record)
        if header is not None:
            content.tables += 1
            is_details = "Metric Name" in header
            table = _DetailsTable(header, content) if is_details else _RawTable(header, content)
        elif table is not None and record.startswith('"'):
            table.take_record(record)
        elif (message := _ERROR.search(record)) is not None:
            content.error = content.error or encodable(message[1].strip())
    if content.cut and isinstance(table, _DetailsTable):
        del content.launches[-1:]  # rows of it may lack


def _records(lines: Iterable[str]) -> Iterator[str]:
    """Yield records: one line, or several for quoted line breaks.

    A line with which a row begins ends a record whose quote was never closed.
    """
    parts: list[str] = []
    for line in lines:
        if parts and _BEGINS_ROW.match(line):
            yield "".join(parts)
            parts = []
        odd = line.count('"') % 2 == 1
        if parts or (odd and line.startswith('"')):
            parts.append(line)
        else:
            yield line
        if odd and len(parts) > 1:
            yield "".join(parts)
            parts = []
    if parts:
        yield "".join(parts)


def _header(record: str) -> list[str] | None:
    """Return the column names at the start of a table; program output may precede them."""
    start = record.find('"ID","', 0, _HEADER_WITHIN)
    if start < 0 or '"Kernel Name"' not in record:
        return None
    names = list(map(encodable, _cells(record[start:])))
    is_details = set(_DETAILS_COLUMNS) <= set(names)
    return names if is_details or any("__" in name for name in names) else None


def _cells(record: str) -> list[str]:
    """Return the cells of a record; none for an open quote or a cell beyond the limit."""
    try:
        return next(csv.reader([record.rstrip("\r\n")], strict=True), [])
    except csv.Error:
        return []


class _LaunchTable:
    """Columns of both pages that identify a launch. `needed`: minimum cells per row."""

    def __init__(self, names: Sequence[str], needed: int, content: CsvContent) -> None:
        self._needed = needed
        self._columns = {name: index for index, name in reversed(list(enumerate(names)))}
        self._content = content
        self._ranges = [index for index, name in enumerate(names) if _is_range(name)]

    def take_record(self, record: str) -> None:
        """Read a row. One that is not whole and has no line end was cut with the file."""
        row = _cells(record)
        whole = len(row) >= self._needed
        if not record.endswith(("\n", "\r")) and not (whole and record.endswith('"')):
            self._content.cut = True
        elif whole:
            self.take(row)
        else:
            self._content.rejects.add(BAD_ROW, None, record)

    def take(self, row: Sequence[str]) -> None:
        """Read a whole row."""
        raise NotImplementedError

    def _text(self, row: Sequence[str], name: str) -> str:
        """Return the text in a column; "" if the column is missing."""
        index = self._columns.get(name)
        return "" if index is None else encodable(row[index].strip())

    def _add_launch(self, row: Sequence[str], metrics: dict[str, float]) -> None:
        """Add the launch that a row names; a reject without ID or name."""
        number, kernel = self._text(row, "ID"), self._text(row, "Kernel Name")
        if not (kernel and _ID.fullmatch(number)):
            self._content.rejects.add(BAD_ROW, None, ",".join(row[:8]))
            return
        # Without the GPU's name the column Device has its ordinal.
        device = self._text(row, f"{DEVICE_ATTRIBUTE}display_name") or self._text(row, "Device")
        self._content.add(
            kernel,
            int(number),
            metrics,
            device=None if not device or device.isdecimal() else device,
            capability=self._text(row, "CC"),
            grid=_dimensions(self._text(row, "Grid Size")),
            block=_dimensions(self._text(row, "Block Size")),
            ranges=(encodable(name) for at in self._ranges for name in nvtx_ranges(row[at])),
        )


class _RawTable(_LaunchTable):
    """Raw page: one row of units, then one row per launch and one column per metric."""

    def __init__(self, names: Sequence[str], content: CsvContent) -> None:
        super().__init__(names, len(names), content)
        self._metrics = {name: at for name, at in self._columns.items() if _is_metric(name)}
        self._factors: list[float] = []  # of the metrics

    def take(self, row: Sequence[str]) -> None:
        """Read a row: the units, or a launch."""
        if not self._factors and not self._text(row, "Kernel Name"):
            self._factors = [_factor(name, row[index]) for name, index in self._metrics.items()]
        elif not self._factors:
            self._content.rejects.add(NO_UNITS, None, ",".join(row[:8]))
        else:
            self._add_launch(row, self._values(row))

    def _values(self, row: Sequence[str]) -> dict[str, float]:
        """Return the numbers of the launch and of its GPU, in base units."""
        cells = list(map(row.__getitem__, self._metrics.values()))
        joined = ";".join(cells)
        numbers: list[float | None]
        if _ROW.fullmatch(joined) and joined.count(";") < len(cells):
            # All at once, in half of the time.
            numbers = [float(text) if text else None for text in joined.replace(",", "").split(";")]
        else:
            numbers = list(map(_number, cells))
            for name, cell, number in zip(self._metrics, cells, numbers, strict=True):
                if number is None and cell:
                    self._content.reject(cell, name)
        columns = zip(self._metrics, numbers, self._factors, strict=True)
        return {name: number * factor for name, number, factor in columns if number is not None}


class _DetailsTable(_LaunchTable):
    """Details page: one row per launch and metric; rows of rules name no metric."""

    def __init__(self, names: Sequence[str], content: CsvContent) -> None:
        super().__init__(names, 1 + names.index("Metric Value"), content)
        # What identifies a launch, and its metrics so far.
        self._launches: dict[tuple[str, ...], dict[str, float]] = {}

    def take(self, row: Sequence[str]) -> None:
        """Read a row; of a metric in several sections the first counts."""
        key = tuple(row[: self._columns["Section Name"]])
        if key not in self._launches:
            self._launches[key] = {}
            self._add_launch(row, self._launches[key])
        section, label, unit, cell = (self._text(row, name) for name in _DETAILS_COLUMNS)
        metric = metric_of(section, label)
        if metric is not None:
            number = _number(cell)
            if number is not None:
                self._launches[key].setdefault(metric, number * _factor(metric, unit))
            else:
                self._content.reject(cell, metric)


def _is_range(column: str) -> bool:
    """Whether the column lists NVTX ranges."""
    return any(mark in column for mark in _RANGES)


def _is_metric(column: str) -> bool:
    """Whether a column of the raw page is a metric with one number."""
    return "__" in column and column != _NO_METRIC and not _is_range(column)


def _factor(metric: str, unit: str) -> float:
    """Return the factor to the base unit; of attributes, clocks are in kHz."""
    in_hz = unit.strip() and _CLOCK.match(metric)
    return unit_factor(unit) / 1e3 if in_hz else unit_factor(unit)


def nvtx_ranges(cell: str) -> tuple[str, ...]:
    """Return the range names in a cell; in a domain as `domain@name`.

    >>> nvtx_ranges('13416  "<default domain>:forward:none:none:none:none:none:none"')
    ('forward',)
    """
    names = []
    for text in _quoted(cell):
        domain, _, name = text.rsplit(":", _RANGE_FIELDS)[0].partition(":")
        names.append(name if domain == DEFAULT_DOMAIN else f"{domain}@{name}")
    return tuple(names)


def _quoted(cell: str) -> Iterator[str]:
    """Yield quoted texts followed by range fields: range names contain quotes and colons.

    Without an expression, which would take the square of the length for a cell of many quotes.
    """
    parts = cell.split('"')
    start = 1
    for end, part in enumerate(parts[:-1]):
        if end >= start and part.count(":") >= _RANGE_FIELDS:
            yield '"'.join(parts[start : end + 1])
            start = end + 2


@lru_cache(maxsize=4096)
def _dimensions(cell: str) -> tuple[int, int, int] | None:
    """Return the size in x, y, z; None without one.

    >>> _dimensions("(384, 1, 1)"), _dimensions("384")
    ((384, 1, 1), None)
    """
    match = _SIZE.fullmatch(cell)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3]))
