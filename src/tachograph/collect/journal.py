"""Journal of a collector, written by all threads; copied to status file and metrics."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from datetime import datetime

import msgspec

from tachograph.catalog.chunks import Chunk
from tachograph.catalog.errors import LakeError, SchemaError, TachographError
from tachograph.catalog.version import __version__
from tachograph.collect.remarks import ProblemRemarks
from tachograph.collect.status import CollectStatus, SourceStatus, StepStatus
from tachograph.lake.ingest import IngestReport
from tachograph.sources.registry import PollOutcome

Narrate = Callable[[str], None]
STEPS = ("analyze", "compact")


class SourceDefectError(TachographError):
    """Unexpected exception of a source's poll."""


_KINDS = ((LakeError, "lake"), (SchemaError, "schema"), (SourceDefectError, "defect"))


class CollectJournal:
    """The status of a collector, changed under a lock. `remark` takes lines for stderr."""

    def __init__(
        self,
        *,
        lake: str,
        sources: Mapping[str, float],
        now: datetime,
        remark: Narrate,
        before: CollectStatus | None = None,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`sources`: {name: seconds between polls}. `before`: last status of another process."""
        self._lock = threading.Lock()
        self._steady = steady
        # The last poll of each source; later by the pause after a failure.
        self._began: dict[str, float] = {}
        self._remarks = ProblemRemarks(remark)
        self.commits = 0  # commits with rows
        self._status = CollectStatus(
            __version__, lake, socket.gethostname(), os.getpid(), started=now, updated=now
        )
        for name, every_s in sources.items():
            self._status.sources[name] = _carried_over(SourceStatus(name, every_s), before)
        for step in STEPS:
            earlier = before.steps.get(step) if before else None
            self._status.steps[step] = _without_counts(earlier) if earlier else StepStatus()

    def snapshot(self, now: datetime) -> CollectStatus:
        """Return a copy as of `now`, with the polls that are overdue by then."""
        with self._lock:
            self._status.updated = now
            copy = deepcopy(self._status)
            for name, began in self._began.items():
                copy.sources[name].note_poll(now, gap_s=self._steady() - began, began=False)
        return copy

    def stopped(self, now: datetime) -> None:
        """Note the end."""
        with self._lock:
            self._status.stopped = now

    def begin_poll(self, source: str, now: datetime) -> None:
        """Note the start of a poll."""
        with self._source(source) as status:
            began = self._steady()
            status.note_poll(now, gap_s=began - self._began.get(source, began))
            self._began[source] = began
            status.last_poll = now

    def pause(self, source: str, seconds: float) -> None:
        """Record that a failing source is paused: no poll is due meanwhile."""
        with self._lock:
            self._began[source] += seconds

    def end_poll(self, source: str, outcome: PollOutcome, seconds: float) -> None:
        """Note the end and outcome of a poll."""
        with self._source(source) as status:
            status.poll_s += seconds
            status.unreachable = dict(outcome.unreachable)
            status.other_nodes = dict(outcome.other_nodes)
            status.skew_s = dict(outcome.skew_s)

    def success(self, source: str, polled: datetime) -> None:
        """Note that a poll is committed; later failures stay."""
        with self._source(source) as status:
            status.last_success = polled
            if (
                status.failures
                and status.last_error_at is not None
                and status.last_error_at > polled
            ):
                return
            status.failures = 0
        self._remarks.works(source)

    def failure(
        self, source: str, problem: TachographError, now: datetime, *, detail: str = ""
    ) -> int:
        """Count a failure, report it with `detail` if new; return the failures in a row."""
        message = " ".join(str(problem).split())
        with self._source(source) as status:
            kind = _kind(problem)
            status.errors[kind] = status.errors.get(kind, 0) + 1
            status.failures += 1
            status.last_error, status.last_error_at = message, now
            failures = status.failures
        self._remarks.problem(source, message, detail=detail)
        return failures

    def waiting(self, source: str, chunks: int) -> None:
        """Note the number of queued chunks of a source."""
        with self._source(source) as status:
            status.chunks_waiting = chunks

    def watermark(self, source: str, stream: str, until: datetime) -> None:
        """Note the watermark of a stream in the lake."""
        with self._source(source) as status:
            status.watermarks[stream] = until

    def committed(self, source: str, chunk: Chunk, report: IngestReport, seconds: float) -> None:
        """Note a committed chunk."""
        with self._source(source) as status:
            status.chunks += 1
            status.commit_s += seconds
            status.rows_read += chunk.rows_read
            for table, rows in report.rows.items():
                status.rows[table] = status.rows.get(table, 0) + rows
            for (table, reason, _), count in report.rejects.items():
                reasons = status.rejects.setdefault(table, {})
                reasons[reason] = reasons.get(reason, 0) + count
            self.commits += any(report.rows.values())

    def begin_step(self, step: str) -> None:
        """Note that an analysis or a compaction runs."""
        with self._step(step) as status:
            status.runs += 1
            status.running = True

    def end_step(
        self, step: str, *, seconds: float, now: datetime, result: str, problem: str | None
    ) -> None:
        """Note its end: `result`: last line of its output; `problem`: reason of its failure."""
        with self._step(step) as status:
            status.running = False
            if problem is None:
                status.last_success, status.last_duration_s, status.result = now, seconds, result
            else:
                status.failures += 1
                status.last_error, status.last_error_at = problem, now
        if problem is None:
            self._remarks.works(step)
        else:
            self._remarks.problem(step, problem)

    def ended_step(self, step: str) -> None:
        """Note that a step was ended because the collector stops."""
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
    """Kind under which an error is counted."""
    return next((kind for of, kind in _KINDS if isinstance(problem, of)), "input")


def _carried_over(status: SourceStatus, before: CollectStatus | None) -> SourceStatus:
    """Times, watermarks, last error and hour of the source from the previous process; no counts."""
    earlier = before.sources.get(status.name) if before else None
    if earlier is not None:
        for name in ("last_success", "last_error", "last_error_at", "watermarks", "minutes"):
            setattr(status, name, getattr(earlier, name))
    return status


def _without_counts(status: StepStatus) -> StepStatus:
    return msgspec.structs.replace(status, runs=0, failures=0, running=False)
