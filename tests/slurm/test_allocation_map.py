"""Explicit maps, prolog logs, and what Slurm tells of the GPUs of running jobs."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from slurm_reading import MADE, VERSIONS, Write
from syrupy.assertion import SnapshotAssertion

from row_lines import reading_lines
from tachograph.catalog.errors import InputError
from tachograph.sources import allocation_map
from tachograph.sources.allocation_map import AllocationMapReading
from tachograph.sources.slurm.records import SlurmCluster

Held = set[tuple[str, str, int]]

read_map = partial(allocation_map.read_map, trusted=True)  # of jobs that tests named


def held(reading: AllocationMapReading) -> Held:
    rows = [
        (str(row["job_id"]), str(row["node"]), int(str(row["gpu"]))) for row in reading.allocations
    ]
    assert len(rows) == len(set(rows))
    return set(rows)


# who held what when the three clusters were asked, from the text of scontrol
TRAIN = {("1", "gpu01", 0), ("1", "gpu01", 1)}
DDP = {("2", node, gpu) for node in ("gpu03", "gpu04") for gpu in range(4)}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["scontrol_show_job_d.all.txt", "squeue.json"])
def test_running_jobs_of_a_version(version: str, name: str) -> None:
    reading = read_map(MADE / version / name, cluster=SlurmCluster())
    assert reading.rejected == []
    rows = held(reading)
    assert rows >= TRAIN | DDP
    assert len(rows) == 15
    assert not Counter((node, gpu) for _, node, gpu in rows) - Counter(
        {(node, gpu): 1 for _, node, gpu in rows}
    )
    for row in reading.allocations:
        assert (row["provenance"], row["end"], row["mig"]) == ("live_index", None, None)
        assert row["start"] is not None


@pytest.mark.parametrize("version", VERSIONS)
def test_ended_jobs_hold_nothing(version: str) -> None:
    reading = read_map(MADE / version / "scontrol_show_job_d.after_end.txt", cluster=SlurmCluster())
    assert (reading.allocations, reading.rows_read) == ([], 18)


def test_answers_of_slurmrestd(recorded: Path) -> None:
    for version in ("24.05", "25.11"):
        folder = recorded / "slurmrestd" / version
        found = {
            path.name.removeprefix("slurm-job-gpus-").removesuffix(".json"): held(
                read_map(path, cluster=SlurmCluster())
            )
            for path in sorted(folder.glob("slurm-job-gpus-*.json"))
            if not path.name.endswith("archived.json")
        }
        assert {name: len(rows) for name, rows in found.items()} == {
            "completed": 0,
            "gres": 4,
            "multi-nodes": 8,
            "multi-types": 1,
            "pending": 0,
            "per-node": 2,
            "per-socket": 2,
            "per-task": 4,
            "running": 4,
            "type": 1,
        }
        assert {(node, gpu) for _, node, gpu in found["multi-nodes"]} == {
            (f"gpu{n}", g) for n in (1, 2) for g in range(4)
        }
        with pytest.raises(InputError, match="Unable to query"):
            read_map(folder / "slurm-job-gpus-archived.json", cluster=SlurmCluster())


@pytest.mark.parametrize("version", ["24.11.5", "26.05.5"])
def test_scontrol_as_json(recorded: Path, version: str) -> None:
    folder = recorded / "slurm_outputs" / version
    every, running = (
        read_map(folder / name, cluster=SlurmCluster())
        for name in ("scontrol_show_job_d.running.json", "squeue.running.json")
    )
    assert every.rejected == running.rejected == []
    assert held(every) == held(running) == {("19", "gpu01", 0), ("19", "gpu01", 1)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gres_detail": ["gpu:a100:1(IDX:0)"]}, "index_count_mismatch"),
        ({"nodes": "n["}, "bad_node_list"),
        ({"start_time": 1795247442000}, "bad_time"),  # ms
        ({"job_id": 0}, "bad_job_id"),
    ],
)
def test_a_live_job_that_cannot_be_read_is_counted(
    write: Write, change: dict[str, object], reason: str
) -> None:
    job = {
        "job_id": 5,
        "job_state": ["RUNNING"],
        "nodes": "n[1-2]",
        "gres_detail": ["gpu:2(IDX:0-1)", "gpu:1(IDX:3)"],
    }
    reading = read_map(
        write(json.dumps({"jobs": [job, {**job, **change}, 3]})), cluster=SlurmCluster()
    )
    assert held(reading) == {("5", "n1", 0), ("5", "n1", 1), ("5", "n2", 3)}
    assert [(place, why) for place, why, _ in reading.rejected] == [
        (2, reason),
        (3, "not_an_object"),
    ]


def test_of_a_live_job_without_gpus_neither_nodes_nor_start_are_read(write: Write) -> None:
    unreadable = {"nodes": "n[", "start_time": 1795247442000}
    jobs = [
        {"job_id": 5, "job_state": ["PENDING"], "gres_detail": ["gpu:1(IDX:0)"], **unreadable},
        {"job_id": 6, "job_state": ["RUNNING"], "tres_alloc_str": "cpu=1", **unreadable},
    ]
    reading = read_map(write(json.dumps({"jobs": jobs})), cluster=SlurmCluster())
    assert (reading.allocations, reading.rejected) == ([], [])
    assert reading.passed == {"no_gpus": 2}


def test_the_log_of_a_prolog() -> None:
    reading = read_map(MADE / "22.05.8" / "prolog_epilog_gpu_index.log", cluster=SlurmCluster())
    assert held(reading) == {("1", node, gpu) for node in ("gpu01", "gpu02") for gpu in (0, 1)}
    for row in reading.allocations:
        assert (row["start"], row["end"], row["provenance"]) == (
            datetime.fromtimestamp(1795247442, UTC),
            datetime.fromtimestamp(1795247444, UTC),
            "explicit",
        )


def test_intervals_of_a_log(write: Write, snapshot: SnapshotAssertion) -> None:
    log = (
        "100000100 prolog job=1 node=n1.example.org gpus=0\n"
        "100000200 prolog job=1 node=n1 gpus=1\n"  # started again: the first interval ends here
        "100000300 epilog job=1 node=n1\n"
        "100000150 epilog job=2 node=n1 gpus=3\n"  # its prolog was not recorded
        "100000160 prolog job=3 node=n2 gpus=0-1\n"  # still runs
        "100000170 prolog job=4 node=n2 gpus= cons=\n"  # no GPUs
        "100000180 epilog job=5 node=n2\n"
        "100000400 prolog job=8 node=n3 restart=0 gpus=2\n"
        "100000401 prolog job=8 node=n3 restart=0 gpus=2\n"  # called twice for one start
        "100000420 prolog job=9 node=n3 gpus=3\n"
        "100000420 prolog job=9 node=n3 gpus=3\n"  # the same, where no restart is named
        "\n"
        "nonsense\n"
        "soon prolog job=6 node=n1 gpus=0\n"
        "100000190 prolog job=x node=n1 gpus=0\n"
        "100000190 prolog job=7 gpus=0\n"
        "100000190 prolog job=7 node=n1 gpus=GPU-aa\n"
    )
    assert reading_lines(read_map(write(log), cluster=SlurmCluster())) == snapshot


CSV = """job_id,node,gpu,mig,start,end,cluster,remark
5,gpu01,0,,2026-07-01T12:00:00,2026-07-01T13:00:00,alpha,a
6,gpu[02-03],"0,2",,,,,b
7,gpu04,0-1,,1795247442,,,c
8,gpu04,3,7,,,,d
9_2,gpu05,0;3,,,,,e
"""


def test_a_table(write: Write, snapshot: SnapshotAssertion) -> None:
    reading = read_map(write(CSV), cluster=SlurmCluster(name="home", time_zone="Europe/Berlin"))
    assert reading_lines(reading) == snapshot
    several = read_map(write(CSV.replace("3,7", "3,6-7")), cluster=SlurmCluster()).rejected
    assert [(place, reason) for place, reason, _ in several] == [(5, "bad_mig")]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("5,gpu01,0,1", "field_count"),
        ("x,gpu01,0", "bad_job_id"),
        ("5.batch,gpu01,0", "bad_job_id"),
        ("5,gpu[01,02],0", "field_count"),  # a list of nodes needs quotes
        ('5,"gpu[01",0', "bad_node_list"),
        ("5,,0", "bad_node_list"),
        ("5\r,gpu01,0", "field_count"),
        ("5,gpu01,GPU-bc5610b9", "bad_gpu_index"),
        ("5,gpu01,", "bad_gpu_index"),
        ("5,gpu01,3-1", "bad_gpu_index"),
    ],
)
def test_a_line_of_a_table_that_cannot_be_read_is_counted(
    write: Write, line: str, reason: str
) -> None:
    path = write(f"job_id,node,gpu\n# a remark\n{line}\n6,gpu01,1\n")
    reading = read_map(path, cluster=SlurmCluster())
    assert held(reading) == {("6", "gpu01", 1)}
    assert reading.rejected == [(3, reason, line)]
    assert allocation_map.read_map(path, cluster=SlurmCluster()).rejected == [(3, reason, line)]


@pytest.mark.parametrize(
    ("start", "end", "reason"),
    [
        ("2026-07-02T00:00:00", "2026-07-01T00:00:00", "end_before_start"),
        ("soon", "", "bad_time"),
        ("2026-03-29T02:30:00", "", "time_does_not_exist"),
    ],
)
def test_times_of_a_table_that_cannot_be(write: Write, start: str, end: str, reason: str) -> None:
    path = write(f"job_id;node;gpu;start;end\n5;n1;0;{start};{end}\n")
    (rejected,) = read_map(path, cluster=SlurmCluster(time_zone="Europe/Berlin")).rejected
    assert rejected[1] == reason


@pytest.mark.parametrize(
    "content",
    [
        "JobID|Start|End\n",
        '{"jobs": [{"job_id": 1, "time": {}}]}',
        '[{"Job ID": 5, "Start Time": "x"}]',
    ],
)
def test_accounting_is_an_error_that_names_the_source(write: Write, content: str) -> None:
    with pytest.raises(InputError, match="tachograph ingest sacct"):
        read_map(write(content), cluster=SlurmCluster())


@pytest.mark.parametrize(
    ("written", "shared", "share"),
    [
        ("", None, None),
        ("0", None, None),
        ("0/4", None, None),
        ("1/4", True, 0.25),
        ("4/4", True, 1.0),
        ("5/4", True, None),  # more than there are
        ("2", True, None),
    ],
)
def test_the_part_of_a_gpu_that_a_log_or_a_table_names(
    write: Write, written: str, shared: bool | None, share: float | None
) -> None:
    for name in ("shards", "mps"):
        log = f"100000100 prolog job=1 node=n1 gpus=0,2 {name}={written}\n"
        table = f"job_id,node,gpu,{name}\n1,n1,0;2,{written}\n"
        for content in (log, table):
            rows = read_map(write(content), cluster=SlurmCluster()).allocations
            assert [(row["gpu"], row["shared"], row["share"]) for row in rows] == [
                (gpu, shared, share) for gpu in (0, 2)
            ]


def test_of_an_hour_that_occurs_twice_the_outer_bounds_are_taken(write: Write) -> None:
    table = "job_id,node,gpu,start,end\n1,n1,0,2026-10-25T02:10:00,2026-10-25T02:20:00\n"
    log = (
        "2026-10-25T02:10:00 prolog job=1 node=n1 gpus=0\n"
        "2026-10-25T02:20:00 epilog job=1 node=n1 gpus=0\n"
        "Unknown prolog job=2 node=n1 gpus=0\n"
    )
    for content in (table, log):
        reading = read_map(write(content), cluster=SlurmCluster(time_zone="Europe/Berlin"))
        (row,) = reading.allocations
        assert (row["start"], row["end"]) == (
            datetime(2026, 10, 25, 0, 10, tzinfo=UTC),
            datetime(2026, 10, 25, 1, 20, tzinfo=UTC),
        )
    assert [(place, reason) for place, reason, _ in reading.rejected] == [(3, "bad_time")]
