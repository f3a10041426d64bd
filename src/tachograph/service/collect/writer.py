"""The one thread that writes: lands what the sources hand over, and keeps what cannot land until it can."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from tachograph.catalog.chunks import Chunk, ChunkPart, Reject
from tachograph.catalog.errors import LakeError, SchemaError
from tachograph.catalog.tables import TABLES
from tachograph.lake.conform import conform
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import IngestReport, ingest, watermark
from tachograph.service.collect.journal import CollectJournal
from tachograph.service.collect.readers import ChunkQueue, QueuedChunk, ThreadFailures
from tachograph.service.collect.status import utc_now

UNREADABLE_CHUNK = "not_understood"
RETRY_S = (1.0, 60.0)  # first and longest pause after the lake could not be written
PATIENCE_S = 0.5


class ChunkWriter(threading.Thread):
    """Lands chunks until told to finish. What is no TachographError is a defect, and ends it."""

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
        self._refused: dict[str, int] = {}  # how often in a row the lake refused a source's chunk
        self._not_understood: set[str] = set()  # sources of which a part of the present poll was
        self._finish = threading.Event()
        self.busy_since: float | None = None

    def run(self) -> None:
        """Land what comes; once told to finish, what waits and can land at once."""
        with self._defects:
            while not self._finish.is_set() or not self._waiting.is_empty:
                handed = self._waiting.take(within_s=0.0 if self._finish.is_set() else PATIENCE_S)
                if handed is not None:
                    self._take(handed)
                elif self._finish.is_set():
                    break

    def finish(self) -> None:
        """Let the thread end when nothing is left that can land."""
        self._finish.set()

    @property
    def refused(self) -> bool:
        """The lake could not take a chunk, which waits."""
        return bool(self._refused)

    def _take(self, handed: QueuedChunk) -> None:
        if handed.chunk is None:
            self._end_poll(handed)
            return
        self.busy_since = time.monotonic()
        try:
            self._land(handed, handed.chunk)
        except LakeError as problem:  # nothing of it is lost: the chunk waits, and so does its source
            self._refuse(handed.source, problem)
        else:
            self._refused.pop(handed.source, None)
            self._waiting.done(handed)
        finally:
            self.busy_since = None
        self._journal.waiting(handed.source, self._waiting.chunks(handed.source))

    def _end_poll(self, handed: QueuedChunk) -> None:
        """Note that all of a poll has landed, unless a part of it was not understood."""
        if handed.source in self._not_understood:
            self._not_understood.remove(handed.source)
        else:
            self._journal.success(handed.source, handed.polled)
        self._waiting.done(handed)

    def _land(self, handed: QueuedChunk, chunk: Chunk) -> None:
        """Land one chunk, or throw away what was read on from where the lake is not any more."""
        if self._has_gone_back(chunk):
            self._waiting.forget(handed.source)
            return
        began = time.monotonic()
        report = self._ingest(handed.source, chunk)
        self._journal.landed(handed.source, chunk, report, time.monotonic() - began)
        if chunk.watermark is not None:
            self._journal.watermark(handed.source, chunk.id, chunk.watermark)

    def _has_gone_back(self, chunk: Chunk) -> bool:
        """Whether the lake lost what came before this chunk: it was restored from a backup, or deleted."""
        if chunk.since is None:
            return False
        there = watermark(self._lake, chunk.id)
        return there is None or there < chunk.since

    def _ingest(self, source: str, chunk: Chunk) -> IngestReport:
        try:
            return ingest(self._lake, [chunk], now=utc_now())
        except SchemaError as problem:
            self._not_understood.add(source)
            self._journal.failure(source, problem, utc_now())
            return ingest(self._lake, [_understood(chunk)], now=utc_now())

    def _refuse(self, source: str, problem: LakeError) -> None:
        first, longest = self._retry_s
        self._journal.failure(source, problem, utc_now())
        self._refused[source] = self._refused.get(source, 0) + 1
        self._waiting.postpone(source, seconds=min(longest, first * 2.0 ** min(self._refused[source] - 1, 60)))


def _understood(chunk: Chunk) -> Chunk:
    """Return the chunk with the parts that fit their tables; of the others the rows as removed, with the reason.

    A table of unknown columns is as unknown when it is read again. The stream goes on, and the lake tells what lacks.
    """
    return replace(chunk, parts=tuple(_fitting(part, chunk.origin) for part in chunk.parts))


def _fitting(part: ChunkPart, origin: str) -> ChunkPart:
    table = TABLES[part.table]
    try:
        conform(part.frame.clear(), table, now=utc_now(), units=part.units, origin=origin)
    except SchemaError as problem:
        removed = Reject(UNREADABLE_CHUNK, None, part.frame.height, str(problem)[:200])
        return ChunkPart(part.table, table.empty().drop("seq"), rejects=(*part.rejects, removed))
    return part
