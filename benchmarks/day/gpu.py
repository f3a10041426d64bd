"""The GPU of the simulated day: synthetic kernels, and how they slow each other down, cycle by cycle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import permutations
from typing import Literal

import numpy as np

from tachograph.catalog.arrays import Floats, Longs
from tachograph.catalog.compiled import compiled
from tachograph.sharing.demand import H100_NVL, Footprint

SMS, SCHEDULERS, WARP = 132, 4, 32
# cycles for which a warp instruction keeps a pipeline of one scheduler; 16 lanes: 2, 32 lanes: 1
INTERVALS: Mapping[str, int] = {"alu": 2, "fma": 1, "fp64": 2, "lsu": 4, "tensor": 16, "uniform": 1, "xu": 8}
Class = Literal["compute", "memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroKernel:
    """A kernel. `mix`: {pipeline: share of its instructions}, the rest goes to alu and uniform, half each.

    burst: instructions a warp issues before it waits for their results; latency: cycles from the first of them on.
    request: requests to memory per instruction; request_bytes: of a warp; ahead: cycles from request to need.
    l2_hit: fraction of requests found in L2 when alone; l2_bytes: what it comes back to. bound: as a roofline places
    it. launch_s: how long a launch takes.
    """

    name: str
    blocks: int
    threads: int
    registers: int = 32
    shared_bytes: float = 1024.0
    mix: Mapping[str, float] = field(default_factory=dict)
    burst: int = 1
    latency: float = 4.0
    request: float = 0.0
    request_bytes: float = 256.0
    ahead: float = 0.0
    l2_hit: float = 0.0
    l2_bytes: float = 0.0
    bound: Class = "compute"
    launch_s: float = 1e-3

    @property
    def fitting(self) -> int:
        """Blocks that fit into an empty SM."""
        return most_blocks(self, 1.0, 1.0, 1.0, 1.0)

    @property
    def resident(self) -> int:
        """Blocks on an SM that has some, while it runs alone."""
        return min(self.fitting, -(-self.blocks // SMS))

    @property
    def sm_share(self) -> float:
        """Share of the SMs that get a block."""
        return min(1.0, self.blocks / SMS)

    @property
    def footprint(self) -> Footprint:
        """What its blocks occupy."""
        return Footprint(self.blocks, self.threads, self.registers, self.shared_bytes, self.fitting)

    def warps_of(self, blocks: int) -> int:
        """Warps on a scheduler while so many of its blocks are on the SM."""
        return -(-blocks * self.threads // (WARP * SCHEDULERS))


def most_blocks(kernel: MicroKernel, threads: float, slots: float, registers: float, shared: float) -> int:
    """Return how many blocks fit where these shares of an SM's resources are free.

    >>> most_blocks(MicroKernel(name="sleep", blocks=264, threads=1024), 1.0, 1.0, 1.0, 1.0)
    2
    """
    chip = H100_NVL
    return int(
        min(
            threads * (chip.threads_per_sm or 0) / kernel.threads + 1e-9,
            slots * (chip.blocks_per_sm or 0) + 1e-9,
            registers * (chip.registers_per_sm or 0) / (kernel.registers * kernel.threads) + 1e-9,
            shared * (chip.shared_bytes_per_sm or 0) / kernel.shared_bytes + 1e-9,
        )
    )


def room_left(kernels: Sequence[MicroKernel], blocks: Sequence[int]) -> tuple[float, float, float, float]:
    """Return shares of an SM's threads, block slots, registers and shared memory that so many blocks of each leave.

    >>> room_left([MicroKernel(name="sleep", blocks=132, threads=1024)], [1])[:2]
    (0.5, 0.96875)
    """
    chip = H100_NVL
    threads, slots, registers, shared = 1.0, 1.0, 1.0, 1.0
    for kernel, number in zip(kernels, blocks, strict=True):
        threads -= number * kernel.threads / (chip.threads_per_sm or 1)
        slots -= number / (chip.blocks_per_sm or 1)
        registers -= number * kernel.threads * kernel.registers / (chip.registers_per_sm or 1)
        shared -= number * kernel.shared_bytes / (chip.shared_bytes_per_sm or 1)
    return threads, slots, registers, shared


def _fmul(independent: int, threads: int) -> MicroKernel:
    latency = {1: 3.70, 2: 3.88, 3: 4.14, 4: 4.64}[independent]
    return MicroKernel(
        name=f"fmul-ilp{independent}-{threads}", blocks=132, threads=threads, mix={"fma": 1.0}, burst=independent,
        latency=latency,
    )  # fmt: skip


def _dmul(independent: int) -> MicroKernel:
    return MicroKernel(
        name=f"dmul-ilp{independent}", blocks=132, threads=128, mix={"fp64": 1.0}, burst=independent,
        latency={1: 8.01, 2: 8.11, 3: 8.22, 4: 8.28}[independent],
    )  # fmt: skip


def _copy(blocks: int) -> MicroKernel:
    return MicroKernel(
        name=f"copy-{blocks}x1024", blocks=blocks, threads=1024, mix={"lsu": 0.1}, burst=3, latency=12.0,
        request=0.07, request_bytes=256.0, bound="memory",
    )  # fmt: skip


def _streams() -> tuple[MicroKernel, ...]:
    copy = _copy(132)
    return (
        *(_copy(blocks) for blocks in (33, 66, 132)),
        replace(copy, name="copy-full", blocks=264),
        replace(copy, name="stencil", threads=256, request=0.03, l2_hit=0.5, l2_bytes=20e6),
        replace(copy, name="decode", threads=512, request=0.06, l2_hit=0.1, l2_bytes=4e6),
        replace(
            copy, name="gather", blocks=66, threads=256, request=0.15, request_bytes=128.0, l2_hit=0.4, l2_bytes=35e6
        ),
    )


def _gemms() -> tuple[MicroKernel, ...]:
    fp32 = MicroKernel(
        name="gemm-fp32", blocks=128, threads=128, registers=128, shared_bytes=48e3, mix={"fma": 0.80, "lsu": 0.06},
        burst=8, latency=10.7, request=0.002, ahead=400.0, l2_hit=0.8, l2_bytes=12e6,
    )  # fmt: skip
    tensor = replace(
        fp32, name="gemm-tensor", mix={"tensor": 0.05, "lsu": 0.06}, latency=12.0, registers=160, shared_bytes=100e3
    )
    return (
        fp32,
        replace(fp32, name="gemm-fp32-small", blocks=64, l2_bytes=4e6),
        tensor,
        replace(
            tensor, name="gemm-tensor-small", blocks=48, mix={"tensor": 0.03, "lsu": 0.06}, latency=14.0, registers=128,
            shared_bytes=60e3, l2_bytes=6e6,
        ),
        replace(
            tensor, name="attention", blocks=264, mix={"tensor": 0.035, "lsu": 0.06}, latency=14.0, registers=200,
            shared_bytes=80e3, request=0.004,
        ),
    )  # fmt: skip


def _small() -> tuple[MicroKernel, ...]:
    inference = MicroKernel(
        name="inference-24", blocks=24, threads=256, registers=64, shared_bytes=16e3, mix={"fma": 0.4, "lsu": 0.1},
        burst=4, latency=14.0, request=0.02, l2_hit=0.6, l2_bytes=8e6, bound="memory", launch_s=1e-4,
    )  # fmt: skip
    norm = MicroKernel(
        name="layer-norm", blocks=1056, threads=256, registers=40, mix={"fma": 0.3, "xu": 0.03, "lsu": 0.1}, burst=3,
        latency=14.0, request=0.05, l2_hit=0.3, l2_bytes=30e6, bound="memory", launch_s=2e-4,
    )  # fmt: skip
    return (
        inference,
        replace(inference, name="inference-48", blocks=48),
        replace(inference, name="inference-96", blocks=96, bound="compute", request=0.01),
        norm,
        replace(norm, name="softmax", blocks=396, mix={"fma": 0.3, "xu": 0.10, "lsu": 0.1}, l2_bytes=10e6),
    )


def _catalogue() -> tuple[MicroKernel, ...]:
    return (
        *(_fmul(independent, 128) for independent in (1, 2, 3, 4)),
        _fmul(4, 256),
        _fmul(4, 1024),
        *(_dmul(independent) for independent in (1, 2, 3, 4)),
        *_streams(),
        *_gemms(),
        *_small(),
        MicroKernel(name="sleep-132", blocks=132, threads=1024, burst=2, latency=900.0),
        MicroKernel(name="sleep-264", blocks=264, threads=1024, burst=2, latency=900.0),
    )


def _of_recorded() -> tuple[MicroKernel, ...]:
    """Kernels that made-up days do without: corners of what DCGM records of jobs. Synthetic, too."""
    dense = MicroKernel(
        name="gemm-tensor-large", blocks=132, threads=256, registers=200, shared_bytes=150e3,
        mix={"tensor": 0.10, "lsu": 0.06}, burst=8, latency=10.7, request=0.002, ahead=400.0, l2_hit=0.8, l2_bytes=20e6,
    )  # fmt: skip
    wide = replace(dense, threads=512, registers=64, shared_bytes=50e3, blocks=264)
    return (
        dense,
        replace(wide, name="gemm-tensor-wide"),
        replace(wide, name="gemm-fp64", mix={"fp64": 0.45, "lsu": 0.06}),
        replace(wide, name="gemm-fp64-tensor", mix={"fp64": 0.35, "tensor": 0.02, "lsu": 0.06}),
        replace(wide, name="gemm-fp32-wide", mix={"fma": 0.7, "lsu": 0.06}),
        replace(dense, name="dmul-33", blocks=33, mix={"fp64": 0.45}),
        replace(dense, name="fmul-33", blocks=33, mix={"fma": 0.9}),
        replace(dense, name="gemm-tensor-33", blocks=33),
        replace(wide, name="solver-fp64", mix={"fp64": 0.3, "lsu": 0.1}, request=0.03, l2_hit=0.2, bound="memory"),
        replace(dense, name="stream-narrow", mix={"lsu": 0.1}, request=0.12, l2_hit=0.0, bound="memory"),
        replace(wide, name="stream-half", blocks=66, mix={"lsu": 0.1}, request=0.12, l2_hit=0.0, bound="memory"),
        replace(
            wide, name="solver-half", blocks=80, mix={"fp64": 0.4, "lsu": 0.1}, request=0.05, l2_hit=0.0, bound="memory"
        ),
        replace(dense, name="tiny", blocks=4, threads=128, mix={"fma": 0.3, "lsu": 0.1}, launch_s=2e-5),
    )


MADE_UP = len(_catalogue())  # kernels of made-up days, the first of KERNELS
KERNELS: Mapping[str, MicroKernel] = {kernel.name: kernel for kernel in (*_catalogue(), *_of_recorded())}


CYCLES = 30_000  # of a run
WARM_UP = 2_000
FAIR = (
    0.005  # chance that the warp which waited longest issues; published: IPC 4 beside a copy leaves it next to nothing
)
L2_LATENCY, DRAM_LATENCY = 260.0, 560.0  # cycles
CLOCK_HZ = 1.7e9
ACHIEVABLE = 0.9  # of the peak, as kernels reach it
# co-location overhead where nothing is contended: |normal|. Published: 0.6, 1.2, 4.4, 5.5 and 5.7 % (tables 3 and 4)
COMPANY_SD = 0.044
PIPES = tuple(INTERVALS)
_INTERVALS = np.array(tuple(INTERVALS.values()), dtype=np.int64)
_BYTES_PER_CYCLE = ACHIEVABLE * (H100_NVL.dram_bytes_per_s or 0.0) / CLOCK_HZ / (SMS * SCHEDULERS)


@dataclass(frozen=True, slots=True)
class CountedCycles:
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
    dram_latency, cycles of requests ahead). mix: per kernel, cumulated over pipes. domain: of one, share a scheduler.
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
) -> list[CountedCycles]:
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
    others = max(0.0, 1 - sum(mix.values()))
    shares["alu"] += others / 2
    shares["uniform"] += others / 2
    return [float(one) for one in np.cumsum([shares[pipe] for pipe in PIPES])]


def _counted(row: Floats, at_memory: float) -> CountedCycles:
    measured = CYCLES - WARM_UP
    issued, missed, requests, memory, other = (float(one) for one in row[:5])
    return CountedCycles(
        issued / measured,
        {pipe: min(1.0, float(row[5 + place]) / measured) for place, pipe in enumerate(PIPES)},
        min(1.0, missed * at_memory / measured),
        1 - missed / requests if requests else 0.0,
        memory / (memory + other) if memory + other else 0.0,
    )


@cache
def alone(name: str) -> CountedCycles:
    """Return what a kernel of the catalogue does when it runs alone."""
    kernel = KERNELS[name]
    return count([kernel], [kernel.resident], same_sm=True, l2_hits=[kernel.l2_hit])[0]


@cache
def rates(*names: str) -> tuple[float, ...]:
    """Return at what share of their speed alone kernels run together, two or more, before the co-location overhead."""
    order = sorted(range(len(names)), key=lambda place: names[place])
    if order != list(range(len(names))):
        found = dict(zip(order, rates(*(names[place] for place in order)), strict=True))
        return tuple(found[place] for place in range(len(names)))
    kernels = [KERNELS[name] for name in names]
    if sum(kernel.sm_share for kernel in kernels) <= 1:
        return _run_together(kernels, [kernel.resident for kernel in kernels], same_sm=False)
    kept = [0.0] * len(names)
    for blocks, chance in _placed(kernels).items():
        for place, rate in enumerate(_run_together(kernels, blocks, same_sm=True)):
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


def _run_together(kernels: Sequence[MicroKernel], blocks: Sequence[int], *, same_sm: bool) -> tuple[float, ...]:
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
    requested = sum(kernel.l2_bytes for kernel in kernels)
    # a stream passes through the cache as well, and takes its part
    requested += sum(0.3 * (H100_NVL.l2_bytes or 0.0) * k.request_bytes / 256 for k in kernels if k.request > 0.05)
    kept = min(1.0, (H100_NVL.l2_bytes or 0.0) / requested) if requested else 1.0
    return [kernel.l2_hit * kept for kernel in kernels]


NAMES = tuple(KERNELS)
NOTHING = len(NAMES)  # place of a phase without a kernel


@cache
def corunners(seed: int) -> Floats:
    """Return the share of its speed that a kernel (row) keeps beside another where nothing is contended."""
    size = len(NAMES)
    lost = np.abs(np.random.default_rng((seed, 6)).normal(0, COMPANY_SD, (size, size)))
    # sampled apart, so that made-up days stay as they are whatever kernels are added for recorded jobs
    among_made_up = np.random.default_rng((seed, 2)).normal(0, COMPANY_SD, (MADE_UP, MADE_UP))
    lost[:MADE_UP, :MADE_UP] = np.abs(among_made_up)
    return np.asarray(np.exp(-lost), np.float64)


@cache
def world(seed: int) -> Floats:
    """Return at what share of its speed alone a kernel (row) runs beside another, the co-location overhead included.

    Rows and columns as in NAMES, and NOTHING: whatever runs beside nothing keeps its speed. None stops for ever.
    """
    table = np.ones((NOTHING + 1, NOTHING + 1))
    for i, a in enumerate(NAMES):
        for j, b in enumerate(NAMES[: i + 1]):
            table[i, j], table[j, i] = rates(a, b)
    table[:NOTHING, :NOTHING] = np.maximum(table[:NOTHING, :NOTHING] * corunners(seed), 1e-3)
    return table
