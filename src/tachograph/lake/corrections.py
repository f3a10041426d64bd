"""Rows that were read with a wrong setting are replaced by those of another reading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date

import polars as pl

from tachograph.catalog.errors import LakeError
from tachograph.catalog.tables import TABLES, LakeTable
from tachograph.lake.data_files import DataFile
from tachograph.lake.delta import Lake
from tachograph.lake.problems import lake_errors

ATTEMPTS = 5  # while another process rewrites the table


def stale_keys(before: pl.DataFrame, after: pl.DataFrame, table: LakeTable) -> pl.DataFrame:
    """Return the keys of rows that only the earlier of two readings of the same files has."""
    key = list(table.key)
    return before.select(key).unique().join(after.select(key), on=key, how="anti", nulls_equal=True)


def remove_keys(lake: Lake, keys: Mapping[str, pl.DataFrame]) -> Mapping[str, int]:
    """Remove the rows with these keys, each table in one commit; return {table: rows removed}.

    Errors: LakeError, also where another process keeps rewriting a table.
    """
    return {name: _remove(lake, TABLES[name], of_table) for name, of_table in keys.items()}


def _remove(lake: Lake, table: LakeTable, keys: pl.DataFrame) -> int:
    if keys.is_empty():
        return 0
    for _ in range(ATTEMPTS):
        affected: list[DataFile] = []
        removed = 0
        for file in lake.files(table):
            with lake_errors(lake.uri(table)):
                rows = lake.read_files(table, [file], list(table.key)).collect()
            stale = rows.join(keys, on=list(table.key), how="semi", nulls_equal=True).height
            if stale:
                affected.append(file)
                removed += stale
        if not affected or lake.replace(
            table, affected, _remaining_rows(lake, table, affected, keys)
        ):
            return removed
    raise LakeError(
        "other processes keep rewriting the table",
        where=lake.uri(table),
        do="stop them, then run it again",
    )


def _remaining_rows(
    lake: Lake, table: LakeTable, files: list[DataFile], keys: pl.DataFrame
) -> Iterator[tuple[date | None, pl.DataFrame]]:
    for file in files:
        with lake_errors(lake.uri(table)):
            rows = lake.read_files(table, [file]).collect()
        rest = rows.join(
            keys, on=list(table.key), how="anti", nulls_equal=True, maintain_order="left"
        )
        if rest.height:
            yield file.day, rest
