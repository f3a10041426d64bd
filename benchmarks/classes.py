"""Prints how many jobs a second one core classifies from stored minutes, and what each step takes.

Jobs are made in memory as rows of job_minutes: 4 GPUs, 200 minutes, all counters that classes look
at; each job is put together from times of work and of rest, and every tenth has minutes of its
node. Reading from the lake is not timed; grouping by minute, windows, verdicts of all classes with
their sentences, and the frame of findings are. Times are those of the processor, with one thread of
Polars.
"""

from __future__ import annotations

import os

os.environ["POLARS_MAX_THREADS"] = "1"  # read when Polars is imported

import argparse
import json
import sys
import time
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl

from tachograph.catalog.config import ClassOptions
from tachograph.catalog.tables import (
    HOST_CHARACTERISTICS,
    JOB_GPUS,
    JOB_MINUTES,
    JOB_NODE_MINUTES,
    JOB_SUMMARIES,
)
from tachograph.judge import job_classes
from tachograph.pipeline.timelines import timelines_of

GOAL_JOBS_PER_S = 1000.0
GPUS, MINUTES, WITH_HOSTS = 4, 200, 10
START = datetime(2025, 3, 3, tzinfo=UTC)
FULL = {
    "gpu_util": 0.9, "gr_engine_active": 0.9, "sm_active": 0.6, "tensor_active": 0.3, "dram_active": 0.3,
    "fp32_active": 0.1, "power_w": 300.0, "pcie_tx_bytes_per_s": 1e9, "pcie_rx_bytes_per_s": 1e9,
    "nvlink_tx_bytes_per_s": 5e9, "nvlink_rx_bytes_per_s": 5e9,
}  # fmt: skip


def made(jobs: int, seed: int) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return summaries, GPUs, minutes and minutes of nodes of `jobs` jobs."""
    rng = np.random.default_rng(seed)
    keys = [f"c:{place:07d}:1" for place in range(jobs)]
    end = START + timedelta(minutes=MINUTES)
    summaries = pl.DataFrame({"job_key": keys, "job_id": keys}).with_columns(
        start=pl.lit(START), end=pl.lit(end), as_of=pl.lit(end), state=pl.lit("COMPLETED"), gpus=pl.lit(GPUS),
        attribution=pl.lit("explicit"), gpu_model=pl.lit("A100 SXM 40GB"), nodes=pl.lit(1),
    )  # fmt: skip
    working = np.ones((jobs, MINUTES), np.float32)
    for place in range(jobs):
        first, length = rng.integers(0, MINUTES), rng.integers(0, 120)
        working[place, first : first + length] = 0
    level = np.repeat(working, GPUS, axis=0).ravel() * rng.uniform(0.8, 1.0, jobs * GPUS * MINUTES)
    rows = pl.DataFrame(
        {
            "job_key": pl.Series(keys).gather(
                np.repeat(np.arange(jobs, dtype=np.uint32), GPUS * MINUTES)
            ),
            "gpu": np.tile(np.repeat(np.arange(GPUS, dtype=np.int16), MINUTES), jobs),
            "minute": np.tile(np.arange(MINUTES, dtype=np.int32), jobs * GPUS),
            **{name: (level * full).astype(np.float32) for name, full in FULL.items()},
        }
    ).with_columns(node=pl.lit("n1"), samples=pl.lit(6))
    hosts = pl.DataFrame(
        {
            "job_key": np.repeat(keys[::WITH_HOSTS], MINUTES),
            "minute": np.tile(np.arange(MINUTES, dtype=np.int32), len(keys[::WITH_HOSTS])),
            **dict.fromkeys(
                HOST_CHARACTERISTICS, (working[::WITH_HOSTS].ravel() * 1e6).astype(np.float32)
            ),
        }
    ).with_columns(node=pl.lit("n1"))
    of_gpus = rows.group_by("job_key", "node", "gpu", maintain_order=True).agg(
        *(pl.col(name).mean().alias(f"{name}_mean") for name in FULL),
        gpu_model=pl.lit("A100 SXM 40GB"),
    )
    return (
        _filled(summaries, JOB_SUMMARIES.schema),
        _filled(of_gpus, JOB_GPUS.schema),
        _filled(rows, JOB_MINUTES.schema),
        _filled(hosts, JOB_NODE_MINUTES.schema),
    )


def _filled(frame: pl.DataFrame, schema: pl.Schema | dict[str, pl.DataType]) -> pl.DataFrame:
    """The columns of a table; what is not made is null."""
    return frame.select(
        pl.col(name).cast(dtype) if name in frame.columns else pl.lit(None, dtype).alias(name)
        for name, dtype in schema.items()
    )


def main() -> int:
    """Measure, print, and return 1 where the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    settings = ClassOptions()
    few = made(20, 1)
    job_classes.judge_classes(
        few[0], few[1], timelines_of(few[2], idle_util=0.01), few[3], settings
    )  # compiles
    jobs, gpus, minutes, hosts = made(arguments.jobs, 2)
    grouping, forming, whole, found = [], [], [], pl.DataFrame()
    for _ in range(arguments.repeat):
        begin = time.process_time()
        timelines = timelines_of(minutes, idle_util=0.01)
        grouped = time.process_time()
        job_classes.class_inputs(jobs, gpus, timelines, hosts, settings)
        formed = time.process_time()
        found = job_classes.judge_classes(jobs, gpus, timelines, hosts, settings)
        judged = time.process_time()
        grouping.append(grouped - begin)
        forming.append(formed - grouped)
        whole.append(grouped - begin + judged - formed)
    jobs_per_s = arguments.jobs / sorted(whole)[len(whole) // 2]
    print(json.dumps({
        "jobs": arguments.jobs,
        "rows": minutes.height,
        "findings": found.height,
        "yes": int((found["verdict"] == "yes").sum()),
        "jobs_per_core_s": round(jobs_per_s),
        "goal_jobs_per_core_s": GOAL_JOBS_PER_S,
        "grouping_ms_per_job": round(1e3 * min(grouping) / arguments.jobs, 3),
        "series_and_windows_ms_per_job": round(1e3 * min(forming) / arguments.jobs, 3),
        "all_ms_per_job": round(1e3 * min(whole) / arguments.jobs, 3),
    }, indent=2))  # fmt: skip
    return 0 if jobs_per_s >= GOAL_JOBS_PER_S else 1


if __name__ == "__main__":
    sys.exit(main())
