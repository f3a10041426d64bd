"""Contents of Delta's log: column types, and statistics by which readers skip files."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from datetime import UTC, date, datetime
from types import MappingProxyType
from typing import Any

import polars as pl
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import ArrayType, PrimitiveType
from deltalake.transaction import AddAction, RemoveAction

from tachograph.catalog.errors import LakeError
from tachograph.catalog.tables import LakeTable

DAY = "day"  # the partition of tables by day
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
# A table that is appended to every minute writes a log of 1,440 files a day: every 50th commit sums
# them up in a checkpoint (marks of appends included, for ever), and takes away those older than
# this.
# Raised when an older program would read or write wrongly.
FORMAT, FORMAT_PROPERTY = 1, "tachograph.format"
PROPERTIES: Mapping[str, str] = MappingProxyType(
    {
        "delta.checkpointInterval": "50",
        "delta.logRetentionDuration": "interval 2 days",
        "delta.deletedFileRetentionDuration": "interval 2 days",
        "delta.dataSkippingNumIndexedCols": "-1",
        FORMAT_PROPERTY: str(FORMAT),
    }
)
# Data files are read as they lie, so features that change what a file's rows mean are none of
# these.
_READER, _WRITER = 1, 2  # versions of Delta's protocol without features
_READER_FEATURES = frozenset({"v2Checkpoint", "vacuumProtocolCheck", "timestampNtz"})
_WRITER_FEATURES = _READER_FEATURES | {"appendOnly", "invariants"}
_STATISTICS = ("t", "node", "job_key", "job_id", "seq")


def properties_of(table: LakeTable) -> dict[str, str]:
    """Return the properties of a table in Delta's log.

    Delta decodes the statistics of every file, of every column that they are declared for, each
    time a log is read. Counts of nulls of other columns choose only files of days.
    """
    if table.by_day:
        return dict(PROPERTIES)
    names = ",".join(name for name in _STATISTICS if name in table.schema)
    return {**PROPERTIES, "delta.dataSkippingStatsColumns": names}


def delta_schema(table: LakeTable) -> Schema:
    """Return the schema of a table in types of Delta."""
    fields = [
        Field(name, _delta_type(dtype), nullable=True) for name, dtype in table.schema.items()
    ]
    return Schema(
        [*fields, Field(DAY, PrimitiveType("date"), nullable=True)] if table.by_day else fields
    )


def _delta_type(dtype: pl.DataType) -> PrimitiveType | ArrayType:
    if isinstance(dtype, pl.List):
        inner = dtype.inner
        element = inner if isinstance(inner, pl.DataType) else inner()
        return ArrayType(_delta_type(element), contains_null=True)
    return PrimitiveType(_DELTA_TYPES[dtype.base_type()])


def statistics_of(frame: pl.DataFrame, *, nulls_of_all: bool) -> str:
    """Return the row count, minima, maxima and counts of nulls of a file in Delta's format.

    `nulls_of_all`: of all columns; else of those that have minima.
    """
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    for name in _STATISTICS:
        if name in frame.columns and frame.height:
            column = frame[name]
            low, high = column.min(), column.max()
            if low is not None and high is not None:
                least[name], greatest[name] = _plain(low), _plain(high)
    counted = frame if nulls_of_all else frame.select(least.keys())
    nulls = counted.null_count().row(0, named=True) if counted.width else {}
    return json.dumps(
        {"numRecords": frame.height, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    )


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return value


def new_path(day: date | None) -> str:
    """Return a name that no data file has, in the folder of its day."""
    folder = f"{DAY}={day.isoformat()}/" if day is not None else ""
    return f"{folder}part-{uuid.uuid4().hex}.parquet"


def add_action(
    path: str, size: int, day: date | None, frame: pl.DataFrame, *, data_change: bool
) -> AddAction:
    """Return the log entry that adds a data file."""
    return AddAction(
        path=path,
        size=size,
        partition_values={DAY: day.isoformat()} if day is not None else {},
        modification_time=milliseconds(),
        data_change=data_change,
        stats=statistics_of(frame, nulls_of_all=day is not None),
    )


def remove_action(path: str, size: int, day: date | None) -> RemoveAction:
    """Return the log entry that removes a data file."""
    return RemoveAction(
        path=path,
        deletion_timestamp=milliseconds(),
        data_change=False,
        size=size,
        partition_values={DAY: day.isoformat()} if day is not None else {},
    )


def milliseconds() -> int:
    """Return the time since 1970, as the log counts it."""
    return int(time.time() * 1000)


def check_format(delta: DeltaTable, where: str) -> None:
    """Raise an error unless this program supports the table's format.

    Errors: LakeError for the format of a newer program, or features of Delta that it does not know.
    """
    configured = delta.metadata().configuration.get(FORMAT_PROPERTY, "1")
    if not configured.isdecimal() or int(configured) > FORMAT:
        what = f"the lake has format {configured}, this program reads up to {FORMAT}"
        raise LakeError(what, where=where, do="update tachograph, or name another lake with --lake")
    protocol = delta.protocol()
    features = set(protocol.reader_features or ()) - _READER_FEATURES
    features |= set(protocol.writer_features or ()) - _WRITER_FEATURES
    mapping = delta.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mapping != "none":
        features.add("columnMapping")
    older = (protocol.min_reader_version, protocol.min_writer_version) <= (_READER, _WRITER)
    if features or not (older or protocol.writer_features is not None):
        named = ", ".join(sorted(features)) or f"writer version {protocol.min_writer_version}"
        what = (
            "another program gave the table features of Delta that tachograph does not "
            f"read: {named}"
        )
        raise LakeError(
            what, where=where, do="ingest into a new lake, or drop the features with that program"
        )
