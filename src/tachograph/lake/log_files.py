"""Files of a table's log in a folder: entries, checkpoints, the hint; and which are damaged.

An entry that is empty counts for Delta as one without rows: it is looked for before each reading.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

LOG, HINT = "_delta_log", "_last_checkpoint"
_ENTRY = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(\.[\w.-]+)?\.parquet")
_MAGIC = b"PAR1"
_UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and its subfolders; vanished ones are skipped."""
    for above, _, names in os.walk(folder):
        yield from (Path(above, name) for name in names)


def entry_name(version: int) -> str:
    """Return the name of the entry of a version."""
    return f"{version:020}.json"


def checkpoint_name(version: int) -> str:
    """Return the name of the checkpoint of a version."""
    return f"{version:020}.checkpoint.parquet"


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An entry as a listing shows it. identity: changes when another file takes its name."""

    name: str
    identity: tuple[int, ...]


def is_entry_name(name: str) -> bool:
    """Return whether a file of the log is the entry of a version.

    >>> is_entry_name("00000000000000000007.json"), is_entry_name("_last_checkpoint")
    (True, False)
    """
    return _ENTRY.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class LogFiles:
    """Files in the log of a table. entries: {version: bytes}; checkpoints: {version: names,
    bytes}.
    """

    folder: Path
    entries: Mapping[int, int]
    checkpoints: Mapping[int, Sequence[tuple[str, int]]]
    has_hint: bool

    @classmethod
    def of(cls, table: Path) -> LogFiles:
        """Return the log's files; empty without a log."""
        folder = table / LOG
        entries: dict[int, int] = {}
        checkpoints: dict[int, list[tuple[str, int]]] = {}
        has_hint = False
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as directory:
            for file in directory:
                if not file.is_file():
                    continue
                if of_entry := _ENTRY.fullmatch(file.name):
                    with suppress(FileNotFoundError):  # removed since: covered by a checkpoint
                        entries[int(of_entry[1])] = file.stat().st_size
                elif of_checkpoint := _CHECKPOINT.fullmatch(file.name):
                    with suppress(FileNotFoundError):
                        checkpoints.setdefault(int(of_checkpoint[1]), []).append(
                            (file.name, file.stat().st_size)
                        )
                has_hint |= file.name == HINT
        return cls(folder, entries, checkpoints, has_hint)

    def entry(self, version: int) -> Path:
        """The entry of a version."""
        return self.folder / entry_name(version)

    @property
    def last_checkpoint(self) -> int:
        """Version of the last checkpoint that is not empty; -1 without one."""
        return max(self.whole_checkpoints(), default=-1)

    def whole_checkpoints(self) -> list[int]:
        """Versions of checkpoints without empty files."""
        versions: list[int] = []
        for version, files in self.checkpoints.items():
            if all(size for _, size in files):
                versions.append(version)
        return versions

    def empty_entries(self) -> list[int]:
        """Return versions after the last checkpoint whose entries are empty, in order."""
        first = self.last_checkpoint
        return sorted(
            version for version, size in self.entries.items() if size == 0 and version > first
        )

    def torn_entries(self) -> list[int]:
        """Return versions after the last checkpoint whose entries are empty or torn, in order."""
        first = self.last_checkpoint
        return sorted(
            version
            for version in self.entries
            if version > first and not is_whole(self.entry(version))
        )

    def torn_checkpoints(self) -> list[int]:
        """Versions whose checkpoints cannot be read, in order."""
        versions: list[int] = []
        for version, files in self.checkpoints.items():
            if not all(size and _is_parquet(self.folder / name) for name, size in files):
                versions.append(version)
        return sorted(versions)

    def misleading_hint(self, torn: Sequence[int]) -> bool:
        """Return whether the hint is unreadable or names a missing or torn checkpoint."""
        if not self.has_hint:
            return False
        version = hinted_version(self.folder)
        return version is None or version not in self.checkpoints or version in torn


def hinted_version(log: Path) -> int | None:
    """Return the checkpoint version that the log's hint names; None if it names none."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads((log / HINT).read_bytes())["version"])
    return None


def is_whole(entry: Path) -> bool:
    """Return whether an entry has lines, and each of them is a JSON object. Errors: OSError."""
    count = 0
    for line in entry.read_bytes().splitlines():
        if not line.strip():
            continue
        try:
            if not isinstance(json.loads(line), dict):
                return False
        except ValueError:
            return False
        count += 1
    return count > 0


def added_files(entry: Path) -> Iterator[dict[str, Any]]:
    """Yield what the whole lines of an entry add: the actions of data files."""
    for line in entry.read_bytes().splitlines():
        with suppress(ValueError):
            action = json.loads(line)
            if isinstance(action, dict) and isinstance(action.get("add"), dict):
                yield action["add"]


def _is_parquet(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            if stream.read(len(_MAGIC)) != _MAGIC:
                return False
        pl.read_parquet_schema(path)
        return True
    except _UNREADABLE:
        return False


def torn_file(table: Path) -> Path | None:
    """Return a log file that is empty, torn or misleading (see `repair_log`); None if none is.

    Errors: OSError.
    """
    files = LogFiles.of(table)
    torn = files.torn_checkpoints()
    if torn:
        return files.folder / files.checkpoints[torn[-1]][0][0]
    if files.misleading_hint(torn):
        return files.folder / HINT
    entries = files.torn_entries()
    return files.entry(entries[0]) if entries else None


def damaged_data_file(table: Path, *, decode: bool) -> tuple[Path, str] | None:
    """Return a current data file that cannot be read, and the reason; None if none.

    decode: read each file whole, too; else only what its name, size and ends show.
    """
    try:
        actions = pl.DataFrame(DeltaTable(str(table)).get_add_actions(flatten=True))
    except (DeltaError, OSError):
        return None
    for name, size in actions.select("path", "size_bytes").iter_rows():
        if what := damage(table / str(name), size, decode=decode):
            return table / str(name), what
    return None


def damage(path: Path, size: int, *, decode: bool) -> str:
    """Return the damage of a data file with this recorded size; "" if it can be read.

    Parquet has no sums of what is in it here: changed bytes that can still be read as values are
    not noticed.
    """
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return "missing"
    if stat.S_ISLNK(status.st_mode):
        return "a symbolic link, which the lake never writes"
    if not stat.S_ISREG(status.st_mode):
        return "a folder or a special file"
    if not status.st_size:
        return "empty"
    if status.st_size != size:
        return (
            f"cut off: {status.st_size:,} of {size:,} bytes"
            if status.st_size < size
            else "longer than recorded"
        )
    is_whole = _is_parquet(path) and (not decode or _can_be_read(path))
    return "" if is_whole else "damaged: its bytes have changed"


def _can_be_read(path: Path) -> bool:
    """Whether each column can be decoded; one at a time, as a file may hold millions of rows."""
    try:
        for name in pl.read_parquet_schema(path):
            pl.read_parquet(path, columns=[name], glob=False)
    except _UNREADABLE:
        return False
    return True
