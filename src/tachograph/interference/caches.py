"""Rates of kernels that share a cache: how much of what a kernel comes back to is still there.

A cache of size C that replaces at random holds, of F bytes swept again and again, the share h = exp(-(1 - h) F / C).
Written for the share of misses, m = 1 - h: F / C = -ln(1 - m) / m, so that a table of m tells h without solving.
Together all footprints count, alone only one's own; the hit rate that was measured alone falls in that proportion.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tachograph.arrays import Floats
from tachograph.compiled import either

_PLACES = 1024


@lru_cache(maxsize=1)
def table() -> Floats:
    """Return footprints over the size of the cache, rising from 1, and below them the share of each that stays."""
    missed = np.linspace(0.0, 1.0, _PLACES + 1)[1:-1]
    return np.array([np.append(1.0, -np.log1p(-missed) / missed), np.append(1.0, 1.0 - missed)])


@either
def stays(filled: float, kept: Floats) -> float:
    """Return which share, 0..1, of what is swept again and again stays in a cache that is `filled` times full.

    >>> [round(float(stays(times, table())), 2) for times in (0.9, 1.8, 3.6)]
    [1.0, 0.27, 0.03]
    """
    sizes, shares = kept[0], kept[1]
    low, high = 0, len(sizes) - 1
    if filled <= sizes[low]:
        return 1.0
    if filled >= sizes[high]:
        return float(shares[high])
    while high - low > 1:
        middle = (low + high) // 2
        if sizes[middle] <= filled:
            low = middle
        else:
            high = middle
    part = (filled - sizes[low]) / (sizes[high] - sizes[low])
    return float(shares[low] + part * (shares[high] - shares[low]))


@either
def rate(hit: float, filled: float, others: float, cost: float, exposed: float, kept: Floats) -> float:
    """Return the rate of a kernel, 0..1 of that alone.

    `hit`: of sectors, alone, 0..1. `filled`, `others`: footprints, its own and all others', over the size of the cache.
    `cost`: time of a miss over that of a hit. `exposed`: share of its time that waits for memory at most, 0..1.
    `kept`: the table.
    """
    fewer = hit * stays(filled + others, kept) / stays(filled, kept)
    longer = (1.0 + (1.0 - fewer) * (cost - 1.0)) / (1.0 + (1.0 - hit) * (cost - 1.0))
    return 1.0 / (1.0 + exposed * max(longer - 1.0, 0.0))
