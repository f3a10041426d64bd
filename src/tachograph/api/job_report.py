"""The report of one job, from the tables of the last analysis."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, cast

import polars as pl

from tachograph.api.gpu_company import read_company, read_handovers
from tachograph.api.needs import ALIKE_COLUMNS, read_needs, read_partition_facts
from tachograph.catalog.config import Configuration
from tachograph.catalog.doors import annex_function
from tachograph.catalog.tables import JOB_NODES, JOB_SUMMARIES, PROFILES
from tachograph.judge.advice.usual import USUAL_COLUMNS, unlike_usual
from tachograph.judge.steps import job_steps
from tachograph.judge.waste import energy_estimate
from tachograph.lake.delta import Lake
from tachograph.lake.query import (
    read_consistently,
    read_evidence,
    read_gpus,
    read_job_row,
    read_minutes,
    read_rows,
    read_steps,
    read_summaries,
    read_verdicts,
)
from tachograph.report.job import JobReport, build_job_report
from tachograph.report.job_end import memory_of_node_mib
from tachograph.report.job_kernels import NO_KERNELS, JobKernels

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobNodeRow, JobSummaryRow


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
        selected = read_job_row(lake, job, cluster=cluster, run=run)
        mine = pl.DataFrame([selected.row], schema=JOB_SUMMARIES.schema)
        minutes = read_minutes(lake, mine)
        like_jobs, own_steps = (
            read_summaries(
                lake, tuple({*ALIKE_COLUMNS, *USUAL_COLUMNS}), where=_same_jobs(selected.row)
            ),
            read_steps(lake, mine),
        )
        verdicts = read_verdicts(lake, mine)
        needs = read_needs(lake, mine, like_jobs, verdicts)[selected.row["job_key"]]
        memory = needs.memory
        if memory.killed:
            memory = replace(memory, most=_largest_request_mib(lake, selected.row))
        gpus = read_gpus(lake, mine)
        company = read_company(lake, selected.row, configuration)
        return build_job_report(
            selected.row,
            gpus,
            minutes,
            verdicts,
            now,
            zone_name=configuration.site.time_zone,
            steps=job_steps(
                selected.row, own_steps, minutes, idle_util=configuration.thresholds.idle_util
            ),
            other_runs=selected.other_runs,
            evidence=read_evidence(lake, selected.row),
            kernels=_kernels(lake, selected.row, configuration),
            runs_s=needs.runs_s,
            unusual=unlike_usual(like_jobs, selected.row["job_key"]),
            site=read_partition_facts(lake, configuration),
            host_memory=memory,
            company=replace(company, handovers=read_handovers(lake, selected.row, gpus)),
            estimate=energy_estimate(selected.row, configuration.waste),
            nodes=cast("list[JobNodeRow]", read_rows(lake, JOB_NODES, mine).to_dicts()),
        )

    return read_consistently(lake, read)


def _kernels(lake: Lake, row: JobSummaryRow, configuration: Configuration) -> JobKernels:
    """The reports of Nsight Compute that are attached to a run."""
    if not any(file.may_name(row["job_key"]) for file in lake.files(PROFILES)):
        return NO_KERNELS
    kernels: JobKernels = annex_function("job_kernels")(lake, row["job_key"], configuration)
    return kernels


def _same_jobs(row: JobSummaryRow) -> pl.Expr:
    """Select the user's jobs with the same name and number of GPUs, this one among them.

    A job without a name matches only itself.
    """
    names = ("job_key",) if row["name"] is None else ("user", "cluster", "name", "gpus")
    return pl.all_horizontal(pl.col(name).eq_missing(row.get(name)) for name in names)


def _largest_request_mib(lake: Lake, row: JobSummaryRow) -> float | None:
    """The most host memory of a node that a job of the partition requested."""
    own_node = memory_of_node_mib(row)
    if own_node is None:
        return None
    of_node = pl.col("mem_requested_mib") / pl.col("nodes")
    in_partition = pl.all_horizontal(
        pl.col(name).eq_missing(row.get(name)) for name in ("cluster", "partition")
    )
    more = read_summaries(
        lake.of_all_jobs, ("mem_requested_mib", "nodes"), where=in_partition & (of_node > own_node)
    )
    largest: float = more.select(of_node.max()).item() if more.height else own_node
    return largest
