"""Events as rows: when, a sign for an alarm, what kind, which GPU, what happened."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from rich.segment import Segment
from rich.style import Style

from tachograph.live.snapshot import Gpu
from tachograph.live.view import Event, EventKind
from tachograph.tui import colours
from tachograph.tui.page import Row, cell, clock
from tachograph.units import printable

ALARM, QUIET = "!", " "
_KIND = 9
_STYLES: Mapping[EventKind, Style] = MappingProxyType(
    {EventKind.CLASS: colours.DIM, EventKind.JOB: colours.GROUP, EventKind.THROTTLE: colours.NOTICE}
)


def event_row(event: Event, now: float, *, width: int, with_gpu: bool = True, name_width: int = 14) -> Row:
    """Return an event as one row; times of the day, with the date of what was a day ago."""
    style = colours.ALARM if event.alarm else colours.PLAIN
    kind = colours.ALARM if event.alarm else _STYLES.get(event.kind, colours.PLAIN)
    row: Row = [
        Segment(f"{ALARM if event.alarm else QUIET} ", style),
        Segment(f"{clock(event.t, now):<12}" if now - event.t >= 86400 else f"{clock(event.t, now)}  ", colours.DIM),
        cell(event.kind.value, _KIND, kind),
    ]
    if with_gpu:
        row += [cell(event.gpu.name if event.gpu else "source", name_width, style), Segment(" ")]
    used = sum(part.cell_length for part in row)
    return [*row, cell(printable(event.text), max(0, width - used), style)]


def filtered(
    events: Sequence[Event], *, kinds: Collection[EventKind] = (), gpu: Gpu | None = None, alarms: bool = False
) -> list[Event]:
    """Return events newest first: of some kinds (all where none is given), of one GPU, only alarms.

    >>> happened = [Event(1, EventKind.XID, None, "a", alarm=True), Event(2, EventKind.CLASS, None, "b")]
    >>> [one.text for one in filtered(happened)], [one.text for one in filtered(happened, alarms=True)]
    (['b', 'a'], ['a'])
    """
    return [
        event
        for event in reversed(events)
        if (not kinds or event.kind in kinds) and (gpu is None or event.gpu == gpu) and (event.alarm or not alarms)
    ]
