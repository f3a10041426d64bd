"""A population of jobs to measure judgement with: every job class, what is nearly one, and much that is healthy.

Of each job the course is drawn: what it does when, and which GPUs take part. Intervals without work are 61 minutes
and longer, or 50 and shorter: between them it is a matter of seconds whether the published length T of 60 minutes is
reached. The truth follows from the courses (`judging_truth`), never from a judge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from types import MappingProxyType

import numpy as np

from tachograph.simulate.kinds import NOTHING_HELD_MIB, Behaviour, Kind, Level, Phase, idle


class Doing(StrEnum):
    """What a job does in a stretch of its course."""

    WORK = "work"
    ALONE = "alone"  # only its first GPU works
    LOAD = "load"  # data come in, GPUs do next to nothing
    REST = "rest"
    BLIP = "blip"  # something tiny runs while the job rests: a monitor, a heartbeat
    SPIN = "spin"  # waits, and looks busy: utilisation near 100 %, no arithmetic, no memory traffic


@dataclass(frozen=True, slots=True)
class Stretch:
    """Minutes of doing something. `share`: of the work; of a blip its utilisation, of spinning its SM activity."""

    minutes: float
    doing: Doing = Doing.WORK
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Course:
    """What a job does: its stretches one after the other; `taking_part`: how its GPUs share the work (SHARING).

    `work`: levels of the work that differ from those of its kind. `stuck`: ends at its limit or by hand.
    """

    scenario: str
    kind: Kind
    stretches: tuple[Stretch, ...]
    nodes: int
    min_gpus: int = 1
    taking_part: str = "all"
    work: tuple[tuple[str, float], ...] = ()
    stuck: bool = False

    @property
    def run_s(self) -> int:
        """Length in seconds."""
        return round(60 * sum(stretch.minutes for stretch in self.stretches))


@dataclass(frozen=True, slots=True)
class Following(Behaviour):
    """A job that follows a course. `shares`: of the work, for each of its GPUs; 0 does nothing."""

    course: Course | None = None
    shares: tuple[float, ...] = ()

    def phases(self, slot: int, slots: int) -> list[Phase]:
        """Return what GPU number `slot` of `slots` does, from the start of the job on."""
        share = self.shares[slot]
        if share == 0 or self.course is None:
            return [Phase(0, idle(1694.0 if slot % 2 else NOTHING_HELD_MIB))]
        found, begin_s = [], 0.0
        for stretch in self.course.stretches:
            found.append(Phase(round(begin_s), self._level(stretch, slot, share)))
            begin_s += 60 * stretch.minutes
        return found

    def _level(self, stretch: Stretch, slot: int, share: float) -> Level:
        held = idle(self.work.hbm_mib)
        match stretch.doing:
            case Doing.SPIN:
                return held._replace(util=1.0, sm=stretch.share, occupancy=stretch.share / 8, noise=0.02)
            case Doing.BLIP if slot == 0:
                return held._replace(util=stretch.share, sm=stretch.share / 8, occupancy=stretch.share / 64)
            case Doing.LOAD:
                return Level(
                    util=0.05, sm=0.02, occupancy=0.01, dram=0.01, pcie_rx=4e8, noise=0.2, hbm_mib=held.hbm_mib
                )
            case Doing.WORK:
                return self.work.scaled(stretch.share * share)
            case Doing.ALONE if slot == 0:
                return self.work.scaled(stretch.share * share)
        return held


def follow(behaviour: Behaviour, course: Course, rng: np.random.Generator, *, per_node: Sequence[int]) -> Following:
    """Return the job with a course; `per_node`: GPUs on each of its nodes."""
    work = behaviour.work._replace(**dict(course.work))
    shares = tuple(round(share, 6) for share in SHARING[course.taking_part](rng, per_node))
    known = {field.name: getattr(behaviour, field.name) for field in fields(Behaviour)}
    return Following(**{**known, "work": work, "planted": None}, course=course, shares=shares)


def _idle_nodes(rng: np.random.Generator, per_node: Sequence[int]) -> list[float]:
    idle_ones = set(rng.choice(len(per_node), int(rng.integers(1, len(per_node))), replace=False).tolist())
    return [float(node not in idle_ones) for node, gpus in enumerate(per_node) for _ in range(gpus)]


def _uneven_nodes(rng: np.random.Generator, per_node: Sequence[int]) -> list[float]:
    shares = [1.0, *rng.uniform(0.62, 0.95, len(per_node) - 1).tolist()]
    return [shares[node] for node, gpus in enumerate(per_node) for _ in range(gpus)]


def _one(rng: np.random.Generator, per_node: Sequence[int]) -> list[float]:
    chosen = int(rng.integers(sum(per_node)))
    return [float(slot == chosen) for slot in range(sum(per_node))]


def _but_one(rng: np.random.Generator, per_node: Sequence[int]) -> list[float]:
    return [1.0 - share for share in _one(rng, per_node)]


def _half(rng: np.random.Generator, per_node: Sequence[int]) -> list[float]:
    return [float(slot < (sum(per_node) + 1) // 2) for slot in range(sum(per_node))]


# how GPUs take part: {name: share of the work of each GPU, of the GPUs on each node}; GPUs of all nodes in a row
SHARING: Mapping[str, Callable[[np.random.Generator, Sequence[int]], list[float]]] = MappingProxyType(
    {
        "all": lambda rng, per_node: [1.0] * sum(per_node),
        "none": lambda rng, per_node: [0.0] * sum(per_node),
        "one": _one,
        "but_one": _but_one,
        "half": _half,
        "imbalanced": lambda rng, per_node: [1.0, *rng.uniform(0.10, 0.40, sum(per_node) - 1)],
        "uneven": lambda rng, per_node: [1.0, *rng.uniform(0.62, 0.95, sum(per_node) - 1)],
        "idle_nodes": _idle_nodes,
        "uneven_nodes": _uneven_nodes,
    }
)

_SIZES = ((0, 0.12), (1, 0.68), (2, 0.12), (4, 0.08))
_ONE_NODE = ((1, 1.0),)
_NODES = ((2, 0.5), (4, 0.35), (8, 0.15))
_ORDINARY = (Kind.STEADY, Kind.MEMORY_BOUND, Kind.COMPUTE_BOUND, Kind.TENSOR, Kind.NO_TENSOR)
_ANY = (*_ORDINARY, Kind.LOW_UTILISATION, Kind.LOW_MEMORY, Kind.FULL_MEMORY)
BLIPS = 0.25  # of the rests: something tiny runs in them now and then
Draw = np.random.Generator
Drawn = tuple[list[Stretch], dict[str, float]]  # stretches, and levels of the work that are the course's own


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is planted: share of the jobs, how a course is drawn, kinds of work, nodes (0: a part of a shared one)."""

    name: str
    share: float
    draw: Callable[[Draw], Drawn]
    kinds: tuple[Kind, ...] = _ORDINARY
    sizes: tuple[tuple[int, float], ...] = _SIZES
    min_gpus: int = 1
    taking_part: str = "all"
    stuck: bool = False

    def course(self, rng: Draw) -> Course:
        """Return the course of one such job."""
        stretches, work = self.draw(rng)
        kind = self.kinds[int(rng.integers(len(self.kinds)))]
        sizes = [(nodes, share) for nodes, share in self.sizes if nodes or self.min_gpus <= 2]
        weights = np.array([share for _, share in sizes])
        nodes = sizes[int(rng.choice(len(sizes), p=weights / weights.sum()))][0]
        return Course(
            self.name,
            kind,
            tuple(stretches),
            nodes,
            self.min_gpus,
            self.taking_part,
            tuple({"noise": float(rng.uniform(0.03, 0.20)), **work}.items()),
            self.stuck,
        )


def _works(rng: Draw, low: float = 20, high: float = 240) -> list[Stretch]:
    """Work after a short loading."""
    loading = float(rng.uniform(0.25, 1.5))
    return [Stretch(loading, Doing.LOAD), Stretch(float(rng.uniform(low, high)) - loading)]


def _of(*parts: tuple[Doing, float, float]) -> Callable[[Draw], Drawn]:
    """Stretches of lengths between two bounds (minutes), one after the other; work at the start loads first."""

    def draw(rng: Draw) -> Drawn:
        found: list[Stretch] = []
        for doing, low, high in parts:
            minutes = float(rng.uniform(low, high))
            match doing:
                case Doing.WORK if not found:
                    found += _works(rng, low, high)
                case Doing.SPIN:
                    found.append(Stretch(minutes, doing, float(np.exp(rng.uniform(np.log(0.005), np.log(0.25))))))
                case Doing.REST if rng.random() < BLIPS:
                    found += _rest_with_blips(rng, minutes)
                case _:
                    found.append(Stretch(minutes, doing))
        return found, {}

    return draw


def _rest_with_blips(rng: Draw, minutes: float) -> list[Stretch]:
    """Rest in which now and then something tiny runs for a moment."""
    found = [Stretch(float(rng.uniform(3, 10)), Doing.REST)]
    left = minutes - found[0].minutes
    while left > 15:
        blip, rest = float(rng.uniform(0.3, 1)), float(rng.uniform(10, 60))
        found.append(Stretch(blip, Doing.BLIP, float(rng.uniform(0.01, 0.12))))
        found.append(Stretch(min(rest, left - blip), Doing.REST))
        left -= blip + found[-1].minutes
    return [*found[:-1], Stretch(found[-1].minutes + left, Doing.REST)]


def _with(low: float, high: float, **levels: tuple[float, float]) -> Callable[[Draw], Drawn]:
    """Work all along, with levels between bounds."""
    return lambda rng: (_works(rng, low, high), {name: float(rng.uniform(*ends)) for name, ends in levels.items()})


def _again(first: tuple[float, float], then: tuple[Doing, float, float], *, least: float) -> Callable[[Draw], Drawn]:
    """Work and something else in turns, until `least` to three times as many minutes are over; ends with work."""

    def draw(rng: Draw) -> Drawn:
        found, most = _works(rng, *first), least * float(rng.uniform(1, 3))
        while sum(stretch.minutes for stretch in found) < most:
            doing, low, high = then
            found += [Stretch(float(rng.uniform(low, high)), doing), Stretch(float(rng.uniform(*first)))]
        return found, {}

    return draw


def _levels(rng: Draw) -> Drawn:
    """Work at changing levels."""
    found = _works(rng, 10, 40)
    for number in range(int(rng.integers(3, 10))):
        share = float(rng.uniform(0.3, 0.6)) if number % 2 == 0 else 1.0
        found.append(Stretch(float(rng.uniform(10, 40)), share=share))
    return found, {}


def _little_at_the_end(rng: Draw) -> Drawn:
    """Work, and then for a long time a small part of it: no hang, for something is done."""
    return [*_works(rng, 70, 200), Stretch(float(rng.uniform(65, 150)), share=float(rng.uniform(0.06, 0.2)))], {}


_LITTLE = {
    "util": (0.02, 0.06),
    "sm": (0.01, 0.02),
    "fp32": (0.001, 0.003),
    "fp64": (0.001, 0.003),
    "dram": (0.002, 0.01),
}
_W, _R, _S, _L, _A = Doing.WORK, Doing.REST, Doing.SPIN, Doing.LOAD, Doing.ALONE
SCENARIOS: tuple[Scenario, ...] = (
    Scenario("hang_silent", 0.035, _of((_W, 70, 240), (_R, 61, 240)), stuck=True),
    Scenario("hang_spinning", 0.035, _of((_W, 70, 240), (_S, 61, 240)), min_gpus=2, stuck=True),
    Scenario("cold_start", 0.05, _of((_R, 61, 180), (_W, 40, 180))),
    Scenario("stall", 0.045, _of((_W, 40, 160), (_R, 61, 150), (_W, 40, 120))),
    Scenario("stall_spinning", 0.01, _of((_W, 40, 160), (_S, 61, 150), (_W, 40, 120)), min_gpus=2),
    Scenario("hang_after_little", 0.01, _of((_W, 15, 45), (_R, 61, 180)), stuck=True),
    Scenario("short_stall", 0.04, _of((_W, 40, 160), (_R, 20, 50), (_W, 40, 120))),
    Scenario("short_cold_start", 0.03, _of((_R, 20, 50), (_W, 40, 180))),
    Scenario("quiet_end", 0.04, _of((_W, 70, 240), (_R, 20, 50))),
    Scenario("work_of_one_at_the_end", 0.02, _of((_W, 70, 200), (_A, 65, 150)), min_gpus=4),
    Scenario("little_at_the_end", 0.02, _little_at_the_end),
    Scenario("idle_nodes", 0.05, _with(20, 200), sizes=_NODES, taking_part="idle_nodes"),
    Scenario("uneven_nodes", 0.02, _with(20, 200), sizes=_NODES, taking_part="uneven_nodes"),
    Scenario("one_gpu", 0.02, _with(20, 240), sizes=_ONE_NODE, min_gpus=4, taking_part="one"),
    Scenario("one_gpu_idle", 0.02, _with(20, 240), sizes=_ONE_NODE, min_gpus=4, taking_part="but_one"),
    Scenario("half_used", 0.02, _with(20, 240), sizes=((1, 0.8), (2, 0.2)), min_gpus=4, taking_part="half"),
    Scenario("imbalanced", 0.015, _with(20, 240), sizes=_ONE_NODE, min_gpus=4, taking_part="imbalanced"),
    Scenario("uneven_gpus", 0.02, _with(20, 240), sizes=_ONE_NODE, min_gpus=4, taking_part="uneven"),
    Scenario("idle", 0.025, _with(20, 240), taking_part="none"),
    Scenario("checkpoints", 0.05, _again((25, 60), (_R, 2, 8), least=80)),
    Scenario("bursty", 0.03, _with(80, 300, period_s=(420, 780), duty=(0.35, 0.45))),
    Scenario("slow_bursts", 0.03, _with(120, 360, period_s=(1200, 2400), duty=(0.3, 0.6))),
    Scenario("interactive", 0.03, _again((8, 20), (_R, 10, 45), least=100)),
    Scenario("changing_levels", 0.04, _levels),
    Scenario("regular", 0.06, _with(70, 300, noise=(0.004, 0.02)), kinds=_ANY),
    Scenario("trickle", 0.015, _with(70, 240, **_LITTLE), kinds=(Kind.LOW_UTILISATION,)),
    Scenario("loading", 0.03, _of((_L, 5, 25), (_W, 60, 240))),
    Scenario("long_loading", 0.01, _of((_L, 30, 50), (_W, 60, 240))),
    Scenario("debug", 0.04, _with(3, 30), kinds=_ANY),
    Scenario("ordinary", 0.14, _with(30, 300), kinds=_ANY),
)  # fmt: skip


def population(jobs: int, rng: Draw) -> list[Course]:
    """Return the courses of so many jobs, in no order: each scenario has its share, to the nearest job."""
    edges = np.rint(np.cumsum([scenario.share for scenario in SCENARIOS]) * jobs).astype(int)
    counts = np.diff(edges, prepend=0).tolist()
    courses = [scenario.course(rng) for scenario, count in zip(SCENARIOS, counts, strict=True) for _ in range(count)]
    return [courses[place] for place in rng.permutation(len(courses)).tolist()]
