"""Demands of launches that ran alone: what kernels declare, their times, and what others of them
reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from microbench.device import Lanes
from microbench.measure import AloneRun
from microbench.workloads import WARP, BenchWorkload, resident_blocks
from tachograph.annexes.share.capacity import computed_fit
from tachograph.annexes.share.demand import (
    PIPES,
    BandwidthBasis,
    Calibration,
    Demand,
    Footprint,
    GpuCapacity,
)
from tachograph.annexes.share.kernel_arrays import residency

FAR = 4.0  # times L2: an array as large has no hits there
_NEARLY = 0.99  # of it: sizes are rounded down
# pipelines of which a kernel that is named for them shows the rate: it is published for some chips
# only
_SHOWN_BY = MappingProxyType({"alu": "alu_4", "xu": "xu_4", "tensor": "tensor_4"})


@dataclass(frozen=True, slots=True)
class References:
    """What launches are compared with. None, or absent from `rates`: was not measured.

    bandwidth: the most that any copy of a large array achieved, byte/s. l2_bandwidth: the most that
    any launch read from L2. l2_hit, l1_hit: seconds per byte of the smallest sweep, which hits that
    cache. rates: {pipeline: the most warp instructions of an SM in a cycle}.
    """

    bandwidth: float | None = None
    l2_bandwidth: float | None = None
    l2_hit: float | None = None
    l1_hit: float | None = None
    rates: Mapping[str, float] = field(default_factory=dict)


def seconds_per_byte(workload: BenchWorkload, alone: AloneRun) -> float | None:
    """Return the time of one byte read or written; None where no array is."""
    size = workload.moved_bytes(alone.rounds)
    return None if not size or alone.seconds <= 0 else alone.seconds / size


def references(measured: Sequence[tuple[BenchWorkload, AloneRun]], gpu: GpuCapacity) -> References:
    """Return what the launches of these measurements are compared with."""
    timed = [
        (workload, per_byte, workload.footprint_bytes or 0.0)
        for workload, alone in measured
        if (per_byte := seconds_per_byte(workload, alone)) is not None
    ]
    l2 = gpu.l2_bytes
    large = [
        1 / per_byte
        for one, per_byte, size in timed
        if one.kind == "copy" and l2 and size > _NEARLY * FAR * l2
    ]
    read = [1 / per_byte for one, per_byte, _ in timed if one.kind == "read"]

    def smallest(kind: str, capacity: float | None) -> float | None:
        """Seconds per byte of the smallest footprint, if it fits twice into the cache."""
        points = [(size, per_byte) for one, per_byte, size in timed if one.kind == kind]
        footprint, per_byte = min(points, default=(None, None))
        return (
            None if footprint is None or capacity is None or 2 * footprint > capacity else per_byte
        )

    return References(
        bandwidth=max(large, default=None),
        l2_bandwidth=max(read, default=None),
        l2_hit=smallest("sweep", l2),
        l1_hit=smallest("sweep_l1", gpu.l1_bytes),
        rates=MappingProxyType(_rates(measured, gpu)),
    )


def _rates(
    measured: Sequence[tuple[BenchWorkload, AloneRun]], gpu: GpuCapacity
) -> dict[str, float]:
    """Warp instructions of an SM in a cycle, {pipeline: the most that the kernel that shows it
    reached}.
    """
    rates: dict[str, float] = {}
    for pipe, kernel in _SHOWN_BY.items():
        for workload, alone in measured:
            units = units_per_cycle(workload, alone, gpu)
            if workload.kernel == kernel and units:
                rates[pipe] = max(rates.get(pipe, 0.0), units * workload.about.pipes[pipe])
    return rates


def units_per_cycle(workload: BenchWorkload, alone: AloneRun, gpu: GpuCapacity) -> float | None:
    """Return the units of work of an SM in a cycle; None where its clock was not measured."""
    used = min(workload.blocks, gpu.sms or workload.blocks)
    return None if alone.cycles <= 0 else workload.units(alone.rounds) / used / alone.cycles


def demand_of(
    workload: BenchWorkload,
    alone: AloneRun,
    *,
    gpu: GpuCapacity,
    lanes: Lanes,
    against: References,
    calibration: Calibration,
) -> Demand:
    """Return the demand of a launch, from its time alone; values that this does not determine
    are absent.
    """
    traffic = _l2_bytes_per_s(workload, alone, against, calibration)
    dram, dram_of = _dram(workload, alone, gpu, against, calibration)
    own = workload.kind == "sweep_l1"
    return Demand(
        name=workload.words,
        cycles=cycles(workload, alone, gpu, lanes, against),
        dram=dram,
        dram_of=dram_of,
        l2_hit=None if own else _l2_hit(workload, alone, gpu, against, calibration),
        l2_bytes=workload.footprint_bytes,
        l2_bandwidth=None if against.l2_bandwidth is None or traffic is None
        else min(1.0, traffic / against.l2_bandwidth),
        l2_bytes_per_s=traffic,
        l1_hit=_hit(workload, alone, against.l1_hit, calibration.l1_miss_cost) if own else 0.0,
        l1_bytes=(workload.footprint_bytes or 0.0) * resident_blocks(workload, gpu) if own else 0.0,
        irregular=_IRREGULAR[workload.about.waits],
        sm_share=min(1.0, workload.blocks / (gpu.sms or 1)),
        seconds=alone.seconds,
        launch_s=alone.seconds,
        hbm_bytes=float(workload.bytes_needed),
        footprint=footprint(workload, gpu),
    )  # fmt: skip


# of a kernel that waits for barriers: it was not measured
_IRREGULAR: Mapping[str, float | None] = MappingProxyType(
    {"arithmetic": 0.0, "memory": 1.0, "barriers": None}
)


def cycles(
    workload: BenchWorkload, alone: AloneRun, gpu: GpuCapacity, lanes: Lanes, against: References
) -> Mapping[str, float]:
    """Return {issue, pipelines, l1_bandwidth: fraction 0..1 of an SM's cycles}, from what the
    kernel declares.

    A pipeline that the kernel does not declare is 0; one whose rate is neither published nor
    measured is absent.
    """
    units, about = units_per_cycle(workload, alone, gpu), workload.about
    if units is None:
        return {}
    shares = {
        "l1_bandwidth": min(1.0, units * about.wavefronts),
        "issue": min(1.0, units * about.issued / gpu.schedulers),
    }
    rates = dict(against.rates)
    for pipe, width in _widths(lanes).items():
        if width:
            rates[pipe] = width / WARP
    for pipe in PIPES:
        count = about.pipes.get(pipe, 0.0)
        if not count:
            shares[pipe] = 0.0
        elif pipe in rates:
            shares[pipe] = min(1.0, units * count / rates[pipe])
    return shares


def _widths(lanes: Lanes) -> Mapping[str, int | None]:
    return {"fma": lanes.fp32, "fp64": lanes.fp64}


def _l2_bytes_per_s(
    workload: BenchWorkload, alone: AloneRun, against: References, calibration: Calibration
) -> float | None:
    """Bytes that pass between L1 and L2; 0 for what has no array; of the matrix multiplication
    unknown.
    """
    if workload.kind == "matmul":
        return None
    moved = workload.moved_bytes(alone.rounds)
    if moved is None or alone.seconds <= 0:
        return 0.0
    missed = 1.0
    if workload.kind == "sweep_l1":
        hit = _hit(workload, alone, against.l1_hit, calibration.l1_miss_cost)
        if hit is None:
            return None
        missed -= hit
    return missed * moved / alone.seconds


def _dram(
    workload: BenchWorkload,
    alone: AloneRun,
    gpu: GpuCapacity,
    against: References,
    calibration: Calibration,
) -> tuple[float | None, BandwidthBasis]:
    """Share of the bandwidth, and of which one; 0 for what has no array."""
    per_byte = seconds_per_byte(workload, alone)
    if per_byte is None:
        return 0.0, "achievable"
    hit = (
        1.0 if workload.kind == "sweep_l1" else _l2_hit(workload, alone, gpu, against, calibration)
    )
    if hit is None:
        return None, "achievable"
    missed = 1.0 - hit
    if against.bandwidth is not None:
        return min(1.0, missed / per_byte / against.bandwidth), "achievable"
    if gpu.dram_bytes_per_s is not None:
        return min(1.0, missed / per_byte / gpu.dram_bytes_per_s), "peak"
    return None, "peak"


def _l2_hit(
    workload: BenchWorkload,
    alone: AloneRun,
    gpu: GpuCapacity,
    against: References,
    calibration: Calibration,
) -> float | None:
    """Hit rate of L2, 0..1: of a sweep by its time, of what has many loads under way, or stores,
    by its size.
    """
    size = workload.footprint_bytes
    if size is None or workload.kind == "sweep":
        return _hit(workload, alone, against.l2_hit, calibration.l2_miss_cost)
    if gpu.l2_bytes is None:
        return None
    filled = size / gpu.l2_bytes
    return (
        0.0
        if filled > _NEARLY * FAR
        else float(residency(np.array(filled), calibration.l2_knee, calibration.l2_cliff))
    )


def _hit(
    workload: BenchWorkload, alone: AloneRun, hit_s: float | None, miss_cost: float
) -> float | None:
    """Hit rate of a cache, 0..1, from the time of a byte relative to that of a hit; 0 where
    nothing is read.
    """
    per_byte = seconds_per_byte(workload, alone)
    if per_byte is None:
        return 0.0
    if hit_s is None or miss_cost <= 1:
        return None
    return min(1.0, max(0.0, 1.0 - (per_byte / hit_s - 1.0) / (miss_cost - 1.0)))


def footprint(workload: BenchWorkload, gpu: GpuCapacity) -> Footprint:
    """Return what the blocks of a launch occupy."""
    about = workload.about
    taken = Footprint(workload.blocks, workload.threads, about.registers, float(about.shared_bytes))
    return replace(taken, blocks_per_sm=computed_fit(taken, gpu))
