"""GPU-hours of jobs that have shares of GPUs: by the number of shards or MPS, else by time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from in_memory import owners
from madelake import NOW, held, job, make_lake, summarized, utc
from tachograph.annexes.serve.snapshot import ServedLake
from tachograph.api.capacity import read_capacity
from tachograph.api.job_report import read_job
from tachograph.api.viewer import Role, Viewer
from tachograph.catalog.config import Configuration
from tachograph.catalog.tables import IN_USE, WASTE
from tachograph.judge.capacity import HELD
from tachograph.lake.filters import JobFilter
from tachograph.report.job import job_json
from tachograph.sources.slurm.allocations import read_log, read_table
from tachograph.sources.slurm.records import SlurmCluster

T = utc(23, 12)
UNITS: list[tuple[str, int, int | None]] = [("n1", 0, None), ("n1", 1, None)]
HOUR = timedelta(hours=1)

# GPUs of n1, first minute and minutes of a job
Stay = tuple[Sequence[int], int, int]
STAYS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 1), min_size=1, max_size=2, unique=True),
        st.integers(0, 20),
        st.integers(1, 20),
    ),
    min_size=1,
    max_size=6,
)


def span(stay: Stay) -> tuple[Any, Any]:
    _, first, length = stay
    return T + timedelta(minutes=first), T + timedelta(minutes=first + length)


@given(STAYS)
def test_jobs_on_a_gpu_have_equal_parts_of_its_time(stays: list[Stay]) -> None:
    jobs, allocations = [], []
    for number, stay in enumerate(stays):
        jobs.append(job(str(number), *span(stay), gpus=None, shards=1))
        rows = held(str(number), "n1", list(stay[0]), *span(stay))
        allocations += [row | {"shared": True} for row in rows]
    found = owners(jobs, allocations, UNITS)
    minutes = dict.fromkeys(map(str, range(len(stays))), 0.0)
    for gpu in (0, 1):
        for minute in range(40):
            here = [
                str(number)
                for number, (gpus, first, length) in enumerate(stays)
                if gpu in gpus and first <= minute < first + length
            ]
            for name in here:
                minutes[name] += 1 / len(here)
    parts = {row["job_id"]: row for row in found.runs.iter_rows(named=True)}
    assert len(parts) == len(stays)
    for name, (_, _, length) in zip(minutes, stays, strict=True):
        assert parts[name]["gpu_share"] == pytest.approx(minutes[name] / length)
        assert parts[name]["share_by"] == "time"


@given(st.lists(st.tuples(*[st.integers(0, limit) for limit in (2, 1, 12, 9)]), max_size=9))
def test_a_share_is_disputed_by_more_than_a_handover(stays: list[tuple[int, ...]]) -> None:
    """Stays of jobs on GPUs, with start and length in steps of 30 s: a job may have several."""
    jobs = {number for number, _, _, length in stays if length}
    rows, spans = [], []
    for number, gpu, first, length in stays:
        start = T + timedelta(seconds=30 * first)
        end = start + timedelta(seconds=30 * length)
        rows += [row | {"shared": True} for row in held(str(number), "n1", [gpu], start, end)]
        spans.append((number, gpu, start, end))
    found = owners(
        [job(str(number), T, T + HOUR, gpus=None, shards=1) for number in jobs], rows, UNITS
    )
    disputed = {
        number
        for number, gpu, start, end in spans
        for other, other_gpu, begun, over in spans
        if other != number and other_gpu == gpu
        if min(end, over) - max(start, begun) > timedelta(seconds=60)
    }
    runs = found.runs.filter(ambiguous_because="shared_gpus")
    assert {int(name) for name in runs["job_id"]} == disputed


def test_thousands_of_shares_of_a_gpu_are_not_paired() -> None:
    jobs, rows = [], []
    for number in range(8000):
        start = T + timedelta(minutes=number)
        end = start + timedelta(minutes=30)
        jobs.append(job(str(number), start, end, gpus=None, shards=1))
        stays = held(str(number), "n1", [number % 2], start, end)
        rows += [row | {"shared": True} for row in stays]
    begun = time.process_time()
    found = owners(jobs, rows, UNITS)
    seconds = time.process_time() - begun
    assert found.runs["ambiguous_because"].unique().to_list() == ["shared_gpus"]
    assert seconds < 2  # 0.3 s; the 32 million pairs of jobs with the same GPU took 6 s


def of_gpus(*parts: float | None, **columns: Any) -> dict[str, Any]:
    """The run of a job of an hour with these parts of GPUs 0, 1, ...; another is on GPU 0."""
    end = T + HOUR
    rows = [
        row | {"shared": True, "share": part}
        for gpu, part in enumerate(parts)
        for row in held("1", "n1", [gpu], T, end)
    ]
    rows += [row | {"shared": True} for row in held("2", "n1", [0], T, end)]
    rows += held("1", "n1", start=T, end=end)
    jobs = [job("1", T, end, gpus=None, **columns), job("2", T, end, gpus=None, shards=1)]
    return owners(jobs, rows, UNITS).runs.filter(job_id="1").row(0, named=True)


def test_counted_parts_decide_before_time() -> None:
    cases = [
        (of_gpus(0.25, 0.5, shards=3), 0.75, "count"),
        (of_gpus(0.25, None, shards=3), 1.5, "time"),  # half of GPU 0, all of GPU 1
        (of_gpus(mps=150), 1.5, "count"),  # Slurm counts 100 for a GPU
        (of_gpus(0.3, mps=30), 0.3, "count"),
        (of_gpus(shards=3), None, None),  # not known how many a GPU has, nor which GPU it was
    ]
    for run, share, source in cases:
        assert (run["gpu_share"], run["share_by"]) == (share and pytest.approx(share), source)


def test_an_unnamed_job_on_the_node_leaves_the_time_unknown() -> None:
    end = T + HOUR
    shared = [row | {"shared": True} for row in held("1", "n1", [0], T, end)]
    unnamed = [row | {"shared": True} for row in held("2", "n1", start=T, end=end)]
    jobs = [job(name, T, end, gpus=None, shards=1) for name in "12"]
    runs = owners(jobs, shared + unnamed, UNITS).runs
    assert runs["gpu_share"].to_list() == [None, None]


def test_hours_of_a_share_are_in_summaries_and_add_up(tmp_path: Path) -> None:
    """One with a quarter of GPU 0, alone there: its time without work counts as a quarter too."""
    end = T + HOUR
    rows = [row | {"shared": True, "share": 0.25} for row in held("1", "n1", [0], T, end)]
    samples = [
        {"t": T + timedelta(seconds=30 * at), "node": "n1", "gpu": 0, "gpu_util": float(at < 60)}
        for at in range(120)
    ]
    lake = make_lake(
        tmp_path,
        jobs=[job("1", T, end, gpus=None, shards=2)],
        allocations=rows,
        gpu_samples=samples,
        node_states=[
            {"node": "n1", "start": T, "end": end, "provenance": "poll", "state": "up"}
            | {"gpus": 1, "gpus_held": 0}  # as Slurm says of a node whose shards alone are held
        ],
    )
    row = summarized(lake)[1]["1"]
    installed = read_capacity(lake, Configuration(), JobFilter())
    assert installed is not None
    assert installed.hours("installed") == pytest.approx(1.0, abs=0.01)
    assert installed.hours(*HELD) == pytest.approx(0.25, abs=0.01)
    assert installed.hours("free") == pytest.approx(0.75, abs=0.01)
    assert row["gpu_hours"] == pytest.approx(0.25)
    parts = ("unmeasured", *IN_USE, *WASTE)
    assert sum(row[f"gpu_hours_{part}"] for part in parts) == pytest.approx(0.25)
    assert row["gpu_hours_idle"] == pytest.approx(0.125, abs=0.005)
    assert (row["gpu_share"], row["share_by"]) == (0.25, "count")


def test_maps_and_logs_name_parts() -> None:
    table = "job_id,node,gpu,shards\n7,n1,0,2/8\n8,n1,1,3\n9,n1,1,0/8\n"
    rows, rejected, _ = read_table(table, cluster=SlurmCluster())
    assert [(row["shared"], row["share"]) for row in rows] == [
        (True, 0.25), (True, None), (None, None)
    ]  # fmt: skip
    log = "1795247442 prolog job=1 node=n1 gpus=0 mps=50/100\n"
    logged, refused, _, _ = read_log(log, cluster=SlurmCluster())
    assert [(row["shared"], row["share"]) for row in logged] == [(True, 0.5)]
    assert not rejected
    assert not refused


def test_jobs_on_one_gpu_name_each_other(tmp_path: Path) -> None:
    """Ann has GPU 0 for an hour, Bob and Eve half an hour each of it; Dan is on GPU 1."""
    half, end = T + HOUR / 2, T + HOUR
    stays = {"1": ("ann", 0, T, end), "2": ("bob", 0, T, half), "3": ("eve", 0, half, end)}
    stays["4"] = ("dan", 1, T, end)
    lake = make_lake(
        tmp_path,
        jobs=[
            job(name, start, until, gpus=None, shards=1, user=user)
            for name, (user, _, start, until) in stays.items()
        ],
        allocations=[
            row | {"shared": True}
            for name, (_, gpu, start, until) in stays.items()
            for row in held(name, "n1", [gpu], start, until)
        ],
        gpu_samples=[
            {
                "t": T + timedelta(seconds=30 * at),
                "node": "n1",
                "gpu": gpu,
                "gpu_util": 0.8 if at < 60 and gpu == 0 else 0.2,
            }
            for at in range(120)
            for gpu in (0, 1)
        ],
    )
    summaries = summarized(lake)[1]
    assert [summaries[name]["gpu_hours"] for name in "1234"] == [0.5, 0.25, 0.25, 1.0]
    reports = {name: read_job(lake, name, now=NOW, configuration=Configuration()) for name in "124"}
    assert reports["1"].company.sentence == (
        "Its GPU was also held by job 2 (bob) and job 3 (eve): in all it was 50 % in use."
    )
    assert reports["2"].company.sentence == (
        "Its GPU was also held by job 1 (ann): in all it was 80 % in use."
    )
    assert reports["4"].company.sentence is None
    served = ServedLake(lake, Configuration(), clock=lambda: NOW)
    bobs = served.view(Viewer("bob", Role.USER)).opened.lake
    seen = read_job(bobs, "2", now=NOW, configuration=Configuration())
    assert seen.company.sentence == "Its GPU was also held by 1 other job."
    assert "ann" not in str(job_json(seen))


def test_company_is_of_the_same_cluster_and_has_tasks_of_arrays(tmp_path: Path) -> None:
    """Task 77_3, which the accounting calls 80, and ids that come again in another cluster."""
    end = T + HOUR

    def of(cluster: str, name: str, user: str, **more: Any) -> dict[str, Any]:
        return job(name, T, end, gpus=None, shards=1, user=user, cluster=cluster, **more)

    maps = [
        row | {"shared": True}
        for name in ("500", "77_3")
        for row in held(name, "n1", [0], T, end, cluster="a")
    ]
    lake = make_lake(
        tmp_path,
        jobs=[
            of("a", "500", "ann"),
            of("a", "80", "bob", display_id="77_3"),
            of("b", "500", "eve"),
            of("b", "80", "dan"),
        ],
        allocations=maps,
        gpu_samples=[
            {"t": T + timedelta(minutes=at), "node": "n1", "gpu": 0, "gpu_util": 0.5}
            for at in range(60)
        ],
    )
    summarized(lake)
    report = read_job(lake, "500", cluster="a", now=NOW, configuration=Configuration())
    assert report.company.sentence == (
        "Its GPU was also held by job 77_3 (bob): in all it was 50 % in use."
    )


@pytest.mark.parametrize(
    ("polled", "expected"),
    [
        ({"gpus": 4, "shards": 16}, 0.75),
        ({"gpus": 4, "shards": None}, None),
        ({"gpus": 4, "mps": 800}, None),
    ],
)
def test_a_node_says_how_many_shards_a_gpu_has(
    tmp_path: Path, polled: dict[str, Any], expected: float | None
) -> None:
    lake = make_lake(
        tmp_path,
        jobs=[job("1", T, T + HOUR, gpus=None, shards=3)],
        allocations=held("1", "n1", start=T, end=T + HOUR),
        node_states=[
            {"node": "n1", "start": T, "end": T, "provenance": "poll", "state": "up"} | polled
        ],
    )
    assert summarized(lake)[1]["1"]["gpu_hours"] == expected
