"""Hosts of a simulated cluster: what they count follows from what the jobs do, and reads as LDMS writes it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest

from tachograph.catalog.config import load
from tachograph.catalog.tables import (
    ALLOCATIONS,
    DEVICES,
    GPU_SAMPLES,
    HOST_CHARACTERISTICS,
    JOBS,
    NODE_SAMPLES,
    REJECTS,
)
from tachograph.judge.job_judge import JobJudge
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest
from tachograph.lake.query import read_node_minutes, read_summaries
from tachograph.pipeline.run import analyze
from tachograph.service.fill import fill
from tachograph.simulate.behaviours import JobKind
from tachograph.simulate.cluster import SimulatedCluster, simulate
from tachograph.simulate.plan import LEAN_COUNTERS, NodeGroup, SimulationPlan
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
TOLD = [name for name in HOST_CHARACTERISTICS if "operations" not in name]  # LDMS does not count those


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> SimulatedCluster:
    return simulate(PLAN, tmp_path_factory.mktemp("hosts") / "cluster")


@pytest.fixture(scope="module")
def minutes(tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    """Minutes of nodes of planted jobs, after the whole way; `planted`: well within the planted interval."""
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


def read(cluster: SimulatedCluster) -> pl.DataFrame:
    """Return the host samples as the source reads them."""
    return pl.concat(part.frame for file in cluster.hosts for chunk in ldms.read_file(file) for part in chunk.parts)


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
    for name in ("cpu_user", "load_average", "l1_misses_per_s", "llc_misses_per_s", "fs_read_bytes_per_s"):
        assert median(waits, name) * 20 < median(works, name), name
    assert median(waits, "network_rx_bytes_per_s") < 1e4
    assert 0 < median(waits, "cpu_user") < 0.005


def test_a_deadlock_is_busy_and_gets_nothing_done(minutes: pl.DataFrame) -> None:
    stuck, works = of(minutes, JobKind.DEADLOCK, planted=True), of(minutes, JobKind.DEADLOCK, planted=False)
    assert median(stuck, "cpu_user") > 0.9
    assert median(stuck, "load_average") > median(works, "load_average") * 1.5
    for name in ("l1_misses_per_s", "llc_misses_per_s", "fs_read_bytes_per_s", "network_tx_packets_per_s"):
        assert median(stuck, name) * 10 < median(works, name), name


def test_data_are_read_while_loading(minutes: pl.DataFrame) -> None:
    long = minutes.filter(
        (pl.col("kind") == JobKind.TENSOR.value) & (pl.col("end") - pl.col("begun") > timedelta(hours=1))
    )
    early, late = long.filter(pl.col("minute") == 0), long.filter(pl.col("minute") > 10)
    assert early.height >= 3
    assert median(early, "fs_read_bytes_per_s") > 3 * median(late, "fs_read_bytes_per_s")


def test_nodes_of_wide_jobs_talk_to_each_other(minutes: pl.DataFrame) -> None:
    working = minutes.filter(
        pl.col("kind").is_in([JobKind.STEADY.value, JobKind.MEMORY_BOUND.value, JobKind.TENSOR.value])
    )
    wide, narrow = working.filter(pl.col("nodes").list.len() > 1), working.filter(pl.col("nodes").list.len() == 1)
    assert median(wide, "network_tx_bytes_per_s") > 5 * median(narrow, "network_tx_bytes_per_s")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SimulatedCluster:
    return simulate(SMALL, tmp_path_factory.mktemp("small") / "cluster")


def test_the_same_plan_gives_the_same_files(small: SimulatedCluster, tmp_path: Path) -> None:
    again = simulate(SMALL, tmp_path / "again")
    assert [file.name for file in small.hosts] == [file.name for file in again.hosts]
    assert len(small.hosts) == SMALL.days
    for one, other in zip(small.hosts, again.hosts, strict=True):
        assert one.read_bytes() == other.read_bytes()
    without = simulate(replace(SMALL, hosts=False), tmp_path / "without")
    assert without.hosts == ()
    assert [file.read_bytes() for file in without.telemetry] == [file.read_bytes() for file in small.telemetry]


def test_planted_defects_are_recorded(cluster: SimulatedCluster) -> None:
    defects = pl.read_parquet(cluster.folder / "truth" / "hosts.parquet")
    samples = pl.concat(
        [part.frame for file in cluster.hosts for chunk in ldms.read_file(file) for part in chunk.parts]
    )
    assert set(defects["kind"]) == {"gap", "counter_reset", "no_cache_counters", "no_host_samples"}
    of_kind = {kind: set(rows["node"]) for (kind,), rows in defects.group_by("kind")}
    every = {node.name for node in PLAN.nodes()}
    assert set(samples["node"]) == every - of_kind["no_host_samples"]
    misses = samples.filter(pl.col("l1_misses").is_not_null())
    assert set(misses["node"]) == every - of_kind["no_host_samples"] - of_kind["no_cache_counters"]
    back = samples.sort("node", "t").filter(pl.col("cpu_idle_s") < pl.col("cpu_idle_s").shift(1).over("node"))
    assert set(back["node"]) == of_kind["counter_reset"] - of_kind["no_host_samples"]
    for row in defects.filter(pl.col("kind") == "gap").iter_rows(named=True):
        inside = samples.filter((pl.col("node") == row["node"]) & pl.col("t").is_between(row["start"], row["end"]))
        assert inside.is_empty()
    assert 0.9 * 24 * 2 * 1440 < samples.height + 2 * 1440 < 24 * 2 * 1440


def test_without_defects_nothing_is_missing(tmp_path: Path) -> None:
    made = simulate(replace(SMALL, defects=False, days=1), tmp_path / "clean")
    samples = read(made)
    assert samples.height == 6 * 1440
    assert sum(samples.null_count().row(0)) == 0
    steps = samples.sort("node", "t").select(pl.col("t").diff().over("node")).to_series().drop_nulls()
    assert steps.unique().to_list() == [timedelta(minutes=1)]
    for name in samples.columns:
        if name not in ("t", "node", "load_average"):
            assert samples.sort("node", "t").select((pl.col(name).diff().over("node") < 0).any()).item() is False
    assert pl.read_parquet(made.folder / "truth" / "hosts.parquet").is_empty()


def test_a_lake_is_filled_with_what_the_files_hold(small: SimulatedCluster, tmp_path: Path) -> None:
    files = Lake.create(str(tmp_path / "files"))
    for file in (*small.telemetry, *small.hosts):
        ingest(files, ldms.read_file(file), now=SMALL.end)
    cluster = fill(SMALL, str(tmp_path / "lake"), tmp_path / "site")
    filled = Lake.open(str(tmp_path / "lake"))
    for table in (GPU_SAMPLES, NODE_SAMPLES):
        assert filled.latest(table).drop("seq").equals(files.latest(table).drop("seq"))
    counts = ("target", "reason", "column", "removed")
    assert filled.latest(REJECTS).select(counts).sort(counts).equals(files.latest(REJECTS).select(counts).sort(counts))
    assert filled.latest(DEVICES).height == SMALL.gpus
    assert set(filled.latest(ALLOCATIONS)["provenance"]) == {"node_list", "explicit"}
    assert set(filled.latest(JOBS)["job_id"]) >= set(small.jobs["job_id"])
    assert cluster.rows == small.rows
    assert (cluster.telemetry, cluster.hosts) == ((), ())
    assert not (tmp_path / "site" / "telemetry").exists()
    for name in ("hosts", "jobs", "gpus", "defects"):
        truths = [pl.read_parquet(folder / "truth" / f"{name}.parquet") for folder in (cluster.folder, small.folder)]
        assert truths[0].equals(truths[1])
