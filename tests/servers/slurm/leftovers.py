"""Ends every process that works within a folder: jobs and their shepherds outlive the daemons that
started them.

Run as a program it waits until its input ends, which is when the process that started it is gone,
however it went.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path


def within(folder: Path) -> set[int]:
    """Processes other than this one whose working directory is in the folder."""
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if (entry / "cwd").readlink().is_relative_to(folder):
                found.add(int(entry.name))
    return found


def end(folder: Path, *, patience_s: float = 5.0) -> None:
    """Ask the processes of the folder to end, and end them by force once patience is over."""
    until = time.monotonic() + patience_s
    requested: set[int] = set()
    while here := within(folder):
        late = time.monotonic() > until
        for process in here if late else here - requested:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL if late else signal.SIGTERM)
        requested |= here
        time.sleep(0.05)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdin.read()
    end(Path(sys.argv[1]))
