"""A list of events by time, kind and GPU."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import BindingType

from tachograph.catalog.errors import UsageError
from tachograph.catalog.units import plural, printable
from tachograph.live.snapshot import GpuId
from tachograph.live.view import EventKind, LiveEvent, View
from tachograph.tui import colours, keys
from tachograph.tui.page import Page, PageRows, Row, cell, clock, join_parts, paragraph, under_cursor
from tachograph.tui.screens import OpenScreen

ALARM, QUIET = "!", " "
_KIND = 9
_STYLES: Mapping[EventKind, Style] = MappingProxyType(
    {EventKind.CLASS: colours.DIM, EventKind.JOB: colours.GROUP, EventKind.THROTTLE: colours.NOTICE}
)


def event_row(event: LiveEvent, now: float, *, width: int, with_gpu: bool = True, name_width: int = 14) -> Row:
    """Return an event as one row; time of day, with the date if it was a day ago or more."""
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
    events: Sequence[LiveEvent], *, kinds: Collection[EventKind] = (), gpu: GpuId | None = None, alarms: bool = False
) -> list[LiveEvent]:
    """Return events newest first: of some kinds (all by default), of one GPU, only alarms.

    >>> happened = [LiveEvent(1, EventKind.XID, None, "a", alarm=True), LiveEvent(2, EventKind.CLASS, None, "b")]
    >>> [one.text for one in filtered(happened)], [one.text for one in filtered(happened, alarms=True)]
    (['b', 'a'], ['a'])
    """
    return [
        event
        for event in reversed(events)
        if (not kinds or event.kind in kinds) and (gpu is None or event.gpu == gpu) and (event.alarm or not alarms)
    ]


_KINDS: tuple[EventKind | None, ...] = (None, *EventKind)


class EventsScreen(Page):
    """All stored events; follows the newest until the cursor is moved."""

    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings("events")]

    def __init__(self) -> None:
        super().__init__()
        self.only: EventKind | None = None
        self.gpu: GpuId | None = None
        self.alarms = False
        self.bell = False
        self._pinned: LiveEvent | None = None  # under the cursor; None: the newest is followed
        self._rung: LiveEvent | None = None
        self._seen: list[LiveEvent] = []

    @property
    def chosen(self) -> GpuId | None:
        """The GPU of the event under the cursor."""
        event = self._seen[self.cursor] if self._seen else None
        return event.gpu if event else None

    @property
    def cursor(self) -> int:
        """Which of the shown events is under the cursor."""
        if self._pinned is None:
            return 0
        return next((place for place, event in enumerate(self._seen) if event is self._pinned), 0)

    def show(self, view: View) -> None:
        """Show a new view, and ring the bell for its new alarms."""
        newest = next((event for event in reversed(view.events) if event.alarm), None)
        if self.bell and newest is not None and newest is not self._rung:
            self.app.bell()
        self._rung = newest
        height_of_cursor = self.cursor - self.scroll_offset.y
        super().show(view)
        if self._pinned is not None:
            self.scroll_to(y=self.cursor - height_of_cursor, animate=False)

    def rows(self, view: View, width: int, height: int) -> PageRows:
        """Return a line on filters, and the events."""
        kinds = () if self.only is None else (self.only,)
        self._seen = filtered(view.events, kinds=kinds, gpu=self.gpu, alarms=self.alarms)
        if self._pinned is not None and not any(event is self._pinned for event in self._seen):
            self._pinned = None  # no longer stored, or filtered out
        if not self._seen:
            nothing = "no events yet" if not view.events else "no event matches"
            return [self._head(view), *paragraph(nothing, width, colours.DIM)]
        name_width = max((len(gpu.name) for gpu in view.snapshot.gpus), default=8)
        return _Events(self._head(view), self._seen, view.snapshot.t, self.cursor, width, min(name_width, 24))

    def _head(self, view: View) -> Row:
        shown = plural(len(self._seen), "event")
        filters = join_parts(
            [
                f"only {self.only.value}" if self.only else "",
                f"only {self.gpu.name}" if self.gpu else "",
                "only alarms" if self.alarms else "",
                "bell on" if self.bell else "",
                "follows the newest" if self._pinned is None else "position held (Home: newest)",
            ]
        )
        alarms = plural(sum(event.alarm for event in view.events), "alarm")
        return [Segment(f"{shown}, {alarms} since the start", colours.BOLD), Segment(f"  {filters}", colours.DIM)]

    def _changed(self) -> None:
        self.again()
        line = self.cursor + 1
        top, height = int(self.scroll_offset.y), self.size.height
        if self._pinned is None:
            self.scroll_to(y=0, animate=False)
        elif not top < line < top + height - 1:
            self.scroll_to(y=max(0, line - height // 2), animate=False)

    def take(self, words: str) -> None:
        """Show only events of a kind, as given to `:events`; all without one. Errors: UsageError for another word."""
        try:
            self.only = EventKind(words.strip().lower()) if words.strip() else None
        except ValueError:
            kinds = ", ".join(EventKind)
            raise UsageError(f"unknown event type {words.strip()!r}", do=f"use one of: {kinds}") from None
        self._changed()

    def dismiss(self) -> bool:
        """Clear the filters of events; False without any."""
        left_out = self.only is not None or self.gpu is not None or self.alarms
        if left_out:
            self.only, self.gpu, self.alarms = None, None, False
            self._changed()
        return left_out

    def action_move(self, by: int) -> None:
        """Move the cursor, and keep it on its event."""
        if self._seen:
            self._pinned = self._seen[min(len(self._seen) - 1, max(0, self.cursor + by))]
            self._changed()

    def action_follow(self) -> None:
        """Move to the newest event and follow it."""
        self._pinned = None
        self._changed()

    def action_choose(self) -> None:
        """Focus on the GPU of the event."""
        if self.chosen is not None:
            self.post_message(OpenScreen("focus", self.chosen))

    def action_kind(self) -> None:
        """Show only the next kind of event; after the last all."""
        self.only = _KINDS[(_KINDS.index(self.only) + 1) % len(_KINDS)]
        self._changed()

    def action_of_gpu(self) -> None:
        """Show only events of the GPU under the cursor, or of all again."""
        self.gpu = self.chosen if self.gpu is None else None
        self._changed()

    def action_alarms(self) -> None:
        """Show only alarms, or all."""
        self.alarms = not self.alarms
        self._changed()

    def action_bell(self) -> None:
        """Ring the bell at alarms, or not."""
        self.bell = not self.bell
        self._changed()


class _Events:
    """Rows of events, made when they are drawn."""

    def __init__(
        self, head: Row, events: Sequence[LiveEvent], now: float, cursor: int, width: int, name_width: int
    ) -> None:
        self._head, self._events, self._now, self._cursor = head, events, now, cursor
        self._width, self._name_width = width, name_width

    def __len__(self) -> int:
        return len(self._events) + 1

    def __getitem__(self, place: int) -> Row:
        if place == 0:
            return self._head
        row = event_row(self._events[place - 1], self._now, width=self._width, name_width=self._name_width)
        if place - 1 == self._cursor:
            return under_cursor(row)
        return row
