"""One collection at a time: a lock that the kernel gives back, however the process ends."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec

from tachograph.errors import LakeError
from tachograph.lake.problems import lake_errors

FILE = "lock"
ATTEMPTS = 5  # `status` holds the lock for a moment to see whether anybody does
PAUSE_S = 0.1


class Holder(msgspec.Struct, frozen=True):
    """Who holds the lock."""

    pid: int
    host: str
    since: datetime


class Lock:
    """The lock of one lake's collection."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    @contextmanager
    def held(
        self, *, now: datetime, pause: Callable[[float], object], wait: Callable[[str], bool] | None = None
    ) -> Iterator[bool]:
        """Hold the lock for the time of the block; the block is told whether it is held.

        `wait` is asked, again and again, whether to wait for those named; without it they are an error.
        Errors: LakeError naming who holds it, or when the folder cannot be written.
        """
        with lake_errors(str(self.path.parent), writing=True):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            yield self._take(descriptor, now, pause, wait)
        finally:
            os.close(descriptor)

    def _take(
        self,
        descriptor: int,
        now: datetime,
        pause: Callable[[float], object],
        wait: Callable[[str], bool] | None,
    ) -> bool:
        attempt = 0
        while not _locked(descriptor, fcntl.LOCK_EX):
            attempt += 1
            if attempt >= ATTEMPTS:
                if wait is None:
                    raise self._held()
                if not wait(self._who()):
                    return False
            pause(PAUSE_S)
        with lake_errors(str(self.path), writing=True):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, msgspec.json.encode(Holder(os.getpid(), socket.gethostname(), now)) + b"\n", 0)
        return True

    def holder(self) -> Holder | None:
        """Return who holds the lock now; None where nobody does.

        Errors: LakeError when it may not be looked at.
        """
        if not self.path.exists():
            return None
        with lake_errors(str(self.path)):
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if _locked(descriptor, fcntl.LOCK_SH):
                return None
            return msgspec.json.decode(os.pread(descriptor, 4096, 0), type=Holder)
        except msgspec.DecodeError:  # taken a moment ago, or the disk was full
            return Holder(0, "", datetime.fromtimestamp(self.path.stat().st_mtime).astimezone())
        finally:
            os.close(descriptor)

    def _who(self) -> str:
        holder = self.holder()
        return f"process {holder.pid} on {holder.host}" if holder and holder.pid else "another process"

    def _held(self) -> LakeError:
        return LakeError(
            f"{self._who()} collects into this lake already",
            where=str(self.path),
            do="stop that one, or take over when it ends with --wait",
        )


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
