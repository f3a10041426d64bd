"""Curves and bars made of characters: braille dots for curves, eighths of a block for bars and small histories.

A character of braille holds 2 x 4 dots; a curve of `width` x `height` characters has twice as many columns of dots and
four times as many rows. What is missing leaves a gap: no dot is set and no line drawn over it.
Drawn here because libraries for it loop over points in Python and take 30 ms for one curve, 120 ms for eight.
"""

from __future__ import annotations

import math

import numpy as np

from tachograph.arrays import Bytes, Flags, Floats, Longs, Singles

BLANK = 0x2800  # braille without a dot
# the bit of each dot in a character, by row and column. Source: Unicode, "Braille Patterns"
DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]], np.uint8)
EIGHTHS = "▁▂▃▄▅▆▇█"
_PARTS = " ▏▎▍▌▋▊▉"


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
    by a straight line, unless one between them is NaN or they are more than `gap` apart. A lonely point is a dot.

    >>> rows(curve(np.array([0.0, 1, 2]), np.array([0.0, 1, 0]), width=4, height=1, low=0, high=1))
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


def rows(cells: Bytes) -> list[str]:
    """Return a matrix of dots as text, a space where there are none.

    >>> rows(np.array([[0x01, 0], [0xFF, 0x80]], np.uint8))
    ['⠁ ', '⣿⢀']
    """
    codes = np.where(cells == 0, ord(" "), cells.astype(np.uint32) + BLANK).astype("<u4")
    return [line.tobytes().decode("utf-32-le") for line in codes]


def bar(value: float | None, width: int) -> str:
    """Return a bar for a fraction, `width` characters; dots where it is missing.

    >>> bar(0.5, 4), bar(0.3125, 4), bar(None, 4), bar(0.001, 4)
    ('██  ', '█▎  ', '····', '▏   ')
    """
    if value is None or value != value:
        return "·" * width
    eighths = round(min(1.0, max(0.0, value)) * width * 8)
    if eighths == 0 and value > 0:
        eighths = 1  # a little is not nothing
    whole, part = divmod(eighths, 8)
    return ("█" * whole + (_PARTS[part] if part else "")).ljust(width)


def spark(times: Floats, values: Floats | Singles, *, width: int, each: float, low: float, high: float) -> str:
    """Return the newest values as a line of blocks, the newest at the right; a space where nothing is known.

    A block is the mean of what is known of `each` seconds; see `means`.

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
    return [EIGHTHS[place] if told else " " for place, told in zip(places.tolist(), known.tolist(), strict=True)]


def means(times: Floats, values: Floats | Singles, *, width: int, each: float) -> Floats:
    """Return means of the last `width` spans of `each` seconds, oldest first; NaN of a span in which nothing is known.

    Spans begin at whole multiples of `each`, so that a mean that was shown does not change when time goes on; only the
    last one is still growing.

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

    A line goes column by column; in each it covers the rows from behind where it was to where it is, so that it is
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
    """Dots put together to characters."""
    found: Bytes = np.zeros((height, width), np.uint8)
    for row in range(4):
        for column in range(2):
            found |= dots[row::4, column::2] * DOTS[row, column]
    return found
