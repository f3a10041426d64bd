"""Threads that poll sources: schedule, queue of uncommitted chunks, failures."""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import TracebackType

from tachograph.catalog.chunks import Chunk, of_cluster, rename_nodes
from tachograph.catalog.errors import InputError, TachographError
from tachograph.collect.journal import CollectJournal, SourceDefectError
from tachograph.collect.newest import NewestPublisher
from tachograph.collect.status import AHEAD_S, utc_now
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import watermark
from tachograph.sources.registry import SourceFeed

FIRST_RETRY_S = 5.0
LONGEST_RETRY = 10  # times the interval
_REPORT = "please report this defect with its traceback; the source is reconnected"
NO_THREAD = "no thread can be started; raise TasksMax or the limit of processes (ulimit -u)"


def lacks_threads(problem: BaseException) -> bool:
    """Whether the system refused another thread."""
    return isinstance(problem, RuntimeError) and "start new thread" in str(problem)


@dataclass(frozen=True, slots=True)
class PollGrid:
    """Instants `start`, `start + every_s`, ...: they do not drift with the length of a poll."""

    start: float
    every_s: float

    def after(self, now: float) -> float:
        """Return the first instant of the grid later than `now`; missed ones are skipped.

        >>> PollGrid(100.0, 60.0).after(100.0), PollGrid(100.0, 60.0).after(279.0)
        (160.0, 280.0)
        """
        later = self.start + (math.floor((now - self.start) / self.every_s) + 1) * self.every_s
        return later if later > now else later + self.every_s  # rounding may give `now` itself


def retry_s(failures: int, *, every_s: float) -> float:
    """Return the pause after `failures` in a row: doubling, up to ten intervals.

    >>> [retry_s(failures, every_s=60.0) for failures in (1, 2, 3, 7, 8, 2000)]
    [5.0, 10.0, 20.0, 320.0, 600.0, 600.0]
    >>> retry_s(1, every_s=1.0)
    1.0
    """
    first = min(FIRST_RETRY_S, every_s)
    longest = LONGEST_RETRY * every_s
    return min(longest, first * 2.0 ** min(failures - 1, 60))


class ThreadFailures:
    """First unexpected exception of a thread; `noticed` is called for it."""

    def __init__(self, noticed: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._noticed = noticed
        self.first: BaseException | None = None

    def __enter__(self) -> ThreadFailures:
        """Start the work of a thread."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Keep the exception."""
        if problem is not None:
            with self._lock:
                self.first = self.first or problem
            self._noticed()
        return True

    def raise_first(self) -> None:
        """Raise the kept exception, if any."""
        if self.first is not None:
            raise self.first


@dataclass(frozen=True, slots=True)
class QueuedChunk:
    """A chunk of a source, or the end of a poll (None). `polled`: start of the poll."""

    source: str
    polled: datetime
    chunk: Chunk | None
    reading: int  # number of the reading of the source, see `ChunkQueue.forget`


@dataclass(slots=True)
class _SourceQueue:
    """Queued chunks of one source. `not_before`: next attempt of the writer after a failure."""

    queued: deque[QueuedChunk] = field(default_factory=deque)
    chunks: int = 0
    not_before: float = 0.0
    reading: int = 0


class ChunkQueue:
    """Queue per source, so that one that cannot commit does not delay others.

    A source may put a chunk while fewer than `limit` chunks are queued, and always when none of its
    own is.
    """

    def __init__(self, sources: Iterable[str], *, limit: int) -> None:
        self._lines = {source: _SourceQueue() for source in sources}
        self._limit = limit
        self._changed = threading.Condition()
        self._closed = False

    def put(self, queued: QueuedChunk) -> bool:
        """Queue a chunk once there is space; False if closed, or its reading was dropped."""
        line = self._lines[queued.source]
        with self._changed:
            self._changed.wait_for(
                lambda: not self._takes(line, queued) or self._has_room(line, queued)
            )
            if not self._takes(line, queued):
                return False
            line.queued.append(queued)
            line.chunks += queued.chunk is not None
            self._changed.notify_all()
            return True

    def take(self, *, within_s: float) -> QueuedChunk | None:
        """Return the next chunk, which stays queued until `done`; None at the timeout."""
        until = time.monotonic() + within_s
        with self._changed:
            while True:
                now = time.monotonic()
                ready = [
                    line for line in self._lines.values() if line.queued and line.not_before <= now
                ]
                if ready:
                    return min(ready, key=lambda line: line.queued[0].polled).queued[0]
                if now >= until:
                    return None
                waits = [line.not_before for line in self._lines.values() if line.queued]
                self._changed.wait(max(0.0, min([until, *waits]) - now))

    def done(self, queued: QueuedChunk) -> None:
        """Remove a committed chunk."""
        line = self._lines[queued.source]
        with self._changed:
            if line.queued and line.queued[0] is queued:
                line.queued.popleft()
                line.chunks -= queued.chunk is not None
                line.not_before = 0.0
                self._changed.notify_all()

    def postpone(self, source: str, *, seconds: float) -> None:
        """Delay the next attempt of the writer for this source."""
        with self._changed:
            self._lines[source].not_before = time.monotonic() + seconds

    def forget(self, source: str) -> None:
        """Drop a source's queued chunks and reading: it continues from the lake's watermark."""
        line = self._lines[source]
        with self._changed:
            line.queued.clear()
            line.chunks, line.not_before = 0, 0.0
            line.reading += 1
            self._changed.notify_all()

    def reading(self, source: str) -> int:
        """Number of the current reading of a source."""
        with self._changed:
            return self._lines[source].reading

    def chunks(self, source: str) -> int:
        """Number of queued chunks of a source."""
        with self._changed:
            return self._lines[source].chunks

    def close(self) -> None:
        """Accept nothing more; queued chunks may still be committed."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def is_empty(self) -> bool:
        """Nothing is queued."""
        with self._changed:
            return not any(line.queued for line in self._lines.values())

    def _takes(self, line: _SourceQueue, queued: QueuedChunk) -> bool:
        return not self._closed and line.reading == queued.reading

    def _has_room(self, line: _SourceQueue, queued: QueuedChunk) -> bool:
        return (
            queued.chunk is None
            or not line.chunks
            or sum(source.chunks for source in self._lines.values()) < self._limit
        )


@dataclass(frozen=True, slots=True)
class PolledSource:
    """A source to collect: unique name, interval, connected feed.

    `connect` returns a fresh feed for a new reading; without it the feed itself is reused.
    `cluster`: of what names none. `begin`: from when on a lake without
    its rows is filled, when the feed was connected; None: with all it has. `aliases`: {name of a
    node in the source: ours}.
    """

    name: str
    every_s: float
    feed: SourceFeed
    connect: Callable[[], SourceFeed] | None = None
    cluster: str = ""
    begin: datetime | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)


class SourceReader(threading.Thread):
    """Polls one source until `stopping` is set; any exception is a failure and retried."""

    def __init__(
        self,
        source: PolledSource,
        *,
        lake: Lake,
        waiting: ChunkQueue,
        journal: CollectJournal,
        stopping: threading.Event,
        defects: ThreadFailures,
        newest: NewestPublisher,
    ) -> None:
        super().__init__(name=source.name, daemon=True)
        self.source = source
        self._feed = source.feed
        self._lake = lake
        self._waiting = waiting
        self._journal = journal
        self._stopping = stopping
        self._defects = defects
        self._newest = newest
        self._reading = 0
        self._broken = False  # the last poll ended by a defect
        # Watermark of each stream that was queued in this reading.
        self._queued: dict[str, datetime] = {}

    def run(self) -> None:
        """Poll on schedule until stopped."""
        with self._defects, ExitStack() as ending:
            ending.callback(self.close)
            self._run()

    def _run(self) -> None:
        grid = PollGrid(time.monotonic(), self.source.every_s)
        failures = 0
        while not self._stopping.is_set():
            failures = self.poll(failures)
            now = time.monotonic()
            pause = grid.after(now) - now
            if failures:
                pause = retry_s(failures, every_s=self.source.every_s)
                self._journal.pause(self.source.name, pause)
            self._stopping.wait(pause)

    def close(self) -> None:
        """Close the feed."""
        self._feed.close()

    def poll(self, failures: int = 0) -> int:
        """Poll, queue the chunks; return failures in a row, given the previous number."""
        name = self.source.name
        polled, began = utc_now(), time.monotonic()
        self._journal.begin_poll(name, polled)
        try:
            self._begin_reading()
            for polled_chunk in self._feed.poll(self._watermark, now=polled):
                chunk = of_cluster(polled_chunk, self.source.cluster)
                chunk = rename_nodes(chunk, self.source.aliases)
                self._newest.add(chunk, polled)
                if not self._enqueue(chunk, polled):
                    return 0
            self._newest.publish(polled)
        except TachographError as problem:
            self._journal.failure(name, problem, utc_now())
            return failures + 1
        except Exception as problem:  # noqa: BLE001 - the boundary: a source that breaks ends neither others nor us
            self._defect(problem)
            return failures + 1
        finally:
            self._journal.end_poll(name, self._feed.outcome, time.monotonic() - began)
        self._waiting.put(QueuedChunk(name, polled, None, self._reading))
        return 0

    def _defect(self, problem: Exception) -> None:
        """Note an unexpected exception with traceback; the next poll connects anew."""
        lacking = lacks_threads(problem)
        trace = "" if lacking else "".join(traceback.format_exception(problem))
        noted = (
            InputError(NO_THREAD)
            if lacking
            else SourceDefectError(f"{type(problem).__name__}: {problem}", do=_REPORT)
        )
        self._journal.failure(self.source.name, noted, utc_now(), detail=trace)
        self._broken = True

    def _begin_reading(self) -> None:
        """Continue from the last poll, or, if its chunks were dropped, the lake's watermark."""
        if self._broken:
            self._connect_anew()
            self._broken = False
        reading = self._waiting.reading(self.source.name)
        if reading == self._reading:
            return
        self._connect_anew()
        self._reading = reading
        self._queued.clear()

    def _connect_anew(self) -> None:
        """Drop the feed's state: it includes uncommitted chunks and may be broken."""
        if self.source.connect is not None:
            fresh = self.source.connect()
            self._feed.close()
            self._feed = fresh

    def _watermark(self, stream: str) -> datetime | None:
        """Watermark of a stream with queued chunks: they are committed before newer ones.

        The journal gets it from the lake while nothing is queued; then the writer reports each
        commit.
        """
        in_lake = watermark(self._lake, stream)
        if in_lake is None:
            return self._queued.get(stream)
        if stream not in self._queued:
            self._journal.watermark(self.source.name, stream, in_lake)
        return self._note(stream, in_lake)

    def _note(self, stream: str, until: datetime) -> datetime:
        """Note that a stream was read so far; return its watermark."""
        self._queued[stream] = max(until, self._queued.get(stream, until))
        return self._queued[stream]

    def _enqueue(self, chunk: Chunk, polled: datetime) -> bool:
        """Queue a chunk as soon as the queue has space; False when it is not accepted any more."""
        until = chunk.watermark
        if until is not None:
            before = self._queued.get(chunk.id)
            until = _no_later(until, now=utc_now(), before=before)
            chunk = replace(chunk, since=before, watermark=until)
            self._note(chunk.id, until)
        taken = self._waiting.put(QueuedChunk(self.source.name, polled, chunk, self._reading))
        self._journal.waiting(self.source.name, self._waiting.chunks(self.source.name))
        return taken


def _no_later(until: datetime, *, now: datetime, before: datetime | None) -> datetime:
    """Return a watermark at most AHEAD_S ahead of our clock.

    A stream whose watermark `before` is ahead still advances, so that new rows of it do not look
    committed already.
    """
    latest = now + timedelta(seconds=AHEAD_S)
    return min(until, latest if before is None else max(latest, before + timedelta(microseconds=1)))
