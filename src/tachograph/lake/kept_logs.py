"""Caches the logs of tables and their file lists until the next commit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from deltalake import DeltaTable

from tachograph.lake.data_files import DataFile, data_files
from tachograph.lake.log_files import LogEntry, entry_name


@dataclass(slots=True)
class _KeptLog:
    """A log in memory: its last entry, the Delta table, its files."""

    last: LogEntry
    delta: DeltaTable
    files: Sequence[DataFile] | None = None


class _Moment(threading.local):
    """Tables that this thread has checked within `KeptLogs.one_moment`; None outside of it."""

    checked: dict[str, DeltaTable] | None = None


class KeptLogs:
    """Cached logs of a lake; a log is re-read when its last entry changes.

    last_entry: returns the last entry of the log of a table, from one listing.
    """

    def __init__(self, last_entry: Callable[[str], LogEntry | None]) -> None:
        self._last_entry = last_entry
        self._logs: dict[str, _KeptLog] = {}
        self._moment = _Moment()

    def __reduce__(self) -> tuple[type[KeptLogs], tuple[Callable[[str], LogEntry | None]]]:
        """Nothing is pickled: Delta's state cannot be, so other processes read the logs."""
        return KeptLogs, (self._last_entry,)

    @contextmanager
    def one_moment(self) -> Iterator[None]:
        """Look for new entries of a table once within the block, in this thread.

        In an object store each look is a request, and a question reads some tables many times.
        """
        if self._moment.checked is not None:
            yield
            return
        self._moment.checked = {}
        try:
            yield
        finally:
            self._moment.checked = None

    def forget_moment(self, table: str) -> None:
        """Look for new entries of a table again, also within `one_moment`: for writers."""
        if self._moment.checked is not None:
            self._moment.checked.pop(table, None)

    def delta(self, table: str, read: Callable[[], DeltaTable]) -> DeltaTable:
        """Return the table from `read`, re-read after new log entries. Errors: those of `read`."""
        checked = self._moment.checked
        if checked is not None and table in checked:
            return checked[table]
        delta = self._newest(table, read)
        if checked is not None:
            checked[table] = delta
        return delta

    def _newest(self, table: str, read: Callable[[], DeltaTable]) -> DeltaTable:
        last = self._last_entry(table)
        log = self._logs.get(table)
        if log is not None and log.last == last:
            return log.delta
        delta = read()
        # A later version was committed since the listing: its entry is not known.
        if last is not None and last.name == entry_name(delta.version()):
            self._logs[table] = _KeptLog(last, delta)
        return delta

    def files(self, table: str, delta: DeltaTable) -> Sequence[DataFile]:
        """Return the files of a table as in `delta`, cached."""
        log = self._logs.get(table)
        if log is None or log.delta is not delta:
            return data_files(delta)
        if log.files is None:
            log.files = data_files(delta)
        return log.files
