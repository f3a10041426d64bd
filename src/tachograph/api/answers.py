"""Answers of endpoints, whichever annex gives them: rows a page at a time, or one object."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import polars as pl

from tachograph.api.parameters import Parameters, Word
from tachograph.catalog.errors import UsageError

FormatName = Literal["json", "csv", "parquet"]
MOST_ROWS = 10_000  # of one answer of the REST API
RowLimit = Annotated[int, msgspec.Meta(ge=1, le=MOST_ROWS, description="Maximum number of rows.")]
Cursor = Annotated[
    Word, msgspec.Meta(description="Cursor from the Link header of the previous page.")
]
CursorValue: TypeAlias = str | int | float | None


@dataclass(frozen=True, slots=True)
class TableAnswer:
    """Rows; `cursor`: of the next page, "" on the last; `matching`: total rows.

    documents: columns that hold JSON, which are values in formats that have objects.
    """

    rows: pl.DataFrame
    cursor: str = ""
    matching: int | None = None
    documents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ObjectAnswer:
    """One object. `rows`: its table for tabular formats, or None."""

    values: Mapping[str, Any]
    status: int = 200
    rows: pl.DataFrame | None = None


Answer: TypeAlias = TableAnswer | ObjectAnswer


class FormatChoice(Parameters, frozen=True, kw_only=True):
    """Format of an answer."""

    format: (
        Annotated[FormatName, msgspec.Meta(description="The format; overrides the header Accept.")]
        | None
    ) = None
    fields: Annotated[
        Word,
        msgspec.Meta(
            description="Only these columns or keys, separated by commas; all where empty."
        ),
    ] = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Selected fields, once each; none: all."""
        return tuple(dict.fromkeys(name for name in map(str.strip, self.fields.split(",")) if name))


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
        rows
        if not paging.after
        else rows.filter(rows_behind(rows, key, decode_cursor(paging.after)))
    )
    page = left.head(paging.limit)
    cursor = encode_cursor(*page.select(key).row(-1)) if left.height > page.height else ""
    return TableAnswer(page, cursor, rows.height)


def rows_behind(rows: pl.DataFrame, key: Sequence[str], values: Sequence[Any]) -> pl.Expr:
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


def encode_cursor(*values: Any) -> str:
    """Return the cursor of values.

    >>> decode_cursor(encode_cursor("sim:1:2", None, 3))
    ['sim:1:2', None, 3]
    """
    return base64.urlsafe_b64encode(msgspec.json.encode(values)).decode().rstrip("=")


def decode_cursor(cursor: str) -> list[CursorValue]:
    """Return the values of a cursor. Errors: UsageError if it is malformed."""
    try:
        written = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(written, type=list[CursorValue])
    except (ValueError, binascii.Error, msgspec.DecodeError):
        raise no_cursor() from None


def no_cursor() -> UsageError:
    """Return the error for a malformed cursor."""
    return UsageError("invalid cursor", do="use the cursor of the previous answer, or leave it out")
