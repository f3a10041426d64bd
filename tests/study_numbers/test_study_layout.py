"""The layout of the published study: files as its notebooks read them, and the jobs that
Tachograph reads from them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from neighbours import neighbour
from simulated_lake import command, lake_of

from in_process import run_here
from tachograph.catalog.tables import JOB_SUMMARIES, JOBS
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_gpus, read_summaries

layouts = neighbour("../benchmarks", "notebook_layout")
P = "nersc_ldms_dcgm_"
# what the notebooks name, file by file
READ_OF_FIRST = {
    "JobID",
    "step",
    "hostname",
    "gpu_id",
    "ts_ns",
    f"{P}gpu_utilization",
    f"{P}fp16_active",
    f"{P}fp32_active",
    f"{P}fp64_active",
    f"{P}tensor_active",
    f"{P}dram_active",
    f"{P}fb_used",
}
READ_OF_SECOND = {
    "JobID",
    "hostname",
    "gpu_id",
    "ts_ns",
    f"{P}gpu_utilization",
    f"{P}total_energy_consumption",
}
OF_BOTH = {
    f"{P}sm_active",
    f"{P}nvlink_rx_bytes",
    f"{P}nvlink_tx_bytes",
    f"{P}pcie_rx_bytes",
    f"{P}pcie_tx_bytes",
    f"{P}gpu_temp",
}
# what devices.csv adds on the ordinary way, and the accounting that the study's file does not have
OTHERS = {
    *("hbm_mib", "hbm_peak_fraction", "timelimit_s", "seq"),
    *("cpus", "cpu_time_s", "cpu_efficiency", "max_rss_mib", "mem_requested_mib"),
}


@dataclass(frozen=True, slots=True)
class Study:
    """The layout, the lake made of it, and the lake of the same jobs made on the ordinary way."""

    layout: Any
    lake: Lake
    ordinary: Lake
    folder: Path


def read_layout(
    layout: Any, files: list[Path], lake: Path, *, accounting: Path | None = None
) -> Lake:
    """Return the lake of the study's files, analyzed; `accounting` instead of the study's."""
    slurm = accounting or layout.notebooks / "slurm.csv"
    common = ["--config", str(layout.tachograph / "tachograph.toml"), "--lake", str(lake)]
    command("ingest", "ldms", *map(str, files), *common)
    command("ingest", "sacct", str(slurm), "--trusted", *common)
    command("analyze", "--as-of", layout.cluster.plan.end.isoformat(), "--threads", "1", *common)
    return Lake.open(str(lake))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("layout")
    layout = layouts.write(40_000, folder, seed=5, median_hours=0.5)
    sets = [layout.notebooks / f"ldms_set{number}.parquet" for number in (1, 2)]
    lake = read_layout(layout, sets, folder / "study")
    return Study(
        layout, lake, lake_of(layout.tachograph, folder / "lake", layout.cluster.plan.end), folder
    )


def types(file: Path) -> dict[str, str]:
    with duckdb.connect() as connection:
        rows = connection.execute(f"DESCRIBE SELECT * FROM '{file}'").fetchall()
    return {row[0]: row[1] for row in rows}


def test_columns_and_types(study: Study) -> None:
    first, second = (
        types(study.layout.notebooks / f"ldms_{name}.parquet") for name in ("set1", "set2")
    )
    assert set(first) >= READ_OF_FIRST
    assert set(second) >= READ_OF_SECOND
    assert {*first, *second} >= OF_BOTH
    assert types(study.layout.notebooks / "ldms.parquet") == first
    for found in (first, second):
        assert {found[name] for name in ("JobID", "step", "hostname")} == {"VARCHAR"}
        assert found["ts_ns"] == "BIGINT"
        assert "INT" in found["gpu_id"]
        assert all(
            re.fullmatch("FLOAT|DOUBLE|U?INTEGER|U?BIGINT", found[name])
            for name in found
            if P in name
        )


def numbers(summaries: pl.DataFrame) -> dict[str, dict[str, float | int | None]]:
    """{job: {column: number}}"""
    names = [
        name
        for name, dtype in JOB_SUMMARIES.schema.items()
        if dtype.is_numeric() and name not in OTHERS
    ]
    return {
        row["job_id"]: {name: row[name] for name in names}
        for row in summaries.iter_rows(named=True)
    }


def test_numbers_of_jobs_are_those_of_the_ordinary_way(study: Study) -> None:
    found, expected = numbers(read_summaries(study.lake)), numbers(read_summaries(study.ordinary))
    assert found.keys() == expected.keys() == set(study.layout.jobs.get_column("job_id"))
    for job, row in expected.items():
        for name, value in row.items():
            if name.startswith("exit_"):  # the published layout has no exit codes
                assert found[job][name] is None
                continue
            assert found[job][name] == (
                None if value is None else pytest.approx(value, rel=1e-6)
            ), (job, name)


def test_gpus_are_those_of_the_truth(study: Study) -> None:
    gpus = read_gpus(study.lake, read_summaries(study.lake))
    found = set(gpus.select("job_id", "node", "gpu").rows())
    held = study.layout.cluster.gpus.join(study.layout.jobs, on="run", how="semi")
    assert found == set(held.select("job_id", "node", "gpu").rows())


def test_a_quoted_submit_line_is_what_was_submitted(study: Study) -> None:
    lines = [
        dict(lake.latest(JOBS).select("job_id", "submit_line").iter_rows())
        for lake in (study.lake, study.ordinary)
    ]
    assert lines[0] == lines[1]


def test_fewer_nodes_than_the_accounting_has(study: Study, tmp_path: Path) -> None:
    """GPUs of nodes without samples are unknown: coverage is that of all nodes, GPU-hours are
    not known.
    """
    accounting = pl.read_csv(
        study.layout.notebooks / "slurm.csv", schema_overrides={"JobID": pl.String}
    )
    first = accounting.item(0, "JobID")
    twice = pl.when(pl.col("JobID") == first).then(pl.col("NNodes") * 2).otherwise("NNodes")
    accounting.with_columns(twice.alias("NNodes")).write_csv(tmp_path / "slurm.csv")
    files = [study.layout.notebooks / "ldms_set1.parquet"]
    lake = read_layout(study.layout, files, tmp_path / "lake", accounting=tmp_path / "slurm.csv")
    found, whole = (
        read_summaries(each).filter(pl.col("job_id") == first).row(0, named=True)
        for each in (lake, study.lake)
    )
    assert found["coverage"] == pytest.approx(whole["coverage"] / 2)
    assert (found["gpus"], found["gpu_hours"]) == (None, None)
    assert found["gpu_util_mean"] == pytest.approx(whole["gpu_util_mean"])


def analyzed(folder: Path, *ingested: tuple[str, Path], zone: str) -> tuple[dict[str, Any], str]:
    """What `analyze` of a new lake prints, as JSON and on stderr."""
    (folder / "own.toml").write_text(f'[site]\ntime_zone = "{zone}"\n')
    common = ["--config", "own.toml", "--lake", "lake"]
    for source, file in ingested:
        words = ("ingest", source, str(file), *(("--trusted",) if source == "sacct" else ()))
        command(*words, "--config", str(folder / "own.toml"), "--lake", str(folder / "lake"))
    done = run_here(
        ["analyze", "--as-of", "2025-06-01T00:00:00Z", "--threads", "1", "--json", *common],
        folder,
        {},
    )
    assert done.returncode == 0
    return json.loads(done.stdout), done.stderr


def page_of(folder: Path, job: str) -> str:
    done = run_here(["job", job, "--config", "own.toml", "--lake", "lake"], folder, {})
    assert done.returncode == 0
    return " ".join(done.stdout.split())


def test_accounting_of_another_zone_is_named(study: Study, tmp_path: Path) -> None:
    """The accounting has Pacific times, the configuration says UTC: no sample lies within its
    job.
    """
    sources = (
        ("ldms", study.layout.notebooks / "ldms_set1.parquet"),
        ("sacct", study.layout.notebooks / "slurm.csv"),
    )
    report, messages = analyzed(tmp_path, *sources, zone="UTC")
    jobs = study.layout.jobs.height
    assert (report["jobs"], report["ambiguous"], report["misplaced"]) == (jobs, jobs, jobs)
    zone = report["zone"]
    assert zone["zone_name"] == "America/Los_Angeles"
    assert zone["fitting"] > 0.9 * jobs > 0.2 * jobs > zone["now_fitting"]
    assert (
        f"{jobs} jobs named by samples or maps only outside of the accounted times: "
        f"{zone['fitting']} of {jobs} jobs start with GPU work if their times are of "
        f"America/Los_Angeles, {zone['now_fitting']} if of UTC" in messages
    )
    assert "--time-zone America/Los_Angeles --instead-of UTC" in messages
    assert "site.time_zone" in page_of(tmp_path, study.layout.jobs.item(0, "job_id"))


def test_jobs_that_nothing_places_are_listed(study: Study, tmp_path: Path) -> None:
    """Accounting alone: every job is listed, with why nothing is known of its GPUs."""
    report, messages = analyzed(
        tmp_path, ("sacct", study.layout.notebooks / "slurm.csv"), zone=layouts.ZONE
    )
    jobs = study.layout.jobs.height
    assert (report["jobs"], report["unplaced"], report["misplaced"]) == (jobs, jobs, 0)
    assert "no node list in the accounting, and no sample or map names them" in messages
    assert "no sample or map names it" in page_of(tmp_path, study.layout.jobs.item(0, "job_id"))


def test_jobs_without_accounting_are_counted(study: Study, tmp_path: Path) -> None:
    """Samples alone: jobs last from their first to their last sample."""
    report, messages = analyzed(
        tmp_path, ("ldms", study.layout.notebooks / "ldms_set1.parquet"), zone="UTC"
    )
    jobs = study.layout.jobs.height
    assert (report["jobs"], report["unaccounted"]) == (jobs, jobs)
    assert report["unaccounted_samples"] == report["attributed"] == study.layout.samples
    assert "not in the accounting, known from samples or maps alone" in messages
    found = read_summaries(Lake.open(str(tmp_path / "lake")))
    assert found.select("state", "user").unique().rows() == [(None, None)]
    assert set(found.get_column("attribution")) == {"explicit"}
