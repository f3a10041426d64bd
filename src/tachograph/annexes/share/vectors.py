"""Demands as arrays, placement of launches' blocks, and unmeasured values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tachograph.annexes.share.demand import CYCLES, Calibration, Demand, Footprint, GpuCapacity
from tachograph.catalog.arrays import Flags, Floats

_UNIT = 256.0  # registers are allocated to a warp in this unit
_WARP = 32.0
_LEAST = 1e-9  # smaller shares count as 0 and are not divided by
# Seconds: values are clipped to this range, so that no quotient of two overflows.
_TIMES = (1e-12, 1e12)
_FILLED = 1e9  # times full, at most
L2_OVER_DRAM = 6.0  # times the bandwidth of DRAM: no L2 delivers more
# Share of misses below which L2 traffic cannot be derived from DRAM traffic: rounding errors.
_FEW = 0.05
# Of the capacity: below this demand for memory, the cached data of a kernel are negligible.
_QUIET = 0.01
_HITS = 0.1  # at this hit rate in a cache, the reused bytes of a kernel matter
_SURELY = 0.75  # share of what stays in a cache by the estimate that surely does
# Of the peak that a profiler counts: any L2 delivers as much, where it was not measured.
_L2_DELIVERED = 0.5


@dataclass(frozen=True, slots=True)
class LaunchVectors:
    """Resources per block and number of blocks of launches; NaN: unknown."""

    blocks: Floats
    threads: Floats  # of a block, in whole warps
    registers: Floats  # of a block
    shared: Floats  # bytes of a block
    fit: Floats  # blocks that fit into an empty SM


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Whether caches matter to kernels. `uses`: more than negligible, or unknown.

    `finds`: uses it with a high hit rate, or unknown. `unknown_reuse`: uses it, and its reused
    bytes are unknown. `most`: upper bound of the bytes that it touches, over the capacity of the
    cache; NaN: unknown.
    """

    uses: Flags
    finds: Flags
    unknown_reuse: Flags
    most: Floats


def contended(one: CacheUse, other: CacheUse, held: float) -> Flags:
    """Return per pair whether both use a cache, one with many hits, and bytes may be evicted.

    `held`: up to this share of the cache, all that both touch surely stays.
    """
    both = one.uses[:, None] & other.uses[None, :]
    finds = one.finds[:, None] | other.finds[None, :]
    stays = one.most[:, None] + other.most[None, :] <= held  # NaN: not known to stay
    lost: Flags = both & finds & ~stays
    return lost


@dataclass(frozen=True, slots=True)
class Vectors:
    """Demands, a row each; NaN: not measured.

    cycles: (rows, CYCLES). dram: share of what can be achieved. warps: at least 1, which is also
    assumed where not `counted`. irregular: 1 where unknown. l2, l1: footprint over the size of the
    cache. l2_bandwidth: share of what L2 can deliver; l2_traffic: the same bytes, as a share of
    what can be achieved with DRAM. exposed: share of the time, at most, in which it waits for
    memory.
    """

    names: tuple[str, ...]
    cycles: Floats
    dram: Floats
    warps: Floats
    counted: Flags
    irregular: Floats
    exposed: Floats
    l2_bandwidth: Floats
    l2_traffic: Floats
    l2: Floats
    l2_hit: Floats
    l1: Floats
    l1_hit: Floats
    seconds: Floats
    in_l2: CacheUse
    in_l1: CacheUse
    launches: LaunchVectors

    @property
    def measured(self) -> Floats:
        """Demands on (rows, corun.LIMITED), NaN where unknown."""
        return np.column_stack([self.cycles, self.dram, self.l2_bandwidth, self.l2, self.l1])


def demand_vectors(
    demands: Sequence[Demand], gpu: GpuCapacity, calibration: Calibration
) -> Vectors:
    """Return demands as arrays; issue slots and DRAM as shares of the achievable."""
    cycles = np.array([[_number(demand.cycles.get(name)) for name in CYCLES] for demand in demands])
    cycles = np.clip(cycles.reshape(len(demands), len(CYCLES)), 0.0, 1.0)
    cycles[cycles < _LEAST] = 0.0
    cycles[:, 0] = np.minimum(cycles[:, 0] / calibration.issue_capacity, 1.0)
    warps = np.fmax(_column(demands, lambda one: one.warps), 1.0)
    irregular = np.clip(
        np.nan_to_num(_column(demands, lambda one: one.irregular), nan=1.0), 0.0, 1.0
    )
    busiest = np.max(np.nan_to_num(cycles), axis=1, initial=0.0)
    dram = _bandwidth(demands, calibration)
    hits = [_column(demands, lambda one: one.l2_hit), _column(demands, lambda one: one.l1_hit)]
    sizes = [
        _filled(_column(demands, lambda one: one.l2_bytes), gpu.l2_bytes),
        _filled(_column(demands, lambda one: one.l1_bytes), gpu.l1_bytes),
    ]
    l2_hit = _hits(hits[0], sizes[0], calibration.l2_knee, calibration.l2_cliff)
    l1_hit = _hits(hits[1], sizes[1], calibration.l1_knee, calibration.l1_cliff)
    bandwidth, traffic = _l2_traffic(demands, gpu, calibration, dram, hits[0])
    # what passes to DRAM anyway is not found again: a stream of stores hits L2 with each of them
    again = 1.0 - dram / np.where(traffic > _LEAST, traffic, np.nan)
    again = np.where(np.isnan(again), 1.0, np.maximum(again, 0.0))
    l2_hit = np.minimum(l2_hit, again)
    reads = cycles[:, [CYCLES.index("lsu"), CYCLES.index("tex")]]
    quiet = (reads < _QUIET).all(axis=1)  # NaN: not known, and not quiet
    missed = np.clip(1.0 - hits[0], 0.0, 1.0)
    few = (dram < _QUIET * missed) & (missed >= _FEW)  # traffic of DRAM is the misses of L2
    little = few | (quiet & (dram < _QUIET))
    counted = np.isfinite(
        _column(demands, lambda one: one.l2_bytes_per_s or one.l2_bandwidth)
    ) & np.isfinite(bandwidth)
    little = np.where(counted, bandwidth < _QUIET, little)
    touched = _filled(_column(demands, lambda one: one.l2_most), gpu.l2_bytes)
    return Vectors(
        names=tuple(demand.name for demand in demands),
        cycles=cycles,
        dram=dram,
        warps=warps,
        counted=np.array([demand.warps is not None for demand in demands]),
        irregular=irregular,
        exposed=irregular * (1.0 - busiest),
        l2_bandwidth=bandwidth,
        l2_traffic=traffic,
        l2=sizes[0],
        l2_hit=l2_hit,
        l1=sizes[1],
        l1_hit=l1_hit,
        seconds=np.clip(
            _column(demands, lambda one: one.seconds if one.seconds else None), *_TIMES
        ),
        in_l2=_cached(~little, l2_hit, sizes[0], touched),
        in_l1=_cached(~quiet, l1_hit, sizes[1], sizes[1]),
        launches=_launches(demands, gpu),
    )


def _filled(kept: Floats, size: float | None) -> Floats:
    """Footprints over the size of the cache."""
    return np.minimum(kept / _number(size), _FILLED)


def _hits(hit: Floats, filled: Floats, knee: float, cliff: float) -> Floats:
    """Hit rates; if unmeasured, from the part of a known footprint that stays cached."""
    stays: Floats = np.clip((cliff - filled) / max(cliff - knee, _LEAST), 0.0, 1.0)
    return np.where(np.isnan(hit), stays, hit)


def _l2_traffic(
    demands: Sequence[Demand], gpu: GpuCapacity, calibration: Calibration, dram: Floats, hit: Floats
) -> tuple[Floats, Floats]:
    """Share of L2 throughput, and its traffic as a share of achievable DRAM; NaN: unknown.

    Each follows from the other where both capacities are known. Without either the traffic is that
    with DRAM over the share of misses. Where the capacity was measured, the share is that of it,
    whatever a profiler takes for the peak.
    """
    measured, capacity = (
        _number(calibration.l2_bytes_per_s),
        _number(calibration.l2_bytes_per_s or gpu.l2_bytes_per_s),
    )
    achievable = _number(gpu.dram_bytes_per_s) * calibration.achievable_share
    share, moved = (
        _column(demands, lambda one: one.l2_bandwidth),
        _column(demands, lambda one: one.l2_bytes_per_s),
    )
    share = np.where(np.isnan(moved / measured), share, moved / measured)
    moved = np.where(np.isnan(moved), share * capacity, moved)
    missed = np.where(1.0 - hit < _FEW, np.nan, 1.0 - hit)
    traffic = np.where(np.isnan(moved), dram / missed, moved / achievable)
    share = np.where(np.isnan(share), traffic * achievable / capacity, share)
    return np.clip(share, 0.0, 1.0), np.clip(traffic, 0.0, L2_OVER_DRAM)


def _cached(uses: Flags, hit: Floats, filled: Floats, touched: Floats) -> CacheUse:
    unknown = np.isnan(filled)
    return CacheUse(uses, uses & ~(hit < _HITS), uses & unknown, np.where(unknown, touched, filled))


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)


def _column(demands: Sequence[Demand], of: Callable[[Demand], float | None]) -> Floats:
    return np.array([_number(of(demand)) for demand in demands])


def _bandwidth(demands: Sequence[Demand], calibration: Calibration) -> Floats:
    """Shares of achievable bandwidth, at most 1."""
    used: Floats = np.clip(_column(demands, lambda one: one.bandwidth(calibration)), 0.0, 1.0)
    return np.where(used < _LEAST, 0.0, used)


def _launches(demands: Sequence[Demand], gpu: GpuCapacity) -> LaunchVectors:
    def of(value: Callable[[Footprint], float | None]) -> Floats:
        return _column(demands, lambda one: None if one.footprint is None else value(one.footprint))

    threads, registers = of(lambda one: one.threads), of(lambda one: one.registers)
    shared, known = of(lambda one: one.shared_bytes), of(lambda one: one.blocks_per_sm)
    warps = np.ceil(threads / _WARP)
    threads, registers = warps * _WARP, np.ceil(registers * _WARP / _UNIT) * _UNIT * warps
    room = (
        (gpu.blocks_per_sm, np.ones(len(threads))),
        (gpu.threads_per_sm, threads),
        (gpu.registers_per_sm, registers),
        (gpu.shared_bytes_per_sm, shared),
    )
    fit = np.full(len(threads), np.nan)
    for all_there_is, of_a_block in room:
        some = np.where(of_a_block >= 1.0, of_a_block, np.nan)
        fit = np.fmin(fit, np.floor(_number(all_there_is) / some))
    fit = np.where(
        np.isnan(threads), np.nan, np.maximum(np.where(np.isnan(known), fit, known), 1.0)
    )
    return LaunchVectors(of(lambda one: one.blocks), threads, registers, shared, fit)


def occupied(launches: LaunchVectors, gpu: GpuCapacity) -> Floats:
    """Return use of the least loaded SM: (rows; blocks, threads, registers, shared bytes).

    NaN: unknown, as where the number of SMs is.
    """
    on_each = np.floor(launches.blocks / _number(gpu.sms))
    count = np.where(np.isnan(on_each), np.nan, np.fmin(on_each, launches.fit))
    return np.stack(
        [count, count * launches.threads, count * launches.registers, count * launches.shared],
        axis=-1,
    )


def of_a_block(launches: LaunchVectors) -> Floats:
    """Return the resources of one block: (rows; blocks, threads, registers, shared bytes)."""
    ones = np.where(np.isnan(launches.threads), np.nan, 1.0)
    return np.stack([ones, launches.threads, launches.registers, launches.shared], axis=-1)


def room(gpu: GpuCapacity) -> Floats:
    """Return the capacity of an SM: blocks, threads, registers, shared bytes; NaN: unknown."""
    has = (gpu.blocks_per_sm, gpu.threads_per_sm, gpu.registers_per_sm, gpu.shared_bytes_per_sm)
    return np.array([np.nan if value is None else float(value) for value in has])


def room_known(launches: LaunchVectors, gpu: GpuCapacity) -> Flags:
    """Return the launches with all values known that decide whether blocks fit beside others."""
    needs = np.concatenate([occupied(launches, gpu), of_a_block(launches)], axis=-1)
    known: Flags = np.isfinite(needs).all(axis=-1) & np.isfinite(room(gpu)).all()
    return known


def unsure_of_sm(one: Vectors, other: Vectors, gpu: GpuCapacity) -> Flags:
    """Return per pair whether an unknown value could cause contention in an SM.

    That is room for blocks, issue slots, all pipelines, or the bandwidth of an L1 that is used; or
    a pipeline that one needs and that was not measured of the other: reports of different coverage.
    """
    lacks = _lacks_in_sm(one, gpu)[:, None] | _lacks_in_sm(other, gpu)[None, :]
    for mine, theirs in ((one, other), (other, one)):
        needed = np.nan_to_num(mine.cycles) > _QUIET
        unmeasured = np.isnan(theirs.cycles)
        unmeasured[:, -1] &= theirs.in_l1.uses
        open_ = (needed[:, None, :] & unmeasured[None, :, :]).any(axis=2)
        lacks = lacks | (open_ if mine is one else open_.T)
    return lacks


def _lacks_in_sm(demands: Vectors, gpu: GpuCapacity) -> Flags:
    """A profiler that collects one pipeline collects all of the chip."""
    known = np.isfinite(demands.cycles)
    slots, pipes, l1 = known[:, 0], known[:, 1:-1].any(axis=1), known[:, -1] | ~demands.in_l1.uses
    return ~(slots & pipes & l1 & room_known(demands.launches, gpu))


def unsure_of_memory(
    one: Vectors, other: Vectors, gpu: GpuCapacity, calibration: Calibration, *, meet: Flags
) -> Flags:
    """Return per pair whether bandwidth is unknown, or a cache may lose reused data."""
    both_l2 = one.in_l2.uses[:, None] & other.in_l2.uses[None, :]
    unmeasured = np.isnan(one.l2_bandwidth)[:, None] | np.isnan(other.l2_bandwidth)[None, :]
    dram = np.isnan(one.dram)[:, None] | np.isnan(other.dram)[None, :]
    l2 = (both_l2 & unmeasured) | contended(one.in_l2, other.in_l2, _SURELY * calibration.l2_knee)
    l1 = meet & contended(one.in_l1, other.in_l1, _SURELY * calibration.l1_knee)
    if not l2_measured(gpu, calibration):  # shares are of a peak that no L2 reaches
        l2 = l2 | (one.l2_bandwidth[:, None] + other.l2_bandwidth[None, :] > _L2_DELIVERED)
    unsure: Flags = dram | l2 | l1
    return unsure


def l2_measured(gpu: GpuCapacity, calibration: Calibration) -> bool:
    """Return whether achievable L2 bandwidth is known, not only the profiler's peak."""
    return (calibration.l2_bytes_per_s or gpu.l2_bytes_per_s) is not None


def confined(launches: LaunchVectors, busiest: Floats, share: float, gpu: GpuCapacity) -> Floats:
    """Return the slowdown on a `share` of the SMs: waves of blocks, each of least time.

    `busiest`: highest demand for cycles of an SM, 0..1; NaN counts as 1. A wave takes longer than
    one block once the demand of its blocks exceeds the capacity. Where the launch is unknown: by
    cycles alone.

    >>> few = LaunchVectors(*(np.array([x]) for x in (132.0, 128.0, np.nan, np.nan, 16.0)))
    >>> confined(few, np.array([0.8625]), 0.0625, GpuCapacity(name="", sms=132)).round(2).tolist()
    [14.8]
    """
    if share >= 1.0:
        return np.ones(len(busiest))
    requested = np.where(np.isnan(busiest), 1.0, busiest)
    by_cycles = np.maximum(1.0, requested / share)
    if gpu.sms is None:
        return by_cycles
    all_of_them, few = float(gpu.sms), max(1.0, np.floor(share * gpu.sms))
    spread = np.ceil(np.minimum(launches.blocks, all_of_them * launches.fit) / all_of_them)
    one = requested / np.maximum(spread, 1.0)  # demand of each block
    longer = _waves(launches, one, few) / _waves(launches, one, all_of_them)
    return np.where(np.isnan(longer), by_cycles, np.maximum(longer, 1.0))


def _waves(launches: LaunchVectors, demand: Floats, sms: float) -> Floats:
    """Time of all waves, in times of a block."""
    full = np.floor(launches.blocks / (sms * launches.fit))
    remainder = np.ceil((launches.blocks - full * sms * launches.fit) / sms)
    last = np.where(remainder > 0, np.maximum(1.0, demand * remainder), 0.0)
    return full * np.maximum(1.0, demand * launches.fit) + last


_LABELS = {"issue": "issue slots", "dram": "bandwidth of DRAM", "l1_bandwidth": "bandwidth of L1"}


def unknown(
    demands: Sequence[Demand], vectors: Vectors, *, gpu: GpuCapacity, calibration: Calibration
) -> tuple[str, ...]:
    """Return one sentence per missing value of demands, GPU and calibration."""
    text = (
        *_of_members(demands, vectors),
        *_of_caches(demands, vectors),
        *_of_gpu(vectors, gpu, calibration),
    )
    return tuple(dict.fromkeys(text))


def _of_members(demands: Sequence[Demand], vectors: Vectors) -> Iterator[str]:
    names = (*CYCLES, "dram")
    measured = np.column_stack([vectors.cycles, vectors.dram])
    requested = np.nan_to_num(measured).max(axis=0, initial=0.0) > 0
    wanted = requested | np.array([name in ("issue", "dram") for name in names])
    for demand, has in zip(demands, np.isfinite(measured), strict=True):
        missing = [
            _LABELS.get(name, name)
            for name, one, need in zip(names, has, wanted, strict=True)
            if need > one
        ]
        if missing:
            yield f"{demand.name}: not measured: {', '.join(missing)}"
        if demand.irregular is None:
            yield f"{demand.name}: why its warps wait is not known; taken as irregular"
        if demand.irregular != 0 and demand.warps is None:
            yield f"{demand.name}: warps on a scheduler are not known; taken as one"
        if demand.footprint is None:
            yield (
                f"{demand.name}: launch is not known; its blocks are assumed to find room "
                "beside others"
            )
        if not demand.seconds:
            yield f"{demand.name}: how long it takes alone is not known"


def _of_caches(demands: Sequence[Demand], vectors: Vectors) -> Iterator[str]:
    for label, cached, hits in (
        ("L2", vectors.in_l2, vectors.l2_hit),
        ("L1", vectors.in_l1, vectors.l1_hit),
    ):
        lacks = cached.unknown_reuse | (cached.uses & np.isnan(hits))
        missing = dict.fromkeys(one.name for one, lack in zip(demands, lacks, strict=True) if lack)
        if missing and contended(cached, cached, 1.0)[0, 1]:
            verbs = "reuses there" if len(missing) == 1 else "reuse there"
            yield f"{label}: what {' and '.join(missing)} {verbs} is not known; left out"
    busy = vectors.in_l2.uses & ~(vectors.l2_bandwidth <= 0)
    missing = dict.fromkeys(
        one.name
        for one, lack in zip(demands, busy & np.isnan(vectors.l2_bandwidth), strict=True)
        if lack
    )
    if missing and np.count_nonzero(busy) > 1:
        verb = "take" if len(missing) > 1 else "takes"
        yield f"L2: how much of its bandwidth {' and '.join(missing)} {verb} is not known"


def _of_gpu(vectors: Vectors, gpu: GpuCapacity, calibration: Calibration) -> Iterator[str]:
    if np.isfinite(vectors.launches.blocks).any() and gpu.sms is None:
        yield "the GPU: number of SMs is not known; where blocks go is left out"
    if (
        calibration.measured_on != gpu.name
        and np.count_nonzero(np.nan_to_num(vectors.dram) > 0) > 1
    ):
        of = calibration.measured_on or "another GPU"
        yield (
            f"{gpu.name}: latency of DRAM under load was not measured on it; that of {of} is taken"
        )
    if (
        not l2_measured(gpu, calibration)
        and np.count_nonzero(np.nan_to_num(vectors.l2_bandwidth) > 0) > 1
    ):
        yield f"{gpu.name}: what its L2 can deliver was not measured"
