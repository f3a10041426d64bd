"""Parts of text screens: rows of segments, side by side or below each other, drawn where visible.

A row is a list of segments. Screens make their rows of a view by pure functions; `Page` and
`KeptLines` scroll and draw.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import lru_cache
from itertools import pairwise
from textwrap import wrap
from typing import Protocol, TypeAlias

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tachograph.annexes.watch.live.looks import MISSING
from tachograph.annexes.watch.live.view import FleetView
from tachograph.annexes.watch.tui import colours
from tachograph.catalog.units import printable, text

Pieces = list[tuple[str, Style]]


class KeptLines(ScrollView):
    """Lines drawn on demand by `line`, titles included; `draw` renders visible ones."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[Strip] = []  # the visible ones
        self._pieces: list[Pieces] = []  # of which they are made

    def line(self, y: int) -> Pieces:
        """Return a visible line."""
        raise NotImplementedError

    @property
    def line_width(self) -> int:
        """Characters per line, without the scroll bar."""
        return self.scrollable_content_region.width or self.size.width

    def draw(self) -> None:
        """Make the visible lines; send changed ones to the terminal."""
        width = self.line_width
        pieces = [self.line(y) for y in range(self.size.height)]
        before, self._pieces = self._pieces, pieces
        lines = self.lines
        if len(lines) != len(pieces) or not lines or lines[0].cell_length != width:
            self.lines = [strip_of(row).adjust_cell_length(width) for row in pieces]
            self.refresh()
            return
        changed = [y for y, row in enumerate(pieces) if row != before[y]]
        for y in changed:
            lines[y] = strip_of(pieces[y]).adjust_cell_length(width)
        if changed:
            self.refresh(*regions(changed, width))

    def render_line(self, y: int) -> Strip:
        """Return a line that was made."""
        return self.lines[y] if y < len(self.lines) else Strip.blank(self.size.width)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Draw lines that became visible."""
        super().watch_scroll_y(old_value, new_value)
        if round(old_value) != round(new_value):
            self.draw()

    def on_focus(self) -> None:
        """Show the cursor."""
        self.draw()

    def on_blur(self) -> None:
        """Hide the cursor."""
        self.draw()


def strip_of(row: Pieces) -> Strip:
    """Return pieces of text as a line of the screen."""
    return Strip([Segment(text, style) for text, style in row])


def regions(changed: list[int], width: int) -> list[Region]:
    """Return regions of ascending lines, with neighbours merged.

    >>> regions([2, 3, 7], 80) == [Region(0, 2, 80, 2), Region(0, 7, 80, 1)]
    True
    """
    starts = [changed[0], *(later for earlier, later in pairwise(changed) if later != earlier + 1)]
    ends = [*(earlier for earlier, later in pairwise(changed) if later != earlier + 1), changed[-1]]
    return [
        Region(0, start, width, end - start + 1) for start, end in zip(starts, ends, strict=True)
    ]


Row: TypeAlias = list[Segment]
_UNIT = re.compile(r"(\d) (%|°C|[kMGT]?i?B(?:/s)?|W|MHz|s|min|h)(?![\w])")


class PageRows(Protocol):
    """Rows of a page: a list, or a sequence that makes each when it is drawn."""

    def __len__(self) -> int:
        """Number of rows."""
        ...

    def __getitem__(self, index: int, /) -> Row:
        """One row."""
        ...


class Page(ScrollView, can_focus=True):
    """Rows that scroll. A screen overrides `rows`; its result may make each row when it is drawn.

    Rows are made when they are drawn, while the history may change: values that they need are read
    before.
    """

    DEFAULT_CSS = "Page { overflow-x: hidden; overflow-y: auto; scrollbar-size-vertical: 1; }"

    def __init__(self) -> None:
        super().__init__()
        self.view: FleetView | None = None
        self._rows: PageRows = []
        self._strips: dict[int, Strip] = {}

    def show(self, view: FleetView) -> None:
        """Show a new view."""
        self.view = view
        self._make()

    def again(self) -> None:
        """Make the rows again, for another size or after a key."""
        feed = getattr(self.app, "feed", None)
        with feed.lock if feed else nullcontext():
            self._make()

    def _make(self) -> None:
        if self.view is None or not self.size.width:
            return
        self._strips.clear()
        self._rows = self.rows(self.view, self.content_width, self.size.height)
        self.virtual_size = Size(self.size.width, len(self._rows))
        self.refresh()

    @property
    def content_width(self) -> int:
        """Characters of a row, without the scroll bar."""
        return max(1, self.size.width - 1)

    def rows(self, view: FleetView, width: int, height: int) -> PageRows:
        """Return all rows; called while the history does not change."""
        return []

    def on_resize(self) -> None:
        """Fit the new size."""
        self.again()

    def render_line(self, y: int) -> Strip:
        """Draw one visible line."""
        index = y + self.scroll_offset.y
        if index >= len(self._rows):
            return Strip.blank(self.size.width)
        strip = self._strips.get(index)
        if strip is None:
            strip = self._strips[index] = Strip(
                map(harmless, self._rows[index])
            ).adjust_cell_length(self.size.width)
        return strip


def harmless(segment: Segment) -> Segment:
    """Return a segment without control characters of a terminal, for any names in it."""
    if segment.text.isprintable():
        return segment
    return Segment(printable(segment.text), segment.style)


@lru_cache(maxsize=4096)
def filled(text: str, width: int, left_aligned: bool) -> str:
    """Return text of exactly `width` characters on the terminal, cut or filled.

    >>> filled("tensor-heavy", 8, True), filled("42%", 5, False)
    ('tensor-…', '  42%')
    """
    length = len(text) if text.isascii() else cell_len(text)
    if length > width:
        return set_cell_size(text, max(0, width - 1)) + ("…" if width > 0 else "")
    fill = " " * (width - length)
    return text + fill if left_aligned else fill + text


def cell(value: str, width: int, style: Style = colours.PLAIN, *, right: bool = False) -> Segment:
    """Return text as a segment of exactly `width` characters.

    >>> cell("größe", 7).text, cell("long name", 4).text, cell("5 %", 5, right=True).text
    ('größe  ', 'lon…', '  5 %')
    """
    return Segment(filled(printable(value), width, not right), style)


def under_cursor(row: Row) -> Row:
    """Return the row that the cursor is on."""
    return [Segment(part.text, (part.style or colours.PLAIN) + colours.CURSOR) for part in row]


def heading(title: str, width: int, note: str = "") -> Row:
    """Return a line that begins a part.

    >>> "".join(part.text for part in heading("Health", 20, "note"))
    '── Health ──── note '
    """
    note = f" {note} " if note and cell_len(title) + cell_len(note) + 8 <= width else ""
    line = max(0, width - cell_len(title) - cell_len(note) - 4)
    return [
        Segment("── ", colours.DIM),
        Segment(title, colours.BOLD),
        Segment(f" {'─' * line}{note}", colours.DIM),
    ]


def paragraph(
    words: str, width: int, style: Style = colours.PLAIN, *, indent: int = 0
) -> list[Row]:
    """Return wrapped text, numbers kept with their units, later rows indented more.

    >>> [row[0].text for row in paragraph("one two, 30 %", 9, indent=2)]
    ['  one two,', '    30 %']
    """
    glued = _UNIT.sub("\\1\u00a0\\2", words)
    lines = wrap(
        glued,
        max(10, width),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent and indent + 2),
    )
    return [[Segment(line.replace("\u00a0", " "), style)] for line in lines]


def flow(parts: Iterable[Row], width: int) -> list[Row]:
    """Return parts in sequence over as many rows as needed, unbroken.

    >>> [len(row) for row in flow([[Segment("one ")], [Segment("two ")], [Segment("three ")]], 9)]
    [2, 1]
    """
    rows: list[Row] = [[]]
    filled_width = 0
    for part in parts:
        length = sum(segment.cell_length for segment in part)
        if filled_width and filled_width + length > width:
            rows.append([])
            filled_width = 0
        rows[-1].extend(part)
        filled_width += length
    return rows


def side_by_side(
    blocks: Sequence[Sequence[Row]], widths: Sequence[int], *, gap: int = 2
) -> list[Row]:
    """Return blocks of rows next to each other, each of its width.

    >>> rows = side_by_side([[[Segment("a")], [Segment("b")]], [[Segment("c")]]], [3, 1], gap=1)
    >>> ["".join(part.text for part in row) for row in rows]
    ['a   c', 'b    ']
    """
    rows: list[Row] = []
    for line in range(max((len(block) for block in blocks), default=0)):
        together: Row = []
        for index, (block, width) in enumerate(zip(blocks, widths, strict=True)):
            row = block[line] if line < len(block) else []
            together.extend([Segment(" " * gap)] if index else [])
            together.extend(Segment.adjust_line_length(row, width))
        rows.append(together)
    return rows


def quantity(value: float | None, unit: str) -> str:
    """Return a formatted number, or MISSING.

    >>> quantity(0.423, "fraction"), quantity(float("nan"), "W")
    ('42 %', '-')
    """
    return MISSING if value is None or value != value else text(value, unit)


def clock(t: float, now: float | None = None) -> str:
    """Return the local time of day, with the date if `now` is a day or more later."""
    return time.strftime(
        "%H:%M:%S" if now is None or now - t < 86400 else "%m-%d %H:%M", time.localtime(t)
    )


def join_parts(parts: Iterable[str]) -> str:
    """Join non-empty parts in one line.

    >>> join_parts(["a", "", "b"])
    'a · b'
    """
    return " · ".join(part for part in parts if part)
