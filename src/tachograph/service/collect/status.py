"""Status of a collector: the status file, the lock that keeps a second collector out, and the overview of both."""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from tachograph.catalog.errors import LakeError
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import watermark
from tachograph.lake.problems import lake_errors
from tachograph.sources.registry import FeedSettings

STATE_FOLDER = "_collect"  # in a lake that is a folder
STATUS_FILE = "status.json"
STATUS_EVERY_S = 5.0  # between writes
STALE_S = 60.0  # a running process whose status is older hangs
SKEWED_S = 1.0  # hosts whose clock is off by more are named
LATE_INTERVALS = 3
LATE_S = 60.0
BEHIND_INTERVALS = 10
BEHIND_S = 900.0


class SourceStatus(msgspec.Struct):
    """One source. Counts are those of this process; times and the last error outlive it."""

    name: str
    every_s: float
    polls: int = 0
    errors: dict[str, int] = {}  # by kind: input, lake, schema
    last_poll: datetime | None = None
    last_success: datetime | None = None  # begin of the last poll of which everything landed
    failures: int = 0  # polls in a row
    last_error: str | None = None
    last_error_at: datetime | None = None
    watermarks: dict[str, datetime] = {}  # by stream
    chunks: int = 0
    chunks_waiting: int = 0
    rows_read: int = 0
    rows: dict[str, int] = {}  # by table
    rejects: dict[str, dict[str, int]] = {}  # by table and reason
    unreachable: dict[str, str] = {}  # why, by host or address
    skew_s: dict[str, float] = {}  # how far a host's clock is ahead of ours
    poll_s: float = 0.0
    land_s: float = 0.0

    def lag_s(self, now: datetime) -> float | None:
        """Seconds since `read_up_to`; None where nothing has landed yet."""
        until = self.read_up_to
        return None if until is None else (now - until).total_seconds()

    @property
    def read_up_to(self) -> datetime | None:
        """The watermark of the stream that is furthest behind; but a second look, `stream:late`, is so by nature."""
        others = tuple(f"{stream}:" for stream in self.watermarks)
        return min((at for stream, at in self.watermarks.items() if not stream.startswith(others)), default=None)

    def condition(self, now: datetime) -> str:
        """`ok`, or what is wrong: `failing`, `late` (no success for three intervals), `behind` (old data)."""
        if self.failures:
            return "failing"
        if self.last_success is None:
            return "never asked" if self.last_poll is None else "late"
        if (now - self.last_success).total_seconds() > LATE_INTERVALS * self.every_s + LATE_S:
            return "late"
        lag = self.lag_s(now)
        return "behind" if lag is not None and lag > max(BEHIND_INTERVALS * self.every_s, BEHIND_S) else "ok"

    def skewed(self) -> dict[str, float]:
        """Hosts whose clock is off, the worst first."""
        off = {host: skew for host, skew in self.skew_s.items() if abs(skew) > SKEWED_S}
        return dict(sorted(off.items(), key=lambda item: (-abs(item[1]), item[0])))


class StepStatus(msgspec.Struct):
    """Analysis or compaction."""

    runs: int = 0
    failures: int = 0
    running: bool = False
    last_success: datetime | None = None
    last_duration_s: float | None = None
    said: str | None = None  # last line of the last that succeeded
    last_error: str | None = None
    last_error_at: datetime | None = None

    @property
    def is_failing(self) -> bool:
        """The last one failed."""
        if self.last_error_at is None:
            return False
        return self.last_success is None or self.last_error_at > self.last_success


class CollectStatus(msgspec.Struct):
    """Everything that a collection tells of itself."""

    version: str
    lake: str
    host: str
    pid: int
    started: datetime
    updated: datetime
    stopped: datetime | None = None
    sources: dict[str, SourceStatus] = {}
    steps: dict[str, StepStatus] = {}


def state_folder(lake: str, configured: str = "", environment: Mapping[str, str] | None = None) -> Path:
    """Return where lock and status of a lake's collection are: in the lake, where that is a folder.

    Of an object store: `configured`, else a folder of this user on this host, named after the lake.
    """
    if configured:
        return Path(configured)
    if "://" not in lake:
        return Path(lake) / STATE_FOLDER
    environment = os.environ if environment is None else environment
    base = environment.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    return Path(base) / "tachograph" / hashlib.sha256(lake.rstrip("/").encode()).hexdigest()[:16]


def write_status(folder: Path, status: CollectStatus) -> None:
    """Put the status in the place of the one before, in one step.

    Errors: LakeError when it cannot be written.
    """
    part = folder / f"{STATUS_FILE}.part"
    with lake_errors(str(folder), writing=True):
        try:
            part.write_bytes(msgspec.json.format(msgspec.json.encode(status), indent=1) + b"\n")
            part.replace(folder / STATUS_FILE)
        except OSError:
            part.unlink(missing_ok=True)
            raise


def read_status(folder: Path) -> CollectStatus | None:
    """Return the status that was written last; None where there is none, or one that this version cannot read.

    Errors: LakeError when it may not be read.
    """
    try:
        with lake_errors(str(folder / STATUS_FILE)):
            return msgspec.json.decode((folder / STATUS_FILE).read_bytes(), type=CollectStatus)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
    except LakeError:
        if not (folder / STATUS_FILE).exists():
            return None
        raise


def is_stale(status: CollectStatus, now: datetime) -> bool:
    """Whether a process that runs has not written its status for a while."""
    return now - status.updated > timedelta(seconds=STALE_S)


def utc_now() -> datetime:
    """The present."""
    return datetime.now(UTC)


LOCK_FILE = "lock"
ATTEMPTS = 5  # `status` holds the lock for a moment to see whether anybody does
PAUSE_S = 0.1


class LockHolder(msgspec.Struct, frozen=True):
    """Who holds the lock."""

    pid: int
    host: str
    since: datetime


class CollectLock:
    """The lock of one lake's collection."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK_FILE

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
            os.pwrite(descriptor, msgspec.json.encode(LockHolder(os.getpid(), socket.gethostname(), now)) + b"\n", 0)
        return True

    def holder(self) -> LockHolder | None:
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
            return msgspec.json.decode(os.pread(descriptor, 4096, 0), type=LockHolder)
        except msgspec.DecodeError:  # taken a moment ago, or the disk was full
            return LockHolder(0, "", datetime.fromtimestamp(self.path.stat().st_mtime).astimezone())
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


@dataclass(frozen=True, slots=True)
class CollectOverview:
    """How the collecting goes. `holder`: who collects now; `status`: what was written last; None where there is none.

    `sources`: with the watermarks of the lake, which may be newer than the file.
    """

    lake: str
    now: datetime
    holder: LockHolder | None
    status: CollectStatus | None
    sources: tuple[SourceStatus, ...]
    steps: Mapping[str, StepStatus]

    @property
    def hangs(self) -> bool:
        """A process holds the lock and has not written its status for a while."""
        return self.holder is not None and self.status is not None and is_stale(self.status, self.now)

    @property
    def is_healthy(self) -> bool:
        """No source is late or failing, the last analysis and compaction worked, no process hangs."""
        troubles = [source.condition(self.now) != "ok" for source in self.sources]
        return not any(troubles) and not self.hangs and not any(step.is_failing for step in self.steps.values())

    def as_json(self) -> dict[str, Any]:
        """Return all of it, for programs; null is what is not known."""
        return {
            "healthy": self.is_healthy,
            "running": self.holder is not None,
            "hangs": self.hangs,
            "pid": self.holder.pid if self.holder else None,
            "host": self.holder.host if self.holder else None,
            "lake": self.lake,
            "started": self.status.started if self.status else None,
            "updated": self.status.updated if self.status else None,
            "stopped": self.status.stopped if self.status else None,
            "sources": [
                msgspec.to_builtins(source, builtin_types=(datetime,))
                | {"condition": source.condition(self.now), "lag_s": source.lag_s(self.now), "skewed": source.skewed()}
                for source in self.sources
            ],
            "steps": {
                name: msgspec.to_builtins(step, builtin_types=(datetime,)) | {"failing": step.is_failing}
                for name, step in self.steps.items()
            },
        }


def overview(lake: str, folder: Path, configured: Sequence[FeedSettings], *, now: datetime) -> CollectOverview:
    """Return how the collecting into `lake` goes; `configured` are the sources of the configuration.

    Errors: LakeError when there is neither a lake nor a source, or it may not be read.
    """
    status = read_status(folder)
    known = dict(status.sources) if status else {}
    streams = {settings.title: settings.stream for settings in configured}
    opened = Lake(lake) if status or configured else Lake.open(lake)
    sources = []
    for settings in configured:
        known.setdefault(settings.title, SourceStatus(settings.title, settings.every_s))
    for name in dict.fromkeys([*streams, *known]):
        source = known[name]
        source.watermarks |= dict(_watermarks(opened, {streams.get(name, name), *source.watermarks}))
        sources.append(source)
    return CollectOverview(
        lake, now, CollectLock(folder).holder(), status, tuple(sources), status.steps if status else {}
    )


def _watermarks(lake: Lake, streams: Iterable[str]) -> Iterator[tuple[str, datetime]]:
    for stream in streams:
        until = watermark(lake, stream)
        if until is not None:
            yield stream, until
