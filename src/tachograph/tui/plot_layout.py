"""Which plots stand where: counters of some GPUs in a window of time, as rows that fill the screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.segment import Segment

from tachograph.arrays import Floats, Singles
from tachograph.counters import BY_NAME, Kind
from tachograph.live import missing
from tachograph.live.view import View
from tachograph.tui import colours
from tachograph.tui.focus_counters import scale, shown
from tachograph.tui.page import MISSING, Row, beside, flow, paragraph, quantity
from tachograph.tui.plot_panel import MARKS, STYLES, Curve, Frame, ceiling, panel
from tachograph.units import printable

LEAST = 7  # rows of a plot, its title and times among them
_NO_WAY = missing.brief("", "")  # there is nothing to be done
_TALL = 12  # rows that every plot shall have before plots stand side by side
_COLUMN, _NARROW = 70, 46  # characters of a plot that stands beside others; of one GPU
_GAP_S, _GAP_INTERVALS = 3.0, 3.5  # without values: a line breaks


@dataclass(frozen=True, slots=True)
class Choice:
    """What is plotted: counters, rows of GPUs in the view, seconds.

    apart: a plot for each GPU. zoomed: scaled to the values that are seen, and not to all that may be.
    """

    counters: tuple[str, ...]
    gpus: tuple[int, ...]
    window_s: float
    apart: bool = False
    zoomed: bool = False


def plots(view: View, choice: Choice, *, width: int, height: int) -> list[Row]:
    """Return the plots of a choice, filling `height` rows where they fit, more where they do not."""
    times = view.history.times()
    single = [(place,) for place in range(len(choice.gpus))]
    sets = single if choice.apart else [tuple(range(len(choice.gpus)))]
    wanted = [(counter, places) for counter in choice.counters for places in sets]
    columns = _columns(choice, len(wanted), width=width, height=height)
    lines = -(-len(wanted) // columns)
    each = max(LEAST, height // max(lines, 1))
    share = (width - 2 * (columns - 1)) // columns
    drawn = [one_plot(view, times, counter, choice, places, width=share, height=each) for counter, places in wanted]
    rows: list[Row] = []
    for line in range(lines):
        together = drawn[line * columns : (line + 1) * columns]
        rows += beside(together, [share] * len(together))
    return rows


def _columns(choice: Choice, count: int, *, width: int, height: int) -> int:
    """How many plots stand side by side: GPUs apart as many as fit; else as few as leave each a good height."""
    if choice.apart:
        return max(1, min(len(choice.gpus), width // _NARROW))
    return 1 if count * _TALL <= height else max(1, min(count, width // _COLUMN))


def one_plot(
    view: View, times: Floats, counter: str, choice: Choice, places: Sequence[int], *, width: int, height: int
) -> list[Row]:
    """Return one plot with a title that tells the newest value of each GPU; why there is none where nothing is told."""
    values = {place: view.history.series(counter, choice.gpus[place]) for place in places}
    end = view.snapshot.t
    begin = end - choice.window_s
    seen = times >= begin
    title = _title(view, counter, choice, places, width=width)
    if not any(np.isfinite(series[seen]).any() for series in values.values()):
        return [title, *_untold(view, counter, choice, places, width=width)]
    rows, shown_now = [choice.gpus[place] for place in places], [one[seen] for one in values.values()]
    low, high = extent(view, counter, rows, shown_now, zoomed=choice.zoomed)
    frame = Frame(begin, end, low, high, BY_NAME[counter].unit, _gap(times))
    curves = [
        Curve(MARKS[place % len(MARKS)], STYLES[place % len(STYLES)], values[place][-len(times) :]) for place in places
    ]
    return [title, *panel(times, curves, frame, width=width, height=height - 1)]


def extent(
    view: View, counter: str, gpus: Sequence[int], values: Sequence[Floats | Singles], *, zoomed: bool = False
) -> tuple[float, float]:
    """Return the values at the lower and upper edge of a plot: a fraction's whole range, what a device holds or draws
    at most, else from 0 to the next round number; of a sum, and where zoomed, between its lowest and highest value.
    """
    known = np.concatenate([series[np.isfinite(series)] for series in values]).astype(np.float64)
    top, bottom = (float(known.max()), float(known.min())) if len(known) else (0.0, 0.0)
    if zoomed or BY_NAME[counter].kind is Kind.CUMULATIVE:
        return bottom, top if top > bottom else bottom + (abs(bottom) / 10 or 1)
    drawn = [scale(counter, view.snapshot.devices.get(view.snapshot.gpus[row])) for row in gpus]
    full = max((one.full for one in drawn if one.full is not None), default=0.0)
    low = min((one.low for one in drawn), default=0.0)
    return min(low, bottom), full if full >= top and full else ceiling(top)


def _gap(times: Floats) -> float:
    """Without values for so long a line breaks: some of the usual intervals."""
    steps = np.diff(times)
    usual = float(np.median(steps)) if len(steps) else 0.0
    return max(_GAP_S, _GAP_INTERVALS * usual)


def _title(view: View, counter: str, choice: Choice, places: Sequence[int], *, width: int) -> Row:
    """The counter, and for each GPU its letter and newest value."""
    row: Row = [Segment(f"{counter}  ", colours.BOLD)]
    for place in places:
        gpu = choice.gpus[place]
        name = f"{view.snapshot.gpus[gpu].name} " if len(places) == 1 else ""
        mark = MARKS[place % len(MARKS)]
        row.append(Segment(f"{mark} ", STYLES[place % len(STYLES)] + colours.BOLD))
        row.append(Segment(f"{name}{shown(counter, view.snapshot.value(counter, gpu))}  "))
    return Segment.adjust_line_length(row, width)


def _untold(view: View, counter: str, choice: Choice, places: Sequence[int], *, width: int) -> list[Row]:
    """Why there is nothing to draw."""
    if counter in view.snapshot.values and counter not in view.about.blind:
        words = "told nothing in this window"
    else:
        mig = any(view.snapshot.gpus[choice.gpus[place]].mig is not None for place in places)
        why = view.about.blind.get(counter) or missing.brief(
            counter, view.about.name, mig=mig, profiles=missing.profiles(view.about)
        )
        words = f"not told by {view.about.name}{'' if why == _NO_WAY else f': {why}'}"
    return [*paragraph(f"{MISSING} {words}", width, colours.DIM, indent=2), []]


def legend(view: View, choice: Choice, *, width: int) -> list[Row]:
    """Return which letter is which GPU, with its job; as many rows as it takes."""
    parts: list[Row] = []
    for place, gpu in enumerate(choice.gpus):
        known = view.snapshot.gpus[gpu]
        holder = view.snapshot.holders.get(known)
        job = f" job {printable(holder.job_id)}" if holder and holder.job_id else ""
        mark = Segment(f"{MARKS[place % len(MARKS)]} ", STYLES[place % len(STYLES)] + colours.BOLD)
        parts.append([mark, Segment(f"{known.name}{job}  ")])
    return flow(parts, width)


def window_text(window_s: float) -> str:
    """Return a window as people read it.

    >>> window_text(300)
    '5 min'
    """
    return quantity(window_s, "s")
