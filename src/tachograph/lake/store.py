"""Storage of a lake's files (folder or object store), and the encoding of samples."""

from __future__ import annotations

import io
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Literal, TypeAlias, cast

import polars as pl
from deltalake import (
    ColumnProperties,
    CommitProperties,
    DeltaTable,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake._internal import DeltaFileSystemHandler
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from tachograph.catalog.durable import make_folder, sync_folder
from tachograph.catalog.errors import LakeError
from tachograph.catalog.tables import FINDINGS, GPU_SAMPLES, LakeTable
from tachograph.lake import commits
from tachograph.lake.log_files import LOG, LogEntry, is_entry_name
from tachograph.lake.log_format import DAY, delta_schema, properties_of

SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")
RETRIES, RETRY_S, CONNECT_S, ANSWER_S = 4, 20, 4, 30
BODY_S = 60  # until a piece of a data file is there, which may be large
_OF_DELTA: Mapping[str, str] = MappingProxyType(
    {
        "max_retries": str(RETRIES),
        "retry_timeout": f"{RETRY_S}s",
        "connect_timeout": f"{CONNECT_S}s",
        "timeout": f"{ANSWER_S}s",
    }
)
_OF_POLARS: Mapping[str, Any] = MappingProxyType(
    {
        "max_retries": RETRIES,
        "retry_timeout_ms": RETRY_S * 1000,
        "connect_timeout": f"{CONNECT_S}s",
        "timeout": f"{BODY_S}s",
    }
)
# S3 answers a write with `If-None-Match: *` with 412 where the object is there; never a copy over
# it instead
_CONDITIONAL: Mapping[str, str] = MappingProxyType(
    {"conditional_put": "etag", "allow_unsafe_rename": "false"}
)
_PIECE = 8 << 20  # bytes handed over at a time
# Each commit since then is a request of every reader.
_REMOTE_PROPERTIES = {"delta.checkpointInterval": "10"}


def store_of(location: str) -> Store:
    """Return the store that `location` names.

    >>> store_of("lake").delta is None, store_of("s3://bucket/lake").delta["conditional_put"]
    (True, 'etag')

    Errors: LakeError for an address of another kind.
    """
    if not is_remote(location):
        return Folder()
    scheme = location.partition("://")[0]
    if scheme not in SCHEMES:
        raise LakeError(
            f"{scheme}:// holds no lake", where=location, do="name a folder, or s3://BUCKET/PATH"
        )
    return ObjectStore(scheme)


def is_remote(location: str) -> bool:
    """Return whether `location` is an address, and no folder."""
    return "://" in location


@dataclass(frozen=True, slots=True)
class Folder:
    """Files of this machine."""

    delta: None = None
    polars: None = None

    def last_entry(self, table: str) -> LogEntry | None:
        """Return the last entry of a log; None without one, or if it was just deleted."""
        try:
            name = max(filter(is_entry_name, os.listdir(Path(table, LOG))))  # noqa: PTH208
            status = Path(table, LOG, name).stat()
        except (OSError, ValueError):
            return None
        return LogEntry(name, (status.st_ino, status.st_mtime_ns))

    def write(self, table: str, name: str, frame: pl.DataFrame, **how: Any) -> int:
        """Write a Parquet file; return its bytes. After an error nothing is left of it."""
        target = Path(table, name)
        make_folder(target.parent)
        with ExitStack() as undo:
            undo.callback(target.unlink, missing_ok=True)
            frame.write_parquet(target, **how)
            undo.pop_all()
        return target.stat().st_size

    def scratch(self, table: str) -> str:
        """A folder for files that `adopt` takes: the table's own, on the disk of the final file."""
        return table

    def adopt(self, table: str, name: str, file: Path) -> int:
        """Move a finished file to its place; return its bytes."""
        target = Path(table, name)
        make_folder(target.parent)
        file.replace(target)
        return target.stat().st_size

    def delete(self, table: str, name: str) -> None:
        """Delete a file; a missing one is no error."""
        Path(table, name).unlink(missing_ok=True)

    def create(self, location: str, table: LakeTable) -> None:
        """Make a table without rows; another process may have. Errors: DeltaError, OSError."""
        partition_by = [DAY] if table.by_day else None
        commits.create_table(
            Path(location),
            delta_schema(table),
            partition_by=partition_by,
            configuration=properties_of(table),
        )

    def commit(
        self,
        delta: DeltaTable,
        location: str,
        table: LakeTable,
        actions: Sequence[AddAction | RemoveAction],
        transactions: Sequence[Transaction],
    ) -> bool:
        """Make `actions` the next version, once their data files are on the disk.

        False if another writer took it. Errors: DeltaError, OSError; whether the commit stands is
        unknown.
        """
        commits.settle(
            Path(location), [action.path for action in actions if isinstance(action, AddAction)]
        )
        entry = commits.commit_entry(delta, table, actions, transactions)
        return commits.commit(Path(location), delta, entry)

    def vacuum(self, delta: DeltaTable, location: str, hours: int, *, unnamed: bool) -> int:
        """Delete files replaced at least `hours` ago; return their number.

        `unnamed`: also delete files that are in no log. Delta's own vacuum would write a log entry
        without syncing it.
        """
        names = delta.vacuum(
            retention_hours=hours, dry_run=True, enforce_retention_duration=False, full=unnamed
        )
        sync_folder(Path(location, LOG))  # what replaced them lasts
        for name in names:
            if not name.startswith(commits.WRITING):
                self.delete(location, name)
        return len(names) + (
            commits.remove_unfinished(Path(location), hours=hours) if unnamed else 0
        )


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """Objects of a bucket."""

    scheme: str = "s3"

    @property
    def delta(self) -> dict[str, str]:
        """Options for Delta, in addition to the environment."""
        return {**_OF_DELTA, **(_CONDITIONAL if self.scheme.startswith("s3") else {})}

    @property
    def polars(self) -> dict[str, Any]:
        """Options for Polars, in addition to the environment."""
        return dict(_OF_POLARS)

    def last_entry(self, table: str) -> LogEntry:
        """Return the last entry of a log, from one request.

        Errors: TableNotFoundError without one; OSError.
        """
        listing = DeltaFileSystemHandler(table, self.delta).get_file_info_selector(
            LOG, allow_not_found=True, recursive=False
        )
        entries = {Path(file.path).name: file for file in listing}
        name = max(filter(is_entry_name, entries), default=None)
        if name is None:
            raise TableNotFoundError(f"no log at {table}")
        return LogEntry(name, (entries[name].mtime_ns, entries[name].size))

    def write(self, table: str, name: str, frame: pl.DataFrame, **how: Any) -> int:
        """Write a Parquet file; return its bytes. An unfinished upload never becomes an object."""
        stream = cast(
            "IO[bytes]", DeltaFileSystemHandler(table, self.delta).open_output_stream(name)
        )
        counting = _CountingWriter(stream)
        buffered = io.BufferedWriter(counting, _PIECE)
        frame.write_parquet(buffered, **how)
        buffered.flush()
        stream.close()
        return counting.bytes

    def scratch(self, table: str) -> None:
        """None, the system's own folder: `table` is elsewhere."""

    def adopt(self, table: str, name: str, file: Path) -> int:
        """Upload a finished file; return its bytes."""
        stream = cast(
            "IO[bytes]", DeltaFileSystemHandler(table, self.delta).open_output_stream(name)
        )
        with file.open("rb") as content:
            while piece := content.read(_PIECE):
                stream.write(piece)
        stream.close()
        return file.stat().st_size

    def delete(self, table: str, name: str) -> None:
        """Delete an object."""
        DeltaFileSystemHandler(table, self.delta).delete_file(name)

    def create(self, location: str, table: LakeTable) -> None:
        """Make a table without rows."""
        DeltaTable.create(
            location,
            schema=delta_schema(table),
            mode="ignore",
            partition_by=[DAY] if table.by_day else None,
            storage_options=self.delta,
            configuration={**properties_of(table), **_REMOTE_PROPERTIES},
            commit_properties=CommitProperties(max_commit_retries=0),  # or it is created twice
            raise_if_key_not_exists=False,
        )

    def commit(
        self,
        delta: DeltaTable,
        location: str,
        table: LakeTable,
        actions: Sequence[AddAction | RemoveAction],
        transactions: Sequence[Transaction],
    ) -> bool:
        """Make `actions` the next version."""
        try:
            delta.create_write_transaction(
                list(actions),
                mode="append",
                schema=delta_schema(table),
                partition_by=[DAY] if table.by_day else None,
                commit_properties=CommitProperties(
                    app_transactions=list(transactions) or None, max_commit_retries=0
                ),
            )
        except CommitFailedError:
            return False
        return True

    def vacuum(self, delta: DeltaTable, location: str, hours: int, *, unnamed: bool) -> int:
        """Delete replaced files."""
        names = delta.vacuum(
            retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=unnamed
        )
        return len(names)


Store: TypeAlias = Folder | ObjectStore  # the files of one lake; names are relative to a table


class _CountingWriter(io.RawIOBase):
    """Writes through and counts bytes, which the log needs."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.bytes = 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any, /) -> int:
        """Write bytes; return their number."""
        self._stream.write(bytes(data))
        self.bytes += len(data)
        return len(data)


def local_path(location: str) -> str:
    """Return `location` without `file://`.

    >>> local_path("file:///data/lake"), local_path("s3://bucket/lake/")
    ('/data/lake', 's3://bucket/lake')
    """
    plain = location.removeprefix("file://")
    return plain.rstrip("/") or os.sep


KEPT_ZSTD_LEVEL = 3  # 6 takes 1.4 times as long
PAGE_BYTES = 1 << 20
DICTIONARY_BYTES = 1 << 14  # 4,096 values of four bytes
_ONE_FILE = 1 << 40
# samples are read whole, so a file is one row group: its columns arrive in one piece; minutes are
# read by job, of a day; of all other tables some jobs are read, and what is decoded is a row group.
# Findings are narrow and many: groups of 1 << 14 take 1.6 times the bytes of 1 << 17, these 1.1
# times
_OF_SAMPLES, _OF_DAYS, _OF_JOBS, _OF_FINDINGS = 1 << 22, 1 << 17, 1 << 14, 1 << 16
_ROWS_LOOKED_AT, _FEW_VALUES = 4096, 1024
_RATE = "B/s"


def group_rows(table: LakeTable) -> int:
    """Return the rows of a row group of a table's files.

    >>> from tachograph.catalog.tables import FINDINGS
    >>> group_rows(FINDINGS)
    65536
    """
    if table.by_day:
        return _OF_SAMPLES if table is GPU_SAMPLES else _OF_DAYS
    return table.group_rows or (_OF_FINDINGS if table is FINDINGS else _OF_JOBS)


def write_compact(
    frame: pl.DataFrame,
    table: LakeTable,
    folder: Path,
    *,
    row_group_rows: int,
    level: int = KEPT_ZSTD_LEVEL,
) -> Path:
    """Write `frame` as one Parquet file into the empty `folder`; return its path.

    Values are read back bit by bit as they are. Errors: DeltaError, OSError (disk full, no
    permission).
    """
    properties = WriterProperties(
        compression="ZSTD",
        compression_level=level,
        max_row_group_size=row_group_rows,
        data_page_size_limit=PAGE_BYTES,
        data_page_row_count_limit=row_group_rows,
        dictionary_page_size_limit=DICTIONARY_BYTES,
        column_properties=_properties(frame, table),
    )
    # Delta's writer writes tables, not files: this one is thrown away, all but its only file
    with _without_panics():
        write_deltalake(
            str(folder), frame, writer_properties=properties, target_file_size=_ONE_FILE
        )
    (file,) = folder.glob("*.parquet")
    return file


_PANIC = re.compile(
    rb"\n?thread '[^\n]* panicked at [^\n]*\n[^\n]*\n(?:stack backtrace:\n)?(?: +[^\n]*\n)*(?:note: [^\n]*\n)*"
)
_PANIC_S = 0.1  # the thread that panics may print after the error is there
_stderr = threading.Lock()


@contextmanager
def _without_panics() -> Iterator[None]:
    """Suppress the stderr output of a panicking thread of Delta's writer.

    What others print there meanwhile is printed at the end of the block.
    """
    with _stderr, ExitStack() as undo:
        try:
            real = os.dup(2)
        except OSError:  # stderr is closed
            yield
            return
        undo.callback(os.close, real)
        held = os.memfd_create("stderr")
        undo.callback(os.close, held)
        os.dup2(held, 2)
        panicking = True
        try:
            yield
            panicking = False
        finally:
            if panicking:
                time.sleep(_PANIC_S)
            os.dup2(real, 2)
            text = _PANIC.sub(b"", os.pread(held, os.fstat(held).st_size, 0))
            while text:
                text = text[os.write(2, text) :]


def _properties(frame: pl.DataFrame, table: LakeTable) -> dict[str, ColumnProperties]:
    """Encodings of the columns for which Parquet's default does not do.

    A dictionary is tried only where some rows show few values: one that grows too large is work for
    nothing.
    """
    properties = {"t": ColumnProperties(dictionary_enabled=False, encoding="DELTA_BINARY_PACKED")}
    some = frame.gather_every(max(1, frame.height // _ROWS_LOOKED_AT))
    for column in table.columns:
        if not column.dtype.is_float():
            continue
        split = column.dtype == pl.Float64 or column.unit == _RATE
        encoding: Literal["BYTE_STREAM_SPLIT", "PLAIN"] = "BYTE_STREAM_SPLIT" if split else "PLAIN"
        if some[column.name].n_unique() > _FEW_VALUES:
            properties[column.name] = ColumnProperties(dictionary_enabled=False, encoding=encoding)
        elif split:
            # Of what the dictionary does not hold.
            properties[column.name] = ColumnProperties(encoding=encoding)
    return properties
