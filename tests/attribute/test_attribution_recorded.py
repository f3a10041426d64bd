"""Attribution of what was really recorded: a shared Perlmutter node, and local times through
clock changes.
"""

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
    options = argparse.Namespace(
        files=list(map(str, files)), time_zone="UTC", job_start=[], trusted=True
    )
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
@pytest.mark.parametrize(
    "records", [(WHILE_PENDING, TO_THE_MINUTE), (TO_THE_MINUTE, WHILE_PENDING)]
)
def test_one_gpu_of_a_shared_node_is_ambiguous_without_a_map(
    perlmutter: Lake, recorded: Path, records: tuple[str, ...]
) -> None:
    """The export holds the node's four GPUs; nobody says which one the job had, and the average is
    not shown as its.

    A record from before it started and one to the minute are one run. The export names no GPUs of
    the idle job either.
    """
    accounted(perlmutter, recorded, *records)
    _, jobs = summarized(perlmutter)
    assert jobs[IDLE]["attribution"] == "ambiguous"
    rows = read_summaries(perlmutter).filter(pl.col("job_id") == SHARED)
    assert rows.height == 1
    row = rows.row(0, named=True)
    assert row["attribution"] == "ambiguous"
    # 20:37 in the afternoon there.
    assert (row["start"].hour, row["start"].minute, row["elapsed_s"]) == (3, 37, 129)
    measured = [name for name in row if name.endswith(("_mean", "_max", "_fraction", "_imbalance"))]
    assert len(measured) > 60
    assert {name: row[name] for name in measured if row[name] is not None} == {}
    assert [row[name] for name in ("samples", "coverage", "energy_j", "pipes", "bound")] == [
        None
    ] * 5


@pytest.mark.recorded
def test_with_a_map_it_has_its_gpu(perlmutter: Lake, recorded: Path) -> None:
    """Only GPU 2 was busy; the values are those of the rows of that GPU in the file itself."""
    gpu = 2
    accounted(perlmutter, recorded, TO_THE_MINUTE)
    rows = json.loads((recorded / "nersc_perlmutter" / f"job_{SHARED}.json").read_bytes())["data"]
    mine = [row for row in rows if row["gpu_id"] == gpu]
    fill(
        perlmutter,
        {"allocations": held(SHARED, mine[0]["hostname"].partition(".")[0], [gpu])},
        chunk="map",
    )
    _, jobs = summarized(perlmutter)
    row = jobs[SHARED]
    assert row["attribution"] == "explicit"
    inside = [one for one in mine if row["start"] <= _utc(one["timestamp"]) < row["end"]]
    active = [one["nersc_ldms_dcgm_gr_engine_active"] for one in inside]
    assert row["samples"] == len(active) > 3
    assert row["gr_engine_active_mean"] == pytest.approx(sum(active) / len(active), rel=1e-6)
    assert row["gr_engine_active_mean"] == pytest.approx(0.9999, abs=1e-4)


@pytest.mark.recorded
def test_two_idle_nodes(perlmutter: Lake, recorded: Path) -> None:
    """The export names no GPUs: what the site says of its QOS makes the nodes the job's own."""
    accounted(perlmutter, recorded, TO_THE_MINUTE)
    slurm = SlurmOptions(exclusive=("gpu_regular",))
    _, jobs = summarized(perlmutter, configured(slurm=slurm))
    row = jobs[IDLE]
    assert row["attribution"] == "whole_node"
    assert jobs[SHARED]["attribution"] == "ambiguous"
    gpus = read_gpus(perlmutter, read_summaries(perlmutter)).filter(pl.col("job_id") == IDLE)
    assert (gpus.height, row["gpus"], row["gpus_seen"]) == (8, 8, 8)
    assert 0 < row["gr_engine_active_max"] < 0.01
    assert row["spatial_imbalance"] is None  # utilisation is not in the export
    assert row["gpu_hours"] == 8 * 138 / 3600


def _utc(written: str) -> datetime:
    found = datetime.fromisoformat(written)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


HEADER = "JobID|JobIDRaw|Cluster|Partition|Account|User|Submit|Start|End|Elapsed|State|NNodes|NodeList|AllocTRES"


def line(job_id: str, node: str, start: str, end: str, elapsed: str, gpus: int = 2) -> str:
    """One record of one node: submitted at its start."""
    tres = f"billing=1,cpu=8,gres/gpu={gpus},node=1"
    return f"{job_id}|{job_id}|c|gpu|acc|anna|{start}|{start}|{end}|{elapsed}|COMPLETED|1|{node}|{tres}"


def every_minute(node: str, first: datetime, hours: int) -> list[dict[str, Any]]:
    """Samples of two GPUs of a node, GPU 1 at twice the level."""
    times = [first + timedelta(minutes=minute) for minute in range(60 * hours)]
    return [
        {"t": t, "node": node, "gpu": gpu, "gpu_util": 0.25 * (1 + gpu)}
        for gpu in range(2)
        for t in times
    ]


# 25 October: 01:30 summer time is 23:30 UTC, 02:30 is 00:30 and 01:30 UTC; 29 March: 01:30 is 00:30
# UTC.
BERLIN = [
    (
        line("1", "n1", "2026-10-25T01:30:00", "2026-10-25T02:30:00", "02:00:00"),
        "2026-10-24T23:30",
        120,
    ),
    (
        line("2", "n2", "2026-10-25T01:30:00", "2026-10-25T02:30:00", "01:00:00"),
        "2026-10-24T23:30",
        60,
    ),
    (
        line("3", "n3", "2026-03-29T01:30:00", "2026-03-29T03:30:00", "01:00:00"),
        "2026-03-29T00:30",
        60,
    ),
]
LOS_ANGELES = [  # over midnight in UTC, and over the local one
    (
        line("1", "n1", "2026-04-23T16:30:00", "2026-04-23T18:30:00", "02:00:00"),
        "2026-04-23T23:30",
        120,
    ),
    (
        line("2", "n2", "2026-04-23T23:30:00", "2026-04-24T00:30:00", "01:00:00"),
        "2026-04-24T06:30",
        60,
    ),
]


@pytest.mark.parametrize(
    ("zone", "records"), [("Europe/Berlin", BERLIN), ("America/Los_Angeles", LOS_ANGELES)]
)
def test_local_times_through_clock_changes_and_midnights(
    tmp_path: Path, zone: str, records: list[tuple[str, str, int]]
) -> None:
    lake, file = Lake.create(str(tmp_path / "lake")), tmp_path / "sacct.txt"
    file.write_text("\n".join([HEADER, *(text for text, _, _ in records)]) + "\n")
    starts = [datetime.fromisoformat(start).replace(tzinfo=UTC) for _, start, _ in records]
    samples = [
        row
        for number, start in enumerate(starts, start=1)
        for row in every_minute(f"n{number}", start - timedelta(hours=2), 6)
    ]
    fill(lake, {"gpu_samples": samples}, chunk="samples")
    ingested(lake, sacct, file, time_zone=zone)
    rows = summarized(lake)[1]
    for number, (start, (_, _, minutes)) in enumerate(zip(starts, records, strict=True), start=1):
        row = rows[str(number)]
        assert (row["start"], row["end"]) == (start, start + timedelta(minutes=minutes))
        assert (row["attribution"], row["samples"], row["coverage"]) == (
            "whole_node",
            2 * minutes,
            1.0,
        )
        assert (row["elapsed_s"], row["gpu_util_mean"], row["spatial_imbalance"]) == (
            60 * minutes,
            0.375,
            0.25,
        )


def test_a_job_over_at_once_is_not_named_at_other_times(tmp_path: Path) -> None:
    """Its accounting gives its node from its start to the same second."""
    lake, file = Lake.create(str(tmp_path / "lake")), tmp_path / "sacct.txt"
    at = "2026-04-23T12:00:00"
    file.write_text("\n".join([HEADER, line("1", "n1", at, at, "00:00:00")]) + "\n")
    ingested(lake, sacct, file)
    assert summarized(lake)[0].misplaced == 0


def test_shared_node_with_a_map_file(tmp_path: Path) -> None:
    """Two jobs share n1; the map has one of them."""
    lake = Lake.create(str(tmp_path / "lake"))
    fill(
        lake,
        {"gpu_samples": every_minute("n1", datetime(2026, 4, 23, 12, tzinfo=UTC), 2)},
        chunk="samples",
    )
    file, allocations = tmp_path / "sacct.txt", tmp_path / "map.csv"
    times = ("2026-04-23T12:00:00", "2026-04-23T13:00:00", "01:00:00")
    file.write_text(
        "\n".join([HEADER, *(line(job, "n1", *times, gpus=1) for job in ("1", "2"))]) + "\n"
    )
    allocations.write_text("job_id,node,gpu\n2,n1,1\n")
    ingested(lake, sacct, file)
    ingested(lake, allocation_map, allocations)
    _, jobs = summarized(lake)
    assert (jobs["1"]["attribution"], jobs["1"]["gpu_util_mean"], jobs["1"]["gpu_hours"]) == (
        "ambiguous",
        None,
        1.0,
    )
    assert (jobs["2"]["attribution"], jobs["2"]["gpu_util_mean"]) == ("explicit", 0.5)
