"""Runs a command as the shell would: terminal, job control, signals, exit status.

The command stays in this process group, with its streams. Signals to the terminal or the group
reach it directly; signals to this process alone are forwarded. A third process of the group
separates the two: it echoes every signal that it gets (`echo_signals`). Without it, only signals of
the kernel count as sent to the group.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from tachograph.catalog.errors import UsageError

NOT_FOUND, NOT_EXECUTABLE = 127, 126  # exit codes of shells
_OF_FAULTS = {
    *(
        signal.SIGKILL,
        signal.SIGSTOP,
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGABRT,
    ),
    *(signal.SIGTRAP, signal.SIGSYS, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD),
}
FORWARDED = frozenset(signal.valid_signals() - _OF_FAULTS)
_BY_KERNEL = 0x80  # si_code, asm-generic/siginfo.h: of a terminal, to the whole group
_ECHO_S = 0.2  # longest delay of an echo
_POLL_S = 2.0  # for the end of a child without a signal
_Mask = set[signal.Signals | int]


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """End of a command. code: None if a signal ended it. at: s since 1970.

    cpu_s: of it and its children.
    """

    code: int | None
    signal: int | None
    at: float
    cpu_s: float = 0.0

    @property
    def status(self) -> int:
        """The exit code as shells count it."""
        return self.code if self.code is not None else 128 + (self.signal or 0)


@contextmanager
def signals_held() -> Iterator[_Mask]:
    """Block the signals that are forwarded during the block; yields the previous mask."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*FORWARDED, signal.SIGCHLD})
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_in_foreground(
    command: Sequence[str],
    *,
    mask: _Mask,
    echo: int | None = None,
    started: Callable[[int], None] | None = None,
    environment: Mapping[str, str] | None = None,
) -> CommandEnd:
    """Run `command` to its end inside `signals_held`; call `started` with its pid.

    echo: a descriptor from which the echoes of signals are read.
    Errors: UsageError with the exit code of shells where it cannot be started.
    """
    pid = _spawn(command, dict(os.environ if environment is None else environment), mask)
    if started:
        started(pid)
    echoes = _SignalEchoes(echo)
    while True:
        info = signal.sigtimedwait({*FORWARDED, signal.SIGCHLD}, _POLL_S)
        if info is not None and info.si_signo != signal.SIGCHLD:
            _forward(info, pid, echoes)
        ended = _reap(pid)
        if ended is not None:
            return ended


def end_alike(number: int) -> None:
    """End this process by the command's signal; returns if the signal does not end it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)


def echo_signals(descriptor: int) -> None:
    """Ignore forwarded signals, writing their numbers to a non-blocking descriptor."""
    for number in FORWARDED:
        signal.signal(number, _survive)
        signal.siginterrupt(number, False)
    signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)


def _survive(number: int, frame: FrameType | None) -> None:
    """The byte is written by then."""


def _spawn(command: Sequence[str], environment: dict[str, str], mask: _Mask) -> int:
    def start(file: str, argv: Sequence[str]) -> int:
        # Python ignores these two; a command expects them as they are
        defaults = (signal.SIGPIPE, signal.SIGXFSZ)
        return os.posix_spawnp(file, list(argv), environment, setsigmask=mask, setsigdef=defaults)

    try:
        try:
            return start(command[0], command)
        except OSError as problem:
            script = shutil.which(command[0])
            if problem.errno != errno.ENOEXEC or script is None:
                raise
            # As shells do with a script that names none.
            return start("/bin/sh", ["/bin/sh", script, *command[1:]])
    except (OSError, ValueError) as problem:
        exists = not isinstance(problem, FileNotFoundError)
        what = (
            problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
        )
        raise NotStartedError(what.lower(), where=command[0], exists=exists) from None


class NotStartedError(UsageError):
    """The command cannot be started."""

    def __init__(self, what: str, *, where: str, exists: bool) -> None:
        super().__init__(what, where=where, do="check the command after --")
        self.exit_code = NOT_EXECUTABLE if exists else NOT_FOUND


class _SignalEchoes:
    """Signals of the echoing process, each counted once."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._seen: list[tuple[float, int]] = []

    def has(self, number: int) -> bool:
        """Whether it received this signal just now, or will in a moment."""
        until = time.monotonic() + _ECHO_S
        while True:
            now = time.monotonic()
            self._seen = [echo for echo in self._seen if now - echo[0] < 2 * _ECHO_S]
            for echo in self._seen:
                if echo[1] == number:
                    self._seen.remove(echo)
                    return True
            if self._descriptor is None or now >= until or not self._read(until - now):
                return False

    def _read(self, wait_s: float) -> bool:
        """Read echoes; False without any."""
        descriptor = self._descriptor
        if descriptor is None or not select.select([descriptor], [], [], wait_s)[0]:
            return False
        numbers = os.read(descriptor, 4096)
        if not numbers:  # it is gone
            self._descriptor = None
            return False
        now = time.monotonic()
        self._seen += [(now, number) for number in numbers]
        return True


def _forward(info: signal.struct_siginfo, pid: int, echoes: _SignalEchoes) -> None:
    """Forward a signal that the command did not get itself."""
    number = info.si_signo
    echoed = echoes.has(number)
    # Which a session's first process gets alone.
    of_terminal = info.si_code == _BY_KERNEL and number != signal.SIGHUP
    if echoed or of_terminal or info.si_pid == pid:
        return
    try:
        os.kill(pid, number)
    except ProcessLookupError:  # it has ended, and is reaped next
        return


def _reap(pid: int) -> CommandEnd | None:
    """End of the command, None while running; if it was stopped, stop too, for the shell."""
    reaped, status, usage = os.wait4(pid, os.WNOHANG | os.WUNTRACED)
    if not reaped:
        return None
    if os.WIFSTOPPED(status):
        number = os.WSTOPSIG(status)
        # While it is held: the terminal's own, where it waits, and this one are one.
        os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})  # comes back when we are continued
        signal.pthread_sigmask(signal.SIG_BLOCK, {number} - {signal.SIGSTOP})
        return None
    cpu_s = usage.ru_utime + usage.ru_stime
    if os.WIFSIGNALED(status):
        return CommandEnd(None, os.WTERMSIG(status), time.time(), cpu_s)
    return CommandEnd(os.WEXITSTATUS(status), None, time.time(), cpu_s)
