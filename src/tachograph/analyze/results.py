"""What the last analyses left: the rows that count, read back for reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from typing import Any, TypeVar

import polars as pl

from tachograph.analyze.state import ANALYSES
from tachograph.errors import LakeError
from tachograph.finding import WORTH_KNOWING
from tachograph.lake import Lake
from tachograph.lake.problems import lake_errors
from tachograph.schema import Table
from tachograph.summarize.schema import FINDINGS, JOB_GPUS, JOB_MINUTES, JOB_NODE_MINUTES, JOB_SUMMARIES

ATTEMPTS = 5  # at results that change while they are read
UNFINISHED = timedelta(days=1)  # an analysis that began longer ago and wrote no summaries was killed

T = TypeVar("T")


def of_one_moment(lake: Lake, read: Callable[[], T]) -> T:
    """Return what `read` returns: summaries, and what belongs to them.

    A compaction drops rows that a later analysis superseded. Where both come between reading the summaries and reading
    what belongs to them, it is gone; so when the summaries changed meanwhile, `read` is called again.
    """
    for _ in range(ATTEMPTS - 1):
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
    return _current(lake, FINDINGS, lake.scan(FINDINGS).filter(WORTH_KNOWING), summaries)


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


def _of_one_job(lake: Lake, table: Table, summary: Mapping[str, Any]) -> pl.DataFrame:
    with lake_errors(lake.uri(table)):
        mine = (pl.col("job_key") == summary["job_key"]) & (pl.col("seq") == summary["seq"])
        days = _days(lake, table, summary["start"].date(), summary["as_of"].date())
        return lake.scan(table, days).filter(mine).collect().sort(*table.sort)


def scan_minutes(lake: Lake, table: Table, summaries: pl.DataFrame) -> pl.LazyFrame:
    """Return the rows of these jobs in job_minutes or job_node_minutes, not read yet; of other days nothing is read."""
    if summaries.is_empty():
        return table.empty().lazy()
    first, last = summaries.select(pl.col("start").dt.date().min(), pl.col("as_of").dt.date().max()).row(0)
    counting = summaries.lazy().select("job_key", "seq")
    return lake.scan(table, _days(lake, table, first, last)).join(counting, on=["job_key", "seq"], how="semi")


def _days(lake: Lake, table: Table, first: date, last: date) -> list[date]:
    return [day for day in lake.days(table) if first <= day <= last]


def counting(lake: Lake, now: datetime) -> dict[str, Callable[[pl.LazyFrame], pl.LazyFrame]]:
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


def _current(lake: Lake, table: Table, rows: pl.LazyFrame, summaries: pl.DataFrame) -> pl.DataFrame:
    with lake_errors(lake.uri(table)):
        counting = summaries.lazy().select("job_key", "seq")
        return rows.join(counting, on=["job_key", "seq"], how="semi").collect().sort(*table.sort)
