"""Compaction: rewrite each day's samples as few sorted, disjoint files, atomically per day."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import date
from functools import partial
from itertools import accumulate
from operator import itemgetter
from types import MappingProxyType

import polars as pl

from tachograph.catalog.tables import REJECTS, LakeTable
from tachograph.lake.conform import resolve, split_apart
from tachograph.lake.data_files import DataFile, row_count
from tachograph.lake.delta import Lake, merged_name
from tachograph.lake.partitions import PARTITION_ROWS, partitions_of, scan_partition
from tachograph.lake.problems import lake_errors

ENOUGH_ROWS = 1 << 17  # a file with this many rows is not rewritten
FEW_FILES = 8  # a table that is read whole is rewritten once it has more
# Rows read at a time from a table with large rows: at most a few hundred MiB.
LARGE_ROWS = 64
# Rows in memory at a time of other tables that are not divided by day: a summary has about 2,500
# bytes, a row of a GPU 800, a finding 500.
ROWS_TOGETHER = 1 << 18
REPLACE_ATTEMPTS = 5  # at what another process replaces at the same time

# rows of a table -> those that may still be current
Counting = Callable[[pl.LazyFrame], pl.LazyFrame]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Compaction:
    """Result of compacting a table: days, files and rows before and after, merged, dropped.

    rows_before = rows_after + duplicates + superseded + completing.
    """

    table: str
    days: int
    files_before: int
    files_after: int
    rows_before: int
    rows_after: int
    duplicates: int = 0
    superseded: int = 0
    completing: int = 0  # rows with other counters of the same samples


def compact(
    lake: Lake,
    tables: Iterable[LakeTable],
    *,
    rows: int = PARTITION_ROWS,
    rows_together: int = ROWS_TOGETHER,
    counting: Mapping[str, Counting] = MappingProxyType({}),
    vacuum_hours: int | None = None,
    progress: Progress | None = None,
) -> list[Compaction]:
    """Rewrite what needs it in each table, and delete files replaced more than `vacuum_hours` ago.

    `rows`, `rows_together`: at most in memory at a time, of a day and of computed tables without
    days. `counting`: for tables whose rows are superseded by something else than their key, what is
    left of them. Rows of one key and different `seq` are not merged there: only who reads them
    knows which one counts. Of a table whose rows are large a part of the small files is rewritten
    at a time, and large files of computed tables only where rows in them no longer count. So memory
    and what is written depend on what is new, not on the age of the lake. Killed at any moment, a
    day is either as before or done. Nothing to do is nothing written.
    """
    done = []
    for table in tables:
        if lake.delta(table) is None:
            continue
        current_only = counting.get(table.name)
        compacted = table
        if current_only is not None:  # rows of several analyses of a job stay side by side
            compacted = replace(table, key=(*table.key, "seq"), sort=(*table.sort, "seq"))
        work = _TableCompaction(lake, compacted, rows, rows_together, current_only)
        done.append(work.by_day(progress) if table.by_day else work.whole())
        if vacuum_hours is not None:
            lake.vacuum(table, vacuum_hours)
    return done


@dataclass(frozen=True, slots=True)
class _TableCompaction:
    """Compaction of one table."""

    lake: Lake
    table: LakeTable
    rows: int
    rows_together: int
    counting: Counting | None

    def is_needed(self, day: date) -> bool:
        """Return whether the day's files overlap, are too small, or hold superseded rows."""
        files = self.lake.files(self.table, [day])
        if any(
            not part.is_whole
            for part in partitions_of(self.lake, self.table, files, rows=self.rows)
        ):
            return True
        fewest = max(1, -(-row_count(files) // self.rows))
        small = len(files) > 2 * fewest and row_count(files) < len(files) * ENOUGH_ROWS
        return small or self._is_superseded(files)

    def by_day(self, progress: Progress | None) -> Compaction:
        every = self.lake.days(self.table)
        count_merged(self.lake, self.table, every)
        days = [day for day in every if self.is_needed(day)]
        done = []
        for count, day in enumerate(days):
            done += [one for one in [self._one_day(day)] if one is not None]
            if progress:
                progress(f"compact {self.table.name}", count + 1, len(days))
        return _sum(self.table, done)

    def whole(self) -> Compaction:
        for _ in range(REPLACE_ATTEMPTS):
            files = self._to_rewrite(self.lake.files(self.table))
            if not files:
                break
            written: list[int] = []
            merged: list[int] = []
            repeated: list[int] = []
            rows = self._rewritten_parts(files, written, merged, repeated)
            if self.lake.replace(self.table, files, rows):
                return _done(self.table, 0, files, written, sum(merged), sum(repeated))
        files = self.lake.files(self.table)
        return Compaction(
            self.table.name, 0, len(files), len(files), row_count(files), row_count(files)
        )

    def _to_rewrite(self, files: Sequence[DataFile]) -> Sequence[DataFile]:
        """Return the files to rewrite together: none, the small ones and those with rows that no
        longer count, or all of a table whose keys alone say which rows count.
        """
        small = [file for file in files if file.rows < self.rows_together // 2]
        if self.table.group_rows is not None:
            together = self._together(files)
            is_needed = len(together) > FEW_FILES or self._is_superseded(together)
            return together if is_needed else ()
        if self.counting is None:
            several = len(files) - _most_disjoint(files)
            return files if max(len(small), several) > FEW_FILES else ()
        large = [file for file in files if file.rows >= self.rows_together // 2]
        stale = [file for file in large if self._is_superseded([file])]
        # Of a table with two files for the same jobs, one is small beside each large one.
        small_beside_large = 0 if self.table.apart is None else len(large)
        if stale or len(small) > FEW_FILES + small_beside_large or self._is_superseded(small):
            return [*small, *stale]
        return ()

    def _rewritten_parts(
        self,
        files: Sequence[DataFile],
        written: list[int],
        merged: list[int],
        repeated: list[int],
    ) -> Iterator[tuple[date | None, pl.DataFrame]]:
        """The rows of some files, resolved, some jobs at a time where they are many.

        Appends to `written`, `merged` and `repeated` what `_rewritten` does.
        """
        for rows in self._parts(files):
            frame, away, twice = self._read(rows)
            merged.append(away)
            repeated.append(twice)
            for part in split_apart(frame, self.table):
                written.append(part.height)
                yield None, part

    def _parts(self, files: Sequence[DataFile]) -> Iterator[pl.LazyFrame]:
        """The rows of some files, at most about `rows_together` in a part, whole jobs in each."""
        rows = self.lake.read_files(self.table, files)
        total = row_count(files)
        is_of_jobs = "job_key" in self.table.key and not self.table.completes
        if not is_of_jobs or total <= self.rows_together:
            yield rows
            return
        with lake_errors(self.lake.uri(self.table)):
            per_job = rows.group_by("job_key").agg(rows=pl.len()).collect(engine="streaming")
        rows_per_part = total / -(-total // self.rows_together)
        before = pl.col("rows").cum_sum() - pl.col("rows")
        bounds = (
            per_job.sort("job_key")
            .group_by(part=(before / rows_per_part).floor(), maintain_order=True)
            .agg(first=pl.col("job_key").min(), last=pl.col("job_key").max())
        )
        for first, last in bounds.select("first", "last").iter_rows():
            yield rows.filter(pl.col("job_key").is_between(pl.lit(first), pl.lit(last)))

    def _together(self, files: Sequence[DataFile]) -> Sequence[DataFile]:
        """Return the files to rewrite together: all, or the smallest ones if rows are large."""
        if self.table.group_rows is None:
            return files
        smallest = sorted(files, key=lambda file: file.rows)
        rows = accumulate(file.rows for file in smallest)
        return [file for file, total in zip(smallest, rows, strict=True) if total <= LARGE_ROWS]

    def _one_day(self, day: date) -> Compaction | None:
        """Rewrite a day; None where another process did it."""
        for _ in range(REPLACE_ATTEMPTS):
            if not self.is_needed(day):
                break
            files = self.lake.files(self.table, [day])
            name = merged_name(self.table, day)
            written: list[int] = []
            merged: list[int] = []
            repeated: list[int] = []
            rows = self._rewritten(day, files, written, merged, repeated)
            if self.lake.replace(self.table, files, rows, count=partial(_total, name, repeated)):
                count_merged(self.lake, self.table, [day])
                return _done(self.table, 1, files, written, sum(merged), sum(repeated))
        return None

    def _rewritten(
        self,
        day: date,
        files: Sequence[DataFile],
        written: list[int],
        merged: list[int],
        repeated: list[int],
    ) -> Iterator[tuple[date | None, pl.DataFrame]]:
        """The day's partitions, resolved; neighbours that are small together.

        Appends to `written` the rows of each file, to `merged` the rows merged away in each
        partition, to `repeated` those of them that repeat others.
        """
        held: list[pl.DataFrame] = []
        for part in partitions_of(self.lake, self.table, files, rows=self.rows):
            frame, away, twice = self._read(scan_partition(self.lake, self.table, part))
            merged.append(away)
            repeated.append(twice)
            if held and sum(map(len, held)) + frame.height > self.rows:
                written.append(sum(map(len, held)))
                yield day, pl.concat(held)
                held = []
            held += [frame] if frame.height else []
        if held:
            written.append(sum(map(len, held)))
            yield day, pl.concat(held)

    def _read(self, rows: pl.LazyFrame) -> tuple[pl.DataFrame, int, int]:
        """The rows, resolved; how many were merged away, and how many of these repeat others."""
        with lake_errors(self.lake.uri(self.table)):
            stored = (rows if self.counting is None else self.counting(rows)).collect()
        resolved, repeated = resolve(stored, self.table, repeats=True)
        return resolved, stored.height - resolved.height, repeated

    def _is_superseded(self, files: Sequence[DataFile]) -> bool:
        """True when some rows no longer count."""
        if self.counting is None or not files:
            return False
        with lake_errors(self.lake.uri(self.table)):
            current = (
                self.counting(self.lake.read_files(self.table, files))
                .select(pl.len())
                .collect()
                .item()
            )
        return int(current) < row_count(files)


def _done(
    table: LakeTable,
    days: int,
    files: Sequence[DataFile],
    written: Sequence[int],
    merged: int,
    repeated: int,
) -> Compaction:
    before, after = row_count(files), sum(written)
    superseded = before - after - merged
    return Compaction(
        table.name,
        days,
        len(files),
        len(written),
        before,
        after,
        repeated,
        superseded,
        merged - repeated,
    )


def _sum(table: LakeTable, days: Iterable[Compaction]) -> Compaction:
    numbers = [astuple(day)[1:] for day in days]
    return Compaction(table.name, *(map(sum, zip(*numbers, strict=True)) if numbers else [0] * 8))


def _total(name: str, merged: Sequence[int]) -> tuple[str, int]:
    """Return a day's mark, and the increase to it."""
    return name, sum(merged)


def count_merged(lake: Lake, table: LakeTable, days: Iterable[date]) -> None:
    """Count rows merged on some days in the rejects, also those of a killed compaction."""
    merged, counted = lake.delta(table), lake.delta(REJECTS)
    for day in days:
        name = merged_name(table, day)
        total = 0 if merged is None else merged.transaction_version(name) or 0
        before = 0 if counted is None else counted.transaction_version(name) or 0
        if total > before:
            row = {
                "chunk": f"{name}:{total}",
                "source": "compact",
                "origin": str(day),
                "target": table.name,
                "reason": "duplicate",
                "removed": total - before,
            }
            frame = pl.DataFrame([row], schema=REJECTS.row_schema)
            lake.append(REJECTS, frame, app_id=name, mark=total, after=before)


def _most_disjoint(files: Sequence[DataFile]) -> int:
    """How many files, at most, have no key between the least and greatest of another of them."""
    greatest, count = "", 0
    for low, high in sorted((file.keys for file in files if file.keys), key=itemgetter(1)):
        if low > greatest:
            greatest, count = high, count + 1
    return count
