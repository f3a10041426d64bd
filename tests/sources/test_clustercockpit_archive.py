"""A job archive of ClusterCockpit: jobs, allocations and samples, and what cannot be read of it."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from syrupy.assertion import SnapshotAssertion

from in_process import run_here
from row_lines import lake_lines

START = 1_775_001_600  # 2026-04-01
ADDRESSES = ("00000000:C1:00.0", "00000000:41:00.0")  # by index, not by address
UGLY = "x\n1|2|3,<b>\x1b[1m"
CLUSTER = {
    "name": "alex",
    "metricConfig": [{"name": "acc_power"}],
    "subClusters": [
        {"name": "a", "topology": {"accelerators": [{"id": "0000:c1:00.0"}, {"id": ADDRESSES[1]}]}},
        {"name": "cpu", "topology": {}},
    ],
}


def metric(base: str, prefix: str, values: Mapping[str, list[float | None]]) -> dict[str, Any]:
    """Series of node a1 by accelerator, each 60 s."""
    series = [
        {"hostname": "a1.site.org", "id": name, "data": data} for name, data in values.items()
    ]
    unit = {"base": base, "prefix": prefix}
    return {"accelerator": {"unit": unit, "timestep": 60, "series": series}}


def write(folder: Path, job_id: int, meta: Mapping[str, Any], data: object = None) -> Path:
    """Write a job of 150 s into the archive and return its folder."""
    described = {
        "jobId": job_id,
        "cluster": "alex",
        "startTime": START,
        "duration": 150,
        "jobState": "completed",
        "user": "ada",
        "numAcc": 2,
        "shared": "multi_user",
        "resources": [{"hostname": "a1.site.org", "accelerators": [*ADDRESSES]}],
        **meta,
    }
    job = folder / "alex" / str(job_id // 1000) / f"{job_id % 1000:03d}" / str(START)
    job.mkdir(parents=True)
    (folder / "alex" / "cluster.json").write_text(json.dumps(CLUSTER))
    (job / "meta.json").write_text(json.dumps(described))
    if data is not None:
        (job / "data.json.gz").write_bytes(gzip.compress(json.dumps(data).encode()))
    return job


def ingest(folder: Path) -> dict[str, Any]:
    """Run `tachograph ingest` on the folder; return what it printed."""
    words = ["ingest", str(folder / "archive"), "--lake", str(folder / "lake"), "--json"]
    done = run_here(words, folder, os.environ)
    assert (done.returncode, done.stderr) == (0, "")
    printed: dict[str, Any] = json.loads(done.stdout)["sources"]["clustercockpit"]
    return printed


def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    return pl.read_delta(str(folder / "lake" / table)).to_dicts()


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def test_series_become_samples_in_the_units_of_the_lake(
    archive: Path, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    first, second = ADDRESSES
    data = {
        "acc_utilization": metric("", "", {first: [50, None, 100, 7], second: [0, 0]}),
        "nv_fb_mem_used": metric("B", "G", {first: [2, 2, 2]}),
        "acc_mem_util": metric("%", "", {second: [25]}),
        "acc_power": metric("W", "K", {second: [None, 0.25]}),
        "cpu_load": {"node": {"unit": {"base": "load"}, "timestep": 60, "series": []}},
        "filesystems": [],  # the schema has a list here, which cc-backend cannot read
    }
    write(archive, 1_234_567, {"walltime": 3600, "metaData": {"jobName": UGLY}}, data)
    assert ingest(tmp_path)["rejects"] == []
    # The fourth value of the first GPU is after the end of the job. The collector divides bytes
    # by 2**20, prefixes are decimal from there.
    assert (
        lake_lines(tmp_path / "lake", "gpu_samples", "jobs", "allocations", "devices") == snapshot
    )
    again = ingest(tmp_path)
    assert again["chunks_known"] == again["chunks"] == 1


def test_jobs_without_ids_or_samples_are_kept(
    archive: Path, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    write(archive, 1, {"resources": [{"hostname": "a1"}, {"hostname": "a2"}], "shared": "none"})
    old = {"numAcc": 0, "shared": "", "exclusive": 1, "resources": [{"hostname": "c1"}]}
    write(archive, 2, {**old, "jobState": "stopped", "submitTime": START - 60})
    ingest(tmp_path)
    assert lake_lines(tmp_path / "lake", "jobs", "allocations") == snapshot


def test_an_address_has_the_index_of_the_subcluster_of_its_job(
    archive: Path, tmp_path: Path
) -> None:
    for job_id, kind in enumerate(("a", "b", "", "c"), start=1):
        resources = [{"hostname": f"{kind or 'x'}1", "accelerators": [ADDRESSES[0]]}]
        write(archive, job_id, {"subCluster": kind, "resources": resources})
    kinds = [
        {"name": "a", "topology": {"accelerators": [{"id": name} for name in ADDRESSES]}},
        {"name": "b", "topology": {"accelerators": [{"id": name} for name in ADDRESSES[::-1]]}},
    ]
    description = {**CLUSTER, "subClusters": kinds}
    (archive / "alex" / "cluster.json").write_text(json.dumps(description))
    printed = ingest(tmp_path)
    held = {row["job_id"]: row["gpu"] for row in rows(tmp_path, "allocations")}
    assert held == {"1": 0, "2": 1}
    # without a subcluster that is described the address has two indices
    counted = {(one["table"], one["reason"]): one["removed"] for one in printed["rejects"]}
    assert counted == {("allocations", "no_gpu"): 2}


def test_what_cannot_be_read_is_counted_and_the_rest_is_read(archive: Path, tmp_path: Path) -> None:
    fine = {"acc_utilization": metric("", "", {ADDRESSES[0]: [10]})}
    write(archive, 1, {}, fine)
    write(archive, 2, {"duration": -1}, fine)
    write(archive, 3, {"startTime": "x"})
    (write(archive, 4, {}, fine) / "meta.json").write_text("{")
    (write(archive, 5, {}) / "data.json.gz").write_bytes(gzip.compress(b"{}" * 99)[:-9])
    write(archive, 6, {"metaData": {"jobName": 7}})
    meta = write(archive, 8, {"user": "café"}) / "meta.json"
    meta.write_bytes(meta.read_text().encode().replace(b"\\u00e9", b"\xe9"))  # Latin-1
    data = write(archive, 9, {}) / "data.json"
    data.write_bytes(b'{"caf\xe9": {}}')
    unknown = "00000000:99:00.0"
    parts = {
        "acc_utilization": metric("", "", {unknown: [1]}),
        "acc_power": metric("J", "", {ADDRESSES[0]: [1]}),
    }
    resources = [{"hostname": "a1", "accelerators": [unknown]}]
    write(archive, 7, {"resources": resources}, parts)
    printed = ingest(tmp_path)
    counted = {(one["table"], one["reason"]): one["removed"] for one in printed["rejects"]}
    assert counted == {
        ("jobs", "unreadable_job"): 7,
        ("allocations", "no_gpu"): 1,
        ("gpu_samples", "no_gpu"): 1,
        ("gpu_samples", "unknown_unit"): 1,
    }
    assert {row["job_id"] for row in rows(tmp_path, "jobs")} == {"1", "7"}
    assert len(rows(tmp_path, "gpu_samples")) == 1


def test_a_folder_that_is_no_archive_is_one_line(archive: Path, tmp_path: Path) -> None:
    write(archive, 1, {})
    for path in (archive / "alex", archive / "nothing"):
        done = run_here(["ingest", "clustercockpit", str(path)], tmp_path, os.environ)
        assert (done.returncode, done.stderr.count("\n")) == (4, 1)
        assert "name the folder above CLUSTER/cluster.json" in done.stderr
    latin = b'{"subClusters": [{"topology": {"accelerators": [{"id": "caf\xe9"}]}}]}'
    for content in (b'{"subClusters": 1}', latin):
        (archive / "alex" / "cluster.json").write_bytes(content)
        done = run_here(["ingest", str(archive)], tmp_path, os.environ)
        assert done.returncode == 4
        (line,) = done.stderr.splitlines()
        assert "cluster.json: no description of a cluster" in line
