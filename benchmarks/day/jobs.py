"""Jobs of the simulated day: arrivals, applications, and mixes sampled for recorded jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
from numpy.random import Generator

from day.gpu import ACHIEVABLE, KERNELS, NAMES, Class, alone
from tachograph.catalog.arrays import Floats, Longs
from tachograph.catalog.units import MI
from tachograph.sharing.demand import PIPES, Demand
from tachograph.sharing.mixes import issuing, of_means

DAY_S = 86_400.0
NOISE = 0.03  # of a measurement: standard deviation of its logarithm
WARPS_PER_SCHEDULER = 16  # of the H100
_GB = 1e9


@dataclass(frozen=True, slots=True)
class DayJobKind:
    """Kind of application: kernels it is made of, share of time without any, memory in GB, hours, all (least, most).

    often: how many applications are of it, over all.
    """

    name: str
    often: float
    kernels: tuple[str, ...]
    idle: tuple[float, float]
    gb: tuple[float, float]
    hours: tuple[float, float]


# made up: what clusters report of their jobs, in kinds; the kernels are those of day_kernels
KINDS = (
    DayJobKind("training", 0.18, ("gemm-tensor", "attention", "layer-norm", "softmax"), (0.05, 0.2), (25, 75), (1, 8)),
    DayJobKind(
        "fine-tuning", 0.12, ("gemm-fp32", "gemm-tensor", "softmax", "copy-66x1024"), (0.1, 0.3), (8, 40), (0.5, 4)
    ),
    DayJobKind("input-bound", 0.16, ("gemm-tensor-small", "gemm-fp32-small", "softmax"), (0.5, 0.8), (4, 25), (0.5, 6)),
    DayJobKind("serving", 0.14, ("inference-24", "inference-48", "inference-96"), (0.3, 0.8), (4, 30), (1, 8)),
    DayJobKind("decoding", 0.08, ("decode", "copy-132x1024", "gemm-tensor-small"), (0.05, 0.3), (30, 75), (0.5, 4)),
    DayJobKind(
        "fp64", 0.10, ("dmul-ilp1", "dmul-ilp2", "dmul-ilp3", "dmul-ilp4", "stencil"), (0, 0.2), (2, 25), (1, 8)
    ),
    DayJobKind(
        "arithmetic",
        0.08,
        ("fmul-ilp2-128", "fmul-ilp3-128", "fmul-ilp4-256", "fmul-ilp4-1024"),
        (0, 0.1),
        (1, 8),
        (0.3, 4),
    ),
    DayJobKind(
        "memory",
        0.08,
        ("copy-66x1024", "copy-132x1024", "copy-full", "stencil", "gather"),
        (0, 0.15),
        (10, 60),
        (0.5, 6),
    ),
    DayJobKind(
        "launch-bound", 0.06, ("sleep-132", "sleep-264", "inference-24", "gather"), (0.2, 0.6), (2, 12), (0.5, 6)
    ),
)


@dataclass(frozen=True, slots=True)
class Application:
    """What really runs. phases: (share of its time alone, kernel, None while the GPU waits for the host).

    cycle_s: after which its phases come again. means: of DCGM's counters, by columns of job_summaries, where they were
    recorded; None: those of its kernels.
    """

    name: str
    phases: tuple[tuple[float, str | None], ...]
    hbm_bytes: float
    cycle_s: float = 10.0
    means: Mapping[str, float] | None = None

    @property
    def busy(self) -> float:
        """Share of its time with a kernel on the GPU."""
        return sum(share for share, kernel in self.phases if kernel)


@dataclass(frozen=True, slots=True)
class SeenJob:
    """What a site knows of an application. phases: (share of the time, demand), the rest is without a kernel.

    bound: class of the kernels in most of its time. occupancy: achieved, mean of the time with kernels, 0..1.
    """

    name: str
    phases: tuple[tuple[float, Demand], ...]
    hbm_bytes: float
    bound: Class
    occupancy: float


@dataclass(frozen=True, slots=True)
class SharedDay:
    """Jobs, in order of arrival: the application of each, when it comes, how long it takes alone, on how many GPUs."""

    applications: tuple[Application, ...]
    application: Longs
    arrives_s: Floats
    alone_s: Floats
    gpus: Longs


def day_of(seed: int, *, jobs: int, gpus: int, load: float, applications: int = 40) -> SharedDay:
    """Return a day of so many jobs that needs `load` times what the GPUs have; the same for the same numbers."""
    random = np.random.default_rng((seed, 1))
    often = np.array([kind.often for kind in KINDS])
    kinds = random.choice(len(KINDS), size=applications, p=often / often.sum())
    known = tuple(_application(f"{KINDS[kind].name}-{n}", KINDS[kind], random) for n, kind in enumerate(kinds))
    median_s = np.array([3600 * np.exp(random.uniform(*np.log(KINDS[kind].hours))) for kind in kinds])
    runs = 1 / np.arange(1, applications + 1) ** 0.7  # some are run far more often than others
    which = random.choice(applications, size=jobs, p=runs / runs.sum())
    alone_s = median_s[which] * np.exp(random.normal(0, 0.8, jobs))
    alone_s *= load * gpus * DAY_S / alone_s.sum()
    return SharedDay(known, which.astype(np.int64), _arrivals(jobs, random), alone_s, np.ones(jobs, np.int64))


def _arrivals(jobs: int, random: Generator) -> Floats:
    """Times of a day with most arrivals at two in the afternoon, nine times as many as at two in the night."""
    at = np.linspace(0, DAY_S, 1441)
    rate = 1 + 0.8 * np.cos(2 * np.pi * (at / DAY_S - 14 / 24))
    until = np.concatenate([[0.0], np.cumsum((rate[1:] + rate[:-1]) / 2)])
    return np.sort(np.interp(random.random(jobs) * until[-1], until, at))


def _application(name: str, kind: DayJobKind, random: Generator) -> Application:
    chosen = random.choice(kind.kernels, size=min(len(kind.kernels), int(random.integers(1, 4))), replace=False)
    idle = float(random.uniform(*kind.idle))
    shares = (1 - idle) * random.dirichlet(np.full(len(chosen), 2.0))
    phases = [(float(share), str(kernel)) for share, kernel in zip(shares, chosen, strict=True)]
    return Application(
        name,
        (*phases, *([(idle, None)] if idle else [])),
        float(random.uniform(*kind.gb)) * _GB,
        cycle_of(random),
    )


def cycle_of(random: Generator) -> float:
    """Return after how many seconds the phases of an application come again: between half a second and a minute."""
    return float(np.exp(random.uniform(np.log(0.5), np.log(60))))


def profile(name: str) -> Demand:
    """Return what a profiler would measure of a kernel of the catalogue, were it without error.

    What it does not measure: how much data the kernel comes back to.
    """
    kernel, counted = KERNELS[name], alone(name)
    pipes = {pipe: counted.pipes.get(pipe, 0.0) for pipe in PIPES}
    return Demand(
        name=name,
        cycles={"issue": counted.issued, **pipes, "l1_bandwidth": 0.0},
        dram=counted.dram * ACHIEVABLE,
        l2_hit=counted.l2_hit,
        l1_hit=0.0,
        warps=float(kernel.warps_of(kernel.resident)),
        irregular=counted.waiting_for_memory,
        sm_share=kernel.sm_share,
        seconds=kernel.launch_s,
        footprint=kernel.footprint,
    )


def measured(application: Application, random: Generator) -> SeenJob:
    """Return an application as it was profiled, each number with an error of its own."""
    phases = tuple(
        (share * float(np.exp(random.normal(0, NOISE))), _noisy(profile(kernel), random))
        for share, kernel in application.phases
        if kernel
    )
    most = max(1.0, sum(share for share, _ in phases))
    return _seen(application, tuple((share / most, demand) for share, demand in phases))


def dcgm(application: Application, random: Generator, *, issue: float = 0.0) -> SeenJob:
    """Return an application without profiles: its means of DCGM's counters, as recorded, else with errors.

    `issue`: share of the issue slots that it is taken to need, which DCGM does not measure; what pipes take at
    the least, where that is more.
    """
    row: dict[str, Any] = {"name": application.name, "hbm_used_mib_max": application.hbm_bytes / MI}
    row |= application.means or {
        name: min(1.0, mean * float(np.exp(random.normal(0, NOISE)))) for name, mean in _means(application).items()
    }
    return _seen(application, ((row["gr_engine_active_mean"], issuing(of_means(row), issue)),))


def _means(application: Application) -> Mapping[str, float]:
    sums = dict.fromkeys(("sm_active", "fp32_active", "fp64_active", "tensor_active", "dram_active"), 0.0)
    sums = {"gr_engine_active": application.busy, **sums}
    for share, name in application.phases:
        if name:
            counted, on = alone(name), share * KERNELS[name].sm_share
            sums["sm_active"] += on
            for counter, pipe in (("fp32_active", "fma"), ("fp64_active", "fp64"), ("tensor_active", "tensor")):
                sums[counter] += on * counted.pipes[pipe]
            sums["dram_active"] += share * counted.dram * ACHIEVABLE
    return {f"{counter}_mean": mean for counter, mean in sums.items()}


def _seen(application: Application, phases: tuple[tuple[float, Demand], ...]) -> SeenJob:
    busy = application.busy or 1.0
    kernels = [(share / busy, KERNELS[name]) for share, name in application.phases if name]
    memory = sum(share for share, kernel in kernels if kernel.bound == "memory")
    occupancy = sum(share * kernel.warps_of(kernel.resident) for share, kernel in kernels) / WARPS_PER_SCHEDULER
    bound: Class = "memory" if memory > 0.5 else "compute"
    return SeenJob(application.name, phases, application.hbm_bytes, bound, occupancy)


def _noisy(demand: Demand, random: Generator) -> Demand:
    def off(value: float | None) -> float | None:
        return None if value is None else min(1.0, value * float(np.exp(random.normal(0, NOISE))))

    return replace(
        demand,
        cycles={name: off(share) or 0.0 for name, share in demand.cycles.items()},
        dram=off(demand.dram),
        l2_hit=off(demand.l2_hit),
        irregular=off(demand.irregular),
    )


# what a mix is to have as the job had, means over all of its time. dram_active: of the achievable bandwidth
COUNTERS = (
    "gr_engine_active",
    "sm_active",
    "sm_occupancy",
    "fp32_active",
    "fp64_active",
    "tensor_active",
    "dram_active",
)
SAMPLES = 400  # mixes that are tried
KERNELS_OF_MIX = 3
NEAR = 0.01  # of mixes that are as near as the nearest but for this, any may be sampled
_WARPS_PER_SCHEDULER = 16  # of the H100
_LEAST_SHARE = 1e-3  # of the time: a phase that is shorter is none


@dataclass(frozen=True, slots=True)
class SampledMixes:
    """Mixes, a row each. shares: (mix, kernel of NAMES), of the time. means: (mix, counter that was compared)."""

    shares: Floats
    means: Floats

    def phases(self, mix: int) -> tuple[tuple[float, str | None], ...]:
        """Return the phases of a mix: (share of the time, kernel), None while there is none."""
        of = self.shares[mix]
        phases: list[tuple[float, str | None]] = [(float(of[place]), NAMES[place]) for place in np.flatnonzero(of)]
        idle = 1 - sum(share for share, _ in phases)
        return (*phases, *([(idle, None)] if idle >= _LEAST_SHARE or not phases else []))


@cache
def counted_means() -> Floats:
    """Return what DCGM would measure of each kernel of NAMES while it runs alone, (kernel, counter of COUNTERS)."""
    rows = []
    for name in NAMES:
        kernel, counted = KERNELS[name], alone(name)
        on = kernel.sm_share
        occupancy = on * kernel.warps_of(kernel.resident) / _WARPS_PER_SCHEDULER
        pipes = [on * counted.pipes[pipe] for pipe in ("fma", "fp64", "tensor")]
        rows.append([1.0, on, occupancy, *pipes, counted.dram])
    return np.array(rows)


def sample_mixes(means: Floats, random: Generator, *, counters: Sequence[str] = COUNTERS) -> SampledMixes:
    """Return a mix of up to three kernels and idle time for each row of `means` (job, counter of `counters`).

    Only these counters are compared: the others are unknown. Of DRAWS sets of kernels each gets the
    shares whose means are nearest by least squares; of the mixes that are nearest to a job, one is sampled. How
    far it is from the job: `distances`.
    """
    counted = counted_means()[:, [COUNTERS.index(counter) for counter in counters]]
    kernels = np.stack([random.choice(len(NAMES), KERNELS_OF_MIX, replace=False) for _ in range(SAMPLES)])
    weights, off = _nearest(counted[kernels], means)
    near = off <= off.min(axis=0) + NEAR
    chosen = np.where(near, random.random(off.shape), -1.0).argmax(axis=0)
    jobs = np.arange(len(means))
    shares = _spread(kernels[chosen], weights[chosen, jobs])
    return SampledMixes(shares, shares @ counted)


def distances(means: Floats, others: Floats) -> Floats:
    """Return the largest difference of any counter, of each row, as a fraction: 0.01 is a point.

    >>> distances(np.array([[0.5, 0.2]]), np.array([[0.4, 0.25]])).round(3).tolist()
    [0.1]
    """
    return np.asarray(np.abs(means - others).max(axis=1, initial=0.0), np.float64)


def _spread(kernels: Longs, weights: Floats) -> Floats:
    shares = np.zeros((len(kernels), len(NAMES)))
    np.put_along_axis(shares, kernels, np.where(weights < _LEAST_SHARE, 0.0, weights), axis=1)
    return shares


def _nearest(corners: Floats, points: Floats) -> tuple[Floats, Floats]:
    """Return shares (set, point, corner) of the nearest point of each simplex, and how far it is: (set, point).

    A mix is a point of the simplex of its kernels and of nothing. The nearest is the projection on one of its faces:
    all are tried, and those that have no negative share count. How far: the largest difference.
    """
    sets, size, dimensions = corners.shape
    vertices = np.concatenate([corners, np.zeros((sets, 1, dimensions))], axis=1)
    best = np.full((sets, len(points)), np.inf)
    shares = np.zeros((sets, len(points), size + 1))
    for number in range(1, size + 2):
        for face in map(list, combinations(range(size + 1), number)):
            origin = vertices[:, face[-1:]]
            axes = vertices[:, face[:-1]] - origin
            beside = points[None] - origin
            along = beside @ np.linalg.pinv(axes)
            squares = ((beside - along @ axes) ** 2).sum(-1)
            last = 1 - along.sum(-1)
            better = (squares < best) & (np.min(along, axis=-1, initial=0.0) >= -1e-9) & (last >= -1e-9)
            best = np.where(better, squares, best)
            found = np.zeros_like(shares)
            found[:, :, face] = np.concatenate([along, last[:, :, None]], axis=-1)
            shares = np.where(better[:, :, None], found, shares)
    kept = np.clip(shares[:, :, :size], 0.0, 1.0)
    return kept, np.abs(kept @ corners - points[None]).max(axis=-1)
