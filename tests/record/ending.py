"""Ends what a test has started: recorders and their commands outlive a parent that is killed,
and none its test.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

_MARK = "OF_A_TEST_OF_RECORD"  # in the environment of whatever is started, and of what that starts


@contextmanager
def ending_all() -> Iterator[str]:
    """Kill what was started inside the block and lives at its end, however it ends; yields the
    mark of it.
    """
    mark = uuid4().hex
    before = os.environ.get(_MARK)
    os.environ[_MARK] = mark
    try:
        yield mark
    finally:
        os.environ.pop(_MARK)
        if before is not None:
            os.environ[_MARK] = before
        for pid in living(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def living(mark: str) -> list[int]:
    """The processes with a mark that live."""
    printed = f"{_MARK}={mark}".encode()
    found = []
    for reported in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended, or is another user's
            if printed in reported.read_bytes().split(b"\0"):
                found.append(int(reported.parent.name))
    return found
