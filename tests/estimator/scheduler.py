"""A scheduler simulated slot by slot: warps that wait elsewhere, stand in line, and get one slot
each.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

Wait = Callable[[random.Random], int]  # slots until a warp that was served may stand in line again


def regular(slots: int) -> Wait:
    """Every wait as long."""
    return lambda _: slots


def irregular(mean: float) -> Wait:
    """Waits of geometric length: each slot may be the last, whatever was before."""
    ratio = mean / (1.0 + mean)
    return lambda chance: int(math.log(1.0 - chance.random()) / math.log(ratio)) if mean > 0 else 0


@dataclass(frozen=True)
class Warps:
    count: int
    wait: Wait
    first: bool = False  # served before all others


def served(kernels: list[Warps], *, slots: int = 40_000, seed: int = 1) -> list[float]:
    """Slots that each kernel got, as a share of all; in line, the oldest comes first."""
    chance = random.Random(seed)
    away: list[tuple[int, int]] = []
    lines: tuple[deque[int], deque[int]] = (deque(), deque())
    for place, kernel in enumerate(kernels):
        for _ in range(kernel.count):
            heapq.heappush(away, (int(chance.random() * (1 + kernel.wait(chance))), place))
    got = [0] * len(kernels)
    for now in range(slots):
        while away and away[0][0] <= now:
            place = heapq.heappop(away)[1]
            lines[0 if kernels[place].first else 1].append(place)
        line = lines[0] or lines[1]
        if line:
            place = line.popleft()
            got[place] += 1
            heapq.heappush(away, (now + 1 + kernels[place].wait(chance), place))
    return [count / slots for count in got]
