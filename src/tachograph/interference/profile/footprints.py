"""What the blocks of a launch occupy on the SMs, and how many of them fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, inf, nan, prod

from tachograph.interference.demand import Footprint, Gpu
from tachograph.nsight.launch import Launch

_WARP = 32
_SECTOR = 32.0  # bytes
_REGISTER_UNIT = 256  # registers are handed to a warp in these units, on all chips since Volta
_LIMITS = tuple(f"launch__occupancy_limit_{what}" for what in ("blocks", "registers", "shared_mem", "warps"))
_SHARED_PARTS = tuple(f"launch__shared_mem_per_block_{part}" for part in ("static", "dynamic", "driver"))


def footprint_of(launch: Launch, gpu: Gpu) -> Footprint | None:
    """Return what the blocks of a launch occupy; None where neither grid nor block is told.

    How many fit into an SM is what the profiler says, else computed from what a block takes and what `gpu` has.

    >>> from tachograph.nsight.launch import Chip
    >>> told = {"launch__registers_per_thread": 32.0, "launch__shared_mem_per_block": 1024.0}
    >>> sleep = Launch("sleep", told, Chip(), "a.csv", 0, (132, 1, 1), (1024, 1, 1))
    >>> from tachograph.interference.demand import H100_NVL
    >>> footprint_of(sleep, H100_NVL).blocks_per_sm
    2
    """
    metrics = launch.metrics
    blocks = _count(metrics, "launch__grid_size") or (prod(launch.grid) if launch.grid else None)
    threads = _count(metrics, "launch__block_size") or (prod(launch.block) if launch.block else None)
    if not blocks or not threads:
        return None
    registers = _count(metrics, "launch__registers_per_thread")
    shared = _shared(metrics)
    footprint = Footprint(blocks, threads, registers, shared)
    fit = _told_fit(metrics) or computed_fit(footprint, gpu)
    return Footprint(blocks, threads, registers, shared, fit)


def l2_most(launches: Sequence[Launch]) -> float | None:
    """Return the bytes of L2 that a launch touches at the most, of the launch that may touch most.

    None: of one of them it is not told. What a launch comes back to went through L2 at least once: it is no more than
    all that went through. The traffic with DRAM is less, but bounds it only where the profiler emptied the caches
    before, which no report says.

    >>> from tachograph.nsight.launch import Chip
    >>> told = {"lts__t_sectors.sum": 250_000.0}
    >>> l2_most([Launch("add", told, Chip(), "a.csv", 0, (132, 1, 1), (1024, 1, 1))])
    8000000.0
    """
    most = max((_through_l2(launch.metrics) for launch in launches), default=inf)
    return most if most < inf else None


def _through_l2(metrics: Mapping[str, float]) -> float:
    """Bytes; infinite where not told, or nothing at all went through, which no launch does."""
    told = (metrics.get("lts__t_bytes.sum", nan), metrics.get("lts__t_sectors.sum", nan) * _SECTOR)
    return min((moved for moved in told if 0 < moved < inf), default=inf)


def computed_fit(footprint: Footprint, gpu: Gpu) -> int | None:
    """Return how many blocks fit into an empty SM by threads, blocks, registers and shared memory.

    None: one of them is not told, of the launch or of the GPU, or not even one block fits.
    """
    registers, shared = footprint.registers, footprint.shared_bytes
    slots, threads = gpu.blocks_per_sm, gpu.threads_per_sm
    of_registers, of_shared = gpu.registers_per_sm, gpu.shared_bytes_per_sm
    if registers is None or shared is None or of_registers is None or of_shared is None:
        return None
    if slots is None or threads is None:
        return None
    warps = ceil(footprint.threads / _WARP)
    fits = [slots, threads // (warps * _WARP)]
    if registers:
        of_warp = ceil(registers * _WARP / _REGISTER_UNIT) * _REGISTER_UNIT
        # each scheduler has its own part of the registers: a warp does not lie across two
        fits.append(of_registers // gpu.schedulers // of_warp * gpu.schedulers // warps)
    if shared:
        fits.append(int(of_shared // shared))
    return min(fits) or None


def resident_per_sm(footprint: Footprint, gpu: Gpu) -> float | None:
    """Return how many blocks lie on an SM at once, on average over all SMs, while there are blocks left to start.

    >>> resident_per_sm(Footprint(66, 128, blocks_per_sm=16), Gpu(name="H100", sms=132))
    0.5
    """
    if footprint.blocks_per_sm is None or gpu.sms is None:
        return None
    return min(float(footprint.blocks_per_sm), footprint.blocks / gpu.sms)


def _count(metrics: Mapping[str, float], metric: str) -> int | None:
    value = metrics.get(metric)
    return int(value) if value is not None and 0 <= value < inf else None


def _shared(metrics: Mapping[str, float]) -> float | None:
    """Bytes of a block; None where not told, or no amount of memory."""
    for whole in ("launch__shared_mem_per_block_allocated", "launch__shared_mem_per_block"):
        if 0 <= metrics.get(whole, nan) < inf:
            return metrics[whole]
    parts = [metrics.get(part, nan) for part in _SHARED_PARTS]
    return sum(parts) if all(0 <= part < inf for part in parts) else None


def _told_fit(metrics: Mapping[str, float]) -> int | None:
    """The lowest of the profiler's limits; all four are needed, the one that was left out may be the lowest."""
    if any(limit not in metrics for limit in _LIMITS):
        return None
    extra = metrics.get("launch__occupancy_limit_barriers")
    told = [metrics[limit] for limit in _LIMITS] + ([] if extra is None else [extra])
    return int(min(told)) if 1 <= min(told) < inf else None
