"""Generic resources: GPUs, shards and MPS, as TRES, as AllocGRES of old versions, and on lines
of running jobs.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slurm_reading import ReadText, Write

from in_memory import owners
from tachograph.sources import allocation_map
from tachograph.sources.allocation_map import AllocationMapReading, read_map_content
from tachograph.sources.slurm.allocations import held_gpus
from tachograph.sources.slurm.exports import read_content
from tachograph.sources.slurm.fields import BadRowError, job_state
from tachograph.sources.slurm.gres import gpus, gres_counts, read_gres, shares, tres
from tachograph.sources.slurm.records import SlurmCluster

read_map = partial(allocation_map.read_map, trusted=True)  # of jobs that tests named


@dataclass(frozen=True, slots=True)
class MadeJob:
    """A job and its GPUs, {(node, index): whether it has a share only}; the rest is how Slurm
    writes them.
    """

    id: str
    held: dict[tuple[str, int], bool]
    share: str  # shard or mps
    model: str
    per_device: bool  # shares as (0/4,3/4) in place of (IDX:1)
    zero: bool  # gpu:0 where the node gives shares alone

    @property
    def nodes(self) -> list[str]:
        """Where it runs: on one node also without GPUs."""
        return sorted({node for node, _ in self.held}) or ["n1"]

    def gres(self, node: str) -> str:
        """What Slurm prints of one of its nodes."""
        whole = [
            str(gpu)
            for (place, gpu), shared in sorted(self.held.items())
            if place == node and not shared
        ]
        shared = [
            str(gpu)
            for (place, gpu), shared in sorted(self.held.items())
            if place == node and shared
        ]
        parts = []
        if whole or (shared and self.zero):
            parts.append(f"gpu{self.model}:{len(whole)}(IDX:{','.join(whole) or 'N/A'})")
        if shared and self.per_device:
            devices = ",".join(f"{int(str(gpu) in shared)}/4" for gpu in range(4))
            parts.append(f"{self.share}{self.model}:{len(shared)}({devices})")
        elif shared:
            parts.append(f"{self.share}{self.model}:{len(shared)}(IDX:{','.join(shared)})")
        return ",".join(parts)

    @property
    def tres(self) -> str:
        """What it has of all nodes together: typed and untyped counts are of the same GPUs."""
        whole, parts = list(self.held.values()).count(False), [f"cpu=4,node={len(self.nodes)}"]
        for name, count in (("gpu", whole), (self.share, len(self.held) - whole)):
            if count or (name == "gpu" and self.zero):
                parts += [
                    f"gres/{name}={count}",
                    *([f"gres/{name}{self.model}={count}"] if self.model else []),
                ]
        return ",".join(parts)

    def scontrol(self) -> str:
        lines = [
            f"     Nodes={node} CPU_IDs=0-3 Mem=0 GRES={self.gres(node)}\n" for node in self.nodes
        ]
        return (
            f"JobId={self.id} JobName=a\n   JobState=RUNNING\n   StartTime=2026-07-01T12:00:00\n"
            f"   NodeList={','.join(self.nodes)}\n   TRES={self.tres}\n{''.join(lines)}\n"
        )

    def document(self) -> dict[str, object]:
        details = [self.gres(node) for node in self.nodes]
        running = {"job_state": ["RUNNING"], "start_time": 1782907200, "tres_alloc_str": self.tres}
        return {
            "job_id": int(self.id),
            "nodes": ",".join(self.nodes),
            "gres_detail": details,
            **running,
        }

    def accounted(self) -> str:
        nodes = ",".join(self.nodes)
        return f"{self.id}|2026-07-01T12:00:00|2026-07-01T13:00:00|COMPLETED|{len(self.nodes)}|{nodes}|{self.tres}\n"


@st.composite
def made_jobs(draw: st.DrawFn) -> list[MadeJob]:
    """Three jobs on two nodes with four GPUs each; a GPU is of none or of one, whole or in part."""
    holders = st.tuples(st.sampled_from(["", "1", "2", "3"]), st.booleans())
    places = {(node, gpu): draw(holders) for node in ("n1", "n2") for gpu in range(4)}
    return [
        MadeJob(
            job,
            {place: shared for place, (holder, shared) in places.items() if holder == job},
            draw(st.sampled_from(["shard", "mps"])),
            draw(st.sampled_from(["", ":a100"])),
            draw(st.booleans()),
            draw(st.booleans()),
        )
        for job in ("1", "2", "3")
    ]


@settings(max_examples=settings().max_examples // 2)
@given(made_jobs())
def test_every_form_of_a_record_gives_each_gpu_to_its_owner(jobs: list[MadeJob]) -> None:
    """By scontrol, squeue and, with the accounting, by the attribution of samples."""
    cluster = SlurmCluster()
    texts = (
        "".join(job.scontrol() for job in jobs),
        json.dumps({"jobs": [job.document() for job in jobs]}),
    )
    readings = [
        read_map_content(text.encode(), where="x", cluster=cluster, trusted=True) for text in texts
    ]
    expected = {
        (job.id, *place, shared or None) for job in jobs for place, shared in job.held.items()
    }
    for reading in readings:
        assert (rows(reading), reading.rejects(), reading.rows_read) == (expected, (), 3)
        assert reading.passed.total() == sum(not job.held for job in jobs)
    written = "JobID|Start|End|State|NNodes|NodeList|AllocTRES\n" + "".join(
        job.accounted() for job in jobs
    )
    (accounting,) = read_content(written.encode(), where="x", cluster=cluster)
    for job, row in zip(jobs, accounting.jobs, strict=True):
        whole = list(job.held.values()).count(False)
        shared = len(job.held) - whole
        assert (row["shards" if job.share == "shard" else "mps"] or 0) == shared
        assert row["gpu_type"] == (job.model.strip(":") or None if job.held else None)
        assert (row["gpus"] or 0) == whole
    units = [(node, gpu, None) for node in ("n1", "n2") for gpu in range(4)]
    found = owners(accounting.jobs, [*accounting.allocations, *readings[0].allocations], units)
    owned = found.intervals.join(found.runs.select("run", "job_id"), on="run").select(
        "job_id", "node", "gpu"
    )
    assert sorted(owned.rows()) == sorted(row[:3] for row in expected)


@pytest.mark.parametrize(
    ("written", "counts"),
    [
        ("gpu", {"gres/gpu": 1}),
        ("GPU:tesla:2", {"gres/gpu:tesla": 2}),
        ("gpu=2,craynetwork:0", {"gres/gpu": 2}),
        ("gres:gpu:2", {"gres/gpu": 2}),
        ("gres/gpu:a100=4", {"gres/gpu:a100": 4}),
        # Numbers of the names, as databases had them.
        ("7696487:4,7565421:50", {"gres/gpu": 4, "gres/mps": 50}),
        ("gpu:(null):8(IDX:0-7)", {"gres/gpu": 8}),
        ("gpu:a100:2(S:0-1),gpu:v100:1(S:0)", {"gres/gpu:a100": 2, "gres/gpu:v100": 1}),
        ("shard:4K", {"gres/shard": 4096}),
        ("bandwidth:lustre:no_consume:4G,gpu:1g.5gb:2", {"gres/gpu:1g.5gb": 2}),
        ("gpumem:80G,gpuutil:5", {}),
        ("(null)", {}),
    ],
)
def test_counts(written: str, counts: dict[str, int]) -> None:
    assert gres_counts(written) == counts


def test_types_of_gpus_and_shares_are_named_together() -> None:
    assert gpus(tres("gres/gpu:h200=2,gres/gpu:h100=4,gres/gpumem=80G")) == (6, "h100+h200")
    assert shares(tres("gres/shard:v100=2,gres/shard:a100=1")) == (3, None, "a100+v100")


@pytest.mark.parametrize(
    ("gres", "held"),
    [
        ("gpu:h100:2(IDX:0-1),gpu:h200:4(IDX:2-5)", dict.fromkeys(range(6), False)),
        ("gpu(IDX:0)", {0: False}),
        ("gpu:a100:4(IDX:0-3),nvme:1(IDX:0)", dict.fromkeys(range(4), False)),
        ("gpu:1(IDX:1),shard:2(IDX:1)", {1: False}),  # one that has all of a GPU has no share of it
        ("gpu:a100:0(IDX:N/A)", {}),
        ("gpu:2(CNT:2)", "index_not_told"),
        ("gpu:h100:2(IDX:N/A)", "index_not_told"),
        ("gpu:4(IDX:0-1)", "index_count_mismatch"),
        ("gpu:a100:1(IDX:0-99999)", "bad_gpu_index"),
        ("gpu:nvidia_a100_1g.5gb:1(IDX:2)", "mig_index"),
        ("gpu:a100_3g.20gb:1(IDX:3)", "mig_index"),
        *(
            (written, "bad_gres")
            for written in ("gpu:a100:2(IDX:0-1", "gpu:9999999999", "shard:1.5", "gpu((1))")
        ),
    ],
)
def test_gpus_of_a_line_or_why_they_are_not_known(gres: str, held: dict[int, bool] | str) -> None:
    if isinstance(held, dict):
        assert held_gpus(gres) == held
    else:
        with pytest.raises(BadRowError, match=held):
            held_gpus(gres)


@given(st.text(alphabet="gpu:shard=mps0123456789(IDX/,)-N.Kv ", max_size=40))
def test_any_text_is_read_or_refused(written: str) -> None:
    for read in (read_gres, held_gpus):
        with suppress(BadRowError):
            read(written)


def rows(reading: AllocationMapReading) -> set[tuple[object, ...]]:
    return {(row["job_id"], row["node"], row["gpu"], row["shared"]) for row in reading.allocations}


def test_records_that_do_not_say_which_gpus_are_on_their_nodes_or_counted(write: Write) -> None:
    """The nodes with slices or shares; where Slurm names none, all nodes of the job."""
    running = "JobState=RUNNING StartTime=2026-07-01T12:00:00"
    records = (
        f"JobId=1 {running} Nodes=n[1-2] GRES=gres:gpu:1g.10gb:1(IDX:0)\n     Nodes=n3 "
        "CPU_IDs=0-3 Mem=0 GRES=\n"
        f"JobId=2 {running} Nodes=n4 GRES=shard:4(CNT:4)\n"
        f"JobId=3 {running} ReqNodeList=n9 NodeList=n[5-6] TRES=cpu=1,gres/gpu=2\n"
        f"JobId=4 {running} NodeList=(null) TRES=cpu=1,gres/gpu=2\n"
        "JobId=5 JobState=PENDING SchedNodeList=n9 Nodes=n1 GRES=gpu:1(IDX:0)\n"
        "JobId=6 JobState=SLEEPING Nodes=n1 GRES=gpu:1(IDX:0)\n"
        f"JobId=7 {running} Nodes=n6 CPU_IDs=0 GRES_IDX=gpu(IDX:0) Nodes=n7 Mem=0 "
        "GRES=gpu:1(IDX:4)\n"
    )
    reading = read_map(write(records), cluster=SlurmCluster())
    unknown = {("1", "n1", None, None), ("1", "n2", None, None), ("2", "n4", None, True)}
    unknown |= {("3", "n5", None, None), ("3", "n6", None, None)}
    assert rows(reading) == unknown | {("7", "n6", 0, None), ("7", "n7", 4, None)}
    assert [reason for _, reason, _ in reading.unplaced] == [
        "mig_index",
        "index_not_told",
        "index_not_told",
    ]
    assert [reason for _, reason, _ in reading.rejected] == ["index_not_told", "bad_state"]
    assert (reading.rows_read, reading.rows_used) == (7, 4)
    jobs = [
        {
            "job_id": 1,
            "job_state": "RUNNING",
            "nodes": "n[1-2]",
            "gres_detail": ["gpu:1g.10gb:1(IDX:0)", "nvme:1"],
        },
        {
            "job_id": 2,
            "job_state": "RUNNING",
            "nodes": "n[1-2]",
            "gres_detail": [],
            "tres_alloc_str": "gres/gpu=4",
        },
        {
            "job_id": 3,
            "job_state": ["RUNNING", "SLEEPING"],
            "nodes": "n1",
            "gres_detail": ["gpu:1(IDX:0)"],
        },
        *(
            {"job_id": 4, "job_state": state, "nodes": "n1", "gres_detail": ["gpu:1(IDX:0)"]}
            for state in ("PENDING", ["PENDING", "REQUEUED"], ["REQUEUED", "PENDING"])
        ),
    ]
    reading = read_map(write(json.dumps({"jobs": jobs})), cluster=SlurmCluster())
    assert rows(reading) == {
        ("1", "n1", None, None),
        ("2", "n1", None, None),
        ("2", "n2", None, None),
    }
    assert {(row["provenance"], row["numbering"]) for row in reading.allocations} == {
        ("node_list", None)
    }
    assert [reason for _, reason, _ in reading.rejected] == ["bad_state"]


@pytest.mark.parametrize(
    ("value", "base", "flags"),
    [
        (["COMPLETING", "RUNNING"], "RUNNING", {"COMPLETING"}),
        ("COMPLETING", "COMPLETING", set()),
        ([], None, set()),
        (None, None, set()),
    ],
)
def test_states_of_documents(value: object, base: str | None, flags: set[str]) -> None:
    state = job_state(value)
    assert (state.base, set(state.flags)) == (base, flags)


def test_shares_of_logs_and_tables(write: Write) -> None:
    log = (
        "1780000100 prolog job=1 node=n1 gpus=0 shards=2\n1780000200 prolog job=2 node=n1 "
        "gpus=1 shards=0\n"
    )
    table = "job_id,node,gpu,mps\n1,n1,0,50\n2,n1,1,\n"
    for text in (log, table):
        assert rows(read_map(write(text), cluster=SlurmCluster())) == {
            ("1", "n1", 0, True),
            ("2", "n1", 1, None),
        }


_HEADER = "JobID|Start|End|State|NNodes|NodeList|AllocTRES|ReqTRES|AllocGRES|ReqGRES\n"
_RUN = "2026-01-01T00:01:00|2026-01-01T00:02:00|COMPLETED"


@pytest.mark.parametrize(
    ("nodes", "resources", "expected"),
    [
        (2, "cpu=2,gres/gpu=2|||", (2, None, None, None, 2)),
        (2, "||gpu:4|", (4, None, None, None, 2)),  # of all nodes together
        (1, "||gpu:tesla:2|", (2, "tesla", None, None, 1)),
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
