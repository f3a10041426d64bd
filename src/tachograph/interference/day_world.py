"""What really happens on the GPUs of a simulated day: warps on a scheduler and requests to memory, cycle by cycle.

It is no estimator, and no estimator is made of it: slowdowns are counted, not computed from demands. One scheduler of
an SM stands for all, with its slice of the bandwidth. Warps issue in bursts and wait; a scheduler prefers the warp that
issued last, and now and then the one that waited longest; requests queue for memory; hits in L2 become misses when two
footprints do not fit; blocks that find no room come in a later wave. Each pair also loses a little at random.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from tachograph.arrays import Floats, Longs
from tachograph.compiled import compiled
from tachograph.interference.day_kernels import (
    INTERVALS,
    KERNELS,
    SCHEDULERS,
    SMS,
    MicroKernel,
    most_blocks,
    room_left,
)
from tachograph.interference.demand import H100_NVL

CYCLES = 30_000  # of a run
WARM_UP = 2_000
FAIR = (
    0.005  # chance that the warp which waited longest issues; published: IPC 4 beside a copy leaves it next to nothing
)
L2_LATENCY, DRAM_LATENCY = 260.0, 560.0  # cycles
CLOCK_HZ = 1.7e9
ACHIEVABLE = 0.607  # of the peak, published of the H100 NVL
# cost of company where nothing is contended: |normal|. Published: 0.6, 1.2, 4.4, 5.5 and 5.7 % (tables 3 and 4)
COMPANY_SD = 0.044
PIPES = tuple(INTERVALS)
_INTERVALS = np.array(tuple(INTERVALS.values()), dtype=np.int64)
_BYTES_PER_CYCLE = ACHIEVABLE * (H100_NVL.dram_bytes_per_s or 0.0) / CLOCK_HZ / (SMS * SCHEDULERS)


@dataclass(frozen=True, slots=True)
class Counted:
    """What one kernel did on a scheduler: instructions, cycles of each pipeline and of memory, per cycle."""

    issued: float
    pipes: Mapping[str, float]
    dram: float  # share of the GPU's achievable bandwidth
    l2_hit: float
    waiting_for_memory: float  # share of its waiting


@compiled
def _cycle_by_cycle(
    warps: Longs, domain: Longs, shape: Floats, mix: Floats, intervals: Longs, cycles: int, warm_up: int, fair: float
) -> Floats:
    """Rows of (issued, requests that missed, requests, cycles waited for memory, for else, cycles of each pipe).

    shape: per kernel (burst, latency, requests per instruction, cycles of one at memory, l2_hit, l2_latency,
    dram_latency, cycles it asks ahead). mix: per kernel, cumulated over pipes. domain: those of one share a scheduler.
    """
    np.random.seed(1)
    kernels, pipes = mix.shape
    total = warps.sum()
    owner = np.zeros(total, np.int64)
    ready, last, began, due = np.zeros(total), np.zeros(total), np.zeros(total), np.zeros(total)
    left, following = np.zeros(total, np.int64), np.zeros(total, np.int64)
    place = 0
    for kernel in range(kernels):
        for _ in range(warps[kernel]):
            owner[place], left[place] = kernel, int(shape[kernel, 0])
            ready[place], due[place] = np.random.random() * shape[kernel, 1], np.random.random()
            place += 1
    free = np.zeros((2, pipes))
    memory = 0.0
    counts = np.zeros((kernels, 5 + pipes))
    for t in range(cycles):
        for scheduler in range(2):
            chosen, best = -1, -1.0
            longest = np.random.random() < fair
            for warp in range(total):
                if (
                    ready[warp] > t
                    or domain[owner[warp]] != scheduler
                    or free[scheduler, following[warp]] > t  # its pipeline is taken: another may issue
                ):
                    continue
                key = (t - last[warp]) if longest else 1.0 / (1.0 + t - last[warp])
                if key > best:
                    chosen, best = warp, key
            if chosen < 0:
                continue
            kernel, pipe = owner[chosen], following[chosen]
            free[scheduler, pipe] = t + intervals[pipe]
            draw, later = np.random.random(), 0
            while later < pipes - 1 and draw > mix[kernel, later]:
                later += 1
            following[chosen] = later
            counted = t >= warm_up
            if counted:
                counts[kernel, 0] += 1
                counts[kernel, 5 + pipe] += intervals[pipe]
            if left[chosen] == int(shape[kernel, 0]):
                began[chosen] = t
            last[chosen] = t
            left[chosen] -= 1
            due[chosen] += shape[kernel, 2]
            until = t + 1.0
            if left[chosen] <= 0:
                left[chosen] = int(shape[kernel, 0])
                wait = shape[kernel, 1]
                if wait > 100.0:  # a sleep differs from time to time
                    wait *= 0.8 + 0.4 * np.random.random()
                until = max(until, np.floor(began[chosen] + wait + np.random.random()))
                if counted:
                    counts[kernel, 4] += until - t - 1.0
            if due[chosen] >= 1.0:
                due[chosen] -= 1.0
                arrives = t + shape[kernel, 5] * (0.8 + 0.4 * np.random.random())
                if np.random.random() >= shape[kernel, 4]:
                    memory = max(memory, float(t)) + shape[kernel, 3]
                    arrives = memory + shape[kernel, 6] * (0.8 + 0.4 * np.random.random())
                    if counted:
                        counts[kernel, 1] += 1
                if counted:
                    counts[kernel, 2] += 1
                    counts[kernel, 3] += max(0.0, arrives - shape[kernel, 7] - until)
                until = max(until, arrives - shape[kernel, 7])
            ready[chosen] = until
    return counts


def count(
    kernels: Sequence[MicroKernel], blocks: Sequence[int], *, same_sm: bool, l2_hits: Sequence[float]
) -> list[Counted]:
    """Return what kernels with so many blocks on an SM do together, on one SM or on SMs of their own."""
    warps = np.array([k.warps_of(number) for k, number in zip(kernels, blocks, strict=True)], dtype=np.int64)
    domain = np.array([0 if same_sm else place for place in range(len(kernels))], dtype=np.int64)
    at_memory = [k.request_bytes * k.sm_share / _BYTES_PER_CYCLE for k in kernels]
    shape = np.array(
        [
            (k.burst, k.latency, k.request, cost, hit, L2_LATENCY, DRAM_LATENCY, k.ahead)
            for k, cost, hit in zip(kernels, at_memory, l2_hits, strict=True)
        ]
    )
    mix = np.array([_cumulated(k.mix) for k in kernels])
    counts = _cycle_by_cycle(warps, domain, shape, mix, _INTERVALS, CYCLES, WARM_UP, FAIR)
    return [_counted(row, cost) for row, cost in zip(counts, at_memory, strict=True)]


def _cumulated(mix: Mapping[str, float]) -> list[float]:
    shares = {**dict.fromkeys(PIPES, 0.0), **mix}
    rest = max(0.0, 1 - sum(mix.values()))
    shares["alu"] += rest / 2
    shares["uniform"] += rest / 2
    return [float(one) for one in np.cumsum([shares[pipe] for pipe in PIPES])]


def _counted(row: Floats, at_memory: float) -> Counted:
    measured = CYCLES - WARM_UP
    issued, missed, requests, memory, other = (float(one) for one in row[:5])
    return Counted(
        issued / measured,
        {pipe: min(1.0, float(row[5 + place]) / measured) for place, pipe in enumerate(PIPES)},
        min(1.0, missed * at_memory / measured),
        1 - missed / requests if requests else 0.0,
        memory / (memory + other) if memory + other else 0.0,
    )


@cache
def alone(name: str) -> Counted:
    """Return what a kernel of the catalogue does when it runs alone."""
    kernel = KERNELS[name]
    return count([kernel], [kernel.resident], same_sm=True, l2_hits=[kernel.l2_hit])[0]


@cache
def rates(first: str, second: str) -> tuple[float, float]:
    """Return at what share of their speed alone two kernels run together, before the cost of company."""
    if first > second:
        swapped = rates(second, first)
        return swapped[1], swapped[0]
    a, b = KERNELS[first], KERNELS[second]
    if a.sm_share + b.sm_share <= 1:
        return _together(a, b, a.resident, b.resident, same_sm=False)
    room_a, room_b = most_blocks(a, *room_left(b)), most_blocks(b, *room_left(a))
    if room_a >= a.resident and room_b >= b.resident:
        return _together(a, b, a.resident, b.resident, same_sm=True)
    # launches take turns in being first, as long as each takes; who comes second has the room that is left
    ahead = a.launch_s / (a.launch_s + b.launch_s)
    a_first = _together(a, b, a.resident, min(b.resident, room_b), same_sm=True)
    b_first = _together(a, b, min(a.resident, room_a), b.resident, same_sm=True)
    return (
        ahead * a_first[0] + (1 - ahead) * b_first[0],
        ahead * a_first[1] + (1 - ahead) * b_first[1],
    )


def _together(a: MicroKernel, b: MicroKernel, blocks_a: int, blocks_b: int, *, same_sm: bool) -> tuple[float, float]:
    if not blocks_a or not blocks_b:
        return float(blocks_a > 0), float(blocks_b > 0)
    hits = _hits_together(a, b)
    counted = count([a, b], [blocks_a, blocks_b], same_sm=same_sm, l2_hits=hits)
    return (
        min(1.0, counted[0].issued / alone(a.name).issued),
        min(1.0, counted[1].issued / alone(b.name).issued),
    )


def _hits_together(a: MicroKernel, b: MicroKernel) -> tuple[float, float]:
    """Hits that stay when both come back to their data in L2: as much as fits, of either alike."""
    asked = a.l2_bytes + b.l2_bytes
    # a stream passes through the cache as well, and takes its part
    asked += sum(0.3 * (H100_NVL.l2_bytes or 0.0) * k.request_bytes / 256 for k in (a, b) if k.request > 0.05)
    kept = min(1.0, (H100_NVL.l2_bytes or 0.0) / asked) if asked else 1.0
    return a.l2_hit * kept, b.l2_hit * kept


def company(seed: int) -> Mapping[tuple[str, str], float]:
    """Return the share of its speed that a kernel keeps beside another where nothing is contended, for all pairs."""
    random = np.random.default_rng((seed, 2))
    lost = np.abs(random.normal(0, COMPANY_SD, (len(KERNELS), len(KERNELS))))
    names = tuple(KERNELS)
    return {(a, b): float(np.exp(-lost[i, j])) for i, a in enumerate(names) for j, b in enumerate(names)}


Phases = Sequence[tuple[float, str | None]]


def speeds(
    first: Phases, second: Phases, *, cycles_s: tuple[float, float], kept: Mapping[tuple[str, str], float]
) -> tuple[float, float]:
    """Return at what share of their speed alone two applications run side by side for long.

    Phases follow each other in turn, last at random about their mean, and longer where the other slows them: the
    times in which both are in a certain phase are those of the Markov chain of both.

    >>> speeds([(1.0, None)], [(1.0, None)], cycles_s=(1.0, 1.0), kept={})
    (1.0, 1.0)
    """
    rows, columns = len(first), len(second)
    own, others = np.ones((rows, columns)), np.ones((rows, columns))
    for i, (_, a) in enumerate(first):
        for j, (_, b) in enumerate(second):
            if a and b:
                rate_a, rate_b = rates(a, b)
                own[i, j], others[i, j] = max(rate_a * kept[a, b], 1e-3), max(rate_b * kept[b, a], 1e-3)
    leaves = own / np.array([[share * cycles_s[0]] for share, _ in first]) * (rows > 1)
    left = others / np.array([[share * cycles_s[1] for share, _ in second]]) * (columns > 1)
    states = np.arange(rows * columns).reshape(rows, columns)
    flow = np.zeros((rows * columns, rows * columns))
    np.add.at(flow, (np.roll(states, -1, axis=0), states), leaves)
    np.add.at(flow, (np.roll(states, -1, axis=1), states), left)
    np.add.at(flow, (states, states), -(leaves + left))
    flow[0] = 1.0
    begin = np.zeros(rows * columns)
    begin[0] = 1.0
    times = np.linalg.solve(flow, begin).reshape(rows, columns)
    return float((times * own).sum()), float((times * others).sum())
