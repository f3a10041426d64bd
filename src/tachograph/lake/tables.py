"""Tables of the lake: open, append exactly once, replace atomically, read.

Every data file holds rows sorted by the table's `sort` columns, each key at most once within the file.
A file counts only from the moment its commit is in the Delta log: whatever is killed before leaves nothing
but an orphan that `vacuum` removes.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import polars as pl
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import ArrayType, PrimitiveType
from deltalake.transaction import AddAction, RemoveAction

from tachograph.errors import LakeError
from tachograph.lake.resolve import resolve
from tachograph.schema import GPU_SAMPLES, Table

# samples are read whole, so a file is one row group: its columns arrive in one piece; others are read by key
ROW_GROUP_ROWS = {True: 1 << 22, False: 1 << 17}
COMMIT_ATTEMPTS = 30
DAY = "day"
_DELTA_TYPES: Mapping[Any, str] = {
    pl.String: "string",
    pl.Int64: "long",
    pl.Int32: "integer",
    pl.Int16: "short",
    pl.Float64: "double",
    pl.Float32: "float",
    pl.Boolean: "boolean",
    pl.Datetime: "timestamp",
    pl.Date: "date",
}
_STATISTICS = ("t", "node", "seq")


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file of a table. `low`/`high` are the least and greatest node (samples) where known."""

    path: str
    day: date | None
    rows: int
    size: int
    low: str | None
    high: str | None
    first: datetime | None
    last: datetime | None
    seq: int  # greatest in the file


class Lake:
    """The tables under one location."""

    def __init__(self, location: str) -> None:
        self.location = location.rstrip("/")

    @classmethod
    def open(cls, location: str) -> Lake:
        """Return the lake at `location`.

        Errors: LakeError when there is none, or it may not be read.
        """
        if "://" not in location:
            path = Path(location)
            with lake_errors(location):
                if not path.is_dir() or not any((child / "_delta_log").is_dir() for child in path.iterdir()):
                    raise LakeError(
                        "there is no lake",
                        where=location,
                        do="fill one with `tachograph ingest`, or name it with --lake",
                    )
        return cls(location)

    @classmethod
    def create(cls, location: str) -> Lake:
        """Return the lake at `location`, which need not exist yet.

        Errors: LakeError when the directory cannot be made.
        """
        if "://" not in location:
            with lake_errors(location):
                Path(location).mkdir(parents=True, exist_ok=True)
        return cls(location)

    def uri(self, table: Table) -> str:
        """Where a table is."""
        return f"{self.location}/{table.name}"

    def delta(self, table: Table) -> DeltaTable | None:
        """The Delta table, or None where nothing was written yet."""
        with lake_errors(self.uri(table)):
            try:
                return DeltaTable(self.uri(table))
            except TableNotFoundError:
                return None

    def version(self, table: Table) -> int:
        """Version of the Delta table; -1 where nothing was written yet."""
        delta = self.delta(table)
        return -1 if delta is None else delta.version()

    def has(self, table: Table, app_id: str) -> bool:
        """True when the chunk called `app_id` is in the table already."""
        delta = self.delta(table)
        return delta is not None and delta.transaction_version(app_id) is not None

    def append(self, table: Table, frame: pl.DataFrame, *, app_id: str, seq: int | None = None) -> int | None:
        """Add rows once: a second append under the same `app_id` changes nothing.

        Grain: `frame` is in the table's schema without `seq`, which becomes the version in which the rows land
        unless one is given. Returns the number of duplicate rows that were merged within it, or None where the
        chunk was there already.
        Errors: LakeError when it cannot be written (no permission, disk full).
        """
        for attempt in range(COMMIT_ATTEMPTS):
            if self.has(table, app_id):
                return None
            landing = self.version(table) + 1 or 1  # creating the table is version 0
            stamp = pl.lit(landing if seq is None else seq, dtype=pl.Int64).alias("seq")
            rows, duplicates = resolve(frame.with_columns(stamp).select(*table.schema), table)
            try:
                self.commit(table, add=self._split_by_day(table, rows), remove=(), app_id=app_id, expect=landing)
            except _Overtaken:
                time.sleep(0.01 * 2 ** min(attempt, 6))
            else:
                return duplicates
        raise LakeError("other writers were always faster", where=self.uri(table), do="run it again")

    def commit(
        self,
        table: Table,
        *,
        add: Iterable[tuple[date | None, pl.DataFrame]],
        remove: Sequence[DataFile],
        app_id: str | None = None,
        data_change: bool = True,
        expect: int | None = None,
    ) -> None:
        """Write files and make them, and the removal of others, visible in one step; as version `expect` if given.

        Errors: LakeError; then nothing has changed, and files already written are taken away again.
        """
        written: list[AddAction] = []
        location = self.uri(table)
        with lake_errors(location):
            delta = DeltaTable.create(
                location,
                schema=_delta_schema(table),
                mode="ignore",
                partition_by=[DAY] if table.by_day else None,
                configuration={"delta.checkpointInterval": "50"},
            )
            if expect is not None and delta.version() + 1 != expect:
                raise _Overtaken
            try:
                written.extend(self._write(table, day, frame, data_change=data_change) for day, frame in add)
                removed = [_remove_action(table, file, data_change=data_change) for file in remove]
                delta.create_write_transaction(
                    [*written, *removed],
                    mode="append",
                    schema=_delta_schema(table),
                    partition_by=[DAY] if table.by_day else None,
                    commit_properties=CommitProperties(
                        app_transactions=[Transaction(app_id, 1, int(time.time() * 1000))] if app_id else None,
                        max_commit_retries=None if expect is None else 0,
                    ),
                )
            except CommitFailedError as problem:
                self._take_away(table, written)
                raise (_Overtaken() if expect is not None else problem) from None
            except BaseException:
                self._take_away(table, written)
                raise

    def files(self, table: Table, days: Iterable[date] | None = None) -> list[DataFile]:
        """The files a reader sees now, ordered by day and first node; all of them, or those of `days`."""
        delta = self.delta(table)
        if delta is None:
            return []
        with lake_errors(self.uri(table)):
            actions = pl.DataFrame(delta.get_add_actions(flatten=True))
        wanted = None if days is None else set(days)
        files = [_data_file(row) for row in actions.iter_rows(named=True)]
        chosen = [file for file in files if wanted is None or file.day in wanted]
        return sorted(chosen, key=lambda file: (str(file.day), file.low or "", file.path))

    def days(self, table: Table) -> list[date]:
        """Days on which the table has rows, in order."""
        return sorted({file.day for file in self.files(table) if file.day is not None})

    def read_files(self, table: Table, files: Sequence[DataFile], columns: Sequence[str] | None = None) -> pl.LazyFrame:
        """The rows of some files, columns that a file lacks as null.

        Errors: LakeError (when collected inside `lake_errors`) for a file that is gone or damaged.
        """
        if not files:
            return table.empty().lazy()
        frame = pl.scan_parquet(
            [f"{self.uri(table)}/{file.path}" for file in files],
            glob=False,
            schema=table.schema,
            missing_columns="insert",
            extra_columns="ignore",
            hive_partitioning=False,
        )
        return frame if columns is None else frame.select(*columns)

    def scan(self, table: Table, days: Iterable[date] | None = None) -> pl.LazyFrame:
        """All rows as they lie: sorted within files, not resolved between them."""
        return self.read_files(table, self.files(table, days))

    def latest(self, table: Table) -> pl.DataFrame:
        """One row per key: for tables small enough to be read whole (jobs, allocations, summaries)."""
        with lake_errors(self.uri(table)):
            return resolve(self.scan(table).collect(), table)[0]

    def _write(self, table: Table, day: date | None, frame: pl.DataFrame, *, data_change: bool) -> AddAction:
        folder = f"{DAY}={day.isoformat()}/" if day is not None else ""
        path = f"{folder}part-{uuid.uuid4().hex}.parquet"
        target = f"{self.uri(table)}/{path}"
        if "://" not in target:
            Path(target).parent.mkdir(parents=True, exist_ok=True)
        try:
            frame.write_parquet(
                target, compression="zstd", compression_level=3, row_group_size=ROW_GROUP_ROWS[table is GPU_SAMPLES]
            )
        except BaseException:
            if "://" not in target:
                Path(target).unlink(missing_ok=True)
            raise
        size = Path(target).stat().st_size if "://" not in target else frame.estimated_size()
        return AddAction(
            path=path,
            size=int(size),
            partition_values={DAY: day.isoformat()} if day is not None else {},
            modification_time=int(time.time() * 1000),
            data_change=data_change,
            stats=_statistics(frame),
        )

    def _take_away(self, table: Table, written: Sequence[AddAction]) -> None:
        if "://" not in self.location:
            for action in written:
                Path(f"{self.uri(table)}/{action.path}").unlink(missing_ok=True)

    @staticmethod
    def _split_by_day(table: Table, frame: pl.DataFrame) -> Iterator[tuple[date | None, pl.DataFrame]]:
        if frame.is_empty():
            return
        if not table.by_day:
            yield None, frame
            return
        days = frame.get_column("t").dt.date()
        for day in days.unique().sort():
            yield day, frame.filter(days == day)


class _Overtaken(Exception):  # noqa: N818 - not an error: another writer took the version
    pass


@contextmanager
def lake_errors(where: str) -> Iterator[None]:
    """Turn what the file system, Delta and Parquet report into LakeError: the lake itself is unchanged then."""
    try:
        yield
    except OSError as problem:
        reason = problem.strerror or str(problem)
        advice = {28: "free some space and run it again", 13: "ask for permission, or name another lake with --lake"}
        raise LakeError(
            reason, where=problem.filename or where, do=advice.get(problem.errno or 0, "the lake is unchanged")
        ) from problem
    except DeltaError as problem:
        raise LakeError(
            f"the table's log cannot be used: {_first_line(problem)}",
            where=where,
            do="restore the table's _delta_log from a backup, or ingest into a new lake",
        ) from problem
    except (pl.exceptions.ComputeError, pl.exceptions.SchemaError) as problem:
        raise LakeError(
            f"a data file cannot be read: {_first_line(problem)}", where=where, do="restore it, or ingest again"
        ) from problem


def _first_line(problem: BaseException) -> str:
    return str(problem).strip().splitlines()[0][:300]


def _delta_schema(table: Table) -> Schema:
    fields = [Field(name, _delta_type(dtype), nullable=True) for name, dtype in table.schema.items()]
    return Schema([*fields, Field(DAY, PrimitiveType("date"), nullable=True)] if table.by_day else fields)


def _delta_type(dtype: pl.DataType) -> PrimitiveType | ArrayType:
    if isinstance(dtype, pl.List):
        inner = dtype.inner
        return ArrayType(_delta_type(inner if isinstance(inner, pl.DataType) else inner()), contains_null=True)
    return PrimitiveType(_DELTA_TYPES[dtype.base_type()])


def _statistics(frame: pl.DataFrame) -> str:
    """Row count, and least and greatest values of the columns by which files are chosen, as Delta wants them."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    for name in _STATISTICS:
        if name in frame.columns and frame.height:
            column = frame.get_column(name)
            low, high = column.min(), column.max()
            if low is not None and high is not None:
                least[name], greatest[name] = _plain(low), _plain(high)
    nulls = {name: int(frame.get_column(name).null_count()) for name in least}
    return json.dumps({"numRecords": frame.height, "minValues": least, "maxValues": greatest, "nullCount": nulls})


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return value


def _data_file(row: Mapping[str, Any]) -> DataFile:
    return DataFile(
        path=row["path"],
        day=row.get(f"partition.{DAY}"),
        rows=int(row["num_records"]),
        size=int(row["size_bytes"]),
        low=row.get("min.node"),
        high=row.get("max.node"),
        first=row.get("min.t"),
        last=row.get("max.t"),
        seq=int(row.get("max.seq") or 0),
    )


def _remove_action(table: Table, file: DataFile, *, data_change: bool) -> RemoveAction:
    return RemoveAction(
        path=file.path,
        deletion_timestamp=int(time.time() * 1000),
        data_change=data_change,
        size=file.size,
        partition_values={DAY: file.day.isoformat()} if table.by_day and file.day else {},
    )
