"""The terminal program: header, one screen, footer; passes views to the visible screen."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import ClassVar, cast

from textual import events
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input

from tachograph.annexes.watch.live.feed import FeedFailure, SnapshotJudge, ViewFeed
from tachograph.annexes.watch.live.snapshot import GpuId, LiveSource, SourceProblem
from tachograph.annexes.watch.live.view import FleetView
from tachograph.annexes.watch.tui import colours, keys
from tachograph.annexes.watch.tui.fleet import FleetScreen
from tachograph.annexes.watch.tui.focus import FocusScreen
from tachograph.annexes.watch.tui.header import HeaderState, Lines, Prompt, footer, header
from tachograph.annexes.watch.tui.help import HelpScreen
from tachograph.annexes.watch.tui.job import JobScreen
from tachograph.annexes.watch.tui.screens import (
    ChoosesGpu,
    Dismissible,
    OpenScreen,
    ShowNote,
    ShowsView,
)
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import UsageError
from tachograph.judge.workload.settings import WorkloadSettings

FASTEST_S, SLOWEST_S = 0.1, 60.0  # between two polls
_NOTE_S = 8.0  # a note is shown for so long before the keys
_DEEPEST = 20  # screens kept for Esc
# name of a screen: its class, and of what it is: a GPU, a job by its name, ""
SCREENS: Mapping[str, tuple[Callable[..., Widget], str]] = MappingProxyType(
    {
        "fleet": (FleetScreen, ""),
        "focus": (FocusScreen, "gpu"),
        "job": (JobScreen, "job"),
        "help": (HelpScreen, ""),
    }
)


class Arrived(Message):
    """The feed has a new result."""


class WatchApp(App[int]):
    """Shows one source. judge: None for the monitor; job: its screen comes first.

    configuration: for the evaluation of jobs, with thresholds of their classes.
    """

    CSS = """
    Screen { overflow: hidden; }
    #body { height: 1fr; overflow: hidden; }
    #body > * { height: 1fr; width: 1fr; }
    Lines { height: 1; }
    """
    TITLE = "tachograph watch"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings("")]

    def __init__(
        self,
        source: LiveSource,
        *,
        interval_s: float,
        settings: WorkloadSettings | None = None,
        history_s: float = 600.0,
        job: str | None = None,
        judge: SnapshotJudge | None = None,
        configuration: Configuration | None = None,
    ) -> None:
        super().__init__(ansi_color=True)
        self.animation_level = "none"
        self.theme = "ansi-dark"
        self.settings = settings or WorkloadSettings()
        self.configuration = configuration or Configuration()
        self.view: FleetView | None = None
        self.paused = False
        self.failure: FeedFailure | None = None
        self._job = job
        self._newest: FleetView | None = None
        self._waiting = False
        self._note, self._noted = "", 0.0
        self._opened: list[tuple[str, GpuId | str | None, Widget]] = []
        self._writing = False  # whether a filter is being written
        self._takes_keys = True  # False while the line is not mounted yet, or is being removed
        self._typed_ahead: list[events.Key] = []
        self.filter_before = ""

        def monitor() -> SnapshotJudge:
            from tachograph.annexes.watch.live.monitor import Monitor
            from tachograph.annexes.watch.live.view import GpuHistory

            history = GpuHistory(max(60, round(history_s / interval_s)))
            return judge or Monitor(source.about, settings=self.settings, history=history)

        self.feed = ViewFeed(source, monitor, interval_s=interval_s, deliver=self.deliver)

    def compose(self) -> ComposeResult:
        """Lay out header, body, footer."""
        yield Lines(id="header")
        yield Vertical(id="body")
        yield Lines(id="footer")

    def on_mount(self) -> None:
        """Open the first screen and start polling."""
        if not self.is_headless:
            # Without it the terminal would stay in the mode of a screen.
            for number in (signal.SIGTERM, signal.SIGHUP):
                asyncio.get_running_loop().add_signal_handler(number, self.exit, 128 + number)
            asyncio.get_running_loop().add_signal_handler(signal.SIGCONT, self._go_on)
        self.open("fleet")
        if self._job is not None:
            self.open("job", self._job)
        self.start()

    def _go_on(self) -> None:
        """Redraw after a stop; the terminal must re-enter the alternate screen.

        If entered twice, as Textual does after SIGSTOP, it saves its own terminal mode as the one
        to restore.
        """
        driver = self._driver
        if driver is not None and getattr(driver, "_must_signal_resume", False):
            driver.resume_application_mode()
        self.refresh(layout=True)

    def start(self) -> None:
        """Start the feed."""
        self.feed.start()

    def on_unmount(self) -> None:
        """Stop polling."""
        self.feed.stop()

    # --- results of the feed

    def deliver(self, came: FleetView | FeedFailure) -> None:
        """Accept a poll's result from any thread, replacing one not yet shown."""
        if isinstance(came, FleetView):
            self._newest, self.failure = came, None
        else:
            self.failure = came
        if not self._waiting and self.is_running:
            self._waiting = True
            self.post_message(Arrived())

    def on_arrived(self) -> None:
        """Show the newest result; skipped ones are in the history."""
        self._waiting = False
        # Textual's timer for it never ticks where 8 ms are lost to other programs.
        if self._resize_event is not None:
            self._check_resize()
        if not self.paused:
            self.view = self._newest
        self.show_view()

    def show_view(self) -> None:
        """Pass the view to the visible screen, and update header and footer."""
        visible = self.visible_screen
        if self.view is not None and isinstance(visible, ShowsView):
            with self.feed.lock:
                visible.show(self.view)
        self.redraw()

    # --- screens

    @property
    def visible_screen(self) -> Widget:
        """The visible screen."""
        return self._opened[-1][2]

    @property
    def screen_name(self) -> str:
        """Name of the visible screen."""
        return self._opened[-1][0] if self._opened else ""

    @property
    def fleet(self) -> Widget:
        """The fleet, the first of all screens."""
        return self._opened[0][2]

    @property
    def selected_gpu(self) -> GpuId | None:
        """The GPU under the cursor of the visible screen, or else of the fleet."""
        for widget in (self.visible_screen, self.fleet):
            if isinstance(widget, ChoosesGpu) and widget.selected_gpu is not None:
                return widget.selected_gpu
        return None

    def open(self, name: str, of: GpuId | str | None = None) -> None:
        """Show a screen, keeping the previous one for Esc; raise it if open."""
        body = self.query_one("#body")
        if not body.is_attached:  # keys pressed while the program ends
            return
        make_screen, about = SCREENS[name]
        if about and of is None:
            of = self.selected_gpu if about == "gpu" else self._job_of_selected()
            if of is None:
                self.show_note("no GPU selected" if about == "gpu" else "no job known on this GPU")
                return
        for depth, (opened, whose, _) in enumerate(self._opened):
            if (opened, whose) == (name, of):
                self._close(len(self._opened) - depth - 1)
                return
        if len(self._opened) == _DEEPEST:
            self._opened.pop(1)[2].remove()
        if self._opened:
            self.visible_screen.display = False
        widget = make_screen(of) if about else make_screen()
        self._opened.append((name, of, widget))
        body.mount(widget)
        self.call_after_refresh(self._settle)

    def _close(self, count: int) -> None:
        for _ in range(count):
            self._opened.pop()[2].remove()
        self.visible_screen.display = True
        self.call_after_refresh(self._settle)

    def _settle(self) -> None:
        if not self._writing:
            self.visible_screen.focus()
        self.show_view()

    def _job_of_selected(self) -> str | None:
        if self.view and self.selected_gpu:
            allocation = self.view.snapshot.allocations.get(self.selected_gpu)
            if allocation:
                return allocation.name_on(self.selected_gpu) or None
        return self._job

    def on_open_screen(self, message: OpenScreen) -> None:
        """A screen opens another."""
        self.open(message.name, message.of)

    def on_show_note(self, message: ShowNote) -> None:
        """A screen shows a note."""
        self.show_note(message.sentence)

    def on_fleet_screen_changed(self) -> None:
        """Update the header with order and filter of the fleet."""
        self.redraw()

    # --- keys

    def action_open(self, name: str) -> None:
        """Open a screen; for a GPU or a job, that under the cursor."""
        self.open(name)

    def action_help(self) -> None:
        """Show the help, or hide it."""
        self._close(1) if self.screen_name == "help" else self.open("help")

    async def action_back(self) -> None:
        """Clear filter or selection of the screen, or return to the one before."""
        visible = self.visible_screen
        if isinstance(visible, Dismissible) and visible.dismiss():
            return
        if len(self._opened) > 1:
            self._close(1)

    def action_pause(self) -> None:
        """Pause, or continue."""
        self.paused = not self.paused
        self.on_arrived()

    def action_slower_polls(self) -> None:
        """Double the poll interval."""
        self.pace(self.feed.interval_s * 2)

    def action_faster_polls(self) -> None:
        """Halve the poll interval."""
        self.pace(self.feed.interval_s / 2)

    def pace(self, interval_s: float) -> None:
        """Set the poll interval, within limits."""
        self.feed.pace(min(SLOWEST_S, max(FASTEST_S, interval_s)))
        self.show_note(f"polls every {self.feed.interval_s:g} s")

    def action_suspend(self) -> None:
        """Suspend the whole process group like other programs; the shell's `fg` continues it."""
        if self._driver is None or not self._driver.can_suspend or not _has_shell():
            self.show_note("not suspended: no shell to continue it")
            return
        # The terminal is restored before others of the group stop and the shell takes it.
        with self.suspend():
            os.killpg(os.getpgrp(), signal.SIGTSTP)

    async def action_quit(self) -> None:
        """End."""
        self.exit(0)

    # --- the input line

    @property
    def _filtered(self) -> FleetScreen:
        return cast("FleetScreen", self.fleet)

    def action_filter(self) -> None:
        """Show the filter's input line instead of the footer."""
        if self._writing:
            return
        self._writing, self._takes_keys = True, False
        self.filter_before = self._filtered.filter
        self.query_one("#footer").display = False
        self.mount(Prompt(self.filter_before))

    async def on_event(self, event: events.Event) -> None:
        """Keep keys that are pressed before the input line is ready."""
        # A forwarded key bubbles up a second time.
        if isinstance(event, events.Key) and not event.is_forwarded:
            if not self._takes_keys:
                self._typed_ahead.append(event)
                return
            ends = self._writing and event.key in ("enter", "escape")
            if ends or (not self._writing and event.key in keys.prompting(self.screen_name)):
                self._takes_keys = False
        await super().on_event(event)

    async def _take_keys(self) -> None:
        self._takes_keys = True
        while self._typed_ahead and self._takes_keys:
            await self.on_event(self._typed_ahead.pop(0))

    async def on_prompt_ready(self) -> None:
        """Pass the keys typed meanwhile to the input line."""
        await self._take_keys()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Apply the filter while typing; ignore an invalid one."""
        self.filter_by(event.value)

    async def on_input_submitted(self, event: Input.Submitted) -> None:
        """Apply the typed filter."""
        await self._end_filter(event.value)

    async def on_line_given_up(self) -> None:
        """Restore the filter from before."""
        await self._end_filter(self.filter_before)

    async def _end_filter(self, written: str) -> None:
        await self.query("Prompt").remove()
        self.query_one("#footer").display = True
        self._writing = False
        self.screen.set_focus(self.visible_screen)
        self.filter_by(written)
        await self._take_keys()

    def filter_by(self, written: str) -> None:
        """Show only GPUs that match a filter; report why one is invalid."""
        note = ""
        try:
            self._filtered.filter_by(written)
        except UsageError as error:
            self._filtered.filter_by(self.filter_before)
            note = str(error)
        self.show_note(note)

    # --- header and footer

    def show_note(self, note: str) -> None:
        """Show a sentence for a while."""
        self._note, self._noted = note, time.monotonic()
        self.redraw()

    def on_key(self, event: events.Key) -> None:
        """A key without binding removes a note."""
        if self._note and not self._writing:
            self.show_note("")

    def on_resize(self) -> None:
        """Fit header and footer."""
        self.redraw()

    def redraw(self) -> None:
        """Write header and footer."""
        if not self._opened or not self.is_running:
            return
        width = self.size.width
        if self._note and not self._writing and time.monotonic() - self._noted > _NOTE_S:
            self._note = ""
        pace = f"every {self.feed.interval_s:g} s"
        summary = (
            getattr(self.fleet, "summary", "") if self.screen_name == "fleet" else self.screen_name
        )
        problems = list(self._problems())
        if self.failure:
            problems.insert(0, self.failure.problem)
        state = HeaderState(pace, paused=self.paused, summary=summary, problems=problems)
        above = header(self.view, state, width=width)
        below = footer(self.screen_name, width=width)
        if self._note:
            below = [(self._note[:width], colours.NOTE)]
            if self._writing:
                above = [*above, below]
        self.query_one("#header", Lines).redraw(above)
        self.query_one("#footer", Lines).redraw([below])

    def _problems(self) -> tuple[SourceProblem, ...]:
        return self.view.snapshot.problems if self.view is not None else ()


def _has_shell() -> bool:
    """Whether a shell with job control waits: it puts commands into groups of their own.

    Without one (first program of a container, `srun --pty`, only command of a terminal) nothing
    could continue a stopped process.
    """
    return os.getpgrp() != os.getsid(0)
