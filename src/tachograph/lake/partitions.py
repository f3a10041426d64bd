"""Partitions: a day's samples split by node to fit in memory, sorted, with unique keys.

Files whose node ranges overlap belong together; a group of them that is too large is cut between
nodes. Reading a partition resolves what overlaps, so readers see the same rows before and after
compaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date

import polars as pl

from tachograph.catalog.tables import LakeTable
from tachograph.lake.batch import FILE_ROWS
from tachograph.lake.conform import resolve
from tachograph.lake.data_files import GREATEST, DataFile, row_count, touching
from tachograph.lake.delta import Lake
from tachograph.lake.problems import lake_errors

PARTITION_ROWS = FILE_ROWS


@dataclass(frozen=True, slots=True)
class Partition:
    """A day's rows of some nodes. `low`, `high` None: all nodes of the files."""

    day: date
    files: tuple[DataFile, ...]
    rows: int
    low: str | None = None
    high: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it is one file, read unchanged."""
        return len(self.files) == 1 and self.low is None

    def has(self, column: str) -> bool:
        """Some row of the files has a value in `column`."""
        return any(column not in file.empty for file in self.files)


def partitions(
    lake: Lake, table: LakeTable, days: Iterable[date] | None = None, *, rows: int = PARTITION_ROWS
) -> Iterator[Partition]:
    """Yield partitions by day and node of about `rows` rows at most, at least one node each."""
    yield from partitions_of(lake, table, lake.files(table, days), rows=rows)


def partitions_of(
    lake: Lake, table: LakeTable, files: Iterable[DataFile], *, rows: int = PARTITION_ROWS
) -> Iterator[Partition]:
    """Yield the partitions that some files of a table make."""
    by_day: dict[date, list[DataFile]] = {}
    for file in files:
        if file.day is not None and file.rows:
            by_day.setdefault(file.day, []).append(file)
    for day, of_day in sorted(by_day.items()):
        for group in touching(of_day, node_range):
            total = row_count(group)
            if total <= rows or len(group) == 1:
                yield Partition(day, tuple(group), total)
            else:
                yield from _cut(lake, table, day, group, rows)


def read_partition(
    lake: Lake, table: LakeTable, partition: Partition, columns: Sequence[str] | None = None
) -> tuple[pl.DataFrame, int]:
    """Return the partition's rows, sorted, each key once, and how many rows were merged away.

    Errors: LakeError for a missing or damaged file.
    """
    with lake_errors(lake.uri(table)):
        if partition.is_whole:
            return lake.read_files(table, partition.files, columns).collect(), 0
        resolved, merged = resolve(scan_partition(lake, table, partition).collect(), table)
        return (resolved if columns is None else resolved.select(*columns)), merged


def scan_partition(lake: Lake, table: LakeTable, partition: Partition) -> pl.LazyFrame:
    """Return the partition's stored rows, neither sorted nor deduplicated."""
    frame = lake.read_files(table, partition.files)
    if partition.low is None or partition.high is None:
        return frame
    return frame.filter(pl.col("node").is_between(pl.lit(partition.low), pl.lit(partition.high)))


def node_range(file: DataFile) -> tuple[str, str]:
    """Return the first and last node of a file; all nodes if not recorded."""
    return file.low or "", file.high or GREATEST


def _cut(
    lake: Lake, table: LakeTable, day: date, group: Sequence[DataFile], rows: int
) -> Iterator[Partition]:
    """The group as ranges of nodes of about `rows` rows."""
    with lake_errors(lake.uri(table)):
        counts = (
            lake.read_files(table, group, ["node"]).group_by("node").len().sort("node").collect()
        )
    low, high, held = "", "", 0
    for node, count in counts.iter_rows():
        if held and held + count > rows:
            yield _range(day, group, low, high, held)
            low, held = "", 0
        low, high, held = low or node, node, held + count
    if held:
        yield _range(day, group, low, high, held)


def _range(day: date, group: Sequence[DataFile], low: str, high: str, rows: int) -> Partition:
    files = tuple(
        file for file in group if node_range(file)[0] <= high and node_range(file)[1] >= low
    )
    return Partition(day, files, rows, low, high)
