"""The backtest of policies on the jobs of a lake."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

import polars as pl

from tachograph.annexes.act.policies import RUNNING
from tachograph.annexes.act.policy_backtest import Outcome, PolicyBacktest, PolicyReplay, replay
from tachograph.catalog.policies import PolicyOptions
from tachograph.catalog.tables import JOB_GPUS, JOB_MINUTES
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter
from tachograph.lake.query import read_gpus, read_minutes, select_jobs

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow


BATCH = 200  # jobs whose minutes are in memory at a time


def backtest_policy(
    lake: Lake,
    policy: PolicyOptions,
    wanted: JobFilter,
    *,
    progress: Callable[[int, int], None] = lambda done, jobs: None,
) -> PolicyBacktest:
    """Return the effect a policy would have had on the selected ended jobs.

    progress: jobs done, and their total.

    Errors: LakeError.
    """
    columns = (*RUNNING, "elapsed_s", "gpu_hours")
    ended = select_jobs(lake, wanted, columns).jobs.filter(
        pl.col("end").is_not_null(), pl.col("gpus") > 0
    )
    jobs = ended.sort("start", "job_key")
    counts: Counter[Outcome] = Counter()
    hits: list[PolicyReplay] = []
    warnings = 0
    for first in range(0, jobs.height, BATCH):
        some = jobs.slice(first, BATCH)
        for of_job in _replays(lake, policy, some):
            counts[of_job.outcome] += 1
            warnings += of_job.warnings
            if of_job.outcome == "hit":
                hits.append(of_job)
        progress(min(first + BATCH, jobs.height), jobs.height)
    hits.sort(key=lambda hit: (not hit.worked_again, -hit.gpu_hours_after, hit.job["job_key"]))
    return PolicyBacktest(
        policy, dict(counts), tuple(hits), warnings, float(jobs.get_column("gpu_hours").sum())
    )


def _replays(lake: Lake, policy: PolicyOptions, jobs: pl.DataFrame) -> Iterator[PolicyReplay]:
    """Replays of some jobs; reads no data of too short ones."""
    long = (pl.col("elapsed_s") >= 120.0 * policy.minutes).fill_null(value=False)
    read = jobs.filter(long)
    gpus, minutes = (
        rows.partition_by("job_key", as_dict=True)
        for rows in (read_gpus(lake, read), read_minutes(lake, read))
    )
    for job in cast("Iterator[JobSummaryRow]", jobs.filter(~long).iter_rows(named=True)):
        yield PolicyReplay(job, "left")
    for job in cast("Iterator[JobSummaryRow]", read.iter_rows(named=True)):
        key = (job["job_key"],)
        yield replay(
            policy, job, gpus.get(key, JOB_GPUS.empty()), minutes.get(key, JOB_MINUTES.empty())
        )
