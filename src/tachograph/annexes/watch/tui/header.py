"""Lines around a screen: header, footer, and the input line of the filter."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input, Static

from tachograph.annexes.watch.live.looks import count_marks, count_states, looks
from tachograph.annexes.watch.live.snapshot import SourceProblem
from tachograph.annexes.watch.live.unsupported import deciding_counters
from tachograph.annexes.watch.live.view import FleetView
from tachograph.annexes.watch.tui import colours, keys
from tachograph.annexes.watch.tui.page import Pieces
from tachograph.catalog.units import plural, printable
from tachograph.report.tables import cut

_PROBLEMS = 2  # lines of problems, at most


@dataclass(frozen=True, slots=True)
class HeaderState:
    """State besides a view. interval: poll interval in words; summary: of the screen."""

    interval: str
    paused: bool = False
    summary: str = ""
    problems: Sequence[SourceProblem] = ()


class Lines(Widget):
    """A few lines; only changed ones are redrawn."""

    def __init__(self, *, id: str) -> None:  # noqa: A002  as Textual names it
        super().__init__(id=id)
        self._strips: list[Strip] = []

    def redraw(self, lines: Sequence[Pieces]) -> None:
        """Show these."""
        strips = [
            Strip([Segment(printable(text), style) for text, style in line]) for line in lines
        ]
        if len(strips) != len(self._strips):
            self.styles.height = len(strips)
        if strips != self._strips:
            self._strips = strips
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """Draw one."""
        strip = self._strips[y] if y < len(self._strips) else Strip([])
        return strip.adjust_cell_length(self.size.width)


def header(view: FleetView | None, state: HeaderState, *, width: int) -> list[Pieces]:
    """Return the lines above a screen."""
    if view is None:
        return [[("tachograph watch", colours.BOLD)], *_problems(state.problems, width=width)]
    lines = [_source(view, state, width=width), *_counts(view, width=width)]
    unsupported = _unsupported(view, width=width)
    return [
        *lines,
        *([unsupported] if unsupported else []),
        *_problems(state.problems, width=width),
    ]


def footer(screen: str, *, width: int) -> Pieces:
    """Return the keys of a screen, as many as fit; how to quit always."""
    shown = [(key, key.shown.split()[0]) for key in keys.shown(screen)]
    rest = width - sum(_room(key, name) for key, name in shown if key.action == "quit")
    drawn_keys: Pieces = []
    for key, name in shown:
        if key.action != "quit":
            if _room(key, name) > rest:
                continue
            rest -= _room(key, name)
        drawn_keys += [(name, colours.KEY), (f" {key.short}  ", colours.PLAIN)]
    return drawn_keys


def _room(key: keys.ScreenKey, name: str) -> int:
    return cell_len(name) + len(key.short) + 3


def _source(view: FleetView, state: HeaderState, *, width: int) -> Pieces:
    at = time.strftime("%H:%M:%S", time.localtime(view.snapshot.t))
    right = f"{state.interval}  {at} "
    paused: Pieces = [(" PAUSED ", colours.CURSOR), (" ", colours.PLAIN)] if state.paused else []
    room = width - len(right) - sum(len(text) for text, _ in paused)
    summary = f"  {printable(state.summary)}" if state.summary else ""
    message = cut(printable(view.about.sentence), max(12, room - 1 - len(summary)))
    return [
        (cut(f"{message}{summary}", room - 1).ljust(room), colours.BOLD),
        *paused,
        (right, colours.PLAIN),
    ]


def _counts(view: FleetView, *, width: int) -> list[Pieces]:
    """Number of GPUs by limit and health: words, on two lines if needed; else letters."""
    counts = count_marks(looks(view))
    healths = [(state, count) for state, count in count_states(view.health).items() if count]
    lost = int((~view.current).sum())
    for lines, wordy, gap in (
        (1, True, "  "),
        (1, True, " "),
        (2, True, "  "),
        (2, True, " "),
        (2, False, " "),
    ):
        gpus: Pieces = [(f"{plural(len(view.snapshot.gpus), 'GPU')}{gap}", colours.PLAIN)]
        limits: Pieces = []
        for look in colours.SHOWN_LOOKS:
            if count := counts[look.mark]:
                name = f" {look.name}" if wordy else ""
                limits.append((f"{look.mark} {count}{name}{gap}", look.style))
        states_of: Pieces = [("│ ", colours.DIM)]
        for state, count in healths:
            states_of.append((f"{colours.state_text(state)} {count}", colours.HEALTH_STYLES[state]))
            states_of.append((gap, colours.PLAIN))
        if lost:
            states_of.append((f"{lost} without values", colours.ALARM))
        counted = [[*gpus, *limits, *states_of]] if lines == 1 else [[*gpus, *states_of], limits]
        if all(_cells(line) - len(gap) <= width for line in counted):
            break
    return counted


def _cells(line: Pieces) -> int:
    return sum(cell_len(text) for text, _ in line)


def _unsupported(view: FleetView, *, width: int) -> Pieces:
    count, deciding = len(view.about.unsupported), deciding_counters(view.about)
    if not count:
        return []
    names = f": classes need {', '.join(deciding)}" if deciding else ""
    how = " (? for details)"
    return [
        (
            cut(f"{plural(count, 'counter')} unsupported{names}", width - len(how)) + how,
            colours.NOTICE,
        )
    ]


def _problems(problems: Sequence[SourceProblem], *, width: int) -> list[Pieces]:
    shown: list[Pieces] = []
    for problem in problems[:_PROBLEMS]:
        style = colours.ALARM if problem.fatal else colours.NOTICE
        shown.append([(cut(f"! {printable(problem.sentence)}", width), style)])
    if len(problems) > _PROBLEMS:
        shown[-1] = [
            (
                f"! {plural(len(problems) - _PROBLEMS + 1, 'more problem')} (? lists them)",
                colours.NOTICE,
            )
        ]
    return shown


class Prompt(Horizontal):
    """The input line of the filter; its text and its end are reported by `Line`."""

    DEFAULT_CSS = """
    Prompt { height: 1; }
    Prompt Static { width: auto; text-style: bold; }
    """

    class Ready(Message):
        """The line takes keys."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Lay out sign and line."""
        yield Static("filter ")
        yield Line(self._text)

    def on_mount(self) -> None:
        """Focus the input."""
        self.screen.set_focus(self.query_one(Line))
        self.post_message(self.Ready())


class Line(Input):
    """An input cancelled by Esc, or by Backspace if empty."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,ctrl+c,ctrl+g", "give_up", show=False)]

    class GivenUp(Message):
        """The input is cancelled."""

    def __init__(self, text: str) -> None:
        super().__init__(text, compact=True, select_on_focus=False)
        self.cursor_blink = False

    def action_give_up(self) -> None:
        """Cancel."""
        self.post_message(self.GivenUp())

    def action_delete_left(self) -> None:
        """Delete a letter; cancel the input if it is empty."""
        if self.value:
            super().action_delete_left()
        else:
            self.action_give_up()
