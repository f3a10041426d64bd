"""What really happens on the GPUs of a simulated day: warps on a scheduler and requests to memory, cycle by cycle.

It is no estimator, and no estimator is made of it: slowdowns are counted, not computed from demands. One scheduler of
an SM stands for all, with its slice of the bandwidth. Warps issue in bursts and wait; a scheduler prefers the warp that
issued last, and now and then the one that waited longest; requests queue for memory; hits in L2 become misses when
footprints do not fit; blocks that find no room come in a later wave. Company costs each a little at random.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations

import numpy as np

from tachograph.arrays import Floats, Longs
from tachograph.compiled import compiled
from tachograph.interference.day.kernels import (
    INTERVALS,
    KERNELS,
    MADE_UP,
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
    domains = domain.max() + 1
    free = np.zeros((domains, pipes))
    memory = 0.0
    counts = np.zeros((kernels, 5 + pipes))
    t = 0
    while t < cycles:
        idle = True
        for scheduler in range(domains):
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
            idle = False
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
        t += 1
        if idle:  # nothing happens before the next one is ready
            t = max(t, int(np.ceil(ready.min())))
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
def rates(*names: str) -> tuple[float, ...]:
    """Return at what share of their speed alone kernels run together, two or more, before the cost of company."""
    order = sorted(range(len(names)), key=lambda place: names[place])
    if order != list(range(len(names))):
        found = dict(zip(order, rates(*(names[place] for place in order)), strict=True))
        return tuple(found[place] for place in range(len(names)))
    kernels = [KERNELS[name] for name in names]
    if sum(kernel.sm_share for kernel in kernels) <= 1:
        return _together(kernels, [kernel.resident for kernel in kernels], same_sm=False)
    kept = [0.0] * len(names)
    for blocks, chance in _placed(kernels).items():
        for place, rate in enumerate(_together(kernels, blocks, same_sm=True)):
            kept[place] += chance * rate
    return tuple(kept)


def _placed(kernels: Sequence[MicroKernel]) -> dict[tuple[int, ...], float]:
    """{blocks of each on an SM: share of the time}: they take turns in being first, as long as a launch of each takes.

    Who comes later has the room that is left.
    """
    placed: dict[tuple[int, ...], float] = {}
    for order in permutations(range(len(kernels))):
        blocks, chance = [0] * len(kernels), 1.0
        waiting = sum(kernel.launch_s for kernel in kernels)
        for place in order:
            kernel = kernels[place]
            chance *= kernel.launch_s / waiting
            waiting -= kernel.launch_s
            blocks[place] = min(kernel.resident, most_blocks(kernel, *room_left(kernels, blocks)))
        placed[tuple(blocks)] = placed.get(tuple(blocks), 0.0) + chance
    return placed


def _together(kernels: Sequence[MicroKernel], blocks: Sequence[int], *, same_sm: bool) -> tuple[float, ...]:
    here = [place for place, number in enumerate(blocks) if number]
    kept = [0.0] * len(kernels)
    if len(here) == 1:
        kept[here[0]] = 1.0
        return tuple(kept)
    there = [kernels[place] for place in here]
    counted = count(there, [blocks[place] for place in here], same_sm=same_sm, l2_hits=_hits_together(there))
    for place, one in zip(here, counted, strict=True):
        kept[place] = min(1.0, one.issued / alone(kernels[place].name).issued)
    return tuple(kept)


def _hits_together(kernels: Sequence[MicroKernel]) -> list[float]:
    """Hits that stay when all come back to their data in L2: as much as fits, of each alike."""
    asked = sum(kernel.l2_bytes for kernel in kernels)
    # a stream passes through the cache as well, and takes its part
    asked += sum(0.3 * (H100_NVL.l2_bytes or 0.0) * k.request_bytes / 256 for k in kernels if k.request > 0.05)
    kept = min(1.0, (H100_NVL.l2_bytes or 0.0) / asked) if asked else 1.0
    return [kernel.l2_hit * kept for kernel in kernels]


NAMES = tuple(KERNELS)
NOTHING = len(NAMES)  # place of a phase without a kernel


@cache
def company(seed: int) -> Floats:
    """Return the share of its speed that a kernel (row) keeps beside another where nothing is contended."""
    size = len(NAMES)
    lost = np.abs(np.random.default_rng((seed, 6)).normal(0, COMPANY_SD, (size, size)))
    # drawn apart, so that made-up days stay as they are whatever kernels are added for recorded jobs
    among_made_up = np.random.default_rng((seed, 2)).normal(0, COMPANY_SD, (MADE_UP, MADE_UP))
    lost[:MADE_UP, :MADE_UP] = np.abs(among_made_up)
    return np.asarray(np.exp(-lost), np.float64)


@cache
def world(seed: int) -> Floats:
    """Return at what share of its speed alone a kernel (row) runs beside another, the cost of company included.

    Rows and columns as in NAMES, and NOTHING: whatever runs beside nothing keeps its speed. None stops for ever.
    """
    table = np.ones((NOTHING + 1, NOTHING + 1))
    for i, a in enumerate(NAMES):
        for j, b in enumerate(NAMES[: i + 1]):
            table[i, j], table[j, i] = rates(a, b)
    table[:NOTHING, :NOTHING] = np.maximum(table[:NOTHING, :NOTHING] * company(seed), 1e-3)
    return table
