"""The report of one job, from the tables of the last analysis."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import polars as pl

from tachograph.api.advice import read_partition_facts
from tachograph.catalog.config import Configuration
from tachograph.catalog.doors import annex_function
from tachograph.catalog.tables import JOB_SUMMARIES, PROFILES
from tachograph.judge.advice.bounds import LEAST_S
from tachograph.judge.advice.usual import USUAL_COLUMNS, unlike_usual
from tachograph.judge.steps import NODE_MEMORY_COLUMNS, job_steps, node_memory_mib
from tachograph.lake.delta import Lake
from tachograph.lake.query import (
    read_consistently,
    read_evidence,
    read_gpus,
    read_job_row,
    read_minutes,
    read_steps,
    read_summaries,
    read_verdicts,
)
from tachograph.report.job import JobReport, build_job_report
from tachograph.report.job_kernels import NO_KERNELS, JobKernels
from tachograph.report.next_time import HostMemory, may_change_memory

# by which jobs are alike, and what is recorded of those that are
_ALIKE = (
    *("job_key", "seq", "cluster", "user", "partition", "name", "gpus", "nodes"),
    *("state", "start", "as_of", "mem_requested_mib", *USUAL_COLUMNS),
)
_LAST_RUNS = 20  # of a job group, whose steps are read


def read_job(
    lake: Lake,
    job: str,
    *,
    now: datetime,
    configuration: Configuration,
    cluster: str | None = None,
    run: int | None = None,
) -> JobReport:
    """Return the report of job `job` (see choose_job), by default of its last run.

    `now`: when the page was made; `configuration`: its time zone, and when a step is idle. All data
    are of one analysis. Errors: LakeError before the first analysis; those of choose_job.
    """

    def read() -> JobReport:
        chosen = read_job_row(lake, job, cluster=cluster, run=run)
        mine = pl.DataFrame([chosen.row], schema=JOB_SUMMARIES.schema)
        minutes = read_minutes(lake, mine)
        same, own_steps = (
            read_summaries(lake, _ALIKE, where=_same_jobs(chosen.row)),
            read_steps(lake, mine),
        )
        own_peak = node_memory_mib(own_steps).get(chosen.row["job_key"])
        return build_job_report(
            chosen.row,
            read_gpus(lake, mine),
            minutes,
            read_verdicts(lake, mine),
            now,
            zone_name=configuration.site.time_zone,
            steps=job_steps(
                chosen.row, own_steps, minutes, idle_util=configuration.thresholds.idle_util
            ),
            other_runs=chosen.other_runs,
            evidence=read_evidence(lake, chosen.row),
            bound=configuration.bound,
            kernels=_kernels(lake, chosen.row, configuration),
            runs_s=_run_times(same, chosen.row),
            unusual=unlike_usual(same, chosen.row["job_key"]),
            site=read_partition_facts(lake, configuration.slurm),
            host_memory=_host_memory(lake, same, chosen.row, own_peak)
            if may_change_memory(chosen.row, own_peak)
            else HostMemory(own_peak),
        )

    return read_consistently(lake, read)


def _kernels(lake: Lake, row: Mapping[str, Any], configuration: Configuration) -> JobKernels:
    """The reports of Nsight Compute that are attached to a run."""
    if not any(file.may_name(row["job_key"]) for file in lake.files(PROFILES)):
        return NO_KERNELS
    kernels: JobKernels = annex_function("job_kernels")(lake, row["job_key"], configuration)
    return kernels


def _same_jobs(row: Mapping[str, Any]) -> pl.Expr:
    """Select the user's jobs with the same name and number of GPUs.

    A job without a name matches only itself.
    """
    own: pl.Expr = pl.col("job_key") == row["job_key"]
    if row["name"] is None:
        return own
    alike = pl.all_horizontal(
        pl.col(name).eq_missing(row[name]) for name in ("user", "cluster", "name", "gpus")
    )
    return pl.any_horizontal(own, alike)


def _run_times(same: pl.DataFrame, row: Mapping[str, Any]) -> list[float]:
    """Run times in s of the jobs that ended by themselves or at their limit.

    For a job that was stopped at its limit only those that completed say how long it takes.
    """
    states = ["COMPLETED"] if row["state"] == "TIMEOUT" else ["COMPLETED", "TIMEOUT"]
    ended = same.filter(pl.col("state").is_in(states))
    return ended.get_column("elapsed_s").drop_nulls().to_list()


def _host_memory(
    lake: Lake, same: pl.DataFrame, row: Mapping[str, Any], own_peak: float | None
) -> HostMemory:
    """Return host memory of the `same` jobs on as many nodes, and the partition's maximum."""
    of_node = pl.col("mem_requested_mib") / pl.col("nodes")
    alike = same.filter(pl.col("nodes") == row["nodes"])
    completed = alike.filter(pl.col("state") == "COMPLETED", pl.col("elapsed_s") >= LEAST_S)
    own = pl.col("job_key") == row["job_key"]
    last = completed.sort(own, "start").tail(_LAST_RUNS)
    peaks = node_memory_mib(read_steps(lake, last, NODE_MEMORY_COLUMNS))
    killed = (
        alike.filter(pl.col("state") == "OUT_OF_MEMORY").select(of_node).to_series().drop_nulls()
    )
    beside = pl.all_horizontal(
        pl.col(name).eq_missing(row[name]) for name in ("cluster", "partition")
    )
    own_node = row["mem_requested_mib"] / row["nodes"]
    more = read_summaries(lake, ("mem_requested_mib", "nodes"), where=beside & (of_node > own_node))
    most = more.select(of_node.max()).item() if more.height else own_node
    return HostMemory(own_peak, tuple(peaks.values()), killed.to_list(), most)
