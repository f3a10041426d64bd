"""Cells of a CSV of Nsight Compute: records, numbers in any locale, and what both of its pages share."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from math import isfinite, nan
from operator import itemgetter
from typing import Literal, NamedTuple, Protocol

from tachograph.nsight.launches import (
    DEFAULT_DOMAIN,
    DEVICE_ATTRIBUTE,
    Chip,
    Launch,
    RejectCounter,
    RuleResult,
    capability_of,
    encodable,
)
from tachograph.nsight.metrics import unit_factor

_LONGEST_RECORD = 1 << 20  # characters of a record over several lines, after which its quote counts as never closed
_HEADER_WITHIN = 4000  # characters that contain the names of a launch's own columns
_BEGINS_ROW = re.compile(r'"(?:\d+|ID|Process ID)","|==[A-Z]+==')
_MESSAGE = re.compile(r"==(PROF|ERROR|WARNING)==\s*(.*)")
_MOST_MESSAGES = 200
_LONGEST_MESSAGE = 500  # characters that are kept of one


def records(lines: Iterable[str]) -> Iterator[str]:
    """Yield records with their line ends: a line, or several where a quoted cell has line breaks.

    A line with which something new begins ends a record whose quote was never closed.
    """
    held: list[str] = []
    length = 0
    for line in lines:
        if held and (length > _LONGEST_RECORD or _BEGINS_ROW.match(line)):
            yield "".join(held)
            held, length = [], 0
        odd = line.count('"') % 2
        if held:
            held.append(line)
            length += len(line)
            if odd:
                yield "".join(held)
                held, length = [], 0
        elif odd and line.startswith('"'):
            held, length = [line], len(line)
        else:
            yield line
    if held:
        yield "".join(held)


def cells(record: str) -> list[str] | None:
    r"""Return the cells of a record; None where a quote is not closed.

    >>> cells('"0","void f<int, 2>(""x"")"\n'), cells('"0","void')
    (['0', 'void f<int, 2>("x")'], None)
    """
    if record.startswith('"'):
        row = record.rstrip("\r\n")[1:-1].split('","')
        if record.count('"') == 2 * len(row) and record.rstrip("\r\n").endswith('"'):
            return row  # every quote opens or closes a cell, so none is within one
    if len(record) <= csv.field_size_limit():
        return _strict(record)
    with _room_for(record):
        return _strict(record)


def _strict(record: str) -> list[str] | None:
    try:
        return next(csv.reader([record], strict=True), [])
    except csv.Error:
        return _loose(record)


@contextmanager
def _room_for(record: str) -> Iterator[None]:
    """Let a cell be as long as the record. The limit is one for the whole process, whose other readers keep theirs."""
    limit = csv.field_size_limit(len(record))
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _loose(record: str) -> list[str] | None:
    """Return the cells of a record with line breaks inside quotes; the CSV reader takes it line by line."""
    try:
        return next(csv.reader(record.splitlines(keepends=True), strict=True), [])
    except csv.Error:
        return None


def fitted(row: list[str], columns: int) -> bool:
    """Whether the row has no more cells than there are columns, but for a comma at its end."""
    return len(row) <= columns or (len(row) == columns + 1 and not row[-1])


def ended(record: str) -> bool:
    """Whether the record has a line end: the last of a file that was cut has none."""
    return record.endswith(("\n", "\r"))


def header(record: str) -> list[str] | None:
    """Return the names of the columns where a table of Nsight Compute begins, else None.

    Output of the application without a line end may precede it.
    """
    if "Kernel Name" not in record[:_HEADER_WITHIN]:
        return None
    places = (record.find(first) for first in ('"ID","', '"Process ID","'))
    start = next((place for place in places if place >= 0), 0)
    names = cells(record[start:])
    if names is None:
        return None
    names = [encodable(name.strip().removeprefix("\ufeff")) for name in names]
    return names if "Kernel Name" in names and (is_details(names) or is_raw(names)) else None


def is_details(names: list[str]) -> bool:
    """Whether these are columns of the details page: one row per launch and metric."""
    return "Metric Name" in names and ("Metric Value" in names or "Average" in names)


def is_raw(names: list[str]) -> bool:
    """Whether these are columns of the raw page: one row per launch, one column per metric.

    The source page has columns of metrics too, and one row per instruction.
    """
    return any("__" in name for name in names) and not {"Address", "Source", "SASS"} & set(names)


@dataclass(slots=True)
class Messages:
    """What the profiler itself wrote, each message once."""

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    any: bool = False  # something at all, also that it connected

    def note(self, record: str) -> bool:
        """Keep the message in a record; False where there is none."""
        found = _MESSAGE.search(record) if "==" in record else None
        if found is None:
            return False
        self.any = True
        kept = {"ERROR": self.errors, "WARNING": self.warnings}.get(found[1])
        text = found[2].strip()[:_LONGEST_MESSAGE]
        if kept is not None and text and text not in kept and len(kept) < _MOST_MESSAGES:
            kept.append(text)
        return True


Decimal = Literal[".", ","]

# separators of groups of digits, besides point and comma: spaces of all widths, the byte 0xA0 of files that
# are not UTF-8, apostrophes
_GAPS = " \u00a0\u202f\u2009\udca0'\u2019"
_LONGEST = 40  # characters of a number, above which it is none
_ENOUGH = 50  # numbers that determine the decimal sign before the others are read at once
_KNOWN_MAX = 1 << 14  # cells of which the number is kept: percentages and sizes repeat
_MANY = 20  # times more often than the other sign, so that the other is taken for damage
_NO_VALUE = frozenset({"", "n/a", "na", "nan", "-nan", "inf", "-inf", "+inf", "no data", "none", "null", "-", "<n/a>"})

NO_VALUE = "no value"
NOT_A_NUMBER = "not a number"
AMBIGUOUS = "a number that can be read in two ways"
OTHER_LOCALE = "a number written in another way than the rest of the file"


def _number(decimal: str, grouping: str) -> re.Pattern[str]:
    gaps = re.escape(grouping + _GAPS)
    whole = rf"(?:[0-9]+|[1-9][0-9]{{0,2}}(?P<gap>[{gaps}])[0-9]{{3}}(?:(?P=gap)[0-9]{{3}})*)"
    return re.compile(rf"[+-]?{whole}(?:{re.escape(decimal)}[0-9]+)?(?:[eE][+-]?[0-9]+)?")


_PATTERNS: dict[Decimal, re.Pattern[str]] = {".": _number(".", ","), ",": _number(",", ".")}
_DROPPED: dict[Decimal, dict[int, str | None]] = {
    ".": {ord(c): None for c in "," + _GAPS},
    ",": {**{ord(c): None for c in "." + _GAPS}, ord(","): "."},
}


class _Waiting(NamedTuple):
    text: str
    column: str
    put: Callable[[float], None]


@dataclass(frozen=True, slots=True)
class _Plain:
    """How most numbers of a file look. `decimal` None: not known yet, so only integers; `gap`: between thousands."""

    decimal: Decimal | None
    gap: str
    number: re.Pattern[str]
    row: re.Pattern[str]  # of numbers, each behind a semicolon but the first; one may be missing

    @classmethod
    @cache
    def of(cls, decimal: Decimal | None, gap: str) -> _Plain:
        """Return how numbers look. What matches is read as `_ways` reads it, once the decimal sign is known."""
        fraction = rf"(?:{re.escape(decimal)}[0-9]{{1,18}}+)?+" if decimal else ""
        grouped = rf"[1-9][0-9]{{0,2}}+(?:{re.escape(gap)}[0-9]{{3}}){{1,4}}+(?![0-9])|" if gap else ""
        number = rf"-?(?:{grouped}[0-9]{{1,18}}+){fraction}"
        return cls(decimal, gap, re.compile(number), re.compile(rf"(?:{number})?+(?:;(?:{number})?+)*+"))

    def bare(self, text: str) -> str:
        """Return numbers that match as Python writes them."""
        text = text.replace(self.gap, "") if self.gap else text
        return text.replace(",", ".") if self.decimal == "," else text


@dataclass(slots=True)
class CellNumbers:
    """Reads the cells of one file; a cell that can be read in two ways waits until the decimal sign is known."""

    counted: RejectCounter
    _plain: _Plain = field(default_factory=lambda: _Plain.of(None, ""))
    _known: dict[str, float] = field(default_factory=dict)
    _votes: dict[Decimal, int] = field(default_factory=lambda: {".": 0, ",": 0})
    _waiting: list[_Waiting] = field(default_factory=list)

    @property
    def decimal(self) -> Decimal | None:
        """The decimal sign of the file; None: not known yet."""
        return self._plain.decimal

    def quick(self, text: str) -> float | None:
        """Return the number in a cell that is plain digits as this file writes them, else None: call `read`."""
        value = self._known.get(text)
        if value is None and self._plain.number.fullmatch(text) is not None:
            value = self._keep(text, float(self._plain.bare(text)))
        return value

    def row(self, cells: Sequence[str]) -> list[float] | None:
        """Return the numbers in cells that are plain digits, NaN for an empty cell; None where one is neither."""
        text = ";".join(cells)
        if self._plain.row.fullmatch(text) is None:
            return None
        bare = self._plain.bare(text).split(";")
        if len(bare) != len(cells):  # a semicolon is in a cell
            return None
        return [float(cell) if cell else nan for cell in bare] if "" in bare else list(map(float, bare))

    def read(self, cell: str, column: str, put: Callable[[float], None], *, whole: bool = False) -> None:
        """Hand the number in `cell` to `put`, now or in `finish`; count what is none under `column`.

        `whole`: it has no fraction, so a sign before three digits groups them; this determines the decimal sign.
        Of instances, as in `0 (1; 2; 3)`, the value before them counts. A percent sign is dropped.
        """
        text = _bare(cell)
        if text.lower() in _NO_VALUE:
            self.counted.add(NO_VALUE, column, cell)
            return
        ways = _ways(text)
        if whole and len(set(ways.values())) > 1:
            ways = dict([max(ways.items(), key=itemgetter(1))])
        if not ways:
            self.counted.add(NOT_A_NUMBER, column, cell)
        elif len(set(ways.values())) > 1:
            self._ambiguous(_Waiting(text, column, put), ways)
        else:
            self._evident(cell, column, ways, put)

    def finish(self) -> None:
        """Read what waits, now that the whole file was seen."""
        if self.decimal is None:
            known: list[Decimal] = [sign for sign, votes in self._votes.items() if votes]
            self._plain = _Plain.of(known[0] if len(known) == 1 else None, "")
        self._settle()

    def _evident(self, cell: str, column: str, ways: dict[Decimal, float], put: Callable[[float], None]) -> None:
        """Take a cell that can be read in one way, and count its decimal sign."""
        value = next(iter(ways.values()))
        if not isfinite(value):
            self.counted.add(NOT_A_NUMBER, column, cell)
            return
        if len(ways) == 1:
            (sign,) = ways
            if self.decimal is not None and sign != self.decimal:
                self.counted.add(OTHER_LOCALE, column, cell)
                return
            self._vote(sign)
        put(self._learn(cell, value))

    def _vote(self, sign: Decimal) -> None:
        if self.decimal is not None:
            return
        self._votes[sign] += 1
        other = self._votes["," if sign == "." else "."]
        if self._votes[sign] >= max(_ENOUGH, other * _MANY):
            self._plain = _Plain.of(sign, "")
            self._settle()

    def _learn(self, cell: str, value: float) -> float:
        """Return the number that a cell was found to hold, from now on without a full check of cells of that form."""
        if self.decimal is None:
            return value
        found = _PATTERNS[self.decimal].fullmatch(_bare(cell))
        if found is not None and found["gap"]:
            self._plain = _Plain.of(self.decimal, found["gap"])
        return self._keep(cell, value)

    def _keep(self, cell: str, value: float) -> float:
        if len(cell) > _LONGEST:  # with instances, up to millions of characters, and none like another
            return value
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[cell] = value
        return value

    def _ambiguous(self, waiting: _Waiting, ways: dict[Decimal, float]) -> None:
        if self.decimal is None:
            self._waiting.append(waiting)
        else:
            waiting.put(self._learn(waiting.text, ways[self.decimal]))

    def _settle(self) -> None:
        for text, column, put in self._waiting:
            if self.decimal is None:
                self.counted.add(AMBIGUOUS, column, text)
            else:
                put(_ways(text)[self.decimal])
        self._waiting.clear()


def _bare(cell: str) -> str:
    """Return the cell without white space around it, marks of warning, instances and percent sign."""
    text = cell.strip().removeprefix("(!)").strip()
    if text.endswith(")") and text.count("(") == text.count(")") == 1:
        text = text.partition("(")[0].rstrip()
    return text.removesuffix("%").strip()


def _ways(text: str) -> dict[Decimal, float]:
    """Return {decimal sign: the number that `text` is with it}, for each sign with which it is one.

    >>> _ways("1,205.00"), _ways("65,77"), _ways("1,205")
    ({'.': 1205.0}, {',': 65.77}, {'.': 1205.0, ',': 1.205})
    """
    return {
        sign: float(text.translate(_DROPPED[sign]))
        for sign, pattern in _PATTERNS.items()
        if len(text) <= _LONGEST and pattern.fullmatch(text) is not None
    }


UNKNOWN_UNIT = "a unit that is not known, or not of this metric"
NO_UNIT = "a value without its unit, which may be scaled"
TOO_FEW = "a row with too few cells"
TOO_MANY = "a row with too many cells"
NO_ID = "a row without an ID or a name of its kernel"
SURELY_BASE = 1000.0  # ncu scales what reaches it, so a value that did is in base units

_CLOCK = re.compile("clock|frequency")
_ID = re.compile(r"(\d{1,18})(?:\.0)?")
_WHOLE = re.compile(r"\d{1,18}")
_RANGES = (":Push/Pop_Range:", ":Start/Stop_Range:")
_RANGE_FIELDS = 6  # behind the name of a range, each after a colon


class LaunchTable(Protocol):
    """One table of a file. `needed`: how many cells a row has at least."""

    needed: int

    def take(self, row: list[str]) -> None:
        """Read a row."""

    def finish(self, cut: Sequence[str] | None) -> None:
        """End the table. `cut`: the cells that are left of a row that the end of the file cut; None: it was not cut."""


@dataclass(slots=True)
class GatheredLaunches:
    """What was read of one file. `lost`: launches of which the end of the file cut something."""

    file: str
    counted: RejectCounter
    numbers: CellNumbers
    launches: list[Launch] = field(default_factory=list)
    lost: int = 0
    summarised: int = 0  # rows of kernels of which only means over their launches were recorded
    _texts: dict[str, str] = field(default_factory=dict)
    _rules: dict[RuleResult, RuleResult] = field(default_factory=dict)

    def same_rule(self, said: RuleResult) -> RuleResult:
        """Return the same object for the same words of a rule, which launches of one kernel share."""
        return self._rules.setdefault(said, said)

    def same(self, text: str) -> str:
        """Return the same object for the same text: names repeat with each launch, and are kept."""
        return self._texts.setdefault(text, text)


@dataclass(frozen=True, slots=True)
class LaunchIdentity:
    """Places of the columns that identify the launch of a row; None: there is no such column."""

    kernel: int
    number: int | None
    grid: int | None
    block: int | None
    device: int | None
    capability: int | None
    ranges: tuple[int, ...]
    all: tuple[int, ...]

    @classmethod
    def of(cls, names: Sequence[str]) -> LaunchIdentity:
        """Return the places in these names of columns."""
        places = {name: place for place, name in reversed(list(enumerate(names)))}
        ranges = tuple(place for place, name in enumerate(names) if is_range(name))
        known = ("ID", "Process ID", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size", "Device", "CC")
        return cls(
            kernel=places["Kernel Name"],
            number=places.get("ID"),
            grid=places.get("Grid Size"),
            block=places.get("Block Size"),
            device=places.get("Device"),
            capability=places.get("CC"),
            ranges=ranges,
            all=tuple(sorted({places[name] for name in known if name in places} | set(ranges))),
        )

    def number_in(self, row: Sequence[str]) -> int | None:
        """Return the ID of the launch, None where the cell holds none."""
        found = _ID.fullmatch(row[self.number].strip()) if self.number is not None else None
        return int(found[1]) if found else None

    def ranges_in(self, row: Sequence[str]) -> tuple[str, ...]:
        """Return the NVTX ranges around the launch, outermost first."""
        return tuple(name for place in self.ranges for name in nvtx_ranges(row[place]))


def is_range(column: str) -> bool:
    """Whether the column lists NVTX ranges."""
    return any(mark in column for mark in _RANGES)


def nvtx_ranges(cell: str) -> tuple[str, ...]:
    """Return the names of the ranges in a cell, those of a domain as `domain@name`.

    >>> nvtx_ranges('13416  "<default domain>:forward:none:none:none:none:none:none"')
    ('forward',)
    """
    found = (text.rsplit(":", _RANGE_FIELDS)[0].partition(":") for text in _quoted(cell))
    return tuple(name if domain == DEFAULT_DOMAIN else f"{domain}@{name}" for domain, _, name in found)


def _quoted(cell: str) -> Iterator[str]:
    """Yield text that is in quotes and ends in the fields of a range: names of ranges have quotes and colons, too.

    By hand, as an expression would take the square of the length for a cell of many quotes or colons.
    """
    parts = cell.split('"')
    start = 1
    for end, part in enumerate(parts[:-1]):
        if end >= start and part.count(":") >= _RANGE_FIELDS:
            yield '"'.join(parts[start : end + 1])
            start = end + 2


@lru_cache(maxsize=4096)
def dimensions(cell: str | None) -> tuple[int, int, int] | None:
    """Return the size in x, y, z; None where the cell does not contain it.

    >>> dimensions("(384, 1, 1)"), dimensions("384")
    ((384, 1, 1), None)
    """
    numbers = [int(number) for number in _WHOLE.findall(cell)] if cell else []
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 else None


def cell_at(row: Sequence[str], place: int | None) -> str | None:
    """Return the cell without white space around it; None where there is no such column, or nothing in it."""
    return (encodable(row[place].strip()) or None) if place is not None else None


def attribute_of(metric: str) -> str | None:
    """Return the name of the attribute of the device, None for any other metric."""
    return metric.removeprefix(DEVICE_ATTRIBUTE) if metric.startswith(DEVICE_ATTRIBUTE) else None


def attribute_factor(attribute: str, unit: str) -> float | None:
    """Return the factor to the units of attributes: clocks in kHz, memory in byte. None: unknown unit.

    >>> attribute_factor("clock_rate", "Ghz"), attribute_factor("clock_rate", ""), attribute_factor("l2_cache_size", "")
    (1000000.0, 1.0, 1.0)
    """
    factor = unit_factor(unit)
    return factor / 1e3 if factor is not None and unit.strip() and _CLOCK.search(attribute) else factor


def chip_of(device: str | None, capability: str | None, attributes: Mapping[str, float]) -> Chip:
    """Return the chip. `device`: its name, or its ordinal, which does not identify the model."""
    named = device is not None and not _WHOLE.fullmatch(device)
    return Chip(device if named else None, capability or capability_of(attributes), attributes)
