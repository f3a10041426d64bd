"""Two co-running kernels, one row of numbers each, and their rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np

from tachograph.annexes.share import contention, vectors
from tachograph.annexes.share.contention import DramUse
from tachograph.annexes.share.demand import CYCLES, NOTHING, Calibration, Demand, GpuCapacity
from tachograph.annexes.share.vectors import Vectors, demand_vectors, occupied, of_a_block
from tachograph.catalog.arrays import Floats
from tachograph.catalog.compiled import either
from tachograph.catalog.config import InterferenceOptions

LIMITED = (*CYCLES, "dram", "l2_bandwidth", "l2", "l1")  # resources that both divide
RESOURCES = (*LIMITED, "blocks", "sms")
_DRAM, _L2_BANDWIDTH, _L2, _L1, _BLOCKS, _SMS = range(len(CYCLES), len(RESOURCES))
# Times as long: how rarely a scheduler selects a warp that waits behind others was never published.
STARVED = 100.0
_FELT = 0.995  # a rate above this has no binding resource
_REGULAR = 0.1  # irregular waiting, 0..1, up to which a kernel waits for arithmetic only
_LEAST = 1e-9  # smaller shares count as 0

# places in a row of a kernel: the demand for each of LIMITED; waits elsewhere and in queues, see
# contention; what else it is; its use of an SM, the needs of a block
_KINDS = len(CYCLES)
_WAITS = len(LIMITED)
_STANDS = _WAITS + _KINDS
(_WARPS, _IRREGULAR, _EXPOSED, _BUSIEST, _ALONE, _L2_HIT, _L1_HIT, _L2_TRAFFIC, SECONDS,
 LONGER) = range(_STANDS + _KINDS, _STANDS + _KINDS + 10)  # fmt: skip
_ROOM = 4  # blocks, threads, registers, shared bytes
_TAKES = LONGER + 1
_NEEDS = _TAKES + _ROOM
# places in a row of GPU, calibration and limits
(_CURVATURE, _L2_COST, _L1_COST, _L2_KNEE, _L2_CLIFF, _L1_KNEE, _L1_CLIFF, _LASTING,
 _MOST_SLOWED) = range(9)  # fmt: skip
_HAS = _MOST_SLOWED + 1
_LIMIT = _HAS + _ROOM
# what was not measured and might decide: nothing; of memory, whose queues starve none; of an SM
SURE, UNSURE_OF_MEMORY, UNSURE_OF_SM = 0, 1, 2

Row: TypeAlias = Floats | list[float]
Two: TypeAlias = tuple[float, float]


class Pace(NamedTuple):
    """Rates 0..1 of alone by cycles and room, and by memory, and what binds.

    turn: slowdown where both take turns. waits: none of its blocks finds room beside the other.
    """

    cycles: float
    memory: float
    binding: int
    turn: float
    waits: bool


class CorunRates(NamedTuple):
    """Outcome of one kernel: rate 0..1 of alone on all SMs, slowdown, the worst, what binds.

    waits: as in Pace.
    """

    rate: float
    slowdown: float
    worst: float
    binding: int
    waits: bool


def machine(
    gpu: GpuCapacity,
    calibration: Calibration,
    settings: InterferenceOptions,
    *,
    lasting: bool = False,
) -> Floats:
    """Return GPU, calibration and limits as a row, with the flag for back-to-back launches."""
    known = (
        calibration.dram_curvature, calibration.l2_miss_cost, calibration.l1_miss_cost,
        calibration.l2_knee, calibration.l2_cliff, calibration.l1_knee, calibration.l1_cliff,
        float(lasting), settings.max_slowdown,
    )  # fmt: skip
    limits = [settings.safe_cycles] * _KINDS
    limits += [settings.safe_dram, settings.safe_cycles, 1.0, 1.0]
    return np.array([*known, *vectors.room(gpu), *limits])


def rows(vectors: Vectors, longer: Floats, gpu: GpuCapacity, calibration: Calibration) -> Floats:
    """Return a row per demand; unknown is 0. `longer`: factor on its share of the SMs."""
    requested = np.nan_to_num(vectors.cycles)
    warps = vectors.warps[:, None]
    some = np.where(requested > 0, requested, 1.0)
    waits = contention.elsewhere(some, warps)
    stands = requested / (1.0 + requested / np.where(vectors.counted[:, None], warps, np.inf))
    used = np.nan_to_num(vectors.dram)
    # On a share of the SMs, its time is that of the latency that it has on all of them.
    all_sms = used * longer
    columns: list[Floats] = [
        vectors.warps, vectors.irregular, vectors.exposed, requested.max(axis=1, initial=0.0),
        1.0 + calibration.dram_curvature * all_sms * all_sms,
        _hits(vectors.l2, vectors.l2_hit), _hits(vectors.l1, vectors.l1_hit),
        np.nan_to_num(vectors.l2_traffic), np.nan_to_num(vectors.seconds), longer,
    ]  # fmt: skip
    takes = np.nan_to_num(occupied(vectors.launches, gpu))
    needs = np.nan_to_num(of_a_block(vectors.launches))
    demands = np.nan_to_num(vectors.measured)
    return np.column_stack([demands, waits, stands, *columns, takes, needs])


def _hits(filled: Floats, hit: Floats) -> Floats:
    """Hit rates; 0 (nothing can lower it) if rate or footprint is unknown."""
    return np.where(np.isfinite(filled), np.nan_to_num(hit), 0.0)


@either
def total_demand(one: Row, other: Row, meet: bool, place: int) -> float:
    """Return the demand of both for one of LIMITED; in an SM where they do not meet, the higher."""
    if meet or (place >= _KINDS and place != _L1):
        return one[place] + other[place]
    return max(one[place], other[place])


@either
def at_limit(one: Row, other: Row, machine: Row, meet: bool, place: int) -> bool:
    """Return whether the demand of both for one of LIMITED reaches its limit."""
    return total_demand(one, other, meet, place) >= machine[_LIMIT + place]


@either
def is_safe(
    one: Row, other: Row, machine: Row, meet: bool, first: CorunRates, second: CorunRates
) -> bool:
    """Return whether no resource reaches its limit, and at the worst neither is slowed too much."""
    safe = max(first.worst, second.worst) <= machine[_MOST_SLOWED]
    safe = safe and not (first.waits or second.waits)
    safe = safe and one[LONGER] <= 1.0 and other[LONGER] <= 1.0
    for place in range(len(LIMITED)):
        safe = safe and not at_limit(one, other, machine, meet, place)
    return safe


@either
def _served_first(one: Row, other: Row, kind: int) -> bool:
    """Return whether a kernel is scheduled before another that needs cycles of the same kind.

    It is if it needs much more; or if it waits for arithmetic only and the other does not: a
    scheduler continues with the ready warp. Published for a copy beside arithmetic that needs every
    slot, which gets none (Table 3, IPC 4); measured for a matrix product beside multiplications.
    """
    requested, mine = one[kind], other[kind]
    if requested > contention.DOMINANCE * mine:
        return True
    return requested >= mine and one[_IRREGULAR] <= _REGULAR < other[_IRREGULAR]


@either
def _cycles_rate(own: Row, other: Row, kind: int) -> float:
    """Return the rate by cycles of one kind, which both need."""
    requested = other[kind]
    dominant, peers, standing = 0.0, 0.0, other[_STANDS + kind]
    if _served_first(other, own, kind):
        dominant, standing = requested, requested
    elif not _served_first(own, other, kind):
        peers = requested
    return contention.cycles_rate(
        own[kind], dominant, peers, standing, own[_WAITS + kind], own[_WARPS], own[_IRREGULAR]
    )


@either
def _dram_use(own: Row, other: Row, machine: Row) -> tuple[DramUse, float]:
    """Return the use of DRAM, including traffic that L2 loses beside `other`.

    Also how many times longer it takes by the latency of these misses.
    """
    used, longer = own[_DRAM], 1.0
    if own[_L2_HIT] > 0.0 and other[_L2] > 0.0:
        left = contention.hits_left(
            own[_L2_HIT], own[_L2], other[_L2], machine[_L2_KNEE], machine[_L2_CLIFF]
        )
        longer = contention.miss_latency(own[_L2_HIT], left, machine[_L2_COST], own[_EXPOSED])
        used = (used + own[_L2_TRAFFIC] * (own[_L2_HIT] - left)) / longer
    used = used if used > _LEAST else 0.0
    waits = used / own[_BUSIEST] if own[_BUSIEST] > used else 1.0
    return (used, waits, own[_ALONE]), longer


@either
def _pace(
    own: Row, other: Row, machine: Row, meet: bool, dram: DramUse, longer: float, latency: float
) -> Pace:
    """Return the rates of `own` beside `other`, and the bottleneck.

    `meet`: whether they meet in SMs. `dram`, `longer`: see `_dram_use`. `latency`: of DRAM while
    both run.
    """
    cycles, memory, binding = 1.0, 1.0, NOTHING
    if meet:
        for kind in range(_KINDS):
            if own[kind] > 0.0 and other[kind] > 0.0:
                rate = _cycles_rate(own, other, kind)
                if rate < cycles:
                    cycles, binding = rate, kind
    used, waits, alone = dram
    if used > 0.0:
        memory = contention.dram_rate(waits, alone, latency)
        binding = _DRAM if memory < cycles else binding
    if longer > 1.0:
        memory /= longer
        binding = _L2 if memory < cycles else binding
    busy = own[_L2_BANDWIDTH] + other[_L2_BANDWIDTH]
    if own[_L2_BANDWIDTH] > 0.0 and busy * memory > 1.0:
        memory = 1.0 / busy
        binding = _L2_BANDWIDTH if memory < cycles else binding
    if meet and own[_L1_HIT] > 0.0 and other[_L1] > 0.0:
        left = contention.hits_left(
            own[_L1_HIT], own[_L1], other[_L1], machine[_L1_KNEE], machine[_L1_CLIFF]
        )
        rate = 1.0 / contention.miss_latency(own[_L1_HIT], left, machine[_L1_COST], own[_EXPOSED])
        binding = _L1 if rate < min(cycles, memory) else binding
        memory = min(memory, rate)
    shut_out = meet and _shut_out(own, other, machine)
    if shut_out:
        cycles, binding = 0.0, _BLOCKS
    binding = binding if min(cycles, memory) < _FELT else NOTHING
    return Pace(cycles, memory, binding, _in_turn(own, other, machine, shut_out), shut_out)


@either
def _shut_out(own: Row, other: Row, machine: Row) -> bool:
    """Return whether no block fits on an SM beside the other; unknown counts as fitting."""
    if other[_TAKES] <= 0.0:
        return False
    full = False
    for place in range(_ROOM):
        full |= own[_NEEDS + place] + other[_TAKES + place] > machine[_HAS + place]  # NaN: unknown
    return full


@either
def _in_turn(own: Row, other: Row, machine: Row, waits: bool) -> float:
    """Return the slowdown if both take turns; `waits`: it is shut out.

    Launches that follow each other without end take turns only for room, and share cycles equally.
    """
    both_known = own[SECONDS] > 0.0 and other[SECONDS] > 0.0
    if both_known and (waits or machine[_LASTING] == 0.0):
        return 1.0 + other[SECONDS] / own[SECONDS]
    return 2.0


@either
def _longest(pace: Pace, machine: Row, take_turns: bool) -> float:
    """Return the upper bound of slowdown by waiting for cycles and room.

    `take_turns`: both wait for each other.
    """
    return pace.turn if pace.waits or take_turns or machine[_LASTING] == 0.0 else STARVED


@either
def _times_longer(rate: float, most: float) -> float:
    """Return the slowdown at a rate 0..1 of alone; `most`: see `_longest`."""
    return most if rate * most <= 1.0 else 1.0 / rate


@either
def _least_rate(own: Row, other: Row, meet: bool, used: float, other_uses: float) -> float:
    """Return the rate 0..1 of alone if served last, with all stalls irregular.

    `used`, `other_uses`: shares of DRAM.
    """
    least = 1.0
    if meet:
        for kind in range(_KINDS):
            if own[kind] > 0.0 and other[kind] > 0.0:
                left = max(1.0 - other[kind], 0.0)
                rate = contention.through(own[kind], own[_WAITS + kind], own[_WARPS], left)
                least = min(least, rate)
    if used > 0.0:
        least = min(least, max(1.0 - other_uses, 0.0) / used)
    return least


@either
def _outcome(
    own: Row, machine: Row, unsure: int, pace: Pace, take_turns: bool, least: float
) -> CorunRates:
    """Return the outcome at a pace; `least`: see `_least_rate`."""
    cycles, memory, binding, turn, waits = pace
    longer = own[LONGER]
    rate = min(1.0 / turn if take_turns else cycles, memory) / longer
    slowest = _times_longer(cycles, _longest(pace, machine, take_turns))
    slowdown = max(slowest, 1.0 / memory) * longer
    if longer * max(min(cycles, memory), 1e-9) > 1.0:
        binding = _SMS
    most = _longest(pace, machine, False)
    worst = max(slowdown, _times_longer(0.0 if waits else least, most) * longer)
    if unsure == UNSURE_OF_SM:
        worst = max(worst, most)
    elif unsure == UNSURE_OF_MEMORY:
        worst = max(worst, turn)
    return CorunRates(rate, slowdown, worst, binding, waits)


@either
def run_pair(
    one: Row, other: Row, machine: Row, meet: bool, unsure: int
) -> tuple[CorunRates, CorunRates]:
    """Return the outcome of each of two kernels while both run.

    `meet`: whether they meet in SMs. `unsure`: what was not measured and might decide; the worst is
    then that of being served last, or in turn.
    """
    dram, longer = _dram_use(one, other, machine)
    other_dram, other_longer = _dram_use(other, one, machine)
    latency = contention.dram_latency(dram, other_dram, machine[_CURVATURE])
    first = _pace(one, other, machine, meet, dram, longer, latency)
    second = _pace(other, one, machine, meet, other_dram, other_longer, latency)
    take_turns = first.cycles * first.turn <= 1.0 and second.cycles * second.turn <= 1.0
    least = _least_rate(one, other, meet, dram[0], other_dram[0])
    other_least = _least_rate(other, one, meet, other_dram[0], dram[0])
    return (
        _outcome(one, machine, unsure, first, take_turns, least),
        _outcome(other, machine, unsure, second, take_turns, other_least),
    )


@either
def until_both_ended(seconds: Two, shared: Two, alone: Two) -> float:
    """Return the time until both end: together first, then the longer one alone.

    Rates 0..1, one above 0.

    >>> until_both_ended((1.0, 1.0), (1.0, 0.5), (1.0, 1.0))
    1.5
    """
    first = 1 if seconds[0] * shared[1] > seconds[1] * shared[0] else 0
    last = 1 - first
    end = seconds[first] / shared[first]
    return end + max(seconds[last] - end * shared[last], 0.0) / alone[last]


_FEWEST = 1e-6  # below the share of one SM on any GPU
_NARROWER = 1e-9  # than a share with an SM more


def confine(demands: Vectors, share: float, gpu: GpuCapacity) -> tuple[Vectors, Floats]:
    """Return demands on a `share` 0..1 of the SMs, and the factor on their run time alone.

    Demand on these SMs is higher, on DRAM lower in the same time.
    """
    share = max(share, _FEWEST)
    if share >= 1.0:
        return demands, np.ones(len(demands.names))
    longer = vectors.confined(demands.launches, _busiest(demands), share, gpu)
    fuller = np.minimum(1.0, demands.cycles / (share * longer[:, None]))
    less = {
        name: getattr(demands, name) / longer for name in ("dram", "l2_bandwidth", "l2_traffic")
    }
    return replace(demands, cycles=fuller, **less), longer


def least_on_sms(demands: Sequence[Demand], gpu: GpuCapacity, calibration: Calibration) -> Floats:
    """Return the relative time of each on 0, 1, 2 .. SMs, alone: (rows, SMs).

    0 on none, which is no share; one column where the number of SMs is unknown.
    """
    requested, count = demand_vectors(demands, gpu, calibration), gpu.sms or 0
    longer, busiest = np.zeros((len(demands), count + 1)), _busiest(requested)
    for sms in range(1, count + 1):
        longer[:, sms] = vectors.confined(
            requested.launches, busiest, (sms + 1) / count * (1 - _NARROWER), gpu
        )
    return longer


def _busiest(demands: Vectors) -> Floats:
    """Highest demand for SM cycles over issue slots and pipelines; NaN: not measured."""
    known = np.isfinite(demands.cycles)
    most: Floats = np.max(np.where(known, demands.cycles, 0.0), axis=1, initial=0.0)
    return np.where(known.any(axis=1), most, np.nan)


@either
def gain_of_two(seconds: Two, shared: Two, alone: Two) -> float:
    """Return sequential time over time together, for two; see `until_both_ended`."""
    return (seconds[0] + seconds[1]) / until_both_ended(seconds, shared, alone)
