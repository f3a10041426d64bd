"""Generic resources: GPUs, shards and MPS, as TRES, as AllocGRES of old versions, and on lines
of running jobs.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slurm_reading import ReadText, Write
from syrupy.assertion import SnapshotAssertion

from in_memory import owners
from row_lines import reading_lines
from tachograph.sources import allocation_map
from tachograph.sources.allocation_map import AllocationMapReading, read_map_content
from tachograph.sources.slurm.allocations import held_gpus
from tachograph.sources.slurm.exports import read_content
from tachograph.sources.slurm.fields import BadRowError, job_state
from tachograph.sources.slurm.gres import gpus, gres_counts, indices, read_gres, shares, tres
from tachograph.sources.slurm.records import SlurmCluster

read_map = partial(allocation_map.read_map, trusted=True)  # of jobs that tests named


PLACES = [(node, gpu) for node in ("n1", "n2") for gpu in range(4)]
START = datetime(2026, 7, 1, 12, tzinfo=UTC)
SIZES = {"shard": 4, "mps": 100}  # parts of a GPU


@dataclass(frozen=True, slots=True)
class MadeJob:
    """A job and its GPUs, {(node, index): quarters that it shares, 0: it has all of it}; the rest is
    how Slurm writes them.
    """

    id: str
    held: dict[tuple[str, int], int]
    share: str  # shard or mps
    model: str
    form: str  # devices: (0/4,3/4); parts: (IDX:1(3/4)); indices: (IDX:1); counts: no index
    zero: bool  # gpu:0 where the node gives shares alone
    state: str
    others: tuple[str, ...]  # nodes on which it has no GPUs

    @property
    def nodes(self) -> list[str]:
        """Where it runs: on one node also without GPUs."""
        return sorted({*self.others, *(node for node, _ in self.held)}) or ["n1"]

    def gres(self, node: str) -> str:
        """What Slurm prints of one of its nodes."""
        of_node = {gpu: part for (place, gpu), part in sorted(self.held.items()) if place == node}
        whole = [str(gpu) for gpu, quarters in of_node.items() if not quarters]
        size = SIZES[self.share]
        shares = {gpu: quarters * size // 4 for gpu, quarters in of_node.items() if quarters}
        forms = {
            "devices": ",".join(f"{shares.get(gpu, 0)}/{size}" for gpu in range(4)),
            "parts": "IDX:" + ",".join(f"{gpu}({part}/{size})" for gpu, part in shares.items()),
            "indices": f"IDX:{','.join(map(str, shares))}",
            "counts": f"CNT:{sum(shares.values())}",
        }
        parts = []
        if whole or (shares and self.zero):
            indices = f"IDX:{','.join(whole) or 'N/A'}"
            if self.form == "counts":
                indices = f"CNT:{len(whole)}"
            parts.append(f"gpu{self.model}:{len(whole)}({indices})")
        if shares:
            parts.append(f"{self.share}{self.model}:{sum(shares.values())}({forms[self.form]})")
        return ",".join(parts)

    @property
    def counts(self) -> dict[str, int]:
        """What it has of all nodes together."""
        quarters = list(self.held.values())
        return {"gpu": quarters.count(0), self.share: sum(quarters) * SIZES[self.share] // 4}

    @property
    def tres(self) -> str:
        """Its TRES: typed and untyped counts are of the same GPUs."""
        parts = [f"cpu=4,node={len(self.nodes)}"]
        for name, count in self.counts.items():
            if count or (name == "gpu" and self.zero):
                parts += [
                    f"gres/{name}={count}",
                    *([f"gres/{name}{self.model}={count}"] if self.model else []),
                ]
        return ",".join(parts)

    @property
    def rows(self) -> set[tuple[object, ...]]:
        """Its rows of `allocations`: node, GPU, whether it is shared, the part where it is written."""
        if self.state == "PENDING":  # what it was promised
            return set()
        if self.form == "counts":
            return {
                (self.id, node, None, all(self.held.values()) or None, None, START, "node_list")
                for node, _ in self.held
            }
        return {
            (
                self.id,
                *place,
                quarters > 0 or None,
                quarters / 4 if quarters and self.form != "indices" else None,
                START,
                "live_index",
            )
            for place, quarters in self.held.items()
        }

    def scontrol(self) -> str:
        lines = [
            f"     Nodes={node} CPU_IDs=0-3 Mem=0 GRES={self.gres(node)}\n" for node in self.nodes
        ]
        return (
            f"JobId={self.id} JobName=a\n   JobState={self.state}\n   StartTime={START:%FT%T}\n"
            f"   NodeList={','.join(self.nodes)}\n   TRES={self.tres}\n{''.join(lines)}\n"
        )

    def document(self) -> dict[str, object]:
        return {
            "job_id": int(self.id),
            "job_state": [self.state],
            "start_time": int(START.timestamp()),
            "nodes": ",".join(self.nodes),
            "gres_detail": [self.gres(node) for node in self.nodes],
            "tres_alloc_str": self.tres,
        }

    def accounted(self) -> str:
        nodes = ",".join(self.nodes)
        return f"{self.id}|{START:%FT%T}|2026-07-01T13:00:00|COMPLETED|{len(self.nodes)}|{nodes}|{self.tres}\n"


@st.composite
def made_jobs(draw: st.DrawFn, *, known: bool) -> list[MadeJob]:
    """Three jobs on two nodes with four GPUs each; a GPU is of none or of one, whole or in part.

    known: all of them run, and have GPUs that Slurm names on each of their nodes.
    """
    holders = st.tuples(st.sampled_from(["", "1", "2", "3"]), st.sampled_from([0, 0, 1, 2, 3, 4]))
    places = {place: draw(holders) for place in PLACES}
    forms = ["devices", "parts", "indices", *([] if known else ["counts"])]
    states = ["RUNNING", *([] if known else ["SUSPENDED", "COMPLETING", "PENDING"])]
    others = [(), *([] if known else [("n3",)])]
    return [
        MadeJob(
            job,
            {place: quarters for place, (holder, quarters) in places.items() if holder == job},
            draw(st.sampled_from(["shard", "mps"])),
            draw(st.sampled_from(["", ":a100"])),
            draw(st.sampled_from(forms)),
            draw(st.booleans()),
            draw(st.sampled_from(states)),
            draw(st.sampled_from(others)),
        )
        for job in ("1", "2", "3")
    ]


def read_twice(jobs: list[MadeJob], broken_at: int) -> list[AllocationMapReading]:
    """Read jobs from text and JSON; a record at one place of each and the last cannot be read."""
    text = [job.scontrol() for job in jobs]
    text.insert(broken_at, "JobId=9 JobName=b\n   JobState=RUNNING\n   JobState=PENDING\n")
    text.append("JobId=x JobName=b\n")
    documents: list[object] = [job.document() for job in jobs]
    documents.insert(broken_at, "JobId=9")
    documents.append({"job_id": 0})
    contents = ("".join(text), json.dumps({"jobs": documents}))
    readings = [
        read_map_content(content.encode(), where="x", cluster=SlurmCluster(), trusted=True)
        for content in contents
    ]
    line = 1 + "".join(text[:broken_at]).count("\n")
    places = [(line, "two_readings"), (broken_at + 1, "not_an_object")]
    assert [reading.rejected[0][:2] for reading in readings] == places
    assert [reading.rejected[1][1] for reading in readings] == ["bad_job_id"] * 2
    return readings


@given(made_jobs(known=False), st.integers(0, 3))
def test_records_of_jobs_that_wait_or_whose_gpus_have_no_index(
    jobs: list[MadeJob], broken_at: int
) -> None:
    expected = set().union(*(job.rows for job in jobs))
    unplaced = [job for job in jobs if job.rows and job.form == "counts"]
    without = sum(not job.rows for job in jobs)
    for reading in read_twice(jobs, broken_at):
        assert rows(reading) == expected
        assert len(reading.allocations) == len(expected)
        assert [reason for _, reason, _ in reading.unplaced] == ["index_not_told"] * len(unplaced)
        assert (reading.rows_read, reading.rows_used) == (5, 3 - without)
        assert dict(reading.passed) == ({"no_gpus": without} if without else {})


@settings(max_examples=settings().max_examples // 2)
@given(made_jobs(known=True), st.integers(0, 3))
def test_every_form_of_a_record_gives_each_gpu_to_its_owner(
    jobs: list[MadeJob], broken_at: int
) -> None:
    """By scontrol, squeue and, with the accounting, by the attribution of samples."""
    expected = set().union(*(job.rows for job in jobs))
    readings = read_twice(jobs, broken_at)
    assert [rows(reading) for reading in readings] == [expected, expected]
    written = "JobID|Start|End|State|NNodes|NodeList|AllocTRES\n" + "".join(
        job.accounted() for job in jobs
    )
    (accounting,) = read_content(written.encode(), where="x", cluster=SlurmCluster())
    for job, row in zip(jobs, accounting.jobs, strict=True):
        counts = {"gpu": row["gpus"] or 0, job.share: row["shards"] or row["mps"] or 0}
        assert counts == job.counts
        assert (row["mps"] is None) or job.share == "mps"
        assert row["gpu_type"] == (job.model.strip(":") or None if job.held else None)
        nodes = {held["node"] for held in accounting.allocations if held["job_id"] == job.id}
        # Where no job of the accounting has GPUs, it does not say that this one has none.
        assert nodes == (set(job.nodes) if job.held or "gres/" not in written else set())
    units = [(node, gpu, None) for node, gpu in PLACES]
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
        ("7696487:4,7565421:50,1918986455:2", {"gres/gpu": 4, "gres/mps": 50, "gres/shard": 2}),
        ("gpu:(null):8(IDX:0-7)", {"gres/gpu": 8}),
        ("gpu:a100:2(S:0-1),gpu:v100:1(S:0)", {"gres/gpu:a100": 2, "gres/gpu:v100": 1}),
        ("shard:4K", {"gres/shard": 4096}),
        ("shard:1.5k", {"gres/shard": 1536}),
        ("mps:2147483647", {"gres/mps": (1 << 31) - 1}),
        ("bandwidth:lustre:no_consume:4G,gpu:1g.5gb:2", {"gres/gpu:1g.5gb": 2}),
        ("gpumem:80G,gpuutil:5", {}),
        ("(null)", {}),
    ],
)
def test_counts(written: str, counts: dict[str, int]) -> None:
    assert gres_counts(written) == counts


def test_types_of_gpus_and_shares_are_named_together() -> None:
    typed = "gres/gpu:h200=2,gres/gpu:h100=4,gres/gpumem=80G"
    assert gpus(tres(typed)) == gpus(tres(f"{typed},gres/gpu=6")) == (6, "h100+h200")
    assert shares(tres("gres/shard:v100=2,gres/shard:a100=1")) == (3, None, "a100+v100")


@pytest.mark.parametrize(
    ("gres", "held"),
    [
        ("gpu:h100:2(IDX:0-1),gpu:h200:4(IDX:2-5)", dict.fromkeys(range(6), False)),
        ("gpu(IDX:0)", {0: False}),
        ("gpu:a100:4(IDX:0-3),nvme:1(IDX:0)", dict.fromkeys(range(4), False)),
        ("gpu:1(IDX:1),shard:2(IDX:1)", {1: False}),  # one that has all of a GPU has no share of it
        ("gpu:2(CNT:2)", "index_not_told"),
        ("gpu:h100:2(IDX:N/A)", "index_not_told"),
        ("gpu:4(IDX:0-1)", "index_count_mismatch"),
        ("gpu:a100:1(IDX:0-99999)", "bad_gpu_index"),
        ("gpu:nvidia_a100_1g.5gb:1(IDX:2)", "mig_index"),
        ("gpu:a100_3g.20gb:1(IDX:3)", "mig_index"),
        *(
            (written, "bad_gres")
            for written in (
                "gpu:a100:2(IDX:0-1",
                "gpu:2147483648",
                "mps:2G",
                "shard:1.5",
                "gpu((1))",
            )
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


@given(
    st.lists(st.tuples(st.integers(0, 7), st.none() | st.integers(0, 7)), min_size=1, max_size=6),
    st.sampled_from([",", ";", " ", ", "]),
    st.integers(3, 7),
)
def test_a_list_of_indices_names_each_once_or_is_refused(
    ends: list[tuple[int, int | None]], between: str, most: int
) -> None:
    written = between.join(str(low) if high is None else f"{low}-{high}" for low, high in ends)
    ranges = [range(low, (low if high is None else high) + 1) for low, high in ends]
    listed = [index for indices_of_range in ranges for index in indices_of_range]
    if all(ranges) and max(listed) <= most and len(listed) <= most + 1:
        assert indices(f"[{written}]", most=most) == tuple(dict.fromkeys(listed))
    else:
        with pytest.raises(BadRowError, match="bad_gpu_index"):
            indices(written, most=most)


def rows(reading: AllocationMapReading) -> set[tuple[object, ...]]:
    names = ("job_id", "node", "gpu", "shared", "share", "start", "provenance")
    return {tuple(row[name] for name in names) for row in reading.allocations}


def test_records_that_do_not_say_which_gpus_are_on_their_nodes_or_counted(
    write: Write, snapshot: SnapshotAssertion
) -> None:
    """The nodes with slices or shares; where Slurm names none, all nodes of the job."""
    running = "JobState=RUNNING StartTime=2026-07-01T12:00:00"
    records = (
        f"JobId=1 {running} Nodes=n[1-2] GRES=gres:gpu:1g.10gb:1(IDX:0)\n     Nodes=n3 "
        "CPU_IDs=0-3 Mem=0 GRES=\n"
        f"JobId=3 {running} ReqNodeList=n9 NodeList=n[5-6] TRES=cpu=1,gres/gpu=2\n"
        f"JobId=4 {running} NodeList=(null) TRES=cpu=1,gres/gpu=2\n"
        "JobId=6 JobState=SLEEPING Nodes=n1 GRES=gpu:1(IDX:0)\n"
        f"JobId=7 {running} Nodes=n6 CPU_IDs=0 GRES_IDX=gpu(IDX:0) Nodes=n7 Mem=0 "
        "GRES=gpu:1(IDX:4)\n"
    )
    reading = read_map(write(records), cluster=SlurmCluster())
    assert reading_lines(reading) == snapshot(name="text")
    assert (reading.rows_read, reading.rows_used) == (5, 3)
    job = {"job_state": "RUNNING", "nodes": "n[1-2]", "gres_detail": ["gpu:1(IDX:0)"]}
    promised: list[object] = ["PENDING", ["PENDING", "REQUEUED"], ["REQUEUED", "PENDING"]]
    jobs = [
        {**job, "job_id": 1, "gres_detail": ["gpu:1g.10gb:1(IDX:0)", "nvme:1"]},
        {**job, "job_id": 2, "gres_detail": [], "tres_alloc_str": "gres/gpu=4"},
        {**job, "job_id": 3, "job_state": ["RUNNING", "SLEEPING"]},
        *({**job, "job_id": 4, "job_state": state} for state in promised),
    ]
    reading = read_map(write(json.dumps({"jobs": jobs})), cluster=SlurmCluster())
    assert reading_lines(reading) == snapshot(name="JSON")


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


_HEADER = "JobID|Start|End|State|NNodes|NodeList|AllocTRES|ReqTRES|AllocGRES|ReqGRES\n"
_RUN = "2026-01-01T00:01:00|2026-01-01T00:02:00|COMPLETED"


@pytest.mark.parametrize(
    ("nodes", "resources", "expected"),
    [
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
