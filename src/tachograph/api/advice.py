"""Advice for the next job, and its backtest, from the tables of the last analysis."""

from __future__ import annotations

from datetime import datetime

import polars as pl

from tachograph.api.needs import freed_shares, read_needs, read_partition_facts
from tachograph.catalog.codes import CAUSE_OF_CLASS
from tachograph.catalog.config import Configuration
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
from tachograph.judge.steps import NODE_MEMORY_COLUMNS, node_memory_mib
from tachograph.judge.waste import IDLE_LONG, recoverable
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter
from tachograph.lake.query import (
    jobs_and_intervals,
    read_answers,
    read_consistently,
    read_latest,
    read_rows,
    read_steps,
)

_COLUMNS = tuple(
    dict.fromkeys((*SUMMARY_COLUMNS, *(f"gpu_hours_{cause}" for cause in WASTE), IDLE_LONG))
)
_USABLE = 0.97  # of the capacity, if no sample shows the memory available to programs


def read_past_jobs(
    lake: Lake, configuration: Configuration, selection: JobFilter, site: SiteFacts
) -> list[PastJob]:
    """Return the past jobs that a filter selects, all of one analysis. `site`: of `read_site`.

    Errors: LakeError where nothing was analyzed; those of the filter.
    """

    def read() -> list[PastJob]:
        jobs, intervals = jobs_and_intervals(
            lake, selection, tuple(CAUSE_OF_CLASS), _COLUMNS, holding=True
        )
        needs = read_needs(lake, jobs)
        freed = freed_shares(lake, site.partitions, jobs, needs)
        steps = read_steps(lake, jobs, NODE_MEMORY_COLUMNS)
        return past_jobs(
            recoverable(jobs, intervals, configuration.waste, freed),
            read_rows(lake, JOB_GPUS, jobs, GPU_COLUMNS),
            idle_util=configuration.thresholds.idle_util,
            site=site.partitions,
            gpus_needed={key: need.gpus for key, need in needs.items()},
            node_memory=node_memory_mib(steps),
            reported=read_answers(lake, jobs, reported=True).filter(
                ~pl.col("code").is_in(list(OF_RECORDING))
            ),
        )

    return read_consistently(lake, read)


def read_site(lake: Lake, configuration: Configuration) -> SiteFacts:
    """Return the memory capacities of the site's whole GPUs, without slices, and its partitions."""
    devices = read_latest(lake, DEVICES).filter(
        pl.col("mig").is_null(), pl.col("hbm_mib").is_not_null()
    )
    usable = pl.coalesce("usable_mib", pl.col("hbm_mib") * _USABLE).min()
    capacities = devices.group_by("hbm_mib").agg(usable).sort("hbm_mib")
    return SiteFacts(dict(capacities.iter_rows()), read_partition_facts(lake, configuration))


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
    site = read_site(lake, configuration)
    users = JobFilter(users=(request.user,)) if request.user and history else None
    jobs = read_past_jobs(lake, configuration, users, site) if users else []
    return advise(
        request,
        History.of(jobs, configuration.advice),
        now.timestamp(),
        site,
        configuration.advice,
    )


def read_backtest(lake: Lake, configuration: Configuration, selection: JobFilter) -> BacktestReport:
    """Return the effect that advice would have had on each selected job, based on earlier ones.

    Errors: LakeError where nothing was analyzed; those of the filter.
    """
    site = read_site(lake, configuration)
    jobs = read_past_jobs(lake, configuration, selection, site)
    return replay(jobs, site, configuration.advice)
