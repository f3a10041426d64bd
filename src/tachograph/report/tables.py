"""Text tables that fit a width: alignment, and which columns shrink or are hidden.

All tables that reports print as lines are made here, so that one order decides what a narrow
terminal loses: first bars, then units and long titles, then the ends of long names, then whole
columns, which are named below the table. What others wrote is made printable here, too, before it
is measured.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeVar

from tachograph.catalog.units import printable
from tachograph.report.lines import Line, plain, wrapped

_LEAST_FOLDED = 8  # characters of a column whose cells are continued on the next line
K = TypeVar("K")


@dataclass(frozen=True, slots=True, eq=False)
class TextColumn:
    """A column of a table: title, one cell per row, and how it shrinks when the width is short.

    bar: drawings, which are hidden first and not named as hidden. short, bare: title, and cells
    (without units), of a narrow table. least: minimum width to which cells may be cut, by `shorten`
    if given; None: never cut. hide: columns with the lowest number are hidden first; None: never
    hidden. folds: cells continue on the next line instead of being cut, down to `_LEAST_FOLDED`
    characters if nothing else can shrink.
    """

    title: str
    cells: Sequence[str]
    right: bool = False
    bar: bool = False
    short: str | None = None
    bare: Sequence[str] | None = None
    least: int | None = None
    shorten: Callable[[int], Sequence[str]] | None = None
    hide: int | None = None
    folds: bool = False


@dataclass(frozen=True, slots=True)
class TextTable:
    """A fitted table: its lines, titles first; titles of `hidden` columns; narrow: some are
    short.
    """

    lines: tuple[Line, ...]
    hidden: tuple[str, ...] = ()
    narrow: bool = False

    def with_note(self, *before: str, width: int) -> list[Line]:
        """Return the lines, followed by a note: `before`, and the names of hidden columns."""
        parts = [*before, *([f"hidden columns: {', '.join(self.hidden)}"] if self.hidden else [])]
        return [*self.lines, *(wrapped("; ".join(parts), width, style="dim") if parts else [])]


# what gives way, one after the other: (bars are there, short titles and bare cells, long names are
# cut)
_STAGES = ((True, False, False), (False, False, False), (False, True, False), (False, True, True))


def fit_table(
    columns: Sequence[TextColumn], width: int | None = None, *, gap: int = 2
) -> TextTable:
    """Return the columns as a table at most `width` wide, if they can shrink; None: unlimited.

    gap: blanks between columns.

    >>> made = fit_table([TextColumn("job", ["17"]), TextColumn("user", ["ann"], hide=1)], 6)
    >>> made.hidden, [line[0][0] for line in made.lines]
    (('user',), ['job', '17'])
    """
    room = sys.maxsize if width is None else width
    kept, narrow = _fitting(columns, room, gap)
    fixed = {one: one.needed for one in kept if one.column.hide is None}
    steps = [(one, one.needed) for one in reversed(kept) if one not in fixed]
    steps.sort(key=lambda step: -(step[0].column.hide or 0))
    widths = fitted_widths(fixed, steps, room, gap=gap)
    hidden = [one.column for one in kept if one not in widths]
    if hidden:
        # The room of the hidden columns may suffice for what gave way before them.
        kept, narrow = _fitting([one for one in columns if one not in hidden], room, gap)
    titles = tuple(column.title for column in hidden)
    return TextTable(tuple(_aligned(kept, room, gap)), titles, narrow)


def _fitting(columns: Sequence[TextColumn], room: int, gap: int) -> tuple[list[_Fitted], bool]:
    """Return the columns at the first stage that fits, else at the last; whether it is narrow."""
    for bars, narrow, cut_names in _STAGES:
        kept = [
            _Fitted(column, narrow=narrow, cut_names=cut_names)
            for column in columns
            if bars or not column.bar
        ]
        if _total(kept, gap) <= room:
            break
    return kept, narrow


def fitted_widths(
    fixed: Mapping[K, int], steps: Iterable[tuple[K, int]], room: int, *, gap: int
) -> dict[K, int]:
    """Return {column: characters} of the columns that fit into `room`, `gap` blanks between them.

    fixed: columns that are always there. steps: (column, characters) by importance; one that does
    not fit is left out, one of a column that is there widens it.

    >>> fitted_widths({"job": 4}, [("user", 8), ("sm", 4), ("job", 7)], 12, gap=1)
    {'job': 7, 'sm': 4}
    """
    widths = dict(fixed)
    left = room - sum(widths.values()) - gap * (len(widths) - 1)
    for column, width in steps:
        more = width - widths[column] if column in widths else width + gap
        if more <= left:
            widths[column] = width
            left -= more
    return widths


def cut(text: str, width: int) -> str:
    """Return a text in at most `width` characters.

    >>> cut("imbalance", 9), cut("imbalance", 5)
    ('imbalance', 'imba…')
    """
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


class _Fitted:
    """A column at one stage of fitting: title, cells, minimum width, and the width it could use."""

    def __init__(self, column: TextColumn, *, narrow: bool, cut_names: bool) -> None:
        self.column = column
        self.title = column.short if narrow and column.short is not None else column.title
        self.cells = [
            *map(printable, column.bare if narrow and column.bare is not None else column.cells)
        ]
        self.natural = max(map(len, (self.title, *self.cells)))
        least = column.least if cut_names and column.least is not None else self.natural
        self.needed = max(len(self.title), min(self.natural, least))

    def of_width(self, width: int) -> Sequence[str]:
        """Cells cut to `width`; folding columns stay unchanged."""
        if self.column.folds:
            return self.cells
        if width < self.natural and self.column.shorten is not None:
            return [*map(printable, self.column.shorten(width))]
        return [cut(cell, width) for cell in self.cells]


def _total(columns: Sequence[_Fitted], gap: int) -> int:
    return sum(column.needed + gap for column in columns) - gap


def _widths(columns: Sequence[_Fitted], room: int, gap: int) -> list[int]:
    """Return the width of each column; shrinking columns share the remaining room."""
    widths, spare = [column.needed for column in columns], room - _total(columns, gap)
    missing = [max(0, column.natural - column.needed) for column in columns]
    for nth, place in enumerate(sorted(range(len(columns)), key=missing.__getitem__)):
        more = min(missing[place], max(0, spare) // (len(columns) - nth))
        widths[place] += more
        spare -= more
    least = {
        place: max(_LEAST_FOLDED, len(one.title))
        for place, one in enumerate(columns)
        if one.column.folds
    }
    while spare < 0 and (wide := [place for place in least if widths[place] > least[place]]):
        widths[max(wide, key=widths.__getitem__)] -= 1
        spare += 1
    return widths


def _aligned(columns: Sequence[_Fitted], room: int, gap: int) -> Iterator[Line]:
    widths = _widths(columns, room, gap)
    cells = [column.of_width(wide) for column, wide in zip(columns, widths, strict=True)]
    titles = [column.title for column in columns]
    layouts = [
        f"{'>' if one.column.right else '<'}{wide}"
        for one, wide in zip(columns, widths, strict=True)
    ]
    style = "bold"
    for row in (titles, *zip(*cells, strict=True)):
        parts = [_folded(cell, wide) for cell, wide in zip(row, widths, strict=True)]
        for part in zip_longest(*parts, fillvalue=""):
            words = map(format, part, layouts)
            yield plain((" " * gap).join(words).rstrip(), style)
        style = ""


def _folded(cell: str, width: int) -> Sequence[str]:
    """A cell in lines of at most `width` characters."""
    return [cell] if len(cell) <= width else textwrap.wrap(cell, width)
