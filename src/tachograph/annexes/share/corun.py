"""State of two co-running kernels, one row each, and their rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from tachograph.annexes.share import contention, vectors
from tachograph.annexes.share.demand import CYCLES, NOTHING, Calibration, Demand, GpuCapacity
from tachograph.annexes.share.vectors import Vectors, demand_vectors, occupied, of_a_block
from tachograph.catalog.arrays import Floats
from tachograph.catalog.compiled import either

RESOURCES = (*CYCLES, "dram", "l2_bandwidth", "l2", "l1", "blocks", "sms")
_DRAM, _L2_BANDWIDTH, _L2, _L1, _BLOCKS, _SMS = range(len(CYCLES), len(RESOURCES))
# Times as long: how rarely a scheduler selects a warp that waits behind others was never published.
STARVED = 100.0
_FELT = 0.995  # a rate above this has no binding resource
_REGULAR = 0.1  # irregular waiting, 0..1, up to which a kernel waits for arithmetic only
_LEAST = 1e-9  # smaller shares count as 0

# places in a row OWN: demand; waits elsewhere and in queues, see contention; use of an SM, needs of
# a block
_KINDS = len(CYCLES)
_WAITS, _STANDS = _KINDS, 2 * _KINDS
(_WARPS, _IRREGULAR, _EXPOSED, _BUSIEST, _USED, _ALONE, _L2_FILLS, _L2_HIT, _L1_FILLS, _L1_HIT, _L2_BUSY, _L2_TRAFFIC,
 SECONDS, LONGER) = range(3 * _KINDS, 3 * _KINDS + 14)  # fmt: skip
_ROOM = 4  # blocks, threads, registers, shared bytes
_TAKES = LONGER + 1
_NEEDS = _TAKES + _ROOM
OWN = _NEEDS + _ROOM
# places in a row BESIDE: what the other one takes, and the latency of DRAM while both run
_DOMINANT, _PEERS, _ALL, _STANDING = 0, _KINDS, 2 * _KINDS, 3 * _KINDS
(LATENCY, _STRETCHED, _OTHER_L2_BUSY, _OTHER_L2, _OTHER_L1, _TURNS) = range(
    4 * _KINDS, 4 * _KINDS + 6
)
_TAKEN = _TURNS + 1
BESIDE = _TAKEN + _ROOM
# places in a row OUT, results of each: rate 0..1 of alone on all SMs, slowdown, what binds, whether
# room lacks
RATE, SLOWDOWN, WORST, BINDING, SHUT_OUT, _CYCLES, _MEMORY, _TURN, _LONGER = range(9)
OUT = 9
# places in a row of GPU and calibration
(_CURVATURE, _L2_COST, _L1_COST, _L2_KNEE, _L2_CLIFF, _L1_KNEE, _L1_CLIFF, _DOMINANCE, _LASTING,
 _HAS) = range(10)  # fmt: skip
# what was not measured and might decide: nothing; of memory, whose queues starve none; of an SM
SURE, UNSURE_OF_MEMORY, UNSURE_OF_SM = 0, 1, 2

Row: TypeAlias = Floats | list[float]
Two: TypeAlias = tuple[float, float]


def machine(
    gpu: GpuCapacity,
    calibration: Calibration,
    *,
    dominance: float = contention.DOMINANCE,
    lasting: bool = False,
) -> Floats:
    """Return GPU and calibration as a row, with the flag for back-to-back launches."""
    known = (
        calibration.dram_curvature, calibration.l2_miss_cost, calibration.l1_miss_cost, calibration.l2_knee,
        calibration.l2_cliff, calibration.l1_knee, calibration.l1_cliff, dominance, float(lasting),
    )  # fmt: skip
    return np.array([*known, *vectors.room(gpu)])


def rows(vectors: Vectors, longer: Floats, gpu: GpuCapacity, calibration: Calibration) -> Floats:
    """Return a row OWN per demand; unknown is 0. `longer`: factor on its share of the SMs."""
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
        used, 1.0 + calibration.dram_curvature * all_sms * all_sms,
        np.nan_to_num(vectors.l2), _hits(vectors.l2, vectors.l2_hit),
        np.nan_to_num(vectors.l1), _hits(vectors.l1, vectors.l1_hit),
        np.nan_to_num(vectors.l2_bandwidth), np.nan_to_num(vectors.l2_traffic),
        np.nan_to_num(vectors.seconds), longer,
    ]  # fmt: skip
    takes = np.nan_to_num(occupied(vectors.launches, gpu))
    needs = np.nan_to_num(of_a_block(vectors.launches))
    return np.column_stack([requested, waits, stands, *columns, takes, needs])


def _hits(filled: Floats, hit: Floats) -> Floats:
    """Hit rates; 0 (nothing can lower it) if rate or footprint is unknown."""
    return np.where(np.isfinite(filled), np.nan_to_num(hit), 0.0)


@either
def _served_first(one: Row, requested: float, other: Row, mine: float, dominance: float) -> bool:
    """Return whether a kernel that needs `requested` is scheduled before one that needs `mine`.

    It is if it needs much more; or if it waits for arithmetic only and the other does not: a
    scheduler continues with the ready warp. Published for a copy beside arithmetic that needs every
    slot, which gets none (Table 3, IPC 4); measured for a matrix product beside multiplications.
    """
    if requested > dominance * mine:
        return True
    return requested >= mine and one[_IRREGULAR] <= _REGULAR < other[_IRREGULAR]


@either
def add(beside: Row, own: Row, other: Row, machine: Row) -> None:
    """Add the load of `other` to what is beside `own`."""
    dominance = machine[_DOMINANCE]
    for kind in range(_KINDS):
        mine, requested = own[kind], other[kind]
        if _served_first(other, requested, own, mine, dominance):
            beside[_DOMINANT + kind] = beside[_STANDING + kind] = requested
        else:
            beside[_STANDING + kind] = other[_STANDS + kind]
            if not _served_first(own, mine, other, requested, dominance):
                beside[_PEERS + kind] = requested
        beside[_ALL + kind] = requested
    beside[_OTHER_L2_BUSY] = other[_L2_BUSY]
    beside[_OTHER_L2] = other[_L2_FILLS]
    beside[_OTHER_L1] = other[_L1_FILLS]
    both_known = own[SECONDS] > 0.0 and other[SECONDS] > 0.0
    beside[_TURNS] = other[SECONDS] / own[SECONDS] if both_known else 1.0
    for place in range(_ROOM):
        beside[_TAKEN + place] = other[_TAKES + place]


@either
def _put_dram(of_all: Row, place: int, own: Row, beside: Row, machine: Row) -> None:
    """Write one kernel's input to `dram` in a row of all, including traffic that L2 loses.

    How many times longer it takes by the latency of these misses is left in `beside`.
    """
    used, longer = own[_USED], 1.0
    if own[_L2_HIT] > 0.0 and beside[_OTHER_L2] > 0.0:
        left = contention.hits_left(
            own[_L2_HIT], own[_L2_FILLS], beside[_OTHER_L2], machine[_L2_KNEE], machine[_L2_CLIFF]
        )
        longer = contention.miss_latency(own[_L2_HIT], left, machine[_L2_COST], own[_EXPOSED])
        used = (used + own[_L2_TRAFFIC] * (own[_L2_HIT] - left)) / longer
    used = used if used > _LEAST else 0.0
    beside[_STRETCHED] = longer
    of_all[contention.PARTS * place] = used
    of_all[contention.PARTS * place + 1] = used / own[_BUSIEST] if own[_BUSIEST] > used else 1.0
    of_all[contention.PARTS * place + 2] = own[_ALONE]


@either
def pace(
    own: Row, beside: Row, machine: Row, meet: bool, used: float, waits: float
) -> tuple[float, float, int]:
    """Return the rate by cycles and room, the rate by memory (0..1 of alone), and the bottleneck.

    `meet`: whether it meets the others in SMs. `used`, `waits`: its share of DRAM, and of the time
    that it waits there.
    """
    cycles, memory, binding = 1.0, 1.0, NOTHING
    if meet:
        for kind in range(_KINDS):
            if own[kind] > 0.0 and beside[_ALL + kind] > 0.0:
                rate = contention.cycles_rate(
                    own[kind], beside[_DOMINANT + kind], beside[_PEERS + kind], beside[_STANDING + kind],
                    own[_WAITS + kind], own[_WARPS], own[_IRREGULAR],
                )  # fmt: skip
                if rate < cycles:
                    cycles, binding = rate, kind
    if used > 0.0:
        memory = contention.dram_rate(waits, own[_ALONE], beside[LATENCY])
        binding = _DRAM if memory < cycles else binding
    if beside[_STRETCHED] > 1.0:
        memory /= beside[_STRETCHED]
        binding = _L2 if memory < cycles else binding
    busy = own[_L2_BUSY] + beside[_OTHER_L2_BUSY]
    if own[_L2_BUSY] > 0.0 and busy * memory > 1.0:
        memory = 1.0 / busy
        binding = _L2_BANDWIDTH if memory < cycles else binding
    if meet and own[_L1_HIT] > 0.0 and beside[_OTHER_L1] > 0.0:
        left = contention.hits_left(
            own[_L1_HIT], own[_L1_FILLS], beside[_OTHER_L1], machine[_L1_KNEE], machine[_L1_CLIFF]
        )
        rate = 1.0 / contention.miss_latency(own[_L1_HIT], left, machine[_L1_COST], own[_EXPOSED])
        binding = _L1 if rate < min(cycles, memory) else binding
        memory = min(memory, rate)
    if meet and shut_out(own, beside, machine):
        cycles, binding = 0.0, _BLOCKS
    return cycles, memory, binding if min(cycles, memory) < _FELT else NOTHING


@either
def shut_out(own: Row, beside: Row, machine: Row) -> bool:
    """Return whether no block fits on an SM beside the others; unknown counts as fitting."""
    if beside[_TAKEN] <= 0.0:
        return False
    full = False
    for place in range(_ROOM):
        full |= own[_NEEDS + place] + beside[_TAKEN + place] > machine[_HAS + place]  # NaN: unknown
    return full


@either
def in_turn(turns: float, machine: Row, waits: bool) -> float:
    """Return the slowdown if both take turns; `waits`: it is shut out.

    `turns`: time of the other over its own. Launches that follow each other without end take turns
    only for room, and share cycles equally.
    """
    return 1.0 + (turns if waits or machine[_LASTING] == 0.0 else 1.0)


@either
def longest(turns: float, machine: Row, waits: bool, take_turns: bool) -> float:
    """Return the upper bound of slowdown by waiting for cycles and room.

    `take_turns`: all wait for each other.
    """
    return turns if waits or take_turns or machine[_LASTING] == 0.0 else STARVED


@either
def times_longer(rate: float, most: float) -> float:
    """Return the slowdown at a rate 0..1 of alone; `most`: see `longest`."""
    return most if rate * most <= 1.0 else 1.0 / rate


@either
def bound_by(binding: int, cycles: float, memory: float, longer: float) -> int:
    """Return the index of the binding resource, including the share of SMs."""
    return _SMS if longer * max(min(cycles, memory), 1e-9) > 1.0 else binding


@either
def least_rate(own: Row, beside: Row, meet: bool, used: float, others_use: float) -> float:
    """Return the rate 0..1 of alone if served last, with all stalls irregular.

    `used`, `others_use`: shares of DRAM.
    """
    least = 1.0
    if meet:
        for kind in range(_KINDS):
            others = beside[_ALL + kind]
            if own[kind] > 0.0 and others > 0.0:
                left = max(1.0 - others, 0.0)
                least = min(
                    least, contention.through(own[kind], own[_WAITS + kind], own[_WARPS], left)
                )
    if used > 0.0:
        least = min(least, max(1.0 - others_use, 0.0) / used)
    return least


@either
def run_pair(
    one: Row,
    other: Row,
    machine: Row,
    meet: bool,
    unsure: int,
    beside: Sequence[Row] | Floats,
    of_all: Row,
    out: Row,
) -> None:
    """Fill in the results of two kernels, rows OWN, while both run.

    `machine`: row of GPU and calibration. `meet`: whether they meet in SMs. `unsure`: what was not
    measured and might decide; the worst is then that of being served last, or in turn. `beside`: a
    row BESIDE of zeros for each. `of_all`: a row for the DRAM of both. `out`: rows OUT of both, one
    behind the other.
    """
    own = (one, other)
    for place in range(2):
        add(beside[place], own[place], own[1 - place], machine)
        _put_dram(of_all, place, own[place], beside[place], machine)
    loaded = contention.dram_latency(of_all, 2, machine[_CURVATURE])
    take_turns = True
    for place in range(2):
        mine, sums, at = own[place], beside[place], OUT * place
        sums[LATENCY] = loaded
        part = contention.PARTS * place
        cycles, memory, binding = pace(mine, sums, machine, meet, of_all[part], of_all[part + 1])
        waits = binding == _BLOCKS
        turn = in_turn(sums[_TURNS], machine, waits)
        take_turns = take_turns and cycles * turn <= 1.0
        out[at + _CYCLES], out[at + _MEMORY], out[at + _TURN] = cycles, memory, turn
        out[at + BINDING], out[at + SHUT_OUT], out[at + _LONGER] = binding, waits, mine[LONGER]
    for place in range(2):
        mine, sums, at = own[place], beside[place], OUT * place
        cycles, memory, turn, longer = (
            out[at + _CYCLES],
            out[at + _MEMORY],
            out[at + _TURN],
            out[at + _LONGER],
        )
        waits = out[at + SHUT_OUT] > 0.0
        most = longest(turn, machine, waits, take_turns)
        out[at + RATE] = min(1.0 / turn if take_turns else cycles, memory) / longer
        out[at + SLOWDOWN] = max(times_longer(cycles, most), 1.0 / memory) * longer
        out[at + BINDING] = bound_by(int(out[at + BINDING]), cycles, memory, longer)
        least = 0.0
        if not waits:
            used, others_use = (
                of_all[contention.PARTS * place],
                of_all[contention.PARTS * (1 - place)],
            )
            least = least_rate(mine, sums, meet, used, others_use)
        most = longest(turn, machine, waits, False)
        worst = max(out[at + SLOWDOWN], times_longer(least, most) * longer)
        if unsure == UNSURE_OF_SM:
            worst = max(worst, most)
        elif unsure == UNSURE_OF_MEMORY:
            worst = max(worst, turn)
        out[at + WORST] = worst


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
