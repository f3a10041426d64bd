"""Hangs of jobs on several GPUs with a planted culprit, and jobs that stop without one.

In a hang of collective operations the processes that wait poll: full utilisation, some SM activity, little power, no
arithmetic and no memory traffic. The culprit's GPU is idle, works on, runs a kernel that never returns, or reports
nothing any more. Jobs without a culprit look alike in one respect or another: all wait, all are idle, GPUs end one
after the other, one was never used, two stopped, samples of a node are missing when work stops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType

import numpy as np

from tachograph.simulate.behaviours import (
    NOTHING_HELD_MIB,
    ActivityLevel,
    ActivityPhase,
    CourseStretch,
    JobBehaviour,
    JobCourse,
    JobKind,
    idle_level,
)

Lines = list[list[ActivityPhase]]


@dataclass(frozen=True, slots=True)
class HangCourse(JobCourse):
    """A job that stops working `stop_s` after its start."""

    stop_s: int = 0


@dataclass(frozen=True, slots=True)
class HangBehaviour(JobBehaviour):
    """What each GPU of a job that stops does; `culprit`: its slot, None: no culprit. `dark`: {slot: s after the start}.

    From then on the GPU reports nothing.
    """

    lines: tuple[tuple[ActivityPhase, ...], ...] = ()
    culprit: int | None = None
    dark: Mapping[int, int] = field(default_factory=dict)

    def phases(self, slot: int, slots: int) -> list[ActivityPhase]:
        """Return what GPU number `slot` of `slots` does, from the start of the job on."""
        return list(self.lines[slot])


class _Stopping:
    """A job on its way: what its GPUs do before and after work stops."""

    def __init__(
        self, work: ActivityLevel, course: HangCourse, rng: np.random.Generator, per_node: Sequence[int]
    ) -> None:
        self.rng, self.per_node, self.gpus = rng, per_node, sum(per_node)
        self.stop_s, self.run_s = course.stop_s, course.run_s
        self.noise = work.noise
        uneven = float(rng.choice([0.02, 0.1, 0.3]))
        self.work = [work.scaled(1 - uneven * float(share)) for share in rng.random(self.gpus)]
        polls = float(np.exp(rng.uniform(np.log(0.006), np.log(0.2))))
        self.poll = [
            self.held(slot)._replace(util=1.0, sm=sm, occupancy=sm / 8, noise=float(rng.uniform(0.01, 0.08)))
            for slot, sm in enumerate((polls * rng.uniform(0.9, 1.1, self.gpus)).tolist())
        ]
        loading = ActivityLevel(util=0.05, sm=0.02, occupancy=0.01, dram=0.01, pcie_rx=4e8, noise=0.2)
        loads_s = int(rng.integers(15, 150))
        self.lines: Lines = [
            [ActivityPhase(0, loading._replace(hbm_mib=work.hbm_mib)), ActivityPhase(loads_s, level)]
            for level in self.work
        ]
        self.culprit: int | None = None
        self.dark: dict[int, int] = {}

    def held(self, slot: int) -> ActivityLevel:
        """A GPU that does nothing and keeps its memory."""
        return idle_level(self.work[slot].hbm_mib)

    def left(self) -> ActivityLevel:
        """A GPU of which the process has ended."""
        return idle_level(NOTHING_HELD_MIB)

    def plant(self) -> int:
        """Choose the culprit; return its slot."""
        self.culprit = int(self.rng.integers(self.gpus))
        return self.culprit

    def others(self, *slots: int) -> list[int]:
        """All other GPUs."""
        return [slot for slot in range(self.gpus) if slot not in slots]

    def then(
        self, slots: Sequence[int], level: Callable[[int], ActivityLevel], at_s: float, *, within_s: float = 20
    ) -> None:
        """From `at_s` on, each a little later than that by itself, the GPUs are at `level`."""
        for slot in slots:
            begin = int(at_s + self.rng.uniform(0, within_s))
            self.lines[slot] = [
                *(phase for phase in self.lines[slot] if phase.begin_s < begin),
                ActivityPhase(begin, level(slot)),
            ]

    def wait(self, slots: Sequence[int], at_s: float) -> None:
        """They poll from `at_s` on."""
        self.then(slots, self.poll.__getitem__, at_s)


def _idle_then(job: _Stopping, level: Callable[[int], ActivityLevel]) -> None:
    culprit = job.plant()
    job.then([culprit], level, job.stop_s, within_s=1)
    job.wait(job.others(culprit), job.stop_s)


def _crashed(job: _Stopping) -> None:
    """The process of one GPU has ended; the others wait."""
    _idle_then(job, lambda _: job.left())


def _stuck(job: _Stopping) -> None:
    """The process of one GPU waits outside the GPU, for a file or a lock; the others wait for it."""
    _idle_then(job, job.held)


def _until_limit(job: _Stopping) -> None:
    """The same, and the others leave after the limit of collective operations."""
    _stuck(job)
    limit_s = 60 * float(job.rng.uniform(12, 35))
    job.then(job.others(job.culprit or 0), lambda _: job.left(), job.stop_s + limit_s, within_s=40)


def _first(job: _Stopping) -> None:
    """One GPU stops; the others stop together some minutes later, and all are idle."""
    culprit = job.plant()
    lag_s = 60 * float(job.rng.uniform(4, 25))
    job.then([culprit], job.held, job.stop_s - lag_s, within_s=1)
    job.then(job.others(culprit), job.held, job.stop_s)


def _lost(job: _Stopping) -> None:
    """One GPU reports nothing any more; the others wait."""
    culprit = job.plant()
    job.then([culprit], job.held, job.stop_s, within_s=1)
    job.dark[culprit] = job.stop_s + int(job.rng.uniform(0, 20))
    job.wait(job.others(culprit), job.stop_s)


def _works_on(job: _Stopping) -> None:
    """One GPU works on, in a loop without end; the others wait."""
    job.wait(job.others(job.plant()), job.stop_s)


def _kernel(job: _Stopping) -> None:
    """A kernel of one GPU never returns: many SMs are active, without arithmetic; the others wait."""
    culprit, sm = job.plant(), float(job.rng.uniform(0.45, 0.95))
    level = job.held(culprit)._replace(util=1.0, sm=sm, occupancy=sm / 4, noise=0.03)
    job.then([culprit], lambda _: level, job.stop_s, within_s=1)
    job.wait(job.others(culprit), job.stop_s)


def _all_idle(job: _Stopping) -> None:
    job.then(range(job.gpus), job.held, job.stop_s)


def _all_wait(job: _Stopping) -> None:
    job.wait(range(job.gpus), job.stop_s)


def _one_by_one(job: _Stopping) -> None:
    """Each GPU has work of its own and ends with it."""
    for slot in range(job.gpus):
        job.then([slot], job.held, job.stop_s * float(job.rng.uniform(0.4, 1.0)))


def _leave_one_by_one(job: _Stopping) -> None:
    """All wait, and leave one after the other."""
    _all_wait(job)
    for slot in range(job.gpus):
        job.then([slot], lambda _: job.left(), job.stop_s + 60 * float(job.rng.uniform(15, 50)))


def _one_unused(job: _Stopping) -> None:
    """One GPU was never used; the others stop together."""
    unused = int(job.rng.integers(job.gpus))
    (_all_idle if job.rng.random() < 0.5 else _all_wait)(job)
    job.lines[unused] = [ActivityPhase(0, job.left())]


def _uneven(job: _Stopping) -> None:
    """One GPU has had less work, at less power, all along."""
    slot = int(job.rng.integers(job.gpus))
    share = float(job.rng.uniform(0.2, 0.6))
    job.lines[slot] = [phase._replace(level=phase.level.scaled(share)) for phase in job.lines[slot]]
    (_all_idle if job.rng.random() < 0.5 else _all_wait)(job)


def _last_part(job: _Stopping) -> None:
    """One GPU has a last part of the work, the others are idle and do not wait for it; then all are."""
    slot = int(job.rng.integers(job.gpus))
    job.then(job.others(slot), job.held, job.stop_s - 60 * float(job.rng.uniform(5, 40)))
    job.then([slot], job.held, job.stop_s)


def _two(job: _Stopping) -> None:
    """Two GPUs stopped; the others wait."""
    two = job.rng.choice(job.gpus, 2, replace=False).tolist()
    job.then(two, job.held, job.stop_s, within_s=1)
    job.wait(job.others(*two), job.stop_s)


def _dark_node(job: _Stopping) -> None:
    """All wait; of one node no samples arrive from before the stop on."""
    _all_wait(job)
    node = int(job.rng.integers(len(job.per_node)))
    first, since_s = sum(job.per_node[:node]), int(job.stop_s - 60 * float(job.rng.uniform(4, 40)))
    job.dark = dict.fromkeys(range(first, first + job.per_node[node]), since_s)


@dataclass(frozen=True, slots=True)
class HangScenario:
    """A kind of stop: share of the jobs, whether a culprit is planted, least number of GPUs and of nodes."""

    name: str
    share: float
    planted: bool
    plant: Callable[[_Stopping], None]
    min_gpus: int = 2
    min_nodes: int = 1


HANG_SCENARIOS: tuple[HangScenario, ...] = (
    HangScenario("crashed", 0.10, planted=True, plant=_crashed),
    HangScenario("stuck", 0.10, planted=True, plant=_stuck),
    HangScenario("until_limit", 0.08, planted=True, plant=_until_limit),
    HangScenario("first", 0.08, planted=True, plant=_first),
    HangScenario("lost", 0.07, planted=True, plant=_lost),
    HangScenario("works_on", 0.07, planted=True, plant=_works_on),
    HangScenario("kernel", 0.06, planted=True, plant=_kernel, min_gpus=3),
    HangScenario("all_idle", 0.08, planted=False, plant=_all_idle),
    HangScenario("all_wait", 0.08, planted=False, plant=_all_wait),
    HangScenario("one_by_one", 0.05, planted=False, plant=_one_by_one),
    HangScenario("leave_one_by_one", 0.04, planted=False, plant=_leave_one_by_one),
    HangScenario("one_unused", 0.04, planted=False, plant=_one_unused, min_gpus=3),
    HangScenario("uneven", 0.04, planted=False, plant=_uneven),
    HangScenario("last_part", 0.04, planted=False, plant=_last_part),
    HangScenario("two", 0.04, planted=False, plant=_two, min_gpus=5),
    HangScenario("dark_node", 0.03, planted=False, plant=_dark_node, min_nodes=2),
)  # fmt: skip
_BY_NAME: Mapping[str, HangScenario] = MappingProxyType({each.name: each for each in HANG_SCENARIOS})
_SIZES = ((0, 0.1), (1, 0.45), (2, 0.2), (4, 0.15), (8, 0.1))  # nodes; 0: a part of a shared one
_KINDS = (JobKind.STEADY, JobKind.MEMORY_BOUND, JobKind.COMPUTE_BOUND, JobKind.TENSOR, JobKind.NO_TENSOR)


def hang_population(jobs: int, rng: np.random.Generator) -> list[JobCourse]:
    """Return the courses of so many jobs that stop, in no order: each scenario has its share, to the nearest job."""
    edges = np.rint(np.cumsum([scenario.share for scenario in HANG_SCENARIOS]) * jobs).astype(int)
    counts = np.diff(edges, prepend=0).tolist()
    courses = [_course(each, rng) for each, count in zip(HANG_SCENARIOS, counts, strict=True) for _ in range(count)]
    return [courses[place] for place in rng.permutation(len(courses)).tolist()]


def _course(scenario: HangScenario, rng: np.random.Generator) -> HangCourse:
    fits = [
        (nodes, share)
        for nodes, share in _SIZES
        if nodes >= scenario.min_nodes or (not nodes and scenario.min_nodes < 2)
    ]
    fits = [
        (nodes, share)
        for nodes, share in fits
        if nodes * 4 >= scenario.min_gpus or (not nodes and scenario.min_gpus < 4)
    ]
    weights = np.array([share for _, share in fits])
    nodes = fits[int(rng.choice(len(fits), p=weights / weights.sum()))][0]
    stop, hang = float(rng.uniform(45, 180)), float(rng.uniform(61, 150))
    kind = _KINDS[int(rng.integers(len(_KINDS)))]
    return HangCourse(
        scenario.name,
        kind,
        (CourseStretch(stop + hang),),
        nodes,
        min(4, scenario.min_gpus),
        stuck=True,
        stop_s=round(60 * stop),
    )


def follow_hang(
    behaviour: JobBehaviour, course: HangCourse, rng: np.random.Generator, *, per_node: Sequence[int]
) -> HangBehaviour:
    """Return the job with what its GPUs do; `per_node`: GPUs on each of its nodes."""
    job = _Stopping(behaviour.work._replace(period_s=0.0, duty=1.0), course, rng, per_node)
    if sum(per_node) >= 2:
        _BY_NAME[course.scenario].plant(job)
    known = {each.name: getattr(behaviour, each.name) for each in fields(JobBehaviour)}
    lines = tuple(map(tuple, job.lines))
    return HangBehaviour(**{**known, "planted": None}, lines=lines, culprit=job.culprit, dark=job.dark)
