"""A day of jobs on the GPUs of a cluster under a policy, event by event; at most two jobs share a GPU.

Who comes first gets the GPU that is empty; where none is, a job takes the place beside another that the policy permits
and prefers, else it waits. A place beside another goes to the first in the queue who may have it. A job runs at its
full speed alone, and at the speed the world gives it beside another.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from tachograph.arrays import Floats, Ints
from tachograph.interference.day.jobs import Day
from tachograph.interference.day.policies import Permits
from tachograph.interference.day.world import Phases, speeds, world

MOST = 2  # jobs on a GPU


@dataclass(frozen=True, slots=True)
class Stay:
    """One GPU from one change of its jobs to the next: [begin_s, end_s) and the jobs on it."""

    gpu: int
    begin_s: float
    end_s: float
    jobs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Played:
    """A day as it went. starts_s, ran_s, ends_s, gpu: per job. stays: of all GPUs while there was a job on them."""

    starts_s: Floats
    ran_s: Floats  # exactly the time alone where a job never shared, which the difference of two times is not
    ends_s: Floats
    gpu: Ints
    stays: tuple[Stay, ...]


def true_speeds(day: Day, seed: int) -> Floats:
    """Return speeds of applications (rows) beside others (columns), 1 as alone, in the world of this seed."""
    kernels = world(seed)
    known = [Phases.of(one.phases, cycle_s=one.cycle_s) for one in day.applications]
    table = np.ones((len(known), len(known)))
    for i, a in enumerate(known):
        for j, b in enumerate(known[: i + 1]):
            table[i, j], table[j, i] = speeds(a, b, kernels)
    return table


def play(day: Day, permits: Permits, speed: Floats, *, gpus: int) -> Played:
    """Return how the day goes on so many GPUs. `speed`: of application beside application, see `true_speeds`."""
    cluster = _Cluster(day, permits, speed, gpus)
    for job, arrives in enumerate(day.arrives_s.tolist()):
        cluster.go_on(arrives)
        cluster.arrive(job, arrives)
    cluster.go_on(float("inf"))
    return Played(
        np.array(cluster.starts),
        np.array(cluster.ran),
        np.array(cluster.ends),
        np.array(cluster.where, np.int32),
        tuple(cluster.stays),
    )


@dataclass(slots=True)
class _Gpu:
    jobs: list[int] = field(default_factory=list)
    since: float = 0.0
    version: int = 0  # an end that was foreseen before the jobs changed does not count


class _Cluster:
    """The state of a day: what is on each GPU, who waits, which ends are foreseen."""

    def __init__(self, day: Day, permits: Permits, speed: Floats, gpus: int) -> None:
        self.application: list[int] = day.application.tolist()
        self.may, self.cost = permits.may.tolist(), permits.cost.tolist()
        self.speed = speed.tolist()
        self.left: list[float] = day.alone_s.tolist()
        self.gpus = [_Gpu() for _ in range(gpus)]
        self.queue: deque[int] = deque()
        self.foreseen: list[tuple[float, int, int]] = []  # when, GPU, its version
        jobs = len(self.left)
        self.starts, self.ran, self.ends, self.where = [0.0] * jobs, [0.0] * jobs, [0.0] * jobs, [-1] * jobs
        self.stays: list[Stay] = []

    def go_on(self, until: float) -> None:
        """Let all jobs end that end by then, and give their places away."""
        while self.foreseen and self.foreseen[0][0] <= until:
            now, number, version = heapq.heappop(self.foreseen)
            if version == self.gpus[number].version:
                self._end(number, now)

    def arrive(self, job: int, now: float) -> None:
        """Place a job, or let it wait."""
        place = self._place_for(job)
        if place is None:
            self.queue.append(job)
        else:
            self._put(job, place, now)

    def _place_for(self, job: int) -> int | None:
        mine, best, least = self.application[job], None, float("inf")
        for number, gpu in enumerate(self.gpus):
            if not gpu.jobs:
                return number
            if len(gpu.jobs) < MOST:
                other = self.application[gpu.jobs[0]]
                if self.may[mine][other] and (best is None or self.cost[mine][other] < least):
                    best, least = number, self.cost[mine][other]
        return best

    def _put(self, job: int, number: int, now: float) -> None:
        self._advance(number, now)
        self.starts[job], self.where[job] = now, number
        self.gpus[number].jobs.append(job)
        self._foresee(number, now)

    def _end(self, number: int, now: float) -> None:
        gpu = self.gpus[number]
        rates = self._rates(gpu)
        first = min(range(len(gpu.jobs)), key=lambda at: self.left[gpu.jobs[at]] / rates[at])
        ended = gpu.jobs[first]
        ran = self.ran[ended] + self.left[ended] / rates[first]
        self._advance(number, now)
        gpu.jobs.remove(ended)
        self.left[ended], self.ran[ended], self.ends[ended] = 0.0, ran, now
        self._foresee(number, now)
        self._fill(number, now)

    def _fill(self, number: int, now: float) -> None:
        gpu = self.gpus[number]
        while self.queue and len(gpu.jobs) < MOST:
            following = self.queue[0] if not gpu.jobs else self._first_who_may(self.application[gpu.jobs[0]])
            if following is None:
                return
            self.queue.remove(following)
            self._put(following, number, now)

    def _first_who_may(self, other: int) -> int | None:
        refused: set[int] = set()
        for job in self.queue:
            mine = self.application[job]
            if mine not in refused:
                if self.may[mine][other]:
                    return job
                refused.add(mine)
        return None

    def _rates(self, gpu: _Gpu) -> list[float]:
        if len(gpu.jobs) < MOST:
            return [1.0] * len(gpu.jobs)
        a, b = (self.application[job] for job in gpu.jobs)
        return [self.speed[a][b], self.speed[b][a]]

    def _advance(self, number: int, now: float) -> None:
        gpu = self.gpus[number]
        for job, rate in zip(gpu.jobs, self._rates(gpu), strict=True):
            self.left[job] -= rate * (now - gpu.since)
            self.ran[job] += now - gpu.since
        if gpu.jobs and now > gpu.since:
            self.stays.append(Stay(number, gpu.since, now, tuple(gpu.jobs)))
        gpu.since = now

    def _foresee(self, number: int, now: float) -> None:
        gpu = self.gpus[number]
        gpu.version += 1
        if gpu.jobs:
            soonest = min(self.left[job] / rate for job, rate in zip(gpu.jobs, self._rates(gpu), strict=True))
            heapq.heappush(self.foreseen, (now + max(0.0, soonest), number, gpu.version))


@dataclass(frozen=True, slots=True)
class Tally:
    """What a day came to under one policy. Slowdowns: time a job ran over its time alone.

    makespan_h: from midnight to the last end. held_gpu_hours: while a job was on a GPU. per_gpu_hour: GPU-hours of
    work, as alone, done in one of them; 1 is exclusive use. saved_gpu_hours: work less what was held. shared: share of
    the jobs that ever shared. turnaround_h: mean time from arrival to end. slower_10: share of jobs slower by > 10 %.
    """

    jobs_finished: int
    makespan_h: float
    held_gpu_hours: float
    per_gpu_hour: float
    saved_gpu_hours: float
    wait_h_mean: float
    turnaround_h: float
    shared: float
    slowdown_mean: float
    slowdown_median: float
    slowdown_p99: float
    slowdown_max: float
    slower_10: float
    slower_50: float


def tally(day: Day, played: Played) -> Tally:
    """Return what a day came to."""
    slowdown = played.ran_s / day.alone_s
    held = sum(stay.end_s - stay.begin_s for stay in played.stays) / 3600
    work = float(day.alone_s.sum()) / 3600
    shared = {job for stay in played.stays if len(stay.jobs) > 1 for job in stay.jobs}
    return Tally(
        jobs_finished=int((played.ran_s > 0).sum()),
        makespan_h=float(played.ends_s.max()) / 3600,
        held_gpu_hours=held,
        per_gpu_hour=work / held,
        saved_gpu_hours=work - held,
        wait_h_mean=float((played.starts_s - day.arrives_s).mean()) / 3600,
        turnaround_h=float((played.ends_s - day.arrives_s).mean()) / 3600,
        shared=len(shared) / day.alone_s.size,
        slowdown_mean=float(slowdown.mean()),
        slowdown_median=float(np.median(slowdown)),
        slowdown_p99=float(np.quantile(slowdown, 0.99)),
        slowdown_max=float(slowdown.max()),
        slower_10=float((slowdown > 1.1).mean()),
        slower_50=float((slowdown > 1.5).mean()),
    )
