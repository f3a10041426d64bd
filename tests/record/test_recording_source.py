"""A recording in the lake of a site: spools, cut off and whole, and tables; read again it
changes nothing.
"""

from __future__ import annotations

import json
from argparse import Namespace
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
from recorded_fleet import BEGIN, JOB, SILENT_FROM, SILENT_GPU, committed, recorded

from tachograph.annexes.watch.record.commit import commit_spool
from tachograph.catalog.config import Configuration
from tachograph.catalog.tables import ALLOCATIONS, DEVICES, GPU_SAMPLES, JOBS
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import IngestReport, ingest
from tachograph.sources.recording import read

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def take_in(lake: Lake, *paths: Path, without_jobs: bool = False) -> IngestReport:
    options = Namespace(
        files=[str(path) for path in paths], without_jobs=without_jobs, lake=lake.location
    )
    return ingest(lake, read(options, configuration=Configuration(), now=NOW), now=NOW)


def content(lake: Lake) -> dict[str, list[tuple[object, ...]]]:
    tables = (GPU_SAMPLES, DEVICES, JOBS, ALLOCATIONS)
    return {table.name: lake.latest(table).drop("seq").rows() for table in tables}


def test_samples_are_those_that_were_shown_live(tmp_path: Path) -> None:
    spool, live = recorded(tmp_path / "run", 50)
    rows = commit_spool(spool, tmp_path / "run").latest(GPU_SAMPLES)
    wanted = 0
    for look, snapshot in enumerate(live):
        for place in range(len(snapshot.gpus)):
            if look > SILENT_FROM and snapshot.value("power_w", place) is None:
                continue  # one row without values when it stopped reporting, no more
            wanted += 1
    assert rows.height == wanted
    one = rows.filter(pl.col("t").dt.epoch("s") == int(BEGIN) + 7, node="sim002", gpu=1).row(
        0, named=True
    )
    assert one["energy_j"] == live[7].value("energy_j", 5)
    assert abs(one["sm_active"] - (live[7].value("sm_active", 5) or 0)) < 1e-7
    unreported = rows.filter(node="sim001", gpu=SILENT_GPU).filter(pl.col("power_w").is_null())
    assert unreported["t"].dt.epoch("s").to_list() == [int(BEGIN) + SILENT_FROM]


def test_job_devices_and_allocations(tmp_path: Path) -> None:
    spool, _ = recorded(tmp_path / "run", 10)
    lake = commit_spool(spool, tmp_path / "run")
    job = lake.latest(JOBS).row(0, named=True)
    reported = {
        name: job[name]
        for name in ("job_id", "name", "user", "cluster", "state", "exit_code", "nodes", "gpus")
    }
    assert reported == {
        "job_id": JOB.job_id, "name": JOB.name, "user": "ana", "cluster": "tiny", "state": "COMPLETED", "exit_code": 0,
        "nodes": 2, "gpus": 8,
    }  # fmt: skip
    assert (job["start"].timestamp(), job["elapsed_s"], job["node_list"]) == (
        BEGIN,
        10.0,
        "sim001,sim002",
    )
    held = lake.latest(ALLOCATIONS)
    assert held.height == 8
    assert set(held["provenance"]) == {"explicit"}
    assert lake.latest(DEVICES)["uuid"].n_unique() == 8
    assert not spool.exists()
    assert json.loads(spool.with_suffix(".json").read_text())["job_id"] == JOB.job_id


def test_a_recording_read_again_changes_nothing(tmp_path: Path) -> None:
    committed(tmp_path / "run", 30)
    lake = Lake.create(str(tmp_path / "site"))
    assert take_in(lake, tmp_path / "run").rows["gpu_samples"] == 8 * 30 - 9
    before, versions = content(lake), [lake.version(table) for table in (GPU_SAMPLES, JOBS)]
    report = take_in(lake, tmp_path / "run")
    assert report.chunks_known == report.chunks
    assert content(lake) == before == content(Lake.open(str(tmp_path / "run")))
    assert [lake.version(table) for table in (GPU_SAMPLES, JOBS)] == versions


def test_a_spool_that_grows_is_read_on(tmp_path: Path) -> None:
    """While the command runs, after a kill, and when all is there."""
    whole, _ = recorded(tmp_path / "whole", 40)
    content_of_whole = whole.read_bytes()
    growing = tmp_path / "growing.spool"
    lake = Lake.create(str(tmp_path / "site"))
    counts = []
    for part in (0.4, 0.6, 0.6, 0.8, 1.0, 1.0):
        growing.write_bytes(content_of_whole[: int(len(content_of_whole) * part)])
        take_in(lake, growing)
        counts.append(lake.scan(GPU_SAMPLES).select(pl.len()).collect().item())
    direct = commit_spool(whole, tmp_path / "whole")
    assert counts == sorted(counts)
    assert counts[-1] == direct.latest(GPU_SAMPLES).height
    assert content(lake) == content(direct)


def test_an_unfinished_recording_ends_with_its_last_sample(tmp_path: Path) -> None:
    spool, _ = recorded(tmp_path / "run", 12, end=False)
    lake = Lake.create(str(tmp_path / "run"))
    take_in(lake, tmp_path / "run")
    job = lake.latest(JOBS).row(0, named=True)
    assert (job["end"].timestamp(), job["state"], job["exit_code"]) == (BEGIN + 11, None, None)
    before = content(lake)
    take_in(lake, tmp_path / "run")  # its own tables are not read into it
    assert content(lake) == before
    assert spool.exists()


def test_jobs_may_be_left_to_the_accounting(tmp_path: Path) -> None:
    committed(tmp_path / "run", 5)
    lake = Lake.create(str(tmp_path / "site"))
    take_in(lake, tmp_path / "run", without_jobs=True)
    assert lake.latest(JOBS).is_empty()
    assert lake.latest(ALLOCATIONS).height == 8
    take_in(lake, tmp_path / "run")
    assert lake.latest(JOBS).height == 1


def test_two_commands_of_one_job_are_one_job(tmp_path: Path) -> None:
    committed(tmp_path / "run", 30)
    job = committed(tmp_path / "run", 10).latest(JOBS).row(0, named=True)
    assert (job["start"].timestamp(), job["elapsed_s"]) == (BEGIN, 30.0)


def test_an_anonymous_recording_has_no_names(tmp_path: Path) -> None:
    spool, _ = recorded(tmp_path / "run", 5, anonymous=True)
    lake = commit_spool(spool, tmp_path / "run")
    assert set(lake.latest(GPU_SAMPLES)["node"]) == {"node1", "node2"}
    assert lake.latest(DEVICES).select("uuid", "pci").null_count().row(0) == (8, 8)
    reported = spool.with_suffix(".json").read_bytes()
    assert b"sim001" not in reported
