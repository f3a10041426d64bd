"""Runs: each time a job ran, from accounting, and from maps alone where the accounting knows nothing of a job."""

from __future__ import annotations

from datetime import datetime
from fnmatch import fnmatchcase

import polars as pl

from tachograph.config import Slurm
from tachograph.schema import JOBS, TIME

COARSE_S = 60.0


def build_runs(jobs: pl.DataFrame, allocations: pl.DataFrame, *, slurm: Slurm, now: datetime) -> pl.DataFrame:
    """Return one row per run of a job that has started: the columns of `jobs`, `run` (0, 1, ...) and `job_key`.

    `end` null becomes `now` in `until`, the instant up to which the run is looked at; `end` itself stays null.
    Runs that began and ended at the same instant are kept: they own no samples. Jobs that only a map names get
    a row whose accounting columns are null.
    """
    known = _merge_coarse(jobs.drop("seq"))
    started = known.filter(pl.col("start").is_not_null())
    mapped = _from_maps(allocations, known)
    runs = pl.concat([started, mapped], how="diagonal").select(*started.columns)
    runs = runs.with_columns(
        until=pl.coalesce("end", pl.max_horizontal(pl.lit(now, dtype=TIME), "start")),
        exclusive=_exclusive(runs, slurm),
        display_id=pl.coalesce("display_id", "job_id"),
        job_key=pl.concat_str(
            pl.col("cluster").fill_null(""),
            pl.col("job_id"),
            pl.coalesce("submit", "start").dt.epoch("s"),
            separator=":",
        ),
    )
    return runs.sort("job_key").with_row_index("run").with_columns(pl.col("run").cast(pl.Int32))


def _merge_coarse(jobs: pl.DataFrame) -> pl.DataFrame:
    """Records of one run whose times were written to the minute, joined with its other records.

    An export to the minute and the accounting to the second differ in `submit`; they are one run when they
    agree to the minute. A record that has an end counts before one that has none, then the finer one.
    """
    coarse = jobs.filter(pl.col("time_precision_s") >= COARSE_S).select("job_id").unique()
    doubtful = jobs.join(coarse, on="job_id", how="semi")
    if doubtful.height < 2:
        return jobs
    rest = [name for name in JOBS.schema if name in jobs.columns and name not in ("job_id", "submit", "cluster")]
    merged = (
        doubtful.with_columns(minute=pl.coalesce("submit", "start").dt.truncate("1m"))
        .sort(pl.col("end").is_not_null(), -pl.col("time_precision_s").fill_null(0), maintain_order=True)
        .group_by("job_id", "minute", maintain_order=True)
        .agg(pl.col(name).drop_nulls().last() for name in ("cluster", "submit", *rest))
        .drop("minute")
    )
    return pl.concat([jobs.join(coarse, on="job_id", how="anti"), merged.select(*jobs.columns)])


def _from_maps(allocations: pl.DataFrame, jobs: pl.DataFrame) -> pl.DataFrame:
    """Runs of jobs that only maps know, from the first to the last instant a map gives."""
    maps = allocations.filter(pl.col("start").is_not_null()).with_row_index("row")
    accounted = maps.join(jobs.select("job_id", theirs="cluster").unique(), on="job_id", how="inner")
    accounted = accounted.filter((pl.col("cluster") == pl.col("theirs")).fill_null(value=True))
    unknown = maps.join(accounted, on="row", how="anti")
    return (
        unknown.group_by("cluster", "job_id")
        .agg(
            start=pl.col("start").min(),
            end=pl.when(pl.col("end").is_null().any()).then(None).otherwise(pl.col("end").max()),
            nodes=pl.col("node").n_unique().cast(pl.Int64),
            gpus=pl.when(pl.col("gpu").is_not_null().all())
            .then(pl.struct("node", "gpu", "mig").n_unique())
            .cast(pl.Int64),
        )
        .with_columns(elapsed_s=(pl.col("end") - pl.col("start")).dt.total_milliseconds() / 1000)
    )


def _exclusive(runs: pl.DataFrame, slurm: Slurm) -> pl.Expr:
    """Configured names of partitions and QOS first, then what the accounting says."""
    shared, alone = _matching(runs, slurm.shared), _matching(runs, slurm.exclusive)
    return pl.when(shared).then(pl.lit(value=False)).when(alone).then(pl.lit(value=True)).otherwise("exclusive")


def _matching(runs: pl.DataFrame, patterns: tuple[str, ...]) -> pl.Expr:
    matched = pl.lit(value=False)
    for column in ("partition", "qos"):
        names = runs.get_column(column).drop_nulls().unique().to_list()
        fits = [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
        matched = matched | pl.col(column).is_in(fits).fill_null(value=False)
    return matched
