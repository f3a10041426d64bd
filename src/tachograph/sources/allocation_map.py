"""Source and feed `allocation-map`: which job held which GPU, from prologs, tables or records."""

from __future__ import annotations

import argparse
import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import BinaryIO, Final

from tachograph.catalog.chunks import Chunk, ChunkPart, Reject, next_watermark
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import ConfigError, InputError
from tachograph.catalog.tables import ALLOCATIONS
from tachograph.sources.files import add_files, expand, fingerprint, read_bytes
from tachograph.sources.registry import FeedSettings, PollOutcome, Watermark
from tachograph.sources.slurm.allocations import (
    UNKNOWN_GPUS,
    HoldEvent,
    HoldIntervals,
    read_controller,
    read_events,
    read_log,
    read_scontrol,
    read_table,
    running_job,
)
from tachograph.sources.slurm.exports import detect, frame_of
from tachograph.sources.slurm.fields import BadRowError, json_objects
from tachograph.sources.slurm.records import (
    RejectedRecord,
    SlurmCluster,
    SlurmEntry,
    SlurmRow,
    counted_rejects,
)

NAME = "allocation-map"
SUFFIXES = (".csv", ".log", ".txt", ".json")


@dataclass(slots=True)
class AllocationMapReading:
    """Content of a file: rows for `allocations`, rejects (place, reason, text), record count."""

    allocations: list[SlurmRow] = field(default_factory=list)
    rejected: list[RejectedRecord] = field(default_factory=list)
    # Nodes are known and which GPUs they are not.
    unplaced: list[RejectedRecord] = field(default_factory=list)
    rows_read: int = 0
    # Records of jobs that hold no GPUs, by reason.
    passed: Counter[str] = field(default_factory=Counter)
    document: object = None  # for JSON of the controller

    @property
    def rows_used(self) -> int:
        """Number of records that became rows."""
        return self.rows_read - len(self.rejected) - self.passed.total()

    def rejects(self) -> tuple[Reject, ...]:
        """Rejected rows, and GPUs that are unknown, by reason."""
        return (*counted_rejects(self.rejected), *counted_rejects(self.unplaced, "gpu"))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the source."""
    add_files(parser)
    parser.add_argument(
        "--trusted",
        action="store_true",
        help=(
            "trust scontrol output of several jobs: no job name or comment in it imitates a record"
        ),
    )


def read(
    options: argparse.Namespace, *, configuration: Configuration, now: datetime
) -> Iterator[Chunk]:
    """Yield one chunk per file with its rows of `allocations`.

    Errors: InputError for a file that is no map, naming what to do.
    """
    site = configuration.site
    for path in expand(options.files, SUFFIXES):
        mark = fingerprint(path, NAME, site.time_zone, site.cluster)
        reading = read_map(
            path, cluster=SlurmCluster.of(configuration), trusted=getattr(options, "trusted", False)
        )
        part = ChunkPart(
            "allocations",
            frame_of(reading.allocations, ALLOCATIONS),
            rejects=reading.rejects(),
            rows_used=reading.rows_used,
            overlaps=True,  # `collect` may have read the same files
        )
        yield Chunk(mark, NAME, str(path), (part,), reading.rows_read, passed=reading.passed)


def read_map(path: Path, *, cluster: SlurmCluster, trusted: bool = False) -> AllocationMapReading:
    """Return the content of a file.

    Errors: InputError for a file that is no map.
    """
    return read_map_content(read_bytes(path), where=str(path), cluster=cluster, trusted=trusted)


def read_map_content(
    content: bytes, *, where: str, cluster: SlurmCluster, trusted: bool = False
) -> AllocationMapReading:
    """Return the content of a file or a Slurm answer. `trusted`: as in `read_scontrol`.

    Errors: InputError naming `where` for invalid content.
    """
    detected = detect(content, where=where)
    kind = detected.kind
    if kind == "database" and not json_objects(detected.document, "jobs"):
        kind = "controller"  # without jobs squeue of Slurm 22.05 answers as sacct does
    text = content.decode("utf-8-sig", "replace")
    reading = AllocationMapReading()
    match kind:
        case "map":
            reading.allocations, reading.rejected, reading.rows_read = read_table(
                text, cluster=cluster
            )
        case "prolog":
            reading.allocations, reading.rejected, reading.rows_read, without = read_log(
                text, cluster=cluster
            )
            reading.passed.update({"no_gpus": without} if without else {})
        case "scontrol":
            for entry in read_scontrol(text, where=where, trusted=trusted):
                _take(entry, reading, cluster)
        case "controller":
            reading.document = detected.document
            for entry in read_controller(detected.document):
                _take(entry, reading, cluster)
        case _:
            raise InputError(
                "this does not name the GPUs of jobs",
                where=where,
                do="export `squeue --json` or `scontrol show job -d`, read accounting with "
                "`tachograph ingest sacct`, "
                "or write a map with the columns job_id,node,gpu",
            )
    return reading


def _take(entry: SlurmEntry, reading: AllocationMapReading, cluster: SlurmCluster) -> None:
    reading.rows_read += 1
    if entry.reason is not None:
        reading.rejected.append((entry.place, entry.reason, entry.text))
        return
    try:
        job = running_job(entry.fields or {}, cluster)
        try:
            rows = job.gpu_rows()
        except BadRowError as problem:
            if problem.reason not in UNKNOWN_GPUS:
                raise
            rows = job.node_rows()
            if not rows:
                raise
            reading.unplaced.append((entry.place, problem.reason, entry.text))
    except BadRowError as problem:
        reading.rejected.append((entry.place, problem.reason, entry.text))
        return
    reading.allocations += rows
    reading.passed.update([] if rows else ["no_gpus"])


def rejected(
    options: argparse.Namespace, *, configuration: Configuration
) -> Iterator[tuple[str, int, str, str]]:
    """Yield (file, place, reason, text) of every unreadable record."""
    for path in expand(options.files, SUFFIXES):
        reading = read_map(path, cluster=SlurmCluster.of(configuration), trusted=options.trusted)
        for row in sorted((*reading.rejected, *reading.unplaced)):
            yield str(path), *row


ALLOCATION_LOG = "allocation-map"
# A file unchanged since so long before the watermark has been read.
LONG_AGO: Final = timedelta(days=7)
AT_A_TIME: Final = 64 << 20  # bytes of one file and one poll
_PACKED = (".gz", ".xz", ".bz2", ".zst")
_HEAD = 64  # bytes by which a file is known that was put in the place of another


class AllocationLogSettings(FeedSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Keys of `[[sources]]` of maps that are written while jobs start and end."""

    files: tuple[str, ...] = ()


SETTINGS = AllocationLogSettings


def connect(settings: FeedSettings, *, configuration: Configuration) -> AllocationLogFeed:
    """Return the feed; nothing is read yet. Errors: ConfigError naming the key."""
    if (
        not isinstance(settings, AllocationLogSettings)
        or not settings.files
        or not all(settings.files)
    ):
        what, do = "files is empty", 'write it as files = ["/shared/tachograph/gpu-map"]'
        raise ConfigError(what, where=f"[[sources]] {settings.title}", do=do)
    return AllocationLogFeed(settings.files, settings.stream, SlurmCluster.of(configuration))


@dataclass(slots=True)
class _LogPosition:
    """How far a file was read, and a digest of its beginning."""

    offset: int = 0
    head: bytes = b""


class AllocationLogFeed:
    """Growing files as a stream: a chunk per poll."""

    def __init__(self, patterns: Iterable[str], stream: str, cluster: SlurmCluster) -> None:
        self.outcome = PollOutcome()
        self._patterns = tuple(patterns)
        self._stream = stream
        self._cluster = cluster
        # By device and inode: a rotated file keeps its place.
        self._places: dict[tuple[int, int], _LogPosition] = {}
        self._intervals = HoldIntervals()

    def poll(self, watermark: Watermark, *, now: datetime) -> Iterator[Chunk]:
        """Yield new content since the last poll.

        Errors: InputError without a readable file.
        """
        self.outcome = PollOutcome()
        before = watermark(self._stream)
        events, rejected, rows_read = self._new_events(None if before is None else min(before, now))
        rows = [*self._intervals.ended(events), *self._intervals.open(events)]
        part = ChunkPart(
            "allocations",
            frame_of(rows, ALLOCATIONS),
            rejects=counted_rejects(rejected),
            overlaps=True,
        )
        where = ", ".join(self._patterns)
        yield Chunk(
            self._stream,
            ALLOCATION_LOG,
            where,
            (part,),
            rows_read,
            watermark=next_watermark(now, before=before),
        )

    def close(self) -> None:
        """Nothing is kept open."""

    def _new_events(
        self, mark: datetime | None
    ) -> tuple[list[HoldEvent], list[RejectedRecord], int]:
        events: list[HoldEvent] = []
        rejected: list[RejectedRecord] = []
        count = read = 0
        for path in self._files():
            try:
                text = self._new_text(path, None if mark is None else mark - LONG_AGO)
            except OSError as problem:
                self.outcome.unreachable[str(path)] = problem.strerror or str(problem)
                continue
            read += 1
            new_rows, bad, lines = read_events(text, cluster=self._cluster)
            events += new_rows
            rejected += bad
            count += lines
        if not read and self.outcome.unreachable:
            first, reason = next(iter(self.outcome.unreachable.items()))
            raise InputError(
                reason, where=first, do="make it readable for the user of the collector"
            )
        return sorted(events, key=lambda event: event.time), rejected, count

    def _files(self) -> list[Path]:
        """Return the current files. Errors: InputError if there are none."""
        files: dict[Path, None] = {}
        for pattern in self._patterns:
            anchor = Path(pattern).anchor
            for path in sorted(Path(anchor).glob(pattern.removeprefix(anchor))):
                inside = sorted(path.iterdir()) if path.is_dir() else [path]
                files.update(
                    dict.fromkeys(
                        file for file in inside if file.is_file() and file.suffix not in _PACKED
                    )
                )
        if not files:
            raise InputError(
                "no such file", where=", ".join(self._patterns), do="is the prolog in place?"
            )
        return list(files)

    def _new_text(self, path: Path, long_ago: datetime | None) -> str:
        """The complete lines that were added to a file."""
        with path.open("rb") as file:
            state = os.fstat(file.fileno())
            position = self._places.get((state.st_dev, state.st_ino))
            if position is None:
                position = self._places[state.st_dev, state.st_ino] = _LogPosition()
                if long_ago is not None and state.st_mtime < long_ago.timestamp():
                    position.offset, position.head = state.st_size, _digest(file, state.st_size)
            if state.st_size < position.offset or position.head != _digest(file, position.offset):
                # Cut off, or another file in the place of the one that was read.
                position.offset, position.head = 0, b""
            file.seek(position.offset)
            lines, end, _ = file.read(AT_A_TIME).rpartition(b"\n")
            position.offset += len(lines) + len(end)
            position.head = _digest(file, position.offset)
        return lines.decode("utf-8", "replace")


def _digest(file: BinaryIO, size: int) -> bytes:
    """Digest of the part already read."""
    file.seek(0)
    return hashlib.sha256(file.read(min(size, _HEAD))).digest() if size else b""
