"""Status of a collector: the status file, the lock, and an overview of both."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from tachograph.catalog.config import Configuration
from tachograph.catalog.durable import replace_file
from tachograph.collect.lock import CollectLock, LockHolder
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import watermark
from tachograph.lake.problems import lake_errors
from tachograph.sources.registry import FeedSettings, configured_feeds

STATE_FOLDER = "_collect"  # in a lake that is a folder
STATUS_FILE = "status.json"
STATUS_EVERY_S = 5.0  # between writes
STALE_S = 60.0  # a running process whose status is older hangs
# Bytes; the status may grow by an error that is reported on a full disk.
_BLOCK, _SPARE = 4096, 2048
_LEAST_BYTES = 1 << 20  # a disk with less space left is full
SKEWED_S = 1.0  # hosts with more clock skew are named
LATE_INTERVALS = 3
LATE_S = 60.0
BEHIND_INTERVALS = 10
BEHIND_S = 900.0
AHEAD_S = 5.0  # a watermark further ahead of our clock is an error
GAPS_MINUTES = 60  # for which skipped polls count
FEW_SKIPPED = 3  # fewer do not change a source's state, nor does a share up to:
SKIPPED_SHARE = 0.05
_HIDDEN = "(for admins)"


class PollMinute(msgspec.Struct, array_like=True):
    """Polls that began in one minute, counted since 1970, and those that were skipped until then.

    longest_gap_s: between the starts of two polls, where any was skipped between them.
    """

    minute: int
    polls: int = 0
    skipped: int = 0
    longest_gap_s: float = 0.0


def late_s(every_s: float) -> float:
    """Return the time without a success after which a source is late."""
    return LATE_INTERVALS * every_s + LATE_S


def skipped_polls(gap_s: float, every_s: float) -> int:
    """Return how many polls were due and did not begin between two that did.

    >>> skipped_polls(60.4, 60.0), skipped_polls(89.0, 60.0), skipped_polls(194.0, 60.0)
    (0, 0, 2)
    """
    return max(0, round(gap_s / every_s) - 1)


class SourceStatus(msgspec.Struct):
    """Status of a source. Counts are of this process; times, last error, `minutes` survive it."""

    name: str
    every_s: float
    polls: int = 0
    # Polls that were due and did not take place; pauses after failures are not due.
    skipped: int = 0
    minutes: list[PollMinute] = []  # of the last hour
    errors: dict[str, int] = {}  # by kind: input, lake, schema, defect
    last_poll: datetime | None = None
    last_success: datetime | None = None  # start of the last poll that was committed
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
    other_nodes: dict[str, str] = {}  # a node that an exporter names and is not on, by address
    skew_s: dict[str, float] = {}  # how far a host's clock is ahead of ours
    poll_s: float = 0.0
    commit_s: float = 0.0

    def note_poll(self, now: datetime, *, gap_s: float, began: bool = True) -> None:
        """Count a poll and the skipped ones. `gap_s`: since the previous, without planned pauses.

        `began`: False where the next poll is still to come.
        """
        skipped = (
            skipped_polls(gap_s, self.every_s) if began else max(0, int(gap_s / self.every_s) - 1)
        )
        self.polls += began
        self.skipped += skipped
        minute = int(now.timestamp() // 60)
        recent = [entry for entry in self.minutes if minute - GAPS_MINUTES < entry.minute <= minute]
        if not recent or recent[-1].minute != minute:
            recent.append(PollMinute(minute))
        recent[-1].polls += began
        recent[-1].skipped += skipped
        if skipped:
            recent[-1].longest_gap_s = max(recent[-1].longest_gap_s, gap_s)
        self.minutes = recent

    def last_hour(self, now: datetime) -> PollMinute:
        """Return the polls of the last hour, summed up."""
        minute = int(now.timestamp() // 60)
        hour = [entry for entry in self.minutes if minute - GAPS_MINUTES < entry.minute <= minute]
        return PollMinute(
            minute,
            sum(entry.polls for entry in hour),
            sum(entry.skipped for entry in hour),
            max((entry.longest_gap_s for entry in hour), default=0.0),
        )

    def is_skipping(self, now: datetime) -> bool:
        """Whether too many polls were skipped in the last hour, or too many in a row."""
        hour = self.last_hour(now)
        is_long = hour.longest_gap_s > late_s(self.every_s)
        limit = max(FEW_SKIPPED, SKIPPED_SHARE * (hour.polls + hour.skipped))
        return is_long or hour.skipped > limit

    def lag_s(self, now: datetime) -> float | None:
        """Seconds since `read_up_to`; None before the first commit."""
        until = self.read_up_to
        return None if until is None else (now - until).total_seconds()

    @property
    def read_up_to(self) -> datetime | None:
        """Oldest watermark of the streams, without `stream:late`, the second poll for late rows."""
        others = tuple(f"{stream}:" for stream in self.watermarks)
        return min(
            (at for stream, at in self.watermarks.items() if not stream.startswith(others)),
            default=None,
        )

    def ahead_s(self, now: datetime) -> float:
        """Seconds the newest watermark is ahead of our clock; 0 up to AHEAD_S."""
        ahead = max(((at - now).total_seconds() for at in self.watermarks.values()), default=0.0)
        return ahead if ahead > AHEAD_S else 0.0

    def condition(self, now: datetime) -> str:
        """Return the first of these that holds.

        `failing`; `ahead`: a watermark is ahead of our clock, samples until then may never be read;
        `never polled`; `late`: no success for three intervals; `behind`: old data; `skipping`:
        polls did not take place; `ok`.
        """
        if self.failures:
            return "failing"
        if self.ahead_s(now):
            return "ahead"
        if self.last_success is None:
            return "never polled" if self.last_poll is None else "late"
        if (now - self.last_success).total_seconds() > late_s(self.every_s):
            return "late"
        lag = self.lag_s(now)
        if lag is not None and lag > max(BEHIND_INTERVALS * self.every_s, BEHIND_S):
            return "behind"
        return "skipping" if self.is_skipping(now) else "ok"

    def skewed(self) -> dict[str, float]:
        """Hosts with clock skew, largest first."""
        off = {host: skew for host, skew in self.skew_s.items() if abs(skew) > SKEWED_S}
        return dict(sorted(off.items(), key=lambda item: (-abs(item[1]), item[0])))


class StepStatus(msgspec.Struct):
    """Analysis or compaction."""

    runs: int = 0
    failures: int = 0
    running: bool = False
    last_success: datetime | None = None
    last_duration_s: float | None = None
    result: str | None = None  # last line of the last success
    last_error: str | None = None
    last_error_at: datetime | None = None

    @property
    def is_failing(self) -> bool:
        """Whether the last poll or run failed."""
        if self.last_error_at is None:
            return False
        return self.last_success is None or self.last_error_at > self.last_success


class CollectStatus(msgspec.Struct):
    """Status of a collector."""

    version: str
    lake: str
    host: str
    pid: int
    started: datetime
    updated: datetime
    stopped: datetime | None = None
    sources: dict[str, SourceStatus] = {}
    steps: dict[str, StepStatus] = {}


def state_folder(
    lake: str, configured: str = "", environment: Mapping[str, str] | None = None
) -> Path:
    """Return the folder of lock and status: in the lake, if that is a folder.

    For an object store: `configured`, else a folder of this user on this host, named after the
    lake.
    """
    if configured:
        return Path(configured)
    if "://" not in lake:
        return Path(lake) / STATE_FOLDER
    environment = os.environ if environment is None else environment
    base = environment.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    return Path(base) / "tachograph" / hashlib.sha256(lake.rstrip("/").encode()).hexdigest()[:16]


def write_status(folder: Path, status: CollectStatus) -> None:
    """Replace the status file atomically; on a full disk overwrite it in place.

    Errors: LakeError when it cannot be written.
    """
    content = msgspec.json.format(msgspec.json.encode(status), indent=1) + b"\n"
    blocks = (len(content) + _SPARE) // _BLOCK + 1
    path = folder / STATUS_FILE
    with lake_errors(str(folder), writing=True):
        try:
            replace_file(path, content.ljust(blocks * _BLOCK))
        except OSError as problem:
            if problem.errno not in (errno.ENOSPC, errno.EDQUOT) or not _overwritten(path, content):
                raise


def _overwritten(path: Path, content: bytes) -> bool:
    """Overwrite a file in place; False if it is missing or too small."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        size = os.fstat(descriptor).st_size
        if len(content) > size:
            return False
        return os.pwrite(descriptor, content.ljust(size), 0) == size
    except OSError:  # a file system that writes to new blocks
        return False
    finally:
        os.close(descriptor)


def full_disk(folder: Path) -> Path | None:
    """Return the mount point of a folder's disk if it is full, else None."""
    try:
        blocks = os.statvfs(folder)
    except OSError:
        return None
    free = blocks.f_bfree if os.geteuid() == 0 else blocks.f_bavail
    if blocks.f_blocks == 0 or free * blocks.f_frsize >= _LEAST_BYTES:
        return None
    existing = folder.resolve()
    while not existing.is_mount() and existing != existing.parent:
        existing = existing.parent
    return existing


def read_status(folder: Path) -> CollectStatus | None:
    """Return the last status; None if missing or of an unknown version.

    Errors: LakeError where it cannot be read.
    """
    file = folder / STATUS_FILE
    with lake_errors(str(file)):
        try:
            return msgspec.json.decode(file.read_bytes(), type=CollectStatus)
        except (FileNotFoundError, NotADirectoryError):
            # Asked for afterwards, it may be there: a collector that begins writes it.
            return None
        except (msgspec.DecodeError, msgspec.ValidationError):
            return None


def is_stale(status: CollectStatus, now: datetime) -> bool:
    """Whether the status of a running process is older than STALE_S."""
    return now - status.updated > timedelta(seconds=STALE_S)


def utc_now() -> datetime:
    """The current time."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class CollectOverview:
    """State of a collector. `holder`: running process; `status`: last status file or None.

    `sources`: with the watermarks of the lake, which may be newer than the file. `full_disk`: mount
    point of the disk of lake or status, where it is full.
    """

    lake: str
    now: datetime
    holder: LockHolder | None
    status: CollectStatus | None
    sources: tuple[SourceStatus, ...]
    steps: Mapping[str, StepStatus]
    full_disk: str | None = None

    @property
    def hangs(self) -> bool:
        """A process holds the lock, and its status is stale; on a full disk it cannot write one."""
        stale = self.status is not None and is_stale(self.status, self.now)
        return stale and self.holder is not None and not self.full_disk

    @property
    def is_healthy(self) -> bool:
        """Whether no source is late or failing, steps succeed, nothing hangs, no disk is full."""
        troubles = [source.condition(self.now) != "ok" for source in self.sources]
        troubles += [
            self.hangs,
            self.full_disk is not None,
            *(step.is_failing for step in self.steps.values()),
        ]
        return not any(troubles)

    def without_places(self) -> CollectOverview:
        """Return the status without paths, hosts and addresses, for ordinary readers."""
        return replace(
            self,
            lake="",
            holder=None if self.holder is None else LockHolder(0, "", self.holder.since),
            sources=tuple(map(_without_places, self.sources)),
            steps={
                name: msgspec.structs.replace(
                    step, result=None, last_error=step.last_error and _HIDDEN
                )
                for name, step in self.steps.items()
            },
            full_disk=self.full_disk and _HIDDEN,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the overview for JSON; null: unknown."""
        return {
            "healthy": self.is_healthy,
            "running": self.holder is not None,
            "hangs": self.hangs,
            "full_disk": self.full_disk,
            "pid": (self.holder.pid or None) if self.holder else None,
            "host": (self.holder.host or None) if self.holder else None,
            "lake": self.lake or None,
            "started": self.status.started if self.status else None,
            "updated": self.status.updated if self.status else None,
            "stopped": self.status.stopped if self.status else None,
            "sources": [_source_json(source, self.now) for source in self.sources],
            "steps": {
                name: msgspec.to_builtins(step, builtin_types=(datetime,))
                | {"failing": step.is_failing}
                for name, step in self.steps.items()
            },
        }


def _source_json(source: SourceStatus, now: datetime) -> dict[str, Any]:
    hour = source.last_hour(now)
    written: dict[str, Any] = msgspec.to_builtins(source, builtin_types=(datetime,))
    del written["minutes"]
    return written | {
        "condition": source.condition(now),
        "lag_s": source.lag_s(now),
        "skewed": source.skewed(),
        "last_hour": {
            "polls": hour.polls,
            "skipped": hour.skipped,
            "longest_gap_s": hour.longest_gap_s,
        },
    }


def _without_places(source: SourceStatus) -> SourceStatus:
    streams = {}
    for number, (name, reached) in enumerate(source.watermarks.items()):
        shown = f"stream {number}" if "/" in name else name
        streams[shown] = reached
    return msgspec.structs.replace(
        source,
        last_error=source.last_error and _HIDDEN,
        watermarks=streams,
        unreachable={f"endpoint {n}": _HIDDEN for n in range(1, len(source.unreachable) + 1)},
        other_nodes={f"endpoint {n}": _HIDDEN for n in range(1, len(source.other_nodes) + 1)},
        skew_s={name: skew for name, skew in source.skew_s.items() if "/" not in name},
    )


def configured_overview(
    lake: str, configuration: Configuration, *, now: datetime, where: str = "configuration"
) -> CollectOverview:
    """Return the state of `lake`'s collector with the configured sources.

    `where`: the configuration's file, for errors.

    Errors: those of `overview`; ConfigError for a source that makes no sense.
    """
    feeds = configured_feeds(configuration, where=where) if configuration.sources else []
    return overview(lake, state_folder(lake, configuration.collect.state), feeds, now=now)


def overview(
    lake: str, folder: Path, configured: Sequence[FeedSettings], *, now: datetime
) -> CollectOverview:
    """Return the state of the collector of `lake`; `configured`: sources of the configuration.

    Errors: LakeError without a lake and sources, or if the lake cannot be read.
    """
    status = read_status(folder)
    statuses = dict(status.sources) if status else {}
    streams = {settings.title: settings.stream for settings in configured}
    opened = Lake(lake) if status or configured else Lake.open(lake)
    sources = []
    for settings in configured:
        statuses.setdefault(settings.title, SourceStatus(settings.title, settings.every_s))
    for name in dict.fromkeys([*streams, *statuses]):
        source = statuses[name]
        source.watermarks |= dict(
            _watermarks(opened, {streams.get(name, name), *source.watermarks})
        )
        sources.append(source)
    holder = CollectLock(folder).holder()
    folders = (folder,) if "://" in lake else (folder, Path(lake))
    full = next((str(disk) for disk in map(full_disk, folders) if disk is not None), None)
    return CollectOverview(
        lake, now, holder, status, tuple(sources), status.steps if status else {}, full
    )


def _watermarks(lake: Lake, streams: Iterable[str]) -> Iterator[tuple[str, datetime]]:
    for stream in streams:
        until = watermark(lake, stream)
        if until is not None:
            yield stream, until
