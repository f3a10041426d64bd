"""Caches the logs of tables and their file lists until the next commit."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from deltalake import DeltaTable

from tachograph.lake.data_files import DataFile, data_files
from tachograph.lake.log_files import LOG, entry_name


@dataclass(slots=True)
class _KeptLog:
    """A log in memory: its last entry (name, file, time), the Delta table, its files."""

    last: tuple[str, int, int]
    delta: DeltaTable
    files: Sequence[DataFile] | None = None


class KeptLogs:
    """Cached logs of a lake in a folder; a log is re-read when its last entry changes."""

    def __init__(self) -> None:
        self._of: dict[Path, _KeptLog] = {}

    def __reduce__(self) -> tuple[type[KeptLogs], tuple[()]]:
        """Nothing is pickled: Delta's state cannot be, so other processes read the logs."""
        return KeptLogs, ()

    def delta(self, table: Path, read: Callable[[], DeltaTable]) -> DeltaTable:
        """Return the table from `read`, re-read after new log entries. Errors: those of `read`."""
        last = _last_entry(table)
        known = self._of.get(table)
        if known is not None and known.last == last:
            return known.delta
        delta = read()
        if last is not None and last[0] == entry_name(delta.version()):
            self._of[table] = _KeptLog(last, delta)
        return delta

    def files(self, table: Path, delta: DeltaTable) -> Sequence[DataFile]:
        """Return the files of a table as in `delta`, cached."""
        known = self._of.get(table)
        if known is None or known.delta is not delta:
            return data_files(delta)
        if known.files is None:
            known.files = data_files(delta)
        return known.files


def _last_entry(table: Path) -> tuple[str, int, int] | None:
    """Name, number and time of the last log entry; None without one, or if it is just deleted."""
    log, length = table / LOG, len(entry_name(0))
    try:
        names = [name for name in os.listdir(log) if name.endswith(".json") and len(name) == length]  # noqa: PTH208
        found = (log / max(names)).stat()
    except (OSError, ValueError):
        return None
    return max(names), found.st_ino, found.st_mtime_ns
