"""The current rows of a table of jobs, selected during the scan, so that few are kept in memory.

Of rows with one key the last one replaces the others. So what no longer counts is found by keys
alone, and a condition goes down to the files, whose statistics skip what cannot meet it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import polars as pl

from tachograph.catalog.tables import LakeTable
from tachograph.lake.conform import precedence, resolve
from tachograph.lake.data_files import GREATEST, DataFile, touching

FEW_KEYS = 200  # whose files are chosen one by one
_KEY, _SEQ, _LAST = "job_key", "seq", "last seq of the key"


class FileReader(Protocol):
    """What reads files of tables: a lake."""

    def files(self, table: LakeTable) -> list[DataFile]:
        """Return the files of a table."""
        ...

    def read_files(
        self, table: LakeTable, files: Sequence[DataFile], columns: Sequence[str] | None = None
    ) -> pl.LazyFrame:
        """Return the rows of some files as a lazy frame."""
        ...


def read_current(
    lake: FileReader,
    table: LakeTable,
    columns: Sequence[str] | None = None,
    keys: Iterable[str] | None = None,
    where: pl.Expr | None = None,
) -> pl.DataFrame:
    """Return one row per key in table order; see `Lake.latest`. Errors: those of `scan_current`."""
    names = tuple(table.schema) if columns is None else columns
    requested = None if keys is None else list(keys)
    files = lake.files(table)
    candidates = files if requested is None else files_of_keys(files, requested)
    rows = (
        lake.read_files(table, candidates)
        if where is None
        else scan_current(lake, table, files, where)
    )
    if requested is not None:
        rows = rows.filter(pl.col(_KEY).is_in(requested))
    deciding = [name for order in precedence(table) for name in order.meta.root_names()]
    rows = rows.select(list(dict.fromkeys((*table.key, *table.sort, *names, *deciding))))
    current = rows.collect() if where is None else rows.collect(engine="streaming")
    return resolve(current, table)[0].select(names)


def scan_current(
    lake: FileReader, table: LakeTable, files: Sequence[DataFile], where: pl.Expr
) -> pl.LazyFrame:
    """Return the current rows that meet a condition as a lazy frame, in no order.

    `files`: all files of the table. Null never meets it. Errors: ValueError for a table of another
    key, or whose rows complete each other; LakeError when collected inside `lake_errors`.
    """
    if table.key != (_KEY,) or table.completes:
        raise ValueError(f"rows of {table.name} do not replace each other by {_KEY}")
    rows = lake.read_files(table, files).filter(where)
    repeated = _repeated(lake, table, files)
    if repeated.is_empty():
        return rows
    counts = pl.col(_LAST).is_null() | (pl.col(_SEQ) == pl.col(_LAST))
    return rows.join(repeated.lazy(), on=_KEY, how="left").filter(counts).drop(_LAST)


def files_of_keys(files: Sequence[DataFile], keys: Sequence[str]) -> list[DataFile]:
    """Return the files that may hold some keys, by each key if few, else by their range."""
    if not keys:
        return []
    if len(keys) <= FEW_KEYS:
        return [file for file in files if file.may_name_any(keys)]
    return files_between(files, min(keys), max(keys))


def files_between(files: Sequence[DataFile], least: str, greatest: str) -> list[DataFile]:
    """Return the files that may have rows of a key from `least` to `greatest`."""
    return [
        file
        for file in files
        if file.keys is None or (file.keys[0] <= greatest and file.keys[1] >= least)
    ]


def _repeated(lake: FileReader, table: LakeTable, files: Sequence[DataFile]) -> pl.DataFrame:
    """Return keys that are in more than one file, with the greatest seq; compared by hash."""
    groups = touching(files, lambda file: file.keys or ("", GREATEST))
    together = [file for group in groups if len(group) > 1 for file in group]
    rows = lake.read_files(table, together, (_KEY, _SEQ))
    if not together:
        return rows.select(_KEY, pl.col(_SEQ).alias(_LAST)).collect()
    hashes = rows.select(pl.col(_KEY).hash()).collect(engine="streaming").to_series()
    twice = hashes.filter(hashes.is_duplicated()).unique()
    if twice.is_empty():
        return pl.DataFrame(schema={_KEY: pl.String, _LAST: pl.Int64})
    mine = rows.filter(pl.col(_KEY).hash().is_in(twice.implode()))
    return mine.group_by(_KEY).agg(pl.col(_SEQ).max().alias(_LAST)).collect(engine="streaming")
