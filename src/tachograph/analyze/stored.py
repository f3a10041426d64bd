"""What is stored of many jobs and can be judged anew with other settings, read a part of the jobs at a time."""

from __future__ import annotations

import polars as pl

from tachograph.analyze.results import read_gpus, scan_minutes
from tachograph.lake import Lake
from tachograph.lake.problems import lake_errors
from tachograph.reduce.timelines import timelines_of
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
    with lake_errors(lake.uri(JOB_NODE_MINUTES)):
        rows = scan_minutes(lake, JOB_NODE_MINUTES, jobs).select(*_KEY, *HOST_CHARACTERISTICS).collect()
    return rows.sort(*_KEY)


def _timelines(lake: Lake, jobs: pl.DataFrame, idle_util: float) -> pl.DataFrame:
    with lake_errors(lake.uri(JOB_MINUTES)):
        return timelines_of(scan_minutes(lake, JOB_MINUTES, jobs).collect(), idle_util=idle_util)
