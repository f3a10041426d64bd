"""What ends a thread that should not end: kept for the main thread, which ends the process with its traceback."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType


class Defects:
    """The first exception of a thread that nobody expected. `noticed` is called when there is one."""

    def __init__(self, noticed: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._noticed = noticed
        self.first: BaseException | None = None

    def __enter__(self) -> Defects:
        """Begin the work of a thread."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Keep what ended it."""
        if problem is not None:
            with self._lock:
                self.first = self.first or problem
            self._noticed()
        return True

    def raise_first(self) -> None:
        """Raise what was kept, where there is something."""
        if self.first is not None:
            raise self.first
