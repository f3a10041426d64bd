"""Records of a text that holds tables of CSV among messages of the profiler and output of the application."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tachograph.nsight.counted import encodable

_LONGEST_RECORD = 1 << 20  # characters of a record over several lines, after which its quote counts as never closed
_HEADER_WITHIN = 4000  # characters in which the names of a launch's own columns stand
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
    """Return the cells of a record with line breaks inside quotes, which the reader wants line by line."""
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

    Output of the application without a line end may stand before it.
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
