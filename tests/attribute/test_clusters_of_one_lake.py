"""Two clusters with nodes, jobs and times of the same names in one lake: each as if it were alone."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import tachograph
from madelake import NOW, configured, fill, held, job, make_lake, summarized, table_frame, utc
from tachograph.catalog.chunks import Chunk, ChunkPart, of_cluster
from tachograph.catalog.config import AnalysisOptions
from tachograph.catalog.tables import (
    FINDINGS,
    JOB_GPUS,
    JOB_MINUTES,
    JOB_NODE_MINUTES,
    STEP_SUMMARIES,
    TABLES,
)
from tachograph.cli.analyze import caveats
from tachograph.judge.job_judge import JobJudge
from tachograph.lake.delta import Lake
from tachograph.lake.describe import describe_clusters
from tachograph.lake.ingest import ingest
from tachograph.lake.query import read_rows, read_summaries
from tachograph.pipeline.run import analyze
from tachograph.sources.series import SeriesMemory, SeriesVocabulary
from tachograph.sources.series_rows import SeriesRows

T = utc(23, 22)  # some jobs run over midnight
MINUTES = 240
NODES = ("n1", "n10", "n2")
GPUS = {"a": 2, "b": 3}
# pipes in use depend on all jobs of a lake, unless their threshold is fixed
FIXED_PIPES = configured(analysis=AnalysisOptions(pipe_percentile=False))


def telemetry(cluster: str, node: str, dice: random.Random) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of one node; its GPUs have the same indices and other UUIDs."""
    gpus = [{"node": node, "gpu": gpu} for gpu in range(GPUS[cluster])]
    times = [T + timedelta(minutes=minute) for minute in range(MINUTES)]
    return {
        "devices": [
            {**gpu, "uuid": f"GPU-{cluster}-{node}-{gpu['gpu']}", "nvml_index": gpu["gpu"]}
            for gpu in gpus
        ],
        "gpu_samples": [
            {**gpu, "t": t, "gpu_util": dice.choice([0.0, dice.random()]), "power_w": dice.random()}
            for gpu in gpus
            for t in times
        ],
        "node_samples": [{"node": node, "t": t, "load_average": dice.random()} for t in times],
    }


def accounting(cluster: str, dice: random.Random) -> dict[str, list[dict[str, Any]]]:
    """Return jobs, steps and their nodes or GPUs; the same ids, nodes and times in each cluster."""
    rows: dict[str, list[dict[str, Any]]] = {"jobs": [], "steps": [], "allocations": []}
    for number in range(6):
        job_id = str(number)
        start = T + timedelta(minutes=dice.randrange(160), seconds=dice.randrange(60))
        end = start + timedelta(minutes=dice.randrange(2, 90))
        nodes = dice.sample(NODES, dice.choice([1, 1, 2]))
        listed = [row for node in nodes for row in held(job_id, node)]
        exclusive = dice.choice([None, True])
        named = held(job_id, nodes[0], [0], start, end) if dice.random() < 0.4 else []
        given = {"exclusive": exclusive, "gpus": dice.choice([1, len(nodes) * GPUS[cluster]])}
        rows["jobs"].append(job(job_id, start, end, user=f"user-{cluster}", **given))
        rows["allocations"] += listed + named
        rows["steps"].append(
            {
                "job_id": job_id,
                "step": "0",
                "start": start,
                "end": end,
                "nodes": 1,
                "node_list": nodes[0],
            }
        )
    return rows


def chunks_of(cluster: str, seed: int, told: str) -> list[Chunk]:
    """Return what is ingested of a cluster. told: "label", its rows name it; "option"."""
    values = random.Random(f"{seed} {cluster}")
    groups = {node: telemetry(cluster, node, values) for node in NODES}
    groups["accounting"] = accounting(cluster, random.Random(seed))
    chunks = []
    for name, tables in groups.items():
        parts = []
        for table, rows in tables.items():
            frame = table_frame(table, rows)
            if told == "label":
                frame = frame.with_columns(cluster=pl.lit(cluster))
            elif table in ("jobs", "steps", "allocations"):
                frame = frame.with_columns(cluster=pl.lit(None, pl.String))
            else:
                frame = frame.drop("cluster")
            parts.append(ChunkPart(table, frame))
        chunk = Chunk(f"{name} {told}", "made", name, tuple(parts), 0)
        chunks.append(of_cluster(chunk, cluster) if told == "option" else chunk)
    if told == "label":
        return [Chunk(f"{c.id}{cluster}", c.source, c.origin, c.parts, 0) for c in chunks]
    return chunks


def analyzed(folder: Path, chunks: list[Chunk], dice: random.Random) -> Lake:
    """Return a lake with the chunks, which come in any order, analyzed once in between."""
    lake = Lake.create(str(folder))
    arriving = dice.sample(chunks, len(chunks))
    between = dice.randrange(1, len(arriving) + 1)
    for part in (arriving[:between], arriving[between:]):
        ingest(lake, part, now=NOW)
        analyze(lake, FIXED_PIPES, judge=JobJudge, now=NOW)
    return lake


def results(lake: Lake, cluster: str) -> dict[str, pl.DataFrame]:
    """Return all that an analysis computed for the jobs of a cluster."""
    jobs = read_summaries(lake, where=pl.col("cluster") == cluster)
    tables = (JOB_GPUS, JOB_MINUTES, JOB_NODE_MINUTES, STEP_SUMMARIES, FINDINGS)
    frames = {table.name: read_rows(lake, table, jobs).drop("seq") for table in tables}
    return {"jobs": jobs.drop("seq").sort("job_key"), **frames}


@pytest.mark.parametrize("told", ["label", "option"])
@pytest.mark.parametrize("seed", range(2))
def test_a_cluster_beside_another_one_is_as_alone(seed: int, told: str, tmp_path: Path) -> None:
    dice = random.Random(f"{seed} {told}")
    chunks = {cluster: chunks_of(cluster, seed, told) for cluster in GPUS}
    both = analyzed(tmp_path / "both", [*chunks["a"], *chunks["b"]], dice)
    attributed = 0
    for cluster in GPUS:
        alone = analyzed(tmp_path / cluster, chunks[cluster], dice)
        expected = results(alone, cluster)
        for name, frame in results(both, cluster).items():
            assert_frame_equal(frame, expected[name])
        attributed += int(expected["jobs"]["samples"].sum())
        opened = tachograph.open(str(tmp_path / "both"))
        there = opened.waste(where=f"cluster={cluster}")
        assert there.json() == tachograph.open(str(tmp_path / cluster)).waste().json()
        for node in NODES:
            page = opened.node(node, cluster=cluster).json()
            only = tachograph.open(str(tmp_path / cluster)).node(node, cluster=cluster)
            assert page == only.json()
    assert attributed
    assert describe_clusters(both).rows() == [("a", 6, 3, 6), ("b", 6, 3, 9)]


PAGE = b"""\
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",Hostname="n1",cluster="a",hpc_job="7"} 50
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-b",Hostname="n1",cluster="b",hpc_job="7"} 60
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-c",Hostname="n1"} 70
"""


def test_labels_name_the_cluster_of_samples_devices_and_jobs(tmp_path: Path) -> None:
    rows = SeriesRows(SeriesMemory(SeriesVocabulary()))
    rows.add_page(PAGE, t=T, node=None)
    lake = Lake.create(str(tmp_path))
    ingest(lake, [Chunk("page", "dcgm-exporter", "page", rows.parts(), 3)], now=NOW)
    samples = lake.latest(TABLES["gpu_samples"]).select("node", "cluster", "gpu", "gpu_util")
    assert samples.rows() == [
        ("n1", None, 0, pytest.approx(0.7)),
        ("n1", "a", 0, pytest.approx(0.5)),
        ("n1", "b", 0, pytest.approx(0.6)),
    ]
    devices = lake.latest(TABLES["devices"]).select("node", "cluster", "gpu", "uuid")
    assert devices.rows() == [
        ("n1", None, 0, "GPU-c"),
        ("n1", "a", 0, "GPU-a"),
        ("n1", "b", 0, "GPU-b"),
    ]
    named = lake.latest(TABLES["allocations"]).select("node", "cluster", "job_id").sort("cluster")
    assert named.rows() == [("n1", "a", "7"), ("n1", "b", "7")]
    assert lake.latest(TABLES["rejects"]).is_empty()


def sampled(cluster: str | None, minutes: range, **values: float) -> list[dict[str, Any]]:
    return [
        {"node": "n1", "gpu": 0, "cluster": cluster, "t": T + timedelta(minutes=minute), **values}
        for minute in minutes
    ]


def of(cluster: str, first: int, last: int) -> dict[str, list[dict[str, Any]]]:
    times = (T + timedelta(minutes=first), T + timedelta(minutes=last))
    return {
        "jobs": [job("7", *times, cluster=cluster, gpus=1)],
        "allocations": held("7", "n1", cluster=cluster),
    }


def test_samples_without_a_cluster_complete_those_of_the_only_one(tmp_path: Path) -> None:
    lake = make_lake(tmp_path, gpu_samples=sampled(None, range(60), gpu_util=0.5))
    fill(lake, {"gpu_samples": sampled("a", range(60), power_w=300.0)}, chunk="told")
    fill(lake, of("a", 0, 60), chunk="accounting")
    _, jobs = summarized(lake, FIXED_PIPES)
    assert jobs["7"]["samples"] == 60
    assert (jobs["7"]["gpu_util_mean"], jobs["7"]["power_w_mean"]) == (0.5, 300.0)


@pytest.mark.parametrize(("first", "reason"), [(59, "other_clusters"), (60, None)])
def test_samples_without_a_cluster_are_of_nobody_where_two_may_have_them(
    first: int, reason: str | None, tmp_path: Path
) -> None:
    """Job 7 of cluster b is on b's n1, whose samples name no cluster, up to job 7 of cluster a."""
    lake = make_lake(tmp_path, gpu_samples=sampled(None, range(120), gpu_util=0.5))
    fill(lake, {"gpu_samples": sampled("a", range(120), gpu_util=1.0)}, chunk="told")
    fill(lake, of("b", 0, 60), chunk="b")
    fill(lake, of("a", first, 120), chunk="a")
    analyze(lake, FIXED_PIPES, judge=JobJudge, now=NOW)
    jobs = read_summaries(lake).sort("cluster").select("ambiguous_because", "gpu_util_mean")
    assert jobs.rows() == [(None, 1.0), (reason, None if reason else 0.5)]


def renamed(
    folder: Path,
    *,
    telemetry: dict[str, tuple[str, ...]],
    accounting: dict[str, tuple[str, ...]],
    gpus: tuple[int | None, ...] = (0,),
    job_label: bool = False,
) -> Lake:
    """Return a lake of nodes by cluster: an hour of samples on each, and a job of each cluster."""
    lake = Lake.create(str(folder))
    for cluster, nodes in telemetry.items():
        samples, devices, named = [], [], []
        for node in nodes:
            rows = sampled(cluster, range(60), gpu_util=0.5)
            samples += [row | {"node": node} for row in rows]
            devices.append({"node": node, "gpu": 0, "cluster": cluster, "model": "A100"})
            ends = (T, T + timedelta(minutes=60))
            if job_label:
                named += held("7", node, (0,), *ends, provenance="samples", cluster=cluster)
        tables = {"devices": devices, "gpu_samples": samples, "allocations": named}
        fill(lake, tables, chunk=f"telemetry {cluster}")
    for cluster, nodes in accounting.items():
        add_job(lake, cluster, nodes, gpus)
    return lake


def add_job(lake: Lake, cluster: str, nodes: tuple[str, ...], gpus: tuple[int | None, ...]) -> None:
    times = (T, T + timedelta(minutes=60))
    rows = [row for node in nodes for row in held("7", node, gpus, cluster=cluster)]
    jobs = [job("7", *times, cluster=cluster, nodes=len(nodes), gpus=len(nodes))]
    fill(lake, {"jobs": jobs, "allocations": rows}, chunk=f"accounting {cluster}")


@pytest.mark.parametrize("gpus", [(0,), (None,)])
@pytest.mark.parametrize("job_label", [False, True])
def test_telemetry_may_name_the_only_cluster_otherwise(
    *, gpus: tuple[int | None, ...], job_label: bool, tmp_path: Path
) -> None:
    lake = renamed(
        tmp_path,
        telemetry={"prod-gpu": ("n1", "n2")},
        accounting={"hpc": ("n1", "n2")},
        gpus=gpus,
        job_label=job_label,
    )
    report, jobs = summarized(lake, FIXED_PIPES)
    summary = jobs["7"]
    assert (summary["cluster"], summary["samples"], summary["gpu_hours"]) == ("hpc", 120, 2.0)
    assert (summary["gpu_util_mean"], summary["gpu_model"]) == (0.5, "A100")
    assert (report.jobs, report.unaccounted, report.other_names) == (1, 0, ())
    (printed,) = caveats(report)
    assert printed.startswith("telemetry of cluster prod-gpu counts as that of hpc")
    opened = tachograph.open(str(tmp_path))
    for cluster in (None, "hpc", "prod-gpu"):
        page = opened.node("n1", cluster=cluster).json()
        assert len(page["gpus"]) == len(page["jobs"]) == 1


def test_jobs_lose_samples_when_their_own_cluster_is_sampled(tmp_path: Path) -> None:
    """What was certain with one cluster on each side is not with two; no job is left as it was."""
    lake = renamed(tmp_path, telemetry={"prod-gpu": ("n1", "n2")}, accounting={"hpc": ("n1", "n2")})
    assert summarized(lake, FIXED_PIPES)[1]["7"]["samples"] == 120
    devices = [{"node": "n2", "gpu": 0, "cluster": "hpc", "model": "A100"}]
    fill(lake, {"devices": devices}, chunk="of their own")
    report, jobs = summarized(lake, FIXED_PIPES)
    assert (jobs["7"]["samples"], jobs["7"]["gpu_hours"]) == (0, 2.0)
    assert report.other_names == (("hpc", "prod-gpu", 1),)


@pytest.mark.parametrize("gpus", [(0,), (None,)])
@pytest.mark.parametrize(
    ("telemetry", "accounting", "advised"),
    [
        # two clusters without telemetry have the node
        ({"x": ("n1",)}, {"hpc": ("n1",), "b": ("n1", "n2")}, False),
        # telemetry of two clusters without accounting has it
        ({"x": ("n1",), "y": ("n1",)}, {"hpc": ("n1",)}, False),
        # one is known on both sides, and has a node of this name, too
        ({"x": ("n1",), "b": ("n1",)}, {"hpc": ("n1",), "b": ("n1",)}, False),
        # it has one of the other nodes
        ({"x": ("n1", "n2"), "b": ("n2",)}, {"hpc": ("n1", "n2"), "b": ("n2",)}, False),
        # one of their nodes has the same name; the rest of each is missing
        ({"x": ("n1", "b1", "b2")}, {"hpc": ("n1", "n2")}, True),
        # the telemetry's name is that of another cluster in the accounting
        ({"b": ("n1",)}, {"hpc": ("n1",), "b": ("n2",)}, False),
    ],
)
def test_no_cluster_is_guessed_where_two_share_a_node(
    telemetry: dict[str, tuple[str, ...]],
    accounting: dict[str, tuple[str, ...]],
    advised: bool,
    gpus: tuple[int | None, ...],
    tmp_path: Path,
) -> None:
    lake = renamed(tmp_path, telemetry=telemetry, accounting=accounting, gpus=gpus)
    report = analyze(lake, FIXED_PIPES, judge=JobJudge, now=NOW)
    summary = read_summaries(lake, where=pl.col("cluster") == "hpc").row(0, named=True)
    assert (summary["samples"] or 0, summary["gpu_hours"]) == (0, len(accounting["hpc"]))
    assert summary["telemetry_cluster"] == ", ".join(sorted(telemetry))
    assert ("hpc", summary["telemetry_cluster"], 1) in report.other_names
    page = " ".join(repr(tachograph.open(str(tmp_path)).job("7", cluster="hpc")).split())
    for words in (f"cluster {summary['telemetry_cluster']}", "accounting hpc", "`ingest` it again"):
        assert words in page
    printed = "; ".join(caveats(report))
    assert f"hpc on nodes whose telemetry names cluster {summary['telemetry_cluster']}" in printed
    # a name to write is given only where no second one can be meant
    assert ('`cluster = "hpc"` in [[sources]] or `--cluster hpc`' in printed) == advised
    assert ("is not certain; give telemetry of each cluster" in printed) != advised


def test_a_renamed_cluster_gets_its_samples_by_the_name_of_each_time(tmp_path: Path) -> None:
    """Telemetry has one name; the accounting had one until May, and has another one since."""
    lake = renamed(tmp_path, telemetry={"x": ("n1",)}, accounting={"old": ("n1",)})
    hour = timedelta(minutes=60)
    later = [row | {"t": row["t"] + hour} for row in sampled("x", range(60), gpu_util=0.5)]
    fill(
        lake,
        {
            "gpu_samples": later,
            "jobs": [job("8", T + hour, T + 2 * hour, cluster="new", gpus=1)],
            "allocations": held("8", "n1", (0,), cluster="new"),
        },
        chunk="since May",
    )
    report, jobs = summarized(lake, FIXED_PIPES)
    assert [jobs[name]["samples"] or 0 for name in ("7", "8")] == [0, 0]
    (printed,) = caveats(report)
    assert printed.startswith("2 jobs of cluster new and old on nodes whose telemetry names clust")
    assert "of each time if one was renamed" in printed
    assert '"old"' not in printed
    for cluster, rows in (("old", sampled("old", range(60), gpu_util=0.5)), ("new", later)):
        of_time = [row | {"cluster": cluster} for row in rows]
        gpu = [{"node": "n1", "gpu": 0, "cluster": cluster, "model": "A100"}]
        fill(lake, {"devices": gpu, "gpu_samples": of_time}, chunk=f"by {cluster}")
    report, jobs = summarized(lake, FIXED_PIPES)
    assert [jobs[name]["samples"] for name in ("7", "8")] == [60, 60]
    assert report.other_names == ()


def test_clusters_are_matched_one_by_one(tmp_path: Path) -> None:
    """Beside a cluster that both sides name alike, another one may have two names."""
    lake = renamed(
        tmp_path,
        telemetry={"x": ("n1",), "b": ("n2",)},
        accounting={"hpc": ("n1",), "b": ("n2",)},
    )
    analyze(lake, FIXED_PIPES, judge=JobJudge, now=NOW)
    assert read_summaries(lake).sort("cluster")["samples"].to_list() == [60, 60]
