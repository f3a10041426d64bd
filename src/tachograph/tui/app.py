"""The program of screens: header, one screen, footer; views come from the feed and go to the screen that is seen."""

from __future__ import annotations

import time
from typing import ClassVar

from rich.segment import Segment
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from tachograph.live.snapshot import Gpu, Problem
from tachograph.live.source import LiveSource
from tachograph.live.view import View
from tachograph.tui import colours, keys
from tachograph.tui.feed import Failure, Feed, Judge
from tachograph.tui.screens import Chooses, Open, Shows, make
from tachograph.workload.settings import Settings


class Arrived(Message):
    """The feed has something new."""


class WatchApp(App[int]):
    """Shows one source. judge: None for the monitor; job: whose screen is the first, where one job is watched."""

    CSS = """
    Screen { overflow: hidden; layers: base; }
    #body { height: 1fr; overflow: hidden; }
    #body > * { height: 1fr; width: 1fr; }
    Bar { height: 1; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings("")]

    def __init__(
        self,
        source: LiveSource,
        *,
        interval_s: float,
        settings: Settings | None = None,
        history_s: float = 600.0,
        job: str | None = None,
        judge: Judge | None = None,
    ) -> None:
        super().__init__(ansi_color=True)
        self.animation_level = "none"
        self.theme = "ansi-dark"
        self.job = job
        self.feed = Feed(
            source,
            judge or _monitor(source, settings, interval_s=interval_s, history_s=history_s),
            interval_s=interval_s,
            deliver=self._deliver,
        )
        self.view: View | None = None
        self.paused = False
        self.note = ""
        self._newest: View | None = None
        self._failure: Failure | None = None
        self._opened: list[tuple[str, Widget]] = []

    def compose(self) -> ComposeResult:
        """Lay out header, body, footer."""
        yield Bar(id="header")
        yield Vertical(id="body")
        yield Bar(id="footer")

    def on_mount(self) -> None:
        """Open the first screen and begin to ask."""
        self.open("job", self.job) if self.job else self.open("fleet")
        self.start()

    def start(self) -> None:
        """Let the feed run."""
        self.feed.start()

    def on_unmount(self) -> None:
        """Ask no more."""
        self.feed.stop()

    def _deliver(self, came: View | Failure) -> None:
        if isinstance(came, View):
            self._newest, self._failure = came, None
        else:
            self._failure = came
        self.post_message(Arrived())

    def on_arrived(self) -> None:
        """Show what is newest; what came in between is in the history."""
        if not self.paused:
            self.view = self._newest
        self.refresh_screen()

    def refresh_screen(self) -> None:
        """Give the view to the screen that is seen, and tell how things are."""
        if self._opened and self.view is not None:
            seen = self._opened[-1][1]
            if isinstance(seen, Shows):
                with self.feed.lock:
                    seen.show(self.view)
        self._tell()

    # --- screens

    @property
    def place(self) -> str:
        """Name of the screen that is seen."""
        return self._opened[-1][0] if self._opened else ""

    def open(self, name: str, of: Gpu | str | None = None) -> None:
        """Show a screen; the one before is kept for `back`."""
        if name == self.place and of is None:
            return
        try:
            widget = make(name, of)
        except ImportError as error:
            self.say(f"no screen {name}: {error}")
            return
        if self._opened:
            self._opened[-1][1].display = False
        self._opened.append((name, widget))
        self.query_one("#body").mount(widget)
        self.call_after_refresh(self._settle)

    def _settle(self) -> None:
        self._opened[-1][1].focus()
        self.refresh_screen()

    async def action_back(self) -> None:
        """Return to the screen before."""
        if len(self._opened) > 1:
            self._opened.pop()[1].remove()
            self._opened[-1][1].display = True
            self._settle()

    def on_open(self, message: Open) -> None:
        """A screen asks for another."""
        self.open(message.name, message.of)

    def action_open(self, name: str) -> None:
        """Open by key; a screen of a GPU or a job is of the one under the cursor."""
        self.open(name)

    def action_open_job(self) -> None:
        """Open the job of the chosen GPU."""
        seen = self._opened[-1][1]
        gpu = seen.chosen if isinstance(seen, Chooses) else None
        holder = self.view.snapshot.holders.get(gpu) if self.view and gpu else None
        if holder is None or holder.job_id is None:
            self.say("no job is known of this GPU")
        else:
            self.open("job", holder.job_id)

    # --- what is told around the screen

    def say(self, note: str) -> None:
        """Show a line until the next."""
        self.note = note
        self._tell()

    def _tell(self) -> None:
        if self.view is not None:
            at = time.strftime("%H:%M:%S", time.localtime(self.view.snapshot.t))
            about = self.view.about.sentence
            paused = "  paused" if self.paused else ""
            self.query_one("#header", Bar).text = f"{at}  {about}  every {self.feed.interval_s:g} s{paused}"
        known = "  ".join(f"{key.shown} {key.short}" for key in keys.shown(self.place))
        problem = self._failure.problem if self._failure else Problem("")
        self.query_one("#footer", Bar).text = self.note or (problem.sentence if self._failure else known)

    def action_pause(self) -> None:
        """Stop, or go on."""
        self.paused = not self.paused
        self.on_arrived()

    def action_longer(self) -> None:
        """Look less often."""
        self.feed.pace(min(60.0, self.feed.interval_s * 2))
        self._tell()

    def action_shorter(self) -> None:
        """Look more often."""
        self.feed.pace(max(0.1, self.feed.interval_s / 2))
        self._tell()

    async def action_quit(self) -> None:
        """End."""
        self.exit(0)


class Bar(Widget):
    """One line of text, drawn anew only when it changes."""

    _text = ""

    @property
    def text(self) -> str:
        """What it says."""
        return self._text

    @text.setter
    def text(self, text: str) -> None:
        if text != self._text:
            self._text = text
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """Draw it."""
        return Strip([Segment(self._text, colours.BOLD)]).adjust_cell_length(self.size.width)


def _monitor(source: LiveSource, settings: Settings | None, *, interval_s: float, history_s: float) -> Judge:
    from tachograph.live.history import History
    from tachograph.live.monitor import Monitor

    capacity = max(60, round(history_s / interval_s))
    made: Judge = Monitor(source.about, settings=settings or Settings(), history=History(capacity))
    return made


def run(
    source: LiveSource, *, interval_s: float, settings: Settings, history_s: float = 600.0, job: str | None = None
) -> int:
    """Show `source` until the user quits; return the exit code. The source is closed by whoever opened it."""
    return WatchApp(source, interval_s=interval_s, settings=settings, history_s=history_s, job=job).run() or 0


__all__ = ["WatchApp", "run"]
