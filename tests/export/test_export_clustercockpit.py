"""A job archive: the two documents of each job, what they must hold by ClusterCockpit's schema,
values from minutes.
"""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from exported_lake import END, START, UGLY, busy, content_of, export

from madelake import held, job, make_lake, summarized
from tachograph.catalog.tables import JOB_MINUTES
from tachograph.export import clustercockpit
from tachograph.export.clustercockpit import is_archivable, job_data
from tachograph.lake.delta import Lake

REQUIRED = {
    *(
        "jobId",
        "user",
        "project",
        "cluster",
        "subCluster",
        "numNodes",
        "exclusive",
        "startTime",
        "jobState",
    ),
    *("duration", "resources", "statistics"),
}
STATES = {"completed", "failed", "cancelled", "stopped", "out_of_memory", "node_fail", "timeout"}
INTEGERS = ("jobId", "numNodes", "numAcc", "exclusive", "startTime", "duration")


@pytest.fixture(scope="module")
def archive(exported: Lake, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archive")
    [one] = export(exported, "clustercockpit", "--to", folder)
    assert (one["written"], one["unchanged"]) == (3, 1)  # job 2 still runs
    return folder


def of_job(archive: Path, job_id: int) -> tuple[dict[str, Any], dict[str, Any]]:
    folder = archive / "c" / "0" / f"{job_id:03d}" / str(int(START.timestamp()))
    assert sorted(path.name for path in folder.iterdir()) == ["data.json", "meta.json"]
    return json.loads((folder / "meta.json").read_text()), json.loads(
        (folder / "data.json").read_text()
    )


def test_progress_ends_when_the_last_job_is_written(exported: Lake, tmp_path: Path) -> None:
    progress: list[tuple[str, int, int]] = []
    clustercockpit.export(
        content_of(exported), Namespace(to=str(tmp_path)), lambda *step: progress.append(step)
    )
    assert progress == [("export jobs", 4, 4)]


def test_there_is_a_folder_per_job_that_ended(archive: Path) -> None:
    assert len(list(archive.rglob("*.json"))) == 6
    assert not (archive / "c" / "0" / "002").exists()


@pytest.mark.parametrize("job_id", [1, 3, 4])
def test_meta_holds_what_the_schema_requires(archive: Path, job_id: int) -> None:
    meta, data = of_job(archive, job_id)
    assert meta.keys() >= REQUIRED
    assert all(isinstance(meta[name], int) for name in INTEGERS)
    assert meta["jobState"] in STATES
    assert meta["numNodes"] > 0
    assert (meta["startTime"], meta["duration"]) == (
        int(START.timestamp()),
        (END - START).total_seconds(),
    )
    assert None not in meta.values()
    for metric in data.values():
        assert metric.keys() == {"accelerator"}
        body = metric["accelerator"]
        assert body.keys() == {"unit", "timestep", "series"}
        assert body["unit"]["base"] in ("B", "F", "B/s", "F/s", "CPI", "IPC", "Hz", "W", "")
        for series in body["series"]:
            assert len(series["data"]) == 30
            assert series["statistics"].keys() == {"avg", "min", "max"}
            held = {one["hostname"]: one["accelerators"] for one in meta["resources"]}
            assert series["id"] in held[series["hostname"]]


def test_values_are_minutes_in_the_units_of_clustercockpit(archive: Path) -> None:
    meta, data = of_job(archive, 1)
    busy, idle = data["acc_utilization"]["accelerator"]["series"]
    assert (busy["hostname"], busy["id"], busy["data"]) == ("n1", "0", [80.0] * 30)
    assert idle["statistics"] == {"avg": 0.0, "min": 0.0, "max": 0.0}
    assert data["acc_power"]["accelerator"]["series"][0]["data"][0] == 260.0
    memory = data["acc_mem_used"]["accelerator"]
    assert memory["unit"] == {"base": "B", "prefix": "M"}
    assert memory["series"][0]["data"][0] == pytest.approx(1000 * 2**20 / 10**6)
    assert meta["statistics"]["acc_used"] == {
        "unit": {"base": ""},
        "avg": 40.0,
        "min": 0.0,
        "max": 80.0,
    }
    assert "acc_tensor_active" not in data  # not measured
    assert (meta["user"], meta["project"], meta["metaData"]) == ("ada", "a", {"jobName": "train"})


def test_slices_arrays_and_jobs_without_samples(archive: Path) -> None:
    sliced, data = of_job(archive, 3)
    assert sliced["resources"] == [{"hostname": "n3", "accelerators": ["0:7"]}]
    assert (sliced["arrayJobId"], sliced["jobState"]) == (2, "timeout")
    assert data["acc_utilization"]["accelerator"]["series"][0]["id"] == "0:7"
    meta, nothing = of_job(archive, 4)
    assert (nothing, meta["statistics"]) == ({}, {})


def test_a_minute_without_samples_is_null(exported: Lake) -> None:
    content = content_of(exported)
    row = content.summaries.row(by_predicate=pl.col("job_id") == "1", named=True)
    minutes = content.minutes().filter((pl.col("job_id") == "1") & (pl.col("minute") != 5))
    data = job_data(row, minutes, {("n1", 0, None): "00000000:03:00.0"})
    first = data["acc_utilization"]["accelerator"]["series"][0]
    assert first["id"] == "00000000:03:00.0"
    assert [place for place, value in enumerate(first["data"]) if value is None] == [5]
    assert job_data(row, JOB_MINUTES.empty(), {}) == {}


def test_what_cannot_be_in_an_archive() -> None:
    fine = {"job_id": "7", "start": START, "end": END}
    assert is_archivable(fine)
    for odd in ({"job_id": UGLY}, {"end": None}, {"end": START}):
        assert not is_archivable(fine | odd)


def test_gpus_of_namesake_nodes_have_the_address_of_their_cluster(tmp_path: Path) -> None:
    clusters = {"c": "01:00.0", "d": "02:00.0"}
    lake = make_lake(
        tmp_path / "lake",
        gpu_samples=[row for name in clusters for row in busy("n1", 0, 0.5, cluster=name)],
        devices=[
            {"node": "n1", "gpu": 0, "cluster": name, "pci": pci, "last": END}
            for name, pci in clusters.items()
        ],
        jobs=[job("1", START, END, cluster=name, user="ada", gpus=1) for name in clusters],
        allocations=[
            row for name in clusters for row in held("1", "n1", (0,), START, END, cluster=name)
        ],
    )
    summarized(lake)
    export(lake, "clustercockpit", "--to", tmp_path / "archive")
    for name, pci in clusters.items():
        [meta] = (tmp_path / "archive" / name).rglob("meta.json")
        resources = json.loads(meta.read_text())["resources"]
        assert resources == [{"hostname": "n1", "accelerators": [pci]}]
