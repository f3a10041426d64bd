"""Lists a page at a time: cursors, and the rows behind one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Annotated, Any

import msgspec
import polars as pl

from tachograph.web.answers import TableAnswer
from tachograph.web.cursors import decode_cursor, encode_cursor, no_cursor
from tachograph.web.parameters import Parameters, Word

MOST_ROWS = 10_000  # of one answer of the REST API
RowLimit = Annotated[int, msgspec.Meta(ge=1, le=MOST_ROWS, description="At most so many rows.")]
Cursor = Annotated[Word, msgspec.Meta(description="The cursor of the page before, from its Link header.")]


class Paging(Parameters, frozen=True, kw_only=True):
    """Which part of a list."""

    limit: RowLimit = 100
    after: Cursor = ""


def page_of(rows: pl.DataFrame, key: Sequence[str], paging: Paging) -> TableAnswer:
    """Return the part of `rows` that is requested; they are in ascending order of `key`, which is unique, nulls first.

    >>> page_of(pl.DataFrame({"gpu": [0, 1, 2]}), ["gpu"], Paging(limit=2)).rows["gpu"].to_list()
    [0, 1]

    Errors: UsageError for what is no cursor of these rows.
    """
    left = rows if not paging.after else rows.filter(_behind(rows, key, decode_cursor(paging.after)))
    page = left.head(paging.limit)
    cursor = encode_cursor(*page.select(key).row(-1)) if left.height > page.height else ""
    return TableAnswer(page, cursor, rows.height)


def _behind(rows: pl.DataFrame, key: Sequence[str], values: Sequence[Any]) -> pl.Expr:
    """True for rows behind the one that has `values` in the columns `key`, whether or not it is still there."""
    if len(values) != len(key):
        raise no_cursor()
    try:
        of_type = [pl.Series(name, [value], rows.schema[name]) for name, value in zip(key, values, strict=True)]
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        raise no_cursor() from None

    def behind(rest: pl.Expr, one: pl.Series) -> pl.Expr:
        column, value = pl.col(one.name), one.item()
        after = column.is_not_null() if value is None else column > pl.lit(value, one.dtype)
        return after.fill_null(value=False) | (column.eq_missing(pl.lit(value, one.dtype)) & rest)

    return reduce(behind, reversed(of_type), pl.lit(value=False))
