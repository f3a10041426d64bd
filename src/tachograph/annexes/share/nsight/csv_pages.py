"""The two pages of a CSV of Nsight Compute, raw and details, with numbers as in the C locale.

ncu writes its output between that of the application. Numbers have a point before the fraction and
may have commas between thousands. In other locales a point or comma may mean either, so that a file
with such numbers is not used at all.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import isclose, isfinite

from tachograph.annexes.share.nsight.launches import (
    DEFAULT_DOMAIN,
    DEVICE_ATTRIBUTE,
    Chip,
    Launch,
    RejectCounter,
    capability_of,
    encodable,
    size_from_metrics,
)
from tachograph.annexes.share.nsight.metrics import metric_of, unit_factor

BAD_ROW = "a row that is damaged or has too few cells"
NO_UNITS = "a table without the row of units"
NOT_C_LOCALE = "not a number as the C locale writes it"
TOO_LARGE = "a number that is too large"
TWO_VALUES = "a metric with two different values"

_RECORD_MAX = 1 << 20  # characters over several lines, after which a quote counts as never closed
_HEADER_WITHIN = 4000  # characters that contain the names of a launch's own columns
_BEGINS_ROW = re.compile(r'"(?:\d+|ID|Process ID)","|==[A-Z]+==')
_MESSAGE = re.compile(r"==(ERROR|WARNING)==\s*(.*)")
_MESSAGES_MAX = 20
_MESSAGE_LENGTH_MAX = 500  # characters
_DIGITS = r"-?(?:[0-9]{1,3}(?:,[0-9]{3})++|[0-9]++)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+"
_NUMBER = re.compile(_DIGITS)
_ROW = re.compile(rf"(?:{_DIGITS})?+(?:;(?:{_DIGITS})?+)*+")
# with a comma before the fraction, or other signs between thousands; the byte 0xA0 of files that
# are no UTF-8
_OTHER_LOCALE = re.compile(
    r"[+-]?[0-9]+(?:[.'\u2019 \u00a0\u202f\u2009\udca0][0-9]{3})*(?:[.,][0-9]+)?"
)
_SIZE = re.compile(r"\((\d{1,18}), *(\d{1,18}), *(\d{1,18})\)")
_ID_DIGITS_MAX = 19
_LAUNCH_COLUMNS = frozenset({"ID", "CC", "Context", "Stream", "Device", "", "launch__tpc_enabled"})
_DETAILS_COLUMNS = ("Section Name", "Metric Name", "Metric Unit", "Metric Value")
_CLOCK = re.compile("clock|frequency")
_DISPLAY_NAME = f"{DEVICE_ATTRIBUTE}display_name"
_RANGES = (":Push/Pop_Range:", ":Start/Stop_Range:")
_RANGE_FIELDS = 6  # after the name of a range, each after a colon
_SAME = 0.02  # relative difference of one value that is scaled and rounded from one that is not


@dataclass(slots=True)
class CsvContent:
    """Content of a text: its tables and messages. `tables`: number found."""

    file: str
    launches: list[Launch] = field(default_factory=list)
    rejects: RejectCounter = field(default_factory=RejectCounter)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    tables: int = 0
    cut: bool = False
    other_locale: bool = False

    def message(self, record: str) -> None:
        """Keep an error or a warning of the profiler."""
        match = _MESSAGE.search(record)
        if match is None:
            return
        messages = self.errors if match[1] == "ERROR" else self.warnings
        text = encodable(match[2].strip()[:_MESSAGE_LENGTH_MAX])
        if text and text not in messages and len(messages) < _MESSAGES_MAX:
            messages.append(text)

    def number(self, cell: str, metric: str, factor: float) -> float | None:
        """Return the number of a cell in base units; None for text, empty cells and rejects."""
        value = _number(cell)
        if value is not None and isfinite(value * factor):
            return value * factor
        if value is not None:
            self.rejects.add(TOO_LARGE, metric, cell)
        elif cell.lstrip("+-")[:1].isdecimal():
            self.other_locale |= _OTHER_LOCALE.fullmatch(cell) is not None
            self.rejects.add(NOT_C_LOCALE, metric, cell)
        return None


@lru_cache(maxsize=1 << 14)
def _number(cell: str) -> float | None:
    """Return the number as the C locale writes it.

    Instances behind the value, as in `6 (1; 2; 3)`, are left out.

    >>> _number("1,205.50"), _number("65,77"), _number("6 (1; 5)"), _number("n/a")
    (1205.5, None, 6.0, None)
    """
    text = cell.partition(" (")[0]
    return float(text.replace(",", "")) if _NUMBER.fullmatch(text) else None


def _row_of_numbers(
    cells: Sequence[str], factors: Sequence[float]
) -> Sequence[float | None] | None:
    """Return the numbers of cells that are all numbers or empty, times their factors, at once.

    None: a cell is neither, or a product is no number.

    >>> _row_of_numbers(["1,205.50", "", "3"], [1.0, 1.0, 1e3]), _row_of_numbers(["1", "nan"], [1.0, 1.0])
    ([1205.5, None, 3000.0], None)
    """
    text = ";".join(cells)
    if _ROW.fullmatch(text) is None or text.count(";") >= len(cells):
        return None
    texts = text.replace(",", "").split(";")
    numbers = [
        float(cell) * factor if cell else None for cell, factor in zip(texts, factors, strict=True)
    ]
    return numbers if isfinite(sum(number or 0.0 for number in numbers)) else None


def read_csv(lines: Iterable[str], content: CsvContent) -> None:
    """Add the tables of these lines; skip other text between them."""
    table: _RawTable | _DetailsTable | None = None
    for record in _records(lines):
        header = _header(record)
        if header is not None:
            _end(table)
            content.tables += 1
            table = (
                _DetailsTable(header, content)
                if "Metric Name" in header
                else _RawTable(header, content)
            )
        elif table is None or not record.startswith('"'):
            content.message(record)
        else:
            _take(table, record, content)
    _end(table)


def _records(lines: Iterable[str]) -> Iterator[str]:
    """Yield records: one line, or several for quoted line breaks.

    A line with which a row begins ends a record whose quote was never closed.
    """
    parts: list[str] = []
    length = 0
    for line in lines:
        if parts and (length > _RECORD_MAX or _BEGINS_ROW.match(line)):
            yield "".join(parts)
            parts, length = [], 0
        odd = line.count('"') % 2 == 1
        if not parts and not (odd and line.startswith('"')):
            yield line
            continue
        parts.append(line)
        length += len(line)
        if odd and len(parts) > 1:
            yield "".join(parts)
            parts, length = [], 0
    if parts:
        yield "".join(parts)


def _header(record: str) -> list[str] | None:
    """Return the column names at the start of a table; program output may precede them."""
    start = record[:_HEADER_WITHIN].find('"ID","')
    if start < 0 or '"Kernel Name"' not in record[:_HEADER_WITHIN]:
        return None
    names = _cells(record[start:])
    if names is None or {"Address", "Source", "SASS"} & set(names):  # one row per instruction
        return None
    is_details = set(_DETAILS_COLUMNS) <= set(names)
    is_raw = any("__" in name for name in names)
    return list(map(encodable, names)) if is_details or is_raw else None


def _cells(record: str) -> list[str] | None:
    """Return the cells of a record; None for an open quote or a cell beyond the limit."""
    try:
        return next(csv.reader([record.rstrip("\r\n")], strict=True), [])
    except csv.Error:
        return None


def _take(table: _RawTable | _DetailsTable, record: str, content: CsvContent) -> None:
    """Hand a row to the table. A row without a line end that is not whole was cut with the file."""
    row = _cells(record)
    whole = row is not None and len(row) >= table.needed
    if not record.endswith(("\n", "\r")) and not (whole and record.endswith('"')):
        content.cut = True
    elif row is None or not whole:
        content.rejects.add(BAD_ROW, None, record)
    else:
        table.take(row)


def _end(table: _RawTable | _DetailsTable | None) -> None:
    if table is not None:
        table.end()


class _LaunchTable:
    """Columns of both pages that identify a launch. `needed`: minimum cells per row."""

    def __init__(self, names: Sequence[str], needed: int, content: CsvContent) -> None:
        self.needed = needed
        self._names = names
        self._places = {name: place for place, name in reversed(list(enumerate(names)))}
        self._content = content
        self._ranges = [place for place, name in enumerate(names) if _is_range(name)]
        self._chips: dict[tuple[object, ...], Chip] = {}

    def _text(self, row: Sequence[str], name: str) -> str:
        """Return the text in a column; "" if the column is missing."""
        place = self._places.get(name)
        return "" if place is None else encodable(row[place].strip())

    def _number_of(self, row: Sequence[str]) -> int | None:
        """Return the launch ID of a row; None, and a reject, without ID or name."""
        number = self._text(row, "ID")
        if number.isdecimal() and len(number) < _ID_DIGITS_MAX and self._text(row, "Kernel Name"):
            return int(number)
        self._content.rejects.add(BAD_ROW, None, ",".join(row[:8]))
        return None

    def _launch(
        self,
        row: Sequence[str],
        number: int,
        metrics: Mapping[str, float],
        attributes: Mapping[str, float],
        device: str,
    ) -> Launch:
        """Return the launch of a row. `device`: GPU name; "" or an ordinal is no name."""
        name = None if not device or device.isdecimal() else device
        capability = self._text(row, "CC") or capability_of(attributes)
        chip = self._chips.setdefault(
            (name, capability, *attributes.items()), Chip(name, capability, attributes)
        )
        ranges = (encodable(range_) for place in self._ranges for range_ in nvtx_ranges(row[place]))
        grid, block = (_dimensions(self._text(row, f"{side} Size")) for side in ("Grid", "Block"))
        return Launch(
            kernel=sys.intern(self._text(row, "Kernel Name")),
            metrics=metrics,
            chip=chip,
            report=self._content.file,
            number=number,
            grid=grid or size_from_metrics(metrics, "launch__grid_dim_"),
            block=block or size_from_metrics(metrics, "launch__block_dim_"),
            ranges=tuple(ranges),
        )


class _RawTable(_LaunchTable):
    """Raw page: one row of units, then one row per launch and one column per metric."""

    def __init__(self, names: Sequence[str], content: CsvContent) -> None:
        super().__init__(names, len(names), content)
        self._columns = {name: place for name, place in self._places.items() if _is_metric(name)}
        self._attributes = [name for name in self._columns if name.startswith(DEVICE_ATTRIBUTE)]
        self._factors: list[float] | None = None  # of the columns

    def take(self, row: Sequence[str]) -> None:
        """Read a row: the units, or a launch."""
        if self._factors is None and not self._text(row, "Kernel Name"):
            self._factors = [_factor(name, row[place]) for name, place in self._columns.items()]
        elif self._factors is None:
            self._content.rejects.add(NO_UNITS, None, ",".join(row[:8]))
        elif (number := self._number_of(row)) is not None:
            metrics = self._values(row, self._factors)
            attributes = {
                name.removeprefix(DEVICE_ATTRIBUTE): metrics.pop(name)
                for name in self._attributes
                if name in metrics
            }
            device = self._text(row, _DISPLAY_NAME) or self._text(row, "Device")
            self._content.launches.append(self._launch(row, number, metrics, attributes, device))

    def end(self) -> None:
        """End the table; every launch was handed over with its row."""

    def _values(self, row: Sequence[str], factors: Sequence[float]) -> dict[str, float]:
        """Return the numbers of the launch and of its GPU, in base units."""
        cells = [row[place] for place in self._columns.values()]
        numbers = _row_of_numbers(cells, factors)
        if numbers is None:
            numbers = [
                self._content.number(cell, name, factor) if cell else None
                for cell, name, factor in zip(cells, self._columns, factors, strict=True)
            ]
        return {
            name: number
            for name, number in zip(self._columns, numbers, strict=True)
            if number is not None
        }


@dataclass(slots=True)
class _DetailsLaunch:
    """A launch with rows still to come. `row`: its first."""

    row: Sequence[str]
    number: int
    device: str
    metrics: dict[str, float] = field(default_factory=dict)
    attributes: dict[str, float] = field(default_factory=dict)


class _DetailsTable(_LaunchTable):
    """Details page: one row per launch and metric; rows of rules name no metric."""

    def __init__(self, names: Sequence[str], content: CsvContent) -> None:
        super().__init__(names, 1 + names.index("Metric Value"), content)
        self._launches: dict[tuple[str, ...], _DetailsLaunch] = {}

    def take(self, row: Sequence[str]) -> None:
        """Read a row."""
        launch = self._launches.get(key := tuple(row[: self._places["Section Name"]]))
        if launch is None:
            if (number := self._number_of(row)) is None:
                return
            launch = self._launches[key] = _DetailsLaunch(row, number, self._text(row, "Device"))
        section, label, unit, cell = (self._text(row, name) for name in _DETAILS_COLUMNS)
        metric = metric_of(section, label)
        if metric == _DISPLAY_NAME:
            launch.device = cell or launch.device
        elif metric is not None:
            self._keep(launch, metric, self._content.number(cell, metric, _factor(metric, unit)))

    def end(self) -> None:
        """Deliver the launches; the last one is incomplete if the file was cut."""
        launches = list(self._launches.values())
        for launch in launches[: -1 if self._content.cut else None]:
            self._content.launches.append(
                self._launch(
                    launch.row, launch.number, launch.metrics, launch.attributes, launch.device
                )
            )

    def _keep(self, launch: _DetailsLaunch, metric: str, value: float | None) -> None:
        """Keep a metric's value from the first of several sections."""
        if value is None:
            return
        is_attribute = metric.startswith(DEVICE_ATTRIBUTE)
        values = launch.attributes if is_attribute else launch.metrics
        first = values.setdefault(metric.removeprefix(DEVICE_ATTRIBUTE), value)
        if not isclose(first, value, rel_tol=_SAME):
            self._content.rejects.add(TWO_VALUES, metric, f"{first:g} and {value:g}")


def _is_range(column: str) -> bool:
    """Whether the column lists NVTX ranges."""
    return any(mark in column for mark in _RANGES)


def _is_metric(column: str) -> bool:
    """Whether a column of the raw page is a metric: launch columns have fixed names."""
    return " " not in column and column not in _LAUNCH_COLUMNS and not _is_range(column)


def _factor(metric: str, unit: str) -> float:
    """Return the factor to the base unit; of attributes, clocks are in kHz."""
    is_clock = metric.startswith(DEVICE_ATTRIBUTE) and _CLOCK.search(metric) is not None
    return unit_factor(unit) / 1e3 if is_clock and unit.strip() else unit_factor(unit)


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
