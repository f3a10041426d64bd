"""Summaries of runs that are none: later accounting named them otherwise, or took their GPUs away.

A run's key holds when it was submitted. A map alone, or an export to the minute, tells less of that than the
accounting that comes later, so the same run may get another key.
"""

from __future__ import annotations

import polars as pl

from tachograph.lake import Lake
from tachograph.lake.problems import lake_errors
from tachograph.lake.resolve import resolve
from tachograph.summarize.schema import JOB_SUMMARIES

ATTEMPTS = 10


def drop_summaries(lake: Lake, gone: pl.DataFrame, *, number: int) -> None:
    """Take the rows of the keys in `gone` (column job_key) out of job_summaries, in one step.

    Only rows of analyses before `number` go: a later one may know of jobs that this one could not.

    Their GPUs, minutes and findings count only beside a summary, so they are gone with it. Where others rewrite the
    table all the time it stays as it is until the next analysis.
    Errors: LakeError when it cannot be written.
    """
    for _ in range(ATTEMPTS):
        files = lake.files(JOB_SUMMARIES)
        with lake_errors(lake.uri(JOB_SUMMARIES)):
            rows = lake.read_files(JOB_SUMMARIES, files).collect()
        left = rows.filter((pl.col("seq") >= number) | ~pl.col("job_key").is_in(gone.get_column("job_key").implode()))
        kept, _ = resolve(left, JOB_SUMMARIES)
        if lake.replace(JOB_SUMMARIES, files, [(None, kept)] if kept.height else []):
            return
