"""Hosts of a simulated cluster: what they count follows from what the jobs do, and reads as LDMS
writes it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest

from tachograph.annexes.lab.fill import fill
from tachograph.annexes.lab.simulate.behaviours import JobKind
from tachograph.annexes.lab.simulate.cluster import SimulatedCluster, simulate
from tachograph.annexes.lab.simulate.plan import LEAN_COUNTERS, NodeGroup, SimulationPlan
from tachograph.catalog.config import load
from tachograph.catalog.tables import (
    ALLOCATIONS,
    DEVICES,
    GPU_SAMPLES,
    JOBS,
    NODE_SAMPLES,
    REJECTS,
)
from tachograph.judge.job_judge import JobJudge
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest
from tachograph.lake.query import read_node_minutes, read_summaries
from tachograph.pipeline.run import analyze
from tachograph.sources import ldms

pytestmark = pytest.mark.slow  # a cluster of all kinds of jobs takes long

PLAN = SimulationPlan(
    seed=5,
    days=2,
    groups=(NodeGroup(24, 2, "A100 SXM 40GB"),),
    interval_s=300,
    shared=0.1,
    counters=LEAN_COUNTERS,
    hosts=True,
)
SMALL = replace(PLAN, groups=(NodeGroup(6, 2, "A100 SXM 40GB"),))
MARGIN = timedelta(minutes=3)


@pytest.fixture(scope="module")
def minutes(tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    """Minutes of nodes of planted jobs, after the whole way; `planted`: well within the planted
    interval.
    """
    folder = tmp_path_factory.mktemp("filled")
    fill(PLAN, str(folder / "lake"), folder / "site")
    lake = Lake.open(str(folder / "lake"))
    analyze(lake, load(str(folder / "site" / "tachograph.toml"), {}), judge=JobJudge, now=PLAN.end)
    summaries = read_summaries(lake)
    rows = read_node_minutes(lake, summaries)
    truth = pl.read_parquet(folder / "site" / "truth" / "jobs.parquet")
    named = summaries.select("job_key", "job_id", "submit").join(truth, on=["job_id", "submit"])
    found = rows.drop("job_id").join(named.rename({"start": "begun"}), on="job_key")
    begin, end = pl.col("planted_start") + MARGIN, pl.col("planted_end") - MARGIN
    return found.with_columns(planted=(pl.col("t") >= begin) & (pl.col("t") <= end))


def of(minutes: pl.DataFrame, kind: JobKind, *, planted: bool) -> pl.DataFrame:
    found = minutes.filter((pl.col("kind") == kind.value) & (pl.col("planted") == planted))
    found = found.filter(pl.col("t") > pl.col("begun") + timedelta(minutes=5))
    assert found.height >= 20, kind
    return found


def median(rows: pl.DataFrame, name: str) -> float:
    value = rows.get_column(name).median()
    assert isinstance(value, float), name
    return value


@pytest.mark.parametrize("kind", [JobKind.HUNG, JobKind.COLD_START, JobKind.STALLED])
def test_hosts_of_jobs_that_wait_do_nothing(minutes: pl.DataFrame, kind: JobKind) -> None:
    waits, works = of(minutes, kind, planted=True), of(minutes, kind, planted=False)
    for name in (
        "cpu_user",
        "load_average",
        "l1_misses_per_s",
        "llc_misses_per_s",
        "fs_read_bytes_per_s",
    ):
        assert median(waits, name) * 20 < median(works, name), name
    assert median(waits, "network_rx_bytes_per_s") < 1e4
    assert 0 < median(waits, "cpu_user") < 0.005


def test_a_deadlock_is_busy_and_gets_nothing_done(minutes: pl.DataFrame) -> None:
    stuck, works = (
        of(minutes, JobKind.DEADLOCK, planted=True),
        of(minutes, JobKind.DEADLOCK, planted=False),
    )
    assert median(stuck, "cpu_user") > 0.9
    assert median(stuck, "load_average") > median(works, "load_average") * 1.5
    for name in (
        "l1_misses_per_s",
        "llc_misses_per_s",
        "fs_read_bytes_per_s",
        "network_tx_packets_per_s",
    ):
        assert median(stuck, name) * 10 < median(works, name), name


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SimulatedCluster:
    return simulate(SMALL, tmp_path_factory.mktemp("small") / "cluster")


def test_a_lake_is_filled_with_what_the_files_hold(small: SimulatedCluster, tmp_path: Path) -> None:
    files = Lake.create(str(tmp_path / "files"))
    for file in (*small.telemetry, *small.hosts):
        ingest(files, ldms.read_file(file), now=SMALL.end)
    cluster = fill(SMALL, str(tmp_path / "lake"), tmp_path / "site")
    filled = Lake.open(str(tmp_path / "lake"))
    for table in (GPU_SAMPLES, NODE_SAMPLES):
        assert filled.latest(table).drop("seq").equals(files.latest(table).drop("seq"))
    counts = ("target", "reason", "column", "removed")
    assert (
        filled.latest(REJECTS)
        .select(counts)
        .sort(counts)
        .equals(files.latest(REJECTS).select(counts).sort(counts))
    )
    assert filled.latest(DEVICES).height == SMALL.gpus
    assert set(filled.latest(ALLOCATIONS)["provenance"]) == {"node_list", "explicit"}
    assert set(filled.latest(JOBS)["job_id"]) >= set(small.jobs["job_id"])
    assert cluster.rows == small.rows
    assert (cluster.telemetry, cluster.hosts) == ((), ())
    assert not (tmp_path / "site" / "telemetry").exists()
    for name in ("hosts", "jobs", "gpus", "defects"):
        truths = [
            pl.read_parquet(folder / "truth" / f"{name}.parquet")
            for folder in (cluster.folder, small.folder)
        ]
        assert truths[0].equals(truths[1])
