"""The collector: one process that polls every configured source, commits what came, analyzes and compacts.

A thread per source reads and hands chunks over; one writer commits them; the main thread runs the child processes that
analyze and compact, writes the status file and feeds the watchdog.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import FrameType

from tachograph.catalog.chunks import Chunk
from tachograph.catalog.config import CollectOptions
from tachograph.catalog.errors import ConfigError, LakeError, TachographError
from tachograph.catalog.tables import TABLES
from tachograph.lake.conform import conform
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import watermark
from tachograph.service.collect import children
from tachograph.service.collect.children import Children, ChildStep
from tachograph.service.collect.journal import CollectJournal, Narrate
from tachograph.service.collect.metrics import serve_metrics
from tachograph.service.collect.readers import ChunkQueue, PolledSource, SourceReader, ThreadFailures
from tachograph.service.collect.status import (
    STATUS_EVERY_S,
    CollectLock,
    CollectStatus,
    read_status,
    state_folder,
    utc_now,
    write_status,
)
from tachograph.service.collect.writer import RETRY_S, ChunkWriter

_ASKING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopping_on_signals(stopping: threading.Event, *, kill: Callable[[], None]) -> Iterator[None]:
    """Set `stopping` at the first signal; at the second call `kill`, and end the process as the signal would."""

    def asked(number: int, frame: FrameType | None) -> None:
        if stopping.is_set():
            kill()
            os._exit(128 + number)
        stopping.set()

    before = [signal.signal(number, asked) for number in _ASKING]
    try:
        yield
    finally:
        for number, handler in zip(_ASKING, before, strict=True):
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True)
class SystemdNotifier:
    """Tells the service manager; where there is none it tells nobody. `watchdog_s`: how often it wants to hear."""

    address: str = ""
    watchdog_s: float | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> SystemdNotifier:
        """Return the one that $NOTIFY_SOCKET and $WATCHDOG_USEC ask for; half the watchdog's patience."""
        microseconds = environment.get("WATCHDOG_USEC", "")
        ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watchdog = int(microseconds) / 2e6 if microseconds.isdigit() and ours else None
        return cls(environment.get("NOTIFY_SOCKET", ""), watchdog)

    def tell(self, *lines: str) -> None:
        """Send `lines`, such as READY=1. A manager that does not listen is no reason to fail."""
        if not self.address:
            return
        address = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.settimeout(1.0)
                channel.sendto("\n".join(lines).encode(), address)
        except OSError:
            return


NO_NOTIFIER = SystemdNotifier()


TICK_S = 0.5
LAND_S = 10.0  # at the end, for what waits to land
POLL_S = 2.0  # at the end, for polls to end: what they read lands no more
HANGS_S = 900.0  # a chunk that takes longer to land: the watchdog is not told that all is well


@dataclass(frozen=True, slots=True)
class CollectPlan:
    """What is to be collected, and how. `options`: of the children, so that they find lake and configuration."""

    lake: Lake
    sources: Sequence[PolledSource]
    collect: CollectOptions
    options: Sequence[str] = ()
    retry_s: tuple[float, float] = RETRY_S

    @property
    def folder(self) -> Path:
        """Where lock and status are."""
        return state_folder(self.lake.location, self.collect.state)

    @property
    def sentence(self) -> str:
        """What is collected where."""
        metrics = f"; metrics on http://{self.collect.listen}/metrics" if self.collect.listen else ""
        return f"collecting {', '.join(source.name for source in self.sources)} into {self.lake.location}{metrics}"


def collect(
    plan: CollectPlan,
    *,
    tell: Narrate,
    say: Narrate,
    once: bool = False,
    wait: bool = False,
    notifier: SystemdNotifier = NO_NOTIFIER,
) -> CollectStatus | None:
    """Collect until a signal says stop, or `once`; return how it was left, None where it never began.

    `tell` takes what is wrong, `say` what goes on. `wait`: until the process ends that collects into the lake now.
    Errors: LakeError naming the process that does; ConfigError; whatever ended a thread.
    """
    stopping = threading.Event()
    begun: list[Collection] = []
    told: set[str] = set()

    def waits(holder: str) -> bool:
        if holder not in told:
            told.add(holder)
            say(f"waiting for {holder} to end")
        return not stopping.is_set()

    def kill() -> None:
        for collection in begun:
            collection.children.kill()

    _check(plan.collect)
    Lake.create(plan.lake.location)
    with (
        stopping_on_signals(stopping, kill=kill),
        CollectLock(plan.folder).held(now=utc_now(), pause=stopping.wait, wait=waits if wait else None) as held,
    ):
        if not held:
            return None
        begun.append(Collection(plan, tell=tell, stopping=stopping, notifier=notifier))
        return begun[0].once() if once else begun[0].run(ready=lambda: say(plan.sentence))


def _check(numbers: CollectOptions) -> None:
    """Errors: ConfigError for what would never or always be due."""
    for key in ("analyze_s", "compact_s", "waiting_chunks", "threads", "vacuum_hours"):
        if not getattr(numbers, key) > 0:
            raise ConfigError(f"collect.{key} must be above 0", do=f"its default is {getattr(CollectOptions(), key)}")


class Collection:
    """One run of a plan, which holds its lock."""

    def __init__(
        self, plan: CollectPlan, *, tell: Narrate, stopping: threading.Event, notifier: SystemdNotifier
    ) -> None:
        self._plan = plan
        self._tell = tell
        self._stopping = stopping
        self._notifier = notifier
        self._untold: str | None = None
        self._journal = CollectJournal(
            lake=plan.lake.location,
            sources={source.name: source.every_s for source in plan.sources},
            now=utc_now(),
            tell=tell,
            before=read_status(plan.folder),
        )
        self._defects = ThreadFailures(stopping.set)
        self._waiting = ChunkQueue([source.name for source in plan.sources], limit=plan.collect.waiting_chunks)
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
            )
            for source in plan.sources
        ]
        self.children = Children(self._steps(), self._journal, possible=self._has_lake)

    def run(self, *, ready: Callable[[], None] | None = None) -> CollectStatus:
        """Collect until `stopping` is set; land what waits, end the children; return how it was left.

        `ready` is called when everything runs: lock and address are this process's.
        Errors: ConfigError for an address that cannot be listened on; whatever ended a thread.
        """
        server = serve_metrics(self._plan.collect.listen, self._snapshot) if self._plan.collect.listen else None
        try:
            with self._ending():
                self._writer.start()
                for reader in self._readers:
                    reader.start()
                self._notifier.tell("READY=1", self._sentence())
                if ready:
                    ready()
                self._look_after()
        finally:
            if server is not None:
                server.shutdown()
                server.server_close()
        self._defects.raise_first()
        return self._snapshot()

    def once(self) -> CollectStatus:
        """Poll every source once, land what came, analyze; return how it went.

        Errors: whatever ended a thread.
        """
        with self._ending():
            self._writer.start()
            polls = [threading.Thread(target=self._poll_once, args=(reader,), daemon=True) for reader in self._readers]
            for poll in polls:
                poll.start()
            while not self._stopping.wait(0.02) and (any(poll.is_alive() for poll in polls) or self._lands()):
                pass
            if not self._stopping.is_set() and self._has_lake():
                self._analyze()
        self._defects.raise_first()
        return self._snapshot()

    def _poll_once(self, reader: SourceReader) -> None:
        with self._defects:
            reader.poll()
            reader.close()

    def _lands(self) -> bool:
        """Whether something waits to land; a lake that takes nothing is not waited for."""
        return not self._waiting.is_empty and not self._writer.refused

    def _analyze(self) -> None:
        (analysis,) = (step for step in self.children.steps if step.name == "analyze")
        self.children.start(analysis)
        while self.children.is_busy and not self._stopping.wait(0.05):
            self.children.look_after()

    def _look_after(self) -> None:
        """What the main thread does: children, the status file, the watchdog."""
        written = alive = float("-inf")
        while not self._stopping.wait(TICK_S):
            now = time.monotonic()
            self.children.look()
            if now - written >= STATUS_EVERY_S:
                written = now
                self._write_status()
            if self._notifier.watchdog_s is not None and now - alive >= self._notifier.watchdog_s and self._moves(now):
                alive = now
                self._notifier.tell("WATCHDOG=1", self._sentence())

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Whatever happens inside: stop reading, land what waits, end the children, write down how it was left."""
        try:
            yield
        finally:
            self._notifier.tell("STOPPING=1")
            self._stopping.set()
            self._waiting.close()
            self._writer.finish()
            self.children.stop()
            _join([self._writer], within_s=LAND_S)
            _join(self._readers, within_s=POLL_S)
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
        return f"STATUS={len(status.sources)} sources" + (f"; failing: {', '.join(failing)}" if failing else "")

    def _write_status(self) -> None:
        """Write the status file; a disk that is full keeps nobody from collecting. Told when it is news."""
        try:
            write_status(self._plan.folder, self._snapshot())
        except LakeError as problem:
            if str(problem) != self._untold:
                self._untold = str(problem)
                self._tell(f"status: {problem}")
        else:
            self._untold = None

    def _has_lake(self) -> bool:
        try:
            Lake.open(self._plan.lake.location)
        except LakeError:
            return False
        return True

    def _steps(self) -> list[ChildStep]:
        collect, options = self._plan.collect, self._plan.options
        analyze = children.command("analyze", "--threads", str(collect.threads), *options)
        compact = children.command("compact", "--vacuum-hours", str(collect.vacuum_hours), *options)
        return [
            ChildStep("analyze", analyze, collect.analyze_s, self._first("analyze"), lambda: self._journal.landings),
            ChildStep("compact", compact, collect.compact_s, self._first("compact")),
        ]

    def _first(self, step: str) -> float:
        """Seconds until the first of this process: an interval after the last, whichever process did it."""
        every_s = self._plan.collect.analyze_s if step == "analyze" else self._plan.collect.compact_s
        last = self._snapshot().steps[step].last_success
        return every_s if last is None else min(every_s, max(0.0, every_s - (utc_now() - last).total_seconds()))


def _join(threads: Sequence[threading.Thread], *, within_s: float) -> None:
    """Wait for threads to end, for so long in all."""
    until = time.monotonic() + within_s
    for thread in threads:
        if thread.is_alive():
            thread.join(max(0.0, until - time.monotonic()))


LONGEST_S = 20.0  # of chunks of one source; what is left is not asked for
MOST_CHUNKS = 5


@dataclass(slots=True)
class SourceCheck:
    """What one source answered. `watermarks`: from where each stream would be read on; None: from its beginning."""

    name: str
    every_s: float
    problem: str | None = None
    chunks: int = 0
    more: bool = False  # there would have been more chunks
    rows: dict[str, int] = field(default_factory=dict)  # that would land, by table
    rejects: dict[str, int] = field(default_factory=dict)  # by reason
    watermarks: dict[str, datetime | None] = field(default_factory=dict)
    unreachable: dict[str, str] = field(default_factory=dict)
    skew_s: dict[str, float] = field(default_factory=dict)


def check_source(source: PolledSource, lake: Lake, *, now: datetime) -> SourceCheck:
    """Ask a source once, without landing what it answers; what goes wrong is part of the answer."""
    checked = SourceCheck(source.name, source.every_s)

    def known(stream: str) -> datetime | None:
        checked.watermarks[stream] = watermark(lake, stream)
        return checked.watermarks[stream]

    until = time.monotonic() + LONGEST_S
    try:
        for chunk in source.feed.poll(known, now=now):
            if checked.chunks == MOST_CHUNKS or time.monotonic() > until:
                checked.more = True
                break
            _count(checked, chunk, now)
    except TachographError as problem:
        checked.problem = " ".join(str(problem).split())
    checked.unreachable = dict(source.feed.asked.unreachable)
    checked.skew_s = dict(source.feed.asked.skew_s)
    return checked


def _count(checked: SourceCheck, chunk: Chunk, now: datetime) -> None:
    checked.chunks += 1
    for part in chunk.parts:
        conformed = conform(part.frame, TABLES[part.table], now=now, units=part.units, origin=chunk.origin)
        checked.rows[part.table] = checked.rows.get(part.table, 0) + conformed.frame.height
        for reject in (*part.rejects, *conformed.rejects):
            checked.rejects[reject.reason] = checked.rejects.get(reject.reason, 0) + reject.count
