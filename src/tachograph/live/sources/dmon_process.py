"""A program that prints a table without end: started, read by a thread as it prints, and ended for sure."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tachograph.live.sources.dmon_text import Row, Stream

_BLOCK = 1 << 16
_LONGEST_LINE = 1 << 16  # bytes; what is longer is no table
_KEPT_ROWS = 4096  # that nobody has taken yet
_GRACE_S = 0.5  # until it is ended by force


@dataclass(frozen=True, slots=True)
class Said:
    """What was printed since it was last asked for. rows: with the time each came. ended: the exit code, if it did."""

    rows: tuple[tuple[float, Row], ...]
    columns: tuple[str, ...]
    complaints: tuple[str, ...]
    ended: int | None


class Process:
    """One run of the program. Errors: OSError where it cannot be started."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._steady = clock, steady
        self._stream = Stream()
        self._rows: deque[tuple[float, Row]] = deque(maxlen=_KEPT_ROWS)
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in the terminal is for us
        )
        self.heard = steady()
        self._thread = threading.Thread(target=self._run, name="dmon", daemon=True)
        self._thread.start()

    def take(self) -> Said:
        """Return what was printed since the last call."""
        over = not self._thread.is_alive()
        with self._lock:
            rows = tuple(self._rows)
            self._rows.clear()
            columns, complaints = self._stream.columns, tuple(self._stream.complaints)
        return Said(rows, columns, complaints, self._process.wait() if over else None)

    def close(self) -> None:
        """End the program with all it started; may be called twice."""
        for how in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, how)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(_GRACE_S)
        self._thread.join(_GRACE_S)

    def _run(self) -> None:
        output = self._process.stdout
        assert output is not None
        begun = b""
        with output:
            while block := os.read(output.fileno(), _BLOCK):
                *lines, begun = (begun + block).split(b"\n")
                begun = begun if len(begun) < _LONGEST_LINE else b""
                for line in lines:
                    self._line(line)
        with suppress(subprocess.TimeoutExpired):  # it closed its output and goes on: that is no use
            self._process.wait(_GRACE_S)
        self._finish()

    def _finish(self) -> None:
        """End what still runs of it, and take its exit code, so that no zombie stays."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _line(self, line: bytes) -> None:
        text = line[:_LONGEST_LINE].decode("utf-8", "replace").rstrip("\r")
        with self._lock:
            row = self._stream.line(text)
            if row is not None:
                self._rows.append((self._clock(), row))
                self.heard = self._steady()
