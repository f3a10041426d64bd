"""Prints what a pass costs: decode + reduce of 14 counters beside decoding the same columns with
Polars.

A simulated cluster (20 million samples by default) is ingested by the `ldms` source, compacted and
attributed once; then both are timed in turn on the same partitions and threads, and the medians of
time and of their ratio are given. Decoding alone reads the same columns of the same files and
throws them away. Reducing includes attribution by interval, all accumulators, minutes, their
workload classes and windows; it does not include writing.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl

from sized_plan import sized_plan
from tachograph.annexes.lab.simulate.cluster import SimulatedCluster, simulate
from tachograph.annexes.lab.simulate.plan import LEAN_COUNTERS
from tachograph.catalog import config
from tachograph.catalog.tables import ALLOCATIONS, DEVICES, GPU_SAMPLES, JOBS
from tachograph.judge.workload.arrays import MinuteLabeller
from tachograph.judge.workload.settings import settings_of
from tachograph.lake.compact import compact
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest
from tachograph.lake.partitions import Partition, partitions, read_partition
from tachograph.pipeline.attribution import attribute
from tachograph.pipeline.gpu_inventory import gpu_facts, inventory
from tachograph.pipeline.job_runs import build_runs
from tachograph.pipeline.partition import reduce_partition
from tachograph.pipeline.reduction import Reduction, overlapping_day, part_nodes
from tachograph.sources import ldms, sacct

GOAL_RATIO = 2.5
GOAL_SAMPLES_PER_S = 4e6
PAIRS = 5
COLUMNS = ("t", "node", "gpu", "mig", *LEAN_COUNTERS)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A lake ready to be reduced, and what filling it took."""

    lake: Lake
    work: Reduction
    samples: int
    bytes_per_row: float
    simulate_s: float
    ingest_s: float
    compact_s: float


def prepare(samples: int, folder: Path, *, dropped: float = 0.0) -> Prepared:
    """Return a lake of simulated samples with the intervals of its jobs.

    dropped: share of the samples that are left out at random, so that all intervals differ.
    """
    begin = time.perf_counter()
    cluster = simulate(sized_plan(samples), folder / "cluster")
    if dropped:
        random = np.random.default_rng(7)
        for file in sorted((cluster.folder / "telemetry").glob("*.parquet")):
            whole = pl.read_parquet(file)
            whole.filter(random.random(whole.height) >= dropped).write_parquet(file)
    simulated = time.perf_counter()
    configuration = config.load(str(cluster.configuration), {})
    lake = Lake.create(str(folder / "lake"))
    ingest_all(lake, cluster, configuration)
    ingested = time.perf_counter()
    compact(lake, [GPU_SAMPLES])
    compacted = time.perf_counter()
    units = inventory(lake.latest(DEVICES), configuration.nodes)
    allocations = lake.latest(ALLOCATIONS)
    runs = build_runs(
        lake.latest(JOBS), allocations, slurm=configuration.slurm, now=cluster.plan.end
    )
    owned = attribute(runs, allocations, units.select("node", "gpu", "mig"))
    names = ("run", "job_key", "job_id", "cluster", "start")
    keys = runs.select(*names, gpus=pl.lit(None, dtype=pl.Int64))
    idle_util, labeller = (
        configuration.thresholds.idle_util,
        MinuteLabeller(settings_of(configuration.workload)),
    )
    work = Reduction(
        lake,
        owned.intervals,
        keys,
        gpu_facts(units)[1],
        configuration.analysis,
        0,
        idle_util,
        labeller,
    )
    files = lake.files(GPU_SAMPLES)
    rows = sum(file.rows for file in files)
    return Prepared(
        lake,
        work,
        rows,
        sum(file.size for file in files) / rows,
        simulated - begin,
        ingested - simulated,
        compacted - ingested,
    )


def ingest_all(lake: Lake, cluster: SimulatedCluster, configuration: config.Configuration) -> None:
    """Fill the lake with the samples and the accounting of a cluster."""
    now = datetime.now(UTC)
    sources: list[tuple[Callable[..., None], object, Path]] = [
        (ldms.add_options, ldms.read, cluster.folder / "telemetry"),
        (sacct.add_options, sacct.read, cluster.accounting),
    ]
    for add_options, _, path in sources:
        parser = argparse.ArgumentParser()
        add_options(parser)
        options = parser.parse_args([str(path)])
        read = ldms.read if add_options is ldms.add_options else sacct.read
        ingest(lake, read(options, configuration=configuration, now=now), now=now)


def decode(prepared: Prepared, threads: int) -> float:
    """Return the seconds it takes to read the columns of all partitions and throw them away."""
    begin = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        parts = list(partitions(prepared.lake, GPU_SAMPLES))
        for _ in pool.map(
            lambda part: read_partition(prepared.lake, GPU_SAMPLES, part, COLUMNS)[0].height, parts
        ):
            pass
    return time.perf_counter() - begin


def decode_and_reduce(prepared: Prepared, threads: int) -> tuple[float, int]:
    """Return the seconds it takes to read and reduce all partitions, and how many samples belong
    to jobs.
    """
    work = prepared.work
    starts: dict[int, datetime] = dict(work.keys.select("run", "start").iter_rows())

    def one(part: Partition) -> int:
        low, high = part_nodes(part)
        mine = overlapping_day(work.intervals, part.day).filter(
            pl.col("node").is_between(pl.lit(low), pl.lit(high))
        )
        frame, _ = read_partition(prepared.lake, GPU_SAMPLES, part, COLUMNS)
        reduced, _ = reduce_partition(
            frame,
            mine,
            starts,
            work.ridges,
            analysis=work.analysis,
            day=part.day,
            labeller=work.labeller,
        )
        return reduced.attributed

    begin = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        attributed = sum(pool.map(one, partitions(prepared.lake, GPU_SAMPLES)))
    return time.perf_counter() - begin, attributed


def main() -> int:
    """Print the numbers; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=20_000_000)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--dropped", type=float, default=0.0, help="share of samples left out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(options.samples, Path(folder), dropped=options.dropped)
        before_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        decode_and_reduce(prepared, options.threads)  # compiles the kernel
        decoded, both, cpu = [], [], []
        attributed = 0
        for _ in range(options.pairs):
            a = time.process_time()
            decoded.append(decode(prepared, options.threads))
            b = time.process_time()
            seconds, attributed = decode_and_reduce(prepared, options.threads)
            both.append(seconds)
            cpu.append((time.process_time() - b) / (b - a))
    ratio = statistics.median(x / y for x, y in zip(both, decoded, strict=True))
    speed = prepared.samples / statistics.median(both)
    reached = ratio <= GOAL_RATIO and speed >= GOAL_SAMPLES_PER_S
    measured = {
        "benchmark": "reduce_speed",
        "samples": prepared.samples,
        "attributed": attributed,
        "counters": len(LEAN_COUNTERS),
        "threads": options.threads,
        "decode_s": round(statistics.median(decoded), 3),
        "decode_and_reduce_s": round(statistics.median(both), 3),
        "ratio": round(ratio, 2),
        "ratio_least": round(min(x / y for x, y in zip(both, decoded, strict=True)), 2),
        "ratio_of_cpu": round(statistics.median(cpu), 2),
        "goal_ratio": GOAL_RATIO,
        "samples_per_s": round(speed),
        "goal_samples_per_s": GOAL_SAMPLES_PER_S,
        "bytes_per_row": round(prepared.bytes_per_row, 1),
        "simulate_s": round(prepared.simulate_s, 1),
        "ingest_samples_per_s": round(prepared.samples / prepared.ingest_s),
        "compact_samples_per_s": round(prepared.samples / prepared.compact_s),
        "peak_memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "peak_memory_before_mib": round(before_mib),
        "reached": reached,
    }
    print(json.dumps(measured))
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
