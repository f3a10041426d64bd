"""One GPU: who it is, whom it works for, class and health with reasons, every counter, processes, what happened."""

from __future__ import annotations

from itertools import islice
from typing import ClassVar

from rich.segment import Segment
from textual.binding import BindingType

from tachograph.live.judged_reasons import reasons
from tachograph.live.snapshot import Gpu
from tachograph.live.view import View
from tachograph.tui import colours, keys
from tachograph.tui.events_rows import event_row
from tachograph.tui.focus_counters import counters, untold
from tachograph.tui.focus_reasons import classed_and_healthy
from tachograph.tui.page import MISSING, Page, Row, Rows, beside, cell, heading, paragraph, quantity, words
from tachograph.units import printable

WIDE = 110  # characters from which there are two columns
_COUNTERS_AT_MOST = 100  # characters: longer histories than that tell no more
_STALE_S = 5.0  # from which on the age of values is worth a word
_EVENTS = 12


class FocusScreen(Page):
    """One GPU, and on to the next."""

    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings("focus")]

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self.gpu = gpu

    @property
    def chosen(self) -> Gpu | None:
        """The GPU that is shown."""
        return self.gpu

    def rows(self, view: View, width: int, height: int) -> Rows:
        """Return all that is known of the GPU."""
        return focus(view, self.gpu, width=width)

    def action_next(self) -> None:
        """Show the next GPU."""
        self._step(1)

    def action_previous(self) -> None:
        """Show the one before."""
        self._step(-1)

    def _step(self, by: int) -> None:
        gpus = self.view.snapshot.gpus if self.view else ()
        if gpus:
            place = gpus.index(self.gpu) + by if self.gpu in gpus else 0
            self.gpu = gpus[place % len(gpus)]
            self.scroll_home(animate=False)
            self.again()


def focus(view: View, gpu: Gpu, *, width: int) -> list[Row]:
    """Return one GPU in rows of `width` characters: one column, or two where the terminal is wide."""
    if gpu not in view.snapshot.gpus:
        return paragraph(f"{gpu.name} is not among the GPUs that the source names now", width, colours.NOTICE)
    row = view.snapshot.gpus.index(gpu)
    top = identity(view, row, width=width)
    if width < WIDE:
        parts = (*classed_and_healthy(view, row, width=width, rules=False), *counters(view, row, width=width))
        return [*top, *parts, *surroundings(view, row, width=width)]
    left = min(_COUNTERS_AT_MOST, width * 11 // 20)
    right = width - left - 3
    beside_them = [
        *classed_and_healthy(view, row, width=right, rules=width >= WIDE + 40),
        *surroundings(view, row, width=right),
    ]
    return [*top, *beside([counters(view, row, width=left), beside_them], [left, right], gap=3)]


def identity(view: View, row: int, *, width: int) -> list[Row]:
    """Return which GPU it is, how it is in one line, and whom it works for."""
    snapshot, label, state = view.snapshot, view.label(row), view.state(row)
    gpu = snapshot.gpus[row]
    device = snapshot.devices.get(gpu)
    first: Row = [
        Segment(f"{gpu.name}  ", colours.BOLD),
        Segment(colours.class_text(label), colours.class_style(label)),
        Segment(f"  real {quantity(float(view.real[row]), 'fraction')}  "),
        Segment(colours.state_text(state), colours.HEALTH_STYLES[state]),
        *_age(view, row),
        Segment(f"  {row + 1} of {len(snapshot.gpus)}", colours.DIM),
    ]
    mig = "" if gpu.mig is None else f"MIG slice {gpu.mig}"
    board = words(
        [
            (device.model if device else None) or "model not told",
            f"node {gpu.node}",
            f"GPU {gpu.gpu}",
            mig,
            quantity(device.hbm_mib, "MiB") if device and device.hbm_mib else "",
        ]
    )
    where = words([(device.uuid if device else None) or "", f"PCI {device.pci}" if device and device.pci else ""])
    return [
        first,
        *paragraph(printable(board), width),
        *(paragraph(printable(where), width, colours.DIM) if where else []),
        *paragraph(_held(view, gpu), width),
    ]


def _held(view: View, gpu: Gpu) -> str:
    holder = view.snapshot.holders.get(gpu)
    if holder is None:
        return "held by nobody that is known"
    since = "" if holder.since is None else f"for {quantity(max(0.0, view.snapshot.t - holder.since), 's')}"
    return printable(words([f"job {holder.job_id or MISSING}", f"user {holder.user or MISSING}", since]))


def _age(view: View, row: int) -> Row:
    """A word on values that are old, or not there."""
    if not view.told[row]:
        return [Segment("  tells nothing now", colours.ALARM)]
    age = float(view.stale_s[row])
    return [Segment(f"  values {quantity(age, 's')} old", colours.NOTICE)] if age > _STALE_S else []


def surroundings(view: View, row: int, *, width: int) -> list[Row]:
    """Return processes, what happened to the GPU, and what the source does not tell."""
    gpu = view.snapshot.gpus[row]
    rows = [heading("Processes", width), *processes(view, gpu, width=width), heading("Events", width)]
    happened = list(islice((event for event in reversed(view.events) if event.gpu == gpu), _EVENTS))
    rows += [event_row(event, view.snapshot.t, width=width, with_gpu=False) for event in happened]
    if not happened:
        rows += paragraph("none since the start", width, colours.DIM)
    found = reasons(view, row)
    said = (*found.classified.needs, *found.health.needs) if view.told[row] else ()
    sentences = untold(view, but=said)
    if sentences:
        rows.append(heading("Not told either" if said else "Not told", width))
        rows += [line for sentence in sentences for line in paragraph(sentence, width, colours.DIM, indent=2)]
    return rows


def processes(view: View, gpu: Gpu, *, width: int) -> list[Row]:
    """Return the processes on a GPU, the one with most memory first."""
    found = sorted(view.snapshot.processes.get(gpu, ()), key=lambda one: -(one.hbm_used_mib or 0.0))
    if not found:
        return paragraph("none is known", width, colours.DIM)
    rows: list[Row] = [[cell("     pid user             memory  command", width, colours.DIM)]]
    for one in found:
        user, command = printable(one.user or MISSING), printable(one.command or MISSING)
        rows.append(
            [
                cell(str(one.pid), 8, right=True),
                Segment(" "),
                cell(user, 12),
                cell(quantity(one.hbm_used_mib, "MiB"), 11, right=True),
                Segment("  "),
                cell(command, max(0, width - 34)),
            ]
        )
    return rows
