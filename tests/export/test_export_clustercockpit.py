"""A job archive: the two documents of each job, what they must hold by ClusterCockpit's schema,
values from minutes.
"""

from __future__ import annotations

import json
import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from exported_lake import END, START, UGLY, busy, content_of, export, one_line, run
from jsonschema import Draft202012Validator

from in_process import run_here
from jobframes import job_row
from madelake import held, job, make_lake, summarized
from tachograph.catalog.rows import JobSummaryRow
from tachograph.catalog.tables import JOB_MINUTES, JOB_NODE_MINUTES
from tachograph.export import clustercockpit
from tachograph.export.clustercockpit import is_archivable, job_data, job_meta
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_gpus, read_summaries

DOCUMENTS = json.loads(
    (Path(__file__).parent / "clustercockpit_schema.json").read_text(encoding="utf-8")
)


def validator(document: str) -> Draft202012Validator:
    """Validator of `meta`, `data` or `cluster`."""
    return Draft202012Validator({**DOCUMENTS, "$ref": f"#/$defs/{document}"})


def assert_accepted(archive: Path) -> int:
    """Assert what cc-backend demands of an archive; return the number of jobs."""
    assert (archive / "version.txt").read_text() == "3\n"
    kinds: dict[str, list[dict[str, Any]]] = {}
    for file in archive.glob("*/cluster.json"):
        description = json.loads(file.read_text())
        validator("cluster").validate(description)
        assert description["name"] == file.parent.name
        kinds[file.parent.name] = description["subClusters"]
    metas = list(archive.glob("*/*/*/*/meta.json"))
    for file in metas:
        meta = json.loads(file.read_text())
        validator("meta").validate(meta)
        data = json.loads((file.parent / "data.json").read_text())
        validator("data").validate(data)
        number = meta["jobId"]
        folders = (str(number // 1000), f"{number % 1000:03d}", str(meta["startTime"]))
        assert file.parent == archive / meta["cluster"] / Path(*folders)
        assert len(meta["resources"]) == meta["numNodes"]  # internal/importer, SanityChecks
        (kind,) = (kind for kind in kinds[meta["cluster"]] if kind["name"] == meta["subCluster"])
        hosts = {one["hostname"]: one["accelerators"] for one in meta["resources"]}
        assert kind["nodes"] == "*" or hosts.keys() <= set(kind["nodes"].split(","))
        for metric in data.values():
            for series in metric.get("accelerator", {"series": []})["series"]:
                assert series["id"] in hosts[series["hostname"]]
                assert len(series["data"]) == -(-meta["duration"] // 60)
    return len(metas)


@pytest.fixture(scope="module")
def archive(exported: Lake, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archive")
    [one] = export(exported, "clustercockpit", "--to", folder)
    assert (one["written"], one["left_out"]) == (3, 1)  # job 2 still runs
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
    assert len(list(archive.glob("*/*/*/*/*.json"))) == 6
    assert not (archive / "c" / "0" / "002").exists()


def test_cc_backend_would_accept_every_document(archive: Path) -> None:
    assert assert_accepted(archive) == 3


@pytest.mark.slow
def test_every_job_of_the_demo_is_accepted_and_read_back(demo: Path, tmp_path: Path) -> None:
    """The utilisation of each GPU of each job is that of the lake, by minutes."""
    lake = Lake.open(str(demo / "lake"))
    [written] = export(lake, "clustercockpit", "--to", tmp_path / "archive")
    summaries = read_summaries(lake)
    ended = summaries.filter(pl.col("end").is_not_null())
    gpus = read_gpus(lake, ended)
    assert written["written"] == assert_accepted(tmp_path / "archive") == gpus["job_key"].n_unique()
    again = read_again(tmp_path)
    keys = ("job_key", "node", "gpu", "mig")
    both = read_gpus(again, read_summaries(again)).join(
        gpus, on=keys, how="full", nulls_equal=True, suffix="_before"
    )
    assert both["job_key"].null_count() == both["job_key_before"].null_count() == 0
    for name, most in (("gpu_util_mean", 0.02), ("hbm_used_mib_max", 0.01), ("power_w_mean", 3)):
        for value, before in both.select(name, f"{name}_before").iter_rows():
            assert (value is None) is (before is None), name
            assert value is None or abs(value - before) < most, name
    jobs = read_summaries(again).join(summaries, on="job_key", suffix="_before")
    assert jobs.height == written["written"]
    for name in ("user", "account", "partition", "name", "state", "start", "end", "gpus", "submit"):
        assert jobs[name].equals(jobs[f"{name}_before"]), name


def read_again(folder: Path) -> Lake:
    """A lake with what `ingest` reads of the archive in a folder, analyzed."""
    words = ["ingest", str(folder), "--lake", str(folder / "again")]
    done = run_here(words, folder, os.environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert "rejected" not in done.stdout
    again = Lake.open(str(folder / "again"))
    summarized(again)
    return again


def test_a_description_of_a_site_is_completed_and_not_changed(
    exported: Lake, tmp_path: Path
) -> None:
    own = {"name": "c", "metricConfig": [{"name": "acc_power", "peak": 1}], "subClusters": []}
    description = tmp_path / "c" / "cluster.json"
    description.parent.mkdir()
    description.write_text(json.dumps(own))
    for _ in range(2):  # the second time nothing is missing
        export(exported, "clustercockpit", "--to", tmp_path)
        after = json.loads(description.read_text())
        assert after["metricConfig"][0] == own["metricConfig"][0]
        names = [metric["name"] for metric in after["metricConfig"]]
        assert names.count("acc_power") == 1
        assert "acc_utilization" in names
        assert [kind["name"] for kind in after["subClusters"]] == ["unknown"]


def test_other_versions_and_descriptions_are_refused(exported: Lake, tmp_path: Path) -> None:
    (tmp_path / "version.txt").write_text("2\n")
    words = ("clustercockpit", "--to", tmp_path)
    one_line(run(exported, *words), 7, "version.txt", "version 2, not 3")
    (tmp_path / "version.txt").write_text("3")
    (tmp_path / "c").mkdir()
    for text in ("[]", "{", '{"subClusters": 1}', '{"subClusters": [1]}'):
        (tmp_path / "c" / "cluster.json").write_text(text)
        one_line(run(exported, *words), 7, "cluster.json", "no description of a cluster")


def test_hosts_that_a_job_had_to_itself_fill_required_statistics(exported: Lake) -> None:
    summaries = content_of(exported).summaries
    row = job_row(**summaries.row(by_predicate=pl.col("job_id") == "1", named=True))
    hosts = pl.DataFrame(
        [{"node": "n1", "minute": 3, "cpu_user": 0.5, "load_average": 12.0}],
        schema_overrides=JOB_NODE_MINUTES.schema,
    )
    data = job_data(row, JOB_MINUTES.empty(), {}, hosts)
    validator("data").validate(data)
    assert data["cpu_user"]["node"]["series"][0]["data"][3] == 50.0
    gpus = content_of(exported).gpus().filter(pl.col("job_id") == "1")
    meta = job_meta(row, gpus, data, {})
    assert meta["statistics"]["cpu_load"] == {"unit": {"base": ""}, "avg": 12, "min": 12, "max": 12}
    assert meta["metaData"]["notRecorded"] == "mem_used, flops_any, mem_bw"


def test_values_are_minutes_in_the_units_of_clustercockpit(archive: Path) -> None:
    meta, data = of_job(archive, 1)
    busy, idle = data["acc_utilization"]["accelerator"]["series"]
    assert (busy["hostname"], busy["id"], busy["data"]) == ("n1", "0", [80.0] * 30)
    assert idle["statistics"] == {"avg": 0.0, "min": 0.0, "max": 0.0}
    assert data["acc_power"]["accelerator"]["series"][0]["data"][0] == 260.0
    memory = data["acc_mem_used"]["accelerator"]
    assert memory["unit"] == {"base": "B", "prefix": "M"}
    # MiB called MB, as cc-metric-collector writes it
    assert memory["series"][0]["data"][0] == 1000.0
    utilization = {"unit": {"base": ""}, "avg": 40.0, "min": 0.0, "max": 80.0}
    assert meta["statistics"]["acc_utilization"] == utilization
    assert meta["footprint"]["acc_utilization_avg"] == 40.0
    # 260 W and 100 W, in the 30 minutes between the first and the last of the samples
    assert meta["energy"] == pytest.approx(360 * 1800, rel=0.02)
    assert "acc_tensor_active" not in data  # not measured
    required = "cpu_user, cpu_load, mem_used, flops_any, mem_bw"
    assert meta["metaData"] == {"jobName": "train", "notRecorded": required}
    assert (meta["user"], meta["project"]) == ("ada", "a")
    assert meta["shared"] == "multi_user"


def test_memory_is_read_back_as_it_was(exported: Lake, tmp_path: Path) -> None:
    export(exported, "clustercockpit", "--to", tmp_path / "archive")
    again = read_again(tmp_path)
    keys = ("job_id", "node", "gpu", "mig")
    before, after = (
        read_gpus(lake, read_summaries(lake)).filter(pl.col("job_id") == "1").sort(keys)
        for lake in (exported, again)
    )
    assert before["hbm_used_mib_max"].to_list() == after["hbm_used_mib_max"].to_list()
    assert before["hbm_used_mib_max"].max() == 1000.0


def test_slices_arrays_and_jobs_without_samples(archive: Path) -> None:
    sliced, data = of_job(archive, 3)
    assert sliced["resources"] == [{"hostname": "n3", "accelerators": ["0:7"]}]
    assert (sliced["arrayJobId"], sliced["jobState"]) == (2, "timeout")
    assert data["acc_utilization"]["accelerator"]["series"][0]["id"] == "0:7"
    meta, nothing = of_job(archive, 4)
    assert (nothing, meta["footprint"], meta["monitoringStatus"]) == ({}, {}, 0)


def test_a_minute_without_samples_is_null(exported: Lake) -> None:
    content = content_of(exported)
    row = job_row(**content.summaries.row(by_predicate=pl.col("job_id") == "1", named=True))
    minutes = content.minutes().filter((pl.col("job_id") == "1") & (pl.col("minute") != 5))
    data = job_data(row, minutes, {("n1", 0, None): "00000000:03:00.0"})
    first = data["acc_utilization"]["accelerator"]["series"][0]
    assert first["id"] == "00000000:03:00.0"
    assert [place for place, value in enumerate(first["data"]) if value is None] == [5]
    assert job_data(row, JOB_MINUTES.empty(), {}) == {}


def test_what_cannot_be_in_an_archive() -> None:
    fine: JobSummaryRow = {"job_id": "7", "start": START, "end": END, "state": "OUT_OF_MEMORY"}
    assert is_archivable(fine)
    changes: tuple[JobSummaryRow, ...] = (
        {"job_id": UGLY},
        {"end": None},
        {"end": START},
        {"state": None},
    )
    for odd in changes:
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
