"""What the launches of a benchmark ask of the GPU, from how long they take alone: no profiler is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tachograph.interference.demand import PIPES, Bound, Calibration, Demand, Footprint, Gpu
from tachograph.microbench.cubin import Code
from tachograph.microbench.device import Lanes
from tachograph.microbench.measure import Alone
from tachograph.microbench.workloads import KERNELS, WARP, Workload, resident_blocks

# pipelines of which nobody says how many of these instructions they do per cycle
_UNTOLD = {"copy": ("alu", "fma", "lsu", "uniform"), "copy_own": ("alu", "fma", "lsu", "uniform"),
           "matmul": ("alu", "lsu", "uniform")}  # fmt: skip
_FAR = 4.0  # times L2: nothing of so large an array is found there again
_WAITS_FOR_MEMORY = ("copy", "copy_own")
_REGISTER_UNIT = 8  # registers of a thread are handed out so many at a time
_WAITS_FOR_BARRIERS = ("matmul",)


@dataclass(frozen=True, slots=True)
class References:
    """What launches are compared with. None: was not measured.

    bandwidth: the most that any copy achieved, byte/s. l2_hit, l1_hit: seconds per byte copied where all is found in
    that cache, of the smallest arrays.
    """

    bandwidth: float | None = None
    l2_hit: float | None = None
    l1_hit: float | None = None


def seconds_per_byte(workload: Workload, alone: Alone) -> float | None:
    """Return the time of one byte read or written; None where nothing is copied."""
    size = workload.copied_bytes(alone.rounds)
    return None if not size or alone.seconds <= 0 else alone.seconds / size


def references(measured: Sequence[tuple[Workload, Alone]], gpu: Gpu) -> References:
    """Return what the launches of these measurements are compared with."""
    large: list[tuple[float, float]] = []
    small: list[tuple[float, float]] = []
    own: list[tuple[float, float]] = []
    for workload, alone in measured:
        per_byte, footprint = seconds_per_byte(workload, alone), workload.footprint_bytes
        if per_byte is None or footprint is None:
            continue
        if workload.kind == "copy_own":
            own.append((footprint, per_byte))
        elif gpu.l2_bytes is not None:
            (large if footprint > _FAR * gpu.l2_bytes else small).append((footprint, per_byte))
    return References(
        bandwidth=1 / min(per_byte for _, per_byte in large) if large else None,
        l2_hit=_fitting(small, gpu.l2_bytes),
        l1_hit=_fitting(own, gpu.l1_bytes),
    )


def _fitting(points: Sequence[tuple[float, float]], capacity: float | None) -> float | None:
    """Seconds per byte of the smallest footprint, if it fits twice into the cache."""
    footprint, per_byte = min(points, default=(None, None))
    return None if footprint is None or capacity is None or 2 * footprint > capacity else per_byte


def demand_of(
    workload: Workload,
    alone: Alone,
    *,
    gpu: Gpu,
    lanes: Lanes,
    code: Code | None,
    against: References,
    calibration: Calibration,
) -> Demand:
    """Return what a launch asks, from its time alone; what cannot be told from that is not in it."""
    dram, dram_of = _dram(workload, alone, gpu, against, calibration)
    warps = resident_blocks(workload, gpu) * workload.threads / WARP / gpu.schedulers
    own = workload.kind == "copy_own"
    per_sm = (workload.footprint_bytes or 0.0) * resident_blocks(workload, gpu)
    return Demand(
        name=workload.words,
        cycles=cycles(workload, alone, gpu, lanes),
        dram=dram,
        dram_of=dram_of,
        l2_hit=None if own else _l2_hit(workload, alone, gpu, against, calibration),
        l2_bytes=workload.footprint_bytes if workload.kind == "copy" else None,
        l1_hit=_hit(workload, alone, against.l1_hit, calibration.l1_miss_cost) if own else 0.0,
        l1_bytes=per_sm if own else 0.0,
        warps=max(1.0, warps),
        irregular=_irregular(workload),
        sm_share=min(1.0, workload.blocks / (gpu.sms or 1)),
        seconds=alone.seconds,
        hbm_bytes=float(workload.bytes_needed),
        footprint=footprint(workload, gpu, code),
    )


def cycles(workload: Workload, alone: Alone, gpu: Gpu, lanes: Lanes) -> Mapping[str, float]:
    """Return {issue, pipelines: fraction 0..1 of an SM's cycles}, from instructions and the clock of an SM.

    What the compiled code does not use at all is 0; a pipeline whose rate is not published is not in it.
    """
    kernel = KERNELS[workload.kernel]
    used = min(workload.blocks, gpu.sms or workload.blocks)
    if alone.cycles <= 0:
        return {}
    units = workload.units(alone.rounds) / used / alone.cycles  # of an SM in a cycle
    untold = _UNTOLD.get(kernel.kind, ())
    found = {pipe: 0.0 for pipe in PIPES if pipe not in untold and pipe != kernel.pipe}
    found["issue"] = min(1.0, units * kernel.instructions / gpu.schedulers)
    width = lanes.fp64 if kernel.pipe == "fp64" else lanes.fp32
    if kernel.pipe is not None and width:
        found[kernel.pipe] = min(1.0, units * kernel.of_pipe * WARP / width)
    return found


def _dram(
    workload: Workload, alone: Alone, gpu: Gpu, against: References, calibration: Calibration
) -> tuple[float | None, Bound]:
    """Share of the bandwidth, and of which one; 0 for what copies nothing."""
    per_byte = seconds_per_byte(workload, alone)
    if per_byte is None:
        return 0.0, "achievable"
    hit = 1.0 if workload.kind == "copy_own" else _l2_hit(workload, alone, gpu, against, calibration)
    if hit is None:
        return None, "achievable"
    missed = 1.0 - hit
    if against.bandwidth is not None:
        return min(1.0, missed / per_byte / against.bandwidth), "achievable"
    if gpu.dram_bytes_per_s is not None:
        return min(1.0, missed / per_byte / gpu.dram_bytes_per_s), "peak"
    return None, "peak"


def _l2_hit(workload: Workload, alone: Alone, gpu: Gpu, against: References, calibration: Calibration) -> float | None:
    """Share of what is found in L2: nothing of what is far larger, whatever its time says."""
    if (workload.footprint_bytes or 0.0) > _FAR * (gpu.l2_bytes or float("inf")):
        return 0.0
    return _hit(workload, alone, against.l2_hit, calibration.l2_miss_cost)


def _hit(workload: Workload, alone: Alone, hit_s: float | None, miss_cost: float) -> float | None:
    """Share of what is found in a cache, from the time of a byte beside that of a hit; 0 for what copies nothing."""
    per_byte = seconds_per_byte(workload, alone)
    if per_byte is None:
        return 0.0
    if hit_s is None or miss_cost <= 1:
        return None
    return min(1.0, max(0.0, 1.0 - (per_byte / hit_s - 1.0) / (miss_cost - 1.0)))


def _irregular(workload: Workload) -> float | None:
    """None for what waits for barriers: nobody measured how irregular that is."""
    if workload.kind in _WAITS_FOR_BARRIERS:
        return None
    return 1.0 if workload.kind in _WAITS_FOR_MEMORY else 0.0


def footprint(workload: Workload, gpu: Gpu, code: Code | None) -> Footprint:
    """Return what the blocks of a launch occupy; registers and shared memory only where the compiled code is known."""
    if code is None or code.registers is None:
        return Footprint(workload.blocks, workload.threads)
    registers = -(-code.registers // _REGISTER_UNIT) * _REGISTER_UNIT * workload.threads
    fits = [
        int(room // taken)
        for room, taken in (
            (gpu.blocks_per_sm, 1),
            (gpu.threads_per_sm, workload.threads),
            (gpu.registers_per_sm, registers),
            (gpu.shared_bytes_per_sm, code.shared_bytes),
        )
        if room and taken
    ]
    return Footprint(
        workload.blocks, workload.threads, code.registers, float(code.shared_bytes), min(fits, default=None)
    )
