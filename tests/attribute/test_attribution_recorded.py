"""Attribution of what was really recorded: a shared Perlmutter node, and local times through clock changes."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from madelake import NOW, configured, fill, held, summarized
from tachograph.catalog.config import Configuration, SiteOptions, SlurmOptions
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest
from tachograph.lake.query import read_gpus, read_summaries
from tachograph.sources import allocation_map, ldms, sacct

SHARED = "51906088"
IDLE = "51911473"


def ingested(lake: Lake, source: Any, *files: Path, time_zone: str = "UTC") -> None:
    options = argparse.Namespace(files=list(map(str, files)), time_zone="UTC", job_start=[], trusted=True)
    configuration = Configuration(site=SiteOptions(time_zone=time_zone))
    ingest(lake, source.read(options, configuration=configuration, now=NOW), now=NOW)


@pytest.fixture
def perlmutter(recorded: Path, tmp_path: Path) -> Lake:
    """Telemetry of two jobs, as exported, and their records in local time."""
    lake = Lake.create(str(tmp_path / "lake"))
    folder = recorded / "nersc_perlmutter"
    ingested(lake, ldms, folder / f"job_{SHARED}.json", folder / f"job_{IDLE}.json")
    return lake


def accounted(lake: Lake, recorded: Path, *names: str) -> None:
    """Ingest job records, whose times are local, Pacific."""
    folder = recorded / "nersc_perlmutter"
    ingested(lake, sacct, *(folder / name for name in names), time_zone="America/Los_Angeles")


TO_THE_MINUTE = "job-data-iris-export.json"
WHILE_PENDING = "job-data.json"  # the job had not started yet


@pytest.mark.recorded
@pytest.mark.parametrize("records", [(TO_THE_MINUTE,), (WHILE_PENDING, TO_THE_MINUTE), (TO_THE_MINUTE, WHILE_PENDING)])
def test_one_gpu_of_a_shared_node_is_ambiguous_without_a_map(
    perlmutter: Lake, recorded: Path, records: tuple[str, ...]
) -> None:
    """The export holds the node's four GPUs; nobody says which one the job had, and the average is not shown as its.

    A record from before it started and one to the minute are one run.
    """
    accounted(perlmutter, recorded, *records)
    summarized(perlmutter)
    rows = read_summaries(perlmutter).filter(pl.col("job_id") == SHARED)
    assert rows.height == 1
    row = rows.row(0, named=True)
    assert row["attribution"] == "ambiguous"
    assert (row["start"].hour, row["start"].minute, row["elapsed_s"]) == (3, 37, 129)  # 20:37 in the afternoon there
    measured = [name for name in row if name.endswith(("_mean", "_max", "_fraction", "_imbalance"))]
    assert len(measured) > 60
    assert {name: row[name] for name in measured if row[name] is not None} == {}
    assert [row[name] for name in ("samples", "coverage", "energy_j", "pipes", "bound")] == [None] * 5


@pytest.mark.recorded
@pytest.mark.parametrize("gpu", range(4))
def test_with_a_map_it_has_its_gpu(perlmutter: Lake, recorded: Path, gpu: int) -> None:
    """Only GPU 2 was busy; the values are those of the rows of that GPU in the file itself."""
    accounted(perlmutter, recorded, TO_THE_MINUTE)
    rows = json.loads((recorded / "nersc_perlmutter" / f"job_{SHARED}.json").read_bytes())["data"]
    mine = [row for row in rows if row["gpu_id"] == gpu]
    fill(perlmutter, {"allocations": held(SHARED, mine[0]["hostname"].partition(".")[0], [gpu])}, chunk="map")
    _, jobs = summarized(perlmutter)
    row = jobs[SHARED]
    assert row["attribution"] == "explicit"
    inside = [one for one in mine if row["start"] <= _utc(one["timestamp"]) < row["end"]]
    active = [one["nersc_ldms_dcgm_gr_engine_active"] for one in inside]
    assert row["samples"] == len(active) > 3
    assert row["gr_engine_active_mean"] == pytest.approx(sum(active) / len(active), rel=1e-6)
    if gpu == 2:
        assert row["gr_engine_active_mean"] == pytest.approx(0.9999, abs=1e-4)
    else:
        assert row["gr_engine_active_mean"] < 0.01


@pytest.mark.recorded
@pytest.mark.parametrize(
    ("slurm", "expected"), [(SlurmOptions(), "ambiguous"), (SlurmOptions(exclusive=("gpu_regular",)), "whole_node")]
)
def test_two_idle_nodes(perlmutter: Lake, recorded: Path, slurm: SlurmOptions, expected: str) -> None:
    """The export names no GPUs: what the site says of its QOS makes the nodes the job's own."""
    accounted(perlmutter, recorded, TO_THE_MINUTE)
    _, jobs = summarized(perlmutter, configured(slurm=slurm))
    row = jobs[IDLE]
    assert row["attribution"] == expected
    assert jobs[SHARED]["attribution"] == "ambiguous"
    gpus = read_gpus(perlmutter, read_summaries(perlmutter)).filter(pl.col("job_id") == IDLE)
    if expected == "whole_node":
        assert (gpus.height, row["gpus"], row["gpus_seen"]) == (8, 8, 8)
        assert 0 < row["gr_engine_active_max"] < 0.01
        assert row["spatial_imbalance"] is None  # utilisation is not in the export
        assert row["gpu_hours"] == 8 * 138 / 3600
    else:
        assert gpus.height == 0


def _utc(written: str) -> datetime:
    found = datetime.fromisoformat(written)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


HEADER = "JobID|JobIDRaw|Cluster|Partition|Account|User|Submit|Start|End|Elapsed|State|NNodes|NodeList|AllocTRES"


def sacct_lake(folder: Path, *rows: str, zone: str, samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Jobs of an accounting file in local time over samples in UTC; {job id: summary}."""
    lake = Lake.create(str(folder / "lake"))
    file = folder / "sacct.txt"
    file.write_text("\n".join([HEADER, *rows]) + "\n")
    fill(lake, {"gpu_samples": samples}, chunk="samples")
    ingested(lake, sacct, file, time_zone=zone)
    return summarized(lake)[1]


def every_minute(first: datetime, last: datetime, level: float = 0.5) -> list[dict[str, Any]]:
    """Samples of two GPUs of n1, GPU 1 at twice the level; from `first` to before `last`."""
    count = int((last - first).total_seconds() // 60)
    times = [first + timedelta(minutes=i) for i in range(count)]
    return [{"t": t, "node": "n1", "gpu": gpu, "gpu_util": level * (1 + gpu)} for gpu in range(2) for t in times]


def line(job_id: str, start: str, end: str, elapsed: str, gpus: int = 2) -> str:
    """One record of one node: submitted at its start."""
    tres = f"billing=1,cpu=8,gres/gpu={gpus},node=1"
    return f"{job_id}|{job_id}|c|gpu|acc|anna|{start}|{start}|{end}|{elapsed}|COMPLETED|1|n1|{tres}"


def test_job_through_the_hour_that_occurs_twice(tmp_path: Path) -> None:
    """25 October 2026, Berlin: 01:30 summer time is 23:30 UTC, 02:30 winter time is 01:30 UTC; two hours."""
    first = datetime(2026, 10, 24, 22, tzinfo=UTC)
    samples = every_minute(first, first + timedelta(hours=6))
    row = sacct_lake(
        tmp_path, line("1", "2026-10-25T01:30:00", "2026-10-25T02:30:00", "02:00:00"),
        zone="Europe/Berlin", samples=samples,
    )["1"]  # fmt: skip
    assert row["start"] == datetime(2026, 10, 24, 23, 30, tzinfo=UTC)
    assert row["end"] == datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    assert (row["attribution"], row["samples"], row["coverage"]) == ("whole_node", 2 * 120, 1.0)


def test_the_same_clock_times_with_one_hour_of_run_time(tmp_path: Path) -> None:
    """Elapsed tells which 02:30 it was: the first."""
    first = datetime(2026, 10, 24, 22, tzinfo=UTC)
    row = sacct_lake(
        tmp_path, line("1", "2026-10-25T01:30:00", "2026-10-25T02:30:00", "01:00:00"),
        zone="Europe/Berlin", samples=every_minute(first, first + timedelta(hours=6)),
    )["1"]  # fmt: skip
    assert row["end"] == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert row["samples"] == 2 * 60


def test_job_through_the_hour_that_does_not_exist(tmp_path: Path) -> None:
    """29 March 2026, Berlin: from 01:30 (00:30 UTC) to 03:30 (01:30 UTC) is one hour."""
    first = datetime(2026, 3, 28, 23, tzinfo=UTC)
    row = sacct_lake(
        tmp_path, line("1", "2026-03-29T01:30:00", "2026-03-29T03:30:00", "01:00:00"),
        zone="Europe/Berlin", samples=every_minute(first, first + timedelta(hours=4)),
    )["1"]  # fmt: skip
    assert (row["elapsed_s"], row["samples"], row["coverage"]) == (3600, 2 * 60, 1.0)


def test_job_over_local_and_utc_midnight(tmp_path: Path) -> None:
    """Los Angeles: 16:30 to 18:30 on the 23rd is over midnight in UTC, and 23:30 to 00:30 is over the local one."""
    first = datetime(2026, 4, 23, 23, tzinfo=UTC)
    rows = sacct_lake(
        tmp_path,
        line("1", "2026-04-23T16:30:00", "2026-04-23T18:30:00", "02:00:00"),
        line("2", "2026-04-23T23:30:00", "2026-04-24T00:30:00", "01:00:00"),
        zone="America/Los_Angeles", samples=every_minute(first, first + timedelta(hours=9), 0.25),
    )  # fmt: skip
    assert rows["1"]["samples"] == 2 * 120
    assert rows["2"]["samples"] == 2 * 60
    for row in rows.values():
        assert (row["gpu_util_mean"], row["spatial_imbalance"]) == (0.375, 0.25)


def test_shared_node_with_a_map_file(tmp_path: Path) -> None:
    """Two jobs share n1; the map tells one of them."""
    first = datetime(2026, 4, 23, 12, tzinfo=UTC)
    lake = Lake.create(str(tmp_path / "lake"))
    fill(lake, {"gpu_samples": every_minute(first, first + timedelta(hours=2))}, chunk="samples")
    file, told = tmp_path / "sacct.txt", tmp_path / "map.csv"
    rows = [line(job, "2026-04-23T12:00:00", "2026-04-23T13:00:00", "01:00:00", gpus=1) for job in ("1", "2")]
    file.write_text("\n".join([HEADER, *rows]) + "\n")
    told.write_text("job_id,node,gpu\n2,n1,1\n")
    ingested(lake, sacct, file)
    ingested(lake, allocation_map, told)
    _, jobs = summarized(lake)
    assert (jobs["1"]["attribution"], jobs["1"]["gpu_util_mean"], jobs["1"]["gpu_hours"]) == ("ambiguous", None, 1.0)
    assert (jobs["2"]["attribution"], jobs["2"]["gpu_util_mean"]) == ("explicit", 1.0)
