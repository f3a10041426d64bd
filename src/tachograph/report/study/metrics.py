"""The metrics of the jobs of a study as its settings define them: windows of imbalance, variant, pipes in use."""

from __future__ import annotations

import polars as pl

from tachograph.report.study.report import Settings
from tachograph.summarize.jobs import used_pipes
from tachograph.summarize.variants import as_in_notebooks


def as_defined(jobs: pl.DataFrame, settings: Settings, windows: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return rows of job_summaries with metrics as the settings define them.

    `windows`: one row per job_key with the columns that depend on the window (`spatial_imbalance` of
    summarize.windows_of_minutes), where it is not the one that the jobs were summarized with.
    `pipes` are judged anew in either variant: the percentile is that of the jobs of the study.
    """
    if windows is not None:
        jobs = jobs.update(windows, on="job_key", how="left", include_nulls=True)
    if settings.variant == "notebooks":
        return as_in_notebooks(jobs, settings.analysis)
    return used_pipes(jobs, jobs, analysis=settings.analysis)
