"""Records a command or Slurm job, sampling in another process or thread."""

from __future__ import annotations

import json
import os
import select
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tachograph.annexes.watch.record.foreground import (
    CommandEnd,
    NotStartedError,
    echo_signals,
    run_in_foreground,
    signals_held,
)
from tachograph.annexes.watch.record.spooling import (
    FOREVER,
    Connect,
    RecordPlan,
    SpoolResult,
    identify,
    sleeping_until,
    spool_samples,
)

NICE = 5  # the command goes first
_END_S = 15.0  # timeout of the last flush
_BEGIN_S = 3.0  # timeout of the search for a source after the end of the command
_REAP_S = 1.0  # from its answer until it is killed


@dataclass(slots=True)
class RecorderProcess:
    """Handle of the recording process in its parent. echo: descriptor of its echoes."""

    pid: int
    echo: int
    _orders: int
    _results: int

    @classmethod
    def start(cls, plan: RecordPlan, connect: Connect, *, mask: set[Any]) -> RecorderProcess:
        """Fork inside `signals_held`, inheriting its mask. Errors: OSError if fork fails."""
        (echo, echoing), (ordered, orders), (results, writing) = os.pipe(), os.pipe(), os.pipe()
        os.set_blocking(echoing, False)
        pid = os.fork()
        if pid:
            for descriptor in (echoing, ordered, writing):
                os.close(descriptor)
            return cls(pid, echo, orders, results)
        try:
            for descriptor in (echo, orders, results):
                os.close(descriptor)
            _work(plan, connect, echoing, ordered, writing, mask)
        finally:  # never return into the code of the parent
            os._exit(0)

    def send(self, order: dict[str, Any]) -> None:
        """Send a line, if the process still runs."""
        try:
            os.write(self._orders, json.dumps(order).encode() + b"\n")
        except OSError:
            return

    def finish(self, ended: CommandEnd, plan: RecordPlan) -> SpoolResult:
        """Send it the end of the command, wait for it, return its result."""
        self.send({"end": ended.at, "code": ended.code, "signal": ended.signal})
        begun = plan.spool.exists()
        answer = self._read_result(_END_S if begun else _BEGIN_S)
        status = self._reap()
        spool = plan.spool if plan.spool.exists() else None
        if not answer:
            return SpoolResult(problem=_why_no_result(status, begun=begun), spool=spool)
        result = json.loads(answer)
        return SpoolResult(
            result["rows"], result["lost"], result["problem"], spool if result["spool"] else None
        )

    def _read_result(self, wait_s: float) -> bytes:
        until = time.monotonic() + wait_s
        answer = b""
        while (rest_s := until - time.monotonic()) > 0:
            if not select.select([self._results], [], [], rest_s)[0]:
                break
            piece = os.read(self._results, 1 << 16)
            if not piece:
                break
            answer += piece
        return answer

    def _reap(self) -> int | None:
        """Its exit status; None if it was killed."""
        for descriptor in (self.echo, self._orders, self._results):
            os.close(descriptor)
        until = time.monotonic() + _REAP_S
        while time.monotonic() < until:
            reaped, status = os.waitpid(self.pid, os.WNOHANG)
            if reaped:
                return status
            time.sleep(0.005)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return None


def _why_no_result(status: int | None, *, begun: bool) -> str:
    """Return why the recording process sent no result.

    `status`: None if it was killed; `begun`: it had a spool.
    """
    code = 0 if status is None else os.waitstatus_to_exitcode(status)
    if code:
        return (
            f"the recording process died ({f'signal {-code}' if code < 0 else f'exit code {code}'})"
        )
    if begun:
        return (
            f"the recording process did not finish within {_END_S:.0f} s of the end of the command"
        )
    return f"the recording process was not ready {_BEGIN_S:.0f} s after the end of the command"


def _work(
    plan: RecordPlan, connect: Connect, echo: int, orders: int, results: int, mask: set[Any]
) -> None:
    """Body of the recording process."""
    echo_signals(echo)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    _detach_streams()
    os.nice(NICE)
    listening = _RecorderOrders(orders)
    recorded = spool_samples(plan, connect, wait=listening.wait, ended=listening.ended)
    result = asdict(recorded) | {"spool": recorded.spool is not None}
    os.write(results, json.dumps(result).encode())


def _detach_streams() -> None:
    """Detach from the command's streams, so that no reader waits for this process."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)


class _RecorderOrders:
    """Messages of the parent: process of the command, and its end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        self._buffer = b""
        self._command: int | None = None  # a descriptor of its process
        self._end: CommandEnd | None = None

    def wait(self, seconds: float) -> bool:
        """Wait; True as soon as the command has ended. Without a parent its process is watched."""
        until = time.monotonic() + seconds
        while self._end is None:
            rest_s = until - time.monotonic()
            if rest_s <= 0:
                return False
            watched = self._command if self._descriptor is None else self._descriptor
            if watched is None:  # neither parent nor command
                self._end = CommandEnd(None, None, time.time())
            elif select.select([watched], [], [], None if rest_s == FOREVER else rest_s)[0]:
                self._read()
        return True

    def ended(self) -> CommandEnd | None:
        """End of the command; None while it runs."""
        return self._end

    def _read(self) -> None:
        if self._descriptor is None:
            self._end = CommandEnd(None, None, time.time())
            return
        piece = os.read(self._descriptor, 1 << 16)
        if not piece:
            self._descriptor = None
        *lines, self._buffer = (self._buffer + piece).split(b"\n")
        for order in map(json.loads, lines):
            if "pid" in order:
                self._command = _watched(order["pid"])
            else:
                self._end = CommandEnd(order["code"], order["signal"], order["end"])


def _watched(pid: int) -> int | None:
    """Descriptor, readable at the process's end; None without process or kernel support."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class RecordedCommand:
    """A recorded command: its end, and the result of the recording."""

    plan: RecordPlan
    ended: CommandEnd
    result: SpoolResult


def plan_recording(
    command: Sequence[str],
    *,
    folder: str | Path | None = None,
    interval_s: float = 1.0,
    anonymous: bool = False,
    cluster: str = "",
    environment: Mapping[str, str] | None = None,
) -> RecordPlan:
    """Return the plan of a recording from now on; no command: the surrounding job."""
    start = time.time()
    environment = os.environ if environment is None else environment
    identity = identify(command, environment, start=start, anonymous=anonymous, cluster=cluster)
    output = Path(folder) if folder else Path(f"tachograph-{identity.job_id}")
    # The command may change the directory.
    return RecordPlan(output.absolute(), identity, start, interval_s, anonymous)


def record_command(command: Sequence[str], connect: Connect, plan: RecordPlan) -> RecordedCommand:
    """Run a command in the foreground, and a recording process.

    For programs of one thread: it forks. No failure of the recording prevents the command.
    Errors: NotStartedError where the command cannot be started.
    """
    with signals_held() as mask:
        try:
            recorder = RecorderProcess.start(plan, connect, mask=mask)
        except OSError as problem:  # no further process allowed
            return RecordedCommand(
                plan, run_in_foreground(command, mask=mask), SpoolResult(problem=str(problem))
            )
        try:
            ended = run_in_foreground(
                command,
                mask=mask,
                echo=recorder.echo,
                started=lambda pid: recorder.send({"pid": pid}),
            )
        except NotStartedError as problem:
            recorder.finish(CommandEnd(problem.exit_code, None, time.time()), plan)
            plan.discard()
            raise
        return RecordedCommand(plan, ended, recorder.finish(ended, plan))


def record_until(
    connect: Connect, plan: RecordPlan, *, duration_s: float | None = None
) -> SpoolResult:
    """Sample in this process until the end of the duration, or SIGTERM, SIGINT or SIGHUP.

    Where nothing can be written, it ends at once. A second signal ends the process at once;
    recorded samples stay.
    """
    until = None if duration_s is None else time.monotonic() + duration_s
    stopped = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def stop(number: int, frame: object) -> None:
        if stopped.is_set():
            os._exit(128 + number)
        stopped.set()

    def finished() -> bool:
        return stopped.is_set() or (until is not None and time.monotonic() >= until)

    def wait(seconds: float) -> bool:
        return sleep(seconds) if seconds != FOREVER or plan.spool.exists() else True

    sleep = sleeping_until(finished)
    before = [signal.signal(number, stop) for number in numbers]
    try:
        return spool_samples(
            plan, connect, wait=wait, ended=lambda: CommandEnd(None, None, time.time())
        )
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
