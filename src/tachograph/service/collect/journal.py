"""What happens in a collection, written down by all threads; the status file and the metrics are copies of it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from datetime import datetime

from tachograph.catalog.chunks import Chunk
from tachograph.catalog.errors import LakeError, SchemaError, TachographError
from tachograph.catalog.version import __version__
from tachograph.lake.ingest import IngestReport
from tachograph.service.collect.status import CollectStatus, SourceStatus, StepStatus
from tachograph.sources.registry import PollOutcome

Narrate = Callable[[str], None]
STEPS = ("analyze", "compact")


class CollectJournal:
    """The status of a collection, changed under a lock. `tell` takes a line for people."""

    def __init__(
        self,
        *,
        lake: str,
        sources: Mapping[str, float],
        now: datetime,
        tell: Narrate,
        before: CollectStatus | None = None,
    ) -> None:
        """`sources`: {name: seconds between polls}. `before`: the status another process left."""
        self._lock = threading.Lock()
        self._tell = tell
        self._told: dict[str, str] = {}
        self.landings = 0  # chunks that brought rows
        self._status = CollectStatus(__version__, lake, socket.gethostname(), os.getpid(), started=now, updated=now)
        for name, every_s in sources.items():
            self._status.sources[name] = _carried_over(SourceStatus(name, every_s), before)
        for step in STEPS:
            left = before.steps.get(step) if before else None
            self._status.steps[step] = _without_counts(left) if left else StepStatus()

    def snapshot(self, now: datetime) -> CollectStatus:
        """Return a copy as of `now`."""
        with self._lock:
            self._status.updated = now
            return deepcopy(self._status)

    def stopped(self, now: datetime) -> None:
        """Note the end."""
        with self._lock:
            self._status.stopped = now

    def begin_poll(self, source: str, now: datetime) -> None:
        """Note that a source is asked."""
        with self._source(source) as status:
            status.polls += 1
            status.last_poll = now

    def end_poll(self, source: str, asked: PollOutcome, seconds: float) -> None:
        """Note how an asking went, whatever became of it."""
        with self._source(source) as status:
            status.poll_s += seconds
            status.unreachable = dict(asked.unreachable)
            status.skew_s = dict(asked.skew_s)

    def success(self, source: str, polled: datetime) -> None:
        """Note that everything which a poll brought has landed; what failed after its begin is not over with it."""
        with self._source(source) as status:
            status.last_success = polled
            if status.failures and status.last_error_at is not None and status.last_error_at > polled:
                return
            status.failures = 0
        if self._told.pop(source, None) is not None:
            self._tell(f"{source}: works again")

    def failure(self, source: str, problem: TachographError, now: datetime) -> int:
        """Note what went wrong, tell it where it is news; return how often in a row it did."""
        message = " ".join(str(problem).split())
        with self._source(source) as status:
            kind = _kind(problem)
            status.errors[kind] = status.errors.get(kind, 0) + 1
            status.failures += 1
            status.last_error, status.last_error_at = message, now
            failures = status.failures
        if self._told.get(source) != message:
            self._told[source] = message
            self._tell(f"{source}: {message}")
        return failures

    def waiting(self, source: str, chunks: int) -> None:
        """Note how many chunks of a source wait for the writer."""
        with self._source(source) as status:
            status.chunks_waiting = chunks

    def watermark(self, source: str, stream: str, until: datetime) -> None:
        """Note how far a stream is in the lake."""
        with self._source(source) as status:
            status.watermarks[stream] = until

    def landed(self, source: str, chunk: Chunk, report: IngestReport, seconds: float) -> None:
        """Note what became of a chunk."""
        with self._source(source) as status:
            status.chunks += 1
            status.land_s += seconds
            status.rows_read += chunk.rows_read
            for table, rows in report.rows.items():
                status.rows[table] = status.rows.get(table, 0) + rows
            for (table, reason, _), count in report.rejects.items():
                reasons = status.rejects.setdefault(table, {})
                reasons[reason] = reasons.get(reason, 0) + count
            self.landings += any(report.rows.values())

    def begin_step(self, step: str) -> None:
        """Note that an analysis or a compaction runs."""
        with self._step(step) as status:
            status.runs += 1
            status.running = True

    def end_step(self, step: str, *, seconds: float, now: datetime, said: str, problem: str | None) -> None:
        """Note its end: `said` is its last line, `problem` why it failed."""
        with self._step(step) as status:
            status.running = False
            if problem is None:
                status.last_success, status.last_duration_s, status.said = now, seconds, said
            else:
                status.failures += 1
                status.last_error, status.last_error_at = problem, now
        told = self._told.get(step)
        if problem is None:
            self._told.pop(step, None)
            if told is not None:
                self._tell(f"{step}: works again")
        elif told != problem:
            self._told[step] = problem
            self._tell(f"{step}: {problem}")

    def ended_step(self, step: str) -> None:
        """Note that it was ended before it was done, because the process stops."""
        with self._step(step) as status:
            status.running = False

    @contextmanager
    def _source(self, name: str) -> Iterator[SourceStatus]:
        with self._lock:
            yield self._status.sources[name]

    @contextmanager
    def _step(self, name: str) -> Iterator[StepStatus]:
        with self._lock:
            yield self._status.steps[name]


def _kind(problem: TachographError) -> str:
    """What an error is counted as."""
    return "lake" if isinstance(problem, LakeError) else "schema" if isinstance(problem, SchemaError) else "input"


def _carried_over(status: SourceStatus, before: CollectStatus | None) -> SourceStatus:
    """What was known of the source before this process: times, watermarks, the last error; no counts."""
    left = before.sources.get(status.name) if before else None
    if left is not None:
        for name in ("last_success", "last_error", "last_error_at", "watermarks"):
            setattr(status, name, getattr(left, name))
    return status


def _without_counts(left: StepStatus) -> StepStatus:
    return StepStatus(
        last_success=left.last_success,
        last_duration_s=left.last_duration_s,
        said=left.said,
        last_error=left.last_error,
        last_error_at=left.last_error_at,
    )
