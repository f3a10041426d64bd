"""Where and when jobs run: queues that start what fits, whole nodes and parts of shared nodes, never two on a GPU."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from tachograph.simulate.judging import follow
from tachograph.simulate.kinds import Behaviour, Kind, behave
from tachograph.simulate.plan import Node, Plan
from tachograph.simulate.study import as_in_study
from tachograph.simulate.workload import Request

_DEPTH = 48  # how many waiting jobs are tried out of turn
_PATIENCE_S = 2 * 3600  # the first in line waits at most this long before nobody overtakes it
_NEEDS_ITS_END = frozenset({Kind.HUNG, Kind.DEADLOCK, Kind.COLD_START, Kind.STALLED, Kind.BURSTY, Kind.SHORT})


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job. Times in seconds after the plan's start; `end_s` may lie behind the plan's end.

    `places`: (node index, GPU indices) for each node. `start_s` None: it never started.
    """

    request: Request
    submit_s: int
    start_s: int | None
    end_s: int | None
    places: tuple[tuple[int, tuple[int, ...]], ...]
    state: str
    exit_code: str
    behaviour: Behaviour | None
    mapped: bool

    @property
    def gpus(self) -> int:
        """GPUs held."""
        return sum(len(gpus) for _, gpus in self.places)


@dataclass(slots=True)
class _Pool:
    """Free nodes and free GPUs of shared nodes, of one group."""

    free: list[int]
    shared: dict[int, list[int]]
    releases: list[tuple[int, int, int, tuple[int, ...]]] = field(default_factory=list)  # time, order, node, gpus
    given: int = 0

    def take(self, request: Request, gpus_per_node: int) -> tuple[tuple[int, tuple[int, ...]], ...] | None:
        """Return places for the request, or None when it does not fit now."""
        if request.nodes:
            if len(self.free) < request.nodes:
                return None
            whole = tuple(range(gpus_per_node))
            return tuple((heapq.heappop(self.free), whole) for _ in range(request.nodes))
        for node, free in self.shared.items():
            if len(free) >= request.gpus:
                taken = tuple(free[: request.gpus])
                del free[: request.gpus]
                return ((node, taken),)
        return None

    def release_at(self, time_s: int, places: Iterable[tuple[int, tuple[int, ...]]]) -> None:
        """Give places back at a time."""
        for node, gpus in places:
            self.given += 1
            heapq.heappush(self.releases, (time_s, self.given, node, gpus))

    def release_until(self, time_s: int) -> None:
        """Free what is given back by now."""
        while self.releases and self.releases[0][0] <= time_s:
            _, _, node, gpus = heapq.heappop(self.releases)
            if node in self.shared:
                self.shared[node] = sorted([*self.shared[node], *gpus])
            else:
                heapq.heappush(self.free, node)


def place(plan: Plan, requests: Iterable[Request]) -> list[Run]:
    """Return the runs of all requests, in order of submission; a job whose node failed has two."""
    by_group: dict[int, list[Request]] = {number: [] for number in range(len(plan.groups))}
    runs: list[Run] = []
    for request in requests:
        if request.kind is Kind.CPU_ONLY:
            start_s = request.submit_s + 5
            runs.append(_run(request, request.submit_s, start_s, ()))
        elif request.cancelled_waiting:
            runs.append(_never(request, request.submit_s, request.submit_s + 600))
        else:
            by_group[request.group].append(request)
    nodes = plan.nodes()
    for number, wanted in by_group.items():
        runs += _place_group(plan, [node for node in nodes if node.group == number], wanted)
    return sorted(runs, key=lambda run: (run.submit_s, run.request.serial))


def _place_group(plan: Plan, nodes: list[Node], requests: list[Request]) -> Iterator[Run]:
    """Runs on the nodes of one group."""
    if not nodes:
        return
    gpus = plan.groups[nodes[0].group].gpus
    rng = np.random.default_rng([plan.seed, 2, nodes[0].group])
    pool = _Pool(
        [node.index for node in nodes if not node.shared],
        {node.index: list(range(gpus)) for node in nodes if node.shared},
    )
    arrivals = [(request.submit_s, request.serial, request) for request in requests]
    heapq.heapify(arrivals)
    queue: list[Request] = []
    while arrivals or (queue and pool.releases):
        now = min([each[0][0] for each in (arrivals, pool.releases) if each])
        if now >= plan.seconds:
            break
        pool.release_until(now)
        while arrivals and arrivals[0][0] <= now:
            queue.append(heapq.heappop(arrivals)[2])
        for request in _startable(queue, pool, now, shared_waits=plan.as_in_study):
            places = pool.take(request, gpus)
            if places is None:
                continue
            queue.remove(request)
            start_s = now + int(rng.integers(0, 3))
            run = _behaving(plan, _run(request, request.submit_s, start_s, places), rng)
            end_s = run.end_s or start_s
            pool.release_at(end_s + int(rng.choice([0, 0, 4, 15])), places)
            if run.state == "NODE_FAIL":
                again = replace(request, submit_s=end_s + 60, fails_once=False)
                heapq.heappush(arrivals, (again.submit_s, again.serial, again))
            yield run
    for request in [*queue, *(each[2] for each in sorted(arrivals))]:
        yield _never(request, request.submit_s, None)


def _startable(queue: list[Request], pool: _Pool, now: int, *, shared_waits: bool) -> list[Request]:
    """Waiting jobs in the order in which they are tried.

    `shared_waits`: nobody waits for one that waits for a part of a shared node, which are few.
    """
    if not queue or not (pool.free or any(pool.shared.values())):
        return []
    waited_long = now - queue[0].submit_s > _PATIENCE_S and not (shared_waits and not queue[0].nodes)
    return queue[:1] if waited_long else queue[:_DEPTH]


def _run(request: Request, submit_s: int, start_s: int, places: tuple[tuple[int, tuple[int, ...]], ...]) -> Run:
    run_s, state, exit_code = request.run_s, request.state, request.exit_code
    if request.fails_once:
        run_s, state, exit_code = int(0.4 * run_s), "NODE_FAIL", "1:0"
    return Run(request, submit_s, start_s, start_s + run_s, places, state, exit_code, None, mapped=True)


def _never(request: Request, submit_s: int, end_s: int | None) -> Run:
    """A job that waited and never ran: cancelled at `end_s`, or still waiting."""
    state = "PENDING" if end_s is None else "CANCELLED"
    return Run(request, submit_s, None, end_s, (), state, "0:0", None, mapped=False)


def _behaving(plan: Plan, run: Run, rng: np.random.Generator) -> Run:
    """The run with what its GPUs do; steady where its end, needed to see the problem, is not recorded any more."""
    request, start_s, end_s = run.request, run.start_s or 0, run.end_s or 0
    if (end_s > plan.seconds or run.state == "NODE_FAIL") and request.kind in _NEEDS_ITS_END:
        request = replace(request, kind=Kind.STEADY)
    group = plan.groups[request.group]
    usable = group.driver.total_mib - group.driver.reserved_mib
    behaviour = behave(
        request.kind,
        np.random.default_rng([plan.seed, 3, request.serial, int(run.state == "NODE_FAIL")]),
        elapsed_s=end_s - start_s,
        gpus=run.gpus,
        capacity_mib=group.device.hbm_mib,
        usable_mib=usable,
    )
    if plan.as_in_study:
        behaviour = as_in_study(behaviour, np.random.default_rng([plan.seed, 10, request.serial]))
    if request.course is not None:
        fate = np.random.default_rng([plan.seed, 11, request.serial])
        behaviour = follow(behaviour, request.course, fate, per_node=[len(gpus) for _, gpus in run.places])
    shared = request.nodes == 0
    return replace(run, request=request, behaviour=behaviour, mapped=shared and bool(rng.random() >= plan.unmapped))
