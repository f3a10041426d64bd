"""What Delta's log holds of a table and of a file: types of columns, and statistics by which files are chosen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import polars as pl
from deltalake import Field, Schema
from deltalake.schema import ArrayType, PrimitiveType

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
_STATISTICS = ("t", "node", "job_key", "job_id", "seq")


def delta_schema(table: LakeTable) -> Schema:
    """Return the schema of a table in types of Delta."""
    fields = [Field(name, _delta_type(dtype), nullable=True) for name, dtype in table.schema.items()]
    return Schema([*fields, Field(DAY, PrimitiveType("date"), nullable=True)] if table.by_day else fields)


def _delta_type(dtype: pl.DataType) -> PrimitiveType | ArrayType:
    if isinstance(dtype, pl.List):
        inner = dtype.inner
        return ArrayType(_delta_type(inner if isinstance(inner, pl.DataType) else inner()), contains_null=True)
    return PrimitiveType(_DELTA_TYPES[dtype.base_type()])


def statistics_of(frame: pl.DataFrame) -> str:
    """Return row count, least and greatest values of the columns by which files are chosen, as Delta writes them."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    for name in _STATISTICS:
        if name in frame.columns and frame.height:
            column = frame.get_column(name)
            low, high = column.min(), column.max()
            if low is not None and high is not None:
                least[name], greatest[name] = _plain(low), _plain(high)
    nulls = frame.null_count().row(0, named=True)
    return json.dumps({"numRecords": frame.height, "minValues": least, "maxValues": greatest, "nullCount": nulls})


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return value
