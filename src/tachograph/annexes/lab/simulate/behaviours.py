"""Behaviours of simulated jobs: GPU activity over time, planted problems, populations.

Of each job of the population the course is sampled: what it does when, and which GPUs take part.
Intervals without work are 61 minutes and longer, or 50 and shorter: between them seconds decide
whether the published length T of 60 minutes is reached. The truth follows from the courses
(`truth`), not from a check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate
from typing import NamedTuple

import numpy as np

LONGEST_S = 36 * 3600  # of an ordinary job


class JobKind(StrEnum):
    """Kinds of simulated jobs."""

    STEADY = "steady"
    MEMORY_BOUND = "memory_bound"
    COMPUTE_BOUND = "compute_bound"
    TENSOR = "tensor_training"
    NO_TENSOR = "no_tensor"
    LOW_UTILISATION = "low_utilisation"
    BURSTY = "bursty"
    HUNG = "hung"
    DEADLOCK = "deadlock"
    COLD_START = "cold_start"
    STALLED = "stalled"
    IDLE = "idle"
    ONE_GPU = "one_gpu_of_many"
    HALF_USED = "half_used"
    IMBALANCED = "imbalanced"
    LOW_MEMORY = "low_memory"
    FULL_MEMORY = "full_memory"
    SHORT = "short"
    DEBUG = "debug"
    CPU_ONLY = "cpu_only"


@dataclass(frozen=True, slots=True)
class JobKindFacts:
    """Planted problem or None, share of jobs, range of run times, least number of GPUs."""

    problem: str | None
    weight: float
    min_s: int = 240
    max_s: int = LONGEST_S
    min_gpus: int = 1


JOB_KINDS: Mapping[JobKind, JobKindFacts] = {
    JobKind.STEADY: JobKindFacts(None, 0.20),
    JobKind.MEMORY_BOUND: JobKindFacts("memory_bound", 0.27),
    JobKind.COMPUTE_BOUND: JobKindFacts(None, 0.07),
    JobKind.TENSOR: JobKindFacts(None, 0.10),
    JobKind.NO_TENSOR: JobKindFacts("no_tensor_use", 0.03),
    JobKind.LOW_UTILISATION: JobKindFacts("low_utilisation", 0.05),
    JobKind.BURSTY: JobKindFacts("bursty", 0.03, min_s=4800),
    JobKind.HUNG: JobKindFacts("job_hang", 0.015, min_s=9000),
    JobKind.DEADLOCK: JobKindFacts("busy_waiting", 0.01, min_s=9000, min_gpus=2),
    JobKind.COLD_START: JobKindFacts("cold_start", 0.02, min_s=4500),
    JobKind.STALLED: JobKindFacts("stall", 0.01, min_s=5400),
    JobKind.IDLE: JobKindFacts("idle_job", 0.02, min_s=900),
    JobKind.ONE_GPU: JobKindFacts("one_gpu_of_many", 0.05, min_s=900, min_gpus=4),
    JobKind.HALF_USED: JobKindFacts("gpus_never_used", 0.02, min_s=900, min_gpus=4),
    JobKind.IMBALANCED: JobKindFacts("imbalanced_gpus", 0.03, min_s=900, min_gpus=4),
    JobKind.LOW_MEMORY: JobKindFacts("low_memory", 0.015),
    JobKind.FULL_MEMORY: JobKindFacts("memory_nearly_full", 0.015),
    JobKind.SHORT: JobKindFacts("short_job", 0.05, min_s=20, max_s=170),
    JobKind.DEBUG: JobKindFacts(None, 0.05, max_s=1800),
    JobKind.CPU_ONLY: JobKindFacts(None, 0.02),
}


class ActivityLevel(NamedTuple):
    """Activity at full work: fractions, MiB, bytes per second; `noise`: drop of samples below it.

    With `period_s` > 0 the GPU works during the first `duty` of each period and waits for the rest
    of it.
    """

    util: float = 0.0
    sm: float = 0.0
    occupancy: float = 0.0
    fp64: float = 0.0
    fp32: float = 0.0
    fp16: float = 0.0
    hmma: float = 0.0
    imma: float = 0.0
    dfma: float = 0.0
    dram: float = 0.0
    hbm_mib: float = 0.0
    pcie_rx: float = 0.0
    pcie_tx: float = 0.0
    nvlink: float = 0.0
    noise: float = 0.0
    period_s: float = 0.0
    duty: float = 1.0

    @property
    def heat(self) -> float:
        """Share of the range between idle and full power at full work."""
        pipes = (
            self.fp64 + 0.7 * self.fp32 + 0.7 * self.fp16 + self.hmma + 0.7 * self.imma + self.dfma
        )
        return min(1.0, 0.12 * self.util + 0.28 * self.sm + 0.4 * pipes + 0.35 * self.dram)

    @property
    def mean_factor(self) -> float:
        """Mean activity over full activity: noise is even between 1 - noise and 1."""
        return self.duty * (1 - self.noise / 2)

    def scaled(self, share: float) -> ActivityLevel:
        """Return the same work at a share of the activity; memory in use is unchanged."""
        names = ("util", "sm", "occupancy", "fp64", "fp32", "fp16", "hmma", "imma", "dfma", "dram")
        scaled = {
            name: getattr(self, name) * share for name in (*names, "pcie_rx", "pcie_tx", "nvlink")
        }
        return self._replace(**scaled)


NOTHING_HELD_MIB = 4.0  # what a driver shows without any process
CONTEXT_MIB = 1694.0  # what an idle process holds


def idle_level(hbm_mib: float = NOTHING_HELD_MIB) -> ActivityLevel:
    """Return the level of an idle GPU; idle devices report memory traffic near 1e-8."""
    return ActivityLevel(dram=3e-8, hbm_mib=hbm_mib)


# data are loaded from files
LOADING = ActivityLevel(util=0.05, sm=0.02, occupancy=0.01, dram=0.01, pcie_rx=4e8, noise=0.2)


class ActivityPhase(NamedTuple):
    """From `begin_s` after the job's start to the next phase the GPU is at `level`."""

    begin_s: int
    level: ActivityLevel


class CourseActivity(StrEnum):
    """Activity of a job for some time."""

    WORK = "work"
    ALONE = "alone"  # only its first GPU works
    LOAD = "load"  # data are loaded, GPUs do next to nothing
    REST = "rest"
    BLIP = "blip"  # something tiny runs while the job is idle: a monitor, a heartbeat
    SPIN = "spin"  # busy-waiting: utilisation near 100 %, no arithmetic, no memory traffic
    STUCK = "stuck"  # the same, without any change
    COLD = "cold"  # nothing runs yet, and holds no memory


class ActivityStep(NamedTuple):
    """From `begin_s` after the job's start on it does this.

    `share`: of the work; of a blip, its utilisation; of spinning, its SM activity; of loading, of
    the memory.
    """

    begin_s: int
    doing: CourseActivity
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class JobBehaviour:
    """Behaviour of a job: level at full work, what it does when, planted interval (s after start).

    `shares`: of the work, of each of its GPUs; 0 does nothing.
    """

    kind: JobKind
    work: ActivityLevel
    steps: tuple[ActivityStep, ...]
    shares: tuple[float, ...]
    planted: tuple[int, int] | None = None
    spread: float = 0.0

    def phases(self, slot: int) -> list[ActivityPhase]:
        """Return the activity of a GPU from the job's start on."""
        if self.shares[slot] == 0:
            held_mib = min(self.work.hbm_mib, CONTEXT_MIB) if slot % 2 else NOTHING_HELD_MIB
            return [ActivityPhase(0, idle_level(held_mib))]
        return [ActivityPhase(step.begin_s, self._level(step, slot)) for step in self.steps]

    def with_shares(self, share: Callable[[float], float]) -> JobBehaviour:
        """Return the job with a share of the work, of a number 0..1, on all GPUs but the first."""
        positions = [(slot * 0.381966 + self.spread) % 1.0 for slot in range(len(self.shares))]
        return replace(self, shares=(1.0, *map(share, positions[1:])))

    def _level(self, step: ActivityStep, slot: int) -> ActivityLevel:
        held, share = idle_level(self.work.hbm_mib), step.share
        match step.doing:
            case CourseActivity.SPIN | CourseActivity.STUCK as doing:
                noise = 0.02 if doing is CourseActivity.SPIN else 0.0
                return held._replace(util=1.0, sm=share, occupancy=share / 8, noise=noise)
            case CourseActivity.BLIP if slot == 0:
                return held._replace(util=share, sm=share / 8, occupancy=share / 64)
            case CourseActivity.LOAD:
                return LOADING._replace(hbm_mib=float(round(held.hbm_mib * share)))
            case CourseActivity.COLD:
                return idle_level()
            case CourseActivity.WORK:
                return self.work.scaled(share * self.shares[slot])
            case CourseActivity.ALONE if slot == 0:
                return self.work.scaled(share * self.shares[slot])
        return held


_WORK: Mapping[JobKind, Mapping[str, tuple[float, float]]] = {
    JobKind.MEMORY_BOUND: {
        "util": (0.85, 1),
        "sm": (0.6, 0.84),
        "fp64": (0.08, 0.3),
        "dram": (0.62, 0.85),
    },
    JobKind.COMPUTE_BOUND: {
        "util": (0.95, 1),
        "sm": (0.8, 0.93),
        "fp64": (0.35, 0.6),
        "dfma": (0.1, 0.3),
        "dram": (0.1, 0.22),
    },
    JobKind.TENSOR: {
        "util": (0.85, 0.99),
        "sm": (0.65, 0.84),
        "hmma": (0.32, 0.58),
        "fp32": (0.06, 0.12),
        "fp16": (0.01, 0.04),
        "dram": (0.18, 0.28),
    },
    JobKind.NO_TENSOR: {
        "util": (0.8, 0.98),
        "sm": (0.6, 0.79),
        "fp32": (0.36, 0.55),
        "fp16": (0.01, 0.06),
        "dram": (0.12, 0.25),
    },
    JobKind.LOW_UTILISATION: {
        "util": (0.10, 0.24),
        "sm": (0.05, 0.09),
        "fp32": (0.01, 0.03),
        "fp64": (0.01, 0.04),
        "dram": (0.01, 0.04),
    },
    JobKind.STEADY: {
        "util": (0.45, 0.95),
        "sm": (0.3, 0.44),
        "fp32": (0.04, 0.1),
        "fp64": (0.06, 0.18),
        "hmma": (0.02, 0.1),
        "dram": (0.1, 0.24),
    },
}
_AS_TENSOR = frozenset({JobKind.BURSTY, JobKind.DEADLOCK, JobKind.COLD_START, JobKind.FULL_MEMORY})


def behave(
    kind: JobKind,
    rng: np.random.Generator,
    *,
    elapsed_s: int,
    gpus: int,
    capacity_mib: float,
    usable_mib: float,
) -> JobBehaviour:
    """Return how a job of `kind` behaves that runs `elapsed_s` on `gpus` GPUs of `capacity_mib`
    (nominal).
    """
    source = JobKind.TENSOR if kind in _AS_TENSOR else JobKind.STEADY
    if kind in _WORK:
        source = kind
    levels = {name: float(rng.uniform(low, high)) for name, (low, high) in _WORK[source].items()}
    levels["occupancy"] = levels["sm"] * float(rng.uniform(0.2, 0.7))
    share = float(rng.uniform(0.22, 0.92))
    if kind is JobKind.LOW_MEMORY:
        share = float(rng.uniform(0.02, 0.15))
    elif kind is JobKind.FULL_MEMORY:
        share = float(rng.uniform(0.96, 0.98))
    levels["hbm_mib"] = float(min(round(share * capacity_mib), usable_mib - 64))
    levels["pcie_rx"] = float(np.exp(rng.uniform(np.log(2e7), np.log(3e9))))
    levels["pcie_tx"] = levels["pcie_rx"] * float(rng.uniform(0.2, 0.8))
    levels["nvlink"] = float(np.exp(rng.uniform(np.log(1e8), np.log(4e10)))) if gpus > 1 else 0.0
    levels["noise"] = float(rng.uniform(0.04, 0.25))
    if kind is JobKind.BURSTY:
        levels["period_s"], levels["duty"] = (
            float(rng.integers(420, 780)),
            float(rng.uniform(0.35, 0.45)),
        )
    loaded_s = 0 if elapsed_s < 600 else int(rng.integers(15, 90))
    slot, spread = int(rng.integers(0, max(1, gpus))), float(rng.random())
    planted = _planted(kind, rng, elapsed_s)
    shares = [1.0] * gpus
    if kind is JobKind.ONE_GPU:
        shares = [float(other == slot) for other in range(gpus)]
    elif kind is JobKind.HALF_USED:
        shares = _half(rng, [gpus])
    elif kind is JobKind.IDLE:
        shares = [0.0] * gpus
    steps = _steps(kind, loaded_s, planted)
    behaviour = JobBehaviour(kind, ActivityLevel(**levels), steps, tuple(shares), planted, spread)
    return (
        behaviour.with_shares(lambda part: 0.10 + 0.25 * part)
        if kind is JobKind.IMBALANCED
        else behaviour
    )


def _steps(
    kind: JobKind, loaded_s: int, planted: tuple[int, int] | None
) -> tuple[ActivityStep, ...]:
    """Loading, work, and the planted interval, after which only some go on."""
    steps = [ActivityStep(0, CourseActivity.LOAD, 0.4)] if loaded_s else []
    steps.append(ActivityStep(loaded_s, CourseActivity.WORK))
    if planted is None:
        return tuple(steps)
    begin, end = planted
    rest = ActivityStep(begin, CourseActivity.REST)
    if kind is JobKind.DEADLOCK:
        rest = ActivityStep(begin, CourseActivity.STUCK, 0.008)
    elif kind is JobKind.COLD_START:
        rest = ActivityStep(begin, CourseActivity.COLD)
    steps = [*(step for step in steps if step.begin_s < begin), rest]
    if kind in (JobKind.STALLED, JobKind.COLD_START):
        steps.append(ActivityStep(end, CourseActivity.WORK))
    return tuple(steps)


def _planted(kind: JobKind, rng: np.random.Generator, elapsed_s: int) -> tuple[int, int] | None:
    """Planted idle interval (s after the start): up to the end, at the start, or in the middle."""
    if kind in (JobKind.HUNG, JobKind.DEADLOCK):
        return min(int(elapsed_s * rng.uniform(0.35, 0.6)), elapsed_s - 4200), elapsed_s
    if kind is JobKind.COLD_START:
        return 0, max(1200, int(elapsed_s * rng.uniform(0.25, 0.45)))
    if kind is JobKind.STALLED:
        length = max(1200, int(elapsed_s * rng.uniform(0.15, 0.3)))
        begin = int(rng.integers(1500, elapsed_s - length - 900))
        return begin, begin + length
    return None


@dataclass(frozen=True, slots=True)
class CourseStretch:
    """Minutes of one activity; `share`: as of ActivityStep."""

    minutes: float
    doing: CourseActivity = CourseActivity.WORK
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class JobCourse:
    """Consecutive stretches of a job; `taking_part`: how its GPUs share the work (SHARING).

    `work`: levels of the work that differ from those of its kind. `stuck`: ends at its limit or by
    hand.
    """

    scenario: str
    kind: JobKind
    stretches: tuple[CourseStretch, ...]
    nodes: int
    min_gpus: int = 1
    taking_part: str = "all"
    work: tuple[tuple[str, float], ...] = ()
    stuck: bool = False

    @property
    def run_s(self) -> int:
        """Length in seconds."""
        return round(60 * sum(stretch.minutes for stretch in self.stretches))

    @property
    def steps(self) -> tuple[ActivityStep, ...]:
        """Its stretches, with their begins."""
        ends = accumulate((60 * stretch.minutes for stretch in self.stretches), initial=0.0)
        return tuple(
            ActivityStep(round(begin), stretch.doing, stretch.share)
            for begin, stretch in zip(ends, self.stretches, strict=False)
        )


def follow(
    behaviour: JobBehaviour, course: JobCourse, rng: np.random.Generator, *, per_node: Sequence[int]
) -> JobBehaviour:
    """Return the job with a course; `per_node`: GPUs on each of its nodes."""
    work = behaviour.work._replace(**dict(course.work))
    shares = tuple(round(share, 6) for share in SHARING[course.taking_part](rng, per_node))
    return replace(behaviour, work=work, planted=None, steps=course.steps, shares=shares)


def _idle_nodes(rng: np.random.Generator, per_node: Sequence[int]) -> list[float]:
    idle_ones = set(
        rng.choice(len(per_node), int(rng.integers(1, len(per_node))), replace=False).tolist()
    )
    return [float(node not in idle_ones) for node, gpus in enumerate(per_node) for _ in range(gpus)]


def _uneven_nodes(rng: np.random.Generator, per_node: Sequence[int]) -> list[float]:
    shares = [1.0, *rng.uniform(0.62, 0.95, len(per_node) - 1).tolist()]
    return [shares[node] for node, gpus in enumerate(per_node) for _ in range(gpus)]


def _one_gpu(rng: np.random.Generator, per_node: Sequence[int]) -> list[float]:
    active = int(rng.integers(sum(per_node)))
    return [float(slot == active) for slot in range(sum(per_node))]


def _but_one(rng: np.random.Generator, per_node: Sequence[int]) -> list[float]:
    return [1.0 - share for share in _one_gpu(rng, per_node)]


def _half(rng: np.random.Generator, per_node: Sequence[int]) -> list[float]:
    return [float(slot < (sum(per_node) + 1) // 2) for slot in range(sum(per_node))]


# how GPUs take part: {name: share of the work of each GPU, of the GPUs on each node}; GPUs of all
# nodes in a row
SHARING: Mapping[str, Callable[[np.random.Generator, Sequence[int]], list[float]]] = {
    "all": lambda rng, per_node: [1.0] * sum(per_node),
    "none": lambda rng, per_node: [0.0] * sum(per_node),
    "one": _one_gpu,
    "but_one": _but_one,
    "half": _half,
    "imbalanced": lambda rng, per_node: [1.0, *rng.uniform(0.10, 0.40, sum(per_node) - 1)],
    "uneven": lambda rng, per_node: [1.0, *rng.uniform(0.62, 0.95, sum(per_node) - 1)],
    "idle_nodes": _idle_nodes,
    "uneven_nodes": _uneven_nodes,
}

_SIZES = ((0, 0.12), (1, 0.68), (2, 0.12), (4, 0.08))
_ONE_NODE = ((1, 1.0),)
_NODES = ((2, 0.5), (4, 0.35), (8, 0.15))
_ORDINARY = (
    JobKind.STEADY,
    JobKind.MEMORY_BOUND,
    JobKind.COMPUTE_BOUND,
    JobKind.TENSOR,
    JobKind.NO_TENSOR,
)
_ANY = (*_ORDINARY, JobKind.LOW_UTILISATION, JobKind.LOW_MEMORY, JobKind.FULL_MEMORY)
BLIPS = 0.25  # of the idle stretches: something tiny runs in them now and then
Draw = np.random.Generator
# Stretches, and levels of the work that are the course's own.
Drawn = tuple[list[CourseStretch], dict[str, float]]


@dataclass(frozen=True, slots=True)
class CourseScenario:
    """A planted scenario: share of jobs, sampling of courses, job kinds, nodes (0: part of one)."""

    name: str
    share: float
    draw: Callable[[Draw], Drawn]
    kinds: tuple[JobKind, ...] = _ORDINARY
    sizes: tuple[tuple[int, float], ...] = _SIZES
    min_gpus: int = 1
    taking_part: str = "all"
    stuck: bool = False

    def course(self, rng: Draw) -> JobCourse:
        """Return the course of one job of the scenario."""
        stretches, work = self.draw(rng)
        kind = self.kinds[int(rng.integers(len(self.kinds)))]
        sizes = [(nodes, share) for nodes, share in self.sizes if nodes or self.min_gpus <= 2]
        weights = np.array([share for _, share in sizes])
        nodes = sizes[int(rng.choice(len(sizes), p=weights / weights.sum()))][0]
        return JobCourse(
            self.name,
            kind,
            tuple(stretches),
            nodes,
            self.min_gpus,
            self.taking_part,
            tuple({"noise": float(rng.uniform(0.03, 0.20)), **work}.items()),
            self.stuck,
        )


def _works(rng: Draw, low: float = 20, high: float = 240) -> list[CourseStretch]:
    """Work after a short loading."""
    loading = float(rng.uniform(0.25, 1.5))
    return [
        CourseStretch(loading, CourseActivity.LOAD),
        CourseStretch(float(rng.uniform(low, high)) - loading),
    ]


def _of(*parts: tuple[CourseActivity, float, float]) -> Callable[[Draw], Drawn]:
    """Consecutive stretches with sampled lengths (minutes); work at the start loads first."""

    def draw(rng: Draw) -> Drawn:
        stretches: list[CourseStretch] = []
        for doing, low, high in parts:
            minutes = float(rng.uniform(low, high))
            match doing:
                case CourseActivity.WORK if not stretches:
                    stretches += _works(rng, low, high)
                case CourseActivity.SPIN:
                    stretches.append(
                        CourseStretch(
                            minutes, doing, float(np.exp(rng.uniform(np.log(0.005), np.log(0.25))))
                        )
                    )
                case CourseActivity.REST if rng.random() < BLIPS:
                    stretches += _rest_with_blips(rng, minutes)
                case _:
                    stretches.append(CourseStretch(minutes, doing))
        return stretches, {}

    return draw


def _rest_with_blips(rng: Draw, minutes: float) -> list[CourseStretch]:
    """Rest in which now and then something tiny runs for a moment."""
    stretches = [CourseStretch(float(rng.uniform(3, 10)), CourseActivity.REST)]
    remaining = minutes - stretches[0].minutes
    while remaining > 15:
        blip, rest = float(rng.uniform(0.3, 1)), float(rng.uniform(10, 60))
        stretches.append(CourseStretch(blip, CourseActivity.BLIP, float(rng.uniform(0.01, 0.12))))
        stretches.append(CourseStretch(min(rest, remaining - blip), CourseActivity.REST))
        remaining -= blip + stretches[-1].minutes
    return [*stretches[:-1], CourseStretch(stretches[-1].minutes + remaining, CourseActivity.REST)]


def _with(low: float, high: float, **levels: tuple[float, float]) -> Callable[[Draw], Drawn]:
    """Work all along, with levels between bounds."""
    return lambda rng: (
        _works(rng, low, high),
        {name: float(rng.uniform(*ends)) for name, ends in levels.items()},
    )


def _again(
    first: tuple[float, float], then: tuple[CourseActivity, float, float], *, least: float
) -> Callable[[Draw], Drawn]:
    """Alternate work and another state for `least` to three times as long; end with work."""

    def draw(rng: Draw) -> Drawn:
        stretches, most = _works(rng, *first), least * float(rng.uniform(1, 3))
        while sum(stretch.minutes for stretch in stretches) < most:
            doing, low, high = then
            stretches += [
                CourseStretch(float(rng.uniform(low, high)), doing),
                CourseStretch(float(rng.uniform(*first))),
            ]
        return stretches, {}

    return draw


def _levels(rng: Draw) -> Drawn:
    """Work at changing levels."""
    stretches = _works(rng, 10, 40)
    for number in range(int(rng.integers(3, 10))):
        share = float(rng.uniform(0.3, 0.6)) if number % 2 == 0 else 1.0
        stretches.append(CourseStretch(float(rng.uniform(10, 40)), share=share))
    return stretches, {}


def _little_at_the_end(rng: Draw) -> Drawn:
    """Work, then a small part of it for long: no hang, as work continues."""
    return [
        *_works(rng, 70, 200),
        CourseStretch(float(rng.uniform(65, 150)), share=float(rng.uniform(0.06, 0.2))),
    ], {}


_LITTLE = {
    "util": (0.02, 0.06),
    "sm": (0.01, 0.02),
    "fp32": (0.001, 0.003),
    "fp64": (0.001, 0.003),
    "dram": (0.002, 0.01),
}
_W, _R, _S, _L, _A = (
    CourseActivity.WORK,
    CourseActivity.REST,
    CourseActivity.SPIN,
    CourseActivity.LOAD,
    CourseActivity.ALONE,
)
SCENARIOS: tuple[CourseScenario, ...] = (
    CourseScenario("hang_silent", 0.035, _of((_W, 70, 240), (_R, 61, 240)), stuck=True),
    CourseScenario("hang_spinning", 0.035, _of((_W, 70, 240), (_S, 61, 240)), min_gpus=2, stuck=True),
    CourseScenario("cold_start", 0.05, _of((_R, 61, 180), (_W, 40, 180))),
    CourseScenario("stall", 0.045, _of((_W, 40, 160), (_R, 61, 150), (_W, 40, 120))),
    CourseScenario("stall_spinning", 0.01, _of((_W, 40, 160), (_S, 61, 150), (_W, 40, 120)), min_gpus=2),
    CourseScenario("hang_after_little", 0.01, _of((_W, 15, 45), (_R, 61, 180)), stuck=True),
    CourseScenario("short_stall", 0.04, _of((_W, 40, 160), (_R, 20, 50), (_W, 40, 120))),
    CourseScenario("short_cold_start", 0.03, _of((_R, 20, 50), (_W, 40, 180))),
    CourseScenario("quiet_end", 0.04, _of((_W, 70, 240), (_R, 20, 50))),
    CourseScenario("work_of_one_at_the_end", 0.02, _of((_W, 70, 200), (_A, 65, 150)), min_gpus=4),
    CourseScenario("little_at_the_end", 0.02, _little_at_the_end),
    CourseScenario("idle_nodes", 0.05, _with(20, 200), sizes=_NODES, taking_part="idle_nodes"),
    CourseScenario("uneven_nodes", 0.02, _with(20, 200), sizes=_NODES, taking_part="uneven_nodes"),
    CourseScenario("one_gpu", 0.02, _with(20, 240), sizes=_ONE_NODE, min_gpus=4, taking_part="one"),
    CourseScenario("one_gpu_idle", 0.02, _with(20, 240), sizes=_ONE_NODE, min_gpus=4, taking_part="but_one"),
    CourseScenario("half_used", 0.02, _with(20, 240), sizes=((1, 0.8), (2, 0.2)), min_gpus=4, taking_part="half"),
    CourseScenario("imbalanced", 0.015, _with(20, 240), sizes=_ONE_NODE, min_gpus=4, taking_part="imbalanced"),
    CourseScenario("uneven_gpus", 0.02, _with(20, 240), sizes=_ONE_NODE, min_gpus=4, taking_part="uneven"),
    CourseScenario("idle", 0.025, _with(20, 240), taking_part="none"),
    CourseScenario("checkpoints", 0.05, _again((25, 60), (_R, 2, 8), least=80)),
    CourseScenario("bursty", 0.03, _with(80, 300, period_s=(420, 780), duty=(0.35, 0.45))),
    CourseScenario("slow_bursts", 0.03, _with(120, 360, period_s=(1200, 2400), duty=(0.3, 0.6))),
    CourseScenario("interactive", 0.03, _again((8, 20), (_R, 10, 45), least=100)),
    CourseScenario("changing_levels", 0.04, _levels),
    CourseScenario("regular", 0.06, _with(70, 300, noise=(0.004, 0.02)), kinds=_ANY),
    CourseScenario("trickle", 0.015, _with(70, 240, **_LITTLE), kinds=(JobKind.LOW_UTILISATION,)),
    CourseScenario("loading", 0.03, _of((_L, 5, 25), (_W, 60, 240))),
    CourseScenario("long_loading", 0.01, _of((_L, 30, 50), (_W, 60, 240))),
    CourseScenario("debug", 0.04, _with(3, 30), kinds=_ANY),
    CourseScenario("ordinary", 0.14, _with(30, 300), kinds=_ANY),
)  # fmt: skip


def accuracy_population(jobs: int, rng: Draw) -> list[JobCourse]:
    """Return `number` courses, unordered; each scenario has its share, rounded to a job."""
    edges = np.rint(np.cumsum([scenario.share for scenario in SCENARIOS]) * jobs).astype(int)
    counts = np.diff(edges, prepend=0).tolist()
    courses: list[JobCourse] = []
    for scenario, count in zip(SCENARIOS, counts, strict=True):
        courses += [scenario.course(rng) for _ in range(count)]
    return [courses[index] for index in rng.permutation(len(courses)).tolist()]
