"""Pagination of lists: cursors, and the rows after one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Annotated, Any

import msgspec
import polars as pl

from tachograph.annexes.serve.answers import FormatChoice, TableAnswer
from tachograph.annexes.serve.cursors import decode_cursor, encode_cursor, no_cursor
from tachograph.api.parameters import Word
from tachograph.catalog.tables import LakeTable
from tachograph.lake.delta import Lake
from tachograph.lake.problems import lake_errors
from tachograph.lake.query import read_consistently, scan_rows

MOST_ROWS = 10_000  # of one answer of the REST API
RowLimit = Annotated[int, msgspec.Meta(ge=1, le=MOST_ROWS, description="Maximum number of rows.")]
Cursor = Annotated[
    Word, msgspec.Meta(description="Cursor from the Link header of the previous page.")
]


class Paging(FormatChoice, frozen=True, kw_only=True):
    """Which part of a list, and how it is written."""

    limit: RowLimit = 100
    after: Cursor = ""


def page_of(rows: pl.DataFrame, key: Sequence[str], paging: Paging) -> TableAnswer:
    """Return the requested part of `rows`, which are sorted by the unique `key`.

    >>> page_of(pl.DataFrame({"gpu": [0, 1, 2]}), ["gpu"], Paging(limit=2)).rows["gpu"].to_list()
    [0, 1]

    Errors: UsageError for what is no cursor of these rows.
    """
    left = (
        rows if not paging.after else rows.filter(_behind(rows, key, decode_cursor(paging.after)))
    )
    page = left.head(paging.limit)
    cursor = encode_cursor(*page.select(key).row(-1)) if left.height > page.height else ""
    return TableAnswer(page, cursor, rows.height)


def page_of_minutes(
    lake: Lake, table: LakeTable, jobs: pl.DataFrame, paging: Paging
) -> TableAnswer:
    """Return the requested page of a table by minute, sorted by key, for `jobs`.

    Only the rows of GPUs, or nodes, that are in that part are read whole. Errors: LakeError,
    UsageError as `page_of`.
    """

    def read() -> TableAnswer:
        rows, of_unit = scan_rows(lake, table, jobs), list(table.key[:-1])
        with lake_errors(lake.uri(table)):
            units = rows.group_by(of_unit).len("rows").collect(engine="streaming").sort(of_unit)
            last = decode_cursor(paging.after)[:-1] if paging.after else None
            behind = pl.lit(value=True) if last is None else _behind(units, of_unit, last)
            begun = units.filter(~behind).tail(1)  # the cursor is within it, or after its last row
            left = pl.concat([begun, units.filter(behind)])
            most = int(begun.get_column("rows").sum()) + paging.limit
            chosen = left.filter(pl.col("rows").cum_sum().shift(1, fill_value=0) <= most).select(
                of_unit
            )
            near = [
                pl.col(name).is_in(chosen.get_column(name).unique().implode())
                for name in ("job_key", "node")
            ]
            found = (
                rows.filter(*near)
                .join(chosen.lazy(), on=of_unit, how="semi", nulls_equal=True)
                .collect()
            )
        return replace(
            page_of(found.sort(*table.key), table.key, paging),
            matching=int(units.get_column("rows").sum()),
        )

    return read_consistently(lake, read)


def _behind(rows: pl.DataFrame, key: Sequence[str], values: Sequence[Any]) -> pl.Expr:
    """Return whether rows sort after `values` in the columns `key`, present or not."""
    if len(values) != len(key):
        raise no_cursor()
    try:
        of_type = [
            pl.Series(name, [value], rows.schema[name])
            for name, value in zip(key, values, strict=True)
        ]
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        raise no_cursor() from None

    def behind(rest: pl.Expr, one: pl.Series) -> pl.Expr:
        column, value = pl.col(one.name), one.item()
        after = column.is_not_null() if value is None else column > pl.lit(value, one.dtype)
        return after.fill_null(value=False) | (column.eq_missing(pl.lit(value, one.dtype)) & rest)

    return reduce(behind, reversed(of_type), pl.lit(value=False))
