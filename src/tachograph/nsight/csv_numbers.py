"""Numbers as Nsight Compute writes them into CSV: in the locale of whoever ran it.

`1,205.00`, `1.205,00` and `1 205,00` are one number, and `1,205` is one of two. Which it is, other numbers of the same
file tell; where none does, such a value is rejected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import isfinite, nan
from operator import itemgetter
from typing import Literal, NamedTuple

from tachograph.nsight.counted import Counted

Decimal = Literal[".", ","]

# what may stand between groups of digits beside point and comma: spaces of all widths, the byte 0xA0 of files that
# are not UTF-8, apostrophes
_GAPS = " \u00a0\u202f\u2009\udca0'\u2019"
_LONGEST = 40  # characters of a number, above which it is none
_ENOUGH = 50  # numbers that tell the decimal sign before the others are read at once
_KNOWN_MAX = 1 << 14  # cells of which the number is kept: percentages and sizes come again and again
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
    """How most numbers of a file look. `decimal` None: not told yet, so whole ones alone; `gap`: between thousands."""

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
class Numbers:
    """Reads the cells of one file; a cell that can be read in two ways waits until the file has told which it is."""

    counted: Counted
    _plain: _Plain = field(default_factory=lambda: _Plain.of(None, ""))
    _known: dict[str, float] = field(default_factory=dict)
    _votes: dict[Decimal, int] = field(default_factory=lambda: {".": 0, ",": 0})
    _waiting: list[_Waiting] = field(default_factory=list)

    @property
    def decimal(self) -> Decimal | None:
        """The decimal sign of the file; None: not told yet."""
        return self._plain.decimal

    def quick(self, text: str) -> float | None:
        """Return the number in a cell that is plain digits as this file writes them, else None: ask `read`."""
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

        `whole`: it has no fraction, so a sign before three digits groups them, which tells of other numbers, too.
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
            told: list[Decimal] = [sign for sign, votes in self._votes.items() if votes]
            self._plain = _Plain.of(told[0] if len(told) == 1 else None, "")
        self._settle()

    def _evident(self, cell: str, column: str, ways: dict[Decimal, float], put: Callable[[float], None]) -> None:
        """Take a cell that can be read in one way, and what it tells of the others."""
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
        """Return the number that a cell was found to hold, from now on without a closer look at cells that look so."""
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
