"""The thread that asks the source and lets the readings be judged, so that no slow source ever blocks a key."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tachograph.errors import TachographError
from tachograph.live.snapshot import Problem, Snapshot
from tachograph.live.source import About, LiveSource
from tachograph.live.view import View


class Judge(Protocol):
    """What makes a view of a snapshot: `live.monitor.Monitor`, or a stand-in."""

    def step(self, snapshot: Snapshot, about: About | None = None) -> View:
        """Return what is to be shown."""
        ...


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong with one refresh. detail: where, for those who mend programs; "" for what the user can mend."""

    problem: Problem
    detail: str = ""


class Feed:
    """Asks `source` every `interval_s` and hands on each view, or the failure that came in its place.

    deliver: called in the thread of the feed, once per refresh, and must not wait. lock: held while judging changes the
    history that views share; whoever draws from it holds it, too.
    """

    def __init__(
        self, source: LiveSource, judge: Judge, *, interval_s: float, deliver: Callable[[View | Failure], None]
    ) -> None:
        self.source, self.judge, self.interval_s = source, judge, interval_s
        self.lock = threading.Lock()
        self._deliver = deliver
        self._wake = threading.Event()
        self._ended = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to ask."""
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._thread.start()

    def pace(self, interval_s: float) -> None:
        """Ask so often from now on, and once now."""
        self.interval_s = interval_s
        self._wake.set()

    def stop(self, wait_s: float = 1.0) -> None:
        """Ask no more. A source that hangs is left to end with the process."""
        self._ended = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(wait_s)

    def once(self) -> View | Failure:
        """Ask now, and return what came of it."""
        try:
            snapshot = self.source.read()
            with self.lock:
                return self.judge.step(snapshot, self.source.about)
        except TachographError as error:
            return Failure(Problem(error.what, error.where or "", error.do or ""))
        except Exception as error:  # noqa: BLE001  one refresh of the screen: the next is tried
            return Failure(Problem(f"{type(error).__name__}: {error}", "this refresh"), traceback.format_exc())

    def _run(self) -> None:
        due = time.monotonic()
        while not self._ended:
            self._deliver(self.once())
            now = time.monotonic()
            due = max(due + self.interval_s, now)  # what was missed is not made up for
            if self._wake.wait(due - now):
                self._wake.clear()
                due = time.monotonic()
