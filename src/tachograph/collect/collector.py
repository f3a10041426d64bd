"""The collector: polls every configured source, commits, analyzes and compacts.

A thread per source reads and hands chunks over; one writer commits them; the main thread runs the
child processes that analyze and compact, writes the status file and feeds the watchdog.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import FrameType

from tachograph.catalog.chunks import Chunk
from tachograph.catalog.config import CollectOptions
from tachograph.catalog.errors import ConfigError, LakeError, TachographError
from tachograph.catalog.tables import TABLES
from tachograph.collect import children
from tachograph.collect.children import Children, ChildStep
from tachograph.collect.journal import CollectJournal, Narrate
from tachograph.collect.lock import CollectLock
from tachograph.collect.metrics import serve_metrics
from tachograph.collect.metrics_server import MetricsServer
from tachograph.collect.newest import NewestPublisher, clear_newest
from tachograph.collect.readers import (
    NO_THREAD,
    ChunkQueue,
    PolledSource,
    SourceReader,
    ThreadFailures,
    lacks_threads,
)
from tachograph.collect.status import (
    STATUS_EVERY_S,
    CollectStatus,
    read_status,
    state_folder,
    utc_now,
    write_status,
)
from tachograph.collect.systemd import NO_NOTIFIER, SystemdNotifier
from tachograph.collect.writer import RETRY_S, ChunkWriter
from tachograph.lake.conform import conform
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import watermark

TICK_S = 0.5
COMMIT_S = 10.0  # at the end, for queued chunks
POLL_S = 2.0  # at the end, for polls, whose chunks are not committed
HANGS_S = 900.0  # a longer commit of one chunk: no more notifications to the watchdog
LONGEST_S = 20.0  # a dry run of one source ends after it
MOST_CHUNKS = 5
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextmanager
def stopping_on_signals(stopping: threading.Event, *, kill: Callable[[], None]) -> Iterator[None]:
    """Set `stopping` at the first signal; at the second, `kill` and end as signalled."""

    def stop(number: int, frame: FrameType | None) -> None:
        if stopping.is_set():
            kill()
            os._exit(128 + number)
        stopping.set()

    # Nohup.
    heeded = [number for number in _STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True)
class CollectPlan:
    """Sources, lake, settings of a collector. `options`: command line of its children."""

    lake: Lake
    sources: Sequence[PolledSource]
    collect: CollectOptions
    options: Sequence[str] = ()
    retry_s: tuple[float, float] = RETRY_S

    @property
    def folder(self) -> Path:
        """Folder of lock and status."""
        return state_folder(self.lake.location, self.collect.state)

    @property
    def sentence(self) -> str:
        """One line: sources, lake, metrics URL."""
        metrics = (
            f"; metrics on http://{self.collect.listen}/metrics" if self.collect.listen else ""
        )
        return (
            f"collecting {', '.join(source.name for source in self.sources)} into "
            f"{self.lake.location}{metrics}"
        )


def collect(
    plan: CollectPlan,
    *,
    remark: Narrate,
    narrate: Narrate,
    once: bool = False,
    wait: bool = False,
    notifier: SystemdNotifier = NO_NOTIFIER,
) -> CollectStatus | None:
    """Collect until a signal, or `once`; return the final status, None if it never started.

    `remark` takes problems, `narrate` progress. `wait`: for the end of another process that
    collects into the lake. Errors: LakeError naming that process; ConfigError; the failure of a
    thread.
    """
    stopping = threading.Event()
    begun: list[Collection] = []
    announced: set[str] = set()

    def waits(holder: str) -> bool:
        if holder not in announced:
            announced.add(holder)
            narrate(f"waiting for {holder} to end")
        return not stopping.is_set()

    def kill() -> None:
        for collection in begun:
            collection.children.kill()

    _check(plan.collect)
    Lake.create(plan.lake.location)
    lock = CollectLock(plan.folder)
    with (
        stopping_on_signals(stopping, kill=kill),
        lock.held(now=utc_now(), pause=stopping.wait, wait=waits if wait else None) as held,
    ):
        if not held:
            return None
        begun.append(
            Collection(plan, remark=remark, stopping=stopping, notifier=notifier, beat=lock.beat)
        )
        return begun[0].once() if once else begun[0].run(ready=lambda: narrate(plan.sentence))


def _check(numbers: CollectOptions) -> None:
    """Errors: ConfigError for intervals and limits that are not above 0."""
    for key in ("analyze_s", "compact_s", "waiting_chunks", "threads", "vacuum_hours"):
        if not getattr(numbers, key) > 0:
            raise ConfigError(
                f"collect.{key} must be above 0",
                do=f"its default is {getattr(CollectOptions(), key)}",
            )


class Collection:
    """One run of a plan under its lock. `beat`: renews the lock every few seconds."""

    def __init__(
        self,
        plan: CollectPlan,
        *,
        remark: Narrate,
        stopping: threading.Event,
        notifier: SystemdNotifier,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._plan = plan
        self._beat = beat
        self._beaten = time.monotonic()
        self._remark = remark
        self._stopping = stopping
        self._notifier = notifier
        self._status_problem: str | None = None
        self._starting: dict[str, Callable[[], None]] = {}  # threads that are still to be started
        self._lacked = False
        self._journal = CollectJournal(
            lake=plan.lake.location,
            sources={source.name: source.every_s for source in plan.sources},
            now=utc_now(),
            remark=remark,
            before=read_status(plan.folder),
        )
        clear_newest(plan.folder)
        self._defects = ThreadFailures(stopping.set)
        self._waiting = ChunkQueue(
            [source.name for source in plan.sources], limit=plan.collect.waiting_chunks
        )
        self._writer = ChunkWriter(
            plan.lake,
            waiting=self._waiting,
            journal=self._journal,
            defects=self._defects,
            retry_s=plan.retry_s,
        )
        self._readers = [
            SourceReader(
                source,
                lake=plan.lake,
                waiting=self._waiting,
                journal=self._journal,
                stopping=stopping,
                defects=self._defects,
                newest=NewestPublisher(plan.folder, source.name, source.every_s),
            )
            for source in plan.sources
        ]
        self.children = Children(self._steps(), self._journal, possible=self._has_lake)

    def run(self, *, ready: Callable[[], None] | None = None) -> CollectStatus:
        """Collect until `stopping`; commit queued chunks, end children; return the final status.

        `ready` is called when lock and address are this process's.
        Errors: ConfigError for an address that cannot be bound; the failure of a thread.
        """
        server = (
            serve_metrics(self._plan.collect.listen, self._snapshot)
            if self._plan.collect.listen
            else None
        )
        try:
            with self._ending():
                self._begin(server)
                self._notifier.notify("READY=1", self._sentence())
                if ready:
                    ready()
                self._supervise()
        finally:
            if server is not None:
                server.close()
        self._defects.raise_first()
        return self._snapshot()

    def _begin(self, server: MetricsServer | None) -> None:
        """Start all threads; those that cannot be started are retried at each tick."""
        self._starting = {"writer": self._writer.start}
        self._starting |= {reader.source.name: reader.start for reader in self._readers}
        if server is not None:
            self._starting["metrics"] = server.serve
        self._start_threads()

    def _start_threads(self) -> None:
        for name, start in list(self._starting.items()):
            try:
                start()
            except RuntimeError as problem:
                if not lacks_threads(problem):
                    raise
                if not self._lacked:
                    self._remark(f"{name}: {NO_THREAD}; trying again")
                self._lacked = True
                return
            del self._starting[name]
        self._lacked = False

    def once(self) -> CollectStatus:
        """Poll every source once, commit, analyze; return the final status.

        Errors: the failure of a thread.
        """
        with self._ending():
            self._writer.start()
            polls = [
                threading.Thread(target=self._poll_once, args=(reader,), daemon=True)
                for reader in self._readers
            ]
            for poll in polls:
                poll.start()
            while not self._stopping.wait(0.02) and (
                any(poll.is_alive() for poll in polls) or self._commits()
            ):
                self._keep_lock()
            if not self._stopping.is_set() and self._has_lake():
                self._analyze()
        self._defects.raise_first()
        return self._snapshot()

    def _poll_once(self, reader: SourceReader) -> None:
        with self._defects:
            reader.poll()
            reader.close()

    def _commits(self) -> bool:
        """Whether chunks are queued and the lake can be written."""
        return not self._waiting.is_empty and not self._writer.refused

    def _analyze(self) -> None:
        (analysis,) = (step for step in self.children.steps if step.name == "analyze")
        self.children.start(analysis)
        while self.children.is_busy and not self._stopping.wait(0.05):
            self._keep_lock()
            self.children.reap()

    def _supervise(self) -> None:
        """The loop of the main thread: children, status file, watchdog."""
        written = alive = float("-inf")
        while not self._stopping.wait(TICK_S):
            now = time.monotonic()
            self._keep_lock()
            self._start_threads()
            self.children.run_due()
            if now - written >= STATUS_EVERY_S:
                written = now
                self._write_status()
            if (
                self._notifier.watchdog_s is not None
                and now - alive >= self._notifier.watchdog_s
                and self._moves(now)
            ):
                alive = now
                self._notifier.notify("WATCHDOG=1", self._sentence())

    def _keep_lock(self) -> None:
        """Renew the lock every few seconds. Errors: LakeError if another process took it over."""
        now = time.monotonic()
        if now - self._beaten >= STATUS_EVERY_S:
            self._beaten = now
            self._beat()

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """At exit, also by errors: stop polling, commit, end children, write the status."""
        try:
            yield
        finally:
            self._notifier.notify("STOPPING=1")
            self._stopping.set()
            self._waiting.close()
            self._writer.finish()
            self.children.stop()
            _join([self._writer], within_s=COMMIT_S)
            _join(self._readers, within_s=POLL_S)
            clear_newest(self._plan.folder)
            self._journal.stopped(utc_now())
            self._write_status()

    def _moves(self, now: float) -> bool:
        busy_since = self._writer.busy_since
        return busy_since is None or now - busy_since < HANGS_S

    def _snapshot(self) -> CollectStatus:
        return self._journal.snapshot(utc_now())

    def _sentence(self) -> str:
        status = self._snapshot()
        failing = [name for name, source in status.sources.items() if source.failures]
        return f"STATUS={len(status.sources)} sources" + (
            f"; failing: {', '.join(failing)}" if failing else ""
        )

    def _write_status(self) -> None:
        """Write the status file; a failure is reported once and does not stop the collector."""
        try:
            write_status(self._plan.folder, self._snapshot())
        except LakeError as problem:
            if str(problem) != self._status_problem:
                self._status_problem = str(problem)
                self._remark(f"status: {problem}")
        else:
            self._status_problem = None

    def _has_lake(self) -> bool:
        try:
            Lake.open(self._plan.lake.location)
        except LakeError:
            return False
        return True

    def _steps(self) -> list[ChildStep]:
        collect, options = self._plan.collect, self._plan.options
        analyze = children.command("analyze", "--threads", str(collect.threads), *options)
        compact = children.command(
            "lake", "compact", "--expire", "--vacuum-hours", str(collect.vacuum_hours), *options
        )
        return [
            ChildStep(
                "analyze",
                analyze,
                collect.analyze_s,
                self._first("analyze"),
                lambda: self._journal.commits,
            ),
            ChildStep("compact", compact, collect.compact_s, self._first("compact")),
        ]

    def _first(self, step: str) -> float:
        """Seconds to the first run: one interval after the last run of any process."""
        every_s = (
            self._plan.collect.analyze_s if step == "analyze" else self._plan.collect.compact_s
        )
        last = self._snapshot().steps[step].last_success
        return (
            every_s
            if last is None
            else min(every_s, max(0.0, every_s - (utc_now() - last).total_seconds()))
        )


def _join(threads: Sequence[threading.Thread], *, within_s: float) -> None:
    """Wait for threads to end, `within_s` in total."""
    until = time.monotonic() + within_s
    for thread in threads:
        if thread.is_alive():
            thread.join(max(0.0, until - time.monotonic()))


@dataclass(slots=True)
class SourceCheck:
    """Dry run of a source. `watermarks`: where each stream would continue; None: beginning."""

    name: str
    every_s: float
    problem: str | None = None
    chunks: int = 0
    more: bool = False  # more chunks are available
    rows: dict[str, int] = field(default_factory=dict)  # that would be committed, by table
    rejects: dict[str, int] = field(default_factory=dict)  # by reason
    watermarks: dict[str, datetime | None] = field(default_factory=dict)
    unreachable: dict[str, str] = field(default_factory=dict)
    skew_s: dict[str, float] = field(default_factory=dict)


def check_source(source: PolledSource, lake: Lake, *, now: datetime) -> SourceCheck:
    """Poll a source once without a commit; problems are part of the result."""
    checked = SourceCheck(source.name, source.every_s)

    def last_watermark(stream: str) -> datetime | None:
        checked.watermarks[stream] = watermark(lake, stream)
        return checked.watermarks[stream]

    until = time.monotonic() + LONGEST_S
    try:
        for chunk in source.feed.poll(last_watermark, now=now):
            if checked.chunks == MOST_CHUNKS or time.monotonic() > until:
                checked.more = True
                break
            _count(checked, chunk, now)
    except TachographError as problem:
        checked.problem = " ".join(str(problem).split())
    checked.unreachable = dict(source.feed.outcome.unreachable)
    checked.skew_s = dict(source.feed.outcome.skew_s)
    return checked


def _count(checked: SourceCheck, chunk: Chunk, now: datetime) -> None:
    checked.chunks += 1
    for part in chunk.parts:
        conformed = conform(
            part.frame, TABLES[part.table], now=now, units=part.units, origin=chunk.origin
        )
        checked.rows[part.table] = checked.rows.get(part.table, 0) + conformed.frame.height
        for reject in (*part.rejects, *conformed.rejects):
            checked.rejects[reject.reason] = checked.rejects.get(reject.reason, 0) + reject.count
