"""What is known of a collection: the status file, and what it means."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from tachograph.errors import LakeError
from tachograph.lake.problems import lake_errors

FOLDER = "_collect"  # in a lake that is a folder
FILE = "status.json"
EVERY_S = 5.0  # between writes
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


class Status(msgspec.Struct):
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
        return Path(lake) / FOLDER
    environment = os.environ if environment is None else environment
    base = environment.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    return Path(base) / "tachograph" / hashlib.sha256(lake.rstrip("/").encode()).hexdigest()[:16]


def write_status(folder: Path, status: Status) -> None:
    """Put the status in the place of the one before, in one step.

    Errors: LakeError when it cannot be written.
    """
    part = folder / f"{FILE}.part"
    with lake_errors(str(folder), writing=True):
        try:
            part.write_bytes(msgspec.json.format(msgspec.json.encode(status), indent=1) + b"\n")
            part.replace(folder / FILE)
        except OSError:
            part.unlink(missing_ok=True)
            raise


def read_status(folder: Path) -> Status | None:
    """Return the status that was written last; None where there is none, or one that this version cannot read.

    Errors: LakeError when it may not be read.
    """
    try:
        with lake_errors(str(folder / FILE)):
            return msgspec.json.decode((folder / FILE).read_bytes(), type=Status)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
    except LakeError:
        if not (folder / FILE).exists():
            return None
        raise


def is_stale(status: Status, now: datetime) -> bool:
    """Whether a process that runs has not written its status for a while."""
    return now - status.updated > timedelta(seconds=STALE_S)


def utc_now() -> datetime:
    """The present."""
    return datetime.now(UTC)
