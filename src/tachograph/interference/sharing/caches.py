"""Rates of kernels that share a cache: how much of what a kernel comes back to is still there.

A cache that has room for C bytes, and replaces at random, holds of F bytes that are swept again and again the share
h = exp(-(1 - h) F / C). Written for the share of misses, m = 1 - h: F / C = -ln(1 - m) / m, so that a table of m tells
h without solving.
Together all footprints count, alone only one's own; the hit rate that was measured alone falls in that proportion.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tachograph.arrays import Floats
from tachograph.compiled import either

# share of its bytes that a cache gives to data; published of copies alone: their two arrays stay up to 22.5 MB each of
# the H100's 50 MB of L2 (section 4.1.2), up to 108 KB each of 256 KB of L1 (section 4.2.1)
L2_HOLDS = 2 * 22.5 / 50
L1_HOLDS = 2 * 108 / 256
_MOST = 16.0  # times full: all but nothing stays
_PER_TIME = 256  # places of the table, evenly spaced


@lru_cache(maxsize=1)
def table() -> Floats:
    """Return which share stays in a cache that is 1, 1 + 1/256, 1 + 2/256 .. times full."""
    missed = np.append(np.linspace(0.0, 1.0, 4097)[1:-1], 1.0 - np.geomspace(1e-4, 1e-8, 100))
    sizes = np.append(1.0, -np.log1p(-missed) / missed)
    full = np.linspace(1.0, _MOST, round((_MOST - 1.0) * _PER_TIME) + 1)
    kept: Floats = np.interp(full, sizes, np.append(1.0, 1.0 - missed))
    return kept


@either
def stays(filled: float, kept: Floats) -> float:
    """Return which share, 0..1, of what is swept again and again stays in a cache that is `filled` times full.

    >>> [round(float(stays(times, table())), 2) for times in (0.9, 1.8, 3.6)]
    [1.0, 0.27, 0.03]
    """
    place = (filled - 1.0) * _PER_TIME
    if place <= 0.0:
        return 1.0
    if place >= len(kept) - 1:
        return float(kept[-1])
    low = int(place)
    return float(kept[low] + (place - low) * (kept[low + 1] - kept[low]))


@either
def rate(hit: float, filled: float, others: float, cost: float, exposed: float, kept: Floats) -> float:
    """Return the rate of a kernel, 0..1 of that alone.

    `hit`: of sectors, alone, 0..1. `filled`, `others`: footprints, its own and all others', over what the cache has
    room for.
    `cost`: time of a miss over that of a hit. `exposed`: share of its time that waits for memory at most, 0..1.
    `kept`: the table.
    """
    fewer = hit * stays(filled + others, kept) / stays(filled, kept)
    longer = (1.0 + (1.0 - fewer) * (cost - 1.0)) / (1.0 + (1.0 - hit) * (cost - 1.0))
    return 1.0 / (1.0 + exposed * max(longer - 1.0, 0.0))
