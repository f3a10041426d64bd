r"""CSV that is safe to open in a spreadsheet or a terminal: no formulas, no control characters.

A text that begins as a formula gets a quote before it (OWASP, "CSV Injection"), and what
`printable` writes out of a text is written out. Numbers stay numbers, also negative ones.
"""

from __future__ import annotations

import polars as pl

from tachograph.catalog.columns import joined_lists
from tachograph.catalog.units import harmless_cell

_PLAIN = r"^[A-Za-z0-9_.][\x20-\x7e]*$"  # of most values


def harmless_cells(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows with harmless texts; lists of texts are joined first.

    >>> harmless_cells(pl.DataFrame({"name": ["=1+1", "a=1", None], "gpus": [-1, 0, 1]})).rows()
    [("'=1+1", -1), ('a=1', 0), (None, 1)]
    """
    return rows.with_columns(
        [_column(rows.get_column(name)) for name, kind in rows.schema.items() if kind == pl.String]
    )


def _column(texts: pl.Series) -> pl.Series:
    """Most values are harmless, and many the same: each other one is looked at once."""
    odd = texts.filter(~texts.str.contains(_PLAIN)).unique().drop_nulls().to_list()
    cells = {text: harmless_cell(text) for text in odd}
    changed = {text: cell for text, cell in cells.items() if cell != text}
    return texts.replace(changed) if changed else texts


def table_csv(rows: pl.DataFrame, *, raw: bool = False, datetime_format: str | None = None) -> str:
    r"""Return rows as CSV: null is empty, lists joined with `+`, texts harmless unless `raw`.

    >>> table_csv(pl.DataFrame({"pipes": [["fp64", "tensor"], []], "name": ["=1", None]}))
    'pipes,name\nfp64+tensor,\'=1\n"",\n'
    """
    joined = joined_lists(rows)
    return (joined if raw else harmless_cells(joined)).write_csv(datetime_format=datetime_format)
