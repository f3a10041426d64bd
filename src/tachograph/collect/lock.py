"""The lock against a second collector: the kernel's, or a file if locks are missing.

A file system without locks (`flock` answers ENOSYS, ENOLCK or EOPNOTSUPP: Lustre and NFS as often
mounted) holds the lock as a file that its holder creates, touches every few seconds and removes.
One that was not touched for STALE_LOCK_S is nobody's: its host died. Times of files are compared
with each other, all by the clock of the file server.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path

import msgspec

from tachograph.catalog.durable import make_folder, mode_within
from tachograph.catalog.errors import LakeError
from tachograph.lake.problems import lake_errors

LOCK_FILE = "lock"
HOLDER_FILE = "lock.holder"  # where the file system has no locks
STALE_LOCK_S = 120.0  # the holder touches its file every 5 s
ATTEMPTS = 5  # `status` holds the lock for a moment to test it
PAUSE_S = 0.1
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP})
Flock = Callable[[int, int], None]


class LockHolder(msgspec.Struct, frozen=True):
    """Holder of the lock. `world`: boot and pid namespace in which `pid` is valid."""

    pid: int
    host: str
    since: datetime
    world: str = ""
    token: str = ""


class CollectLock:
    """The lock of a lake's collector. `flock`: the kernel's function, passed in."""

    def __init__(self, folder: Path, *, flock: Flock = fcntl.flock) -> None:
        self.path = folder / LOCK_FILE
        self._flock = flock
        self._file = _HolderFile(folder / HOLDER_FILE)

    @contextmanager
    def held(
        self,
        *,
        now: datetime,
        pause: Callable[[float], object],
        wait: Callable[[str], bool] | None = None,
    ) -> Iterator[bool]:
        """Hold the lock; yields whether that succeeded. Call `beat` every few seconds.

        `wait` is called with the holder and returns whether to wait longer; without it another
        holder is an error. Errors: LakeError naming the holder, or where the folder cannot be
        written.
        """
        with lake_errors(str(self.path.parent), writing=True):
            make_folder(self.path.parent)
            mode = mode_within(self.path.parent)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        with ExitStack() as ending:
            ending.callback(os.close, descriptor)
            ending.callback(self._file.give_back)
            yield self._take(
                descriptor,
                LockHolder(os.getpid(), socket.gethostname(), now, _world(), uuid.uuid4().hex),
                pause,
                wait,
            )

    def beat(self) -> None:
        """Renew the lock. Errors: LakeError if another process has it."""
        self._file.touch()

    def _take(
        self,
        descriptor: int,
        mine: LockHolder,
        pause: Callable[[float], object],
        wait: Callable[[str], bool] | None,
    ) -> bool:
        attempt = 0
        while not self._taken(descriptor, mine):
            attempt += 1
            if attempt >= ATTEMPTS:
                if wait is None:
                    raise self._held()
                if not wait(self._who()):
                    return False
            pause(PAUSE_S)
        with lake_errors(str(self.path), writing=True):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, msgspec.json.encode(mine) + b"\n", 0)
        return True

    def _taken(self, descriptor: int, mine: LockHolder) -> bool:
        locked = self._locked(descriptor, fcntl.LOCK_EX)
        if locked is None:
            return self._file.take(mine)
        # Of a host on which the file system has no locks.
        if locked and self._file.holder() is not None:
            self._flock(descriptor, fcntl.LOCK_UN)
            return False
        return locked

    def holder(self) -> LockHolder | None:
        """Return the holder of the lock; None without one.

        Errors: LakeError where it cannot be read.
        """
        if not self.path.exists():
            return None
        with lake_errors(str(self.path)):
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if self._locked(descriptor, fcntl.LOCK_SH) is not False:
                return self._file.holder()
            return msgspec.json.decode(os.pread(descriptor, 4096, 0), type=LockHolder)
        except msgspec.DecodeError:  # taken a moment ago, or the disk was full
            return _unnamed(self.path)
        finally:
            os.close(descriptor)

    def _locked(self, descriptor: int, kind: int) -> bool | None:
        """Whether the kernel gave the lock; None if the file system has no locks."""
        try:
            self._flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as problem:
            if problem.errno in _NO_LOCKS:
                return None
            with lake_errors(str(self.path)):
                raise
        return True

    def _who(self) -> str:
        holder = self.holder()
        return (
            f"process {holder.pid} on {holder.host}" if holder and holder.pid else "another process"
        )

    def _held(self) -> LakeError:
        return LakeError(
            f"{self._who()} already collects into this lake",
            where=str(self.path),
            do="stop it, or wait for its end with --wait",
        )


class _HolderFile:
    """The lock as a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mine: LockHolder | None = None

    def take(self, mine: LockHolder) -> bool:
        """Whether the file is ours now. Errors: LakeError if it cannot be written."""
        with lake_errors(str(self.path), writing=True):
            if self._is_dead():
                self._remove_dead()
            # complete before it has its name, so that no one reads half of it
            draft = self.path.with_name(f"{self.path.name}.{mine.token}")
            try:
                draft.write_bytes(msgspec.json.encode(mine) + b"\n")
                os.link(draft, self.path)
            except FileExistsError:
                return False
            finally:
                draft.unlink(missing_ok=True)
        self._mine = mine
        return True

    def touch(self) -> None:
        """Renew our file. Errors: LakeError if it is no longer ours."""
        if self._mine is None:
            return
        try:
            there = self._read()
            if there is not None and there.token == self._mine.token:
                os.utime(self.path)
                return
        except OSError:  # a file server that is away for a moment
            return
        self._mine = None
        who = f"process {there.pid} on {there.host}" if there else "another process"
        raise LakeError(
            f"{who} took the lock over",
            where=str(self.path),
            do="check whether this host was suspended",
        )

    def give_back(self) -> None:
        """Remove the file if it is ours."""
        mine, self._mine = self._mine, None
        with suppress(OSError, msgspec.DecodeError):
            if (
                mine is not None
                and (there := self._read()) is not None
                and there.token == mine.token
            ):
                self.path.unlink()

    def holder(self) -> LockHolder | None:
        """Return the live process that holds it, or None. Errors: LakeError."""
        with lake_errors(str(self.path)):
            return None if self._is_dead(by_our_clock=True) else self._read()

    def _read(self) -> LockHolder | None:
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=LockHolder)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError:
            return _unnamed(self.path)

    def _is_dead(self, *, by_our_clock: bool = False) -> bool:
        """Whether the file's process is gone from this host, or has not renewed for
        STALE_LOCK_S.
        """
        there = self._read()
        if there is None:
            return False
        if (
            there.world == _world()
            and there.host == socket.gethostname()
            and not Path(f"/proc/{there.pid}").exists()
        ):
            return True
        try:
            touched = self.path.stat().st_mtime
        except FileNotFoundError:
            return False
        now = time.time() if by_our_clock else self._server_now()
        return now - touched > STALE_LOCK_S

    def _server_now(self) -> float:
        """Time of the file server, from a newly written file."""
        probe = self.path.with_name(f"{self.path.name}.{uuid.uuid4().hex}")
        try:
            probe.write_bytes(b"")
            return probe.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)

    def _remove_dead(self) -> None:
        """Remove the file of a dead process, but not one created meanwhile."""
        aside = self.path.with_name(f"{self.path.name}.{uuid.uuid4().hex}")
        with suppress(FileNotFoundError):
            before = self.path.stat()
            self.path.rename(aside)
            if aside.stat().st_ino != before.st_ino:
                with suppress(FileExistsError):
                    os.link(aside, self.path)
            aside.unlink()


def _unnamed(path: Path) -> LockHolder:
    """A holder that has not written its name yet, or could not."""
    return LockHolder(0, "", datetime.fromtimestamp(path.stat().st_mtime).astimezone())


def _world() -> str:
    """Boot and pid namespace of this host; "" if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
