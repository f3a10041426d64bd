"""Prints what a second worker brings: the same analysis on one Dask worker and on two, processes of
one thread each, each on a core of its own.

A simulated cluster (20 million samples by default) is ingested and compacted once; then all of it
is analyzed by each crew in turn. Times are those of `analyze` with everything it does, and of its
reduction alone, which is over when the last day is; starting the workers is not among them, nor is
the first run of each crew. The goal is for the reduction.

The process that plans, merges and writes needs processor time, too: `busiest_workers` is how many
workers it can keep busy. With a core for it beside those of the workers, two are about twice as
fast as one; with two cores in all at most `ratio_on_two_cores`. Both come from processor time, so
they hold on a busy machine, where `ratio` says little.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# of each process, also of the one that plans: before Polars is imported
os.environ.setdefault("POLARS_MAX_THREADS", "1")

from reduce_speed import prepare
from tachograph.catalog import config
from tachograph.catalog.config import Configuration, WorkerOptions
from tachograph.judge.job_judge import JobJudge
from tachograph.lake.delta import Lake
from tachograph.pipeline.dask_workers import DaskPool, workers
from tachograph.pipeline.run import analyze

GOAL_RATIO = 1.8
PAIRS = 3
NOW = datetime(2026, 1, 1, tzinfo=UTC)  # after everything that is simulated


@dataclass(frozen=True, slots=True)
class Took:
    """What one analysis took, in seconds; CPU of the workers, and of the process that asks them."""

    analyze_s: float
    reduce_s: float
    workers_cpu_s: float
    own_cpu_s: float


def measure(lake: Lake, configuration: Configuration, pool: DaskPool) -> Took:
    """Return what an analysis of everything takes."""
    reduced: list[float] = []

    def tell(words: str, done: int, total: int) -> None:
        reduced.append(time.perf_counter())

    theirs, own, begin = cpu(pool), time.process_time(), time.perf_counter()
    analyze(lake, configuration, judge=JobJudge, now=NOW, pool=pool, full=True, progress=tell)
    end = time.perf_counter()
    return Took(end - begin, reduced[-1] - begin, cpu(pool) - theirs, time.process_time() - own)


def pin(cores: Sequence[int], dask_worker: Any = None) -> None:
    """Let all threads of a worker run on the core of its number alone."""
    core = cores[int(dask_worker.name) % len(cores)]
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def cpu(pool: DaskPool) -> float:
    """Return the CPU-seconds that the workers have used."""
    return sum(pool.everywhere(time.process_time).values())


def peak_mib(pool: DaskPool) -> int:
    """Return the peak memory of the largest worker. (getrusage would tell its parent's, where
    that is larger.)
    """
    told = pool.everywhere(Path.read_text, Path("/proc/self/status")).values()
    return (
        max(
            int(line.split()[1])
            for text in told
            for line in text.splitlines()
            if line.startswith("VmHWM")
        )
        // 1024
    )


def main() -> int:
    """Print the numbers; 1 when the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=20_000_000)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    options = parser.parse_args()
    found: dict[int, list[Took]] = {1: [], 2: []}
    peaks: dict[int, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(options.samples, Path(folder))
        configuration = config.load(str(Path(folder) / "cluster" / "tachograph.toml"), {})
        for count in found:
            with workers(str(count), WorkerOptions(), prepared.lake, report=print) as pool:
                pool.everywhere(pin, sorted(os.sched_getaffinity(0)))
                measure(prepared.lake, configuration, pool)  # compiles or loads the kernel
                found[count] = [
                    measure(prepared.lake, configuration, pool) for _ in range(options.pairs)
                ]
                peaks[count] = peak_mib(pool)
    measured: dict[str, object] = {
        "benchmark": "workers",
        "samples": prepared.samples,
        "cores": os.cpu_count(),
    }
    for count, took in found.items():
        name = "one_worker" if count == 1 else "two_workers"
        for field in ("analyze_s", "reduce_s", "workers_cpu_s", "own_cpu_s"):
            measured[f"{name}_{field}"] = round(median(took, field), 2)
        measured[f"{name}_peak_mib"] = peaks[count]
    ratio = median(found[1], "reduce_s") / median(found[2], "reduce_s")
    busy, own = (median(found[1], field) for field in ("workers_cpu_s", "own_cpu_s"))
    measured |= {
        "busiest_workers": round(busy / own, 1),
        "ratio_on_two_cores": round(2 * busy / (busy + own), 2),
        "ratio_of_analyze": round(median(found[1], "analyze_s") / median(found[2], "analyze_s"), 2),
        "ratio": round(ratio, 2),
        "goal_ratio": GOAL_RATIO,
        "reached": ratio >= GOAL_RATIO,
    }
    print(json.dumps(measured))
    return 0 if ratio >= GOAL_RATIO else 1


def median(took: list[Took], field: str) -> float:
    """Return the median of a field."""
    return float(statistics.median(getattr(each, field) for each in took))


if __name__ == "__main__":
    sys.exit(main())
