"""The thread that polls the source, so that a slow source never blocks the user interface."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tachograph.annexes.watch.live.snapshot import LiveSource, Snapshot, SourceInfo, SourceProblem
from tachograph.annexes.watch.live.view import FleetView
from tachograph.catalog.errors import TachographError


class SnapshotJudge(Protocol):
    """Makes a view of a snapshot: `live.monitor.Monitor`, or a fake."""

    def step(self, snapshot: Snapshot, about: SourceInfo | None = None) -> FleetView:
        """Return the view to show."""
        ...


@dataclass(frozen=True, slots=True)
class FeedFailure:
    """A failed refresh. detail: traceback of a defect; "" for an error the user can fix."""

    problem: SourceProblem
    detail: str = ""


class ViewFeed:
    """Polls `source` every `interval_s`; delivers each view or failure.

    make_judge: called once, in the thread of the feed. deliver: called there, too, once per
    refresh; it must not block. lock: held while the evaluation changes the history that views
    share; drawing from it needs the lock, too.
    """

    def __init__(
        self,
        source: LiveSource,
        make_judge: Callable[[], SnapshotJudge],
        *,
        interval_s: float,
        deliver: Callable[[FleetView | FeedFailure], None],
    ) -> None:
        self.source, self.interval_s = source, interval_s
        self.lock = threading.Lock()
        self._make_judge = make_judge
        self._judge: SnapshotJudge | None = None
        self._deliver = deliver
        self._wake = threading.Event()
        self._ended = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start polling."""
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._thread.start()

    def pace(self, interval_s: float) -> None:
        """Set the poll interval, and poll once now."""
        self.interval_s = interval_s
        self._wake.set()

    def stop(self, wait_s: float = 1.0) -> None:
        """Stop polling. A source that hangs ends with the process."""
        self._ended = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(wait_s)

    def once(self) -> FleetView | FeedFailure:
        """Poll now, and return the result."""
        try:
            snapshot = self.source.read()
            with self.lock:
                if self._judge is None:
                    self._judge = self._make_judge()
                return self._judge.step(snapshot, self.source.about)
        except TachographError as error:
            return FeedFailure(SourceProblem.of(error))
        except Exception as error:  # noqa: BLE001  one refresh of the screen: the next is tried
            return FeedFailure(
                SourceProblem(f"{type(error).__name__}: {error}", "this refresh"),
                traceback.format_exc(),
            )

    def _run(self) -> None:
        due = time.monotonic()
        while not self._ended:
            came = self.once()
            self._deliver(came)
            if isinstance(came, FleetView) and any(
                problem.fatal for problem in came.snapshot.problems
            ):
                return
            now = time.monotonic()
            due = max(due + self.interval_s, now)  # missed polls are skipped
            if self._wake.wait(due - now):
                self._wake.clear()
                due = time.monotonic()
