"""Backtest of a policy: what it would have done, given the data known at each time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from tachograph.annexes.act.policy import exemption, quiet_windows, uncertain
from tachograph.catalog.policies import PolicyOptions
from tachograph.judge.activity import UNIT
from tachograph.judge.gpu_series import AT_WORK, NOTHING, WORKING, GpuSeries

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow


STEP = 10  # minutes from one look to the next

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
