"""Threads that poll the sources: their schedule, the queue of chunks to be committed, and failures of threads."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import TracebackType

from tachograph.catalog.chunks import Chunk
from tachograph.catalog.errors import TachographError
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import watermark
from tachograph.service.collect.journal import CollectJournal
from tachograph.service.collect.status import utc_now
from tachograph.sources.registry import SourceFeed

FIRST_RETRY_S = 5.0
LONGEST_RETRY = 10  # times the interval


@dataclass(frozen=True, slots=True)
class PollGrid:
    """Instants `start`, `start + every_s`, ...: they do not drift, however long a poll takes."""

    start: float
    every_s: float

    def after(self, now: float) -> float:
        """Return the first instant of the grid later than `now`; those that were missed are not made up for.

        >>> Grid(100.0, 60.0).after(100.0), Grid(100.0, 60.0).after(279.0)
        (160.0, 280.0)
        """
        later = self.start + (math.floor((now - self.start) / self.every_s) + 1) * self.every_s
        return later if later > now else later + self.every_s  # rounding may give `now` itself


def retry_s(failures: int, *, every_s: float) -> float:
    """Return how long to wait after so many failures in a row: doubling, up to ten intervals.

    >>> [retry_s(failures, every_s=60.0) for failures in (1, 2, 3, 7, 8, 2000)]
    [5.0, 10.0, 20.0, 320.0, 600.0, 600.0]
    >>> retry_s(1, every_s=1.0)
    1.0
    """
    first = min(FIRST_RETRY_S, every_s)
    longest = LONGEST_RETRY * every_s
    return min(longest, first * 2.0 ** min(failures - 1, 60))


class ThreadFailures:
    """The first exception of a thread that nobody expected. `noticed` is called when there is one."""

    def __init__(self, noticed: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._noticed = noticed
        self.first: BaseException | None = None

    def __enter__(self) -> ThreadFailures:
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


@dataclass(frozen=True, slots=True)
class QueuedChunk:
    """What a source hands over: a chunk, or the end of a poll (None). `polled`: when the poll began."""

    source: str
    polled: datetime
    chunk: Chunk | None
    reading: int  # which reading of the source this belongs to, see `Waiting.forget`


@dataclass(slots=True)
class _SourceQueue:
    """What waits of one source. `not_before`: when the writer may try again, after a failure."""

    handed: deque[QueuedChunk] = field(default_factory=deque)
    chunks: int = 0
    not_before: float = 0.0
    reading: int = 0


class ChunkQueue:
    """First in, first out for each source; a source that cannot land does not keep others from it.

    A source may hand over while fewer than `limit` chunks wait, and always when none of its own does.
    """

    def __init__(self, sources: Iterable[str], *, limit: int) -> None:
        self._lines = {source: _SourceQueue() for source in sources}
        self._limit = limit
        self._changed = threading.Condition()
        self._closed = False

    def put(self, handed: QueuedChunk) -> bool:
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

    def take(self, *, within_s: float) -> QueuedChunk | None:
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

    def done(self, handed: QueuedChunk) -> None:
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

    def _takes(self, line: _SourceQueue, handed: QueuedChunk) -> bool:
        return not self._closed and line.reading == handed.reading

    def _has_room(self, line: _SourceQueue, handed: QueuedChunk) -> bool:
        return handed.chunk is None or not line.chunks or sum(one.chunks for one in self._lines.values()) < self._limit


@dataclass(frozen=True, slots=True)
class PolledSource:
    """One source to be collected: a name that no other has, how often, and the connected feed.

    `connect` returns another feed like it, for a reading that begins anew; without it the feed itself goes on.
    """

    name: str
    every_s: float
    feed: SourceFeed
    connect: Callable[[], SourceFeed] | None = None


class SourceReader(threading.Thread):
    """Polls one source until `stopping` is set. What is no TachographError is a defect, and ends it."""

    def __init__(
        self,
        source: PolledSource,
        *,
        lake: Lake,
        waiting: ChunkQueue,
        journal: CollectJournal,
        stopping: threading.Event,
        defects: ThreadFailures,
    ) -> None:
        super().__init__(name=source.name, daemon=True)
        self.source = source
        self._feed = source.feed
        self._lake = lake
        self._waiting = waiting
        self._journal = journal
        self._stopping = stopping
        self._defects = defects
        self._reading = 0
        self._handed: dict[str, datetime] = {}  # how far each stream was handed over, in this reading

    def run(self) -> None:
        """Poll again and again."""
        with self._defects, ExitStack() as ending:
            ending.callback(self.close)
            self._run()

    def _run(self) -> None:
        grid = PollGrid(time.monotonic(), self.source.every_s)
        failures = 0
        while not self._stopping.is_set():
            failures = self.poll(failures)
            now = time.monotonic()
            pause = retry_s(failures, every_s=self.source.every_s) if failures else grid.after(now) - now
            self._stopping.wait(pause)

    def close(self) -> None:
        """Let go of the feed."""
        self._feed.close()

    def poll(self, failures: int = 0) -> int:
        """Ask once and hand over what came; return how often in a row it failed, given how often before."""
        name = self.source.name
        polled, began = utc_now(), time.monotonic()
        self._journal.begin_poll(name, polled)
        try:
            self._begin_reading()
            for chunk in self._feed.poll(self._watermark, now=polled):
                if not self._hand_over(chunk, polled):
                    return 0
        except TachographError as problem:
            self._journal.failure(name, problem, utc_now())
            return failures + 1
        finally:
            self._journal.end_poll(name, self._feed.asked, time.monotonic() - began)
        self._waiting.put(QueuedChunk(name, polled, None, self._reading))
        return 0

    def _begin_reading(self) -> None:
        """Read on where the last poll ended; where its chunks were thrown away, from the lake on."""
        reading = self._waiting.reading(self.source.name)
        if reading == self._reading:
            return
        if self.source.connect is not None:  # a feed remembers what it gave, and that has not landed
            fresh = self.source.connect()
            self._feed.close()
            self._feed = fresh
        self._reading = reading
        self._handed.clear()

    def _watermark(self, stream: str) -> datetime | None:
        """How far a stream has been read: what waits will have landed before what is read now."""
        in_lake = watermark(self._lake, stream)
        if in_lake is None:
            return self._handed.get(stream)
        self._journal.watermark(self.source.name, stream, in_lake)
        return self._note(stream, in_lake)

    def _note(self, stream: str, until: datetime) -> datetime:
        """Note that a stream was read so far, and return how far that is."""
        self._handed[stream] = max(until, self._handed.get(stream, until))
        return self._handed[stream]

    def _hand_over(self, chunk: Chunk, polled: datetime) -> bool:
        """Let the writer have a chunk, as soon as there is room; False when it is not wanted any more."""
        until = chunk.watermark
        if until is not None:
            chunk = replace(chunk, since=self._handed.get(chunk.id))
            self._note(chunk.id, until)
        taken = self._waiting.put(QueuedChunk(self.source.name, polled, chunk, self._reading))
        self._journal.waiting(self.source.name, self._waiting.chunks(self.source.name))
        return taken
