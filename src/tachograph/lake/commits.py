"""Commits to a table in a folder that survive a power cut: log entries and checkpoints.

Order: data files and their folders are synced, then the entry is written under another name,
synced, and linked to its own; then the folder of the log is synced, and only then success is
reported. So an entry is whole as soon as it has its name, and all before it are there. Delta's
library writes an entry, or a checkpoint with its hint, without syncing. Format:
https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import msgspec
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from tachograph.catalog.durable import (
    create_file,
    make_folder,
    mode_within,
    publish_file,
    replace_file,
    set_mode,
    sync_file,
    sync_folder,
)
from tachograph.catalog.errors import LakeError
from tachograph.catalog.tables import LakeTable
from tachograph.catalog.version import __version__
from tachograph.lake.log_files import (
    HINT,
    LOG,
    LogFiles,
    checkpoint_name,
    entry_name,
    hinted_version,
)
from tachograph.lake.log_format import delta_schema, milliseconds, properties_of

WRITING = "writing-"  # what begins so is being written, or was by a process that was killed
CHECKPOINT_EVERY = 50  # versions
_LOCK = ".writers"
_SAFE = "/=:-_.~!$'()*,;@"  # characters of a path that stay as they are in an entry


def commit_entry(
    delta: DeltaTable,
    table: LakeTable,
    actions: Sequence[AddAction | RemoveAction],
    transactions: Sequence[Transaction],
) -> bytes:
    """Return the log entry that follows `delta`.

    A different schema, or a property that the table does not have yet, changes its metadata.
    """
    metadata = delta.metadata()
    operation = {
        "mode": "Append",
        "partitionBy": msgspec.json.encode(metadata.partition_columns).decode(),
    }
    about = {"timestamp": milliseconds(), "operation": "WRITE", "operationParameters": operation}
    lines: list[dict[str, Any]] = [
        {"commitInfo": about | {"engineInfo": f"tachograph:{__version__}"}}
    ]
    schema = delta_schema(table)
    configuration = {**properties_of(table), **metadata.configuration}
    if delta.schema() != schema or configuration != metadata.configuration:
        lines.append({"metaData": _metadata(metadata, schema, configuration)})
    lines += [
        {"txn": {"appId": t.app_id, "version": t.version, "lastUpdated": t.last_updated}}
        for t in transactions
    ]
    for action in actions:
        lines.append(_add(action) if isinstance(action, AddAction) else _remove(action))
    return b"\n".join(map(msgspec.json.encode, lines)) + b"\n"


def _metadata(before: Any, schema: Schema, configuration: Mapping[str, str]) -> dict[str, Any]:
    return {
        "id": before.id,
        "name": before.name,
        "description": before.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema.to_json(),
        "partitionColumns": before.partition_columns,
        "createdTime": before.created_time,
        "configuration": configuration,
    }


def _add(action: AddAction) -> dict[str, Any]:
    return {
        "add": {
            "path": quote(action.path, safe=_SAFE),
            "partitionValues": dict(action.partition_values),
            "size": action.size,
            "modificationTime": action.modification_time,
            "dataChange": action.data_change,
            "stats": action.stats,
        }
    }


def _remove(action: RemoveAction) -> dict[str, Any]:
    return {
        "remove": {
            "path": quote(action.path, safe=_SAFE),
            "dataChange": action.data_change,
            "deletionTimestamp": action.deletion_timestamp,
            "extendedFileMetadata": True,
            "partitionValues": dict(action.partition_values or {}),
            "size": action.size,
        }
    }


def commit(table: Path, delta: DeltaTable, entry: bytes) -> bool:
    """Write `entry` as the version after `delta`, durably; False if that version is taken.

    Every 50 versions a checkpoint follows. Errors: OSError; then nothing has changed, or it is not
    known to last.
    """
    version = delta.version() + 1
    with writers_lock(table.parent):
        if not create_file(table / LOG / entry_name(version), entry, staged=staged_name(table)):
            return False
        if version - _last_checkpoint(table, version) >= CHECKPOINT_EVERY:
            with suppress(OSError, DeltaError):  # the commit stands; the next one tries again
                write_checkpoint(table, version)
    return True


def staged_name(table: Path) -> Path:
    """Return a name in a table's folder for a file that is being written."""
    return table / f"{WRITING}{uuid.uuid4().hex}"


def _last_checkpoint(table: Path, version: int) -> int:
    """Return the version of the last checkpoint, or -1; the folder is read only if the hint is
    old.
    """
    hinted = hinted_version(table / LOG)
    if hinted is not None and version - hinted < CHECKPOINT_EVERY:
        return hinted
    return LogFiles.of(table).last_checkpoint


def create_table(
    table: Path,
    schema: Schema,
    *,
    partition_by: Sequence[str] | None,
    configuration: Mapping[str, str],
) -> bool:
    """Make a table without rows, on the disk when this returns; False where it is there.

    Errors: OSError, DeltaError.
    """
    make_folder(table / LOG)
    with TemporaryDirectory(prefix=WRITING, dir=table) as folder:
        DeltaTable.create(
            folder,
            schema=schema,
            mode="error",
            partition_by=list(partition_by) if partition_by else None,
            configuration=dict(configuration),
            commit_properties=CommitProperties(max_commit_retries=0),
            raise_if_key_not_exists=False,
        )
        entry = (Path(folder) / LOG / entry_name(0)).read_bytes()
    placed = [_placed(line, table) for line in entry.splitlines()]
    with writers_lock(table.parent):
        return create_file(
            table / LOG / entry_name(0), b"\n".join(placed) + b"\n", staged=staged_name(table)
        )


def _placed(line: bytes, table: Path) -> bytes:
    """A line of the first entry, which names the folder in which it was made."""
    action = msgspec.json.decode(line)
    if "commitInfo" not in action:
        return line
    action["commitInfo"].get("operationParameters", {})["location"] = (
        f"{table.absolute().as_uri()}/"
    )
    return msgspec.json.encode(action)


def write_checkpoint(table: Path, version: int) -> None:
    """Sum up the log of a table up to a version, and remove entries that have expired.

    The checkpoint is made beside the log, and is on the disk before it has its name, that before
    the hint names it, and both before an entry is removed. Errors: OSError, DeltaError; then the
    log is as it was.
    """
    log = table / LOG
    with TemporaryDirectory(prefix=WRITING, dir=table) as folder:
        copied_log = Path(folder) / LOG
        copied_log.mkdir()
        _link_log(LogFiles.of(table), copied_log, version)
        DeltaTable(folder).create_checkpoint()
        publish_file(copied_log / checkpoint_name(version), log / checkpoint_name(version))
        if (hinted_version(log) or -1) < version:
            replace_file(log / HINT, (copied_log / HINT).read_bytes())
    DeltaTable(str(table)).cleanup_metadata()


def _link_log(files: LogFiles, target: Path, version: int) -> None:
    """Link a copy of the log up to a version, without entries before the last checkpoint."""
    first = max((whole for whole in files.whole_checkpoints() if whole < version), default=-1)
    names = [name for name, _ in files.checkpoints.get(first, ())]
    names += [entry_name(entry) for entry in files.entries if first < entry <= version]
    for name in names:
        os.link(files.folder / name, target / name)


def settle(table: Path, names: Sequence[str]) -> None:
    """Return once new data files of a table, and their names, are on the disk. Errors: OSError."""
    paths = [table / name for name in names]
    for path in paths:
        sync_file(path, mode=mode_within(path.parent))
    for folder in dict.fromkeys(path.parent for path in paths):
        sync_folder(folder)


@contextmanager
def writers_lock(lake: Path, *, alone: bool = False) -> Iterator[None]:
    """Hold a writer's lock on a lake's logs; `alone`: exclusively.

    Where the file system has no locks, nothing is locked. Errors: LakeError for `alone` beside
    others; OSError.
    """
    mode = mode_within(lake)
    descriptor = os.open(lake / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        set_mode(descriptor, mode)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB if alone else fcntl.LOCK_SH)
        except BlockingIOError:
            raise LakeError(
                "another process writes into the lake",
                where=str(lake),
                do="stop it, then run it again",
            ) from None
        except OSError:
            if alone:
                raise
        yield
    finally:
        os.close(descriptor)


def remove_unfinished(table: Path, *, hours: float) -> int:
    """Remove partial files of killed processes, unchanged for this many hours; return the
    number.
    """
    count, before = 0, time.time() - hours * 3600
    for path in table.glob(f"{WRITING}*"):
        with suppress(FileNotFoundError):
            inside = [path, *(path.rglob("*") if path.is_dir() else ())]
            if max(file.stat().st_mtime for file in inside) > before:
                continue
            count += sum(file.is_file() for file in inside)
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return count
