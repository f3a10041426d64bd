"""The heat map: a cell per GPU, node beside node, lettered and coloured by its limit or by the level of a number.

After the letter or digit is the sign of its health, so that hot or broken GPUs are visible at once. Cells are as
large as the screen permits; large ones hold a value, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.style import Style

from tachograph.catalog.arrays import Floats
from tachograph.catalog.counters import COUNTERS_BY_NAME as COUNTERS
from tachograph.judge.health import CRIT, HEALTH_UNKNOWN, OK, STATES
from tachograph.live.fleet_rows import COLUMN_ALIASES, FleetRows, number_name
from tachograph.live.looks import HEALTH_SIGNS
from tachograph.tui import colours
from tachograph.tui.fleet_table import COLUMNS, percent, short
from tachograph.tui.page import filled

BY_CLASS = "class"
CELL = 2  # characters, of the smallest
_VALUED, _TALLEST = 7, 3  # characters of a cell that holds a value; lines of one by its characters
# columns in the lower lines of a cell that holds values
_BELOW = tuple(column for column in COLUMNS if column.name in ("mem", "power", "temp"))
_SPLIT = 0.75  # worth of the area of a cell where nodes are split over lines
_GAP = 2  # between blocks
_LABEL = 20  # of a node's name, at most
_LEVELS = 10
_ABSENT = -1
_SIGNS = ("^ hot  ! !! fault", colours.ALARM)
_ABOVE = "letters as counted above  "


@dataclass(frozen=True, slots=True)
class CellSize:
    """Characters and lines of a cell, and the number of cells of a block."""

    width: int
    height: int
    members: int


@dataclass(frozen=True, slots=True)
class HeatSpot:
    """A GPU on the map: its row, line and column."""

    row: int
    y: int
    x: int


class HeatMap:
    """Blocks of nodes, from left to right and downwards. order: shown rows; by: class, or a number's name.

    height: lines that cells may fill; with 0 they have the least size.
    """

    def __init__(self, rows: FleetRows, order: Sequence[int], *, by: str, width: int, height: int = 0) -> None:
        self.rows, self.by, self._width = rows, by, width
        self._label = min(_LABEL, max((len(rows.text("node")[row]) for row in order), default=0))
        nodes = self._nodes(order)
        self._cells = self._fitted([len(members) for members in nodes], width, height)
        self._lines = self._laid_out(nodes, width)
        self._spots = {
            row: HeatSpot(row, y * self._cells.height, x + self._label + 1 + self._cells.width * place)
            for y, blocks in enumerate(self._lines)
            for x, members in blocks
            for place, row in enumerate(members)
        }
        self._low, self._high = (0.0, 1.0) if by == BY_CLASS else _range(rows, by)
        self._levels = None if by == BY_CLASS else levels(rows.number(by), self._low, self._high).tolist()

    @property
    def height(self) -> int:
        """Number of lines."""
        return len(self._lines) * self._cells.height

    def spot(self, row: int) -> HeatSpot | None:
        """Position of a GPU; None if it is not shown."""
        return self._spots.get(row)

    def at(self, x: int, y: int) -> int | None:
        """The row of the GPU at a place of the map, or None."""
        if 0 <= y < self.height:
            for left, members in self._lines[y // self._cells.height]:
                place = (x - left - self._label - 1) // self._cells.width
                if 0 <= place < len(members) and x > left + self._label:
                    return members[place]
        return None

    def moved(self, row: int, dx: int, dy: int) -> int:
        """The row of the GPU to which the cursor moves from another."""
        here = self._spots.get(row)
        if here is None:
            return next(iter(self._spots), row)
        if dx:
            inline = sorted((spot.x, spot.row) for spot in self._spots.values() if spot.y == here.y)
            place = inline.index((here.x, row)) + dx
            return inline[min(max(place, 0), len(inline) - 1)][1]
        line = min(max(here.y // self._cells.height + dy, 0), len(self._lines) - 1)
        y = line * self._cells.height
        candidates = [spot for spot in self._spots.values() if spot.y == y]
        return min(candidates, key=lambda spot: abs(spot.x - here.x)).row if candidates else row

    def pieces(self, y: int, cursor: int | None) -> list[tuple[str, Style]]:
        """Return a line as texts and styles."""
        found: list[tuple[str, Style]] = []
        at = 0
        line, below = divmod(y, self._cells.height)
        for x, members in self._lines[line]:
            name = filled("" if below else self.rows.text("node")[members[0]], self._label, True)
            found.append((f"{' ' * (x - at)}{name} ", colours.PLAIN))
            for row in members:
                found += self._rest(row, below) if below else self._cell(row, chosen=row == cursor)
            at = x + self._label + 1 + self._cells.width * len(members)
        return found

    def legend(self) -> list[tuple[str, Style]]:
        """Return the legend of letters or digits."""
        found: list[tuple[str, Style]] = [(f"{self.by}  ", colours.BOLD)]
        if self._levels is None:
            marks = {colours.LOOKS[look].mark for look in np.unique(self.rows.looks).tolist()}
            letters = [piece for look in colours.SHOWN_LOOKS if look.mark in marks for piece in _explained(look)]
            fits = sum(len(text) for text, _ in [*found, *letters, _SIGNS]) <= self._width
            found += letters if fits else [(_ABOVE, colours.PLAIN)]
        else:
            written = percent if self._high == 1.0 else short
            found += [(str(level), _level_style(level)) for level in range(_LEVELS)]
            found.append((f" from {written(self._low)} to {written(self._high)}, - not reported ", colours.PLAIN))
        return [*found, _SIGNS]

    def _nodes(self, order: Sequence[int]) -> list[list[int]]:
        """The rows of each node."""
        names = self.rows.text("node")
        nodes: dict[str, list[int]] = {}
        for row in order:
            nodes.setdefault(names[row], []).append(row)
        return list(nodes.values())

    def _fitted(self, counts: Sequence[int], width: int, height: int) -> CellSize:
        """The largest cells that fit, the least where all do not fit. counts: GPUs by node.

        A node is split over lines where its cells become much larger by it.
        """
        longest = min(max(1, (width - self._label - 1) // CELL), max(counts, default=1))
        best, most = CellSize(CELL, 1, longest), (0.0, 0)
        for members in dict.fromkeys((longest, -(-longest // 2), -(-longest // 4))):
            blocks = sum(-(-count // members) for count in counts)
            for wide in range(CELL, max(CELL + 1, width - self._label)):
                across = self._across(width, wide * members)
                high = min(_TALLEST * wide, height // -(-blocks // across)) if across and blocks else 0
                area = wide * high * (1.0 if members == longest else _SPLIT)
                if (size := (area, -abs(wide - 2 * high))) > most and high:
                    best, most = CellSize(wide, high, members), size
        return best

    def _across(self, width: int, cells: int) -> int:
        """Number of blocks beside each other. cells: characters of the cells of one."""
        return (width + _GAP) // (self._label + 1 + cells + _GAP)

    def _laid_out(self, nodes: Sequence[list[int]], width: int) -> list[list[tuple[int, list[int]]]]:
        """Lines of (column, rows of one node); a node too wide for the screen continues in the next block."""
        members = self._cells.members
        chunks = [rows[at : at + members] for rows in nodes for at in range(0, len(rows), members)]
        block = self._label + 1 + self._cells.width * members + _GAP
        across = max(1, self._across(width, self._cells.width * members))
        return [
            [(place * block, chunk) for place, chunk in enumerate(chunks[at : at + across])]
            for at in range(0, len(chunks), across)
        ]

    def _mark(self, row: int) -> tuple[str, Style]:
        if self._levels is None:
            look = colours.LOOKS[int(self.rows.looks[row])]
            return look.mark, look.cell
        level = self._levels[row]
        return ("-", colours.DIM) if level == _ABSENT else (str(level), _level_style(level))

    def _cell(self, row: int, *, chosen: bool) -> list[tuple[str, Style]]:
        """The first line of a cell; a cell wider than the least ends with a blank."""
        state = STATES[int(self.rows.view.health[row])]
        mark, style = self._mark(row)
        sign = "" if state in (OK, HEALTH_UNKNOWN) else HEALTH_SIGNS[state]
        more = self._value(row)
        end = [(" ", colours.PLAIN)] if self._cells.width > CELL else []
        if chosen:
            return [(f"{mark}{sign[:1]:1}{more}", colours.CURSOR_CELL), *end]
        if state == CRIT:
            return [(f"{sign}{more}", colours.HEALTH_STYLES[CRIT]), *end]
        if sign:
            return [(mark, style), (sign, colours.SIGN), *([(more, style)] if more else []), *end]
        return [(f"{mark} {more}", style), *end]

    def _rest(self, row: int, below: int) -> list[tuple[str, Style]]:
        """A lower line of a cell: its colour, and a value where it is wide; the last of three or more stays empty."""
        width, last = self._cells.width, self._cells.height >= 3 and below == self._cells.height - 1
        if last:
            return [(" " * width, colours.PLAIN)]
        style = colours.HEALTH_STYLES[CRIT] if self.rows.view.state(row) == CRIT else self._mark(row)[1]
        value = ""
        if width >= _VALUED and below <= len(_BELOW):
            value = _BELOW[below - 1].of_gpu(self.rows, row)
        return [(f"{value if len(value) < width else '':>{width - 1}}", style), (" ", colours.PLAIN)]

    def _value(self, row: int) -> str:
        """The number of a cell: that of the map, utilisation of a map by class; filled to the cell."""
        width = self._cells.width - CELL - 1
        if width < _VALUED - CELL - 1:
            return " " * max(0, width)
        by = "util" if self._levels is None else self.by
        value = float(self.rows.number(by)[row])
        return filled(percent(value) if _is_fraction(by) else short(value), width, False)


def levels(values: Floats, low: float, high: float) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return levels 0 to 9 between two bounds; -1 where not reported.

    >>> levels(np.array([0.0, 0.55, 1.0, np.nan]), 0.0, 1.0).tolist()
    [0, 5, 9, -1]
    """
    span = high - low if high > low else 1.0
    scaled = np.clip((values - low) / span * _LEVELS, 0, _LEVELS - 1)
    return np.where(np.isnan(values), _ABSENT, np.nan_to_num(scaled)).astype(np.int64)


def shown_by(name: str) -> str:
    """Return the quantity that colours a map, as given.

    Errors: UsageError for an unknown number.
    """
    return name if name == BY_CLASS else number_name(name)


def next_by(name: str) -> str:
    """Return the next quantity."""
    leaves = (BY_CLASS, "real", "sm", "tensor", "dram", "mem", "power", "temp")
    return leaves[(leaves.index(name) + 1) % len(leaves)] if name in leaves else BY_CLASS


def _range(rows: FleetRows, by: str) -> tuple[float, float]:
    if _is_fraction(by):
        return 0.0, 1.0
    values = rows.number(by)
    reported = values[~np.isnan(values)]
    return (float(reported.min()), float(reported.max())) if len(reported) else (0.0, 0.0)


def _is_fraction(by: str) -> bool:
    counter = COUNTERS.get(COLUMN_ALIASES.get(by, by))
    return by == "real" or (counter is not None and counter.unit == "fraction")


def _level_style(level: int) -> Style:
    return colours.LEVEL_STYLES[level * len(colours.LEVEL_STYLES) // _LEVELS]


def _explained(look: colours.StyledLook) -> list[tuple[str, Style]]:
    return [(look.mark, look.cell), (f" {look.name}  ", colours.PLAIN)]
