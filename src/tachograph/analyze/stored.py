"""What is stored of many jobs and can be judged anew with other settings, read a part of the jobs at a time."""

from __future__ import annotations

from datetime import date

import polars as pl

from tachograph.analyze.results import read_gpus
from tachograph.lake import Lake
from tachograph.lake.problems import lake_errors
from tachograph.reduce.timelines import timelines_of
from tachograph.schema import Table
from tachograph.summarize.schema import HOST_CHARACTERISTICS, JOB_MINUTES, JOB_NODE_MINUTES

BATCH = 1000  # jobs whose minutes are in memory at a time
_KEY = ("job_key", "node", "minute")


def read_stored(lake: Lake, jobs: pl.DataFrame, *, idle_util: float) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return what is judged of `jobs` (rows of job_summaries): their GPUs, timelines, minutes of nodes.

    Timelines have one row per (job_key, minute), minutes of nodes one per (job_key, node, minute).
    """
    ordered = jobs.sort("start", "job_key")
    parts = [_timelines(lake, ordered.slice(at, BATCH), idle_util) for at in range(0, max(1, ordered.height), BATCH)]
    return read_gpus(lake, jobs), pl.concat(parts), read_nodes(lake, ordered)


def read_nodes(lake: Lake, jobs: pl.DataFrame) -> pl.DataFrame:
    """Return the minutes of the nodes of `jobs`, one row per (job_key, node, minute); none where hosts tell nothing."""
    return _minutes(lake, JOB_NODE_MINUTES, jobs).select(*_KEY, *HOST_CHARACTERISTICS).sort(*_KEY)


def _timelines(lake: Lake, jobs: pl.DataFrame, idle_util: float) -> pl.DataFrame:
    return timelines_of(_minutes(lake, JOB_MINUTES, jobs), idle_util=idle_util)


def _minutes(lake: Lake, table: Table, jobs: pl.DataFrame) -> pl.DataFrame:
    first, last = jobs.select(pl.col("start").min(), pl.col("as_of").max()).row(0)
    days = [day for day in lake.days(table) if first is not None and _within(day, first.date(), last.date())]
    with lake_errors(lake.uri(table)):
        rows = lake.scan(table, days).join(jobs.lazy().select("job_key", "seq"), on=["job_key", "seq"], how="semi")
        return rows.collect()


def _within(day: date, first: date, last: date) -> bool:
    return first <= day <= last
