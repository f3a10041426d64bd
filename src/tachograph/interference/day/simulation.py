"""A day of jobs on the GPUs of a cluster under a policy, event by event.

Who comes first gets the GPUs that are empty, as many as it wants; nobody is let past it, so they wait until they are
enough. Where there are none, a job takes the place beside others that the policy permits and prefers, on as many GPUs
as it wants, else it waits. A place beside others goes to the first in the queue who may have it. A job runs at its full
speed alone, and at the speed the world gives it beside others; all its GPUs do the same at the same time.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from tachograph.arrays import Floats
from tachograph.interference.day.jobs import Day
from tachograph.interference.day.phases import Phases, all_speeds, speeds_of_set
from tachograph.interference.day.policies import Permits
from tachograph.interference.day.world import world

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
class Played:
    """A day as it went. starts_s, ran_s, ends_s, gpus: per job. stays: of all GPUs while there was a job on them."""

    starts_s: Floats
    ran_s: Floats  # exactly the time alone where a job never shared, which the difference of two times is not
    ends_s: Floats
    gpus: tuple[tuple[int, ...], ...]
    stays: tuple[Stay, ...]


@dataclass(frozen=True, slots=True)
class Crowd:
    """More than two jobs on a GPU: `most` of them, whose memory in all is at most `room_bytes`.

    speeds: of applications, in ascending order of their places, as all of them run together.
    """

    most: int
    room_bytes: float
    speeds: Callable[[tuple[int, ...]], tuple[float, ...]]


def true_speeds(day: Day, seed: int) -> Floats:
    """Return speeds of applications (rows) beside others (columns), 1 as alone, in the world of this seed."""
    return all_speeds(_phases(day), world(seed))


def crowd_of(day: Day, seed: int, *, most: int, room_bytes: float) -> Crowd:
    """Return what lets so many jobs share a GPU, in the world of this seed; sets are simulated as they are met."""
    known = _phases(day)

    @cache
    def together(applications: tuple[int, ...]) -> tuple[float, ...]:
        return speeds_of_set([known[one] for one in applications], seed)

    return Crowd(most, room_bytes, together)


def _phases(day: Day) -> list[Phases]:
    return [Phases.of(one.phases, cycle_s=one.cycle_s) for one in day.applications]


def play(day: Day, permits: Permits, speed: Floats, *, gpus: int, crowd: Crowd | None = None) -> Played:
    """Return how the day goes on so many GPUs, two jobs on each at the most, or as many as `crowd` says.

    speed: of application beside application, see `true_speeds`. Errors: ValueError for a job that wants more GPUs.
    """
    if day.gpus.max(initial=0) > gpus:
        raise ValueError(f"a job wants {day.gpus.max()} GPUs of {gpus}")
    cluster = _Cluster(day, permits, speed, gpus, crowd)
    for job, arrives in enumerate(day.arrives_s.tolist()):
        cluster.go_on(arrives)
        cluster.arrive(job, arrives)
    cluster.go_on(float("inf"))
    return Played(
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

    def __init__(self, day: Day, permits: Permits, speed: Floats, gpus: int, crowd: Crowd | None) -> None:
        self.application: list[int] = day.application.tolist()
        self.wants: list[int] = day.gpus.tolist()
        self.memory = [one.hbm_bytes for one in day.applications]
        self.may, self.cost = permits.may.tolist(), permits.cost.tolist()
        self.speed, self.crowd = speed.tolist(), crowd
        self.most = crowd.most if crowd else PAIR
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
            self.crowd is None
            or len(others) < PAIR  # of two the policy has asked
            or self.memory[mine] + sum(self.memory[other] for other in others) <= self.crowd.room_bytes
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
        assert self.crowd is not None  # else there are no more than two
        order = sorted(range(len(jobs)), key=lambda place: self.application[jobs[place]])
        found = self.crowd.speeds(tuple(self.application[jobs[place]] for place in order))
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
