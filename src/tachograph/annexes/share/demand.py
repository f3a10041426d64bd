"""Demand of a kernel alone, capacity of a GPU, and the expected outcome of sharing.

All else of this package is computed from these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from tachograph.catalog.arrays import Bytes, Flags, Floats

# pipelines of an SM, named as in sm__inst_executed_pipe_<name>; `tensor` is the busiest of the
# tensor pipes
PIPES = ("alu", "fma", "fp16", "fp64", "lsu", "tensor", "tex", "uniform", "xu")
# what an SM provides per cycle: slots to issue warp instructions, each pipeline, and what its L1
# delivers, of which shared memory is a part, bank conflicts included
CYCLES = ("issue", *PIPES, "shared", "l1_bandwidth")
# Pipes that share a port of an SM, {compute capability: {port: pipes}}. `shared` is what
# sm__pipe_shared_cycles_active counts, FP64 and the tensor cores of GA100, GH100 and GB100: in each
# recorded profile of a GH100 it is their sum; of the others by Nsight Compute's description of that
# metric. GH100, AD102 and GB20x have no FP16 pipe of their own: its instructions run in the FMA
# pipe (Nsight Compute, "Pipelines").
PORTS: Mapping[str, Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "8.0": {"shared": ("fp64", "tensor")},
        "8.9": {"fma": ("fma", "fp16")},
        "9.0": {"shared": ("fp64", "tensor"), "fma": ("fma", "fp16")},
        "10.0": {"shared": ("fp64", "tensor")},
        "12.0": {"fma": ("fma", "fp16")},
    }
)
BandwidthBasis = Literal["achievable", "peak"]
NOTHING = 255  # in CorunBounds.binding


@dataclass(frozen=True, slots=True)
class Footprint:
    """Footprint of a launch's blocks. None: unknown.

    `shared_bytes`: of a block, static, dynamic and reserved. `blocks_per_sm`: how many fit into an
    empty SM.
    """

    blocks: int
    threads: int  # of a block
    registers: int | None = None  # of a thread
    shared_bytes: float | None = None
    blocks_per_sm: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Demand of a kernel, or a mix, alone on a GPU.

    None, or absent from `cycles`: not measured.

    cycles: {one of CYCLES: fraction 0..1 of what an SM gives while a warp is on it}. dram: fraction
    0..1 of the bandwidth that `dram_of` names. l2_bytes, l1_bytes: reused footprint, on the GPU and
    on an SM. l2_most: bytes of L2 that it touches at all, at most, where the reused footprint is
    not known. l2_hit, l1_hit: fraction of sectors found there. l2_bandwidth: fraction 0..1 of what
    L2 can deliver and take, l2_bytes_per_s: what it does deliver and take. irregular: fraction 0..1
    of its waiting that differs in length from time to time: for memory, barriers; 0 where it only
    waits for arithmetic. sm_share: fraction 0..1 of the SMs' time that a warp is on them. power_w:
    of the GPU while it runs alone. seconds: how long it takes alone, all its launches together;
    launch_s: one of them.
    """

    name: str
    cycles: Mapping[str, float] = field(default_factory=dict)
    dram: float | None = None
    dram_of: BandwidthBasis = "peak"
    l2_hit: float | None = None
    l2_bytes: float | None = None
    l2_most: float | None = None
    l1_hit: float | None = None
    l1_bytes: float | None = None
    l2_bandwidth: float | None = None
    l2_bytes_per_s: float | None = None
    irregular: float | None = None
    sm_share: float | None = None
    power_w: float | None = None
    seconds: float | None = None
    launch_s: float | None = None
    hbm_bytes: float | None = None
    footprint: Footprint | None = None

    def named(self, name: str) -> Demand:
        """Return the same under another name."""
        return replace(self, name=name)

    def bandwidth(self, calibration: Calibration) -> float | None:
        """Return the achievable share of DRAM bandwidth.

        Above 1: calibrated too low; None: unknown.

        >>> round(Demand(name="copy", dram=0.42).bandwidth(Calibration()), 3)
        0.467
        """
        if self.dram is None:
            return None
        return self.dram / (calibration.achievable_share if self.dram_of == "peak" else 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCapacity:
    """Resources of a GPU, None: unknown."""

    name: str
    sms: int | None = None
    # Of an SM, each issues one warp instruction per cycle, on all chips since Volta.
    schedulers: int = 4
    threads_per_sm: int | None = None
    blocks_per_sm: int | None = None
    registers_per_sm: int | None = None
    shared_bytes_per_sm: float | None = None
    l1_bytes: float | None = None
    l2_bytes: float | None = None
    l2_bytes_per_s: float | None = None
    dram_bytes_per_s: float | None = None
    hbm_bytes: float | None = None
    compute_capability: str | None = None
    power_limit_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Micro-benchmark results of a GPU model; defaults as published, see docs/interference.md.

    dram_curvature: c of L(U) = 1 + c U^2, how latency of DRAM grows with its load U, from kernels
    that ran alone. achievable_share: highest bandwidth that was achieved, of the peak.
    l2_miss_cost, l1_miss_cost: time of a miss over that of a hit, without load. l2_bytes_per_s:
    what L2 delivers and takes at most, None unknown. l2_knee, l1_knee: bytes swept again and again,
    over the size of the cache, up to which all of them stay; l2_cliff, l1_cliff: from which on none
    do. measured_on: the GPU; None: nothing was measured on it.
    """

    dram_curvature: float = 1.254
    # Of a V100S copies of all SMs reach 1,024 of 1,134 GB/s; kernels 0.89 of an H100.
    achievable_share: float = 0.9
    issue_capacity: float = 1.0
    l2_miss_cost: float = 1.41
    l1_miss_cost: float = 5.75
    l2_bytes_per_s: float | None = None
    l2_knee: float = 0.9
    l2_cliff: float = 1.6
    l1_knee: float = 0.84
    l1_cliff: float = 1.6
    measured_on: str | None = "NVIDIA H100 NVL"
    source: str = "published"


H100_NVL = GpuCapacity(
    name="NVIDIA H100 NVL",
    sms=132,
    threads_per_sm=2048,
    blocks_per_sm=32,
    registers_per_sm=65536,
    shared_bytes_per_sm=228 * 1024.0,
    l1_bytes=256 * 1024.0,
    l2_bytes=50e6,
    l2_bytes_per_s=5.5e12,
    dram_bytes_per_s=3.938e12,
    hbm_bytes=94 * 2.0**30,
    compute_capability="9.0",
    power_limit_w=400.0,
)


CorunMode = Literal["streams", "mps"]


@dataclass(frozen=True, slots=True)
class Sharing:
    """Sharing mode: streams of a process, or processes under MPS with `shares` 0..1 of the SMs."""

    mode: CorunMode = "streams"
    shares: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class CorunOutcome:
    """Result for a member while both run: slowdown (1: none), its interval, binding resource.

    low, high: the interval holds nine of ten measured slowdowns. binding: one of demand.CYCLES,
    dram, l2, l2_bandwidth, l1, power, blocks (they take turns), sms (its share of them); None:
    nothing. None of all: not known.
    """

    name: str
    slowdown: float | None
    low: float | None
    high: float | None
    binding: str | None


@dataclass(frozen=True, slots=True)
class Estimate:
    """Outcome when two `members` run together, launched again and again.

    sums: {resource: total demand}; 1 is the capacity. gain: work of both in a time, over that of
    turns without loss. safe: the upper ends of both are within the allowed slowdown. unknown: what
    was not measured, a sentence each. may_thrash: both use an L2 of which it was not measured what
    stays.
    """

    members: tuple[CorunOutcome, ...]
    sums: Mapping[str, float]
    gain: float | None
    safe: bool
    unknown: tuple[str, ...]
    may_thrash: bool = False


@dataclass(frozen=True, slots=True)
class CorunBounds:
    """Slowdown of each row beside each column while both run, and the interval that holds it.

    Arrays of shape (rows, columns). binding: place in `resources` of what slows the row, NOTHING
    for none. in_turn: share 0..1 of the longer launch in which the other cannot run.
    """

    slowdown: Floats
    low: Floats
    high: Floats
    binding: Bytes
    resources: tuple[str, ...]
    in_turn: Floats

    def bound_by(self, row: int, column: int) -> str | None:
        """Return the binding resource of a row beside a column, or None."""
        index = int(self.binding[row, column])
        return None if index == NOTHING else self.resources[index]


@dataclass(frozen=True, slots=True)
class Matrix(CorunBounds):
    """All pairs of kernels; gain, safe, may_thrash: as in Estimate."""

    gain: Floats
    safe: Flags
    may_thrash: Flags
