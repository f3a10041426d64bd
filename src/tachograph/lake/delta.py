"""Tables of the lake: open, append exactly once, replace atomically, read.

Every data file of samples holds rows sorted by the table's `sort` columns, each key at most once
within the file. A file counts only from the moment its commit is in the Delta log: an append killed
before leaves nothing but an orphan that `vacuum` removes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from tachograph.catalog.durable import sync_folder
from tachograph.catalog.errors import LakeError
from tachograph.catalog.tables import TABLES, LakeTable
from tachograph.lake.batch import BatchDays, between_nodes, resolve_batch
from tachograph.lake.commits import WRITING
from tachograph.lake.conform import resolve, resolve_days, split_apart
from tachograph.lake.current import read_current
from tachograph.lake.data_files import DataFile, paths_of
from tachograph.lake.kept_logs import KeptLogs
from tachograph.lake.log_files import LogFiles, files_below
from tachograph.lake.log_format import (
    add_action,
    check_format,
    milliseconds,
    new_path,
    remove_action,
)
from tachograph.lake.problems import lake_errors, torn_log
from tachograph.lake.store import (
    KEPT_ZSTD_LEVEL,
    group_rows,
    is_remote,
    local_path,
    store_of,
    write_compact,
)

MANY_ROWS = 100_000  # of a recording, not of a minute: such a file may stay as it is for good
# quick: it dominates an analysis or an ingest; 2 % more bytes
ZSTD_LEVEL, QUICK_ZSTD_LEVEL = 3, 1
COMMIT_ATTEMPTS = 30
FOLDER_MODE = 0o750  # of a new lake: who is in its group may read it


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Result of an append: duplicate rows, all merged rows; whether it was there already.

    `overtaken`: nothing was committed, as another append got further than the one expected.
    """

    duplicates: int
    merged: int
    known: bool
    overtaken: bool = False


@dataclass(frozen=True, slots=True)
class BatchResult:
    """Result of a batch: new chunks, their rows by day, duplicates within and between chunks.

    `rows`: how many the chunks became, also those that were there already.
    """

    rows: int
    new: Sequence[str]
    days: Mapping[date, pl.DataFrame]
    within: Mapping[str, int]
    across: Mapping[date, int]


class Lake:
    """The tables under one location. `level`: of zstd, for files that are likely to stay."""

    def __init__(self, location: str, *, level: int = KEPT_ZSTD_LEVEL) -> None:
        self.location = local_path(location)
        self._level = level
        self._store = store_of(self.location)
        self._kept = KeptLogs(self._store.last_entry)

    @classmethod
    def open(cls, location: str) -> Lake:
        """Return the lake at `location`.

        Errors: LakeError without one, or if it may not be read.
        """
        lake = cls(location)
        with lake_errors(lake.location):
            if not lake._exists():
                raise LakeError(
                    "there is no lake",
                    where=lake.location,
                    do="fill one with `tachograph ingest`, or name it with --lake",
                )
        return lake

    @classmethod
    def create(
        cls, location: str, *, level: int = KEPT_ZSTD_LEVEL, mode: int | None = None
    ) -> Lake:
        """Return the lake at `location`, which need not exist yet.

        `mode`: permissions of a new folder, as they are; None: FOLDER_MODE, and no more than the
        umask allows. What is written into a lake has those of its folder. Errors: LakeError when
        the directory cannot be made, or the bucket does not exist.
        """
        lake = cls(location, level=level)
        with lake_errors(lake.location):
            if is_remote(lake.location):
                lake._exists()  # a wrong bucket or key is reported before anything is read
            else:
                _make_lake(Path(lake.location), mode)
        return lake

    def _exists(self) -> bool:
        """Whether any table exists."""
        if is_remote(self.location):
            return any(self._is_table(table) for table in TABLES.values())
        path = Path(self.location)
        return path.is_dir() and any((child / "_delta_log").is_dir() for child in path.iterdir())

    def _is_table(self, table: LakeTable) -> bool:
        return DeltaTable.is_deltatable(self.uri(table), storage_options=self._store.delta)

    def _read_log(self, table: LakeTable) -> DeltaTable:
        """Return the table from its log, re-read after a commit.

        Errors: LakeError for an empty entry, or a format of a newer program.
        """
        location = self.uri(table)
        return self._kept.delta(location, lambda: self._read_log_anew(location))

    def _read_log_anew(self, location: str) -> DeltaTable:
        if not is_remote(location):
            files = LogFiles.of(Path(location))
            # Delta takes longer to find that out.
            if not (files.entries or files.checkpoints or files.has_hint):
                raise TableNotFoundError(f"no log at {location}")
            for version in files.empty_entries():  # Delta counts it as one without rows
                raise torn_log(files.entry(version))
        delta = DeltaTable(location, storage_options=self._store.delta)
        check_format(delta, location)
        return delta

    @property
    def name(self) -> str:
        """Name in reports: the location."""
        return self.location

    @property
    def of_all_jobs(self) -> Lake:
        """The lake for facts of the site that name nobody, such as the sizes of its partitions."""
        return self

    def uri(self, table: LakeTable) -> str:
        """Location of a table."""
        return f"{self.location}/{table.name}"

    def delta(self, table: LakeTable) -> DeltaTable | None:
        """The Delta table, or None before the first write.

        Errors: LakeError if its log is damaged, or missing although there are data files.
        """
        location = self.uri(table)
        with lake_errors(location):
            try:
                return self._read_log(table)
            except TableNotFoundError:
                if is_remote(location) or not any(
                    file.suffix == ".parquet" for file in files_below(Path(location))
                ):
                    return None
            # A table's first file comes after its log.
            if not any(Path(location, "_delta_log").glob("*.json")):
                raise LakeError(
                    "the table's _delta_log is gone, its data files are there",
                    where=location,
                    do="restore _delta_log from a backup, or ingest into a new lake",
                )
            return self._read_log(table)

    def one_moment(self) -> AbstractContextManager[None]:
        """Read within the block what one version of each table holds, unless this thread writes."""
        return self._kept.one_moment()

    def version(self, table: LakeTable) -> int:
        """Version of the Delta table; -1 before the first write."""
        delta = self.delta(table)
        return -1 if delta is None else delta.version()

    def mark(self, table: LakeTable, app_id: str) -> int | None:
        """Return the greatest mark committed to the table by appends of `app_id`, or None."""
        delta = self.delta(table)
        with lake_errors(self.uri(table)):
            return None if delta is None else delta.transaction_version(app_id)

    def append(
        self,
        table: LakeTable,
        frame: pl.DataFrame,
        *,
        app_id: str,
        mark: int = 1,
        after: int | None = None,
        seq: int | None = None,
        left_out: int = 0,
    ) -> AppendResult:
        """Append rows once: repeating it with the same `app_id` and `mark` has no effect.

        Grain: `frame` is in the table's schema without `seq`, which becomes the version of their
        commit unless one is given. Rows and mark are one commit; where `after` is given only if no
        append got further. `left_out`: rows that were not to be added as they are there; they count
        as duplicates, then and ever after. Errors: LakeError when it cannot be written (no
        permission, disk full); then nothing has changed.
        """
        stamped = frame.with_columns(pl.lit(seq or 0, dtype=pl.Int64).alias("seq")).select(
            *table.schema
        )
        parts, repeated = _resolved_parts(stamped, table)
        duplicates = left_out + repeated
        merged = left_out + frame.height - sum(rows.height for _, rows in parts)
        counted = f"{app_id}:duplicates"
        for delta in self._attempts(table):
            reached = delta.transaction_version(app_id)
            if reached is not None and reached >= mark:
                there = delta.transaction_version(counted)
                return AppendResult(there or duplicates, there or merged, known=True)
            if after is not None and reached is not None and reached > after:
                return AppendResult(duplicates, merged, known=False, overtaken=True)
            stamp = pl.lit(delta.version() + 1 if seq is None else seq, dtype=pl.Int64).alias("seq")
            with self._writing(table) as written:
                for day, rows in parts:
                    written.append(
                        self._write(table, day, rows.with_columns(stamp), data_change=True)
                    )
                marks = [Transaction(app_id, mark, milliseconds())]
                if left_out:
                    marks.append(Transaction(counted, duplicates, milliseconds()))
                if self._commit(delta, table, written, marks):
                    return AppendResult(duplicates, merged, known=False)
                self._take_away(table, written)
        raise _overtaken(self.uri(table))

    def append_batch(self, table: LakeTable, frames: Mapping[str, pl.DataFrame]) -> BatchResult:
        """Append the rows of several chunks in one commit, each chunk once.

        Given as {name of its transaction: rows without `seq`}.

        Those that are there already add nothing; the others are resolved together, by day. Rows
        merged between them are added to the day's mark `merged_name`. Errors: LakeError when it
        cannot be written; then nothing has changed.
        """
        stamp = pl.lit(0, dtype=pl.Int64).alias("seq")
        batch, names = BatchDays({}, (), Counter()), None
        for delta in self._attempts(table):
            new = [name for name in frames if delta.transaction_version(name) is None]
            if new != names:
                names = new
                batch = resolve_batch(
                    [frames[name].with_columns(stamp).select(*table.schema) for name in new], table
                )
            if not new:
                break
            number = pl.lit(delta.version() + 1, dtype=pl.Int64).alias("seq")
            with self._writing(table) as written:
                for day, of_day in batch.days.items():
                    for rows in between_nodes(of_day.with_columns(number)):
                        written.append(
                            self._write(table, day, rows, data_change=True, level=QUICK_ZSTD_LEVEL)
                        )
                marks = [Transaction(name, 1, milliseconds()) for name in new]
                merged = {merged_name(table, day): count for day, count in batch.across.items()}
                marks += _raised(delta, merged)
                if self._commit(delta, table, written, marks):
                    break
                self._take_away(table, written)
        else:
            raise _overtaken(self.uri(table))
        within = dict(zip(new, batch.within, strict=True))
        committed = sum(of_day.height for of_day in batch.days.values())
        for name in frames.keys() - within.keys():
            alone = resolve_batch([frames[name].with_columns(stamp)], table)
            (within[name],) = alone.within
            committed += sum(of_day.height for of_day in alone.days.values())
        return BatchResult(committed, new, batch.days, within, batch.across)

    def stage(self, table: LakeTable, rows: pl.DataFrame, *, day: date | None) -> AddAction:
        """Write rows as a data file invisible to readers, and return what `commit` needs.

        Grain: `rows` are in the table's schema and order, each key once, and only the caller writes
        these keys. A file that is never committed is an orphan, which `vacuum` deletes; so commit
        within an hour. Errors: LakeError when it cannot be written.
        """
        self._opened(table)  # a table's first file comes after its log
        with lake_errors(self.uri(table), writing=True):
            return self._write_quickly(table, day, rows, data_change=True, level=QUICK_ZSTD_LEVEL)

    def commit(
        self, table: LakeTable, staged: Sequence[AddAction], *, app_id: str, mark: int
    ) -> bool:
        """Make staged files visible in one commit; False if `app_id` had already reached this mark.

        Errors: LakeError if a file vanished, or the log cannot be written; then nothing has
        changed.
        """
        if self._is_gone(table, staged):
            raise LakeError(
                "data files were removed before they were committed",
                where=self.uri(table),
                do="run it again",
            )
        with lake_errors(self.uri(table), writing=True):
            for delta in self._attempts(table):
                reached = delta.transaction_version(app_id)
                if reached is not None and reached >= mark:
                    return False
                if self._commit(delta, table, staged, [Transaction(app_id, mark, milliseconds())]):
                    return True
            raise _overtaken(self.uri(table))

    def discard(self, table: LakeTable, staged: Sequence[AddAction]) -> None:
        """Delete staged files that will not be committed; a committed one stays."""
        self._take_away(table, staged)

    def _is_gone(self, table: LakeTable, staged: Sequence[AddAction]) -> bool:
        """True when a file of this machine is missing; an object store is not checked."""
        if is_remote(self.location):
            return False
        return not all(Path(self.uri(table), action.path).exists() for action in staged)

    def replace(
        self,
        table: LakeTable,
        files: Sequence[DataFile],
        rows: Iterable[tuple[date | None, pl.DataFrame]],
        *,
        count: Callable[[], tuple[str, int]] | None = None,
        reached: tuple[str, int] | None = None,
    ) -> bool:
        """Replace files by rows in one commit; keeps concurrent appends.

        `count`: called once the rows are written; the name of a mark and its increment in the same
        commit. `reached`: the name of another mark, and its new minimum. False if another process
        replaced one of the files meanwhile; then nothing has changed. Errors: LakeError if writing
        fails; then nothing has changed.
        """
        with self._writing(table) as written:
            for day, part in rows:
                written.append(self._write(table, day, part, data_change=False))
            removed = [remove_action(file.path, file.size, file.day) for file in files]
            actions: list[AddAction | RemoveAction] = [*written, *removed]
            name, more = count() if count else ("", 0)
            least = dict([reached]) if reached else {}
            for delta in self._attempts(table):
                if not {file.path for file in files} <= paths_of(delta):
                    self._take_away(table, written)
                    return False
                marks = _raised(delta, {name: more}, least)
                if self._commit(delta, table, actions, marks):
                    return True
            raise _overtaken(self.uri(table))

    def _attempts(self, table: LakeTable) -> Iterator[DeltaTable]:
        """Yield the Delta table for each attempt to commit, pausing in between for other
        writers.
        """
        for attempt in range(COMMIT_ATTEMPTS):
            yield self._opened(table)
            time.sleep(0.01 * 2 ** min(attempt, 6))

    def _opened(self, table: LakeTable) -> DeltaTable:
        """The Delta table, created if missing."""
        delta = self.delta(table)
        if delta is not None:
            return delta
        with lake_errors(self.uri(table), writing=True):
            try:
                self._store.create(self.uri(table), table)
                delta = self.delta(table)
                if delta is not None:
                    return delta
                raise TableNotFoundError(f"no log at {self.uri(table)}")
            except (
                DeltaError
            ):  # another process created it in the same moment, or it cannot be created
                delta = self.delta(table)
                if delta is None:
                    raise
                return delta

    def _commit(
        self,
        delta: DeltaTable,
        table: LakeTable,
        actions: Sequence[AddAction | RemoveAction],
        transactions: list[Transaction],
    ) -> bool:
        """Commit `actions` as the version after `delta`; False if another writer took that
        version.
        """
        self._kept.forget_moment(self.uri(table))
        try:
            return self._store.commit(delta, self.uri(table), table, actions, transactions)
        except (DeltaError, OSError):
            # the commit may stand, and only the checkpoint after it have failed, of an object store
            added = {action.path for action in actions if isinstance(action, AddAction)}
            if not is_remote(self.location) or not added or not added <= self._in_log(table):
                raise
        return True

    def _in_log(self, table: LakeTable) -> set[str]:
        """Paths of the data files that count now."""
        self._kept.forget_moment(self.uri(table))
        return paths_of(self._read_log(table))

    @contextmanager
    def _writing(self, table: LakeTable) -> Iterator[list[AddAction]]:
        """Yield a list for the files written inside the block; they are deleted if it fails."""
        written: list[AddAction] = []
        with ExitStack() as undo:
            undo.callback(self._take_away, table, written)
            with lake_errors(self.uri(table), writing=True):
                yield written
            undo.pop_all()

    def vacuum(self, table: LakeTable, hours: int, *, unnamed: bool = True) -> int:
        """Delete files replaced more than `hours` ago; return their number.

        `unnamed`: also those as old that no log names, of appends that were killed. Errors:
        LakeError.
        """
        delta = self.delta(table)
        if delta is None:
            return 0
        with lake_errors(self.uri(table), writing=True):
            return self._store.vacuum(delta, self.uri(table), hours, unnamed=unnamed)

    def files(self, table: LakeTable, days: Iterable[date] | None = None) -> list[DataFile]:
        """Return the files a reader sees now (of `days`, or all), ordered by day and first node."""
        requested = None if days is None else set(days)
        return [
            file for file in self._all_files(table) if requested is None or file.day in requested
        ]

    def _all_files(self, table: LakeTable) -> Sequence[DataFile]:
        delta = self.delta(table)
        if delta is None:
            return ()
        with lake_errors(self.uri(table)):
            return self._kept.files(self.uri(table), delta)

    def days(self, table: LakeTable) -> list[date]:
        """Days on which the table has rows, in order."""
        return sorted({file.day for file in self.files(table) if file.day is not None})

    def read_files(
        self, table: LakeTable, files: Sequence[DataFile], columns: Sequence[str] | None = None
    ) -> pl.LazyFrame:
        """The rows of some files, columns that a file lacks as null.

        Errors: LakeError (when collected inside `lake_errors`) for a missing or damaged file.
        """
        if not files:
            return table.empty().select(columns or table.schema.keys()).lazy()
        frame = pl.scan_parquet(
            [f"{self.uri(table)}/{file.path}" for file in files],
            glob=False,
            schema=table.schema,
            missing_columns="insert",
            extra_columns="ignore",
            hive_partitioning=False,
            storage_options=self._store.polars,
            credential_provider=None,
        )
        return frame if columns is None else frame.select(*columns)

    def scan(self, table: LakeTable, days: Iterable[date] | None = None) -> pl.LazyFrame:
        """All stored rows: sorted within files, duplicates across files included."""
        return self.read_files(table, self.files(table, days))

    def read_named(self, table: LakeTable, job_ids: Sequence[str]) -> pl.LazyFrame:
        """Return the rows that name one of these jobs by id. Errors: those of `read_files`."""
        files = [file for file in self.files(table) if file.may_name_any(job_ids)]
        return self.read_files(table, files).filter(pl.col("job_id").is_in(list(job_ids)))

    def latest(
        self,
        table: LakeTable,
        columns: Sequence[str] | None = None,
        keys: Iterable[str] | None = None,
        where: pl.Expr | None = None,
    ) -> pl.DataFrame:
        """One row per key, for tables small enough to read, or for the requested part.

        `columns`: only these are read; None: all. `keys`: only rows with these job_keys. `where`:
        only rows that meet it; of job_summaries alone.
        """
        with lake_errors(self.uri(table)):
            return read_current(self, table, columns, keys, where)

    def kept_answers(
        self,
        job_keys: pl.Series,
        codes: Sequence[str] | None = (),
        *,
        reported: bool = False,
        only: Sequence[str] | None = None,
    ) -> pl.DataFrame | None:
        """Short finding rows of jobs, kept in memory by the server; None: read them from the lake.

        Findings that hold, and those of `codes` with any verdict; None: of all. `reported`: only
        findings that are reported. `only`: of these codes, as all of many jobs take much memory.
        """
        return None

    def _write(
        self,
        table: LakeTable,
        day: date | None,
        frame: pl.DataFrame,
        *,
        data_change: bool,
        level: int | None = None,
    ) -> AddAction:
        """Write one data file, invisible until the commit.

        A final file takes longer to write and is smaller.

        `level` of such a file: by default that of the lake.
        """
        if table.by_day and (not data_change or frame.height >= MANY_ROWS):
            path = new_path(day)
            size = self._write_compact(
                table, path, frame, level=self._level if level is None else level
            )
            return add_action(path, size, day, frame, data_change=data_change)
        return self._write_quickly(table, day, frame, data_change=data_change, level=ZSTD_LEVEL)

    def _write_quickly(
        self,
        table: LakeTable,
        day: date | None,
        frame: pl.DataFrame,
        *,
        data_change: bool,
        level: int,
    ) -> AddAction:
        path = new_path(day)
        size = self._store.write(
            self.uri(table),
            path,
            frame,
            compression="zstd",
            compression_level=level,
            row_group_size=group_rows(table),
        )
        return add_action(path, size, day, frame, data_change=data_change)

    def _write_compact(
        self, table: LakeTable, path: str, frame: pl.DataFrame, *, level: int
    ) -> int:
        """Write rows that are likely to stay in this file; return its bytes.

        What a killed process leaves half done is a folder that `vacuum` takes away.
        """
        with TemporaryDirectory(prefix=WRITING, dir=self._store.scratch(self.uri(table))) as folder:
            file = write_compact(
                frame, table, Path(folder), row_group_rows=group_rows(table), level=level
            )
            return self._store.adopt(self.uri(table), path, file)

    def _take_away(self, table: LakeTable, written: Sequence[AddAction]) -> None:
        """Delete files of a failed commit, but never one that the log names."""
        if not written:
            return
        try:
            counting = self._in_log(table)
            for action in written:
                if action.path not in counting:
                    self._store.delete(self.uri(table), action.path)
        except (DeltaError, OSError):  # `vacuum` deletes orphans later
            return


def _make_lake(folder: Path, mode: int | None) -> None:
    """Create the folder of a lake if missing."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=FOLDER_MODE if mode is None else mode)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return
    if mode is not None:
        folder.chmod(mode)  # whatever the umask is
    sync_folder(folder.parent)


def _resolved_parts(
    frame: pl.DataFrame, table: LakeTable
) -> tuple[list[tuple[date | None, pl.DataFrame]], int]:
    """Rows of each file, or of each day for tables with days, and how many rows repeat others."""
    if frame.is_empty():
        return [], 0
    if not table.by_day:
        resolved, repeated = resolve(frame, table, repeats=True)
        return [(None, rows) for rows in split_apart(resolved, table)], repeated
    days = list(resolve_days(frame, table))
    return [(day, rows) for day, rows, _ in days], sum(count for _, _, count in days)


def merged_name(table: LakeTable, day: date) -> str:
    """Return the name of the mark that counts a day's merged rows."""
    return f"compact:{table.name}:{day}"


def _raised(
    delta: DeltaTable, counts: Mapping[str, int], least: Mapping[str, int] = {}
) -> list[Transaction]:
    """Return marks increased by counts, or raised to a minimum."""
    before = {name: delta.transaction_version(name) or 0 for name in (*counts, *least)}
    after = {name: before[name] + count for name, count in counts.items()} | dict(least)
    return [
        Transaction(name, mark, milliseconds())
        for name, mark in after.items()
        if mark > before[name]
    ]


def _overtaken(where: str) -> LakeError:
    return LakeError("other processes kept writing to it first", where=where, do="run it again")
