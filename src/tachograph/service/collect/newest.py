"""The newest values that a collector has of each source: files beside its status, written and read.

A file is replaced at the end of every poll and read by other processes, so that no one polls the same exporters again.
It holds what was polled, committed or not. It counts while the collector holds its lock, and the file is not older than
a source may be before it is late.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from tachograph.catalog.chunks import Chunk, ChunkPart
from tachograph.catalog.durable import make_folder, mode_within, set_mode
from tachograph.catalog.errors import LakeError, SchemaError
from tachograph.catalog.tables import GPU_KEY, TABLES
from tachograph.lake.conform import conform
from tachograph.service.collect.lock import CollectLock
from tachograph.service.collect.status import AHEAD_S, late_s

NEWEST_FOLDER: Final = "newest"  # beside the status
SUFFIX: Final = ".newest"
SAMPLES, DEVICES, ALLOCATIONS, JOBS = "gpu_samples", "devices", "allocations", "jobs"
SLURM_LIVE = "slurm-live"
HOLDING = ("node", "gpu", "mig", "job_id")


class NewestFile(msgspec.Struct, frozen=True):
    """Content of a file. source: its kind; name: its title in reports. tables: rows of each, as Arrow IPC."""

    source: str
    name: str
    every_s: float
    polled: datetime
    tables: dict[str, bytes]


def clear_newest(folder: Path) -> None:
    """Remove all files: they name users, and those of an earlier process may be of sources with other names."""
    for path in (folder / NEWEST_FOLDER).glob(f"*{SUFFIX}"):
        with suppress(OSError):
            path.unlink()


class NewestPublisher:
    """Keeps the newest rows of one source, and writes them. Used by the thread of the source.

    Samples are kept until they are late. Of a GPU the last value of each counter counts, in the order in which values
    came, so that a clock that was ahead for a moment hides nothing. An answer of Slurm is all that runs; labels that
    name jobs come as changes.
    """

    def __init__(self, folder: Path, name: str, every_s: float) -> None:
        self._path = folder / NEWEST_FOLDER / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}{SUFFIX}"
        self._name, self._every_s = name, every_s
        self._source = ""
        self._tables: dict[str, pl.DataFrame] = {}

    def add(self, chunk: Chunk, now: datetime) -> None:
        """Take over the rows of a chunk."""
        if chunk.source == SLURM_LIVE:
            self._source, self._tables = chunk.source, dict(_conformed(chunk, now))
            return
        oldest = now - timedelta(seconds=late_s(self._every_s))
        if chunk.watermark is not None and chunk.watermark <= oldest:  # a history that is read up
            chunk = replace(chunk, parts=tuple(part for part in chunk.parts if part.table != SAMPLES))
        for table, rows in _conformed(chunk, now):
            known = self._tables.get(table)
            merged = rows if known is None else pl.concat([known, rows])
            if table == SAMPLES:
                self._source = chunk.source
                merged = merged.filter(pl.col("t") > oldest)
            elif table == DEVICES:
                merged = merged.unique(GPU_KEY, keep="last", maintain_order=True)
            elif table == ALLOCATIONS:
                merged = merged.unique(HOLDING, keep="last", maintain_order=True)
                merged = merged.filter(pl.col("end").is_null() & pl.col("gpu").is_not_null())
            self._tables[table] = merged

    def publish(self, polled: datetime) -> None:
        """Write the file, of a source that has samples or running jobs.

        On a full disk, say, the file stays as it is, and is late before long. It is not synced: it is of no use after
        a power cut.
        """
        if not self._source:
            return
        tables = {name: _ipc(rows) for name, rows in self._reduced().items()}
        content = msgspec.msgpack.encode(NewestFile(self._source, self._name, self._every_s, polled, tables))
        beside = self._path.with_suffix(".part")
        with suppress(OSError):
            make_folder(self._path.parent)
            beside.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(beside, flags, 0o600), "wb") as stream:
                set_mode(stream.fileno(), mode_within(self._path.parent))
                stream.write(content)
            beside.replace(self._path)

    def _reduced(self) -> Mapping[str, pl.DataFrame]:
        """One row per GPU, and what belongs to these GPUs."""
        samples = self._tables.get(SAMPLES)
        if samples is None:
            return self._tables
        newest = samples.group_by(GPU_KEY, maintain_order=True).agg(pl.all().drop_nulls().last())
        of_gpus = {
            table: self._tables[table].join(newest, on=GPU_KEY, how="semi", nulls_equal=True)
            for table in (DEVICES, ALLOCATIONS)
            if table in self._tables
        }
        # what is left out here stays known: labels do not name again who holds a GPU that comes back
        return self._tables | of_gpus | {SAMPLES: newest}


def _conformed(chunk: Chunk, now: datetime) -> Iterator[tuple[str, pl.DataFrame]]:
    """The rows of a chunk by table, in the contract's units; a part that does not fit is reported by the writer."""
    for part in chunk.parts:
        if part.table in (SAMPLES, DEVICES, ALLOCATIONS, JOBS):
            with suppress(SchemaError):
                yield part.table, _rows(part, chunk.origin, now)


def _rows(part: ChunkPart, origin: str, now: datetime) -> pl.DataFrame:
    return conform(part.frame, TABLES[part.table], now=now, units=part.units, origin=origin).frame


def _ipc(rows: pl.DataFrame) -> bytes:
    stream = io.BytesIO()
    rows.write_ipc(stream)
    return stream.getvalue()


def _read_ipc(content: bytes, table: str) -> pl.DataFrame:
    """The rows; of another version of this program they may lack columns. Errors: PolarsError."""
    columns = [name for name in TABLES[table].schema if name != "seq"]
    return pl.read_ipc(io.BytesIO(content)).select(columns)


@dataclass(frozen=True, slots=True, eq=False)
class NewestPoll:
    """A file that was read; each reading is another one."""

    file: NewestFile
    tables: Mapping[str, pl.DataFrame]

    def is_current(self, now: float) -> bool:
        """Whether it is no older than a poll may be, and not ahead of our clock."""
        return -AHEAD_S <= now - self.file.polled.timestamp() <= late_s(self.file.every_s)

    def table(self, name: str) -> pl.DataFrame:
        """Its rows of a table."""
        return self.tables.get(name, TABLES[name].empty())


@dataclass(slots=True)
class NewestFiles:
    """The files of a collector; one that is unchanged is not read again."""

    folder: Path
    _known: dict[Path, tuple[tuple[int, int], NewestPoll | None]] = field(default_factory=dict)

    def polls(self) -> list[NewestPoll]:
        """Return what is there, old or not; nothing where no collector runs, or its files cannot be read."""
        try:
            if CollectLock(self.folder).holder() is None:
                return []
            paths = sorted((self.folder / NEWEST_FOLDER).glob(f"*{SUFFIX}"))
        except (LakeError, OSError):
            return []
        self._known = {path: self._read(path) for path in paths}
        return [poll for _, poll in self._known.values() if poll is not None]

    def _read(self, path: Path) -> tuple[tuple[int, int], NewestPoll | None]:
        known = self._known.get(path)
        try:
            status = path.stat()
            version = status.st_ino, status.st_mtime_ns
            if known is not None and known[0] == version:
                return known
            file = msgspec.msgpack.decode(path.read_bytes(), type=NewestFile)
            tables = {name: _read_ipc(rows, name) for name, rows in file.tables.items() if name in TABLES}
        except (OSError, msgspec.DecodeError, pl.exceptions.PolarsError):
            return (0, 0), None
        return version, NewestPoll(file, tables)
