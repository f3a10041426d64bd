"""Prints how fast `tachograph serve` answers on a lake of many jobs: a real server process, real HTTP on this machine.

The lake is made of the demo's computed tables, repeated under other ids, users, names and times over two years; minutes
are there for the newest jobs, whose pages are opened. It lies in the folder that is given and is used again.
"""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import polars as pl

from tachograph.catalog.tables import (
    ALLOCATIONS,
    ANALYSES,
    DEVICES,
    FINDINGS,
    JOB_GPUS,
    JOB_MINUTES,
    JOB_SUMMARIES,
    JOBS,
    STEP_SUMMARIES,
    LakeTable,
)
from tachograph.lake.delta import Lake

LIST_MS, JOB_MS, START_S, MEMORY_MIB, CLICKS_CORES = 100, 300, 2.0, 1536, 1.0
SPAN = timedelta(days=730)
GROUPS = 20  # of users: each has the demo's users under other names
REPLICAS = 26  # written at a time
MINUTE_REPLICAS = 14
_IDS = ("job_id", "display_id", "array_job_id", "het_job_id")
_TIMES = ("submit", "start", "end", "as_of", "begin", "t", "first_t", "last_t")


# ------------------------------------------------------------------------------------------------------------ the lake


def make_lake(folder: Path, jobs: int) -> Path:
    """Return a lake of about so many jobs, made unless it is there."""
    target = folder / f"lake-{jobs}"
    if (target / "whole").exists():
        return target
    demo = folder / "demo"
    if not (demo / ".tachograph-demo").exists():
        subprocess.run([sys.executable, "-m", "tachograph", "demo", "--folder", str(demo)], check=True)
    source = Lake.open(str(demo / "lake"))
    lake = Lake.create(str(target))
    of_one = source.latest(JOB_SUMMARIES).height
    replicas = max(1, round(jobs / of_one))
    for table in (DEVICES, ANALYSES):
        lake.append(table, source.latest(table).drop("seq"), app_id="make", seq=1)
    for begin in range(0, replicas, REPLICAS):
        numbers = range(begin, min(replicas, begin + REPLICAS))
        for table in (JOBS, ALLOCATIONS, JOB_SUMMARIES, JOB_GPUS, STEP_SUMMARIES, FINDINGS):
            _append(source, lake, table, numbers, replicas)
    for number in range(max(0, replicas - MINUTE_REPLICAS), replicas):
        _append(source, lake, JOB_MINUTES, range(number, number + 1), replicas)
    (target / "whole").touch()
    return target


def _append(source: Lake, lake: Lake, table: LakeTable, numbers: range, replicas: int) -> None:
    rows = source.scan(table).collect()
    seq = 10**15 + numbers.start // REPLICAS  # of minutes: that of their summaries
    frame = pl.concat([_replica(rows, number, replicas) for number in numbers])
    lake.append(table, frame.drop("seq"), app_id=f"{table.name}-{numbers.start}", seq=seq)


def _replica(rows: pl.DataFrame, number: int, replicas: int) -> pl.DataFrame:
    """The rows of the demo as another part of the cluster's history: the last one is the demo's time."""
    shift = (SPAN / replicas * (replicas - 1 - number)) // timedelta(seconds=1) * timedelta(seconds=1)
    there = set(rows.columns)
    columns = []
    for name in there.intersection(_IDS):
        digits = pl.col(name).str.extract(r"^(\d+)").cast(pl.Int64) + number * 1000
        columns.append((digits.cast(pl.String) + pl.col(name).str.replace(r"^\d+", "")).alias(name))
    columns += [(pl.col(name) - shift).alias(name) for name in there.intersection(_TIMES)]
    columns += [
        (pl.col(name) + f"{number % GROUPS:02d}").alias(name) for name in there.intersection(("user", "account"))
    ]
    if "job_key" in there:
        parts = pl.col("job_key").str.split(":")
        ids = parts.list.get(1).cast(pl.Int64) + number * 1000
        submitted = parts.list.get(2).cast(pl.Int64) - int(shift.total_seconds())
        key = pl.concat_str([parts.list.get(0), ids.cast(pl.String), submitted.cast(pl.String)], separator=":")
        columns.append(key.alias("job_key"))
    measured = [pl.col(name) * (1 + number * 1e-9) for name in there if rows.schema[name].is_float() and "_" in name]
    return rows.with_columns(columns).with_columns(measured)
