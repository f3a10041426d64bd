"""Prints how long `tachograph --help` takes as a new process, beside an interpreter that does
nothing.

One process at a time, the first of each discarded (it may compile bytecode), the median of the
others.
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

GOAL_S = 0.1
RUNS = 15


def median_s(command: Sequence[str]) -> float:
    """Return the median run time of `command` in seconds.

    Errors: CalledProcessError when it fails.
    """
    times = []
    for _ in range(RUNS + 1):
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def main() -> int:
    """Print the numbers; 1 when the goal is missed."""
    help_s = median_s([sys.executable, "-m", "tachograph", "--help"])
    nothing_s = median_s([sys.executable, "-c", "pass"])
    measured = {
        "benchmark": "help_time",
        "python": platform.python_version(),
        "help_s": round(help_s, 4),
        "bare_interpreter_s": round(nothing_s, 4),
        "goal_s": GOAL_S,
        "reached": help_s <= GOAL_S,
    }
    print(json.dumps(measured))
    return 0 if help_s <= GOAL_S else 1


if __name__ == "__main__":
    sys.exit(main())
