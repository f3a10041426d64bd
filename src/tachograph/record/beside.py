"""The process that records beside a command: whatever happens to it, a crash of a driver's library too, the command
goes on, and so does whoever waits for the command.

It is forked before anything heavy is imported, belongs to the command's process group, and echoes the signals that
the group gets. Where its parent is killed it records on to the end of the command.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from dataclasses import asdict, dataclass
from typing import Any

from tachograph.record.foreground import Ended, echo_signals
from tachograph.record.keeping import FOREVER, Connect, Kept, Plan, keep

NICE = 5
_END_S = 15.0  # so long the last flush may take
_BEGIN_S = 3.0  # so long a source may be looked for when the command has ended already
_REAP_S = 1.0


@dataclass(slots=True)
class Beside:
    """The recording process, as its parent sees it. echo: where its echoes are read."""

    pid: int
    echo: int
    _orders: int
    _words: int

    @classmethod
    def start(cls, plan: Plan, connect: Connect, *, mask: set[Any]) -> Beside:
        """Fork it, inside `signals_held`, whose mask it gets. Errors: OSError where there is no further process."""
        (echo, echoing), (ordered, orders), (words, wording) = os.pipe(), os.pipe(), os.pipe()
        os.set_blocking(echoing, False)
        pid = os.fork()
        if pid:
            for descriptor in (echoing, ordered, wording):
                os.close(descriptor)
            return cls(pid, echo, orders, words)
        try:
            for descriptor in (echo, orders, words):
                os.close(descriptor)
            _work(plan, connect, echoing, ordered, wording, mask)
        finally:  # never back into what the parent does
            os._exit(0)

    def tell(self, order: dict[str, Any]) -> None:
        """Send it a line; one that is gone is not told."""
        try:
            os.write(self._orders, json.dumps(order).encode() + b"\n")
        except OSError:
            return

    def finish(self, ended: Ended, plan: Plan) -> Kept:
        """Tell it the end, wait for it, return what it kept."""
        self.tell({"end": ended.at, "code": ended.code, "signal": ended.signal})
        said = self._read_words(_END_S if plan.spool.exists() else _BEGIN_S)
        status = self._reap()
        spool = plan.spool if plan.spool.exists() else None
        if not said:
            return Kept(problem=f"the recording process died ({_death(status)})", spool=spool)
        told = json.loads(said)
        return Kept(told["rows"], told["lost"], told["problem"], spool if told["spool"] else None)

    def _read_words(self, wait_s: float) -> bytes:
        until = time.monotonic() + wait_s
        said = b""
        while (left := until - time.monotonic()) > 0:
            if not select.select([self._words], [], [], left)[0]:
                break
            piece = os.read(self._words, 1 << 16)
            if not piece:
                break
            said += piece
        return said

    def _reap(self) -> int:
        for descriptor in (self.echo, self._orders, self._words):
            os.close(descriptor)
        until = time.monotonic() + _REAP_S
        while time.monotonic() < until:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                return status
            time.sleep(0.005)
        os.kill(self.pid, signal.SIGKILL)
        return os.waitpid(self.pid, 0)[1]


def _death(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _work(plan: Plan, connect: Connect, echo: int, orders: int, words: int, mask: set[Any]) -> None:
    """What the process does."""
    echo_signals(echo)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    _let_go_of_streams()
    os.nice(NICE)
    listening = _Orders(orders)
    kept = keep(plan, connect, wait=listening.wait, ended=listening.ended)
    told = asdict(kept) | {"spool": kept.spool is not None}
    os.write(words, json.dumps(told).encode())


def _let_go_of_streams() -> None:
    """So that nobody waits for the end of what this process will never write."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)


class _Orders:
    """What the parent tells: the command's process, and how it ended."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        self._buffer = b""
        self._command: int | None = None  # a descriptor of its process
        self._end: Ended | None = None

    def wait(self, seconds: float) -> bool:
        """Wait; True as soon as the command has ended. A parent that is gone cannot tell: then its end is seen."""
        until = time.monotonic() + seconds
        while self._end is None:
            left = until - time.monotonic()
            if left <= 0:
                return False
            watched = self._command if self._descriptor is None else self._descriptor
            if watched is None:  # neither parent nor command
                self._end = Ended(None, None, time.time())
            elif select.select([watched], [], [], None if left == FOREVER else left)[0]:
                self._read()
        return True

    def ended(self) -> Ended | None:
        """How it ended."""
        return self._end

    def _read(self) -> None:
        if self._descriptor is None:
            self._end = Ended(None, None, time.time())
            return
        piece = os.read(self._descriptor, 1 << 16)
        if not piece:
            self._descriptor = None
        *lines, self._buffer = (self._buffer + piece).split(b"\n")
        for order in map(json.loads, lines):
            if "pid" in order:
                self._command = _watched(order["pid"])
            else:
                self._end = Ended(order["code"], order["signal"], order["end"])


def _watched(pid: int) -> int | None:
    """A descriptor that can be read when the process has ended; None where there is no such process, or kernel."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
