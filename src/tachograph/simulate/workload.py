"""The jobs that users ask for: arrivals, sizes, run times, kinds, people.

Shapes after the published study (IPDPS 2026): Poisson arrivals, mostly one node, a tail to many, log-normal run
times, few users with most of the jobs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tachograph.simulate import judging, study
from tachograph.simulate.kinds import FACTS, LONGEST_S, Kind
from tachograph.simulate.plan import NodeGroup, Plan

LARGE_MEMORY_MIB = 64 * 1024  # a constraint for large memory is written from here on
FIRST_JOB_ID = 1_000_001
_SIZES = ((0, 0.12), (1, 0.70), (2, 0.08), (4, 0.045), (8, 0.03), (16, 0.013), (32, 0.007), (64, 0.003), (128, 0.002))
_USERS, _ACCOUNTS = 60, 18
_NAMES = ("train", "md_run", "relax", "lattice", "finetune", "cfd", "qmc", "sweep", "post", "sigma_α", "a b", "x,y")
_NEEDS_PIPES = frozenset({Kind.MEMORY_BOUND, Kind.COMPUTE_BOUND, Kind.TENSOR, Kind.NO_TENSOR, Kind.DEADLOCK})


@dataclass(frozen=True, slots=True)
class Request:
    """One job as submitted; times in seconds after the plan's start. `nodes` 0: part of a shared node."""

    serial: int
    submit_s: int
    kind: Kind
    group: int
    gpus: int
    nodes: int
    run_s: int
    limit_min: int
    state: str
    exit_code: str
    user: int
    name: str
    qos: str
    array: tuple[int, int] | None = None  # (job id of the array, index)
    job_id: int = 0
    het: bool = False  # a component without GPUs leads it
    fails_once: bool = False  # its node fails; it is queued again under the same id
    cancelled_waiting: bool = False
    course: judging.Course | None = None  # what it does, where that is not left to its kind

    @property
    def account(self) -> str:
        """Account of the user."""
        return f"proj{self.user % _ACCOUNTS:02d}"

    @property
    def uid(self) -> int:
        """Numeric user id."""
        return 20_000 + self.user


def draw(plan: Plan) -> list[Request]:
    """Return the requests in order of submission: every kind `each_kind` times, then by weight up to the load."""
    rng = np.random.default_rng([plan.seed, 1])
    if plan.judged_jobs:
        return _numbered(_draw_judged(plan, rng))
    budget = plan.load * plan.gpus * plan.seconds
    wanted = [kind for kind in Kind for _ in range(plan.each_kind)]
    kinds = list(FACTS)
    weights = np.array([study.WEIGHTS[kind] if plan.as_in_study else FACTS[kind].weight for kind in kinds])
    weights /= weights.sum()
    users = _activity()
    drawn: list[Request] = []
    spent = 0.0
    while len(drawn) < len(wanted) or spent < budget:
        serial = len(drawn)
        planned = serial < len(wanted)
        kind = wanted[serial] if planned else kinds[int(rng.choice(len(kinds), p=weights))]
        request = _draw_one(plan, rng, serial, kind, int(rng.choice(_USERS, p=users)), planned=planned)
        tasks = int(rng.integers(3, 9)) if not planned and rng.random() < 0.04 and request.nodes <= 1 else 0
        drawn += _tasks(request, tasks, rng)
        spent += sum(each.gpus * each.run_s for each in drawn[serial:])
    return _numbered(drawn)


def _activity() -> NDArray[np.float64]:
    """Shares of the users in the jobs."""
    users = 1.0 / np.arange(1, _USERS + 1, dtype=np.float64) ** 1.2
    return np.asarray(users / users.sum(), dtype=np.float64)


def _draw_judged(plan: Plan, rng: np.random.Generator) -> list[Request]:
    """The population for judging, submitted so early that all of it ends in time, queues being short."""
    users = _activity()
    drawn = []
    for serial, course in enumerate(judging.population(plan.judged_jobs, rng)):
        group, kind = _choose_group(plan, rng, course.kind)
        gpus, nodes = plan.groups[group].gpus, min(course.nodes, _whole(plan, group))
        ends = ("TIMEOUT", "0:0") if course.stuck and rng.random() < 0.6 else None
        state, exit_code = ends or (("CANCELLED", "0:15") if course.stuck else _choose_end(rng, kind))
        run_s, state = course.run_s, "COMPLETED" if state == "TIMEOUT" and not course.stuck else state
        limit_min = run_s // 60 if state == "TIMEOUT" else 5 * -int(-run_s * rng.uniform(1.05, 3) // 300)
        part = int(rng.integers(min(course.min_gpus, gpus), gpus)) if nodes == 0 else 0
        drawn.append(
            Request(
                serial=serial,
                submit_s=int(rng.uniform(0, max(1, plan.seconds - run_s - 4 * 3600))),
                kind=kind,
                group=group,
                gpus=part or nodes * gpus,
                nodes=nodes,
                run_s=run_s,
                limit_min=max(2, limit_min),
                state=state,
                exit_code=exit_code,
                user=int(rng.choice(_USERS, p=users)),
                name=_NAMES[int(rng.integers(len(_NAMES)))],
                qos="regular",
                course=course,
            )
        )
    return drawn


def _whole(plan: Plan, number: int) -> int:
    """Nodes of a group that jobs have to themselves."""
    group = plan.groups[number]
    return group.count - (round(group.count * plan.shared) if group.gpus > 1 else 0)


def _draw_one(plan: Plan, rng: np.random.Generator, serial: int, kind: Kind, user: int, *, planned: bool) -> Request:
    group, kind = _choose_group(plan, rng, kind)
    facts = FACTS[kind]
    nodes, gpus = _choose_size(plan, rng, group, facts.min_gpus, planned=planned)
    if kind is Kind.CPU_ONLY:
        nodes, gpus = 1, 0
    run_s = _choose_run_time(plan, rng, kind, 0.35 if planned else 0.6)
    state, exit_code = _choose_end(rng, kind)
    limit_min = run_s // 60 if state == "TIMEOUT" else 5 * -int(-run_s * rng.uniform(1.05, 3) // 300)
    limit_min = max(2, limit_min)
    if state == "TIMEOUT":
        run_s = limit_min * 60 + int(rng.integers(1, 31))
    last = 0.45 if planned else 1.0  # so that what is planned also ends in time
    cancelled = not planned and float(rng.random()) < 0.01
    plain = kind in (Kind.STEADY, Kind.MEMORY_BOUND) and gpus > 0 and not cancelled
    return Request(
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
        qos="debug" if kind is Kind.DEBUG else "regular",
        het=plain and nodes >= 1 and float(rng.random()) < 0.03,
        fails_once=plain and run_s > 1800 and float(rng.random()) < 0.04,
        cancelled_waiting=cancelled,
    )


def _choose_group(plan: Plan, rng: np.random.Generator, kind: Kind) -> tuple[int, Kind]:
    """A group of nodes on which the kind can be seen; steady where there is none."""
    suits = [_suits(group, kind) for group in plan.groups]
    if not any(suits):
        kind, suits = Kind.STEADY, [True] * len(plan.groups)
    weights = np.array([group.count * fits for group, fits in zip(plan.groups, suits, strict=True)], dtype=float)
    return int(rng.choice(len(weights), p=weights / weights.sum())), kind


def _suits(group: NodeGroup, kind: Kind) -> bool:
    if kind is Kind.LOW_MEMORY:
        return group.device.hbm_mib >= LARGE_MEMORY_MIB
    if kind is Kind.FULL_MEMORY:  # error correction in the same memory leaves less than a full one
        return group.driver.total_mib > 0.97 * group.device.hbm_mib
    if kind in _NEEDS_PIPES and group.lacks:
        return False
    return FACTS[kind].min_gpus <= group.gpus * group.count


def _choose_size(plan: Plan, rng: np.random.Generator, number: int, min_gpus: int, *, planned: bool) -> tuple[int, int]:
    """(nodes, GPUs); nodes 0 for a part of a shared node."""
    group = plan.groups[number]
    shared = round(group.count * plan.shared) if group.gpus > 1 else 0
    most = 2 if planned else max(1, (group.count - shared) // 3)
    known: tuple[tuple[int, float], ...] = study.SIZES if plan.as_in_study else _SIZES
    sizes = [(nodes, share) for nodes, share in known if nodes <= most and (nodes or (shared and min_gpus <= 2))]
    sizes = [(nodes, share) for nodes, share in sizes if nodes * group.gpus >= min_gpus or not nodes]
    sizes = sizes or [(-(-min_gpus // group.gpus), 1.0)]
    shares = np.array([share for _, share in sizes])
    nodes = sizes[int(rng.choice(len(sizes), p=shares / shares.sum()))][0]
    if group.count == shared:
        nodes = 0
    if nodes:
        return nodes, nodes * group.gpus
    least = min(min_gpus, group.gpus)
    return 0, int(rng.integers(least, max(least + 1, group.gpus)))


def _choose_run_time(plan: Plan, rng: np.random.Generator, kind: Kind, share: float) -> int:
    """Seconds, at most a share of the plan's length."""
    facts = FACTS[kind]
    longest = study.LONGEST_S if plan.as_in_study and facts.max_s == LONGEST_S else facts.max_s
    longest = min(longest, int(share * plan.seconds))
    if kind is Kind.SHORT:
        return int(rng.integers(facts.min_s, longest))
    median = 0.25 * plan.median_hours if kind is Kind.DEBUG else plan.median_hours
    seconds = 3600 * median * float(np.exp(1.1 * rng.standard_normal()))
    return int(min(max(seconds, facts.min_s), max(longest, facts.min_s)))


def _choose_end(rng: np.random.Generator, kind: Kind) -> tuple[str, str]:
    if kind in (Kind.HUNG, Kind.DEADLOCK):
        return ("TIMEOUT", "0:0") if rng.random() < 0.6 else ("CANCELLED", "0:15")
    if kind is Kind.SHORT:
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


def _tasks(request: Request, tasks: int, rng: np.random.Generator) -> list[Request]:
    """The request, or the tasks of an array: the same job with run times of its own."""
    if not tasks or request.het or request.fails_once or request.state == "TIMEOUT":
        return [request]
    least, most = FACTS[request.kind].min_s, max(request.run_s, FACTS[request.kind].max_s)
    run_times = [int(min(most, max(least, request.run_s * rng.uniform(0.8, 1.0)))) for _ in range(tasks)]
    return [
        replace(request, run_s=run_s, serial=request.serial + index, array=(request.serial, index))
        for index, run_s in enumerate(run_times)
    ]


def _numbered(requests: list[Request]) -> list[Request]:
    """Job ids in order of submission; the last task of an array has the id of the array, as in Slurm."""
    requests = sorted(requests, key=lambda request: (request.submit_s, request.serial))
    next_id = FIRST_JOB_ID
    numbered: list[Request] = []
    arrays: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for request in requests:
        if request.array:
            sizes[request.array[0]] = sizes.get(request.array[0], 0) + 1
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
