"""Prints what judging a fleet costs at each look: the monitor of live views on snapshots of
simulated GPUs.

Snapshots are made before; the time is the processor's, of `Monitor.step` alone, with a full window
of labels and a full ring of history. `usual`: every GPU told something new, nothing happened but
changes of jobs and classes. `same_values`: what was read is what was read before. `worst`: GPUs
that the source named are gone and back at every look.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from tachograph.annexes.watch.live.monitor import Monitor
from tachograph.annexes.watch.live.snapshot import Snapshot
from tachograph.annexes.watch.live.sources.simulated import SimulatedSource
from tachograph.annexes.watch.live.view import GpuHistory
from tachograph.judge.workload.settings import WorkloadSettings

GOAL_MS = 10.0  # of 1,000 GPUs: a fifth of what one look a second may cost
HISTORY = 600


def looks(gpus: int, number: int) -> Iterator[Snapshot]:
    """One snapshot a second."""
    t = [1e9]
    source = SimulatedSource(gpus, clock=lambda: t[0])
    for _ in range(number):
        t[0] += 1
        yield source.read()


def without_some(snapshot: Snapshot, gone: int) -> Snapshot:
    """The snapshot without its last GPUs."""
    left = len(snapshot.gpus) - gone
    values = {name: column[:left] for name, column in snapshot.values.items()}
    return replace(
        snapshot, gpus=snapshot.gpus[:left], measured=snapshot.measured[:left], values=values
    )


def step_ms(monitor: Monitor, snapshot: Snapshot) -> float:
    """Milliseconds of the processor for one step."""
    begin = time.process_time()
    monitor.step(snapshot)
    return 1e3 * (time.process_time() - begin)


def main() -> int:
    """Measure, print, and return 1 where the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--looks", type=int, default=100)
    arguments = parser.parse_args()
    source = SimulatedSource(arguments.gpus)
    monitor = Monitor(source.about, settings=WorkloadSettings(), history=GpuHistory(HISTORY))
    shots = list(looks(arguments.gpus, 2 * arguments.looks + 60))
    for shot in shots[:60]:  # fills the window
        monitor.step(shot)
    usual = [step_ms(monitor, shot) for shot in shots[60 : 60 + arguments.looks]]
    last = shots[59 + arguments.looks]
    same = [step_ms(monitor, replace(last, t=last.t + 0.1)) for _ in range(arguments.looks)]
    worst = [
        step_ms(monitor, without_some(shot, arguments.gpus // 10) if place % 2 else shot)
        for place, shot in enumerate(shots[60 + arguments.looks :])
    ]
    usual_ms = statistics.fmean(usual)
    print(json.dumps({
        "benchmark": "watch",
        "python": platform.python_version(),
        "gpus": arguments.gpus,
        "counters": len(last.values),
        "looks": arguments.looks,
        "usual_ms": round(usual_ms, 2),
        "usual_most_ms": round(max(usual), 2),
        "same_values_ms": round(statistics.fmean(same), 2),
        "worst_ms": round(statistics.fmean(worst), 2),
        "history_mib": round(monitor.history.bytes / 1048576, 1),
        "goal_ms": GOAL_MS,
    }, indent=2))  # fmt: skip
    return 0 if usual_ms <= GOAL_MS else 1


if __name__ == "__main__":
    sys.exit(main())
