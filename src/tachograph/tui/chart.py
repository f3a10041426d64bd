"""Curves and bars made of characters, and a panel with axes: braille dots for curves, eighths of a block for bars.

A character of braille holds 2 x 4 dots; a curve of `width` x `height` characters has twice as many columns of dots and
four times as many rows. A missing value leaves a gap: no dot is set and no line drawn over it.
Drawn here because libraries for it loop over points in Python and take 30 ms for one curve, 120 ms for eight.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.segment import Segment
from rich.style import Style

from tachograph.catalog.arrays import Bytes, Flags, Floats, Longs, Singles
from tachograph.tui import colours
from tachograph.tui.page import Row, quantity

BLANK = 0x2800  # braille without a dot
# bit of each dot in a character, by row and column. Source: Unicode, "Braille Patterns"
DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]], np.uint8)
EIGHTHS = "▁▂▃▄▅▆▇█"


def curve(
    times: Floats,
    values: Floats | Singles,
    *,
    width: int,
    height: int,
    low: float,
    high: float,
    begin: float | None = None,
    end: float | None = None,
    gap: float = math.inf,
) -> Bytes:
    """Return the dots of a curve, (height x width) characters of braille without BLANK; 0 where no dot is set.

    times: ascending, of any unit; begin, end: at the left and right edge (the first and last time where not given).
    low, high: values at the lower and upper edge; beyond them the curve runs along the edge. Points follow each other
    by a straight line, unless one between them is NaN or they are more than `gap` apart. An isolated point is a dot.

    >>> braille_rows(curve(np.array([0.0, 1, 2]), np.array([0.0, 1, 0]), width=4, height=1, low=0, high=1))
    ['⡠⠔⠑⢄']
    """
    columns, lines = 2 * width, 4 * height
    if width < 1 or height < 1:
        return np.zeros((max(height, 0), max(width, 0)), np.uint8)
    if not len(times):
        return np.zeros((height, width), np.uint8)
    begin = float(times[0]) if begin is None else begin
    end = float(times[-1]) if end is None else end
    inside = (times >= begin) & (times <= end)
    times, seen = times[inside], np.asarray(values, np.float64)[inside]
    known = np.isfinite(seen)
    if not known.any():
        return np.zeros((height, width), np.uint8)
    follows = known[1:] & known[:-1] & (np.diff(times) <= gap)
    joined = follows[known[1:]] if known[0] else follows[known[1:]][1:]
    x = _places(times[known], begin, end, columns)
    y = lines - 1 - _places(seen[known], low, high, lines)
    return _characters(_covered(x, y, joined, columns, lines), width, height)


def braille_rows(cells: Bytes) -> list[str]:
    """Return a matrix of dots as text, a space for none.

    >>> braille_rows(np.array([[0x01, 0], [0xFF, 0x80]], np.uint8))
    ['⠁ ', '⣿⢀']
    """
    codes = np.where(cells == 0, ord(" "), cells.astype(np.uint32) + BLANK).astype("<u4")
    return [line.tobytes().decode("utf-32-le") for line in codes]


def spark(times: Floats, values: Floats | Singles, *, width: int, each: float, low: float, high: float) -> str:
    """Return the newest values as a line of blocks, the newest at the right; a space without values.

    A block is the mean of the known values of `each` seconds; see `means`.

    >>> spark(np.arange(5.0), np.array([0, 0.5, 1, np.nan, 1]), width=6, each=1, low=0, high=1)
    ' ▁▅█ █'
    """
    return "".join(blocks(means(times, values, width=width, each=each), low=low, high=high))


def blocks(values: Floats, *, low: float, high: float) -> list[str]:
    """Return a block for each value, from the lowest to the full one; a space where it is missing.

    >>> blocks(np.array([0, np.nan, 2]), low=0, high=1)
    ['▁', ' ', '█']
    """
    known = np.isfinite(values)
    places = _places(np.where(known, values, low), low, high, len(EIGHTHS))
    return [
        EIGHTHS[place] if reported else " " for place, reported in zip(places.tolist(), known.tolist(), strict=True)
    ]


def means(times: Floats, values: Floats | Singles, *, width: int, each: float) -> Floats:
    """Return means of the last `width` spans of `each` seconds, oldest first; NaN for a span without values.

    Spans begin at whole multiples of `each`, so that a mean that was shown does not change later; only the
    last one is incomplete.

    >>> means(np.array([0.0, 1, 2, 3]), np.array([1.0, 3, 5, np.nan]), width=3, each=2).tolist()
    [nan, 2.0, 5.0]
    """
    if not len(times) or width < 1:
        return np.full(max(width, 0), np.nan)
    span = np.floor(times / each)
    place = (span - span[-1] + width - 1).astype(np.int64)
    kept = (place >= 0) & np.isfinite(values)
    count = np.bincount(place[kept], minlength=width)
    total = np.bincount(place[kept], weights=np.asarray(values, np.float64)[kept], minlength=width)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _places(values: Floats, low: float, high: float, count: int) -> Longs:
    """Which of `count` equal steps from low to high each value is nearest to."""
    span = high - low if high > low else 1.0
    found: Longs = np.clip(np.floor((values - low) / span * (count - 1) + 0.5), 0, count - 1).astype(np.int64)
    return found


def _covered(x: Longs, y: Longs, joined: Flags, columns: int, lines: int) -> Bytes:
    """Dots (lines x columns) of points and of the lines between those that are joined.

    A line is drawn column by column; in each it covers the rows from after its last one to its new one, so that it is
    connected and no thicker than a dot where it is not steep.
    """
    start = np.flatnonzero(joined)
    steps = np.maximum(x[start + 1] - x[start], 1)
    which = np.repeat(start, steps)
    part = np.arange(1, len(which) + 1) - np.repeat(np.cumsum(steps) - steps, steps)
    count = np.repeat(steps, steps)
    rise = (y[which + 1] - y[which]).astype(np.float64)
    before = (y[which] + np.floor(rise * (part - 1) / count + 0.5)).astype(np.int64)
    after = (y[which] + np.floor(rise * part / count + 0.5)).astype(np.int64)
    column = np.minimum(x[which] + part, x[which + 1])
    behind = before + np.sign(after - before)
    column = np.concatenate([x, column])
    top = np.concatenate([y, np.minimum(behind, after)])
    bottom = np.concatenate([y, np.maximum(behind, after)])
    size = bottom - top + 1
    inner = np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)
    found: Bytes = np.zeros((lines, columns), np.uint8)
    found[np.repeat(top, size) + inner, np.repeat(column, size)] = 1
    return found


def _characters(dots: Bytes, width: int, height: int) -> Bytes:
    """Dots packed into characters."""
    found: Bytes = np.zeros((height, width), np.uint8)
    for row in range(4):
        for column in range(2):
            found |= dots[row::4, column::2] * DOTS[row, column]
    return found


CURVE_MARKS = "ABCDEFGH"
CURVE_STYLES: tuple[Style, ...] = tuple(
    Style(color=name) for name in ("cyan", "yellow", "magenta", "green", "blue", "red", "white", "bright_black")
)
AXIS = 10  # characters left of a curve
_EVERY = 24  # characters between two letters of a curve
_TICK = 20  # characters between two times, at least


@dataclass(frozen=True, slots=True)
class PlotCurve:
    """One line: its letter, its style, values beside the times of the plot (NaN missing)."""

    mark: str
    style: Style
    values: Floats | Singles


@dataclass(frozen=True, slots=True)
class PlotFrame:
    """Axes of curves. begin, end: seconds since 1970 at the edges; gap: s without values that break a line.

    low, high: at the lower and upper edge, in `unit`.
    """

    begin: float
    end: float
    low: float
    high: float
    unit: str
    gap: float = math.inf


def panel(times: Floats, curves: Sequence[PlotCurve], frame: PlotFrame, *, width: int, height: int) -> list[Row]:
    """Return `height` rows of `width` characters: the curves beside their scale, and a line of times below.

    Where curves meet the later one sets the colour; letters have places of their own, so that none hides another.
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
    """Return the next number of 1, 2, 5, 10, 20 .. that is not below a value; 1 for values not above 0.

    >>> ceiling(312), ceiling(0), ceiling(1e9), ceiling(0.3)
    (500.0, 1.0, 1000000000.0, 0.5)
    """
    if not value > 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))


def _riding(drawn: Bytes, place: int, count: int) -> dict[tuple[int, int], int]:
    """Positions of the letters of curves: (line, column) -> place of the curve; only where there are several."""
    if count < 2:
        return {}
    columns = drawn.shape[1]
    every = max(_EVERY, 3 * count)
    wanted = range(columns - 1 - 3 * place - 1, -1, -every)
    lines = {column: np.flatnonzero(drawn[:, column]) for column in wanted}
    return {(int(found[0]), column): place for column, found in lines.items() if len(found)}


def _scale(frame: PlotFrame, lines: int) -> list[str]:
    """Labels left of each line: values at the edges, and between them where they fit."""
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
    curves: Sequence[PlotCurve],
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
