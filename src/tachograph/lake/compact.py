"""Compaction: each day's samples rewritten as few sorted files without overlap, in one atomic step per day."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date

import polars as pl

from tachograph.lake.partitions import PARTITION_ROWS, partitions, read_partition
from tachograph.lake.resolve import resolve
from tachograph.lake.tables import Lake, lake_errors
from tachograph.schema import REJECTS, Table

FEW_FILES = 8  # a table that is read whole is rewritten once it has more


@dataclass(frozen=True, slots=True)
class Compaction:
    """What was done to one table: days rewritten, files and rows before and after, duplicates merged."""

    table: str
    days: int
    files_before: int
    files_after: int
    rows_before: int
    rows_after: int

    @property
    def duplicates(self) -> int:
        """Rows merged into others of the same key."""
        return self.rows_before - self.rows_after


def compact(
    lake: Lake,
    tables: Iterable[Table],
    *,
    rows: int = PARTITION_ROWS,
    vacuum_hours: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[Compaction]:
    """Rewrite what needs it in each table, and delete files replaced more than `vacuum_hours` ago.

    Killed at any moment, a day is either as before or done. Nothing to do is nothing written.
    """
    done = []
    for table in tables:
        if lake.delta(table) is None:
            continue
        done.append(_compact_days(lake, table, rows, progress) if table.by_day else _compact_whole(lake, table))
        if vacuum_hours is not None:
            _vacuum(lake, table, vacuum_hours)
    return done


def _compact_days(lake: Lake, table: Table, rows: int, progress: Callable[[str, int, int], None] | None) -> Compaction:
    days = [day for day in lake.days(table) if needs_compaction(lake, table, day, rows)]
    before_files = before_rows = after_files = after_rows = 0
    for count, day in enumerate(days):
        files = lake.files(table, [day])
        written: list[int] = []
        lake.commit(table, add=_rewritten(lake, table, day, rows, written), remove=files, data_change=False)
        before_files, after_files = before_files + len(files), after_files + len(written)
        merged = sum(file.rows for file in files) - sum(written)
        before_rows, after_rows = before_rows + sum(file.rows for file in files), after_rows + sum(written)
        _count_duplicates(lake, table, day, files[0].path, merged)
        if progress:
            progress(f"compact {table.name}", count + 1, len(days))
    return Compaction(table.name, len(days), before_files, after_files, before_rows, after_rows)


def needs_compaction(lake: Lake, table: Table, day: date, rows: int = PARTITION_ROWS) -> bool:
    """True when the day's files overlap, or are much smaller than a partition."""
    files = lake.files(table, [day])
    parts = list(partitions(lake, table, [day], rows=rows))
    if any(not part.is_whole for part in parts):
        return True
    fewest = max(1, -(-sum(file.rows for file in files) // rows))
    return len(files) > 2 * fewest


def _rewritten(
    lake: Lake, table: Table, day: date, rows: int, written: list[int]
) -> Iterator[tuple[date, pl.DataFrame]]:
    """The day's partitions, resolved; neighbours that are small together. Appends each file's rows to `written`."""
    held: list[pl.DataFrame] = []
    height = 0
    for part in partitions(lake, table, [day], rows=rows):
        frame, _ = read_partition(lake, table, part)
        if held and height + frame.height > rows:
            written.append(height)
            yield day, pl.concat(held)
            held, height = [], 0
        held.append(frame)
        height += frame.height
    if held:
        written.append(height)
        yield day, pl.concat(held)


def _compact_whole(lake: Lake, table: Table) -> Compaction:
    files = lake.files(table)
    total = sum(file.rows for file in files)
    if len(files) <= FEW_FILES:
        return Compaction(table.name, 0, len(files), len(files), total, total)
    with lake_errors(lake.uri(table)):
        frame, _ = resolve(lake.read_files(table, files).collect(), table)
    lake.commit(table, add=[(None, frame)], remove=files, data_change=False)
    return Compaction(table.name, 0, len(files), 1, total, frame.height)


def _count_duplicates(lake: Lake, table: Table, day: date, chunk: str, merged: int) -> None:
    if merged:
        row = {
            "chunk": f"compact:{table.name}:{day}:{chunk}",
            "source": "compact",
            "origin": str(day),
            "target": table.name,
            "reason": "duplicate",
            "removed": merged,
        }
        frame = pl.DataFrame([row], schema={n: d for n, d in REJECTS.schema.items() if n != "seq"})
        lake.append(REJECTS, frame, app_id=row["chunk"] if isinstance(row["chunk"], str) else "")


def _vacuum(lake: Lake, table: Table, hours: int) -> None:
    delta = lake.delta(table)
    if delta is not None:
        with lake_errors(lake.uri(table)):
            delta.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False)
