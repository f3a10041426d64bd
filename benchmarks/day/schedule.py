"""The schedule of the simulated day: policies, phases, placement."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Literal

import numpy as np
from numpy.random import Generator

from day.gpu import NAMES, NOTHING, corunners, rates, world
from day.jobs import Application, SeenJob, SharedDay, dcgm, measured
from tachograph.catalog.arrays import Flags, Floats, Longs
from tachograph.catalog.config import InterferenceOptions
from tachograph.sharing.demand import H100_NVL, Calibration, Demand, Sharing
from tachograph.sharing.estimate import matrix

_BATCH = 2048  # pairs that are solved at once


@dataclass(frozen=True, slots=True)
class Phases:
    """Phases of an application that follow each other in turn. kernels: places in NAMES, or NOTHING.

    seconds: how long each lasts alone, mean.
    """

    kernels: Longs
    seconds: Floats

    @classmethod
    def of(cls, shares: Sequence[tuple[float, str | None]], *, cycle_s: float) -> Phases:
        """Phases of these shares of a cycle; None: no kernel."""
        kernels = [NOTHING if name is None else NAMES.index(name) for _, name in shares]
        return cls(np.array(kernels, np.int64), np.array([share * cycle_s for share, _ in shares]))


def speeds(first: Phases, second: Phases, table: Floats) -> tuple[float, float]:
    """Return at what share of their speed alone two applications run side by side for long; `table`: see `world`.

    >>> waits = Phases.of([(1.0, None)], cycle_s=1.0)
    >>> speeds(waits, waits, np.ones((NOTHING + 1, NOTHING + 1)))
    (1.0, 1.0)
    """
    found = all_speeds([first, second], table)
    return float(found[0, 1]), float(found[1, 0])


def all_speeds(applications: Sequence[Phases], table: Floats) -> Floats:
    """Return the speed of each application (row) beside each (column), itself included; `table`: see `world`."""
    found = np.ones((len(applications), len(applications)))
    by_phases: dict[int, list[int]] = {}
    for place, one in enumerate(applications):
        by_phases.setdefault(one.kernels.size, []).append(place)
    for rows, columns in product(by_phases.values(), repeat=2):
        pairs = np.array([(row, column) for row in rows for column in columns if row <= column], np.int64)
        for at in range(0, len(pairs), _BATCH):
            a, b = pairs[at : at + _BATCH].T
            found[a, b], found[b, a] = _of_pairs([applications[i] for i in a], [applications[j] for j in b], table).T
    return found


def _of_pairs(first: Sequence[Phases], second: Sequence[Phases], table: Floats) -> Floats:
    a, b = (np.stack([one.kernels for one in side]) for side in (first, second))
    beside = table[a[:, :, None], b[:, None, :]], table[b[:, None, :], a[:, :, None]]
    lasts = [np.stack([one.seconds for one in side]) for side in (first, second)]
    return _lasting(np.stack(beside, axis=1), lasts)


def speeds_of_set(applications: Sequence[Phases], seed: int) -> tuple[float, ...]:
    """Return at what share of their speed alone several applications run side by side for long, in the world of a seed.

    What kernels keep is simulated of the whole set; co-location overhead adds up over the others.
    """
    shape = [one.kernels.size for one in applications]
    states = product(*(one.kernels.tolist() for one in applications))
    own = np.array([_kept(state, seed) for state in states]).T.reshape(1, len(applications), *shape)
    found = _lasting(own, [one.seconds[None] for one in applications])[0]
    return tuple(float(one) for one in found)


def _kept(kernels: Sequence[int], seed: int) -> Floats:
    """Shares of their speed that these keep together; NOTHING disturbs none."""
    here = [place for place, kernel in enumerate(kernels) if kernel != NOTHING]
    kept = np.ones(len(kernels))
    if len(here) < 2:
        return kept
    loses = corunners(seed)
    for place, rate in zip(here, rates(*(NAMES[kernels[place]] for place in here)), strict=True):
        others = np.prod([loses[kernels[place], kernels[other]] for other in here if other != place])
        kept[place] = max(rate * float(others), 1e-3)
    return kept


def _lasting(own: Floats, seconds: Sequence[Floats]) -> Floats:
    """Return mean speeds (set, member) of sets that run for long.

    own: speed (set, member, phase of the first, of the second, ...). seconds: of each member, (set, phase). Phases last
    at random about their mean, and longer where others slow them: the times in which all are in certain phases are
    those of the Markov chain of all.
    """
    sets, members, *shape = own.shape
    states = np.arange(int(np.prod(shape))).reshape(shape)
    here = states.ravel()
    flow = np.zeros((sets, here.size, here.size))
    for member, lasts in enumerate(seconds):
        if shape[member] > 1:
            across = [number if place == member else 1 for place, number in enumerate(shape)]
            leaves = (own[:, member] / lasts.reshape(sets, *across)).reshape(sets, -1)
            flow[:, np.roll(states, -1, axis=member).ravel(), here] += leaves
            flow[:, here, here] -= leaves
    flow[:, 0] = 1.0
    begin = np.zeros((sets, here.size, 1))
    begin[:, 0] = 1.0
    times = np.linalg.solve(flow, begin)[:, :, 0]
    return np.asarray((own.reshape(sets, members, -1) * times[:, None]).sum(-1), np.float64)


@dataclass(frozen=True, slots=True)
class PolicyKnowledge:
    """What there is to decide by, arrays of (application, application beside it).

    expected: slowdown of the row, as estimated, NaN unknown; upper: its upper value, where kernels were profiled, else
    as expected. safe: it calls all pairs of kernels safe. true: slowdown that the world gives; for the oracle alone.
    """

    seen: Sequence[SeenJob]
    expected: Floats
    upper: Floats
    safe: Flags
    true: Floats
    settings: InterferenceOptions


@dataclass(frozen=True, slots=True)
class Permits:
    """may: these two may share. cost: of several that may, the least is chosen."""

    may: Flags
    cost: Floats


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy: its code, a sentence for people, what it permits."""

    code: str
    sentence: str
    permits: Callable[[PolicyKnowledge], Permits]


def exclusive(known: PolicyKnowledge) -> Permits:
    """None shares."""
    none = np.zeros((len(known.seen), len(known.seen)))
    return Permits(none > 0, none)


def roofline(known: PolicyKnowledge) -> Permits:
    """One compute-bound and one memory-bound may share."""
    memory = np.array([one.bound == "memory" for one in known.seen])
    return Permits(memory[:, None] != memory[None, :], np.zeros((memory.size, memory.size)))


def occupancy(known: PolicyKnowledge) -> Permits:
    """Those may share whose achieved occupancies sum to less than 100 %."""
    achieved = np.array([one.occupancy for one in known.seen])
    total = achieved[:, None] + achieved[None, :]
    return Permits(total < 1, total)


def advice(known: PolicyKnowledge) -> Permits:
    """Those may share who are safe, or of whom the upper value of neither is above what is allowed."""
    upper = _at_most(known.upper, known.settings.max_slowdown)
    return Permits(upper.may | safe(known).may, upper.cost)


def safe(known: PolicyKnowledge) -> Permits:
    """Those may share of whom neither is expected to be slower than allowed and all pairs of kernels are safe.

    Of such a pair nothing comes near a limit, and all that decides was measured.
    """
    expected = _at_most(known.expected, known.settings.max_slowdown)
    return Permits(expected.may & known.safe & known.safe.T, expected.cost)


def oracle(known: PolicyKnowledge) -> Permits:
    """Those may share of whom neither will be slower than the configuration allows: it cannot be known in advance."""
    return _at_most(known.true, known.settings.max_slowdown)


def _at_most(slowdown: Floats, most: float) -> Permits:
    worse = np.maximum(slowdown, slowdown.T)
    return Permits(np.nan_to_num(worse, nan=np.inf) <= most, np.nan_to_num(slowdown + slowdown.T, nan=np.inf))


POLICIES: tuple[Policy, ...] = (
    Policy("exclusive", "one job per GPU", exclusive),
    Policy("roofline", "a compute-bound job beside a memory-bound one", roofline),
    Policy("occupancy", "achieved occupancies sum to less than 100 %", occupancy),
    Policy(
        "advice",
        "those of safe, and those whose upper values stay within what is allowed",
        advice,
    ),
    Policy("safe", "no slower than allowed, and no pair of kernels comes near a limit", safe),
    Policy("oracle", "the true slowdown is no more than the allowed one", oracle),
)


def permitted(policy: Policy, known: PolicyKnowledge, *, hbm_bytes: float) -> Permits:
    """Return what a policy permits of those whose memory fits, with the reserve that the configuration wants."""
    found = policy.permits(known)
    used = np.array([one.hbm_bytes for one in known.seen])
    fits = used[:, None] + used[None, :] <= known.settings.safe_hbm * hbm_bytes
    return Permits(found.may & fits, found.cost)


Profiles = Literal["measured", "dcgm", "dcgm-careful"]


def known_of(
    day: SharedDay, speed: Floats, *, seed: int, profiles: Profiles, settings: InterferenceOptions
) -> PolicyKnowledge:
    """Return what there is to decide by on a day; `speed` is the truth (see day.true_speeds).

    What is expected of two applications that know nothing of each other: their phases meet by chance, so slowdowns are
    weighted by the shares of both, and times without a kernel disturb none.
    """
    random = np.random.default_rng((seed, 3))
    seen = [_seen(application, random, profiles, settings) for application in day.applications]
    slowdown, upper, safe = _estimated([demand for one in seen for _, demand in one.phases], settings)
    shares = _shares(seen)
    met = (shares > 0).astype(np.float64)
    unknown = met @ np.isnan(slowdown) @ met.T > 0
    expected, at_most = (1 + shares @ np.nan_to_num(each - 1) @ shares.T for each in (slowdown, upper))
    return PolicyKnowledge(
        seen=seen,
        expected=np.where(unknown, np.nan, expected),
        # without profiles `colocate` knows no other bound than what it assumes of issue slots
        upper=np.where(unknown, np.nan, at_most if profiles == "measured" else expected),
        safe=met @ ~safe @ met.T == 0,
        true=1 / speed,
        settings=settings,
    )


def _seen(application: Application, random: Generator, profiles: Profiles, settings: InterferenceOptions) -> SeenJob:
    if profiles == "measured":
        return measured(application, random)
    return dcgm(application, random, issue=settings.assumed_issue if profiles == "dcgm-careful" else 0.0)


def _estimated(demands: Sequence[Demand], settings: InterferenceOptions) -> tuple[Floats, Floats, Flags]:
    lasting = Sharing(mode="mps", lasting=True)  # jobs launch again and again
    found = matrix(demands, gpu=H100_NVL, calibration=Calibration(), sharing=lasting, settings=settings)
    return found.slowdown, found.upper, found.safe > 0


def _shares(seen: Sequence[SeenJob]) -> Floats:
    """Share of its time that each application (row) is in each phase of all (columns)."""
    shares = np.zeros((len(seen), sum(len(one.phases) for one in seen)))
    column = 0
    for row, one in enumerate(seen):
        for share, _ in one.phases:
            shares[row, column] = share
            column += 1
    return shares


PAIR = 2  # jobs on a GPU, unless more are allowed
MOST = 4  # jobs on a GPU that may be allowed: of more, too many sets of kernels would have to be simulated


@dataclass(frozen=True, slots=True)
class Stay:
    """GPUs from one change of their jobs to the next: [begin_s, end_s) and the jobs on all of them."""

    gpus: tuple[int, ...]
    begin_s: float
    end_s: float
    jobs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlayedDay:
    """A day as it went. starts_s, ran_s, ends_s, gpus: per job. stays: of all GPUs while there was a job on them."""

    starts_s: Floats
    ran_s: Floats  # exactly the time alone where a job never shared, which the difference of two times is not
    ends_s: Floats
    gpus: tuple[tuple[int, ...], ...]
    stays: tuple[Stay, ...]


@dataclass(frozen=True, slots=True)
class SetSharing:
    """More than two jobs on a GPU: `most` of them, whose memory in all is at most `room_bytes`.

    speeds: of applications, in ascending order of their places, as all of them run together.
    """

    most: int
    room_bytes: float
    speeds: Callable[[tuple[int, ...]], tuple[float, ...]]


def true_speeds(day: SharedDay, seed: int) -> Floats:
    """Return speeds of applications (rows) beside others (columns), 1 as alone, in the world of this seed."""
    return all_speeds(_phases(day), world(seed))


def set_sharing(day: SharedDay, seed: int, *, most: int, room_bytes: float) -> SetSharing:
    """Return what lets so many jobs share a GPU, in the world of this seed; sets are simulated as they are met."""
    known = _phases(day)

    @cache
    def together(applications: tuple[int, ...]) -> tuple[float, ...]:
        return speeds_of_set([known[one] for one in applications], seed)

    return SetSharing(most, room_bytes, together)


def _phases(day: SharedDay) -> list[Phases]:
    return [Phases.of(one.phases, cycle_s=one.cycle_s) for one in day.applications]


def play(day: SharedDay, permits: Permits, speed: Floats, *, gpus: int, sets: SetSharing | None = None) -> PlayedDay:
    """Return how the day goes on so many GPUs, two jobs on each at the most, or as many as `sets` allows.

    speed: of application beside application, see `true_speeds`. Errors: ValueError for a job that wants more GPUs.
    """
    if day.gpus.max(initial=0) > gpus:
        raise ValueError(f"a job wants {day.gpus.max()} GPUs of {gpus}")
    cluster = _Cluster(day, permits, speed, gpus, sets)
    for job, arrives in enumerate(day.arrives_s.tolist()):
        cluster.go_on(arrives)
        cluster.arrive(job, arrives)
    cluster.go_on(float("inf"))
    return PlayedDay(
        np.array(cluster.starts),
        np.array(cluster.ran),
        np.array(cluster.ends),
        tuple(cluster.where),
        tuple(cluster.stays),
    )


@dataclass(slots=True)
class _Gang:
    """GPUs that are held together, by the jobs that run on all of them."""

    gpus: tuple[int, ...]
    jobs: list[int] = field(default_factory=list)
    rates: tuple[float, ...] = ()  # of its jobs
    since: float = 0.0
    version: int = 0  # an end that was foreseen before the jobs changed does not count


class _Cluster:
    """The state of a day: what is on the GPUs, who waits, which ends are foreseen."""

    def __init__(self, day: SharedDay, permits: Permits, speed: Floats, gpus: int, sets: SetSharing | None) -> None:
        self.application: list[int] = day.application.tolist()
        self.wants: list[int] = day.gpus.tolist()
        self.memory = [one.hbm_bytes for one in day.applications]
        self.may, self.cost = permits.may.tolist(), permits.cost.tolist()
        self.speed, self.sets = speed.tolist(), sets
        self.most = sets.most if sets else PAIR
        self.left: list[float] = day.alone_s.tolist()
        self.empty = list(range(gpus))  # a heap: the lowest number is given first
        self.gangs: dict[int, _Gang] = {}  # by their first GPU
        self.queue: deque[int] = deque()
        self.foreseen: list[tuple[float, int, int, _Gang]] = []  # when, its first GPU, its version, no two alike
        self.versions = 0
        jobs = len(self.left)
        self.starts, self.ran, self.ends = [0.0] * jobs, [0.0] * jobs, [0.0] * jobs
        self.where: list[tuple[int, ...]] = [()] * jobs
        self.stays: list[Stay] = []

    def go_on(self, until: float) -> None:
        """Let all jobs end that end by then, and give their places away."""
        while self.foreseen and self.foreseen[0][0] <= until:
            now, _, version, gang = heapq.heappop(self.foreseen)
            if version == gang.version:
                self._end(gang, now)

    def arrive(self, job: int, now: float) -> None:
        """Place a job, or let it wait."""
        if not self.queue and self.wants[job] <= len(self.empty):
            self._put(job, self._new_gang(job), now)
            return
        beside = [gang for _, gang in sorted(self.gangs.items()) if self._may_join(job, gang)]
        if beside:
            self._put(job, min(beside, key=lambda gang: self._cost(job, gang)), now)
        else:
            self.queue.append(job)

    def _new_gang(self, job: int) -> _Gang:
        gang = _Gang(tuple(heapq.heappop(self.empty) for _ in range(self.wants[job])))
        self.gangs[gang.gpus[0]] = gang
        return gang

    def _may_join(self, job: int, gang: _Gang) -> bool:
        if len(gang.gpus) != self.wants[job] or len(gang.jobs) >= self.most:
            return False
        mine, others = self.application[job], [self.application[other] for other in gang.jobs]
        if not all(self.may[mine][other] for other in others):
            return False
        return (
            self.sets is None
            or len(others) < PAIR  # two are checked by the policy
            or self.memory[mine] + sum(self.memory[other] for other in others) <= self.sets.room_bytes
        )

    def _cost(self, job: int, gang: _Gang) -> float:
        mine = self.application[job]
        return sum(float(self.cost[mine][self.application[other]]) for other in gang.jobs)

    def _put(self, job: int, gang: _Gang, now: float) -> None:
        self._advance(gang, now)
        self.starts[job], self.where[job] = now, gang.gpus
        gang.jobs.append(job)
        self._foresee(gang, now)

    def _end(self, gang: _Gang, now: float) -> None:
        first = min(range(len(gang.jobs)), key=lambda at: self.left[gang.jobs[at]] / gang.rates[at])
        ended = gang.jobs[first]
        ran = self.ran[ended] + self.left[ended] / gang.rates[first]
        self._advance(gang, now)
        gang.jobs.remove(ended)
        self.left[ended], self.ran[ended], self.ends[ended] = 0.0, ran, now
        self._foresee(gang, now)
        if not gang.jobs:
            del self.gangs[gang.gpus[0]]
            for gpu in gang.gpus:
                heapq.heappush(self.empty, gpu)
        self._give_places([gang] if gang.jobs else [], now)

    def _give_places(self, changed: list[_Gang], now: float) -> None:
        """Empty GPUs to who came first, then places beside others; where that took the first, empty ones again."""
        changed = changed + self._fill_empty(now)
        while changed:
            for gang in changed:
                self._fill(gang, now)
            changed = self._fill_empty(now)

    def _fill_empty(self, now: float) -> list[_Gang]:
        """Start who waits for empty GPUs, in the order of their coming, until there are too few for the next."""
        started = []
        while self.queue and self.wants[self.queue[0]] <= len(self.empty):
            job = self.queue.popleft()
            started.append(self._new_gang(job))
            self._put(job, started[-1], now)
        return started

    def _fill(self, gang: _Gang, now: float) -> None:
        while len(gang.jobs) < self.most:
            following = self._first_who_may(gang)
            if following is None:
                return
            self.queue.remove(following)
            self._put(following, gang, now)

    def _first_who_may(self, gang: _Gang) -> int | None:
        refused: set[tuple[int, int]] = set()
        for job in self.queue:
            kind = self.application[job], self.wants[job]
            if kind not in refused:
                if self._may_join(job, gang):
                    return job
                refused.add(kind)
        return None

    def _rates(self, jobs: list[int]) -> tuple[float, ...]:
        if len(jobs) < PAIR:
            return (1.0,) * len(jobs)
        if len(jobs) == PAIR:
            a, b = (self.application[job] for job in jobs)
            return self.speed[a][b], self.speed[b][a]
        assert self.sets is not None  # else there are no more than two
        order = sorted(range(len(jobs)), key=lambda place: self.application[jobs[place]])
        found = self.sets.speeds(tuple(self.application[jobs[place]] for place in order))
        return tuple(rate for _, rate in sorted(zip(order, found, strict=True)))

    def _advance(self, gang: _Gang, now: float) -> None:
        for job, rate in zip(gang.jobs, gang.rates, strict=True):
            self.left[job] -= rate * (now - gang.since)
            self.ran[job] += now - gang.since
        if gang.jobs and now > gang.since:
            self.stays.append(Stay(gang.gpus, gang.since, now, tuple(gang.jobs)))
        gang.since = now

    def _foresee(self, gang: _Gang, now: float) -> None:
        self.versions += 1
        gang.version = self.versions
        gang.rates = self._rates(gang.jobs)
        if gang.jobs:
            soonest = min(self.left[job] / rate for job, rate in zip(gang.jobs, gang.rates, strict=True))
            heapq.heappush(self.foreseen, (now + max(0.0, soonest), gang.gpus[0], gang.version, gang))
