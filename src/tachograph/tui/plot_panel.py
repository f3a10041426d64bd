"""One plot as rows: curves of several GPUs over each other, with a scale, times, and a letter riding on each curve."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.segment import Segment
from rich.style import Style

from tachograph.arrays import Bytes, Floats, Singles
from tachograph.tui import colours
from tachograph.tui.lines import BLANK, curve
from tachograph.tui.page import Row, quantity

MARKS = "ABCDEFGH"
STYLES: tuple[Style, ...] = tuple(
    Style(color=name) for name in ("cyan", "yellow", "magenta", "green", "blue", "red", "white", "bright_black")
)
AXIS = 10  # characters left of a curve
_EVERY = 24  # characters between two letters of a curve
_TICK = 20  # characters between two times, at least


@dataclass(frozen=True, slots=True)
class Curve:
    """One line: its letter, how it is drawn, values beside the times of the plot (NaN missing)."""

    mark: str
    style: Style
    values: Floats | Singles


@dataclass(frozen=True, slots=True)
class Frame:
    """What curves are drawn into. begin, end: seconds since 1970 at the edges; gap: s without values that break a line.

    low, high: at the lower and upper edge, in `unit`.
    """

    begin: float
    end: float
    low: float
    high: float
    unit: str
    gap: float = math.inf


def panel(times: Floats, curves: Sequence[Curve], frame: Frame, *, width: int, height: int) -> list[Row]:
    """Return `height` rows of `width` characters: the curves beside their scale, and a line of times below.

    Where curves meet the later one gives the colour; letters stand at places of their own, so that none hides another.
    """
    columns, lines = max(1, width - AXIS), max(1, height - 1)
    cells = np.zeros((lines, columns), np.uint8)
    owner = np.full((lines, columns), -1, np.int8)
    letters: dict[tuple[int, int], int] = {}
    for place, one in enumerate(curves):
        drawn = curve(
            times,
            one.values,
            width=columns,
            height=lines,
            low=frame.low,
            high=frame.high,
            begin=frame.begin,
            end=frame.end,
            gap=frame.gap,
        )
        cells |= drawn
        owner[drawn > 0] = place
        letters |= _riding(drawn, place, len(curves))
    scale = _scale(frame, lines)
    rows = [
        [Segment(scale[line], colours.DIM), *_segments(cells[line], owner[line], curves, letters, line)]
        for line in range(lines)
    ]
    return [*rows, [Segment(" " * (AXIS - 1) + "└" + axis(frame.begin, frame.end, columns), colours.DIM)]]


def axis(begin: float, end: float, columns: int) -> str:
    """Return the line of times below a plot, each at its place; the newest at the right edge."""
    count = max(1, columns // _TICK)
    line = ["─"] * columns
    for tick in range(count):
        place = round(tick * columns / count)
        written = time.strftime("%H:%M:%S", time.localtime(begin + (end - begin) * place / columns))
        if place + len(written) < columns - len(written):
            line[place : place + len(written)] = written
    last = time.strftime("%H:%M:%S", time.localtime(end))
    if columns >= len(last):
        line[-len(last) :] = last
    return "".join(line)


def ceiling(value: float) -> float:
    """Return the next number of 1, 2, 5, 10, 20 .. that is not below a value; 1 where there is nothing above 0.

    >>> ceiling(312), ceiling(0), ceiling(1e9), ceiling(0.3)
    (500.0, 1.0, 1000000000.0, 0.5)
    """
    if not value > 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))


def _riding(drawn: Bytes, place: int, count: int) -> dict[tuple[int, int], int]:
    """Where the letter of a curve stands: (line, column) -> place of the curve; only where there are several."""
    if count < 2:
        return {}
    columns = drawn.shape[1]
    every = max(_EVERY, 3 * count)
    wanted = range(columns - 1 - 3 * place - 1, -1, -every)
    lines = {column: np.flatnonzero(drawn[:, column]) for column in wanted}
    return {(int(found[0]), column): place for column, found in lines.items() if len(found)}


def _scale(frame: Frame, lines: int) -> list[str]:
    """What stands left of each line: values at the edges, and between them where there is room."""
    count = 2 if lines < 6 else 3 if lines < 16 else 5
    written = {
        round(step * (lines - 1) / (count - 1)): frame.high - (frame.high - frame.low) * step / (count - 1)
        for step in range(count)
    }
    return [
        f"{quantity(written[line], frame.unit):>{AXIS - 1}}┤" if line in written else " " * (AXIS - 1) + "│"
        for line in range(lines)
    ]


def _segments(
    cells: Bytes,
    owner: np.typing.NDArray[np.int8],
    curves: Sequence[Curve],
    letters: dict[tuple[int, int], int],
    line: int,
) -> Row:
    """One line of characters, neighbours of one curve together."""
    row: Row = []
    text: list[str] = []
    before = -1
    for column, (bits, place) in enumerate(zip(cells.tolist(), owner.tolist(), strict=True)):
        letter = letters.get((line, column))
        now = place if letter is None else letter
        if text and now != before:
            row.append(Segment("".join(text), curves[before].style if before >= 0 else colours.PLAIN))
            text = []
        before = now
        text.append(curves[letter].mark if letter is not None else chr(BLANK + bits) if bits else " ")
    row.append(Segment("".join(text), curves[before].style if before >= 0 else colours.PLAIN))
    return row
