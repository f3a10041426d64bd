"""Counters over time: which curves and windows are chosen, how panels are laid out, the screen."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from rich.segment import Segment
from textual.binding import BindingType

from tachograph.catalog.arrays import Floats, Singles
from tachograph.catalog.counters import COUNTER_NAMES, COUNTERS_BY_NAME, CounterKind
from tachograph.catalog.errors import UsageError
from tachograph.catalog.suggestions import did_you_mean
from tachograph.catalog.units import printable
from tachograph.live import unsupported
from tachograph.live.fleet_rows import COLUMN_ALIASES
from tachograph.live.looks import MISSING
from tachograph.live.snapshot import GpuId
from tachograph.live.view import View
from tachograph.tui import colours, keys
from tachograph.tui.chart import CURVE_MARKS, CURVE_STYLES, PlotCurve, PlotFrame, ceiling, panel
from tachograph.tui.counter_rows import counter_scale, counter_text
from tachograph.tui.page import Page, PageRows, Row, beside, flow, paragraph, quantity
from tachograph.tui.screens import ChoosesGpu

LEAST = 7  # rows of a plot, its title and times among them
_NO_WAY = unsupported.brief_fix("", "")  # no fix exists
_TALL = 12  # least rows of every plot before plots are placed side by side
_COLUMN, _NARROW = 70, 46  # characters of a plot beside others; of one GPU
_GAP_S, _GAP_INTERVALS = 3.0, 3.5  # without values: a line breaks


@dataclass(frozen=True, slots=True)
class PlotChoice:
    """Choice of plots: counters, rows of GPUs in the view, seconds.

    apart: a plot for each GPU. zoomed: scaled to the visible values, not to the whole range.
    """

    counters: tuple[str, ...]
    gpus: tuple[int, ...]
    window_s: float
    apart: bool = False
    zoomed: bool = False


def plots(view: View, choice: PlotChoice, *, width: int, height: int) -> list[Row]:
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


def _columns(choice: PlotChoice, count: int, *, width: int, height: int) -> int:
    """Number of plots side by side: with GPUs apart as many as fit; else the fewest with a good height of each."""
    if choice.apart:
        return max(1, min(len(choice.gpus), width // _NARROW))
    return 1 if count * _TALL <= height else max(1, min(count, width // _COLUMN))


def one_plot(
    view: View, times: Floats, counter: str, choice: PlotChoice, places: Sequence[int], *, width: int, height: int
) -> list[Row]:
    """Return one plot, titled with the newest value of each GPU; the reason where it is empty."""
    values = {place: view.history.series(counter, choice.gpus[place]) for place in places}
    end = view.snapshot.t
    begin = end - choice.window_s
    seen = times >= begin
    title = _title(view, counter, choice, places, width=width)
    if not any(np.isfinite(series[seen]).any() for series in values.values()):
        return [title, *_not_reported(view, counter, choice, places, width=width)]
    rows, shown_now = [choice.gpus[place] for place in places], [one[seen] for one in values.values()]
    low, high = extent(view, counter, rows, shown_now, zoomed=choice.zoomed)
    frame = PlotFrame(begin, end, low, high, COUNTERS_BY_NAME[counter].unit, _gap(times))
    curves = [
        PlotCurve(
            CURVE_MARKS[place % len(CURVE_MARKS)], CURVE_STYLES[place % len(CURVE_STYLES)], values[place][-len(times) :]
        )
        for place in places
    ]
    return [title, *panel(times, curves, frame, width=width, height=height - 1)]


def extent(
    view: View, counter: str, gpus: Sequence[int], values: Sequence[Floats | Singles], *, zoomed: bool = False
) -> tuple[float, float]:
    """Return the values at the lower and upper edge of a plot: a fraction's whole range, capacity or limit of a device,
    else from 0 to the next round number; of a sum, and where zoomed, between its lowest and highest value.
    """
    known = np.concatenate([series[np.isfinite(series)] for series in values]).astype(np.float64)
    top, bottom = (float(known.max()), float(known.min())) if len(known) else (0.0, 0.0)
    if zoomed or COUNTERS_BY_NAME[counter].kind is CounterKind.CUMULATIVE:
        return bottom, top if top > bottom else bottom + (abs(bottom) / 10 or 1)
    drawn = [counter_scale(counter, view.snapshot.devices.get(view.snapshot.gpus[row])) for row in gpus]
    full = max((one.full for one in drawn if one.full is not None), default=0.0)
    low = min((one.low for one in drawn), default=0.0)
    return min(low, bottom), full if full >= top and full else ceiling(top)


def _gap(times: Floats) -> float:
    """Without values for so long a line breaks: some of the usual intervals."""
    steps = np.diff(times)
    usual = float(np.median(steps)) if len(steps) else 0.0
    return max(_GAP_S, _GAP_INTERVALS * usual)


def _title(view: View, counter: str, choice: PlotChoice, places: Sequence[int], *, width: int) -> Row:
    """The counter, and for each GPU its letter and newest value."""
    row: Row = [Segment(f"{counter}  ", colours.BOLD)]
    for place in places:
        gpu = choice.gpus[place]
        name = f"{view.snapshot.gpus[gpu].name} " if len(places) == 1 else ""
        mark = CURVE_MARKS[place % len(CURVE_MARKS)]
        row.append(Segment(f"{mark} ", CURVE_STYLES[place % len(CURVE_STYLES)] + colours.BOLD))
        row.append(Segment(f"{name}{counter_text(counter, view.snapshot.value(counter, gpu))}  "))
    return Segment.adjust_line_length(row, width)


def _not_reported(view: View, counter: str, choice: PlotChoice, places: Sequence[int], *, width: int) -> list[Row]:
    """Why a plot is empty."""
    if counter in view.snapshot.values and counter not in view.about.unsupported:
        words = "no values in this window"
    else:
        mig = any(view.snapshot.gpus[choice.gpus[place]].mig is not None for place in places)
        why = view.about.unsupported.get(counter) or unsupported.brief_reason(view.about, counter, mig=mig)
        source = unsupported.advised_source(view.about.name, view.about.exporters)
        words = f"not reported by {source}{'' if why == _NO_WAY else f': {why}'}"
    return [*paragraph(f"{MISSING} {words}", width, colours.DIM, indent=2), []]


def legend(view: View, choice: PlotChoice, *, width: int) -> list[Row]:
    """Return which letter is which GPU, with its job; as many rows as needed."""
    parts: list[Row] = []
    for place, gpu in enumerate(choice.gpus):
        known = view.snapshot.gpus[gpu]
        allocation = view.snapshot.allocations.get(known)
        job = f" job {printable(allocation.job_id)}" if allocation and allocation.job_id else ""
        mark = Segment(
            f"{CURVE_MARKS[place % len(CURVE_MARKS)]} ", CURVE_STYLES[place % len(CURVE_STYLES)] + colours.BOLD
        )
        parts.append([mark, Segment(f"{known.name}{job}  ")])
    return flow(parts, width)


def window_text(window_s: float) -> str:
    """Return a window as people read it.

    >>> window_text(300)
    '5 min'
    """
    return quantity(window_s, "s")


WINDOWS_S = (60.0, 300.0, 600.0)
AMOUNTS = (1, 2, 4, 8)
# a column of the fleet -> its counters; real utilisation and ages are none
COLUMNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **{name: (counter,) for name, counter in COLUMN_ALIASES.items()},
        "mem": ("hbm_used_mib",),
        "nvlink": ("nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s"),
    }
)
_FIRST = ("sm_active", "gr_engine_active", "gpu_util")  # the first reported one shows how busy a GPU is
_DIGITS = tuple(
    (key.shown, key.action.split("'")[1]) for key in keys.KEYS if key.place == "plot" and key.action.startswith("put")
)


class PlotScreen(Page):
    """Plots of the GPU under the cursor of the screen before, and of the next ones."""

    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings("plot")]

    def __init__(self, counters: Sequence[str] = (), gpus: Sequence[GpuId] = ()) -> None:
        super().__init__()
        self.counters = list(counters)
        self.gpus = list(gpus)
        self.window_s = WINDOWS_S[1]
        self.apart = self.zoomed = False
        self._amount = len(gpus) or 4
        self._requested = bool(gpus)

    @property
    def chosen(self) -> GpuId | None:
        """The first plotted GPU."""
        return self.gpus[0] if self.gpus else None

    def rows(self, view: View, width: int, height: int) -> PageRows:
        """Return the choice, its keys, and the plots."""
        if not view.snapshot.gpus:
            return paragraph("no GPUs to plot", width, colours.DIM)
        choice = self._choice(view)
        top = [self._head(view), self._digits(width), *legend(view, choice, width=width)]
        return [*top, *plots(view, choice, width=width, height=max(0, height - len(top)))]

    def _choice(self, view: View) -> PlotChoice:
        """The choice of plots; made at the first view, and again where a GPU has vanished."""
        named = view.snapshot.gpus
        self.gpus = [gpu for gpu in self.gpus if gpu in named]
        if not self.gpus:
            first = self._chosen_before()
            begin = named.index(first) if first in named else 0
            self.gpus = list(named[begin : begin + self._amount])
        if not self.counters:
            busy = next((name for name in _FIRST if name in view.snapshot.values), _FIRST[0])
            self.counters = [busy, "power_w"]
        places = tuple(named.index(gpu) for gpu in self.gpus)
        return PlotChoice(tuple(self.counters), places, self.window_s, self.apart, self.zoomed)

    def _chosen_before(self) -> GpuId | None:
        """The GPU under the cursor of the screen before this one."""
        others = [one for one in (self.parent.children if self.parent else ()) if one is not self]
        found = [one.chosen for one in others if isinstance(one, ChoosesGpu)]
        return next((gpu for gpu in reversed(found) if gpu is not None), None)

    def _head(self, view: View) -> Row:
        named = view.snapshot.gpus
        place = named.index(self.gpus[0]) + 1
        several = len(self.gpus) > 1
        which = (
            f"GPUs {place}-{place + len(self.gpus) - 1} of {len(named)}" if several else f"GPU {place} of {len(named)}"
        )
        if self._requested:
            which = f"{len(self.gpus)} of {len(named)} GPUs"
        how = "separate" if self.apart else "overlaid"
        message = f"  {which}{f', {how}' if several else ''}"
        return [Segment(f"last {window_text(self.window_s)}", colours.BOLD), Segment(message)]

    def _digits(self, width: int) -> Row:
        """Keys of counters, plotted ones marked; as many as fit."""
        row: Row = []
        used = 0
        for digit, counter in _DIGITS:
            chosen = counter in self.counters
            written = f"{digit}{'*' if chosen else ' '}{_brief(counter)} "
            if used + len(written) > width:
                break
            row.append(Segment(written, colours.BOLD if chosen else colours.DIM))
            used += len(written)
        return row

    def take(self, words: str) -> None:
        """Plot the arguments of `:plot`: counters, and GPUs by name, with commas or spaces. Errors: UsageError."""
        named = {gpu.name: gpu for gpu in (self.view.snapshot.gpus if self.view else ())}
        counters: list[str] = []
        gpus: list[GpuId] = []
        for word in re.split(r"[,\s]+", words.strip()):
            if word in COUNTERS_BY_NAME:
                counters.append(word)
            elif word.lower() in COLUMNS:
                counters += COLUMNS[word.lower()]
            elif word in named:
                gpus.append(named[word])
            elif word:
                do = did_you_mean(word, [*COLUMNS, *COUNTERS_BY_NAME, *named], otherwise="Tab lists them")
                raise UsageError(f"{word!r} is no counter and no GPU", do=do)
        self.counters = list(dict.fromkeys(counters)) or self.counters
        if gpus:
            self.gpus, self._requested = list(dict.fromkeys(gpus)), True
        self.again()

    def action_put(self, counter: str) -> None:
        """Add a counter to the plots, or remove it; one always remains."""
        if counter not in self.counters:
            self.counters.append(counter)
        elif len(self.counters) > 1:
            self.counters.remove(counter)
        self.again()

    def action_next_counter(self) -> None:
        """Plot the next counter of the catalogue alone."""
        self._step_counter(1)

    def action_previous_counter(self) -> None:
        """Plot the counter before alone."""
        self._step_counter(-1)

    def _step_counter(self, by: int) -> None:
        """Skip counters that no source reports, while there are others."""
        values = self.view.snapshot.values if self.view else {}
        reported = [name for name in COUNTER_NAMES if name in values and not np.isnan(values[name]).all()] or list(
            COUNTER_NAMES
        )
        now = COUNTER_NAMES.index(self.counters[-1]) if self.counters else -1
        around = [COUNTER_NAMES[(now + by * step) % len(COUNTER_NAMES)] for step in range(1, len(COUNTER_NAMES) + 1)]
        self.counters = [next(name for name in around if name in reported)]
        self.again()

    def action_widen(self) -> None:
        """Lengthen the window."""
        self._window(1)

    def action_narrow(self) -> None:
        """Shorten the window."""
        self._window(-1)

    def _window(self, by: int) -> None:
        place = WINDOWS_S.index(self.window_s) + by
        self.window_s = WINDOWS_S[min(len(WINDOWS_S) - 1, max(0, place))]
        self.again()

    def action_zoom(self) -> None:
        """Scale to the visible values, or to the whole range."""
        self.zoomed = not self.zoomed
        self.again()

    def action_arrange(self) -> None:
        """Draw GPUs overlaid or separate."""
        self.apart = not self.apart
        self.again()

    def action_amount(self) -> None:
        """Plot the next number of GPUs."""
        self._amount = next((amount for amount in AMOUNTS if amount > len(self.gpus)), AMOUNTS[0])
        self._from(0)

    def action_next(self) -> None:
        """Plot the GPUs after the plotted ones."""
        self._from(len(self.gpus))

    def action_previous(self) -> None:
        """Plot the GPUs before."""
        self._from(-self._amount)

    def _from(self, by: int) -> None:
        named = self.view.snapshot.gpus if self.view else ()
        if not named or not self.gpus:
            return
        begin = named.index(self.gpus[0]) + by if self.gpus[0] in named else 0
        if begin >= len(named):
            begin = 0
        elif begin < 0:
            begin = max(0, len(named) - self._amount) if begin <= -self._amount else 0
        self._requested = False
        self.gpus = list(named[begin : begin + self._amount])
        self.again()


def _brief(counter: str) -> str:
    """A counter in few letters: without the common parts of such names.

    >>> _brief("sm_active"), _brief("nvlink_rx_bytes_per_s"), _brief("hbm_used_mib")
    ('sm', 'nvlink_rx', 'hbm_used')
    """
    return re.sub(r"(_active|_bytes_per_s|_mib|_w|_c)$", "", counter)
