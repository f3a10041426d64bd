"""Findings of many jobs in short, for filters, tables and counts: what came of what was looked for."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tachograph.analyze.results import of_one_moment, read_summaries
from tachograph.lake import Lake
from tachograph.lake.problems import lake_errors
from tachograph.report.codes import check_codes, known_codes
from tachograph.summarize.schema import FINDINGS

ANSWER = ("job_key", "code", "kind", "verdict", "severity")


def as_judged(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return rows of findings with a kind and a verdict also where an earlier version wrote none: advice that holds."""
    return rows.with_columns(
        pl.col("kind").fill_null("advice"),
        pl.col("verdict").fill_null("yes"),
        pl.col("checks").fill_null("[]"),
        pl.col("needs").fill_null(pl.lit([], dtype=pl.List(pl.String))),
    )


def read_answers(
    lake: Lake, summaries: pl.DataFrame, codes: Sequence[str] = (), *, every: bool = False
) -> pl.DataFrame:
    """Return columns ANSWER of the findings of these jobs that hold; of `codes`, or with `every`, with any verdict.

    Errors: NotFoundError for a code that neither the program knows nor the lake holds.
    """
    _check(lake, codes)
    wanted = pl.lit(value=True) if every else (pl.col("verdict") == "yes") | pl.col("code").is_in(list(codes))
    rows = as_judged(lake.scan(FINDINGS).select("seq", *ANSWER, "checks", "needs")).filter(wanted)
    with lake_errors(lake.uri(FINDINGS)):
        counting = summaries.lazy().select("job_key", "seq")
        found = rows.join(counting, on=["job_key", "seq"], how="semi").select(ANSWER).collect()
    return found.sort("job_key", "code")


def summaries_and_answers(lake: Lake, codes: Sequence[str] = ()) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the summaries of all jobs, and what `read_answers` tells of them, both of one moment of the lake."""

    def read() -> tuple[pl.DataFrame, pl.DataFrame]:
        summaries = read_summaries(lake)
        return summaries, read_answers(lake, summaries, codes)

    return of_one_moment(lake, read)


def _check(lake: Lake, codes: Sequence[str]) -> None:
    if set(known_codes()).issuperset(codes):
        return
    with lake_errors(lake.uri(FINDINGS)):
        stored = lake.scan(FINDINGS).select(pl.col("code").unique().sort()).collect().get_column("code").to_list()
    check_codes(codes, stored)
