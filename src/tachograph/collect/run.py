"""A collection: threads that read and write, children that analyze and compact, until somebody says stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tachograph.collect import children
from tachograph.collect.children import Children, Step
from tachograph.collect.defects import Defects
from tachograph.collect.health import serve
from tachograph.collect.journal import Journal, Tell
from tachograph.collect.lock import Lock
from tachograph.collect.notify import NOBODY, Notifier
from tachograph.collect.reader import Reader, Source
from tachograph.collect.signals import stopping_on_signals
from tachograph.collect.state import EVERY_S, Status, read_status, state_folder, utc_now, write_status
from tachograph.collect.waiting import Waiting
from tachograph.collect.writer import RETRY_S, Writer
from tachograph.config import Collect
from tachograph.errors import ConfigError, LakeError
from tachograph.lake import Lake

TICK_S = 0.5
LAND_S = 10.0  # at the end, for what waits to land
POLL_S = 2.0  # at the end, for polls to end: what they read lands no more
HANGS_S = 900.0  # a chunk that takes longer to land: the watchdog is not told that all is well


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be collected, and how. `options`: of the children, so that they find lake and configuration."""

    lake: Lake
    sources: Sequence[Source]
    collect: Collect
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
    plan: Plan, *, tell: Tell, say: Tell, once: bool = False, wait: bool = False, notifier: Notifier = NOBODY
) -> Status | None:
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
        Lock(plan.folder).held(now=utc_now(), pause=stopping.wait, wait=waits if wait else None) as held,
    ):
        if not held:
            return None
        begun.append(Collection(plan, tell=tell, stopping=stopping, notifier=notifier))
        return begun[0].once() if once else begun[0].run(ready=lambda: say(plan.sentence))


def _check(numbers: Collect) -> None:
    """Errors: ConfigError for what would never or always be due."""
    for key in ("analyze_s", "compact_s", "waiting_chunks", "threads", "vacuum_hours"):
        if not getattr(numbers, key) > 0:
            raise ConfigError(f"collect.{key} must be above 0", do=f"its default is {getattr(Collect(), key)}")


class Collection:
    """One run of a plan, which holds its lock."""

    def __init__(self, plan: Plan, *, tell: Tell, stopping: threading.Event, notifier: Notifier) -> None:
        self._plan = plan
        self._tell = tell
        self._stopping = stopping
        self._notifier = notifier
        self._untold: str | None = None
        self._journal = Journal(
            lake=plan.lake.location,
            sources={source.name: source.every_s for source in plan.sources},
            now=utc_now(),
            tell=tell,
            before=read_status(plan.folder),
        )
        self._defects = Defects(stopping.set)
        self._waiting = Waiting([source.name for source in plan.sources], limit=plan.collect.waiting_chunks)
        self._writer = Writer(
            plan.lake,
            waiting=self._waiting,
            journal=self._journal,
            defects=self._defects,
            retry_s=plan.retry_s,
        )
        self._readers = [
            Reader(
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

    def run(self, *, ready: Callable[[], None] | None = None) -> Status:
        """Collect until `stopping` is set; land what waits, end the children; return how it was left.

        `ready` is called when everything runs: lock and address are this process's.
        Errors: ConfigError for an address that cannot be listened on; whatever ended a thread.
        """
        server = serve(self._plan.collect.listen, self._snapshot) if self._plan.collect.listen else None
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

    def once(self) -> Status:
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

    def _poll_once(self, reader: Reader) -> None:
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
            if now - written >= EVERY_S:
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

    def _snapshot(self) -> Status:
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

    def _steps(self) -> list[Step]:
        collect, options = self._plan.collect, self._plan.options
        analyze = children.command("analyze", "--threads", str(collect.threads), *options)
        compact = children.command("compact", "--vacuum-hours", str(collect.vacuum_hours), *options)
        return [
            Step("analyze", analyze, collect.analyze_s, self._first("analyze"), lambda: self._journal.landings),
            Step("compact", compact, collect.compact_s, self._first("compact")),
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
