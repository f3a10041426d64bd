"""Common part of the three hang classes: votes on an unchanging interval, as a finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import numpy as np

from tachograph.catalog.units import shown_s, text
from tachograph.judge.activity import so_far
from tachograph.judge.classes.characteristics import FIRST_WORK, SPINNING
from tachograph.judge.classes.inputs import ClassInput, JobClass, too_few, voted
from tachograph.judge.classes.kernel import BEGIN, END, MISSING, NO, SLACK, UNDECIDED, UNUSED, YES
from tachograph.judge.classes.windows import HangVotes, hang_votes, majority
from tachograph.judge.finding import CheckedValue, Finding, Severity

# vote -> whether its check holds; None: it has no vote, or what was not measured decides
_HOLDS = {NO: False, YES: True, UNDECIDED: None, MISSING: None, UNUSED: None}


@dataclass(frozen=True, slots=True)
class HangPlace:
    """Position of a hang class's interval, with texts: `noun` ("a hang"), sentences.

    `found(case)`: the sentence where it holds. `none(case)`: the sentence where it does not.
    """

    where: int
    noun: str
    found: Callable[[HangCase], str]
    none: Callable[[HangCase], str]


@dataclass(frozen=True, slots=True)
class HangCase:
    """One job that needs a sentence. Times are minutes from its start."""

    form: ClassInput
    place: int
    minutes: int
    votes: Mapping[str, HangVotes]
    own_votes: Mapping[str, int]  # its own votes
    begin: int = 0
    end: int = 0

    @property
    def row(self) -> Mapping[str, Any]:
        """Its row of job_summaries."""
        return self.form.rows[self.place]

    @property
    def ran_s(self) -> float:
        """How long the job ran, as far as is known: its last minute is seldom whole."""
        row = self.row
        known = (
            (row["as_of"] - row["start"]).total_seconds()
            if row["as_of"] and row["start"]
            else self.minutes * 60.0
        )
        return min(known, row.get("elapsed_s") or known)

    @property
    def interval_s(self) -> float:
        """Length of the interval. Seconds."""
        return min(self.end * 60.0, self.ran_s) - self.begin * 60.0

    @property
    def reported_s(self) -> float:
        """Length of the interval in seconds, consistent with its printed begin and end."""
        begin, end = _bounds(self)
        return self.interval_s if begin is None or end is None else shown_s(begin, end)

    @property
    def lasted(self) -> str:
        """The length of the interval as text."""
        return text(self.reported_s, "s")

    @property
    def long(self) -> str:
        """How long an interval has to be, as text."""
        return text(self.form.limits.hang * 60, "s")

    def with_vote(self, *votes: int) -> list[str]:
        """Return the characteristics that voted so."""
        return [name for name, vote in self.own_votes.items() if vote in votes]

    @property
    def tally(self) -> str:
        """How many agreed: "4 of 4 characteristics"."""
        voters = self.with_vote(YES, NO, UNDECIDED)
        return f"{len(self.with_vote(YES))} of {len(voters)} characteristics"

    @property
    def spinning(self) -> bool:
        """Whether the busiest GPU looked busy in most of the interval."""
        busy = self._inside(self.form.series.looks_busy)
        return bool(busy.size) and float(np.median(busy)) >= SPINNING

    def mean_inside(self, name: str) -> float | None:
        """Return the mean of a characteristic in the interval."""
        inside = self._inside(self.form.series.of(name))
        return float(inside.mean()) if inside.size else None

    def mean_outside(self, name: str) -> float | None:
        """Return a characteristic's mean before the interval, or after it if it begins the job."""
        first, last = self.form.series.offset[self.place], self.form.series.offset[self.place + 1]
        values = self.form.series.of(name)
        part = (
            values[first : first + self.begin]
            if self.begin > SLACK
            else values[first + self.end : last]
        )
        part = part[~np.isnan(part)]
        return float(part.mean()) if part.size else None

    def _inside(self, values: Any) -> Any:
        first = self.form.series.offset[self.place]
        part = values[first + self.begin : first + self.end]
        return part[~np.isnan(part)]


def hang_class(
    place: HangPlace, code: str, severity: Severity, title: str, *, host: tuple[str, ...]
) -> JobClass:
    """Return the class for unchanging intervals at `place`; `host`: it votes from host metrics."""
    return JobClass(
        code,
        severity,
        title,
        partial(judge_hang, place),
        gpu=("power", "sm_active", "tensor_active", "dram_active", "pcie", "nvlink"),
        host=host,
        where=place.where,
    )


def judge_hang(
    place: HangPlace, job_class: JobClass, form: ClassInput
) -> Iterator[tuple[int, Finding]]:
    """Yield the verdict of every job of the form; a job shorter than a hang has none."""
    names, limits = job_class.names(form), form.limits
    votes = {
        name: hang_votes(
            form.windows,
            name,
            where=place.where,
            theta=limits.theta[name],
            level=limits.level[name],
            hang_minutes=limits.hang,
        )
        for name in names
    }
    answers = majority([each.vote for each in votes.values()])
    message = np.stack([each.vote for each in votes.values()]).T.tolist()
    for at, (minutes, answer) in enumerate(
        zip(form.series.minutes.tolist(), answers.tolist(), strict=True)
    ):
        case = HangCase(form, at, minutes, votes, dict(zip(names, message[at], strict=True)))
        yield at, _finding(place, job_class, case, answer)


def _finding(place: HangPlace, job_class: JobClass, case: HangCase, answer: int) -> Finding:
    form = case.form
    missing, unused = case.with_vote(MISSING), case.with_vote(UNUSED)
    sentence, evidence = "", {}
    begin = end = None
    if case.minutes < form.limits.hang:
        answer, sentence = NO, _short(place, case)
    elif answer == UNDECIDED and _seen_working(place, case):
        answer, sentence = NO, place.none(case)
    elif answer == UNDECIDED:
        few = len(missing) * 2 > len(case.votes)
        sentence = too_few(form, tuple(case.votes), missing) if few else _gap(place, case)
    elif answer == NO:
        sentence = place.none(case) + voted_end(case, missing, unused)
    else:
        case = _with_interval(case)
        sentence = place.found(case)
        evidence = _evidence(case)
        begin, end = _bounds(case)
    return job_class.finding(
        form,
        answer,
        sentence,
        missing=missing,
        checks=_checks(case),
        evidence=evidence,
        begin=begin,
        end=end,
    )


def voted_end(case: HangCase, missing: list[str], unused: list[str]) -> str:
    """Return which characteristics had no vote, behind a sentence."""
    known = voted(case.form, tuple(case.votes), missing, unused)
    return f" Not all characteristics had a vote{known}." if known and missing else ""


def _short(place: HangPlace, case: HangCase) -> str:
    ran = text(min(case.minutes * 60.0, case.ran_s), "s")
    first = int(case.form.idle_times.first[case.place])
    long = f"{place.noun} is {case.long} or more"
    if place.where == BEGIN and first > 0:
        span = text(first * 60, "s")
        idle = f"GPU activity stayed under {text(FIRST_WORK, 'fraction')} for the first {span}"
        return f"No: {idle}; {long}, and the job ran {ran}{so_far(case.row)}."
    return f"No: the job ran {ran}{so_far(case.row)}; {long}."


def _seen_working(place: HangPlace, case: HangCase) -> bool:
    """Whether utilisation alone excludes an interval that is long enough.

    It does if a GPU is seen to work now and then.

    Full utilisation is no evidence on the end of a job: a hung collective shows it, too.
    """
    form, at = case.form, case.place
    times = form.idle_times
    if form.host or place.where == END or times.measured[at] < case.minutes - 2 * SLACK:
        return False
    if place.where == BEGIN:
        return 0 <= int(times.first[at]) < form.limits.hang
    return int(times.longest[at]) < form.limits.hang and int(times.last[at]) >= 0


def _gap(place: HangPlace, case: HangCase) -> str:
    first, last = case.form.series.offset[case.place], case.form.series.offset[case.place + 1]
    open_ = case.with_vote(UNDECIDED)
    lacking = max(int(np.isnan(case.form.series.of(name)[first:last]).sum()) for name in open_)
    return (
        f"Unknown: {text(lacking * 60, 's')} of the "
        f"{text(case.minutes * 60, 's')}{so_far(case.row)} were not "
        f"measured, and {place.noun} may lie there or reach across."
    )


def _with_interval(case: HangCase) -> HangCase:
    """The case with the interval that the YES votes agree on, else the one in the middle."""
    agreed = [case.votes[name] for name in case.with_vote(YES)]
    begins = sorted(int(each.begin[case.place]) for each in agreed)
    ends = sorted(int(each.end[case.place]) for each in agreed)
    begin, end = begins[-1], ends[0]
    if end - begin < case.form.limits.hang / 2:
        begin, end = begins[len(begins) // 2], ends[len(ends) // 2]
    return replace(case, begin=begin, end=max(end, begin))


def _evidence(case: HangCase) -> dict[str, float]:
    known: dict[str, float | None] = {
        "interval_begin_s": case.begin * 60.0,
        "interval_s": case.reported_s,
        "voted_yes": float(len(case.with_vote(YES))),
        "voted": float(len(case.with_vote(YES, NO, UNDECIDED))),
        "power_fraction_then": case.mean_inside("power"),
        "power_fraction_otherwise": case.mean_outside("power"),
        "gpu_util_then": case.mean_inside("gpu_util"),
    }
    return {name: value for name, value in known.items() if value is not None}


def _checks(case: HangCase) -> Iterator[CheckedValue]:
    limits = case.form.limits
    for name, votes in case.votes.items():
        known, level = limits.known[name], limits.level[name]
        value = float(votes.compared[case.place])
        threshold = limits.theta[name] if level is None else level
        holds = _HOLDS[case.own_votes[name]]
        yield CheckedValue(
            name, None if value != value else value, "<", threshold, known.unit, holds
        )


def _bounds(case: HangCase) -> tuple[datetime | None, datetime | None]:
    """When the interval begins and ends; None where the job's start is unknown."""
    start, as_of = case.row["start"], case.row["as_of"]
    if start is None:
        return None, None
    begin, end = (start + timedelta(minutes=minute) for minute in (case.begin, case.end))
    return begin, end if as_of is None else min(end, as_of)


def worked_at(case: HangCase) -> tuple[int, int] | None:
    """Return the first and last minute with a GPU at work; None without any, or not measured."""
    first, last = (
        int(case.form.idle_times.first[case.place]),
        int(case.form.idle_times.last[case.place]),
    )
    return None if first < 0 else (first, last)
