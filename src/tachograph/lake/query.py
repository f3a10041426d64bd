"""The reader of the computed tables: summaries, GPUs, minutes and findings of the analysis that counts for each job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, TypeVar

import polars as pl

from tachograph.catalog.codes import check_codes, known_codes
from tachograph.catalog.errors import LakeError
from tachograph.catalog.tables import (
    ANALYSES,
    FINDINGS,
    JOB_GPUS,
    JOB_MINUTES,
    JOB_NODE_MINUTES,
    JOB_SUMMARIES,
    LakeTable,
)
from tachograph.judge.finding import REPORTED
from tachograph.judge.waste import CAUSE_OF_CLASS
from tachograph.lake.delta import Lake
from tachograph.lake.problems import lake_errors

READ_ATTEMPTS = 5  # at results that change while they are read
UNFINISHED = timedelta(days=1)  # an analysis that began longer ago and wrote no summaries was killed

T = TypeVar("T")


def read_consistently(lake: Lake, read: Callable[[], T]) -> T:
    """Return what `read` returns: summaries, and what belongs to them.

    A compaction drops rows that a later analysis superseded. Where both come between reading the summaries and reading
    what belongs to them, it is gone; so when the summaries changed meanwhile, `read` is called again.
    """
    for _ in range(READ_ATTEMPTS - 1):
        before = lake.version(JOB_SUMMARIES)
        found = read()
        if lake.version(JOB_SUMMARIES) == before:
            return found
    return read()


def read_summaries(lake: Lake) -> pl.DataFrame:
    """Return job_summaries, one row per run of a job, those of the latest analysis of each.

    Errors: LakeError where nothing was analyzed yet.
    """
    if lake.delta(JOB_SUMMARIES) is None and lake.delta(ANALYSES) is None:
        raise LakeError("nothing was analyzed yet", where=lake.location, do="run `tachograph analyze`")
    return lake.latest(JOB_SUMMARIES)


def read_findings(lake: Lake, summaries: pl.DataFrame) -> pl.DataFrame:
    """Return what is worth knowing about these jobs: findings that hold and are no mere facts.

    Rows are those of the analysis their summary is of.
    """
    return _current(lake, FINDINGS, lake.scan(FINDINGS).filter(REPORTED), summaries)


def read_verdicts(lake: Lake, summaries: pl.DataFrame) -> pl.DataFrame:
    """Return everything that was looked for in these jobs: also what does not hold, and what cannot be decided."""
    return _current(lake, FINDINGS, lake.scan(FINDINGS), summaries)


def read_gpus(lake: Lake, summaries: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of job_gpus of these jobs."""
    return _current(lake, JOB_GPUS, lake.scan(JOB_GPUS), summaries)


def read_minutes(lake: Lake, summary: Mapping[str, Any]) -> pl.DataFrame:
    """Return the rows of job_minutes of one job, in order of GPU and minute."""
    return _of_one_job(lake, JOB_MINUTES, summary)


def read_node_minutes(lake: Lake, summary: Mapping[str, Any]) -> pl.DataFrame:
    """Return the rows of job_node_minutes of one job, in order of node and minute; none where hosts tell nothing."""
    return _of_one_job(lake, JOB_NODE_MINUTES, summary)


def _of_one_job(lake: Lake, table: LakeTable, summary: Mapping[str, Any]) -> pl.DataFrame:
    with lake_errors(lake.uri(table)):
        mine = (pl.col("job_key") == summary["job_key"]) & (pl.col("seq") == summary["seq"])
        days = _days(lake, table, summary["start"].date(), summary["as_of"].date())
        return lake.scan(table, days).filter(mine).collect().sort(*table.sort)


def scan_minutes(lake: Lake, table: LakeTable, summaries: pl.DataFrame) -> pl.LazyFrame:
    """Return the rows of these jobs in job_minutes or job_node_minutes, not read yet; of other days nothing is read."""
    if summaries.is_empty():
        return table.empty().lazy()
    first, last = summaries.select(pl.col("start").dt.date().min(), pl.col("as_of").dt.date().max()).row(0)
    counting = summaries.lazy().select("job_key", "seq")
    return lake.scan(table, _days(lake, table, first, last)).join(counting, on=["job_key", "seq"], how="semi")


def _days(lake: Lake, table: LakeTable, first: date, last: date) -> list[date]:
    return [day for day in lake.days(table) if first <= day <= last]


def rows_that_count(lake: Lake, now: datetime) -> dict[str, Callable[[pl.LazyFrame], pl.LazyFrame]]:
    """Return {table: what is left of its rows} for the tables whose rows count only beside their summary.

    Dropped are rows of an analysis older than that of the job's summary, and rows of a newer one, or of a job without
    summary, if it began more than a day before `now`; a younger one may still be at work.
    """
    summaries = lake.latest(JOB_SUMMARIES).lazy().select("job_key", current="seq")
    begun_us = int((now - UNFINISHED).timestamp() * 1e6)  # seq is when an analysis began

    def left(rows: pl.LazyFrame) -> pl.LazyFrame:
        joined = rows.join(summaries, on="job_key", how="left", maintain_order="left")
        superseded = (pl.col("seq") < pl.col("current")).fill_null(value=False)
        current = (pl.col("seq") == pl.col("current")).fill_null(value=False)
        unfinished = ~superseded & (pl.col("seq") > begun_us)
        return joined.filter(current | unfinished).drop("current")

    return {table.name: left for table in (JOB_GPUS, JOB_MINUTES, JOB_NODE_MINUTES, FINDINGS)}


def _current(lake: Lake, table: LakeTable, rows: pl.LazyFrame, summaries: pl.DataFrame) -> pl.DataFrame:
    with lake_errors(lake.uri(table)):
        counting = summaries.lazy().select("job_key", "seq")
        return rows.join(counting, on=["job_key", "seq"], how="semi").collect().sort(*table.sort)


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

    return read_consistently(lake, read)


def _check(lake: Lake, codes: Sequence[str]) -> None:
    if set(known_codes()).issuperset(codes):
        return
    with lake_errors(lake.uri(FINDINGS)):
        stored = lake.scan(FINDINGS).select(pl.col("code").unique().sort()).collect().get_column("code").to_list()
    check_codes(codes, stored)


_COLUMNS = ("job_key", "code", "kind", "verdict", "severity", "begin", "end")


def read_intervals(lake: Lake, summaries: pl.DataFrame, codes: Sequence[str] = ()) -> pl.DataFrame:
    """Return findings of these jobs that say when they hung or had not begun, and those called `codes`.

    Columns: job_key, code, kind, verdict, severity, begin, end. Rows are those of the analysis their summary is of.
    """
    wanted = pl.col("code").is_in([*CAUSE_OF_CLASS, *codes])
    rows = lake.scan(FINDINGS).filter(wanted).select("seq", *_COLUMNS)
    rows = rows.with_columns(pl.col("kind").fill_null("advice"), pl.col("verdict").fill_null("yes"))
    with lake_errors(lake.uri(FINDINGS)):
        counting = summaries.lazy().select("job_key", "seq")
        found = rows.join(counting, on=["job_key", "seq"], how="semi").select(_COLUMNS).collect()
    return found.sort("job_key", "code")
