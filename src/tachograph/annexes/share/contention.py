"""Slowdown of kernels that run at the same time: what one resource takes, and the worst of all.

Each law is continuous and grows with every demand; it is 1 where the other needs nothing. Numbers
are arrays that broadcast against each other, and slowdowns are times as long as alone.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from tachograph.annexes.share.demand import CYCLES, Calibration
from tachograph.annexes.share.kernel_arrays import KernelArrays, residency
from tachograph.catalog.arrays import Floats, Longs

# in the order of the slowdowns that `contention` compares; blocks and sms are not among them
RESOURCES = (*CYCLES, "dram", "l2", "l2_bandwidth", "l1", "power", "blocks", "sms")
# A pipe or a bandwidth is felt so far below the capacity: no demand is the same all the time.
_BEND = 0.14
_FULL = 0.99  # of the issue slots: no kernel leaves less to another
_MOST_BEHIND = 20.0  # times as long behind one that needs every slot: none is starved for good
_LEAST = 1e-9
_HALVINGS = 32
# share of DRAM, share of the time that waits for it, latency alone
DramUse: TypeAlias = tuple[Floats, Floats, Floats]


def summed(own: Floats, other: Floats) -> Floats:
    """Return the slowdown by a pipe or a bandwidth: both get the same share of what they need.

    >>> [round(float(summed(np.array(own), np.array(0.75))), 2) for own in (0.0, 0.1, 0.75)]
    [1.0, 1.0, 1.5]
    """
    longer: Floats = 1.0 + _filled(own + other) - _filled(np.maximum(own, other))
    return longer


def _filled(demand: Floats) -> Floats:
    """Time that a demand takes of a resource of capacity 1: 1 below, the demand above.

    Without a corner: from a little below 1 to as much above it rises as a parabola.
    """
    bent = np.clip(demand - (1.0 - _BEND), 0.0, 2.0 * _BEND)
    time: Floats = 1.0 + bent * bent / (4.0 * _BEND) + np.maximum(demand - (1.0 + _BEND), 0.0)
    return time


def issued(own: Floats, other: Floats, behind: Floats) -> Floats:
    """Return the slowdown by issue slots.

    What both need beyond the slots is work of the one that needs less; it waits as long as its
    share of that work says, and so does the other, in turn. `behind`: -1..1, how much more of the
    waiting of `own` is for memory. A warp that waits for arithmetic alone is ready whenever a slot
    is free, so that its kernel is served first: published for a copy beside multiplications that
    need every slot, which gets next to none.

    >>> float(issued(np.array(0.75), np.array(0.75), np.array(0.0)).round(2))
    1.67
    """
    mine, theirs = np.minimum(own, _FULL), np.minimum(other, _FULL)
    excess = np.maximum(mine + theirs - 1.0, 0.0)
    in_turn = 1.0 + excess / np.maximum(np.minimum(mine, theirs), _LEAST)
    last = np.minimum(np.maximum(mine / (1.0 - theirs), 1.0), _MOST_BEHIND)
    longer: Floats = in_turn ** (1.0 - np.abs(behind)) * last ** np.maximum(behind, 0.0)
    return longer


def hits_left(hit: Floats, filled: Floats, others: Floats, knee: float, cliff: float) -> Floats:
    """Return the hit rate 0..1 beside others; `filled`, `others`: see `residency`.

    Hits that remain even if nothing stays have another cause, and remain.

    >>> float(hits_left(np.array(1.0), np.array(0.7), np.array(0.55), 0.9, 1.6).round(2))
    0.5
    """
    alone = residency(filled, knee, cliff)
    together = residency(filled + others, knee, cliff)
    left: Floats = np.where(alone > 0.0, hit * together / np.where(alone > 0.0, alone, 1.0), hit)
    return left


def missed(hit: Floats, left: Floats, cost: float, exposed: Floats) -> Floats:
    """Return the slowdown by fewer hits, where a miss takes the time of `cost` hits.

    `exposed`: share of the time, at most, that waits for memory.

    >>> float(missed(np.array(1.0), np.array(0.5), 2.0, np.array(0.5)))
    1.25
    """
    longer = (1.0 + (1.0 - left) * (cost - 1.0)) / (1.0 + (1.0 - hit) * (cost - 1.0))
    time: Floats = 1.0 + exposed * np.maximum(longer - 1.0, 0.0)
    return time


def dram_latency(one: DramUse, other: DramUse, curvature: float) -> Floats:
    """Return the latency of DRAM under both, over that without load: 1 + c U^2, U at most 1.

    Their demand falls with latency, the load that causes it rises with it: the crossing, by halving
    (Little's law; c from kernels that ran alone).

    >>> copy = (np.array(0.4667), np.array(1.0), 1.0 + 1.254 * np.array(0.4667) ** 2)
    >>> float((dram_latency(copy, copy, 1.254) / copy[2]).round(2))
    1.3
    """
    uses = (one, other)
    highest = np.asarray(1.0 + curvature)
    for load, waits, alone in uses:
        highest = highest + load * alone / np.maximum(waits, _LEAST)
    low, high = np.ones(np.shape(highest)), np.asarray(highest, dtype=np.float64)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        requested = sum(load / _longer_by_dram(waits, alone, middle) for load, waits, alone in uses)
        causes = np.ones(np.shape(middle))
        if curvature > _LEAST:
            causes = np.minimum(np.sqrt((middle - 1.0) / curvature), 1.0)
        above = requested > causes
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return low


def _longer_by_dram(waits: Floats, alone: Floats, latency: Floats) -> Floats:
    """Slowdown of a kernel that waits for DRAM a share `waits` of its time alone."""
    longer: Floats = np.maximum(1.0 + waits * (latency / alone - 1.0), 1.0)
    return longer


def _known_hits(hit: Floats, filled: Floats) -> Floats:
    """Hit rates; 0, which nothing can lower, where rate or footprint is unknown."""
    return np.where(np.isfinite(filled), np.nan_to_num(hit), 0.0)


def _uses_of_dram(
    own: KernelArrays, other: KernelArrays, calibration: Calibration
) -> tuple[DramUse, Floats]:
    """Use of DRAM with what L2 loses beside the other, and the slowdown by these misses."""
    hit = _known_hits(own.l2_hit, own.l2)
    filled, others = np.nan_to_num(own.l2), np.nan_to_num(other.l2)
    hits_beside = hits_left(hit, filled, others, calibration.l2_knee, calibration.l2_cliff)
    slower = missed(hit, hits_beside, calibration.l2_miss_cost, own.exposed)
    alone = np.nan_to_num(own.dram)
    load = (alone + np.nan_to_num(own.l2_traffic) * (hit - hits_beside)) / slower
    waits = np.minimum(load / np.maximum(own.busiest, load + _LEAST), 1.0)
    return (load, waits, 1.0 + calibration.dram_curvature * alone * alone), slower


def _by_l1(
    own: KernelArrays, other: KernelArrays, calibration: Calibration, meet: Floats
) -> Floats:
    hit, filled = _known_hits(own.l1_hit, own.l1), np.nan_to_num(own.l1)
    others = np.nan_to_num(other.l1) * meet
    hits_beside = hits_left(hit, filled, others, calibration.l1_knee, calibration.l1_cliff)
    return missed(hit, hits_beside, calibration.l1_miss_cost, own.exposed)


def contention(
    own: KernelArrays, other: KernelArrays, calibration: Calibration, meet: Floats
) -> tuple[tuple[Floats, Longs], tuple[Floats, Longs]]:
    """Return the slowdown of both while both run, and what binds each, a place in RESOURCES.

    `meet`: share 0..1 of the SMs of the smaller one on which the other is, too. What is not known
    of a kernel slows nobody. Power over the limit slows the clock, whose cube it follows.
    """
    both = ((own, other), (other, own))
    uses = [_uses_of_dram(one, beside, calibration) for one, beside in both]
    latency = dram_latency(uses[0][0], uses[1][0], calibration.dram_curvature)
    by_l2 = summed(np.nan_to_num(own.l2_bandwidth), np.nan_to_num(other.l2_bandwidth))
    by_power = np.cbrt(np.maximum(np.nan_to_num(own.power + other.power), 1.0))
    in_sm = []
    for index in range(len(CYCLES)):
        mine, theirs = (np.nan_to_num(one.cycles[..., index]) for one in (own, other))
        in_sm.append(1.0 + meet * (summed(mine, theirs) - 1.0))
    slowdowns = []
    for (one, beside), ((load, waits, alone), lost) in zip(both, uses, strict=True):
        issue = CYCLES.index("issue")
        mine, theirs = (np.nan_to_num(kernels.cycles[..., issue]) for kernels in (one, beside))
        by_issue = issued(mine, theirs, one.irregular - beside.irregular)
        by_dram = np.where(load > 0.0, _longer_by_dram(waits, alone, latency), 1.0)
        slower = [
            *in_sm,
            by_dram,
            np.where(lost > 1.0, lost * by_dram, 1.0),
            by_l2,
            _by_l1(one, beside, calibration, meet),
            by_power,
        ]
        slower[issue] = 1.0 + meet * (by_issue - 1.0)
        all_of_them = np.stack(np.broadcast_arrays(*slower))
        slowdowns.append((all_of_them.max(axis=0), all_of_them.argmax(axis=0)))
    return slowdowns[0], slowdowns[1]
