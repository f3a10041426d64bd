"""Lines over time: chosen counters of some GPUs, over each other or each by itself."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from rich.segment import Segment
from textual.binding import BindingType

from tachograph.counters import BY_NAME, NAMES
from tachograph.errors import UsageError
from tachograph.live.snapshot import Gpu
from tachograph.live.view import View
from tachograph.tui import colours, keys
from tachograph.tui.fleet_rows import SHORT
from tachograph.tui.page import Page, Row, Rows, paragraph
from tachograph.tui.plot_layout import Choice, legend, plots, window_text
from tachograph.tui.screens import Chooses

WINDOWS_S = (60.0, 300.0, 600.0)
AMOUNTS = (1, 2, 4, 8)
# a column of the fleet -> the counters of which it is made; real utilisation and ages are none
COLUMNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **{name: (counter,) for name, counter in SHORT.items()},
        "mem": ("hbm_used_mib",),
        "nvlink": ("nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s"),
    }
)
_FIRST = ("sm_active", "gr_engine_active", "gpu_util")  # the first that is told says how busy a GPU is
_DIGITS = tuple(
    (key.shown, key.action.split("'")[1]) for key in keys.KEYS if key.place == "plot" and key.action.startswith("put")
)


class PlotScreen(Page):
    """Plots of the GPU that was chosen on the screen before, and its neighbours."""

    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings("plot")]

    def __init__(self, counters: Sequence[str] = (), gpus: Sequence[Gpu] = ()) -> None:
        super().__init__()
        self.counters = list(counters)
        self.gpus = list(gpus)
        self.window_s = WINDOWS_S[1]
        self.apart = self.zoomed = False
        self._amount = len(gpus) or 4
        self._asked = bool(gpus)

    @property
    def chosen(self) -> Gpu | None:
        """The first GPU that is plotted."""
        return self.gpus[0] if self.gpus else None

    def rows(self, view: View, width: int, height: int) -> Rows:
        """Return what is plotted, how to change it, and the plots."""
        if not view.snapshot.gpus:
            return paragraph("there are no GPUs to plot", width, colours.DIM)
        choice = self._choice(view)
        top = [self._head(view), self._digits(width), *legend(view, choice, width=width)]
        return [*top, *plots(view, choice, width=width, height=max(0, height - len(top)))]

    def _choice(self, view: View) -> Choice:
        """What is to be plotted; settled at the first view, and again where a GPU is gone."""
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
        return Choice(tuple(self.counters), places, self.window_s, self.apart, self.zoomed)

    def _chosen_before(self) -> Gpu | None:
        """The GPU under the cursor of the screen that was seen before this one."""
        others = [one for one in (self.parent.children if self.parent else ()) if one is not self]
        found = [one.chosen for one in others if isinstance(one, Chooses)]
        return next((gpu for gpu in reversed(found) if gpu is not None), None)

    def _head(self, view: View) -> Row:
        named = view.snapshot.gpus
        place = named.index(self.gpus[0]) + 1
        several = len(self.gpus) > 1
        which = (
            f"GPUs {place}-{place + len(self.gpus) - 1} of {len(named)}" if several else f"GPU {place} of {len(named)}"
        )
        if self._asked:
            which = f"{len(self.gpus)} of {len(named)} GPUs"
        how = "each by itself" if self.apart else "over each other"
        said = f"  {which}{f', {how}' if several else ''}"
        return [Segment(f"last {window_text(self.window_s)}", colours.BOLD), Segment(said)]

    def _digits(self, width: int) -> Row:
        """Which key is which counter, those that are plotted marked; as many as fit."""
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
        """Plot what stands behind `:plot`: counters, and GPUs by name, with commas or spaces. Errors: UsageError."""
        named = {gpu.name: gpu for gpu in (self.view.snapshot.gpus if self.view else ())}
        counters: list[str] = []
        gpus: list[Gpu] = []
        for word in re.split(r"[,\s]+", words.strip()):
            if word in BY_NAME:
                counters.append(word)
            elif word.lower() in COLUMNS:
                counters += COLUMNS[word.lower()]
            elif word in named:
                gpus.append(named[word])
            elif word:
                close = difflib.get_close_matches(word.lower(), [*COLUMNS, *BY_NAME, *named], n=1, cutoff=0.5)
                do = f"did you mean {close[0]}?" if close else "Tab shows those there are"
                raise UsageError(f"{word!r} is no counter and no GPU", do=do)
        self.counters = list(dict.fromkeys(counters)) or self.counters
        if gpus:
            self.gpus, self._asked = list(dict.fromkeys(gpus)), True
        self.again()

    def action_put(self, counter: str) -> None:
        """Plot a counter, too, or no longer; one is always left."""
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
        """Pass over those that nobody tells, as long as there are others."""
        values = self.view.snapshot.values if self.view else {}
        told = [name for name in NAMES if name in values and not np.isnan(values[name]).all()] or list(NAMES)
        now = NAMES.index(self.counters[-1]) if self.counters else -1
        around = [NAMES[(now + by * step) % len(NAMES)] for step in range(1, len(NAMES) + 1)]
        self.counters = [next(name for name in around if name in told)]
        self.again()

    def action_widen(self) -> None:
        """Look further back."""
        self._window(1)

    def action_narrow(self) -> None:
        """Look less far back."""
        self._window(-1)

    def _window(self, by: int) -> None:
        place = WINDOWS_S.index(self.window_s) + by
        self.window_s = WINDOWS_S[min(len(WINDOWS_S) - 1, max(0, place))]
        self.again()

    def action_zoom(self) -> None:
        """Scale to what is seen, or to all that may be."""
        self.zoomed = not self.zoomed
        self.again()

    def action_arrange(self) -> None:
        """Draw GPUs over each other, or each by itself."""
        self.apart = not self.apart
        self.again()

    def action_amount(self) -> None:
        """Plot the next number of GPUs."""
        self._amount = next((amount for amount in AMOUNTS if amount > len(self.gpus)), AMOUNTS[0])
        self._from(0)

    def action_next(self) -> None:
        """Plot the GPUs behind those that are plotted."""
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
        self._asked = False
        self.gpus = list(named[begin : begin + self._amount])
        self.again()


def _brief(counter: str) -> str:
    """A counter in few letters: without what all of its kind have.

    >>> _brief("sm_active"), _brief("nvlink_rx_bytes_per_s"), _brief("hbm_used_mib")
    ('sm', 'nvlink_rx', 'hbm_used')
    """
    return re.sub(r"(_active|_bytes_per_s|_mib|_w|_c)$", "", counter)
