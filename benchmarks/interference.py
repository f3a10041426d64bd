"""Prints how long the estimator takes: all pairs of 1,000 kernels, one pair alone, and a plain loop
over pairs.

Everything is measured of the kernels: all kinds of cycles, DRAM, both caches, launches. Times are
medians.
"""

from __future__ import annotations

import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable

from tachograph.annexes.share.demand import CYCLES, H100_NVL, Demand, Footprint
from tachograph.annexes.share.estimate import estimate, matrix

GOAL_S = 5.0  # of processor time
KERNELS = 1000
PAIRS = 300


def kernel(chance: random.Random, number: int) -> Demand:
    """Return any kernel."""
    return Demand(
        name=f"kernel {number}",
        cycles={name: chance.random() ** 2 for name in CYCLES},
        dram=chance.random() * 0.6,
        irregular=chance.random(),
        launch_s=0.1 + chance.random(),
        l2_hit=chance.random(),
        l2_bytes=6e7 * chance.random(),
        l1_hit=chance.random(),
        l1_bytes=2e5 * chance.random(),
        footprint=Footprint(chance.choice([66, 132, 400]), chance.choice([64, 128, 256]), 32, 0.0),
    )


def median_s(what: Callable[[], object], times: int) -> tuple[float, float]:
    """Return medians of wall time and of processor time."""
    wall, used = [], []
    for _ in range(times):
        begin, began = time.perf_counter(), time.process_time()
        what()
        wall.append(time.perf_counter() - begin)
        used.append(time.process_time() - began)
    return statistics.median(wall), statistics.median(used)


def main() -> int:
    """Print the numbers; 1 when the goal is missed."""
    chance = random.Random(1)
    kernels = [kernel(chance, number) for number in range(KERNELS)]
    wall, used = median_s(lambda: matrix(kernels, gpu=H100_NVL), 3)
    pairs = [(chance.choice(kernels), chance.choice(kernels)) for _ in range(PAIRS)]
    loop, _ = median_s(lambda: [estimate(pair, gpu=H100_NVL) for pair in pairs], 3)
    measured = {
        "benchmark": "interference",
        "python": platform.python_version(),
        "pairs": KERNELS**2,
        "matrix_s": round(wall, 3),
        "matrix_processor_s": round(used, 3),
        "estimate_ms": round(1000 * loop / PAIRS, 3),
        "loop_over_matrix": round(loop / PAIRS * KERNELS**2 / wall),
        "goal_s": GOAL_S,
    }
    print(json.dumps(measured))
    return 0 if used < GOAL_S else 1


if __name__ == "__main__":
    sys.exit(main())
