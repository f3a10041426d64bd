"""Rows as text for snapshots: a line per row with what is not null."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path

import polars as pl

from tachograph.sources.allocation_map import AllocationMapReading
from tachograph.sources.slurm.exports import AccountingReading


def row_lines(rows: Iterable[Mapping[str, object]]) -> str:
    """Return a line per row: `column=value` of what is not null, times in ISO."""
    return "".join(
        " ".join(f"{name}={_cell(value)}" for name, value in row.items() if value is not None)
        + "\n"
        for row in rows
    )


def _cell(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else f"{value:.10g}"
    return repr(value)


def frame_lines(frame: pl.DataFrame) -> str:
    """Return a line per row; numbers of single precision have no more digits than they need."""
    short = pl.col(pl.Float32).cast(pl.String).cast(pl.Float64)
    return row_lines(frame.with_columns(short).iter_rows(named=True))


def lake_lines(lake: Path, *tables: str) -> str:
    """Return the sorted rows of tables of a lake, without when they were written."""
    frames = [pl.read_delta(str(lake / table)).drop("seq", "day", strict=False) for table in tables]
    return "\n".join("".join(sorted(frame_lines(one).splitlines(keepends=True))) for one in frames)


def reading_lines(reading: AccountingReading | AllocationMapReading) -> str:
    """Return what a file of accounting or a map holds: rows of each table, rejected records."""
    tables = [getattr(reading, name, []) for name in ("jobs", "steps", "allocations")]
    rejected = [f"rejected {place}: {reason}\n" for place, reason, _ in reading.rejected]
    counted = [f"counted: {reject.reason} {reject.count}\n" for reject in reading.rejects()]
    read = f"{reading.rows_read} read\n"
    return "\n".join([read, *map(row_lines, tables), "".join([*rejected, *counted])])
