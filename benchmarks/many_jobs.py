"""Prints peak memory and processor time of commands on lakes of many jobs: `analyze`, one more day,
`jobs`, `job`, ...

A lake is made as a large centre fills it: accounting of 13,300 jobs a day, which GPUs each had, one
step each, and a few samples of each GPU while it was held. Each command is a process of its own, of
which the kernel counts memory and processor time. With `--repeated N` a lake is analyzed that has N
jobs, and its tables of jobs are repeated under other ids and times: so there is a lake of a million
jobs in a minute, for all commands but `analyze`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl

from tachograph.catalog.tables import (
    ALLOCATIONS,
    ANALYSES,
    DEVICES,
    FINDINGS,
    GPU_SAMPLES,
    JOB_GPUS,
    JOB_SUMMARIES,
    JOBS,
    STEP_SUMMARIES,
    STEPS,
    LakeTable,
)
from tachograph.lake.delta import Lake

T = TypeVar("T")

SIZES = (100_000, 300_000, 1_000_000)
JOBS_A_DAY = 13_300  # 400,000 a month
END = datetime(2026, 11, 1, tzinfo=UTC)
NODES, GPUS = 880, 4
USERS, NAMES = 600, 40
FIRST_ID = 1_000_000
# goals at a million jobs: {command: (greatest peak in MB, most CPU in s)}
GOALS: dict[str, tuple[float, float | None]] = {
    "analyze": (4000, None),
    "job": (200, 0.5),
    "jobs": (200, 0.5),
    "jobs_of_user": (500, 1.0),
    "jobs_of_finding": (500, 1.0),
    "jobs_of_month": (500, 1.0),
    "waste_of_month": (float("inf"), 2.0),
}
MOST_DAY_RATIO = 1.2  # analysis of one more day over that of the day in a lake of its own

# ------------------------------------------------------------------------------------------------------------ the lake


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where jobs run one after the other: lanes of GPUs of one kind of node each.

    lanes: (lane, node, gpu), one row per GPU. count: how many lanes there are.
    """

    lanes: pl.DataFrame
    count: int


def cluster() -> Cluster:
    """Return a cluster whose nodes run four jobs of a GPU, two of two, one of four, or are two
    of one job.
    """
    rows, lane = [], 0
    for node in range(NODES):
        each = (1, 2, 4, 8)[node % 5 if node % 5 < 3 else 3]
        for gpu in range(GPUS):
            rows.append((lane, f"gpu{node:04d}", gpu))
            full = (gpu + 1) % each == 0 if each <= GPUS else gpu + 1 == GPUS and node % 5 == 4
            lane += full
    return Cluster(
        pl.DataFrame(rows, {"lane": pl.Int64, "node": pl.String, "gpu": pl.Int16}, orient="row"),
        lane,
    )


def accounted(there: Cluster, first: int, jobs: int, total: int) -> pl.DataFrame:
    """Return rows of jobs without `seq`, with `lane`: so many of them from the `first` on, of
    `total` in all.
    """
    number = np.arange(first, first + jobs)
    random = np.random.default_rng(first)
    slot_s = there.count / JOBS_A_DAY * 86400
    turns = -(-total // there.count)
    begin_s = (
        number // there.count - turns
    ) * slot_s + number % there.count / there.count * slot_s * 0.1
    length_s = (slot_s * 0.85 * random.random(jobs) ** 2 + 60).round()
    start = (
        pl.Series("start", (END.timestamp() + begin_s).round() * 1e6)
        .cast(pl.Int64)
        .cast(pl.Datetime("us", "UTC"))
    )
    wait_s = pl.Series(random.integers(10, 4000, jobs))
    frame = pl.DataFrame(
        {"number": number, "start": start, "elapsed_s": length_s, "wait_s": wait_s}
    )
    per_lane = there.lanes.group_by("lane", maintain_order=True).agg(
        gpus=pl.len().cast(pl.Int64),
        nodes=pl.col("node").n_unique().cast(pl.Int64),
        node_list=pl.col("node").unique(),
    )
    states = pl.Series(
        random.choice(
            ["COMPLETED", "FAILED", "TIMEOUT", "CANCELLED"], jobs, p=[0.8, 0.1, 0.05, 0.05]
        )
    )
    user = pl.col("number") * 7919 % USERS
    return (
        frame.with_columns(lane=pl.col("number") % there.count)
        .join(per_lane, on="lane", how="left", maintain_order="left")
        .with_columns(
            cluster=pl.lit("c1"),
            job_id=(pl.col("number") + FIRST_ID).cast(pl.String),
            user="user" + user.cast(pl.String),
            account="project" + (user % 60).cast(pl.String),
            name="train-" + (pl.col("number") * 104729 % NAMES).cast(pl.String),
            partition=pl.lit("gpu"),
            state=states,
            submit=pl.col("start") - pl.duration(seconds="wait_s"),
            end=pl.col("start") + pl.duration(seconds="elapsed_s"),
            node_list=pl.col("node_list").list.sort().list.join(","),
            timelimit_s=pl.lit(86400.0),
            cpus=pl.col("gpus") * 16,
            mem_requested_mib=pl.col("gpus") * 120_000.0,
            time_precision_s=pl.lit(0.0),
        )
    )


def fill(lake: Lake, there: Cluster, first: int, jobs: int, total: int, samples: int) -> None:
    """Append what a source would of some jobs: a commit a table."""
    rows = accounted(there, first, jobs, total)
    held = rows.join(there.lanes, on="lane", how="left", maintain_order="left")
    held = held.with_columns(provenance=pl.lit("explicit"), numbering=pl.lit(None, dtype=pl.String))
    steps = rows.with_columns(
        step=pl.lit("0"), max_rss_mib=pl.col("mem_requested_mib") / 3, tasks="gpus"
    )
    parts = {JOBS: rows, ALLOCATIONS: held, STEPS: steps}
    if samples:
        at = pl.DataFrame({"place": range(1, samples + 1)})
        moment = pl.col("start") + pl.duration(
            seconds=pl.col("elapsed_s") * pl.col("place") / (samples + 1)
        )
        share = (pl.col("number") * 31 + pl.col("gpu") * 7 + pl.col("place")) % 100 / 100
        parts[GPU_SAMPLES] = held.join(at, how="cross").with_columns(
            t=moment.dt.truncate("1s"),
            gpu_util=share,
            sm_active=share * 0.8,
            dram_active=share * 0.5,
            hbm_used_mib=share * 40_000,
            power_w=80 + share * 300,
        )
    for table, frame in parts.items():
        lake.append(table, _in_schema(frame, table), app_id=f"many-jobs-{first}")


def _in_schema(frame: pl.DataFrame, table: LakeTable) -> pl.DataFrame:
    names = [(name, dtype) for name, dtype in table.schema.items() if name != "seq"]
    return frame.select(
        (pl.col(name).cast(dtype) if name in frame.columns else pl.lit(None, dtype=dtype)).alias(
            name
        )
        for name, dtype in names
    )


def make_lake(target: Path, first: int, jobs: int, total: int, samples: int) -> Path:
    """Return a lake of the jobs from the `first` on, filled day by day."""
    there, lake = cluster(), Lake.create(str(target))
    known = there.lanes.with_columns(
        model=pl.lit("NVIDIA A100-SXM4-40GB"), hbm_mib=pl.lit(40_960.0)
    )
    lake.append(DEVICES, _in_schema(known, DEVICES), app_id="many-jobs")
    for begin in range(first, first + jobs, JOBS_A_DAY):
        fill(lake, there, begin, min(JOBS_A_DAY, first + jobs - begin), total, samples)
    return target


def one_more_day(target: Path, first: int, total: int, samples: int) -> None:
    """Append a day of jobs to a lake, from the `first` on."""
    fill(Lake.open(str(target)), cluster(), first, JOBS_A_DAY, total, samples)


def apart(function: Callable[..., T], *arguments: object) -> T:
    """Call in a process of its own: to the peak of a command the kernel adds what its parent
    holds when it starts.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


_OF_JOBS = (JOBS, ALLOCATIONS, STEPS, JOB_SUMMARIES, JOB_GPUS, STEP_SUMMARIES, FINDINGS)
_TIMES = ("submit", "start", "end", "as_of", "begin", "t", "first_t", "last_t")


def repeat_lake(source: Path, target: Path, jobs: int, total: int) -> Path:
    """Return a lake of about `total` jobs: the tables of jobs of `source`, which has so many,
    one after the other.
    """
    shutil.rmtree(target, ignore_errors=True)
    there, lake = Lake.open(str(source)), Lake.create(str(target))
    copies = total // jobs
    slot_s = round(jobs / JOBS_A_DAY * 86400)
    for table in _OF_JOBS:
        rows = there.latest(table).drop("seq")
        for copy in range(copies):
            repeated = _moved(rows, copy * jobs, (copies - 1 - copy) * slot_s)
            lake.append(table, repeated, app_id=f"copy-{copy}", seq=copy + 1)
    lake.append(DEVICES, there.latest(DEVICES).drop("seq"), app_id="copy", seq=1)
    lake.append(
        ANALYSES,
        there.latest(ANALYSES).tail(1).with_columns(jobs_version=copies).drop("seq"),
        app_id="copy",
    )
    return target


def _moved(rows: pl.DataFrame, ids: int, earlier_s: int) -> pl.DataFrame:
    moved = [
        pl.col(name) - pl.duration(seconds=earlier_s) for name in _TIMES if name in rows.columns
    ]
    job_id = (pl.col("job_id").cast(pl.Int64) + ids).cast(pl.String)
    if "job_key" in rows.columns:
        submitted = pl.col("job_key").str.split(":").list.get(2).cast(pl.Int64) - earlier_s
        moved.append(pl.concat_str(pl.lit("c1"), job_id, submitted, separator=":").alias("job_key"))
    if "display_id" in rows.columns:
        moved.append(pl.when(pl.col("display_id").is_not_null()).then(job_id).alias("display_id"))
    return rows.with_columns(*moved, job_id.alias("job_id"))


# ---------------------------------------------------------------------------------------------------------- commands


def measured(lake: Path, command: Sequence[str], source: str | None = None) -> dict[str, Any]:
    """Return peak memory in MB, processor time and wall time in s, bytes printed, of a command on a
    lake.

    Errors: RuntimeError where it fails.
    """
    environment = (
        os.environ | {"TACHOGRAPH_LAKE": str(lake)} | ({"PYTHONPATH": source} if source else {})
    )
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as said:
        started = [sys.executable, "-m", "tachograph", *command]
        process = subprocess.Popen(
            started, env=environment, stdout=printed, stderr=said, cwd=lake.parent
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            raise RuntimeError(
                f"{' '.join(command)}: {process.returncode}: {said.read().decode()[-2000:]}"
            )
        size = printed.seek(0, os.SEEK_END)
    found = {
        "peak_mb": round(used.ru_maxrss * 1024 / 1e6),
        "cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "wall_s": round(time.perf_counter() - begin, 2),
        "bytes_out": size,
    }
    print(" ".join(command), found, file=sys.stderr, flush=True)
    return found


def commands(jobs: int) -> dict[str, list[str]]:
    """Return what people ask of a lake of so many jobs."""
    of_month = ["--since", f"{END - timedelta(days=31):%Y-%m-%d}", "--until", f"{END:%Y-%m-%d}"]
    return {
        "job": ["job", str(FIRST_ID + jobs // 2)],
        "job_last": ["job", str(FIRST_ID + jobs - 10)],
        "jobs": ["jobs", "--limit", "10"],
        "jobs_worst": ["jobs", "--worst", "--limit", "10"],
        "jobs_of_user": ["jobs", "--user", "user7", "--limit", "10"],
        "jobs_of_finding": ["jobs", "--finding", "low_utilisation", "--limit", "10"],
        "jobs_of_month": ["jobs", *of_month, "--limit", "10"],
        "waste_of_month": ["waste", *of_month],
    }


def measure(
    folder: Path, jobs: int, samples: int, *, day: bool, source: str | None
) -> dict[str, Any]:
    """Return what commands need on a lake of so many jobs in `folder`, which is analyzed unless
    it was before.
    """
    target = folder / f"lake-{jobs}-{samples}"
    found: dict[str, Any] = {"size": jobs, "samples_a_gpu": samples}
    earlier = jobs - JOBS_A_DAY
    if not (target / "whole").exists():
        shutil.rmtree(target, ignore_errors=True)
        apart(make_lake, target, 0, earlier if day else jobs, jobs, samples)
        found["analyze"] = measured(target, ["analyze"], source)
        if day:
            alone = apart(make_lake, folder / "alone", earlier, JOBS_A_DAY, jobs, samples)
            found["analyze_day_alone"] = measured(alone, ["analyze"], source)
            shutil.rmtree(alone)
            apart(one_more_day, target, earlier, jobs, samples)
            found["analyze_one_more_day"] = measured(target, ["analyze"], source)
        (target / "whole").touch()
    return {**found, **asked(target, jobs, source)}


def measure_repeated(
    folder: Path, of: int, jobs: int, samples: int, source: str | None
) -> dict[str, Any]:
    """Return what commands need on a lake of about so many jobs, the jobs of a small lake
    repeated.
    """
    base, target = folder / f"lake-{of}-{samples}", folder / f"repeated-{jobs}-{samples}"
    if not (base / "whole").exists():
        apart(make_lake, base, 0, of, of, samples)
        measured(base, ["analyze"], source)
        (base / "whole").touch()
    if not (target / "whole").exists():
        apart(repeat_lake, base, target, of, jobs)
        (target / "whole").touch()
    there = jobs // of * of
    return {"size": there, "repeated": of, **asked(target, there, source)}


def asked(target: Path, jobs: int, source: str | None) -> dict[str, Any]:
    """Return what the commands of people need on a lake of so many jobs."""
    found = {}
    for name, command in commands(jobs).items():
        found[name] = measured(target, command, source)
    return found


def missed(found: dict[str, Any]) -> list[str]:
    """Return which goals of a million jobs were missed."""
    names = [
        name
        for name, (peak, cpu) in GOALS.items()
        if name in found
        and (found[name]["peak_mb"] > peak or (cpu is not None and found[name]["cpu_s"] > cpu))
    ]
    if "analyze_one_more_day" in found:
        ratio = found["analyze_one_more_day"]["cpu_s"] / found["analyze_day_alone"]["cpu_s"]
        names += ["analyze_one_more_day"] if ratio > MOST_DAY_RATIO else []
    return names


def main() -> int:
    """Print the numbers; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--jobs",
        type=int,
        nargs="+",
        default=[SIZES[0]],
        help="sizes of lakes (default: the least)",
    )
    parser.add_argument("--samples", type=int, default=2, help="of each GPU that a job holds")
    parser.add_argument("--no-day", action="store_true", help="do not measure one more day")
    parser.add_argument("--repeated", type=int, metavar="N", help="repeat the jobs of a lake of N")
    parser.add_argument(
        "--keep", type=Path, help="folder in which lakes are kept, and taken from if they are there"
    )
    parser.add_argument(
        "--source", help="folder of the sources whose commands run (default: these)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        sizes = [
            measure_repeated(folder, options.repeated, jobs, options.samples, options.source)
            if options.repeated
            else measure(
                folder, jobs, options.samples, day=not options.no_day, source=options.source
            )
            for jobs in sorted(options.jobs)
        ]
    wrong = missed(sizes[-1]) if sizes[-1]["size"] >= 0.95 * SIZES[-1] else []
    print(
        json.dumps(
            {"benchmark": "many_jobs", "sizes": sizes, "missed": wrong, "reached": not wrong}
        )
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
