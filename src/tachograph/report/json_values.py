"""Converts dataclasses, rows and tables of reports to the values that `--json` prints."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from datetime import datetime
from math import isfinite
from typing import Any

import msgspec
import polars as pl

from tachograph.catalog.columns import INTERNAL


def json_values(value: Any, *, without: Collection[str] = ()) -> dict[str, Any]:
    """Return a report object as JSON values; `without`: fields of a data class that are left out.

    Data classes are objects, tables are lists of rows, times are ISO 8601 in UTC, NaN and
    infinities are null.

    >>> from datetime import UTC, datetime
    >>> json_values({"start": datetime(2026, 4, 23, tzinfo=UTC), "gpu_util_mean": float("nan"), "pipes": ("fp64",)})
    {'start': '2026-04-23T00:00:00+00:00', 'gpu_util_mean': None, 'pipes': ['fp64']}
    """
    if without:
        value = {
            field.name: getattr(value, field.name)
            for field in fields(value)
            if field.name not in without
        }
    values: dict[str, Any] = _builtins(value)
    return values


def json_rows(table: pl.DataFrame) -> list[dict[str, Any]]:
    """Return a computed table as JSON values, an object per row, without the lake's own columns."""
    rows: list[dict[str, Any]] = _builtins(table)
    return rows


def public_row(row: Mapping[str, object]) -> dict[str, Any]:
    """Return a row of a computed table without the lake's own columns.

    >>> public_row({"gpus": 4, "seq": 3})
    {'gpus': 4}
    """
    return {name: value for name, value in row.items() if name not in INTERNAL}


def _builtins(value: object) -> Any:
    return _finite(
        msgspec.to_builtins(value, builtin_types=(datetime,), str_keys=True, enc_hook=_encoded)
    )


def _finite(value: Any) -> Any:
    """Times as text with offset; null instead of numbers unknown to JSON."""
    match value:
        case dict():
            return {name: _finite(each) for name, each in value.items()}
        case list() | tuple():
            return [_finite(each) for each in value]
        case datetime():
            return value.isoformat()
        case float() if not isfinite(value):
            return None
    return value


def _encoded(value: object) -> object:
    """Encode what msgspec does not: tables and read-only mappings."""
    if isinstance(value, pl.DataFrame):
        return [public_row(row) for row in value.iter_rows(named=True)]
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"no JSON value for {type(value).__qualname__}")
