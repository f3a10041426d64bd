"""The metrics by which people say how much of a GPU a kernel uses, side by side: they seldom agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType

from tachograph.interference.demand import Footprint, Gpu
from tachograph.interference.profile import readings
from tachograph.interference.profile.footprints import resident_per_sm
from tachograph.interference.profile.kernels import Kernel
from tachograph.interference.profile.operations import Work, work_of

_WARP = 32.0
_WAVES = "launch__waves_per_multiprocessor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """How a launch lies on the SMs; None: not known.

    needed: SMs it needs when each takes as many blocks as fit. reached: SMs that get a block, as blocks are spread
    out. slots_taken: fraction 0..1 of the places for its blocks on all SMs that it takes. waves: how many times it
    fills the GPU. tail: fraction 0..1 of the places that stay empty over all waves, the last one being short; 0 for a
    launch of one wave or less.
    """

    needed: int | None = None
    reached: int | None = None
    slots_taken: float | None = None
    waves: float | None = None
    tail: float | None = None


@dataclass(frozen=True, slots=True)
class Distribution:
    """Cycles in which an SM had a warp: of the mean SM, the least and the most busy one, over all launches.

    idle: fraction 0..1 of the busiest SM's cycles in which the mean SM had nothing. spread: highest less lowest over
    the mean.
    """

    mean: float
    low: float | None
    high: float

    @property
    def idle(self) -> float:
        """1 - mean / high.

        >>> Distribution(50.0, 0.0, 100.0).idle
        0.5
        """
        return max(0.0, 1 - self.mean / self.high) if self.high > 0 else 0.0

    @property
    def spread(self) -> float | None:
        """(high - low) / mean; None: the lowest is not told, or no SM had anything."""
        return None if self.low is None or self.mean <= 0 else (self.high - self.low) / self.mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """What each metric says of one kernel; None: not collected. Fractions run 0..1.

    nvidia_smi: what nvidia-smi says while a kernel runs, whichever it is. intensity: FLOP per byte of DRAM traffic;
    at_least: some operations may not have been counted. ipc: warp instructions per cycle and SM. thread_efficiency:
    threads that take part in an instruction, of a warp's 32.
    """

    nvidia_smi: float
    launched: Launched
    sm_share: float | None
    intensity: float | None
    intensity_at_least: bool
    occupancy: float | None
    occupancy_possible: float | None
    issue: float | None
    ipc_issued: float | None
    ipc_executed: float | None
    pipes: Mapping[str, float]
    dram: float | None
    l2_hit: float | None
    l1_hit: float | None
    thread_efficiency: float | None
    distribution: Distribution | None


def utilisation(kernel: Kernel, *, work: Work | None = None) -> Utilisation:
    """Return all metrics of utilization of a kernel; `work`: what it computes, where that was found before."""
    metrics, demand = kernel.metrics, kernel.demand
    work, pipes = work or work_of(kernel), readings.pipes(metrics, kernel.coverage)
    occupied = readings.occupancy(metrics, kernel.gpu)
    threads = readings.first(metrics, {readings.THREADS: 1 / _WARP})
    return Utilisation(
        nvidia_smi=1.0,
        launched=launched(demand.footprint, kernel.gpu, waves=metrics.get(_WAVES)),
        sm_share=demand.sm_share,
        intensity=work.intensity,
        intensity_at_least=work.intensity is not None and bool(work.unsure),
        occupancy=None if occupied is None else occupied.value,
        occupancy_possible=_possible(demand.footprint, kernel),
        issue=demand.cycles.get("issue"),
        ipc_issued=_ipc(kernel),
        ipc_executed=metrics.get(readings.EXECUTED),
        pipes=MappingProxyType({pipe: reading.value for pipe, reading in pipes.items()}),
        dram=demand.dram,
        l2_hit=demand.l2_hit,
        l1_hit=demand.l1_hit,
        thread_efficiency=None if threads is None else threads.value,
        distribution=distribution(kernel),
    )


def launched(footprint: Footprint | None, gpu: Gpu, *, waves: float | None = None) -> Launched:
    """Return how a launch lies on the SMs of `gpu`; `waves` as the profiler tells them, else computed.

    >>> launched(Footprint(198, 1024, blocks_per_sm=1), Gpu(name="H100", sms=132))
    Launched(needed=132, reached=132, slots_taken=1.0, waves=1.5, tail=0.25)
    """
    if footprint is None or gpu.sms is None:
        return Launched(waves=waves, tail=_tail(waves))
    reached = min(footprint.blocks, gpu.sms)
    fit, resident = footprint.blocks_per_sm, resident_per_sm(footprint, gpu)
    if fit is None or resident is None:
        return Launched(reached=reached, waves=waves, tail=_tail(waves))
    computed = footprint.blocks / (fit * gpu.sms) if waves is None else waves
    return Launched(
        needed=min(gpu.sms, ceil(footprint.blocks / fit)),
        reached=reached,
        slots_taken=resident / fit,
        waves=computed,
        tail=_tail(computed),
    )


def distribution(kernel: Kernel) -> Distribution | None:
    """Return how evenly the work lies on the SMs; None: mean or highest not collected, or not by the same launches."""
    names = (readings.SM_ACTIVE, readings.SM_ACTIVE_MIN, readings.SM_ACTIVE_MAX)
    mean, low, high = (kernel.metrics.get(name) for name in names)
    if mean is None or high is None or len({kernel.coverage.get(name, 1.0) for name in names}) > 1:
        return None
    return Distribution(mean, low, high)


def _tail(waves: float | None) -> float | None:
    if waves is None:
        return None
    return 0.0 if waves <= 1 else 1 - waves / ceil(waves)


def _possible(footprint: Footprint | None, kernel: Kernel) -> float | None:
    """Occupancy that the resources of a block allow: as told, else of the blocks that fit."""
    told = readings.first(kernel.metrics, {"sm__maximum_warps_per_active_cycle_pct": 0.01})
    if told is not None:
        return min(1.0, told.value)
    if footprint is None or footprint.blocks_per_sm is None or kernel.gpu.threads_per_sm is None:
        return None
    warps = ceil(footprint.threads / _WARP) * footprint.blocks_per_sm
    return min(1.0, warps * _WARP / kernel.gpu.threads_per_sm)


def _ipc(kernel: Kernel) -> float | None:
    told = kernel.metrics.get(readings.ISSUED)
    issued = kernel.demand.cycles.get("issue")
    return told if told is not None else None if issued is None else issued * kernel.gpu.schedulers
