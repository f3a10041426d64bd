"""stable: the load is steady. A fact, nothing to fix: the job's numbers hold for any part of it.

Source: Matveev, Setyaev, Voevodin (2025): R(t) = |y(t) - mean|/mean; from GPU telemetry: ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tachograph.catalog.arrays import Flags, Ints, Singles
from tachograph.catalog.units import text
from tachograph.judge.activity import so_far
from tachograph.judge.check import class_check
from tachograph.judge.classes import kernel
from tachograph.judge.classes.inputs import (
    ClassInput,
    ClassVerdicts,
    JobClass,
    listed,
    too_few,
    voted,
)
from tachograph.judge.classes.kernel import MISSING, NO, UNDECIDED, YES, Votes
from tachograph.judge.classes.series import Series
from tachograph.judge.classes.windows import ENOUGH
from tachograph.judge.finding import CheckedValue, Finding

NEAR = 0.1  # R
WITHIN = 0.95  # of the minutes have R <= NEAR
AWAY = 0.05  # mean R


@dataclass(frozen=True, slots=True)
class Steadiness:
    """Per job, for one characteristic: minutes, mean, maximum, share with R <= NEAR, mean R."""

    measured: Ints
    mean: Singles
    high: Singles
    within: Singles
    away: Singles


def steadiness(series: Series, name: str) -> Steadiness:
    """Return how steady a characteristic of each job is. All zero is steady: within 1, away 0."""
    jobs = len(series.offset) - 1
    found = Steadiness(np.zeros(jobs, np.int32), *(np.zeros(jobs, np.float32) for _ in range(4)))
    kernel.steadiness(
        series.of(name),
        series.offset,
        NEAR,
        found.measured,
        found.mean,
        found.high,
        found.within,
        found.away,
    )
    return found


def stable_votes(found: Steadiness, *, level: float | None) -> Votes:
    """Return votes of a characteristic: YES, NO, MISSING; below `level` it counts as zero."""
    steady = (found.within >= WITHIN) & (found.away <= AWAY)
    if level is not None:
        steady |= found.high < level
    vote = np.where(steady, YES, NO).astype(np.int8)
    vote[found.measured == 0] = MISSING
    return vote


def stable_answers(primary: Sequence[Votes], secondary: Sequence[Votes]) -> Votes:
    """Return YES if all primary and half of the secondary characteristics are steady.

    UNDECIDED where fewer than half of the primary ones were measured and none of them votes NO.

    >>> one, other = np.array([1, 1, 0], np.int8), np.array([1, 0, -1], np.int8)
    >>> stable_answers([one, other], [other])
    array([1, 0, 0], dtype=int8)
    """
    first = np.stack(primary)
    refused = (first == NO).any(axis=0)
    if len(secondary):
        more = np.stack(secondary)
        refused |= (more == YES).sum(axis=0) * 2 < (more != MISSING).sum(axis=0)
    answer = np.where(refused, NO, YES).astype(np.int8)
    answer[((first != MISSING).sum(axis=0) * 2 < len(primary)) & ~refused] = UNDECIDED
    return answer


def _judge(job_class: JobClass, form: ClassInput) -> ClassVerdicts:
    limits, minutes = form.limits, form.series.minutes
    names, more = job_class.names(form), job_class.more_host if form.host else job_class.more_gpu
    steadiness_of = {name: steadiness(form.series, name) for name in (*names, *more)}
    votes = {
        name: stable_votes(steady, level=limits.level[name])
        for name, steady in steadiness_of.items()
    }
    by_votes = stable_answers([votes[name] for name in names], [votes[name] for name in more])
    voting = np.stack([votes[name] != MISSING for name in names])
    measured_of = np.stack([steadiness_of[name].measured for name in names])
    measured = np.where(voting, measured_of, np.iinfo(np.int32).max).min(axis=0)
    too_few_voted = (by_votes == UNDECIDED) | ~voting.any(axis=0)
    too_short = (minutes < limits.window) | (measured < ENOUGH * minutes)
    answers = by_votes.copy()
    answers[(by_votes == YES) & _are_idle(form, names, steadiness_of, voting)] = NO
    answers[too_few_voted | too_short] = UNDECIDED

    def finding(at: int, answer: int) -> Finding:
        missing = [name for name in names if votes[name][at] == MISSING]
        voters = [name for name in names if name not in missing]
        if too_few_voted[at]:
            sentence = too_few(form, names, missing)
        elif too_short[at]:
            sentence = _too_short(form, at, int(minutes[at]), int(measured[at]))
        elif by_votes[at] == NO:
            uneven = [name for name in names if votes[name][at] == NO]
            if not uneven:
                uneven = [name for name in more if votes[name][at] == NO]
            sentence = _no(form, at, uneven, steadiness_of)
        elif answer == NO:
            sentence = f"No: there was no load{so_far(form.rows[at])}: {listed(form, voters)} idle."
        else:
            sentence = (
                f"Steady load{so_far(form.rows[at])}: in {text(WITHIN, 'fraction')} of the minutes "
                f"{listed(form, voters)} stayed within {text(NEAR, 'fraction')} of their mean."
            )
        if answer != UNDECIDED and missing:
            sentence += f" Not all characteristics had a vote{voted(form, names, missing)}."
        checks = _checks((*names, *more), steadiness_of, votes, at)
        return job_class.finding(form, answer, sentence, missing=missing, checks=checks)

    return ClassVerdicts(np.arange(len(answers)), answers, finding)


def _are_idle(
    form: ClassInput, names: Sequence[str], found: Mapping[str, Steadiness], voting: Flags
) -> Flags:
    """Whether all that vote stayed below the level of an idle GPU: there is no load."""
    idle = np.ones(voting.shape[1], bool)
    for name, votes in zip(names, voting, strict=True):
        level = form.limits.level[name]
        high = found[name].high.astype(np.float64)
        idle &= ~votes | (high < (-np.inf if level is None else level))
    return idle


def _no(form: ClassInput, at: int, uneven: Sequence[str], found: Mapping[str, Steadiness]) -> str:
    name = max(uneven, key=lambda one: float(found[one].away[at]))
    away, within = float(found[name].away[at]), float(found[name].within[at])
    return (
        f"No: {form.limits.known[name].label} was {text(away, 'fraction')} away from its mean "
        "on average, and within "
        f"{text(NEAR, 'fraction')} of it in {text(within, 'fraction')} of the minutes."
    )


def _too_short(form: ClassInput, at: int, minutes: int, measured: int) -> str:
    if minutes < form.limits.window:
        least = text(form.limits.window * 60, "s")
        ran_s = form.rows[at]["elapsed_s"]
        ran = text(minutes * 60.0 if ran_s is None else min(ran_s, minutes * 60.0), "s")
        return f"Unknown: the job ran {ran}{so_far(form.rows[at])}; {least} are needed."
    return (
        f"Unknown: {measured} of {minutes} minutes were measured; "
        f"{text(ENOUGH, 'fraction')} are needed."
    )


def _checks(
    names: Sequence[str], found: Mapping[str, Steadiness], votes: Mapping[str, Votes], at: int
) -> Iterator[CheckedValue]:
    for name in names:
        vote, within = int(votes[name][at]), float(found[name].within[at])
        if vote == YES and within < WITHIN:  # idle throughout
            within = 1.0
        measured = vote != MISSING
        holds = vote == YES if measured else None
        yield CheckedValue(name, within if measured else None, ">=", WITHIN, "fraction", holds)


STABLE = JobClass(
    "stable",
    "fact",
    "The load was steady",
    _judge,
    gpu=("gpu_util", "sm_active", "dram_active", "power"),
    host=("l1_misses_per_s", "llc_misses_per_s", "cpu_user", "load_average", "gpu_util"),
    more_gpu=("tensor_active", "pcie", "nvlink"),
    more_host=(
        "network_rx_bytes_per_s",
        "network_tx_bytes_per_s",
        "network_rx_packets_per_s",
        "network_tx_packets_per_s",
    ),
)

CHECK = class_check(STABLE, family="steadiness", advice=None)
