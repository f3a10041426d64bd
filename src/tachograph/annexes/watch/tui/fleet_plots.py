"""Activity of each GPU over time as plots of block characters, below the table of a small fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.cells import cell_len

from tachograph.annexes.watch.live.looks import looks
from tachograph.annexes.watch.live.view import FleetView
from tachograph.annexes.watch.tui import colours
from tachograph.annexes.watch.tui.counter_rows import means, span
from tachograph.annexes.watch.tui.job_table import activity_counter
from tachograph.annexes.watch.tui.page import Pieces, quantity
from tachograph.catalog.arrays import Bytes, Floats, Singles
from tachograph.catalog.units import printable
from tachograph.report.lines import LEVELS
from tachograph.report.tables import cut

MOST_GPUS = 32  # above, the table alone fills any usual screen
_LEAST_WIDTH, _LEAST_HEIGHT = 48, 4  # of a plot with its title; smaller ones show nothing new
_MOST_HEIGHT = 12  # lines of 8 levels: about a percent each
_LEAST_SCREEN = 100  # characters: on 80 the table is all that fits
_GAP = 2  # characters between plots


@dataclass(frozen=True, slots=True)
class FleetActivity:
    """Activity of all GPUs over time: (times x GPUs), 0..1, NaN missing; `looks` index LOOKS."""

    counter: str
    times: Floats
    values: Singles
    names: tuple[str, ...]
    looks: Bytes


def fleet_activity(view: FleetView, *, width: int) -> FleetActivity | None:
    """Return a copy of the activity; None where no plot is shown.

    That is of many GPUs, without a counter of activity, and on a narrow screen. Called while the
    history does not change.
    """
    rows = range(len(view.snapshot.gpus))
    if not 0 < len(rows) <= MOST_GPUS or width < _LEAST_SCREEN:
        return None
    counter = activity_counter(view, rows)
    if counter is None:
        return None
    names = tuple(gpu.name for gpu in view.snapshot.gpus)
    values = view.history.block(counter, rows)
    return FleetActivity(counter, view.history.times(), values, names, looks(view))


def fleet_plots(
    activity: FleetActivity, rows: Sequence[int], *, width: int, height: int
) -> list[Pieces]:
    """Return at most `height` lines with a plot for each of the first GPUs of `rows` that fit.

    No line where the screen is narrow or low.
    """
    if width < _LEAST_SCREEN or not rows:
        return []
    columns = min(len(rows), (width + _GAP) // (_LEAST_WIDTH + _GAP))
    bands = -(-len(rows) // columns)
    room = height - 2  # an empty line, and the heading
    if room < _LEAST_HEIGHT:
        return []
    bands = min(bands, room // _LEAST_HEIGHT)
    each_height = min(_MOST_HEIGHT, room // bands)
    each_width = (width - _GAP * (columns - 1)) // columns
    seconds = span(activity.times, each_width)
    reach = quantity(each_width * seconds, "s")
    lines: list[Pieces] = [
        [],
        [(f"{activity.counter} of the last {reach}, 0 to 100 %", colours.DIM)],
    ]
    for band in range(bands):
        plotted = rows[band * columns : (band + 1) * columns]
        plots = [_plot(activity, row, each_width, each_height, seconds) for row in plotted]
        lines += map(_joined, zip(*plots, strict=True))
    return lines


def _joined(parts: Sequence[Pieces]) -> Pieces:
    """One line of plots that stand side by side."""
    line: Pieces = []
    for part in parts:
        line += [(" " * _GAP, colours.PLAIN), *part] if line else part
    return line


def _plot(
    activity: FleetActivity, row: int, width: int, height: int, seconds: float
) -> list[Pieces]:
    """Lines of one GPU: name, class and newest value, then columns of blocks, newest right."""
    look = colours.LOOKS[int(activity.looks[row])]
    values = activity.values[:, row]
    now = quantity(float(values[-1]) if len(values) else None, "fraction")
    name = cut(printable(activity.names[row]), width - len(look.text) - len(now) - 3)
    rest = width - cell_len(name) - len(look.text) - len(now) - 1
    title: Pieces = [
        (f"{name} ", colours.BOLD),
        (look.text, look.style),
        (f"{' ' * max(0, rest)}{now}", colours.PLAIN),
    ]
    averaged = means(activity.times, values, width=width, block_s=seconds)
    bars = block_columns(averaged, height - 1)
    return [title, *([(line, look.style)] for line in bars)]


def block_columns(values: Floats, height: int) -> list[str]:
    """Return `height` lines, the highest first, with a column of blocks per value 0..1.

    A known value shows at least its lowest block, a missing one (NaN) nothing.

    >>> block_columns(np.array([0.0, 0.5, 1.0, np.nan]), 2)
    ['  █ ', '▁██ ']
    """
    steps = len(LEVELS)
    has_value = np.isfinite(values)
    filled = np.clip(np.nan_to_num(values), 0.0, 1.0) * height * steps
    eighths = np.where(has_value, np.maximum(np.rint(filled), 1), 0).astype(np.int64)
    marks = f" {LEVELS}"
    lines = []
    for line in reversed(range(height)):
        part = np.clip(eighths - line * steps, 0, steps).tolist()
        lines.append("".join(marks[index] for index in part))
    return lines
