"""The one thread that writes: commits queued chunks; a chunk that fails stays queued."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from tachograph.catalog.chunks import Chunk, ChunkPart, Reject
from tachograph.catalog.errors import LakeError, SchemaError
from tachograph.catalog.tables import TABLES
from tachograph.collect.journal import CollectJournal
from tachograph.collect.readers import ChunkQueue, QueuedChunk, ThreadFailures
from tachograph.collect.status import utc_now
from tachograph.lake.conform import conform
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import IngestReport, ingest, watermark

UNREADABLE_CHUNK = "not_understood"
RETRY_S = (1.0, 60.0)  # first and longest pause after the lake could not be written
WAIT_S = 0.5


class ChunkWriter(threading.Thread):
    """Commits chunks until `finish`; other exceptions than TachographError are defects."""

    def __init__(
        self,
        lake: Lake,
        *,
        waiting: ChunkQueue,
        journal: CollectJournal,
        defects: ThreadFailures,
        retry_s: tuple[float, float] = RETRY_S,
    ) -> None:
        super().__init__(name="writer", daemon=True)
        self._lake = lake
        self._waiting = waiting
        self._journal = journal
        self._defects = defects
        self._retry_s = retry_s
        self._refused: dict[str, int] = {}  # failed commits in a row, by source
        self._unreadable: set[str] = set()  # sources with an unreadable part in the current poll
        self._finish = threading.Event()
        self.busy_since: float | None = None

    def run(self) -> None:
        """Commit queued chunks; after `finish` those that can be committed at once."""
        with self._defects:
            while not self._finish.is_set() or not self._waiting.is_empty:
                queued = self._waiting.take(within_s=0.0 if self._finish.is_set() else WAIT_S)
                if queued is not None:
                    self._take(queued)
                elif self._finish.is_set():
                    break

    def finish(self) -> None:
        """End the thread when nothing is left to commit."""
        self._finish.set()

    @property
    def refused(self) -> bool:
        """The last commit of a source failed; its chunk is queued."""
        return bool(self._refused)

    def _take(self, queued: QueuedChunk) -> None:
        if queued.chunk is None:
            self._end_poll(queued)
            return
        self.busy_since = time.monotonic()
        try:
            self._commit(queued, queued.chunk)
        except LakeError as problem:  # the chunk stays queued, and its source waits
            self._postpone(queued.source, problem)
        else:
            self._refused.pop(queued.source, None)
            self._waiting.done(queued)
        finally:
            self.busy_since = None
        self._journal.waiting(queued.source, self._waiting.chunks(queued.source))

    def _end_poll(self, queued: QueuedChunk) -> None:
        """Record a poll as committed, unless a part was unreadable."""
        if queued.source in self._unreadable:
            self._unreadable.remove(queued.source)
        else:
            self._journal.success(queued.source, queued.polled)
        self._waiting.done(queued)

    def _commit(self, queued: QueuedChunk, chunk: Chunk) -> None:
        """Commit a chunk, or drop the reading if the lake lost earlier chunks."""
        if self._has_gone_back(chunk):
            self._waiting.forget(queued.source)
            return
        began = time.monotonic()
        report = self._ingest(queued.source, chunk)
        self._journal.committed(queued.source, chunk, report, time.monotonic() - began)
        if chunk.watermark is not None:
            self._journal.watermark(queued.source, chunk.id, chunk.watermark)

    def _has_gone_back(self, chunk: Chunk) -> bool:
        """Whether the lake lacks earlier chunks: restored from a backup, or deleted."""
        if chunk.since is None:
            return False
        there = watermark(self._lake, chunk.id)
        return there is None or there < chunk.since

    def _ingest(self, source: str, chunk: Chunk) -> IngestReport:
        try:
            return ingest(self._lake, [chunk], now=utc_now())
        except SchemaError as problem:
            self._unreadable.add(source)
            self._journal.failure(source, problem, utc_now())
            return ingest(self._lake, [_readable(chunk)], now=utc_now())

    def _postpone(self, source: str, problem: LakeError) -> None:
        first, longest = self._retry_s
        self._journal.failure(source, problem, utc_now())
        self._refused[source] = self._refused.get(source, 0) + 1
        self._waiting.postpone(
            source, seconds=min(longest, first * 2.0 ** min(self._refused[source] - 1, 60))
        )


def _readable(chunk: Chunk) -> Chunk:
    """Return the chunk with its valid parts; rows of the others are rejected, with reasons.

    Polling again would not help. The stream continues, and the rejects name the missing rows.
    """
    return replace(chunk, parts=tuple(_fitting(part, chunk.origin) for part in chunk.parts))


def _fitting(part: ChunkPart, origin: str) -> ChunkPart:
    table = TABLES[part.table]
    try:
        conform(part.frame.clear(), table, now=utc_now(), units=part.units, origin=origin)
    except SchemaError as problem:
        rejected = Reject(UNREADABLE_CHUNK, None, part.frame.height, str(problem)[:200])
        return ChunkPart(part.table, table.empty().drop("seq"), rejects=(*part.rejects, rejected))
    return part
