"""Feed `allocation-map`: follows the files that a prolog and an epilog write (contrib/slurm/gpu-map.sh).

[[sources]]
source = "allocation-map"
files = ["/shared/tachograph/gpu-map"]     # files, folders, patterns; rotated files should match, too

A process reads every file once from its beginning, then what is new; lines count when they are complete. The lake
knows what has landed: so nothing is lost when a process is killed, and nothing lands twice.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from tachograph.errors import ConfigError, InputError
from tachograph.schema import ALLOCATIONS
from tachograph.sources import Chunk, Part, mark_of
from tachograph.sources.feeds import Asked, FeedSettings, Watermark
from tachograph.sources.slurm.explicit import Event, Intervals, read_events
from tachograph.sources.slurm.reading import frame_of
from tachograph.sources.slurm.records import Cluster
from tachograph.sources.slurm.told import Rejected, counted_rejects

if TYPE_CHECKING:
    from tachograph.config import Configuration

NAME = "allocation-map"
LONG_AGO: Final = timedelta(days=7)  # a file unchanged since so long before the watermark has been read
AT_A_TIME: Final = 64 << 20  # bytes of one file and one poll
_PACKED = (".gz", ".xz", ".bz2", ".zst")
_HEAD = 64  # bytes by which a file is known that was put in the place of another


class Settings(FeedSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Keys of `[[sources]]` of maps that are written while jobs start and end."""

    files: tuple[str, ...] = ()


def connect(settings: FeedSettings, *, configuration: Configuration) -> LogFeed:
    """Return the feed; nothing is read yet. Errors: ConfigError naming the key."""
    if not isinstance(settings, Settings) or not settings.files or not all(settings.files):
        what, do = "files is empty", 'write it as files = ["/shared/tachograph/gpu-map"]'
        raise ConfigError(what, where=f"[[sources]] {settings.title}", do=do)
    return LogFeed(settings.files, settings.stream, Cluster.of(configuration))


@dataclass(slots=True)
class _Place:
    """How far a file was read, and how it begins."""

    offset: int = 0
    head: bytes = b""


class LogFeed:
    """Growing files as a stream: a chunk per poll."""

    def __init__(self, patterns: Iterable[str], stream: str, cluster: Cluster) -> None:
        self.asked = Asked()
        self._patterns = tuple(patterns)
        self._stream = stream
        self._cluster = cluster
        self._places: dict[tuple[int, int], _Place] = {}  # by device and inode: a rotated file keeps its place
        self._intervals = Intervals()

    def poll(self, watermark: Watermark, *, now: datetime) -> Iterator[Chunk]:
        """Yield what was written since the last poll.

        Errors: InputError where there is no file, or none can be read.
        """
        self.asked = Asked()
        before = watermark(self._stream)
        events, rejected, rows_read = self._new_events(None if before is None else min(before, now))
        rows = [*self._intervals.ended(events), *self._intervals.open(events)]
        part = Part("allocations", frame_of(rows, ALLOCATIONS), rejects=counted_rejects(rejected), overlaps=True)
        where = ", ".join(self._patterns)
        yield Chunk(self._stream, NAME, where, (part,), rows_read, watermark=mark_of(now, before=before))

    def close(self) -> None:
        """Nothing is kept open."""

    def _new_events(self, mark: datetime | None) -> tuple[list[Event], list[Rejected], int]:
        events: list[Event] = []
        rejected: list[Rejected] = []
        count = read = 0
        for path in self._files():
            try:
                text = self._new_text(path, None if mark is None else mark - LONG_AGO)
            except OSError as problem:
                self.asked.unreachable[str(path)] = problem.strerror or str(problem)
                continue
            read += 1
            found, bad, lines = read_events(text, cluster=self._cluster)
            events += found
            rejected += bad
            count += lines
        if not read and self.asked.unreachable:
            first, reason = next(iter(self.asked.unreachable.items()))
            raise InputError(reason, where=first, do="make it readable for who collects")
        return sorted(events, key=lambda event: event.time), rejected, count

    def _files(self) -> list[Path]:
        """The files there are now. Errors: InputError where there is none."""
        found: dict[Path, None] = {}
        for pattern in self._patterns:
            anchor = Path(pattern).anchor
            for path in sorted(Path(anchor).glob(pattern.removeprefix(anchor))):
                inside = sorted(path.iterdir()) if path.is_dir() else [path]
                found.update(dict.fromkeys(file for file in inside if file.is_file() and file.suffix not in _PACKED))
        if not found:
            raise InputError("no such file", where=", ".join(self._patterns), do="is the prolog in place?")
        return list(found)

    def _new_text(self, path: Path, long_ago: datetime | None) -> str:
        """The complete lines that were added to a file."""
        with path.open("rb") as file:
            state = os.fstat(file.fileno())
            place = self._places.get((state.st_dev, state.st_ino))
            if place is None:
                place = self._places[state.st_dev, state.st_ino] = _Place()
                if long_ago is not None and state.st_mtime < long_ago.timestamp():
                    place.offset, place.head = state.st_size, _digest(file, state.st_size)
            if state.st_size < place.offset or place.head != _digest(file, place.offset):
                place.offset, place.head = 0, b""  # cut off, or another file in the place of the one that was read
            file.seek(place.offset)
            lines, end, _ = file.read(AT_A_TIME).rpartition(b"\n")
            place.offset += len(lines) + len(end)
            place.head = _digest(file, place.offset)
        return lines.decode("utf-8", "replace")


def _digest(file: BinaryIO, size: int) -> bytes:
    """How the part that was read begins."""
    file.seek(0)
    return hashlib.sha256(file.read(min(size, _HEAD))).digest() if size else b""
