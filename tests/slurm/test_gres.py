"""Generic resources: GPUs, shards and MPS, as TRES, as AllocGRES of old versions, and on lines of running jobs."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurm_reading import ReadText, Write

from tachograph.sources import allocation_map
from tachograph.sources.allocation_map import AllocationMapReading
from tachograph.sources.slurm.allocations import held_gpus
from tachograph.sources.slurm.fields import BadRowError, job_state
from tachograph.sources.slurm.gres import gres_counts, read_gres, shares, tres
from tachograph.sources.slurm.records import SlurmCluster

read_map = partial(allocation_map.read_map, trusted=True)  # of jobs that tests named


@pytest.mark.parametrize(
    ("written", "counts"),
    [
        ("gpu:2", {"gres/gpu": 2}),
        ("gpu", {"gres/gpu": 1}),
        ("gpu:tesla:2", {"gres/gpu:tesla": 2}),
        ("GPU:tesla:2", {"gres/gpu:tesla": 2}),
        ("gpu:v100:2,nvme:1", {"gres/gpu:v100": 2}),
        ("gpu=2,craynetwork:0", {"gres/gpu": 2}),
        ("gres:gpu:2", {"gres/gpu": 2}),
        ("gres/gpu:a100=4", {"gres/gpu:a100": 4}),
        ("7696487:4,7565421:50", {"gres/gpu": 4, "gres/mps": 50}),  # numbers of the names, as databases had them
        ("gpu:(null):8(IDX:0-7)", {"gres/gpu": 8}),
        ("gpu:a100:2(S:0-1),gpu:v100:1(S:0)", {"gres/gpu:a100": 2, "gres/gpu:v100": 1}),
        ("shard:4K", {"gres/shard": 4096}),
        ("bandwidth:lustre:no_consume:4G,gpu:1", {"gres/gpu": 1}),
        ("gpu:1g.5gb:2", {"gres/gpu:1g.5gb": 2}),
        ("gpumem:80G,gpuutil:5", {}),
        ("", {}),
        ("(null)", {}),
    ],
)
def test_counts(written: str, counts: dict[str, int]) -> None:
    assert gres_counts(written) == counts


@pytest.mark.parametrize("written", ["gpu:a100:2(IDX:0-1", "gpu:9999999999", "shard:1.5", "gpu((1))"])
def test_what_cannot_be_read_is_refused(written: str) -> None:
    with pytest.raises(BadRowError, match="bad_gres"):
        read_gres(written)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("gres/shard=4,gres/shard:a100=4", (4, None, "a100")),
        ("gres/shard:a100=2,gres/shard:v100=1", (3, None, "a100+v100")),
        ("gres/mps=50,cpu=1", (None, 50, None)),
        ("gres/shard=0,gres/gpu=1", (None, None, None)),
    ],
)
def test_shares_of_tres(written: str, expected: tuple[int | None, int | None, str | None]) -> None:
    assert shares(tres(written)) == expected


@pytest.mark.parametrize(
    ("gres", "expected"),
    [
        ("gpu:(null):8(IDX:0-7)", dict.fromkeys(range(8), False)),
        ("gpu:a100:4(IDX:0-3),nvme:1(IDX:0)", dict.fromkeys(range(4), False)),
        ("shard:4(IDX:2)", {2: True}),
        ("shard:a100:3(0/4,3/4)", {1: True}),
        ("mps:v100:50(IDX:1)", {1: True}),
        ("gpu:1(IDX:0),shard:2(IDX:1)", {0: False, 1: True}),
        ("gpu:0(IDX:N/A),shard:2(IDX:1)", {1: True}),
    ],
)
def test_gpus_of_a_line(gres: str, expected: dict[int, bool]) -> None:
    assert held_gpus(gres) == expected


@pytest.mark.parametrize(
    ("gres", "reason"),
    [
        ("gpu:1(CNT:1)", "index_not_told"),
        ("gpu:2", "index_not_told"),
        ("shard:4(CNT:4)", "index_not_told"),
        ("gpu:4(IDX:0-1)", "index_count_mismatch"),
        ("gpu:a100(IDX:0-1", "bad_gres"),
        ("gpu:nvidia_a100_1g.5gb:1(IDX:2)", "mig_index"),
    ],
)
def test_lines_without_known_indices_are_rejected(gres: str, reason: str) -> None:
    with pytest.raises(BadRowError, match=reason):
        held_gpus(gres)


@given(st.text(alphabet="gpu:shard=mps0123456789(IDX/,)-N.Kv ", max_size=40))
def test_any_text_is_read_or_refused(written: str) -> None:
    for read in (read_gres, held_gpus):
        with suppress(BadRowError):
            read(written)


_RECORD = """JobId={job} JobName=a
   JobState={state} Reason=None
   StartTime=2026-07-01T12:00:00 EndTime=2026-07-02T12:00:00
   SchedNodeList=n9
   TRES=cpu=1,node=1{tres}
     Nodes={nodes} CPU_IDs=0-3 Mem=0 {gres}

"""


def record(gres: str, *, job: int, state: str = "RUNNING", nodes: str = "n1", tres: str = "") -> str:
    return _RECORD.format(job=job, gres=gres, state=state, nodes=nodes, tres=tres)


def rows(reading: AllocationMapReading) -> set[tuple[object, ...]]:
    return {(row["job_id"], row["node"], row["gpu"], row["shared"]) for row in reading.allocations}


def test_every_record_of_scontrol_is_read_or_counted(write: Write) -> None:
    records = (
        record("GRES=shard:4(IDX:0)", job=1),
        record("GRES=mps:50(IDX:1)", job=2),
        record("GRES=gpu:(null):8(IDX:0-7)", job=3, nodes="n[2-3]"),
        record("GRES_IDX=gpu(IDX:1,3)", job=4, nodes="n4"),
        record("GRES=gpu:a100:2(IDX:0-1),gpu:v100:1(IDX:2)", job=5, nodes="n5"),
        record("GRES=gpu:1(CNT:1)", job=6),
        record("GRES=gpu:1g.5gb:1(IDX:0)", job=7),
        record("GRES=", job=8, tres=",gres/gpu=2"),
        record("GRES=", job=9),
        record("GRES=gpu:1(IDX:0)", job=10, state="PENDING"),
        record("GRES=gpu:1(IDX:0)", job=11, state="SLEEPING"),
        "JobId=12 JobState=RUNNING Nodes=n6 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:0) Nodes=n7 Mem=0 GRES=gpu:1(IDX:4)\n",
    )
    reading = read_map(write("".join(records)), cluster=SlurmCluster())
    assert rows(reading) == {
        ("1", "n1", 0, True),
        ("2", "n1", 1, True),
        *(("3", node, gpu, None) for node in ("n2", "n3") for gpu in range(8)),
        *(("4", "n4", gpu, None) for gpu in (1, 3)),
        *(("5", "n5", gpu, None) for gpu in (0, 1, 2)),
        ("12", "n6", 0, None),
        ("12", "n7", 4, None),
        *((job, "n1", None, None) for job in ("6", "7", "8")),
    }
    assert [reason for _, reason, _ in reading.unplaced] == ["index_not_told", "mig_index", "index_not_told"]
    assert [reason for _, reason, _ in reading.rejected] == ["bad_state"]
    assert [(one.reason, one.column, one.count) for one in reading.rejects()] == [
        ("bad_state", None, 1),
        ("index_not_told", "gpu", 2),
        ("mig_index", "gpu", 1),
    ]
    assert (reading.rows_read, reading.rows_used) == (12, 9)


def test_nodes_of_a_job_whose_gpus_are_unknown(write: Write) -> None:
    """Those with slices or shares; where Slurm names none, all nodes of the job."""
    slices = record("GRES=gres:gpu:1g.10gb:1(IDX:0)", job=1, nodes="n[1-2]")
    slices = slices.rstrip() + "\n     Nodes=n3 CPU_IDs=0-3 Mem=0 GRES=\n\n"
    shards = record("GRES=shard:4(CNT:4)", job=2, nodes="n4")
    brief = "JobId=3 JobState=RUNNING ReqNodeList=n9 NodeList=n[5-6] TRES=cpu=1,gres/gpu=2\n"
    nowhere = "JobId=4 JobState=RUNNING NodeList=(null) TRES=cpu=1,gres/gpu=2\n"
    reading = read_map(write(slices + shards + brief + nowhere), cluster=SlurmCluster())
    assert rows(reading) == {
        ("1", "n1", None, None),
        ("1", "n2", None, None),
        ("2", "n4", None, True),
        ("3", "n5", None, None),
        ("3", "n6", None, None),
    }
    assert {(row["provenance"], row["numbering"]) for row in reading.allocations} == {("node_list", None)}
    assert [reason for _, reason, _ in reading.rejected] == ["index_not_told"]
    running = {"job_state": "RUNNING", "nodes": "n[1-2]"}
    jobs = [
        {"job_id": 1, **running, "gres_detail": ["gpu:1g.10gb:1(IDX:0)", "nvme:1"]},
        {"job_id": 2, **running, "gres_detail": [], "tres_alloc_str": "gres/gpu=4"},
    ]
    reading = read_map(write(json.dumps({"jobs": jobs})), cluster=SlurmCluster())
    assert rows(reading) == {("1", "n1", None, None), ("2", "n1", None, None), ("2", "n2", None, None)}


@pytest.mark.parametrize("state", [["PENDING"], "PENDING", ["PENDING", "REQUEUED"], ["REQUEUED", "PENDING"]])
def test_a_pending_job_of_the_controller_holds_nothing(write: Write, state: object) -> None:
    job = {"job_id": 5, "job_state": state, "nodes": "n1", "scheduled_nodes": "n1", "gres_detail": ["gpu:1(IDX:0)"]}
    reading = read_map(write(json.dumps({"jobs": [job]})), cluster=SlurmCluster())
    assert (reading.allocations, reading.rejected, reading.rows_read) == ([], [], 1)


def test_jobs_of_the_controller(write: Write) -> None:
    running = {"job_state": ["RUNNING", "COMPLETING"], "nodes": "n1"}
    jobs = [
        {"job_id": 1, **running, "gres_detail": ["shard:a100:2(IDX:3)"]},
        {"job_id": 2, **running, "gres_detail": [], "tres_alloc_str": "cpu=1,gres/gpu=1"},
        {"job_id": 3, **running, "gres_detail": [], "tres_alloc_str": "cpu=1"},
        {"job_id": 4, **running, "job_state": ["RUNNING", "SLEEPING"], "gres_detail": ["gpu:1(IDX:0)"]},
    ]
    reading = read_map(write(json.dumps({"jobs": jobs})), cluster=SlurmCluster())
    assert rows(reading) == {("1", "n1", 3, True), ("2", "n1", None, None)}
    assert [reason for _, reason, _ in reading.unplaced] == ["index_not_told"]
    assert [reason for _, reason, _ in reading.rejected] == ["bad_state"]


@pytest.mark.parametrize(
    ("value", "base", "flags"),
    [
        (["RUNNING", "COMPLETING"], "RUNNING", {"COMPLETING"}),
        (["COMPLETING", "RUNNING"], "RUNNING", {"COMPLETING"}),
        (["CANCELLED"], "CANCELLED", set()),
        ("COMPLETING", "COMPLETING", set()),
        ([], None, set()),
        (None, None, set()),
    ],
)
def test_states_of_documents(value: object, base: str | None, flags: set[str]) -> None:
    state = job_state(value)
    assert (state.base, set(state.flags)) == (base, flags)


def test_shares_of_logs_and_tables(write: Write) -> None:
    log = "1780000100 prolog job=1 node=n1 gpus=0 shards=2\n1780000200 prolog job=2 node=n1 gpus=1 shards=0\n"
    assert rows(read_map(write(log), cluster=SlurmCluster())) == {("1", "n1", 0, True), ("2", "n1", 1, None)}
    table = "job_id,node,gpu,mps\n1,n1,0,50\n2,n1,1,\n"
    assert rows(read_map(write(table), cluster=SlurmCluster())) == {("1", "n1", 0, True), ("2", "n1", 1, None)}


_HEADER = "JobID|Start|End|State|NNodes|NodeList|AllocTRES|ReqTRES|AllocGRES|ReqGRES\n"
_RUN = "2026-01-01T00:01:00|2026-01-01T00:02:00|COMPLETED"


@pytest.mark.parametrize(
    ("nodes", "resources", "expected"),
    [
        (2, "cpu=2,gres/gpu=2|||", (2, None, None, None, 2)),
        (2, "||gpu:4|", (4, None, None, None, 2)),  # of all nodes together
        (1, "||gpu:tesla:2|", (2, "tesla", None, None, 1)),
        (1, "||gpu:v100:2,nvme:1|", (2, "v100", None, None, 1)),
        (1, "||7696487:2|", (2, None, None, None, 1)),
        (1, "|||gpu:2", (2, None, None, None, 1)),
        (2, "|||gpu:2", (None, None, None, None, 2)),  # of one node or of both
        (2, "|||PER_NODE:gpu:a100:2", (4, "a100", None, None, 2)),
        (2, "|||PER_JOB:gpu:2", (2, None, None, None, 2)),
        (2, "|||PER_NODE:gpu:2,PER_JOB:gpu:4", (None, None, None, None, 2)),
        (1, "|||PER_TASK:gpu:1", (None, None, None, None, 1)),
        (1, "|cpu=1||gpu:2", (2, None, None, None, 1)),  # TRES without GPUs, which were not tracked
        (1, "cpu=1,gres/gpu=2||(null)|", (2, None, None, None, 1)),
        (1, "|cpu=1,gres/gpu=3|N/A|gpu:0", (3, None, None, None, 1)),
        (1, "cpu=1||gpu:0|gpu:0", (0, None, None, None, 0)),
        (1, "cpu=1,gres/shard=4|||", (0, None, 4, None, 1)),
        (2, "cpu=1,gres/shard:a100=2,gres/shard=2|||", (0, "a100", 2, None, 2)),
        (1, "cpu=1,gres/mps=50|||", (0, None, None, 50, 1)),
        (1, "||shard:3|", (0, None, 3, None, 1)),
    ],
)
def test_resources_of_the_accounting(
    read_text: ReadText,
    nodes: int,
    resources: str,
    expected: tuple[object, ...],
) -> None:
    known = f"9|{_RUN}|1|m1|cpu=1,gres/gpu=1|||\n"  # this file names GPUs
    reading = read_text(f"{_HEADER}7|{_RUN}|{nodes}|n[1-{nodes}]|{resources}\n{known}")
    job = reading.jobs[0]
    held = [row for row in reading.allocations if row["job_id"] == "7"]
    assert (*(job[name] for name in ("gpus", "gpu_type", "shards", "mps")), len(held)) == expected
    assert {row["shared"] for row in held} <= {True if job["shards"] or job["mps"] else None}
