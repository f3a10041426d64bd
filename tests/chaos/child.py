"""A child process that runs one command and is killed with SIGKILL: after a time, or before its
n-th change of a file.

The parent has imported everything and used nothing of it (threads do not survive a fork), so a
child begins within milliseconds where a new process would take a second.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KILLED = -signal.SIGKILL
# A killed process leaves what it had written, so each kill between two of these leaves the same.
# Polars and Delta write data files without them: kills after a time come also within these.
CHANGES = frozenset(
    {"os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "shutil.rmtree"}
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True, slots=True)
class Kill:
    """When a child is killed: after `after_s` seconds of its processor time, which are the same on
    a busy machine, or before its change number `at_change` of files.
    """

    after_s: float | None = None
    at_change: int | None = None


class Child:
    """A running command. What it reports goes to `reported`."""

    def __init__(self, work: Callable[[], int], printed: Path, kill: Kill | None = None) -> None:
        self.kill = kill or Kill()
        self.id = os.fork()
        if not self.id:
            _run(work, printed, self.kill.at_change)
        self.code: int | None = None

    def poll(self) -> int | None:
        """Kill it when its time has come; return how it ended, None while it runs."""
        if self.code is None:
            done, status, _ = os.wait4(self.id, os.WNOHANG)
            if done:
                self.code = os.waitstatus_to_exitcode(status)
            elif self.kill.after_s is not None and _used_s(self.id) >= self.kill.after_s:
                os.kill(self.id, signal.SIGKILL)
        return self.code

    def wait(self) -> int:
        """Return how it ended."""
        while self.poll() is None:
            time.sleep(0.001)
        return self.code if self.code is not None else 1


def _used_s(process: int) -> float:
    """Processor time of a process that was not waited for yet, in seconds."""
    clock = (~process << 3) | 2  # clock_getcpuclockid(3)
    return time.clock_gettime(clock)


def _run(work: Callable[[], int], printed: Path, at_change: int | None) -> None:
    """Do the work with stdout and stderr in a file; never return."""
    code = 1
    try:
        os.setpgid(0, 0)
        file = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        if at_change is not None:
            sys.addaudithook(Changes(at_change))
        code = work()
        sys.stdout.flush()
    finally:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)


class Changes:
    """Counts changes of files and folders; kills its own process before number `last`. For a
    process of its own.
    """

    def __init__(self, last: int = -1) -> None:
        self.last, self.number = last, 0

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Called by the interpreter at every audited event, of every thread."""
        if event in CHANGES or (event == "open" and arguments[2] & WRITING):
            self.number += 1
            if self.number == self.last:
                os.kill(os.getpid(), signal.SIGKILL)
