"""Rates of kernels that contend for one resource: cycles of an SM, caches, DRAM."""

from __future__ import annotations

from math import sqrt
from typing import TypeAlias

import numpy as np

from tachograph.catalog.arrays import Floats
from tachograph.catalog.compiled import either

# a demand so many times another's is served first, however both wait; errors of published numbers
# do not depend on it
DOMINANCE = 2.0


@either
def granted(own: float, dominant: float, peers: float) -> float:
    """Return the rate, 0..1 of alone, of a kernel that uses all it is granted.

    `dominant`, `peers`: sums of demands of kernels that are served before it, or share with it.

    >>> granted(0.75, 0.0, 0.75), round(granted(0.15, 0.9, 0.0), 3)
    (0.6666666666666666, 0.667)
    """
    left = 1.0 - dominant
    if own + peers <= left:
        return 1.0
    return max(left, 0.0) / (own + peers)


def elsewhere(own: Floats, warps: Floats) -> Floats:
    """Return a warp's waiting time between two visits of the server, in visit times.

    `own` is above 0.

    All N warps together make `own` visits in the time of one: N / own is the time from visit to
    visit. What the visit itself takes, standing in line included, is 1 / (1 - own (N - 1) / N).

    >>> elsewhere(np.array([0.75, 1.0]), np.array([1.0, 8.0])).round(3).tolist()
    [0.333, 0.0]
    """
    return np.maximum(warps / own - 1.0 / (1.0 - own * (warps - 1.0) / warps), 0.0)


@either
def through(own: float, waits: float, warps: float, left: float) -> float:
    """Return the rate (0..1) of a closed queue with `left` of the server's capacity.

    `waits`: see `elsewhere`. Exact for one warp, and for many where the server is full.

    >>> round(through(0.75, 1 / 3, 1.0, 0.5), 3)
    0.571
    """
    away = left * waits
    return (
        warps
        / own
        * 2.0
        * left
        / (away + warps + sqrt((warps - away) * (warps - away) + 4.0 * away))
    )


@either
def cycles_rate(
    own: float,
    dominant: float,
    peers: float,
    others: float,
    waits: float,
    warps: float,
    irregular: float,
) -> float:
    """Return a kernel's rate (0..1 of alone), given the others' demand and `irregular`.

    >>> waits = float(elsewhere(np.array(0.1525), np.array(8.0)))
    >>> [round(cycles_rate(0.1525, 0.8625, 0.0, 0.8625, waits, 8.0, irregular), 3) for irregular in (0.0, 1.0)]
    [0.902, 0.705]
    """
    regular = granted(own, dominant, peers)
    if irregular == 0.0:
        return regular
    queued = through(own, waits, warps, max(own * regular, 1.0 - others))
    return min(regular, regular + irregular * (queued - regular))


@either
def residency(filled: float, knee: float, cliff: float) -> float:
    """Return the share of a repeatedly swept set that stays cached: 1 up to `knee`, 0 from `cliff`.

    `filled`: bytes swept, over the size of the cache; `knee` and `cliff` in the same unit. Between
    them it falls evenly: nearer to replacement of the least recently used, which keeps nothing from
    1 on, than to random replacement.

    >>> [round(residency(times, 0.9, 1.6), 2) for times in (0.9, 1.25, 1.6)]
    [1.0, 0.5, 0.0]
    """
    if filled <= knee:
        return 1.0
    if filled >= cliff:
        return 0.0
    return (cliff - filled) / (cliff - knee)


@either
def hits_left(hit: float, filled: float, others: float, knee: float, cliff: float) -> float:
    """Return the hit rate 0..1 when sharing; `hit`: alone; `filled`, `others`: see `residency`.

    Hits that would remain even without any resident swept bytes have another cause, and remain.

    >>> round(hits_left(1.0, 0.7, 0.55, 0.9, 1.6), 2), hits_left(0.5, 2.0, 2.0, 0.9, 1.6)
    (0.5, 0.5)
    """
    alone = residency(filled, knee, cliff)
    return hit if alone <= 0.0 else hit * residency(filled + others, knee, cliff) / alone


@either
def miss_latency(hit: float, left: float, cost: float, exposed: float) -> float:
    """Return the relative time of a kernel when its hit rate drops from `hit` to `left`.

    `cost`: time of a miss over that of a hit. `exposed`: share of its time that waits for memory at
    most, 0..1.

    >>> miss_latency(1.0, 0.0, 2.0, 1.0), miss_latency(1.0, 0.5, 2.0, 0.5)
    (2.0, 1.25)
    """
    longer = (1.0 + (1.0 - left) * (cost - 1.0)) / (1.0 + (1.0 - hit) * (cost - 1.0))
    return 1.0 + exposed * max(longer - 1.0, 0.0)


# of a kernel: share of DRAM used, share of its time that waits for it, latency alone
DramUse: TypeAlias = tuple[float, float, float]
_STEPS = 60  # of Newton's method, at most: a handful is enough
_NONE = 1e-9  # smaller curvatures or steps count as 0


@either
def dram_latency(one: DramUse, other: DramUse, curvature: float) -> float:
    """Return DRAM latency under two kernels.

    Newton's method from below: demand falls with latency and is convex, the load rises and is
    concave.

    >>> copy = (0.6918, 1.0, 1.0 + 0.571 * 0.6918**2)
    >>> round(dram_latency(copy, copy, 0.571) / copy[2], 3)
    1.384
    """
    requested, _ = _load_at(one, other, 1.0 + curvature)  # the least, unless DRAM is full
    full = requested >= 1.0
    if requested <= 0.0 or (curvature < _NONE and not full):
        return 1.0
    above = curvature if full else curvature * requested * requested
    for _ in range(_STEPS):
        requested, slope = _load_at(one, other, 1.0 + above)
        used = 1.0 if full else sqrt(above / curvature)
        step = (requested - used) / ((0.0 if full else 0.5 * used / above) - slope)
        above += max(step, 0.0)
        if step <= _NONE * _NONE + 1e-15 * above:
            break
    return 1.0 + above


@either
def _load_at(one: DramUse, other: DramUse, at: float) -> tuple[float, float]:
    """Return the share of DRAM that both use at a latency, and how that grows with it."""
    requested, slope = 0.0, 0.0
    for used, waits, alone in (one, other):
        going = dram_rate(waits, alone, at)
        requested += used * going
        slope -= used * going * going * waits / alone
    return requested, slope


@either
def dram_rate(waits: float, alone: float, together: float) -> float:
    """Return the rate (0..1 of alone) of a kernel that waits for DRAM a share `waits` of the time.

    `alone`, `together`: latencies.

    >>> dram_rate(1.0, 1.25, 2.5), dram_rate(0.5, 1.25, 2.5), dram_rate(0.0, 1.25, 2.5)
    (0.5, 0.6666666666666666, 1.0)
    """
    return min(1.0, 1.0 / (1.0 + waits * (together / alone - 1.0)))
