"""Newest values of each source of a collector, in files beside its status.

A file is replaced at the end of every poll and read by other processes, so that exporters are not
polled again. It holds what was polled, committed or not. It is valid while the collector holds its
lock, until the source would be late.
"""

from __future__ import annotations

import hashlib
import io
import os
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from tachograph.catalog.chunks import Chunk
from tachograph.catalog.durable import make_folder, mode_within, set_mode
from tachograph.catalog.errors import LakeError
from tachograph.catalog.tables import TABLES
from tachograph.collect.lock import CollectLock
from tachograph.collect.status import AHEAD_S, late_s
from tachograph.lake.newest_rows import NewestRows, NewestTables

NEWEST_FOLDER: Final = "newest"  # beside the status
SUFFIX: Final = ".newest"


class NewestFile(msgspec.Struct, frozen=True):
    """A file's content. source: its kind; name: report title. tables: rows as Arrow IPC."""

    source: str
    name: str
    every_s: float
    polled: datetime
    tables: dict[str, bytes]


def clear_newest(folder: Path) -> None:
    """Remove all files: they contain user names, and sources may have been renamed."""
    for path in (folder / NEWEST_FOLDER).glob(f"*{SUFFIX}"):
        with suppress(OSError):
            path.unlink()


class NewestPublisher:
    """Keeps the newest rows of one source, and writes them. Used by the thread of the source.

    Samples are kept until they are late.
    """

    def __init__(self, folder: Path, name: str, every_s: float) -> None:
        self._path = (
            folder / NEWEST_FOLDER / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}{SUFFIX}"
        )
        self._name, self._every_s = name, every_s
        self._rows = NewestRows(late_s(every_s))

    def add(self, chunk: Chunk, now: datetime) -> None:
        """Add the rows of a chunk."""
        self._rows.add(chunk, now)

    def publish(self, polled: datetime) -> None:
        """Write the file, of a source that has samples or running jobs.

        If that fails, as on a full disk, the file stays, and is late before long. It is not synced,
        as it is useless after a power cut.
        """
        source = self._rows.source
        if not source:
            return
        tables = {name: _ipc(rows) for name, rows in self._rows.tables().rows.items()}
        content = msgspec.msgpack.encode(
            NewestFile(source, self._name, self._every_s, polled, tables)
        )
        part = self._path.with_suffix(".part")
        with suppress(OSError):
            make_folder(self._path.parent)
            part.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(part, flags, 0o600), "wb") as stream:
                set_mode(stream.fileno(), mode_within(self._path.parent))
                stream.write(content)
            part.replace(self._path)


def _ipc(rows: pl.DataFrame) -> bytes:
    stream = io.BytesIO()
    rows.write_ipc(stream)
    return stream.getvalue()


def _read_ipc(content: bytes, table: str) -> pl.DataFrame:
    """The rows; of another version of this program they may lack columns. Errors: PolarsError."""
    columns = list(TABLES[table].row_schema)
    return pl.read_ipc(io.BytesIO(content)).select(columns)


@dataclass(frozen=True, slots=True, eq=False)
class NewestPoll:
    """A file that was read; each reading is another one."""

    file: NewestFile
    tables: NewestTables

    def is_current(self, now: float) -> bool:
        """Whether it is recent enough and not ahead of our clock."""
        return -AHEAD_S <= now - self.file.polled.timestamp() <= late_s(self.file.every_s)


@dataclass(slots=True)
class NewestFiles:
    """The files of a collector; one that is unchanged is not read again."""

    folder: Path
    _known: dict[Path, tuple[tuple[int, int], NewestPoll | None]] = field(default_factory=dict)

    def polls(self) -> list[NewestPoll]:
        """Return all polls, old ones too; empty without collector or readable files."""
        try:
            if CollectLock(self.folder).holder() is None:
                return []
            paths = sorted((self.folder / NEWEST_FOLDER).glob(f"*{SUFFIX}"))
        except (LakeError, OSError):
            return []
        self._known = {path: self._read(path) for path in paths}
        return [poll for _, poll in self._known.values() if poll is not None]

    def _read(self, path: Path) -> tuple[tuple[int, int], NewestPoll | None]:
        earlier = self._known.get(path)
        try:
            status = path.stat()
            version = status.st_ino, status.st_mtime_ns
            if earlier is not None and earlier[0] == version:
                return earlier
            file = msgspec.msgpack.decode(path.read_bytes(), type=NewestFile)
            tables = {
                name: _read_ipc(rows, name) for name, rows in file.tables.items() if name in TABLES
            }
        except (OSError, msgspec.DecodeError, pl.exceptions.PolarsError):
            return (0, 0), None
        return version, NewestPoll(file, NewestTables(tables, late_s(file.every_s)))
