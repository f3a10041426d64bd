"""Backtest of a policy: what it would have done, given the data known at each time.

The replay of a job, of the jobs of a lake, and the report on them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import polars as pl

from tachograph.annexes.act.policies import RUNNING
from tachograph.annexes.act.policy import exemption, quiet_windows, uncertain
from tachograph.annexes.act.policy_report import job_name
from tachograph.catalog.policies import PolicyOptions
from tachograph.catalog.tables import JOB_GPUS, JOB_MINUTES
from tachograph.catalog.units import plural, printable, text
from tachograph.judge.activity import UNIT
from tachograph.judge.gpu_series import AT_WORK, NOTHING, WORKING, GpuSeries
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter
from tachograph.lake.query import read_gpus, read_minutes, select_jobs
from tachograph.report.json_values import json_values
from tachograph.report.lines import Line, plain, wrapped
from tachograph.report.tables import TextColumn, fit_table

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow


STEP = 10  # minutes from one look to the next
BATCH = 200  # jobs whose minutes are in memory at a time

Outcome = Literal["hit", "warned", "left", "not_measured", "exempt"]


@dataclass(frozen=True, slots=True)
class PolicyReplay:
    """Simulated effect of a policy on a job.

    hit: the action, at minute `at`. warned: warned, then the job worked again or ended. left: no
    evidence. not_measured: its GPUs are ambiguous, samples are not of all of them, or without
    arithmetic and memory traffic. worked_again: after `at`. gpu_hours_after: from `at` to its end.
    warnings: mails.
    """

    job: JobSummaryRow
    outcome: Outcome
    at: int | None = None
    warnings: int = 0
    worked_again: bool | None = None
    gpu_hours_after: float = 0.0

    @property
    def recovered(self) -> float:
        """GPU-hours recovered: of a hit that did not work again."""
        return self.gpu_hours_after if self.outcome == "hit" and not self.worked_again else 0.0


def replay(
    policy: PolicyOptions,
    job: JobSummaryRow,
    gpus: pl.DataFrame,
    minutes: pl.DataFrame,
) -> PolicyReplay:
    """Return the effect of a policy that checked the job every STEP minutes.

    Each look sees the minutes before it alone. job: gpus, and what `exemption` reads; gpus: its
    rows of job_gpus; minutes: of job_minutes. Whether it was interactive or in a reservation is not
    known afterwards.
    """
    if exemption(policy, job):
        return PolicyReplay(job, "exempt")
    units = gpus.select(*UNIT).rows()
    is_known = not uncertain(job) and len(units) == job["gpus"]
    whole = GpuSeries.of(units, minutes) if is_known else None
    if whole is None:
        return PolicyReplay(job, "not_measured")
    looks, warnings, at = _Looks(policy, whole, minutes), 0, 2 * policy.minutes
    while at <= whole.length:
        if not looks.holds(at):
            at += STEP
            continue
        action, sent = at, 0
        while sent < policy.warned and action <= whole.length and (not sent or looks.holds(action)):
            sent += 1
            action += max(STEP, round(policy.warning_minutes))
        warnings += sent
        if action > whole.length:  # it ended before
            break
        if not policy.warned or (sent == policy.warned and looks.holds(action)):
            after = (whole.length - action) / 60 * len(units)
            again = bool((whole.state[:, action:] == WORKING).any())
            return PolicyReplay(job, "hit", action, warnings, again, after)
        at = action + STEP
    return PolicyReplay(job, "warned" if warnings else "left", None, warnings)


@dataclass(slots=True)
class _Looks:
    """Views of a job as it was at any minute."""

    policy: PolicyOptions
    whole: GpuSeries
    minutes: pl.DataFrame

    def holds(self, at: int) -> bool:
        """Whether the evidence held at a minute."""
        if self._works(at):
            return False
        minutes_before = self.minutes.filter(pl.col("minute") < at)
        series = GpuSeries.of(self.whole.units, minutes_before)
        if series is None or at - series.length > self.policy.minutes / 10:
            return False
        windows = quiet_windows(series, self.policy.check, window=self.policy.minutes)
        if isinstance(windows, str):
            return False
        return (windows.end - windows.stop) / 60 * len(series.units) >= self.policy.gpu_hours

    def _works(self, at: int) -> bool:
        """Whether a GPU surely worked in both windows: a quick look at most jobs.

        Usual work is no more than the most so far; of more than a third of all minutes two are near
        each other.
        """
        begin = max(0, at - 2 * self.policy.minutes)
        before = np.nan_to_num(self.whole.work[:, :at])
        highest = before.max(1, initial=0.0)
        at_work = before[:, begin:] >= np.maximum(NOTHING, AT_WORK * highest)[:, None]
        return bool((at_work.sum(1) > (at - begin) / 3 + 2).any())


@dataclass(frozen=True, slots=True)
class PolicyBacktest:
    """The replays of a policy: counts, hours, and the hits, those that worked again first."""

    policy: PolicyOptions
    counts: Mapping[Outcome, int]
    hits: tuple[PolicyReplay, ...]
    warnings: int
    gpu_hours: float

    @property
    def jobs(self) -> int:
        """Jobs that were looked at."""
        return sum(self.counts.values())

    @property
    def worked_again(self) -> tuple[PolicyReplay, ...]:
        """Hits that worked again: those that would have been wrong."""
        return tuple(hit for hit in self.hits if hit.worked_again)

    @property
    def recovered(self) -> float:
        """GPU-hours of hits from the action to their end, of those that did not work again."""
        return sum(hit.recovered for hit in self.hits)


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


def backtest_lines(found: PolicyBacktest, *, top: int = 10, width: int = 100) -> list[Line]:
    """Return the effects of a policy on past jobs; `top`: listed hits."""
    counts, again = found.counts, found.worked_again
    hits = f"{plural(len(found.hits), 'job')} of {found.jobs:,} would have been acted on"
    first = f"{found.policy.name}: {hits}, {len(again):,} of them worked again afterwards."
    second = (
        f"Recovered: {text(found.recovered, 'h')} of {text(found.gpu_hours, 'h')} GPU time. "
        f"{plural(found.warnings, 'warning')}; {plural(counts.get('warned', 0), 'job')} warned "
        "and left alone; "
        f"not measured: {counts.get('not_measured', 0):,}; exempt: {counts.get('exempt', 0):,}."
    )
    lines = [*wrapped(first, width), *wrapped(second, width)]
    if found.hits:
        shown = found.hits[:top]
        table = fit_table(
            [
                TextColumn("job", [job_name(hit.job, short=True) for hit in shown], least=6),
                TextColumn("user", [printable(hit.job["user"] or "–") for hit in shown], least=6),
                TextColumn(
                    "partition", [printable(hit.job["partition"] or "–") for hit in shown], hide=1
                ),
                TextColumn("GPUs", [f"{hit.job['gpus']:,}" for hit in shown], right=True),
                TextColumn(
                    "action after", [text((hit.at or 0) * 60, "s") for hit in shown], right=True
                ),
                TextColumn(
                    "to its end", [text(hit.gpu_hours_after, "h") for hit in shown], right=True
                ),
                TextColumn("worked again", ["yes" if hit.worked_again else "no" for hit in shown]),
            ],
            width,
        )
        more = len(found.hits) - len(shown)
        notes = [f"{len(shown)} of {plural(len(found.hits), 'job')}"] if more else []
        lines += [plain(""), *table.with_note(*notes, width=width)]
    return lines


def backtest_json(found: PolicyBacktest) -> dict[str, Any]:
    """Return the same as JSON values."""
    return json_values(
        {
            "policy": found.policy.name,
            "check": found.policy.check,
            "action": found.policy.action,
            "jobs": found.jobs,
            "gpu_hours": found.gpu_hours,
            "hits": len(found.hits),
            "worked_again": len(found.worked_again),
            "gpu_hours_recovered": found.recovered,
            "warnings": found.warnings,
            "warned_and_left": found.counts.get("warned", 0),
            "not_measured": found.counts.get("not_measured", 0),
            "exempt": found.counts.get("exempt", 0),
            "jobs_hit": [_hit(hit) for hit in found.hits],
        }
    )


def _hit(hit: PolicyReplay) -> dict[str, Any]:
    return {
        **{
            name: hit.job[name]
            for name in ("job_key", "display_id", "user", "account", "partition", "gpus")
        },
        "after_s": None if hit.at is None else hit.at * 60.0,
        "warnings": hit.warnings,
        "worked_again": hit.worked_again,
        "gpu_hours_after": hit.gpu_hours_after,
    }
