"""Prints how long the series of one job take, by minute, from the lake and from VictoriaMetrics.

A simulated cluster of four-GPU nodes, sampled every 10 s, is analyzed; the same samples are
imported into VictoriaMetrics, which is then merged and started anew. Asked is what a page of a job
draws: five counters of each GPU of the job by minute. VictoriaMetrics does not know jobs, so it is
given nodes, GPUs and times of the job, and one range query for each node and counter
(`avg_over_time` of a minute), answered as JSON and read with msgspec. The lake is given the id of
the job. Means of both are compared. Each time is the least of some rounds in one process; `first`
is the first round, in which neither has read anything.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import polars as pl

from lake_bytes import DCGM_NAMES, VictoriaMetrics, import_lines, victoria_metrics
from reduce_speed import ingest_all
from tachograph.annexes.lab.simulate.cluster import simulate
from tachograph.annexes.lab.simulate.plan import LEAN_COUNTERS, NodeGroup, SimulationPlan
from tachograph.api.open_lake import OpenLake
from tachograph.catalog import config
from tachograph.catalog.tables import GPU_SAMPLES
from tachograph.judge.job_judge import JobJudge
from tachograph.lake.compact import compact
from tachograph.lake.delta import Lake
from tachograph.pipeline import run

DRAWN = ("gpu_util", "sm_active", "dram_active", "power_w", "hbm_used_mib")
MINUTE = timedelta(minutes=1)
LEAST_SHARE_OF_MINUTES = 0.98  # of both: the first and last minute of a job are not whole


@dataclass(frozen=True, slots=True)
class AskedJob:
    """A job with its nodes, first and last minute."""

    id: str
    nodes: tuple[str, ...]
    gpus: int
    first: datetime
    last: datetime


def filled(nodes: int, folder: Path) -> tuple[OpenLake, pl.DataFrame]:
    """Return an analyzed lake of a simulated day, and its samples."""
    plan = SimulationPlan(
        seed=5,
        days=1,
        groups=(NodeGroup(nodes, 4, "A100 SXM 80GB"),),
        counters=LEAN_COUNTERS,
        median_hours=4.5,
        defects=False,
        as_printed=True,
    )
    cluster = simulate(plan, folder / "cluster")
    configuration = config.load(str(cluster.configuration), {})
    lake = Lake.create(str(folder / "lake"))
    ingest_all(lake, cluster, configuration)
    compact(lake, [GPU_SAMPLES], vacuum_hours=0)
    run.analyze(lake, configuration, judge=JobJudge, now=plan.end, full=True)
    samples = lake.scan(GPU_SAMPLES).select("t", "node", "gpu", *DRAWN).collect()
    return OpenLake(lake, configuration, plan.end), samples.sort("node", "gpu", "t")


def asked_jobs(opened: OpenLake) -> list[AskedJob]:
    """The job of median GPU-hours and the one with most."""
    jobs = opened.jobs().filter(pl.col("samples") > 0).sort("gpu_hours")
    return [_asked(opened, str(jobs["display_id"][row])) for row in (jobs.height // 2, -1)]


def _asked(opened: OpenLake, job: str) -> AskedJob:
    minutes = opened.minutes(job)
    nodes = tuple(minutes["node"].unique().sort())
    gpus = minutes.select("node", "gpu").unique().height
    first, last = minutes.select(pl.col("t").min(), last=pl.col("t").max()).row(0)
    return AskedJob(job, nodes, gpus, first, last)


def of_lake(opened: OpenLake, job: AskedJob) -> pl.DataFrame:
    """Return the job's minutes: node, gpu, t, and a column for each counter."""
    return opened.minutes(job.id).select("node", "gpu", "t", *DRAWN)


def of_victoria_metrics(server: VictoriaMetrics, job: AskedJob) -> dict[str, list[Any]]:
    """Return the series of each counter as the server answers: labels, and pairs of time and
    text.
    """
    # A window of one minute that ends at `time` has no sample at its begin: so a millisecond
    # before the full minute it has those from the minute's begin on.
    window = {
        "start": f"{(job.first + MINUTE).timestamp() - 0.001:.3f}",
        "end": f"{(job.last + MINUTE).timestamp() - 0.001:.3f}",
        "step": "60s",
        "nocache": "1",
    }
    nodes = "|".join(job.nodes)
    series: dict[str, list[Any]] = {}
    for counter in DRAWN:
        query = f'avg_over_time({DCGM_NAMES[counter]}{{Hostname=~"{nodes}"}}[1m])'
        answer = server.ask(f"/api/v1/query_range?{urlencode({'query': query, **window})}")
        series[counter] = msgspec.json.decode(answer)["data"]["result"]
    return series


def compared(mine: pl.DataFrame, theirs: Mapping[str, list[Any]]) -> dict[str, float]:
    """Return how many minutes both have, as a share of those of the job, and how far they differ.

    Errors: RuntimeError where too few minutes are in both.
    """
    shares: list[float] = []
    greatest = 0.0
    for counter, series in theirs.items():
        rows = [
            (one["metric"]["Hostname"], int(one["metric"]["gpu"]), float(at), float(value))
            for one in series
            for at, value in one["values"]
        ]
        other = pl.DataFrame(
            rows,
            schema={"node": pl.String, "gpu": pl.Int64, "at": pl.Float64, "other": pl.Float64},
            orient="row",
        )
        minute = pl.from_epoch(pl.col("at").round().cast(pl.Int64) - 60, time_unit="s")
        timed = other.with_columns(t=minute.dt.replace_time_zone("UTC").dt.cast_time_unit("us"))
        known = mine.filter(pl.col(counter).is_not_null()).with_columns(
            pl.col("gpu").cast(pl.Int64)
        )
        both = known.join(timed, on=["node", "gpu", "t"], how="inner")
        shares.append(both.height / max(1, known.height))
        inner = both.filter(
            (pl.col("t") > known["t"].min()) & (pl.col("t") < known["t"].max())  # whole minutes
        )
        scale = pl.max_horizontal(pl.col("other").abs(), 1e-9)
        differ = inner.select(((pl.col(counter) - pl.col("other")).abs() / scale).max()).item()
        greatest = max(greatest, differ or 0.0)
    if min(shares) < LEAST_SHARE_OF_MINUTES:
        raise RuntimeError(f"only {min(shares):.3f} of the minutes are in both")
    return {"minutes_in_both": round(min(shares), 4), "greatest_relative_difference": greatest}


def timed(ask: Callable[[], Any], rounds: int) -> dict[str, float]:
    """Return milliseconds of the first round and of the fastest."""
    spent: list[float] = []
    for _ in range(rounds):
        begin = time.perf_counter()
        ask()
        spent.append((time.perf_counter() - begin) * 1e3)
    return {"first_ms": round(spent[0], 1), "least_ms": round(min(spent), 1)}


def measure(nodes: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Return the times of both for each job."""
    opened, samples = filled(nodes, folder)
    with victoria_metrics(folder) as server:
        for lines, _ in import_lines(samples, DRAWN):
            server.ask("/api/v1/import", lines)
        server.settle()
    jobs = asked_jobs(opened)
    fresh = OpenLake(Lake.open(opened.lake.location), opened.configuration, datetime.now(UTC))
    results: list[dict[str, Any]] = []
    with victoria_metrics(folder) as server:
        for job in jobs:
            result: dict[str, Any] = {
                "job": job.id,
                "gpus": job.gpus,
                "nodes": len(job.nodes),
                "hours": round((job.last - job.first) / timedelta(hours=1), 1),
                "lake": timed(partial(of_lake, fresh, job), rounds),
                "victoria_metrics": timed(partial(of_victoria_metrics, server, job), rounds),
            }
            result |= compared(of_lake(fresh, job), of_victoria_metrics(server, job))
            results.append(result)
    return {"benchmark": "range_queries", "samples": samples.height, "jobs": results}


def main() -> int:
    """Print the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=48, help="of four GPUs (default 48)")
    parser.add_argument("--rounds", type=int, default=7, help="of each question (default 7)")
    options = parser.parse_args()
    if shutil.which("victoria-metrics") is None:
        skipped = {"benchmark": "range_queries", "skipped": "victoria-metrics is not installed"}
        print(json.dumps(skipped))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(options.nodes, options.rounds, Path(folder)), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
