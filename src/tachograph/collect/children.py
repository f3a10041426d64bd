"""Analysis and compaction as child processes: own memory, can be killed, one at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tachograph.catalog.processes import python_command
from tachograph.collect.journal import CollectJournal
from tachograph.collect.readers import PollGrid
from tachograph.collect.status import utc_now

GRACE_S = 5.0  # between SIGTERM and SIGKILL
SHORTEST_LIMIT_S = 3600.0
LIMIT_INTERVALS = 10
_TAIL = 4096  # bytes of a child's output that are read


@dataclass(frozen=True, slots=True)
class ChildStep:
    """A periodic command. `changes`: a counter; skipped while it is as at the last success."""

    name: str
    command: Sequence[str]
    every_s: float
    first_s: float  # until the first
    changes: Callable[[], int] | None = None

    @property
    def limit_s(self) -> float:
        """A child that takes longer is killed."""
        return max(SHORTEST_LIMIT_S, LIMIT_INTERVALS * self.every_s)


@dataclass(slots=True)
class _RunningChild:
    """A child."""

    step: ChildStep
    process: subprocess.Popen[bytes]
    output: int
    began: float
    changes: int
    hangs: bool = False


@dataclass(slots=True)
class Children:
    """Periodic child processes, one at a time; not thread-safe."""

    steps: Sequence[ChildStep]
    journal: CollectJournal
    clock: Callable[[], float] = time.monotonic
    possible: Callable[[], bool] = lambda: True
    grace_s: float = GRACE_S
    _due: dict[str, float] = field(default_factory=dict)
    _done: dict[str, int] = field(default_factory=dict)
    _running: _RunningChild | None = None

    def run_due(self) -> None:
        """Reap a child that ended or hangs; start due ones."""
        self.reap()
        now = self.clock()
        for step in self.steps:
            due = self._due.setdefault(step.name, now + step.first_s)
            if now < due or self._running is not None:
                continue
            self._due[step.name] = PollGrid(due, step.every_s).after(now)
            if self.possible() and (
                step.changes is None or step.changes() != self._done.get(step.name)
            ):
                self.start(step)

    def reap(self) -> None:
        """Reap a child that ended or hangs."""
        if self._running is not None:
            self._reap(self._running, self.clock())

    def start(self, step: ChildStep) -> None:
        """Start a child; a failure to start (no memory left) counts as a failure."""
        changes = 0 if step.changes is None else step.changes()
        self.journal.begin_step(step.name)
        output = -1
        try:
            output = os.memfd_create(step.name)  # not a pipe, which would block the child when full
            process = subprocess.Popen(
                step.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # A terminal's interrupt goes to the parent, which ends its children.
                start_new_session=True,
            )
        except OSError as problem:
            if output >= 0:
                os.close(output)
            why = f"cannot be started: {problem.strerror}"
            self.journal.end_step(step.name, seconds=0.0, now=utc_now(), result="", problem=why)
        else:
            self._running = _RunningChild(step, process, output, self.clock(), changes)

    @property
    def is_busy(self) -> bool:
        """Whether a child is running."""
        return self._running is not None

    def stop(self) -> None:
        """End the child by SIGTERM, then SIGKILL; the lake is as before or after its commit."""
        running = self._running
        if running is None:
            return
        _signal(running.process, signal.SIGTERM)
        try:
            running.process.wait(self.grace_s)
        except subprocess.TimeoutExpired:
            self.kill()
        os.close(running.output)
        self._running = None
        self.journal.ended_step(running.step.name)

    def kill(self) -> None:
        """Kill the running child."""
        if self._running is not None:
            _signal(self._running.process, signal.SIGKILL)
            self._running.process.wait()

    def _reap(self, running: _RunningChild, now: float) -> None:
        code = running.process.poll()
        if code is None:
            if now - running.began > running.step.limit_s:
                running.hangs = True
                self.kill()
                code = running.process.returncode
            else:
                return
        self._running = None
        result = _last_line(running.output)
        problem = None if code == 0 else _problem(running, code, result)
        self.journal.end_step(
            running.step.name,
            seconds=now - running.began,
            now=utc_now(),
            result=result,
            problem=problem,
        )
        if problem is None:
            self._done[running.step.name] = running.changes


def command(*words: str) -> list[str]:
    """Return the command line of `tachograph WORDS` as a child of this process."""
    return python_command("tachograph.collect.child", str(os.getpid()), *words)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to a child and its own children."""
    if process.poll() is None:
        os.killpg(process.pid, number)


def _problem(running: _RunningChild, code: int, result: str) -> str:
    if running.hangs:
        return f"took longer than {running.step.limit_s:.0f} s and was killed"
    if code < 0:
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    return result or f"ended with exit code {code}"


def _last_line(output: int) -> str:
    """The last line of a child's output; closes the file."""
    with os.fdopen(output, "rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - _TAIL))
        lines = stream.read().decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("tachograph: ").strip() if lines else ""
