"""Demands of kernels as arrays: what the laws of sharing are computed from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from tachograph.annexes.share.demand import (
    CYCLES,
    PORTS,
    Calibration,
    Demand,
    Footprint,
    GpuCapacity,
)
from tachograph.catalog.arrays import Flags, Floats

_WARP = 32.0
_REGISTER_UNIT = 256.0  # registers are allocated to a warp in this unit
_L2_OVER_DRAM = 6.0  # times the bandwidth of DRAM: no L2 delivers more
_FEW_MISSES = 0.05  # below this share traffic of L2 does not follow from that of DRAM
_UNUSED = 0.01  # below this demand for memory or loads a cache does not matter to a kernel
_HITS = 0.1  # from this hit rate on it matters what stays in a cache
_SURELY = 0.75  # share of what stays in a cache by the law that surely does
_L2_DELIVERED = 0.5  # of the peak that a profiler counts: any L2 delivers as much
_LEAST = 1e-9  # smaller shares count as 0
_SECONDS = (1e-12, 1e12)
_FILLED = 1e9  # times full, at most
# power of an idle GPU over its limit: 70 of 700 W on the recorded H100
_IDLE = 0.1


@dataclass(frozen=True, slots=True)
class KernelArrays:
    """What kernels need alone, an array of shape (kernels,) for each number; NaN: unknown.

    cycles: (kernels, CYCLES), shares 0..1 of an SM's cycles. dram: share of the bandwidth that can
    be achieved. l2_bandwidth: share of what L2 delivers; l2_traffic: the same bytes over those that
    DRAM can deliver. l2, l1: bytes that are used again, over the size of the cache; l2_hit, l1_hit:
    hits that others can take; l2_touched: the same for all bytes that it touches, at most.
    irregular: share of its waiting that is not for arithmetic; exposed:
    share of its time, at most, that waits for memory. active: share of the SMs' time with a warp
    of it. power: above that of an idle GPU, over what the limit leaves. block: (kernels, 4), what
    a block needs: a place, threads, registers, shared bytes. fit: blocks that an empty SM holds;
    running: at a time on the GPU; waves: in which they run, a whole number; last_wave: blocks of
    the last one.
    """

    cycles: Floats
    dram: Floats
    l2_bandwidth: Floats
    l2_traffic: Floats
    l2: Floats
    l2_hit: Floats
    l2_touched: Floats
    l1: Floats
    l1_hit: Floats
    irregular: Floats
    exposed: Floats
    active: Floats
    power: Floats
    block: Floats
    fit: Floats
    running: Floats
    waves: Floats
    last_wave: Floats
    launch_s: Floats

    def along(self, axis: int) -> KernelArrays:
        """Return the same as rows (axis 0) or columns (axis 1) of a table of pairs."""
        index = (slice(None), None) if axis == 0 else (None, slice(None))
        return KernelArrays(*(getattr(self, column.name)[index] for column in fields(self)))

    def part(self, rows: slice) -> KernelArrays:
        """Return some of the kernels."""
        return KernelArrays(*(getattr(self, column.name)[rows] for column in fields(self)))

    def times(self, factors: Floats) -> KernelArrays:
        """Return kernels that need so many times as much of everything that is shared.

        A first axis is added, one place for each factor.
        """
        factor = factors.reshape(-1, *(1,) * self.dram.ndim)
        return replace(
            self,
            cycles=np.minimum(self.cycles * factor[..., None], 1.0),
            dram=np.minimum(self.dram * factor, 1.0),
            l2_bandwidth=np.minimum(self.l2_bandwidth * factor, 1.0),
            l2=self.l2 * factor,
            l1=self.l1 * factor,
        )

    def on_share(self, share: float, slower: Floats) -> KernelArrays:
        """Return kernels that have a `share` of the SMs and are `slower` by that.

        Their demand on these SMs is higher, on memory lower in the same time.
        """
        return replace(
            self,
            cycles=np.minimum(self.cycles / (share * slower[:, None]), 1.0),
            dram=self.dram / slower,
            l2_bandwidth=self.l2_bandwidth / slower,
            l2_traffic=self.l2_traffic / slower,
        )

    @property
    def busiest(self) -> Floats:
        """The highest share of an SM's cycles of any kind; 0 where none is known."""
        highest: Floats = np.nan_to_num(self.cycles).max(axis=-1, initial=0.0)
        return highest


def arrays_of(
    demands: Sequence[Demand], gpu: GpuCapacity, calibration: Calibration
) -> KernelArrays:
    """Return the demands as arrays; issue slots and bandwidths as shares of the achievable."""

    def column(of: Callable[[Demand], float | None]) -> Floats:
        return np.array([number(of(demand)) for demand in demands])

    cycles = _cycles(demands, gpu, calibration)
    dram = _share(column(lambda demand: demand.bandwidth(calibration)))
    irregular = _share(column(lambda demand: 0.5 if demand.irregular is None else demand.irregular))
    busiest = np.nan_to_num(cycles).max(axis=1, initial=0.0)
    bandwidth, traffic = _l2_traffic(demands, gpu, calibration, dram)
    limit = number(gpu.power_limit_w)
    block, fit, running, waves, last_wave = _launches(demands, gpu)
    active = column(lambda demand: demand.sm_share)
    width = np.minimum(1.0, column(_blocks) / number(gpu.sms))
    l2 = np.minimum(column(lambda demand: demand.l2_bytes) / number(gpu.l2_bytes), _FILLED)
    l1 = np.minimum(column(lambda demand: demand.l1_bytes) / number(gpu.l1_bytes), _FILLED)
    l2_most = np.minimum(column(lambda demand: demand.l2_most) / number(gpu.l2_bytes), _FILLED)
    l2_hit = column(lambda demand: demand.l2_hit)
    l2_stays = residency(l2, calibration.l2_knee, calibration.l2_cliff)
    l1_hit = column(lambda demand: demand.l1_hit)
    l1_stays = residency(l1, calibration.l1_knee, calibration.l1_cliff)
    # What passes on to DRAM is not found again: a stream of stores hits L2 with each of them.
    passed = np.nan_to_num(dram / np.where(traffic > _LEAST, traffic, np.nan))
    return KernelArrays(
        cycles=cycles,
        dram=dram,
        l2_bandwidth=bandwidth,
        l2_traffic=traffic,
        l2=l2,
        l2_hit=np.minimum(_share(np.where(np.isnan(l2_hit), l2_stays, l2_hit)),
                          1.0 - np.minimum(passed, 1.0)),
        l2_touched=np.where(np.isnan(l2), l2_most, l2),
        l1=l1,
        l1_hit=_share(np.where(np.isnan(l1_hit), l1_stays, l1_hit)),
        irregular=irregular,
        exposed=irregular * (1.0 - busiest),
        active=np.clip(np.where(np.isnan(active), width, active), _LEAST, 1.0),
        power=(column(lambda demand: demand.power_w) / limit - _IDLE) / (1.0 - _IDLE),
        block=block,
        fit=fit,
        running=running,
        waves=waves,
        last_wave=last_wave,
        launch_s=np.clip(column(lambda demand: demand.launch_s or None), *_SECONDS),
    )  # fmt: skip


def residency(filled: Floats, knee: float, cliff: float) -> Floats:
    """Return the share of a set of bytes, swept again and again, that stays in a cache.

    `filled`: the set over the size of the cache. All stay up to the knee, none from the cliff on.

    >>> residency(np.array([0.9, 1.25, 1.6]), 0.9, 1.6).round(2).tolist()
    [1.0, 0.5, 0.0]
    """
    stays: Floats = np.clip((cliff - filled) / max(cliff - knee, _LEAST), 0.0, 1.0)
    return stays


def number(value: float | None) -> float:
    """Return a number for an array; NaN where it is unknown."""
    return np.nan if value is None else float(value)


def _share(values: Floats) -> Floats:
    clipped: Floats = np.clip(values, 0.0, 1.0)
    return np.where(clipped < _LEAST, 0.0, clipped)


def _blocks(demand: Demand) -> float | None:
    return None if demand.footprint is None else demand.footprint.blocks


def _cycles(demands: Sequence[Demand], gpu: GpuCapacity, calibration: Calibration) -> Floats:
    """Shares of cycles. A port takes at least what the pipes take that it carries."""
    cycles = np.array([[number(demand.cycles.get(name)) for name in CYCLES] for demand in demands])
    cycles = cycles.reshape(len(demands), len(CYCLES))
    for port, pipes in PORTS.get(gpu.compute_capability or "", {}).items():
        carried = cycles[:, [CYCLES.index(pipe) for pipe in pipes]]
        is_known = np.isfinite(carried).any(axis=1)
        together = np.where(is_known, np.nansum(carried, axis=1), np.nan)
        cycles[:, CYCLES.index(port)] = np.fmax(cycles[:, CYCLES.index(port)], together)
    cycles[:, CYCLES.index("issue")] /= calibration.issue_capacity
    return _share(cycles)


def _l2_traffic(
    demands: Sequence[Demand], gpu: GpuCapacity, calibration: Calibration, dram: Floats
) -> tuple[Floats, Floats]:
    """Share of what L2 delivers, and its traffic over what DRAM can deliver.

    Each follows from the other where both capacities are known. Without either the traffic is that
    of DRAM over the share of misses. Where the capacity was measured, the share is that of it,
    whatever a profiler takes for the peak.
    """
    measured = number(calibration.l2_bytes_per_s)
    capacity = number(calibration.l2_bytes_per_s or gpu.l2_bytes_per_s)
    achievable = number(gpu.dram_bytes_per_s) * calibration.achievable_share
    share = np.array([number(demand.l2_bandwidth) for demand in demands])
    moved = np.array([number(demand.l2_bytes_per_s) for demand in demands])
    missed = 1.0 - np.array([number(demand.l2_hit) for demand in demands])
    share = np.where(np.isnan(moved / measured), share, moved / measured)
    moved = np.where(np.isnan(moved), share * capacity, moved)
    by_misses = dram / np.where(missed > _FEW_MISSES, missed, np.nan)
    traffic = np.where(np.isnan(moved), by_misses, moved / achievable)
    share = np.where(np.isnan(share), traffic * achievable / capacity, share)
    return _share(share), np.clip(traffic, 0.0, _L2_OVER_DRAM)


def capacity_of_sm(gpu: GpuCapacity) -> Floats:
    """Return what an SM has for blocks: places, threads, registers, shared bytes; NaN: unknown."""
    has = (gpu.blocks_per_sm, gpu.threads_per_sm, gpu.registers_per_sm, gpu.shared_bytes_per_sm)
    return np.array([number(value) for value in has])


def _launches(
    demands: Sequence[Demand], gpu: GpuCapacity
) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Needs of a block, blocks that fit into an SM, at a time, waves, blocks of the last one."""

    def column(of: Callable[[Footprint], float | None]) -> Floats:
        return np.array(
            [
                np.nan if demand.footprint is None else number(of(demand.footprint))
                for demand in demands
            ]
        )

    blocks, threads = column(lambda demand: demand.blocks), column(lambda demand: demand.threads)
    warps = np.ceil(threads / _WARP)
    registers = (
        np.ceil(column(lambda demand: demand.registers) * _WARP / _REGISTER_UNIT) * _REGISTER_UNIT
    )
    shared = column(lambda demand: demand.shared_bytes)
    slots = np.where(np.isnan(threads), np.nan, 1.0)
    block = np.column_stack([slots, warps * _WARP, registers * warps, shared])
    fit = np.maximum(column(lambda demand: demand.blocks_per_sm), 1.0)
    fit = np.where(np.isnan(fit), np.maximum(blocks_that_fit(capacity_of_sm(gpu), block), 1.0), fit)
    slots = number(gpu.sms) * fit
    waves = np.ceil(blocks / slots)
    return block, fit, np.minimum(blocks, slots), waves, blocks - (waves - 1.0) * slots


def blocks_that_fit(room: Floats, block: Floats) -> Floats:
    """Return how many blocks fit into the room of an SM, by what is known; NaN: nothing is."""
    with np.errstate(divide="ignore"):
        fits = room / np.where(block >= 1.0, block, np.nan)
    any_known = np.isfinite(fits).any(axis=-1)
    least = np.min(np.where(np.isfinite(fits), fits, np.inf), axis=-1)
    return np.where(any_known, np.maximum(np.floor(least), 0.0), np.nan)


# --- what is not known


def launch_known(kernels: KernelArrays, gpu: GpuCapacity) -> Flags:
    """Return whether it is known what room the blocks of a kernel need, and what there is."""
    footprint_known = np.isfinite(kernels.block).all(axis=-1) & np.isfinite(kernels.running)
    capacity_known = np.isfinite(capacity_of_sm(gpu)).all()
    both_known: Flags = np.logical_and(footprint_known, capacity_known)
    return both_known


def may_thrash_l2(
    own: KernelArrays, other: KernelArrays, calibration: Calibration, *, calibrated: bool
) -> Flags:
    """Return whether kernels may take from each other what they find in L2, by how much unknown.

    Known it is where both footprints are, and the calibration is of that GPU. All that both touch
    surely stays up to three quarters of what stays by the law.
    """
    both = uses_l2(own) & uses_l2(other)
    stays = own.l2_touched + other.l2_touched <= _SURELY * calibration.l2_knee
    both_known = np.isfinite(own.l2) & np.isfinite(other.l2) & calibrated
    unknown: Flags = both & ~stays & ~both_known
    return unknown


def l2_bandwidth_unsure(own: KernelArrays, other: KernelArrays, *, measured: bool) -> Flags:
    """Return whether two that use L2 may need more of its bandwidth than there is.

    Where what it delivers was not measured, a profiler's shares are of a peak that no L2 reaches.
    """
    total = own.l2_bandwidth + other.l2_bandwidth
    enough = total <= (1.0 if measured else _L2_DELIVERED)
    unsure: Flags = uses_l2(own) & uses_l2(other) & ~enough & (np.isnan(total) | (not measured))
    return unsure


def uses_l2(kernels: KernelArrays) -> Flags:
    """Return whether a kernel finds something in L2 that another could take, or may."""
    busy = ~(kernels.l2_bandwidth < _UNUSED) & ~(kernels.l2_traffic < _UNUSED)
    finds: Flags = busy & ~(kernels.l2_hit < _HITS)
    return finds


def measured_in_sm(kernels: KernelArrays) -> Flags:
    """Return whether issue slots and any pipe were measured.

    A profiler that collects one pipe collects all of the chip.
    """
    is_known = np.isfinite(kernels.cycles)
    measured: Flags = is_known[..., 0] & is_known[..., 1:-1].any(axis=-1)
    return measured
