"""Common part of the three hang classes: votes on an unchanging interval, as a finding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tachograph.catalog.arrays import Flags, Longs
from tachograph.catalog.units import shown_s, text
from tachograph.judge.activity import so_far
from tachograph.judge.classes.characteristics import AWAKE, FIRST_WORK, SPINNING
from tachograph.judge.classes.inputs import ClassInput, ClassVerdicts, JobClass, too_few, voted
from tachograph.judge.classes.kernel import (
    BEGIN,
    END,
    MISSING,
    NO,
    SLACK,
    UNDECIDED,
    UNUSED,
    YES,
    Votes,
)
from tachograph.judge.classes.windows import (
    ENOUGH,
    WORK_LEVEL,
    HangVotes,
    hang_votes,
    level_votes,
    majority,
)
from tachograph.judge.classes.work_level import PINNED, WAITING, WORKING, low_is_usual, median
from tachograph.judge.finding import CheckedValue, Finding, FindingConfidence, Severity

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow


# Characteristics that count work: where there is one the votes decide, as published.
_COUNTERS = ("sm_active", "tensor_active", "dram_active")
_ARITHMETIC_AND_MEMORY = ("tensor_active", "dram_active")
_RECORD = "record tensor_active and dram_active (DCGM profiling) to know"
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
    def row(self) -> JobSummaryRow:
        """Its row of job_summaries."""
        return self.form.rows[self.place]

    @property
    def ran_s(self) -> float:
        """How long the job ran: its last minute is seldom whole."""
        known = (self.row["as_of"] - self.row["start"]).total_seconds()
        return min(known, self.row.get("elapsed_s") or known)

    @property
    def interval_s(self) -> float:
        """Length of the interval. Seconds."""
        return min(self.end * 60.0, self.ran_s) - self.begin * 60.0

    @property
    def reported_s(self) -> float:
        """Length of the interval in seconds, consistent with its printed begin and end."""
        return shown_s(*_bounds(self))

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
    def by_level(self) -> bool:
        """Whether the level of work decides, for want of counters."""
        return WORK_LEVEL in self.votes

    def own(self, values: Any) -> Any:
        """Return the values of its minutes, of those of all jobs."""
        first, last = self.form.series.offset[self.place], self.form.series.offset[self.place + 1]
        return values[first:last]

    def values(self, name: str) -> Any:
        """Return the values of a characteristic in each of its minutes."""
        return self.own(self.form.series.of(name))

    @property
    def counted(self) -> bool:
        """Whether arithmetic and memory traffic were measured in all but a few of its minutes."""
        inside = slice(self.begin, self.end)
        measured = (~np.isnan(self.values(name)[inside]) for name in _ARITHMETIC_AND_MEMORY)
        return all(known.size > 0 and float(known.mean()) >= ENOUGH for known in measured)

    @property
    def levels(self) -> Any:
        """Level of work in each of its minutes."""
        return self.own(self.form.series.work_level)

    @property
    def utilisation(self) -> Any:
        """Utilisation of the busiest GPU in each of its minutes."""
        return self.own(self.form.series.looks_busy)

    @property
    def likely(self) -> bool:
        """Whether only power shows that GPUs which looked busy did no work."""
        return self.by_level and self.spinning and not self.counted

    @property
    def spinning(self) -> bool:
        """Whether the busiest GPU looked busy in most of the interval."""
        busy = _known(self.utilisation[self.begin : self.end])
        return bool(busy.size) and median(busy) >= SPINNING

    def mean_inside(self, name: str) -> float | None:
        """Return the mean of a characteristic in the interval."""
        return _mean(self.values(name)[self.begin : self.end])

    def mean_outside(self, name: str) -> float | None:
        """Return a characteristic's mean before the interval, or after it if it begins the job."""
        values = self.values(name)
        return _mean(values[: self.begin] if self.begin > SLACK else values[self.end :])


def _known(values: Any) -> Any:
    return values[~np.isnan(values)]


def _mean(values: Any) -> float | None:
    known = _known(values)
    return float(known.mean()) if known.size else None


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


def judge_hang(place: HangPlace, job_class: JobClass, form: ClassInput) -> ClassVerdicts:
    """Return the verdict of every job of the form; a job shorter than a hang has none."""
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
    counted, levels = np.ones(len(answers), bool), None
    if form.levels is not None:
        counted = np.any([form.series.measures(name) for name in _COUNTERS], axis=0)
        levels = level_votes(form.levels, where=place.where, hang_minutes=limits.hang)
    judged = _HangVotesOfJobs(place, form, form.series.minutes, votes, levels, counted)
    answers, by_level = judged.answers(answers)

    def finding(at: int, answer: int) -> Finding:
        if not by_level[at]:
            return _finding(place, job_class, judged.case(at), answer)
        lacking = [] if counted[at] else judged.case(at).with_vote(MISSING)
        return _level_finding(place, job_class, judged.level_case(at), answer, lacking)

    return ClassVerdicts(np.arange(len(answers)), answers, finding)


@dataclass(frozen=True, slots=True)
class _HangVotesOfJobs:
    """Votes on a hang of all jobs of a form, by characteristics and by the level of work.

    `levels`: None of hosts. `counted`: jobs of which a counter of work was measured.
    """

    place: HangPlace
    form: ClassInput
    minutes: Longs
    votes: Mapping[str, HangVotes]
    levels: HangVotes | None
    counted: Flags

    def case(self, at: int) -> HangCase:
        """Return a job with the votes of characteristics."""
        own = {name: int(each.vote[at]) for name, each in self.votes.items()}
        return HangCase(self.form, at, int(self.minutes[at]), self.votes, own)

    def level_case(self, at: int) -> HangCase:
        """Return a job with the vote of its level of work."""
        assert self.levels is not None
        own = {WORK_LEVEL: int(self.levels.vote[at])}
        return HangCase(self.form, at, int(self.minutes[at]), {WORK_LEVEL: self.levels}, own)

    def answers(self, majority: Votes) -> tuple[Votes, Flags]:
        """Return the answer of each job, and which answers the level of work decides."""
        answers, by_level = majority.copy(), ~self.counted
        if self.levels is not None:
            level = self.levels.vote
            opposite = ((majority == NO) & (level == YES)) | ((majority == YES) & (level == NO))
            for at in np.flatnonzero(opposite & self.counted).tolist():
                by_level[at] = self._level_decides(at, int(majority[at]))
            if self.place.where != END:
                answers[(majority == UNDECIDED) & (level == NO)] = NO
            is_open = (level == UNDECIDED) | (level == MISSING)
            of_level = np.where(level == YES, YES, np.where(is_open, UNDECIDED, NO))
            answers = np.where(by_level, of_level, answers).astype(np.int8)
        answers[self.minutes < self.form.limits.hang] = NO
        for at in np.flatnonzero(by_level & (answers == YES)).tolist():
            case = _with_interval(self.level_case(at))
            if _is_usual(case) or _came_back(self.place, case):
                answers[at] = UNDECIDED
        return answers, by_level

    def _level_decides(self, at: int, answer: int) -> bool:
        """Return whether the level of work decides against the votes, though work was counted.

        Counters may vote "no hang" for many SMs that spin.
        """
        if answer == YES:
            return _moves_data(_with_interval(self.case(at)))
        waiting = _with_interval(self.level_case(at))
        return waiting.spinning and waiting.counted


def _moves_data(case: HangCase) -> bool:
    """Whether GPUs that look busy move data in the interval: copies do no arithmetic."""
    rates = {name: case.mean_inside(name) for name in ("pcie", "nvlink")}
    busy = case.form.limits.busy
    return case.spinning and any(
        (rate or 0.0) >= (busy[name] or 0.0) for name, rate in rates.items()
    )


def _level_finding(
    place: HangPlace, job_class: JobClass, case: HangCase, answer: int, lacking: list[str]
) -> Finding:
    """Return the finding by the level of work; without counters its confidence is low."""
    vote = case.own_votes[WORK_LEVEL]
    confidence: FindingConfidence | None = None
    if vote == YES:
        case = _with_interval(case)
    if case.minutes < case.form.limits.hang:
        sentence = _short(place, case)
    elif answer == YES:
        sentence = place.found(case)
        confidence = "high" if case.counted else "low"
    elif vote == YES:
        sentence = _usual(case) if _is_usual(case) else _end_of_wait(case)
    elif answer == UNDECIDED:
        sentence = _level_unknown(place, case)
    else:
        sentence = _level_none(place, case)
    return _as_finding(
        job_class, case, answer, sentence, lacking, confidence, _level_check(case, answer)
    )


def _is_usual(case: HangCase) -> bool:
    """Whether what looks like a hang, without counters of work, may be usual for the job."""
    return case.spinning and not case.counted and _usual_outside(case)


def _came_back(place: HangPlace, case: HangCase) -> bool:
    """Whether what only power shows to be a hang ended as a copy does: the program went on."""
    return case.likely and place.where == END and _ended_well(case)


def _usual_outside(case: HangCase) -> bool:
    inside = np.zeros(case.minutes, np.bool_)
    inside[case.begin : case.end] = True
    return low_is_usual(case.levels, case.utilisation, inside)


def _ended_well(case: HangCase) -> bool:
    """Whether the program itself ended, without an error: its wait was over."""
    return str(case.row["state"]) == "COMPLETED"


def _usual(case: HangCase) -> str:
    return f"Unknown: {_signs_then(case)}, which may be usual for it; {_RECORD}."


def _end_of_wait(case: HangCase) -> str:
    return (
        f"Unknown: {_signs_then(case)}, but it completed: a copy to the host shows the same, and "
        f"ends; {_RECORD}."
    )


def _signs_then(case: HangCase) -> str:
    begin = text(case.begin * 60, "s")
    return f"from {begin} after the start, for {case.lasted}, its GPUs showed {signs(case)}"


def signs(case: HangCase) -> str:
    """Return utilisation and power in the interval: "utilisation 100 %, power 38 % of ..."."""
    shown = []
    utilisation = case.mean_inside("gpu_util")
    if utilisation is not None:
        shown.append(f"utilisation {text(utilisation, 'fraction')}")
    power, working = case.values("power"), case.levels >= WORKING
    working[case.begin : case.end] = False
    at_work, then = power[working & ~np.isnan(power)], case.mean_inside("power")
    if then is not None and at_work.size:
        share = text(round(then / float(at_work.mean()), 4), "fraction")
        shown.append(f"power {share} of what it was at work")
    return ", ".join(shown) or "no activity"


def _level_none(place: HangPlace, case: HangCase) -> str:
    """Return the sentence of a `no` by the level of work, with what shows the work."""
    long = f"{place.noun} is {case.long} or more without work"
    if case.own_votes[WORK_LEVEL] == UNUSED:
        return f"No: its GPUs did no work{so_far(case.row) or ' at all'}; {long} beside work."
    by = "power" if not np.isnan(case.values("power")).all() else "utilisation"
    if _moves_data(replace(case, end=case.minutes)):
        by = "PCIe or NVLink traffic"
    light = (case.utilisation >= AWAKE) & (case.utilisation < PINNED)
    at_work = np.flatnonzero((case.levels >= WORKING) | light)
    if at_work.size and place.where == BEGIN:
        return f"No: {by} shows work {_after(int(at_work[0]))}; {long}."
    if at_work.size and place.where == END:
        left = case.minutes - 1 - int(at_work[-1])
        until = "now" if so_far(case.row) else "its end"
        when = f"to {until}" if left <= SLACK else f"until {text(left * 60, 's')} before {until}"
        return f"No: {by} shows work {when}; {long}."
    if at_work.size > 1:
        pause = int(np.diff(at_work).max()) - 1
        if pause:
            return f"No: {by} shows work with pauses of at most {text(pause * 60, 's')}; {long}."
    return f"No: {by} shows no pause between work; {long}."


def _after(minutes: int) -> str:
    return "from the start" if minutes <= SLACK else f"{text(minutes * 60, 's')} after the start"


def _level_unknown(place: HangPlace, case: HangCase) -> str:
    """Return why the level of work is unknown, and what to record."""
    unmeasured = int(np.isnan(case.utilisation).sum())
    unclear = int((np.isnan(case.levels) & ~np.isnan(case.utilisation)).sum())
    if not unclear:
        return _not_measured(place, case, unmeasured)
    busy = f"its GPUs were in use, work is not known for {text(unclear * 60, 's')}"
    if np.isnan(case.values("power")).all():
        return (
            f"Unknown: {busy}: in {place.noun} utilisation can be 100 %, too. Record power, or "
            "better tensor_active and dram_active."
        )
    return (
        f"Unknown: {busy}: power between idle and its level at work shows neither work nor "
        f"{place.noun}; {_RECORD}."
    )


def _level_check(case: HangCase, answer: int) -> Iterator[CheckedValue]:
    value = float(case.votes[WORK_LEVEL].compared[case.place])
    known = None if value != value else value
    yield CheckedValue(WORK_LEVEL, known, "<", WAITING, "fraction", _HOLDS[answer])


def _finding(place: HangPlace, job_class: JobClass, case: HangCase, answer: int) -> Finding:
    """Return the finding by the majority of votes."""
    missing, unused = case.with_vote(MISSING), case.with_vote(UNUSED)
    if case.minutes < case.form.limits.hang:
        answer, sentence = NO, _short(place, case)
    elif answer == UNDECIDED:
        few = len(missing) * 2 > len(case.votes)
        sentence = too_few(case.form, tuple(case.votes), missing) if few else _gap(place, case)
    elif answer == NO:
        sentence = place.none(case) + voted_end(case, missing, unused)
    else:
        case = _with_interval(case)
        sentence = place.found(case)
    confidence: FindingConfidence | None = "high" if answer == YES else None
    return _as_finding(job_class, case, answer, sentence, missing, confidence, _checks(case))


def _as_finding(
    job_class: JobClass,
    case: HangCase,
    answer: int,
    sentence: str,
    missing: list[str],
    confidence: FindingConfidence | None,
    checks: Iterable[CheckedValue],
) -> Finding:
    """Return the finding with its checks; where it holds, with the interval of the case."""
    begin, end = _bounds(case) if answer == YES else (None, None)
    return job_class.finding(
        case.form,
        answer,
        sentence,
        missing=missing,
        checks=checks,
        evidence=_evidence(case) if answer == YES else {},
        begin=begin,
        end=end,
        confidence=confidence,
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


def _gap(place: HangPlace, case: HangCase) -> str:
    open_ = case.with_vote(UNDECIDED)
    lacking = max(int(np.isnan(case.values(name)).sum()) for name in open_)
    return _not_measured(place, case, lacking)


def _not_measured(place: HangPlace, case: HangCase, minutes: int) -> str:
    return (
        f"Unknown: {text(minutes * 60, 's')} of the "
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
        "voted_yes": None if case.by_level else float(len(case.with_vote(YES))),
        "voted": None if case.by_level else float(len(case.with_vote(YES, NO, UNDECIDED))),
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


def _bounds(case: HangCase) -> tuple[datetime, datetime]:
    """When the interval begins and ends."""
    start, as_of = case.row["start"], case.row["as_of"]
    begin, end = (start + timedelta(minutes=minute) for minute in (case.begin, case.end))
    return begin, min(end, as_of)


def worked_at(case: HangCase) -> tuple[int, int] | None:
    """Return the first and last minute with a GPU at work; None without any, or not measured."""
    first, last = (
        int(case.form.idle_times.first[case.place]),
        int(case.form.idle_times.last[case.place]),
    )
    return None if first < 0 else (first, last)
