"""One source's thread: polls on the grid, hands chunks over, waits longer after failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime

from tachograph.collect.defects import Defects
from tachograph.collect.journal import Journal
from tachograph.collect.schedule import Grid, retry_s
from tachograph.collect.state import utc_now
from tachograph.collect.waiting import Handed, Waiting
from tachograph.errors import TachographError
from tachograph.ingest import watermark
from tachograph.lake import Lake
from tachograph.sources import Chunk
from tachograph.sources.feeds import Feed


@dataclass(frozen=True, slots=True)
class Source:
    """One source to be collected: a name that no other has, how often, and the connected feed.

    `connect` returns another feed like it, for a reading that begins anew; without it the feed itself goes on.
    """

    name: str
    every_s: float
    feed: Feed
    connect: Callable[[], Feed] | None = None


class Reader(threading.Thread):
    """Polls one source until `stopping` is set. What is no TachographError is a defect, and ends it."""

    def __init__(
        self,
        source: Source,
        *,
        lake: Lake,
        waiting: Waiting,
        journal: Journal,
        stopping: threading.Event,
        defects: Defects,
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
        grid = Grid(time.monotonic(), self.source.every_s)
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
        self._waiting.put(Handed(name, polled, None, self._reading))
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
        taken = self._waiting.put(Handed(self.source.name, polled, chunk, self._reading))
        self._journal.waiting(self.source.name, self._waiting.chunks(self.source.name))
        return taken
