"""Rates of kernels that meet in an SM: what is left of a server, and how much of it a kernel's warps can use.

A server hands out cycles: issue slots, or those of a pipeline. Demands and what is left of it are 0..1 of all there is.

Who is served: nobody is slowed by capacity while the sum of demands is at most 1. Above that kernels share equally,
unless one asks for more than `DOMINANCE` times what another asks: its warps are always eligible, greedy scheduling
goes on with them, and the other gets what is left. How much of what is left a kernel uses: one whose warps wait for
equal times interleaves them without loss; one whose warps wait for irregular times is a closed queue of N customers
(machine repairman): now and then all its warps wait elsewhere, now and then several stand in line. Who is served first
takes from it all it asks, d; anyone else of M warps d / (1 + d / M), for a warp does not wait for itself.
Source: Elvinger et al. 2025, sections 4.2.2 and 4.2.3; Schweitzer's approximation of closed queues (1979).
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from tachograph.arrays import Floats
from tachograph.compiled import either

# a demand so many times another's is served first; any value of 1.3 to 5.6 keeps the errors of published numbers low
DOMINANCE = 2.0


@either
def granted(own: float, dominant: float, peers: float) -> float:
    """Return the rate, 0..1 of that alone, of a kernel that uses all it is given.

    `dominant`, `peers`: sums of what kernels ask that are served before it, or share with it.

    >>> granted(0.75, 0.0, 0.75), round(granted(0.15, 0.9, 0.0), 3)
    (0.6666666666666666, 0.667)
    """
    left = 1.0 - dominant
    if own + peers <= left:
        return 1.0
    return max(left, 0.0) / (own + peers)


def elsewhere(own: Floats, warps: Floats) -> Floats:
    """Return how long a warp waits elsewhere between two visits of the server, in times of a visit, `own` above 0.

    All N warps together make `own` visits in the time of one: N / own is the time from visit to visit. What the visit
    itself takes, standing in line included, is 1 / (1 - own (N - 1) / N).

    >>> elsewhere(np.array([0.75, 1.0]), np.array([1.0, 8.0])).round(3).tolist()
    [0.333, 0.0]
    """
    return np.maximum(warps / own - 1.0 / (1.0 - own * (warps - 1.0) / warps), 0.0)


@either
def through(own: float, waits: float, warps: float, left: float) -> float:
    """Return the rate of a closed queue at a server of which `left` is left, 0..1 of that with all of it.

    `waits`: see `elsewhere`. Exact for one warp, and for many where the server is full.

    >>> round(through(0.75, 1 / 3, 1.0, 0.5), 3)
    0.571
    """
    away = left * waits
    return warps / own * 2.0 * left / (away + warps + sqrt((warps - away) * (warps - away) + 4.0 * away))


@either
def rate(
    own: float, dominant: float, peers: float, others: float, waits: float, warps: float, irregular: float
) -> float:
    """Return the rate of a kernel, 0..1 of that alone. `others`: what all others take from it, `irregular`: 0..1.

    >>> waits = float(elsewhere(np.array(0.1525), np.array(8.0)))
    >>> [round(rate(0.1525, 0.8625, 0.0, 0.8625, waits, 8.0, irregular), 3) for irregular in (0.0, 1.0)]
    [0.902, 0.705]
    """
    regular = granted(own, dominant, peers)
    if irregular == 0.0:
        return regular
    queued = through(own, waits, warps, max(own * regular, 1.0 - others))
    return min(regular, regular + irregular * (queued - regular))
