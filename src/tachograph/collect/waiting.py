"""Chunks that were read and have not landed: a queue per source, a bound for all, one writer that takes from it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from tachograph.sources import Chunk


@dataclass(frozen=True, slots=True)
class Handed:
    """What a source hands over: a chunk, or the end of a poll (None). `polled`: when the poll began."""

    source: str
    polled: datetime
    chunk: Chunk | None
    reading: int  # which reading of the source this belongs to, see `Waiting.forget`


@dataclass(slots=True)
class _Line:
    """What waits of one source. `not_before`: when the writer may try again, after a failure."""

    handed: deque[Handed] = field(default_factory=deque)
    chunks: int = 0
    not_before: float = 0.0
    reading: int = 0


class Waiting:
    """First in, first out for each source; a source that cannot land does not keep others from it.

    A source may hand over while fewer than `limit` chunks wait, and always when none of its own does.
    """

    def __init__(self, sources: Iterable[str], *, limit: int) -> None:
        self._lines = {source: _Line() for source in sources}
        self._limit = limit
        self._changed = threading.Condition()
        self._closed = False

    def put(self, handed: Handed) -> bool:
        """Hand over, as soon as there is room; False when nothing is taken any more, or the reading was given up."""
        line = self._lines[handed.source]
        with self._changed:
            self._changed.wait_for(lambda: not self._takes(line, handed) or self._has_room(line, handed))
            if not self._takes(line, handed):
                return False
            line.handed.append(handed)
            line.chunks += handed.chunk is not None
            self._changed.notify_all()
            return True

    def take(self, *, within_s: float) -> Handed | None:
        """Return what is to land next, which stays until it is `done`; None where nothing came within that time."""
        until = time.monotonic() + within_s
        with self._changed:
            while True:
                now = time.monotonic()
                ready = [line for line in self._lines.values() if line.handed and line.not_before <= now]
                if ready:
                    return min(ready, key=lambda line: line.handed[0].polled).handed[0]
                if now >= until:
                    return None
                waits = [line.not_before for line in self._lines.values() if line.handed]
                self._changed.wait(max(0.0, min([until, *waits]) - now))

    def done(self, handed: Handed) -> None:
        """Forget what has landed."""
        line = self._lines[handed.source]
        with self._changed:
            if line.handed and line.handed[0] is handed:
                line.handed.popleft()
                line.chunks -= handed.chunk is not None
                line.not_before = 0.0
                self._changed.notify_all()

    def postpone(self, source: str, *, seconds: float) -> None:
        """Let the writer try this source again only after so long."""
        with self._changed:
            self._lines[source].not_before = time.monotonic() + seconds

    def forget(self, source: str) -> None:
        """Throw away what a source handed over, and what it still reads: it is to be read again from the lake on."""
        line = self._lines[source]
        with self._changed:
            line.handed.clear()
            line.chunks, line.not_before = 0, 0.0
            line.reading += 1
            self._changed.notify_all()

    def reading(self, source: str) -> int:
        """Number of the present reading of a source."""
        with self._changed:
            return self._lines[source].reading

    def chunks(self, source: str) -> int:
        """How many chunks of a source wait."""
        with self._changed:
            return self._lines[source].chunks

    def close(self) -> None:
        """Take nothing more; what waits may still land."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def is_empty(self) -> bool:
        """Nothing waits."""
        with self._changed:
            return not any(line.handed for line in self._lines.values())

    def _takes(self, line: _Line, handed: Handed) -> bool:
        return not self._closed and line.reading == handed.reading

    def _has_room(self, line: _Line, handed: Handed) -> bool:
        return handed.chunk is None or not line.chunks or sum(one.chunks for one in self._lines.values()) < self._limit
