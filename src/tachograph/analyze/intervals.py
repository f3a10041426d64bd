"""Findings in short, with their intervals: what the ledger needs of them, and filters."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tachograph.lake import Lake
from tachograph.lake.problems import lake_errors
from tachograph.summarize.schema import FINDINGS
from tachograph.waste.ledger import CLASSES

_COLUMNS = ("job_key", "code", "kind", "verdict", "severity", "begin", "end")


def read_intervals(lake: Lake, summaries: pl.DataFrame, codes: Sequence[str] = ()) -> pl.DataFrame:
    """Return findings of these jobs that say when they hung or had not begun, and those called `codes`.

    Columns: job_key, code, kind, verdict, severity, begin, end. Rows are those of the analysis their summary is of.
    """
    wanted = pl.col("code").is_in([*CLASSES, *codes])
    rows = lake.scan(FINDINGS).filter(wanted).select("seq", *_COLUMNS)
    rows = rows.with_columns(pl.col("kind").fill_null("advice"), pl.col("verdict").fill_null("yes"))
    with lake_errors(lake.uri(FINDINGS)):
        counting = summaries.lazy().select("job_key", "seq")
        found = rows.join(counting, on=["job_key", "seq"], how="semi").select(_COLUMNS).collect()
    return found.sort("job_key", "code")
