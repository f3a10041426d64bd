"""Advice replayed over recorded jobs: what it would have been, and its effect."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tachograph.catalog.config import AdviceOptions
from tachograph.catalog.tables import WASTE
from tachograph.judge.advice.advise import (
    HOURS_WORTH_NAMING,
    LARGE_MIB,
    RECOVERABLE,
    WORTH_NAMING,
    Advice,
    AdviceLine,
    SiteFacts,
    advise,
)
from tachograph.judge.advice.past_jobs import HANGS, History, PastJob

# findings by which a cause of waste is named beforehand
NAMES_OF_CAUSE: Mapping[str, frozenset[str]] = {
    "never_used": frozenset(
        {"one_gpu_of_many", "gpus_never_used", "idle_job", "idle_nodes", "load_imbalance_waste"}
    ),
    "hung": HANGS,
    "cold_start": frozenset({"cold_start"}),
    "idle": frozenset({"idle_job", "bursty", "low_utilisation", *HANGS, "cold_start"}),
    "imbalance": frozenset({"imbalanced_gpus", "load_imbalance_waste", "idle_nodes"}),
}
FAILURES = ("gpus", "gpu_memory", "time", "host_memory")


@dataclass(slots=True)
class BacktestSums:
    """What following the advice would have meant for some jobs.

    advised: jobs with a line that changes the request; followed: {topic: lines}; broken: {topic:
    jobs that would have failed}; undecided: {topic: lines of jobs whose own need was not measured}.
    Hours are GPU-hours: held; saved, by fewer GPUs or an earlier limit of a hung job; large_saved,
    of large memory moved to a smaller tier; recoverable, of jobs with a group of past jobs in
    `with_history`, of which `named` are those whose cause the advice names; named_all: those of all
    jobs; known: those of a cause that a past job of the user had: no advice that rests on past jobs
    of the user can name others. minor: those below 2 % of their job's GPU-hours and below 1 h, not
    worth naming, and how many of these count as named or known. warned: jobs of which a cause was
    named; warned_right: those that had one of these.
    """

    jobs: int = 0
    grouped: int = 0
    advised: int = 0
    broken_jobs: int = 0
    followed: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    undecided: Counter[str] = field(default_factory=Counter)
    gpu_hours: float = 0.0
    saved: float = 0.0
    large_hours: float = 0.0
    large_saved: float = 0.0
    recoverable: float = 0.0
    with_history: float = 0.0
    named: float = 0.0
    named_all: float = 0.0
    known: float = 0.0
    minor: float = 0.0
    minor_named: float = 0.0
    minor_known: float = 0.0
    warned: int = 0
    warned_right: int = 0

    @property
    def named_all_share(self) -> float | None:
        """Share of all recoverable hours that the advice names; None without any."""
        return self.named_all / self.recoverable if self.recoverable else None

    @property
    def worth_named_share(self) -> float | None:
        """Share of the recoverable hours worth naming that the advice names; None without any."""
        worth = self.recoverable - self.minor
        return (self.named_all - self.minor_named) / worth if worth > 0 else None

    @property
    def worth_known_share(self) -> float | None:
        """Share of hours worth naming that past jobs of the user could name; None if none."""
        worth = self.recoverable - self.minor
        return (self.known - self.minor_known) / worth if worth > 0 else None

    @property
    def known_share(self) -> float | None:
        """Share of all recoverable hours that advice from past jobs could name, or None."""
        return self.known / self.recoverable if self.recoverable else None

    @property
    def broken_share(self) -> float | None:
        """Share of the advised jobs that would have failed; None without any."""
        return self.broken_jobs / self.advised if self.advised else None

    @property
    def named_share(self) -> float | None:
        """Share of the recoverable hours of jobs with past jobs that the advice names, or None."""
        return self.named / self.with_history if self.with_history else None


@dataclass(frozen=True, slots=True)
class BrokenJob:
    """A job that would have failed: which line, what it advised, what the job used."""

    job: PastJob
    topic: str
    advised: float
    used: float
    confidence: str


@dataclass(frozen=True, slots=True)
class BacktestReport:
    """Sums over all jobs, by user, partition, confidence; the jobs that would have failed."""

    total: BacktestSums
    by_user: Mapping[str, BacktestSums]
    by_partition: Mapping[str, BacktestSums]
    confidence: Mapping[str, tuple[int, int]]
    broken: tuple[BrokenJob, ...]


def replay(jobs: Iterable[PastJob], site: SiteFacts, options: AdviceOptions) -> BacktestReport:
    """Return the effect of advice before each job, based only on jobs that had ended by then.

    One pass, in order of submission; the order in which jobs are given does not matter.
    """
    history, causes = History(options), dict[str, set[str]]()
    running: list[tuple[float, str, PastJob]] = []
    total, users, partitions = BacktestSums(), dict[str, BacktestSums](), dict[str, BacktestSums]()
    levels, broken = dict[str, list[int]](), list[BrokenJob]()
    for job in sorted(jobs, key=lambda job: (job.submit, job.key)):
        while running and running[0][0] <= job.submit:
            ended = heapq.heappop(running)[2]
            history.add(ended)
            causes.setdefault(ended.user, set()).update(_causes(ended))
        advice = advise(job.request, history, job.submit, site, options, brief=True)
        failed = list(_failures(advice, job))
        broken += failed
        for sums in (
            total,
            users.setdefault(job.user, BacktestSums()),
            partitions.setdefault(job.partition or "", BacktestSums()),
        ):
            _add(sums, advice, job, failed, causes.get(job.user, set()))
        for line in advice.lines:
            if line.followed:
                counts = levels.setdefault(line.confidence, [0, 0])
                counts[0] += 1
                counts[1] += any(one.topic == line.topic for one in failed)
        heapq.heappush(running, (job.end, job.key, job))
    return BacktestReport(
        total,
        users,
        partitions,
        {name: (counts[0], counts[1]) for name, counts in levels.items()},
        tuple(broken),
    )


def need(job: PastJob, line: AdviceLine) -> float | None:
    """Return what a job turned out to need for the topic of a line; None: not measured.

    A hung job needs no time: it was ended, and did no work. One that ended at its limit needed all
    of it at least.
    """
    if line.topic == "gpus":
        return None if job.gpus_used is None else float(job.gpus_used)
    if line.topic == "gpu_memory":
        return job.hbm_peak_mib
    if line.topic == "host_memory":
        return job.mem_peak_mib
    return 0.0 if job.hung else job.elapsed_s


def _failures(advice: Advice, job: PastJob) -> Iterable[BrokenJob]:
    for line in advice.lines:
        if not line.followed or line.value is None:
            continue
        used = need(job, line)
        if used is not None and used > line.value and line.value < (line.asked or line.value + 1):
            yield BrokenJob(job, line.topic, line.value, used, line.confidence)


def _causes(job: PastJob) -> set[str]:
    """Causes of waste that a job shows: hours that were recoverable, or a finding that names it."""
    lost = {cause for cause, part in zip(WASTE, job.recoverable, strict=False) if part}
    return lost | {
        cause for cause, codes in NAMES_OF_CAUSE.items() if not codes.isdisjoint(job.problems)
    }


def _add(
    sums: BacktestSums,
    advice: Advice,
    job: PastJob,
    failed: Sequence[BrokenJob],
    known: Collection[str],
) -> None:
    sums.jobs += 1
    grouped = advice.group.level in ("exact", "pattern")
    sums.grouped += grouped
    followed = [line for line in advice.lines if line.followed]
    sums.advised += bool(followed)
    sums.broken_jobs += bool(failed)
    for line in followed:
        sums.followed[line.topic] += 1
        sums.undecided[line.topic] += need(job, line) is None
    for one in failed:
        sums.broken[one.topic] += 1
    hours = job.gpu_hours or 0.0
    sums.gpu_hours += hours
    large = job.hbm_mib is not None and job.hbm_mib >= LARGE_MIB
    sums.large_hours += hours if large else 0.0
    if not failed:
        left = hours - _saved(followed, job)
        sums.saved += hours - left
        if large and any(
            line.topic == "gpu_memory" and (line.value or 0) < LARGE_MIB for line in followed
        ):
            sums.large_saved += left
    lost = [(cause, part or 0.0) for cause, part in zip(WASTE, job.recoverable, strict=False)]
    whole = sum(part for _, part in lost)
    sums.recoverable += whole
    names = {cause for cause in WASTE if cause in NAMES_OF_CAUSE and _names(advice, cause)}
    named = sum(part for cause, part in lost if cause in names)
    sums.named_all += named
    sums.known += sum(part for cause, part in lost if cause in known or cause in names)
    small = min(WORTH_NAMING * hours, HOURS_WORTH_NAMING)
    for cause, part in lost:
        if part < small:
            sums.minor += part
            sums.minor_named += part * (cause in names)
            sums.minor_known += part * (cause in known or cause in names)
    sums.warned += bool(names)
    sums.warned_right += not names.isdisjoint(_causes(job))
    if grouped:
        sums.with_history += whole
        sums.named += named


def _saved(followed: Sequence[AdviceLine], job: PastJob) -> float:
    """GPU-hours that fewer GPUs, and the limit of a hung job, would have saved."""
    hours, left = job.gpu_hours or 0.0, 1.0
    for line in followed:
        if line.topic == "gpus" and job.gpus and job.gpus_used is not None:
            left *= min(1.0, (line.value or 0.0) / job.gpus)
        if line.topic == "time" and job.hung and job.elapsed_s:
            left *= min(1.0, (line.value or 0.0) / job.elapsed_s)
    return hours * (1 - left)


def _names(advice: Advice, cause: str) -> bool:
    """Whether the advice names a cause: by fewer GPUs, or as a problem that past jobs had."""
    gpus, problems = advice.line("gpus"), advice.line("problems")
    if (
        cause == "never_used"
        and gpus is not None
        and (gpus.value is not None or "no GPU worked" in (gpus.reason or ""))
    ):
        return True
    if problems is None or problems.value is None:
        return False
    return f"{RECOVERABLE}{cause}" in problems.evidence or not NAMES_OF_CAUSE[cause].isdisjoint(
        problems.evidence
    )
