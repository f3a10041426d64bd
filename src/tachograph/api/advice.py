"""Advice for the next job, and its backtest, from the tables of the last analysis."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import polars as pl

from tachograph.catalog.codes import CAUSE_OF_CLASS
from tachograph.catalog.config import Configuration, SlurmOptions
from tachograph.catalog.tables import DEVICES, JOB_GPUS, WASTE
from tachograph.judge.advice.advise import Advice, SiteFacts, advise
from tachograph.judge.advice.backtest import BacktestReport, replay
from tachograph.judge.advice.past_jobs import (
    GPU_COLUMNS,
    SUMMARY_COLUMNS,
    History,
    PastJob,
    past_jobs,
)
from tachograph.judge.advice.request import JobRequest
from tachograph.judge.checks import OF_RECORDING
from tachograph.judge.partitions import (
    REQUEST_COLUMNS,
    PartitionUse,
    SitePartitions,
    uses_of,
)
from tachograph.judge.steps import NODE_MEMORY_COLUMNS, node_memory_mib
from tachograph.judge.waste import IDLE_LONG, UNMEASURED, recoverable
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter
from tachograph.lake.query import (
    jobs_and_intervals,
    read_answers,
    read_consistently,
    read_latest,
    read_rows,
    read_steps,
    read_summaries,
)
from tachograph.sources.slurm.partitions import read_partitions

_COLUMNS = tuple(
    dict.fromkeys(
        (
            *SUMMARY_COLUMNS,
            *REQUEST_COLUMNS,
            *(f"gpu_hours_{cause}" for cause in WASTE),
            IDLE_LONG,
            UNMEASURED,
        )
    )
)
_USABLE = 0.97  # of the capacity, if no sample shows the memory available to programs


def read_past_jobs(lake: Lake, configuration: Configuration, wanted: JobFilter) -> list[PastJob]:
    """Return the past jobs that a filter selects, all of one analysis.

    Errors: LakeError where nothing was analyzed; those of the filter.
    """

    site = read_partition_facts(lake, configuration.slurm)

    def read() -> list[PastJob]:
        jobs, intervals = jobs_and_intervals(
            lake, wanted, tuple(CAUSE_OF_CLASS), _COLUMNS, holding=True
        )
        steps = read_steps(lake, jobs, NODE_MEMORY_COLUMNS)
        return past_jobs(
            recoverable(jobs, intervals, configuration.waste, site),
            read_rows(lake, JOB_GPUS, jobs, GPU_COLUMNS),
            idle_util=configuration.thresholds.idle_util,
            node_memory=node_memory_mib(steps),
            reported=read_answers(lake, jobs, reported=True).filter(
                ~pl.col("code").is_in(list(OF_RECORDING))
            ),
        )

    return read_consistently(lake, read)


def read_partition_facts(lake: Lake, slurm: SlurmOptions) -> SitePartitions:
    """Return what is known of the site's partitions, and their use where GPUs are given singly.

    Errors: InputError for a file of partitions that cannot be read.
    """
    recorded = read_partitions(slurm.partitions_file) if slurm.partitions_file else {}
    use: Mapping[str, PartitionUse] = {}
    if recorded or slurm.shared:
        use = uses_of(read_summaries(lake, REQUEST_COLUMNS))
    return SitePartitions(slurm, recorded, use)


def read_site(lake: Lake, slurm: SlurmOptions) -> SiteFacts:
    """Return the memory capacities of the site's whole GPUs, without slices, and its partitions."""
    devices = read_latest(lake, DEVICES).filter(
        pl.col("mig").is_null(), pl.col("hbm_mib").is_not_null()
    )
    usable = pl.coalesce("usable_mib", pl.col("hbm_mib") * _USABLE).min()
    capacities = devices.group_by("hbm_mib").agg(usable).sort("hbm_mib")
    return SiteFacts(dict(capacities.iter_rows()), read_partition_facts(lake, slurm))


def read_advice(
    lake: Lake,
    configuration: Configuration,
    request: JobRequest,
    *,
    now: datetime,
    history: bool = True,
) -> Advice:
    """Return advice for a user's request, from that user's past jobs only.

    `history`: False ignores past jobs. Errors: LakeError where nothing was analyzed.
    """
    users = JobFilter(users=(request.user,)) if request.user and history else None
    jobs = read_past_jobs(lake, configuration, users) if users else []
    return advise(
        request,
        History.of(jobs, configuration.advice),
        now.timestamp(),
        read_site(lake, configuration.slurm),
        configuration.advice,
    )


def read_backtest(lake: Lake, configuration: Configuration, wanted: JobFilter) -> BacktestReport:
    """Return the effect that advice would have had on each selected job, based on earlier ones.

    Errors: LakeError where nothing was analyzed; those of the filter.
    """
    return replay(
        read_past_jobs(lake, configuration, wanted),
        read_site(lake, configuration.slurm),
        configuration.advice,
    )
