"""The heat map: a cell per GPU, node beside node, lettered and coloured by its limit or by the level of a number.

After the letter or digit is the sign of its health, so that hot or broken GPUs are visible at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.style import Style

from tachograph.catalog.arrays import Floats
from tachograph.catalog.counters import COUNTERS_BY_NAME as COUNTERS
from tachograph.judge.health import CRIT, HEALTH_UNKNOWN, OK, STATES
from tachograph.judge.workload.classes import Bottleneck
from tachograph.tui import colours
from tachograph.tui.fleet_rows import COLUMN_ALIASES, FleetRows, number_name
from tachograph.tui.fleet_table import percent, short
from tachograph.tui.page import filled

BY_CLASS = "class"
CELL = 2
_GAP = 2  # between blocks
_LABEL = 20  # of a node's name, at most
_LEVELS = 10
_ABSENT = -1


@dataclass(frozen=True, slots=True)
class HeatSpot:
    """A GPU on the map: its row, line and column."""

    row: int
    y: int
    x: int


class HeatMap:
    """Blocks of nodes, from left to right and downwards. order: shown rows; by: class, or a number's name."""

    def __init__(self, rows: FleetRows, order: Sequence[int], *, by: str, width: int) -> None:
        self.rows, self.by = rows, by
        self._label = min(_LABEL, max((len(rows.text("node")[row]) for row in order), default=0))
        self._lines = self._laid_out(order, width)
        self._spots = {
            row: HeatSpot(row, y, x + self._label + 1 + CELL * place)
            for y, blocks in enumerate(self._lines)
            for x, members in blocks
            for place, row in enumerate(members)
        }
        self._low, self._high = (0.0, 1.0) if by == BY_CLASS else _range(rows, by)
        self._levels = None if by == BY_CLASS else levels(rows.number(by), self._low, self._high).tolist()

    @property
    def height(self) -> int:
        """Number of lines."""
        return len(self._lines)

    def spot(self, row: int) -> HeatSpot | None:
        """Position of a GPU; None if it is not shown."""
        return self._spots.get(row)

    def at(self, x: int, y: int) -> int | None:
        """The row of the GPU at a place of the map, or None."""
        if 0 <= y < len(self._lines):
            for left, members in self._lines[y]:
                place = (x - left - self._label - 1) // CELL
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
        y = min(max(here.y + dy, 0), self.height - 1)
        candidates = [spot for spot in self._spots.values() if spot.y == y]
        return min(candidates, key=lambda spot: abs(spot.x - here.x)).row if candidates else row

    def pieces(self, y: int, cursor: int | None) -> list[tuple[str, Style]]:
        """Return a line as texts and styles."""
        found: list[tuple[str, Style]] = []
        at = 0
        for x, members in self._lines[y]:
            name = filled(self.rows.text("node")[members[0]], self._label, True)
            found.append((f"{' ' * (x - at)}{name} ", colours.PLAIN))
            for row in members:
                found += self._cell(row, chosen=row == cursor)
            at = x + self._label + 1 + CELL * len(members)
        return found

    def legend(self) -> list[tuple[str, Style]]:
        """Return the legend of letters or digits."""
        found: list[tuple[str, Style]] = [(f"{self.by}  ", colours.BOLD)]
        if self._levels is None:
            found += [piece for limit in colours.LIMITS for piece in _explained(limit)]
        else:
            written = percent if self._high == 1.0 else short
            found += [(str(level), _level_style(level)) for level in range(_LEVELS)]
            found.append((f" from {written(self._low)} to {written(self._high)}, - not reported ", colours.PLAIN))
        return [*found, ("^ hot  ! !! fault", colours.ALARM)]

    def _laid_out(self, order: Sequence[int], width: int) -> list[list[tuple[int, list[int]]]]:
        """Lines of (column, rows of one node); a node too wide for the screen continues in the next block."""
        names = self.rows.text("node")
        nodes: dict[str, list[int]] = {}
        for row in order:
            nodes.setdefault(names[row], []).append(row)
        room = max(1, (width - self._label - 1) // CELL)
        longest = min(room, max(map(len, nodes.values()), default=1))
        chunks = [rows[at : at + longest] for rows in nodes.values() for at in range(0, len(rows), longest)]
        block = self._label + 1 + CELL * longest + _GAP
        across = max(1, (width + _GAP) // block)
        return [
            [(place * block, chunk) for place, chunk in enumerate(chunks[at : at + across])]
            for at in range(0, len(chunks), across)
        ]

    def _cell(self, row: int, *, chosen: bool) -> list[tuple[str, Style]]:
        view = self.rows.view
        label, state = int(view.labels[row]), STATES[int(view.health[row])]
        if self._levels is None:
            mark, style = colours.CLASS_MARKS[label], colours.CELL_STYLES[colours.CLASS_LIMITS[label]]
        else:
            level = self._levels[row]
            mark, style = ("-", colours.DIM) if level == _ABSENT else (str(level), _level_style(level))
        sign = "" if state in (OK, HEALTH_UNKNOWN) else colours.HEALTH_SIGNS[state]
        if chosen:
            return [(f"{mark}{sign[:1]:1}", colours.CURSOR_CELL)]
        if state == CRIT:
            return [(sign, colours.HEALTH_STYLES[CRIT])]
        return [(mark, style), (sign, colours.SIGN)] if sign else [(f"{mark} ", style)]


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
    counter = COUNTERS.get(COLUMN_ALIASES.get(by, by))
    if by == "real" or (counter is not None and counter.unit == "fraction"):
        return 0.0, 1.0
    values = rows.number(by)
    reported = values[~np.isnan(values)]
    return (float(reported.min()), float(reported.max())) if len(reported) else (0.0, 0.0)


def _level_style(level: int) -> Style:
    return colours.LEVEL_STYLES[level * len(colours.LEVEL_STYLES) // _LEVELS]


def _explained(limit: Bottleneck) -> list[tuple[str, Style]]:
    return [(colours.MARKS[limit], colours.CELL_STYLES[limit]), (f" {colours.NAMES[limit]}  ", colours.PLAIN)]
