"""Simulated jobs: arrivals, sizes, run times, kinds, users, nodes and times.

Shapes after the published study (IPDPS 2026): Poisson arrivals, mostly one node, a tail to many,
log-normal run times, few users with most of the jobs. The study's samples are not public.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tachograph.annexes.lab.simulate import behaviours
from tachograph.annexes.lab.simulate.behaviours import (
    JOB_KINDS,
    LONGEST_S,
    Draw,
    JobBehaviour,
    JobKind,
    behave,
    follow,
)
from tachograph.annexes.lab.simulate.plan import (
    JobShapes,
    NodeGroup,
    SimulatedNode,
    SimulationPlan,
)

LARGE_MEMORY_MIB = 64 * 1024  # a constraint for large memory is written from here on
FIRST_JOB_ID = 1_000_001
_USERS, _ACCOUNTS = 60, 18
_NAMES = (
    "train",
    "md_run",
    "relax",
    "lattice",
    "finetune",
    "cfd",
    "qmc",
    "sweep",
    "post",
    "sigma_α",
    "a b",
    "x,y",
)
_NEEDS_PIPES = frozenset(
    {
        JobKind.MEMORY_BOUND,
        JobKind.COMPUTE_BOUND,
        JobKind.TENSOR,
        JobKind.NO_TENSOR,
        JobKind.DEADLOCK,
    }
)


class GpuShare(NamedTuple):
    """A part of a GPU: so many of the `whole` shards, or hundredths by MPS, that the GPU has."""

    resource: str  # as in Slurm's gres: shard or mps
    part: int
    whole: int


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """A submitted job, in seconds after the plan's start. `nodes` 0: part of a shared node."""

    serial: int
    submit_s: int
    kind: JobKind
    group: int
    gpus: int
    nodes: int
    run_s: int
    limit_min: int
    state: str
    exit_code: str
    user: int
    name: str
    qos: str = "regular"
    array: tuple[int, int] | None = None  # (job id of the array, index)
    job_id: int = 0
    het: bool = False  # a component without GPUs leads it
    fails_once: bool = False  # its node fails; it is queued again under the same id
    cancelled_waiting: bool = False
    course: behaviours.JobCourse | None = None  # None: the job kind decides
    of_group: int | None = None  # the job group that it repeats
    host_gpus: int | None = None  # GPUs whose share of CPUs and memory it requests; None: its own
    share: GpuShare | None = None  # of each of its GPUs; None: all of them

    @property
    def account(self) -> str:
        """Account of the user."""
        return f"proj{self.user % _ACCOUNTS:02d}"

    @property
    def uid(self) -> int:
        """Numeric user id."""
        return 20_000 + self.user


def sample_requests(plan: SimulationPlan) -> list[SimulatedRequest]:
    """Return requests by submission: each kind `each_kind` times, then by weight up to the load."""
    rng = np.random.default_rng([plan.seed, 1])
    if plan.judged_jobs:
        return numbered(
            _draw_courses(plan, behaviours.accuracy_population(plan.judged_jobs, rng), rng)
        )
    budget = plan.load * plan.gpus * plan.seconds
    planned_kinds = [kind for kind in JobKind for _ in range(plan.each_kind)]
    shapes = plan.shapes or JobShapes()
    kinds = list(JOB_KINDS)
    weights = np.array([shapes.weights[kind] for kind in kinds])
    weights /= weights.sum()
    users = user_activity()
    requests: list[SimulatedRequest] = []
    spent = 0.0
    while len(requests) < len(planned_kinds) or spent < budget:
        serial = len(requests)
        planned = serial < len(planned_kinds)
        kind = planned_kinds[serial] if planned else kinds[int(rng.choice(len(kinds), p=weights))]
        user = int(rng.choice(_USERS, p=users))
        request = draw_request(plan, rng, serial, kind, user, planned=planned)
        tasks = 0
        if not planned and rng.random() < 0.04 and request.nodes <= 1:
            tasks = int(rng.integers(3, 9))
        requests += _tasks(request, tasks, rng)
        spent += sum(request.gpus * request.run_s for request in requests[serial:])
    return numbered(requests)


def user_activity() -> NDArray[np.float64]:
    """Shares of the users in the jobs."""
    users = 1.0 / np.arange(1, _USERS + 1, dtype=np.float64) ** 1.2
    return np.asarray(users / users.sum(), dtype=np.float64)


def _draw_courses(
    plan: SimulationPlan, courses: Iterable[behaviours.JobCourse], rng: Draw
) -> Iterator[SimulatedRequest]:
    """Jobs with one course each, submitted early enough to end in time in short queues."""
    users = user_activity()
    for serial, course in enumerate(courses):
        group, kind = _choose_group(plan, rng, course.kind)
        gpus, nodes = plan.groups[group].gpus, min(course.nodes, _whole_nodes(plan, group))
        stopped = course.stuck and rng.random() < 0.6
        state, exit_code = ("CANCELLED", "0:15") if course.stuck else choose_end(rng, kind)
        if state == "TIMEOUT" or stopped:
            state, exit_code = "TIMEOUT" if stopped else "COMPLETED", "0:0"
        limit_min = _choose_limit(rng, course.run_s, state)
        part = int(rng.integers(min(course.min_gpus, gpus), gpus)) if nodes == 0 else 0
        yield SimulatedRequest(
            serial=serial,
            submit_s=int(rng.uniform(0, max(1, plan.seconds - course.run_s - 4 * 3600))),
            kind=kind,
            group=group,
            gpus=part or nodes * gpus,
            nodes=nodes,
            run_s=course.run_s,
            limit_min=limit_min,
            state=state,
            exit_code=exit_code,
            user=int(rng.choice(_USERS, p=users)),
            name=_NAMES[int(rng.integers(len(_NAMES)))],
            course=course,
        )


def _whole_nodes(plan: SimulationPlan, number: int) -> int:
    """Nodes of a group that jobs have to themselves."""
    return plan.groups[number].count - plan.shared_nodes(plan.groups[number])


def draw_request(
    plan: SimulationPlan,
    rng: Draw,
    serial: int,
    kind: JobKind,
    user: int,
    *,
    planned: bool,
) -> SimulatedRequest:
    """Return a request of a kind; a planned one is small, and ends within the plan."""
    group, kind = _choose_group(plan, rng, kind)
    facts = JOB_KINDS[kind]
    nodes, gpus = _choose_size(plan, rng, group, facts.min_gpus, planned=planned)
    if kind is JobKind.CPU_ONLY:
        nodes, gpus = 1, 0
    run_s = _choose_run_time(plan, rng, kind, 0.35 if planned else 0.6)
    state, exit_code = choose_end(rng, kind)
    limit_min = _choose_limit(rng, run_s, state)
    if state == "TIMEOUT":
        run_s = limit_min * 60 + int(rng.integers(1, 31))
    last = 0.45 if planned else 1.0  # leaves time for planned jobs to end
    cancelled = not planned and float(rng.random()) < 0.01
    plain = kind in (JobKind.STEADY, JobKind.MEMORY_BOUND) and gpus > 0 and not cancelled
    return SimulatedRequest(
        serial=serial,
        submit_s=int(rng.uniform(0, last * plan.seconds)),
        kind=kind,
        group=group,
        gpus=gpus,
        nodes=nodes,
        run_s=run_s,
        limit_min=limit_min,
        state=state,
        exit_code=exit_code,
        user=user,
        name=_NAMES[int(rng.integers(len(_NAMES)))],
        qos="debug" if kind is JobKind.DEBUG else "regular",
        het=plain and nodes >= 1 and float(rng.random()) < 0.03,
        fails_once=plain and run_s > 1800 and float(rng.random()) < 0.04,
        cancelled_waiting=cancelled,
    )


def _choose_group(plan: SimulationPlan, rng: Draw, kind: JobKind) -> tuple[int, JobKind]:
    """Return a node group where the kind is visible; the steady kind if there is none."""
    suits = [_suits(group, kind) for group in plan.groups]
    if not any(suits):
        kind, suits = JobKind.STEADY, [True] * len(plan.groups)
    weights = np.array(
        [group.count * fits for group, fits in zip(plan.groups, suits, strict=True)], dtype=float
    )
    return int(rng.choice(len(weights), p=weights / weights.sum())), kind


def _suits(group: NodeGroup, kind: JobKind) -> bool:
    if kind is JobKind.LOW_MEMORY:
        return group.device.hbm_mib >= LARGE_MEMORY_MIB
    # Error correction in the same memory leaves less than a full one.
    if kind is JobKind.FULL_MEMORY:
        return group.driver.total_mib > 0.97 * group.device.hbm_mib
    if kind in _NEEDS_PIPES and group.lacks:
        return False
    return JOB_KINDS[kind].min_gpus <= group.gpus * group.count


def _choose_size(
    plan: SimulationPlan, rng: Draw, number: int, min_gpus: int, *, planned: bool
) -> tuple[int, int]:
    """(nodes, GPUs); nodes 0 for a part of a shared node."""
    group = plan.groups[number]
    shared, whole = plan.shared_nodes(group), _whole_nodes(plan, number)
    largest = 2 if planned else max(1, whole // 3)
    sizes = [
        (nodes, share)
        for nodes, share in (plan.shapes or JobShapes()).sizes
        if nodes <= largest
        and (nodes * group.gpus >= min_gpus if nodes else shared and min_gpus <= 2)
    ]
    sizes = sizes or [(-(-min_gpus // group.gpus), 1.0)]
    shares = np.array([share for _, share in sizes])
    nodes = sizes[int(rng.choice(len(sizes), p=shares / shares.sum()))][0]
    if not whole:
        nodes = 0
    if nodes:
        return nodes, nodes * group.gpus
    least = min(min_gpus, group.gpus)
    return 0, int(rng.integers(least, max(least + 1, group.gpus)))


def _choose_run_time(plan: SimulationPlan, rng: Draw, kind: JobKind, share: float) -> int:
    """Seconds, at most a share of the plan's length."""
    facts = JOB_KINDS[kind]
    longest = (plan.shapes or JobShapes()).longest_s if facts.max_s == LONGEST_S else facts.max_s
    longest = min(longest, int(share * plan.seconds))
    if kind is JobKind.SHORT:
        return int(rng.integers(facts.min_s, longest))
    median = 0.25 * plan.median_hours if kind is JobKind.DEBUG else plan.median_hours
    seconds = 3600 * median * float(np.exp(1.1 * rng.standard_normal()))
    return int(min(max(seconds, facts.min_s), max(longest, facts.min_s)))


def choose_end(rng: Draw, kind: JobKind) -> tuple[str, str]:
    """Return how a job ends: state and exit code."""
    if kind in (JobKind.HUNG, JobKind.DEADLOCK):
        return ("TIMEOUT", "0:0") if rng.random() < 0.6 else ("CANCELLED", "0:15")
    if kind is JobKind.SHORT:
        return ("FAILED", "1:0") if rng.random() < 0.5 else ("COMPLETED", "0:0")
    ends = (
        ("COMPLETED", "0:0", 0.84),
        ("FAILED", "1:0", 0.06),
        ("FAILED", "0:11", 0.02),
        ("CANCELLED", "0:15", 0.05),
        ("TIMEOUT", "0:0", 0.02),
        ("OUT_OF_MEMORY", "0:125", 0.01),
    )
    state, code, _ = ends[int(rng.choice(len(ends), p=[share for *_, share in ends]))]
    return state, code


def _choose_limit(rng: Draw, run_s: int, state: str) -> int:
    """Minutes, rounded up to five unless the job runs into its limit."""
    if state == "TIMEOUT":
        return max(2, run_s // 60)
    return max(2, 5 * -int(-run_s * rng.uniform(1.05, 3) // 300))


def _tasks(request: SimulatedRequest, tasks: int, rng: Draw) -> list[SimulatedRequest]:
    """The request, or the tasks of an array: the same job with run times of its own."""
    if not tasks or request.het or request.fails_once or request.state == "TIMEOUT":
        return [request]
    least, longest_s = (
        JOB_KINDS[request.kind].min_s,
        max(request.run_s, JOB_KINDS[request.kind].max_s),
    )
    run_times = [
        int(min(longest_s, max(least, request.run_s * rng.uniform(0.8, 1.0)))) for _ in range(tasks)
    ]
    return [
        replace(request, run_s=run_s, serial=request.serial + index, array=(request.serial, index))
        for index, run_s in enumerate(run_times)
    ]


def numbered(requests: Iterable[SimulatedRequest]) -> list[SimulatedRequest]:
    """Job ids in order of submission; as in Slurm, an array's last task has the array's id."""
    requests = sorted(requests, key=lambda request: (request.submit_s, request.serial))
    next_id = FIRST_JOB_ID
    numbered: list[SimulatedRequest] = []
    arrays: dict[int, int] = {}
    sizes = Counter(request.array[0] for request in requests if request.array)
    for serial, request in enumerate(requests):
        job_id, array = next_id, request.array
        if array is None:
            next_id += 2 if request.het else 1
        else:
            first, index = array
            if first not in arrays:
                arrays[first] = next_id
                next_id += sizes[first]
            array = (arrays[first], index)
            job_id = arrays[first] + (index + 1) % sizes[first]
        numbered.append(replace(request, serial=serial, job_id=job_id, array=array))
    return numbered


_DEPTH = 48  # how many waiting jobs are tried out of turn
_PATIENCE_S = 2 * 3600  # the first in line waits at most this long before backfill ends
_NEEDS_ITS_END = frozenset(
    {
        JobKind.HUNG,
        JobKind.DEADLOCK,
        JobKind.COLD_START,
        JobKind.STALLED,
        JobKind.BURSTY,
        JobKind.SHORT,
    }
)


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """One run of a job, in seconds after the plan's start; `end_s` may exceed the plan's end.

    `places`: (node index, GPU indices) for each node. `start_s` None: it never started.
    `has_company`: other runs were on its GPUs at the same time.
    """

    request: SimulatedRequest
    start_s: int | None
    end_s: int | None
    places: tuple[tuple[int, tuple[int, ...]], ...]
    state: str
    exit_code: str
    behaviour: JobBehaviour | None
    mapped: bool
    has_company: bool = False

    @property
    def submit_s(self) -> int:
        """When it was submitted, or queued again."""
        return self.request.submit_s

    @property
    def gpus(self) -> int:
        """Number of GPUs held."""
        return sum(len(gpus) for _, gpus in self.places)


@dataclass(slots=True)
class _FreeNodes:
    """Free nodes and free GPUs of shared nodes, of one group."""

    free: list[int]
    shared: dict[int, list[int]]
    # Time, order, node, gpus.
    releases: list[tuple[int, int, int, tuple[int, ...]]] = field(default_factory=list)
    given: int = 0

    def take(
        self, request: SimulatedRequest, gpus_per_node: int
    ) -> tuple[tuple[int, tuple[int, ...]], ...] | None:
        """Return ((node, GPUs), ...) for the request, or None if it does not fit now."""
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
        """Release nodes or GPUs at a time."""
        for node, gpus in places:
            self.given += 1
            heapq.heappush(self.releases, (time_s, self.given, node, gpus))

    def release_until(self, time_s: int) -> None:
        """Release the GPUs that are free by now."""
        while self.releases and self.releases[0][0] <= time_s:
            _, _, node, gpus = heapq.heappop(self.releases)
            if node in self.shared:
                self.shared[node] = sorted([*self.shared[node], *gpus])
            else:
                heapq.heappush(self.free, node)


def place_runs(plan: SimulationPlan, requests: Iterable[SimulatedRequest]) -> list[SimulatedRun]:
    """Return the runs of all requests, in order of submission; a job whose node failed has two."""
    by_group: dict[int, list[SimulatedRequest]] = {number: [] for number in range(len(plan.groups))}
    runs: list[SimulatedRun] = []
    for request in requests:
        if request.kind is JobKind.CPU_ONLY:
            start_s = request.submit_s + 5
            runs.append(_run(request, start_s, ()))
        elif request.cancelled_waiting:
            runs.append(_never(request, request.submit_s + 600))
        else:
            by_group[request.group].append(request)
    nodes = plan.nodes()
    for number, requests_of_group in by_group.items():
        runs += _place_group(
            plan, [node for node in nodes if node.group == number], requests_of_group
        )
    return sorted(runs, key=lambda run: (run.submit_s, run.request.serial))


def _place_group(
    plan: SimulationPlan, nodes: list[SimulatedNode], requests: list[SimulatedRequest]
) -> Iterator[SimulatedRun]:
    """Runs on the nodes of one group."""
    if not nodes:
        return
    gpus, shapes = plan.groups[nodes[0].group].gpus, plan.shapes or JobShapes()
    rng = np.random.default_rng([plan.seed, 2, nodes[0].group])
    pool = _FreeNodes(
        [node.index for node in nodes if not node.shared],
        {node.index: list(range(gpus)) for node in nodes if node.shared},
    )
    arrivals = [(request.submit_s, request.serial, request) for request in requests]
    heapq.heapify(arrivals)
    queue: list[SimulatedRequest] = []
    while arrivals or (queue and pool.releases):
        now = min([events[0][0] for events in (arrivals, pool.releases) if events])
        if now >= plan.seconds:
            break
        pool.release_until(now)
        while arrivals and arrivals[0][0] <= now:
            queue.append(heapq.heappop(arrivals)[2])
        for request in _startable(queue, pool, now, shared_waits=shapes.shared_waits):
            places = pool.take(request, gpus)
            if places is None:
                continue
            queue.remove(request)
            start_s = now + int(rng.integers(0, 3))
            run = _behaving(plan, _run(request, start_s, places), rng)
            end_s = run.end_s or start_s
            pool.release_at(end_s + int(rng.choice([0, 0, 4, 15])), places)
            if run.state == "NODE_FAIL":
                again = replace(request, submit_s=end_s + 60, fails_once=False)
                heapq.heappush(arrivals, (again.submit_s, again.serial, again))
            yield run
    for request in [*queue, *(request for _, _, request in sorted(arrivals))]:
        yield _never(request, None)


def _startable(
    queue: list[SimulatedRequest], pool: _FreeNodes, now: int, *, shared_waits: bool
) -> list[SimulatedRequest]:
    """Waiting jobs in the order in which they are tried.

    `shared_waits`: no job waits for one that waits for a part of a shared node, which are few.
    """
    if not queue or not (pool.free or any(pool.shared.values())):
        return []
    waited_long = now - queue[0].submit_s > _PATIENCE_S and not (
        shared_waits and not queue[0].nodes
    )
    return queue[:1] if waited_long else queue[:_DEPTH]


def _run(
    request: SimulatedRequest, start_s: int, places: tuple[tuple[int, tuple[int, ...]], ...]
) -> SimulatedRun:
    run_s, state, exit_code = request.run_s, request.state, request.exit_code
    if request.fails_once:
        run_s, state, exit_code = int(0.4 * run_s), "NODE_FAIL", "1:0"
    return SimulatedRun(
        request, start_s, start_s + run_s, places, state, exit_code, None, mapped=True
    )


def _never(request: SimulatedRequest, end_s: int | None) -> SimulatedRun:
    """A job that waited and never ran: cancelled at `end_s`, or still waiting."""
    state = "PENDING" if end_s is None else "CANCELLED"
    return SimulatedRun(request, None, end_s, (), state, "0:0", None, mapped=False)


def _behaving(plan: SimulationPlan, run: SimulatedRun, rng: Draw) -> SimulatedRun:
    """The run with its behaviour; steady if the plan ends before the planted problem shows."""
    request, start_s, end_s = run.request, run.start_s or 0, run.end_s or 0
    if (end_s > plan.seconds or run.state == "NODE_FAIL") and request.kind in _NEEDS_ITS_END:
        request = replace(request, kind=JobKind.STEADY)
    group = plan.groups[request.group]
    usable = group.driver.total_mib - group.driver.reserved_mib
    fate = [3, request.serial, int(run.state == "NODE_FAIL")]
    if request.of_group is not None:
        fate = [12, request.of_group]
    behaviour = behave(
        request.kind,
        np.random.default_rng([plan.seed, *fate]),
        elapsed_s=end_s - start_s,
        gpus=run.gpus,
        capacity_mib=group.device.hbm_mib,
        usable_mib=usable,
    )
    if plan.shapes is not None:
        changing = np.random.default_rng([plan.seed, 10, request.serial])
        behaviour = plan.shapes.change(behaviour, changing)
    if request.course is not None:
        course = np.random.default_rng([plan.seed, 11, request.serial])
        per_node = [len(gpus) for _, gpus in run.places]
        behaviour = follow(behaviour, request.course, course, per_node=per_node)
    shared = request.nodes == 0
    return replace(
        run,
        request=request,
        behaviour=behaviour,
        mapped=shared and bool(rng.random() >= plan.unmapped),
    )
