"""Slowdown of recurring jobs beside others on a GPU, measured against their runs alone.

The GPUs of every run -> who was beside whom, for how long -> pairs of job groups -> slowdowns.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from statistics import median
from typing import NamedTuple

from tachograph.catalog.units import text

LEAST_RUNS = 3  # alone and beside the other: with fewer no interval of 90 % exists
MOST_RUNS = 30  # the last ones of either side: what a job does changes over months
CONFIDENCE = 0.9
MOSTLY = 0.8  # of its run time a run was beside the other
BARELY = 0.02  # of its run time: hand-overs, and records that are not exact
# A counter of the whole GPU is a job's own if the other has at most this share of what it has alone
OWN = 0.02
LEAST_RATE = 0.01  # fraction of the peak: below it a counter shows nothing but noise


class HeldGpu(NamedTuple):
    """A GPU of a node; nodes of several clusters may have one name."""

    cluster: str | None
    node: str
    gpu: int


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs of one user and name on as many GPUs of one model. Without a name it is unknown."""

    user: str | None
    name: str | None
    gpu_model: str | None
    gpus: int

    @property
    def label(self) -> str:
        """Label user/name."""
        return f"{self.user or '?'}/{self.name or '?'}"


@dataclass(frozen=True, slots=True, eq=False)
class HeldRun:
    """A run, and the GPUs that it held from start to end.

    elapsed_s: run time without suspension. alone: attribution found no other holder of its GPUs.
    mps: its part of each GPU by MPS, which also limits a run that is alone; None: no limit. rates:
    {counter: its own mean}, only of runs that were alone.
    """

    key: str
    group: RunGroup
    start: datetime
    end: datetime
    elapsed_s: float
    completed: bool
    gpus: tuple[HeldGpu, ...]
    alone: bool = False
    mps: float | None = None
    cpus: int | None = None
    rates: Mapping[str, float] = field(default_factory=dict)


class Meeting(NamedTuple):
    """A time in which another run was on a GPU of a run, too."""

    gpu: HeldGpu
    other: HeldRun
    begin: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.end - self.begin).total_seconds()


@dataclass(frozen=True, slots=True)
class PairKey:
    """A job group beside another, or itself, and the parts of the GPU that MPS gave to each."""

    group: RunGroup
    partner: RunGroup
    mps: float | None
    partner_mps: float | None


class SharedRun(NamedTuple):
    """A run beside another group: share of its run time, and when."""

    run: HeldRun
    share: float
    meetings: tuple[Meeting, ...]


@dataclass(frozen=True, slots=True)
class SharedPair:
    """Completed runs of a group alone, and beside another; partner_alone: those of the other."""

    key: PairKey
    alone: tuple[HeldRun, ...]
    beside: tuple[SharedRun, ...]
    partner_alone: tuple[HeldRun, ...]


@dataclass(frozen=True, slots=True)
class SharedRuns:
    """What a lake has of shared GPUs.

    left_out: {(group, reason): completed runs} that count for no pair; reasons: `several` were
    beside them, or somebody unknown; `partly`: one was, for less than MOSTLY of the time.
    """

    pairs: tuple[SharedPair, ...]
    left_out: Mapping[tuple[RunGroup, str], int]


@dataclass(frozen=True, slots=True)
class SlowdownInterval:
    """Slowdown of a job group beside another, measured or predicted, and its interval."""

    slowdown: float
    low: float
    high: float


def shared_runs(runs: Iterable[HeldRun], chosen: Collection[str] | None = None) -> SharedRuns:
    """Return who ran alone and beside whom; `chosen`: keys of the runs to measure, None: all."""
    of_all = list(runs)
    meetings = _meetings(of_all)
    alone: dict[RunGroup, list[HeldRun]] = defaultdict(list)
    beside: dict[PairKey, list[SharedRun]] = defaultdict(list)
    left_out: Counter[tuple[RunGroup, str]] = Counter()
    for run in sorted(of_all, key=lambda run: (run.start, run.key)):
        if not run.completed or run.elapsed_s <= 0:
            continue
        met = meetings.get(run.key, [])
        if math.fsum(meeting.seconds for meeting in met) <= BARELY * run.elapsed_s:
            if run.alone and (run.mps is None or run.mps >= 1):
                alone[run.group].append(run)
        elif chosen is None or run.key in chosen:
            key, share = _partner(run, met)
            if key is None:
                left_out[run.group, "several"] += 1
            elif share < MOSTLY:
                left_out[run.group, "partly"] += 1
            else:
                beside[key].append(SharedRun(run, share, tuple(met)))
    pairs: list[SharedPair] = []
    for key, runs_beside in beside.items():
        own = [run for run in alone[key.group] if chosen is None or run.key in chosen]
        last, others = runs_beside[-MOST_RUNS:], alone[key.partner][-MOST_RUNS:]
        pairs.append(SharedPair(key, tuple(own[-MOST_RUNS:]), tuple(last), tuple(others)))
    pairs.sort(key=lambda pair: (-len(pair.beside), str(pair.key)))
    return SharedRuns(tuple(pairs), left_out)


def _meetings(runs: Sequence[HeldRun]) -> dict[str, list[Meeting]]:
    """{run: all times in which another was on one of its GPUs}."""
    by_gpu: dict[HeldGpu, list[HeldRun]] = {}
    for run in sorted(runs, key=lambda run: (run.start, run.key)):
        for gpu in run.gpus:
            by_gpu.setdefault(gpu, []).append(run)
    meetings: dict[str, list[Meeting]] = {}
    for gpu, holders in by_gpu.items():
        present: list[HeldRun] = []
        for run in holders:
            present = [other for other in present if other.end > run.start]
            for other in present:
                end = min(run.end, other.end)
                meetings.setdefault(run.key, []).append(Meeting(gpu, other, run.start, end))
                meetings.setdefault(other.key, []).append(Meeting(gpu, run, run.start, end))
            present.append(run)
    return meetings


def _partner(run: HeldRun, met: Sequence[Meeting]) -> tuple[PairKey | None, float]:
    """Return the group that was beside a run, and for which share of its time on each GPU.

    No key: several groups were, two runs of one group at once, or somebody unknown.
    """
    seconds: dict[PairKey, float] = defaultdict(float)
    for meeting in met:
        other = meeting.other
        seconds[PairKey(run.group, other.group, run.mps, other.mps)] += meeting.seconds
    key, longest_s = max(seconds.items(), key=lambda item: item[1])
    shares = [_covered_s(met, gpu) / run.elapsed_s for gpu in run.gpus]
    length_s = run.elapsed_s * len(run.gpus)
    elsewhere_s = math.fsum(seconds.values()) - longest_s
    twice_s = longest_s + elsewhere_s - run.elapsed_s * math.fsum(shares)
    if key.partner.name is None or max(elsewhere_s, twice_s) > BARELY * length_s:
        return None, 0.0
    return key, min(1.0, *shares)


def _covered_s(met: Sequence[Meeting], gpu: HeldGpu) -> float:
    """Seconds in which anybody was beside a run on a GPU."""
    covered_s, until = 0.0, None
    for meeting in sorted(met, key=lambda meeting: meeting.begin):
        if meeting.gpu != gpu or (until is not None and meeting.end <= until):
            continue
        begin = meeting.begin if until is None else max(meeting.begin, until)
        covered_s += (meeting.end - begin).total_seconds()
        until = meeting.end
    return covered_s


def slowdown_by_time(pair: SharedPair) -> SlowdownInterval | None:
    """Return how much longer completed runs took while beside the other; None: too few runs."""
    alone = [run.elapsed_s for run in pair.alone]
    return median_slowdown(alone, [(row.run.elapsed_s, row.share) for row in pair.beside])


def own_counter(pair: SharedPair) -> str | None:
    """Return a counter of the GPU that shows the work of this group only; None: there is none.

    That is the highest of those that the other, alone, hardly moves. Of a group beside itself each
    run has half of what the GPU counts.
    """
    rates = _median_rates(pair.alone)
    others = rates if pair.key.partner == pair.key.group else _median_rates(pair.partner_alone)
    candidates = [
        (rate, counter)
        for counter, rate in rates.items()
        if rate >= LEAST_RATE and (others is rates or others.get(counter, math.inf) <= OWN * rate)
    ]
    return max(candidates)[1] if candidates else None


def _median_rates(runs: Sequence[HeldRun]) -> dict[str, float]:
    """{counter: median over runs}, of counters that all runs have."""
    if len(runs) < LEAST_RUNS:
        return {}
    counters = set.intersection(*(set(run.rates) for run in runs))
    return {counter: median(run.rates[counter] for run in runs) for counter in counters}


def slowdown_by_rate(
    pair: SharedPair, counter: str, shared_rates: Mapping[str, Mapping[str, float]]
) -> SlowdownInterval | None:
    """Return how much slower the work of a group went on beside the other, by one counter.

    `shared_rates`: {run: {counter: mean of its GPUs while the other was there}}.
    """
    itself = pair.key.partner == pair.key.group
    alone = [1 / run.rates[counter] for run in pair.alone if run.rates.get(counter)]
    beside: dict[object, float] = {}
    for row in pair.beside:
        rate = shared_rates.get(row.run.key, {}).get(counter)
        if rate:
            # Both runs of one group have the same numbers, which count once.
            times = {(meeting.gpu, meeting.begin, meeting.end) for meeting in row.meetings}
            window = frozenset(times) if itself else row.run.key
            beside[window] = 2 / rate if itself else 1 / rate
    return median_slowdown(alone, [(duration, 1.0) for duration in beside.values()])


def median_slowdown(
    alone: Sequence[float], beside: Sequence[tuple[float, float]]
) -> SlowdownInterval | None:
    """Return the slowdown of (duration, share of it beside another) against durations alone.

    The interval is that of Hodges and Lehmann: it inverts the rank-sum test of Mann and Whitney, so
    it needs no distribution of run times, only that it is the same on both sides but for the
    factor. A run that was alone for a part of its time did that part at full speed. None: fewer
    than LEAST_RUNS on a side.

    >>> median_slowdown([100, 102, 104], [(125, 1.0), (120, 1.0), (130, 1.0)])
    SlowdownInterval(slowdown=1.2254901960784315, low=1.1538461538461537, high=1.2999999999999998)
    >>> median_slowdown([100, 102, 104], [(125, 1.0), (120, 1.0)]) is None
    True
    """
    if min(len(alone), len(beside)) < LEAST_RUNS:
        return None
    ratios = sorted(
        _while_beside(duration, share, duration_alone)
        for duration, share in beside
        for duration_alone in alone
    )
    rank = _lowest_rank(len(alone), len(beside))
    low, high = ratios[rank], ratios[-1 - rank]
    return SlowdownInterval(median(ratios), low, high) if math.isfinite(high) else None


def _while_beside(duration: float, share: float, alone: float) -> float:
    """Return the slowdown during `share` of a duration, so that the work is that of one alone."""
    rate = (alone / duration - (1 - share)) / share
    return 1 / rate if rate > 0 else math.inf


@cache
def _lowest_rank(alone: int, beside: int) -> int:
    """Return the place, from 0, of the lower end of the interval among all sorted ratios.

    >>> _lowest_rank(3, 3), _lowest_rank(10, 10)
    (0, 27)
    """
    # Of all orders of the runs, so many have 0, 1, 2 .. pairs in which the run beside is shorter.
    orders = [1] + [0] * (alone * beside)
    for size in range(1, alone + 1):
        # times (1 - q^(beside + size)) / (1 - q^size): the Gaussian binomial coefficients
        for index in range(len(orders) - 1, beside + size - 1, -1):
            orders[index] -= orders[index - beside - size]
        for index in range(size, len(orders)):
            orders[index] += orders[index - size]
    allowed = (1 - CONFIDENCE) / 2 * math.comb(alone + beside, alone) * (1 + 1e-12)
    rank, below = -1, 0
    for count in orders:
        below += count
        if below > allowed:
            break
        rank += 1
    return rank


def caveats(pair: SharedPair) -> Iterator[str]:
    """Yield what else differs between the runs of a pair, alone and beside the other."""
    beside = [row.run for row in pair.beside]
    if not pair.alone or not beside:
        return
    cpus_alone, cpus_beside = _median_cpus(pair.alone), _median_cpus(beside)
    if cpus_alone != cpus_beside:
        yield f"{text(cpus_alone, 'count')} CPUs alone, {text(cpus_beside, 'count')} beside it"
    if beside[-1].start < pair.alone[0].start or pair.alone[-1].start < beside[0].start:
        yield "its runs alone were at another time: another version of it is not excluded"


def _median_cpus(runs: Sequence[HeldRun]) -> float | None:
    cpus = [run.cpus for run in runs if run.cpus is not None]
    return median(cpus) if cpus else None
