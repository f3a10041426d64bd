"""The compiled loops over host samples: each touches a counter's samples once, over stretches of one run on a node.

`t`: times of the samples that have the counter, sorted by node and time. A stretch has the samples [low, high) of its
node; its minutes are counted from `zero`, and those from `first` to `last` have the slots from `offset` on.
"""

from __future__ import annotations

import numpy as np

from tachograph.arrays import Floats, Longs
from tachograph.compiled import compiled
from tachograph.reduce.kernel import MINUTE_US


@compiled
def spread(
    t: Longs, level: Floats, low: Longs, high: Longs, start: Longs, end: Longs,
    zero: Longs, first: Longs, last: Longs, offset: Longs, total: Floats, weight: Floats,
) -> None:  # fmt: skip
    """Add to `total` the level from each sample to the next times its seconds, to `weight` the seconds, by minute.

    `level[i]` is that between samples i - 1 and i, NaN where it is not known. Both have to lie in the stretch.
    """
    for k in range(start.shape[0]):
        i = low[k] + np.searchsorted(t[low[k] : high[k]], start[k]) + 1
        while i < high[k] and t[i] < end[k]:
            here, minute = t[i - 1], (t[i - 1] - zero[k]) // MINUTE_US
            while not np.isnan(level[i]) and here < t[i]:
                edge = min(zero[k] + (minute + 1) * MINUTE_US, t[i])
                if first[k] <= minute <= last[k]:
                    slot = offset[k] + minute - first[k]
                    total[slot] += level[i] * (edge - here) * 1e-6
                    weight[slot] += (edge - here) * 1e-6
                here, minute = edge, minute + 1
            i += 1


@compiled
def average(
    t: Longs, value: Floats, low: Longs, high: Longs, start: Longs, end: Longs,
    zero: Longs, first: Longs, last: Longs, offset: Longs, total: Floats, weight: Floats,
) -> None:  # fmt: skip
    """Add to `total` the samples in each minute, to `weight` their number."""
    for k in range(start.shape[0]):
        i = low[k] + np.searchsorted(t[low[k] : high[k]], start[k])
        while i < high[k] and t[i] < end[k]:
            minute = (t[i] - zero[k]) // MINUTE_US
            if first[k] <= minute <= last[k]:
                slot = offset[k] + minute - first[k]
                total[slot] += value[i]
                weight[slot] += 1.0
            i += 1
