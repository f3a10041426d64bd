"""Allocations of GPUs: from Slurm's answers as recorded, polled in a thread that delays nothing."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from watching import FakeSource, node_of, snapshot_of

from tachograph.annexes.watch.live.allocations import (
    AllocatedSource,
    SlurmAllocations,
    allocation_poller,
    free_gpus,
    merged_allocations,
    read_allocations,
)
from tachograph.annexes.watch.live.snapshot import GpuAllocation, GpuDevice, GpuId, Snapshot
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import ConfigError, InputError
from tachograph.sources.slurm.records import SlurmCluster

RECORDED = Path(__file__).parent.parent / "slurm" / "recorded"
VERSIONS = ("22.05.8", "24.11.5", "26.05.5")
TWO = snapshot_of(node_of(2))


def held(path: Path) -> SlurmAllocations:
    return read_allocations(path.read_bytes(), where=str(path), cluster=SlurmCluster())


def _gpus(found: SlurmAllocations) -> Mapping[tuple[str, int], GpuAllocation]:
    """Those of the only cluster."""
    (held,) = found.gpus.values()
    return held


def until(true: Callable[[], bool]) -> bool:
    end = time.monotonic() + 60
    while not true() and time.monotonic() < end:
        time.sleep(0.01)
    return true()


@pytest.mark.parametrize("version", VERSIONS)
def test_squeue_and_scontrol_tell_the_same_holders(version: str) -> None:
    from_json, from_text = (
        held(RECORDED / version / "squeue.json"),
        held(RECORDED / version / "scontrol_show_job_d.all.txt"),
    )
    assert _gpus(from_json)
    for place, allocation in _gpus(from_json).items():
        same = _gpus(from_text)[place]
        assert (same.job_id, same.user) == (allocation.job_id, allocation.user)


@pytest.mark.parametrize("version", VERSIONS)
def test_each_gpu_has_the_job_whose_record_names_it(version: str) -> None:
    path = RECORDED / version / "squeue.json"
    found = held(path)
    for job in json.loads(path.read_bytes())["jobs"]:
        reported = [text for text in job["gres_detail"] if "gpu" in text and "IDX:0-1" in text]
        if len(reported) == 1 and job["nodes"].isalnum():
            allocations = [_gpus(found)[job["nodes"], index] for index in (0, 1)]
            assert {allocation.user for allocation in allocations} == {job["user_name"]}
            assert all(allocation.since for allocation in allocations)
            break
    else:
        pytest.fail("no job of this kind is recorded")


def test_tasks_are_called_as_people_call_them_and_found_by_either_id() -> None:
    job = {
        "job_id": 14,
        "array_job_id": 3,
        "array_task_id": 0,
        "user_name": "ana",
        "job_state": ["RUNNING"],
    }
    job |= {"nodes": "n1", "gres_detail": ["gpu:2(IDX:0,3)"], "start_time": 1700000000}
    waiting = {
        "job_id": 15,
        "user_name": "bo",
        "job_state": ["RUNNING"],
        "nodes": "n1",
        "gres_detail": ["gpu:1(IDX:N/A)"],
    }
    found = read_allocations(
        json.dumps({"jobs": [job, waiting, {"job_state": []}]}).encode(),
        where="squeue",
        cluster=SlurmCluster(),
    )
    ana = GpuAllocation("3_0", "ana", 1_700_000_000.0)
    assert _gpus(found) == {("n1", 0): ana, ("n1", 3): ana}
    assert found.jobs == {None: {"14": ana, "15": GpuAllocation("15", "bo")}}
    assert found.names("14") == found.names("3_0") == {"14", "3_0"}
    assert found.names("99") == {"99"}


def test_of_text_arrays_and_heterogeneous_jobs_are_called_so() -> None:
    text = (
        "JobId=14 ArrayJobId=3 ArrayTaskId=7 JobName=a\n   UserId=ana(1001) GroupId=g(1)\n   "
        "StartTime=1700000000\n"
        "     Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:1)\n\n"
        "JobId=21 HetJobId=20 HetJobOffset=1 JobName=b\n   UserId=bo(1002)\n   "
        "StartTime=1700000000\n"
        "     Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:0)\n"
    )
    found = read_allocations(text.encode(), where="scontrol", cluster=SlurmCluster())
    assert {place: allocation.job_id for place, allocation in _gpus(found).items()} == {
        ("n1", 1): "3_7",
        ("n2", 1): "3_7",
        ("n1", 0): "20+1",
    }
    assert _gpus(found)["n1", 0].user == "bo"


def test_what_the_source_tells_stays_and_is_completed() -> None:
    reported = replace(
        TWO,
        allocations={
            GpuId("n1", 0): GpuAllocation("14"),
            GpuId("n1", 1): GpuAllocation("77", "eve"),
        },
    )
    found = merged_allocations(
        reported,
        SlurmAllocations(
            {None: {("n1", 0): GpuAllocation("9", "x")}},
            {None: {"14": GpuAllocation("3_0", "ana", 5.0)}},
        ),
    )
    assert found == {
        GpuId("n1", 0): GpuAllocation("3_0", "ana", 5.0),
        GpuId("n1", 1): GpuAllocation("77", "eve"),
    }


def test_of_a_gpu_that_jobs_share_each_is_completed() -> None:
    gpu = GpuId("n1", 0)
    known = {
        "14": GpuAllocation("3_0", "ana", 5.0),
        "15": GpuAllocation("15", "bo", 4.0),
        "16": GpuAllocation("16", "ana"),
    }
    for reported, found in (
        (GpuAllocation("14,15"), GpuAllocation("3_0,15", "ana,bo", 4.0)),
        (GpuAllocation("14,99"), GpuAllocation("3_0,99", "ana", 5.0)),
        (GpuAllocation("14,16"), GpuAllocation("3_0,16", "ana", 5.0)),
        (GpuAllocation("98,99", "eve", 1.0), GpuAllocation("98,99", "eve", 1.0)),
    ):
        assert merged_allocations(
            replace(TWO, allocations={gpu: reported}), SlurmAllocations(jobs={None: known})
        ) == {gpu: found}


def test_slices_have_no_index_that_slurm_tells() -> None:
    slices = snapshot_of({GpuId("n1", 0, 1): node_of(1)[GpuId("n1", 0)]})
    assert (
        merged_allocations(slices, SlurmAllocations({None: {("n1", 0): GpuAllocation("9")}})) == {}
    )


def running(job: int, user: str, indices: str) -> str:
    """A job of scontrol with GPUs on n1."""
    return (
        f"JobId={job} JobName=a\n   UserId={user}(1001)\n   JobState=RUNNING\n   "
        "AllocTRES=cpu=4,gres/gpu=1\n"
        f"     Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:1{indices}\n\n"
    )


@pytest.mark.parametrize(
    ("jobs", "free"),
    [
        (running(1, "ana", "(IDX:0)") + running(2, "bo", "(IDX:3)"), True),
        (running(1, "ana", "(IDX:0)"), False),  # jobs of others may be hidden
        # The GPUs of one are not reported.
        (running(1, "ana", "(IDX:0)") + running(2, "bo", ""), False),
    ],
)
def test_a_gpu_is_free_where_every_job_is_known(jobs: str, free: bool) -> None:
    slurm = read_allocations(jobs.encode(), where="scontrol", cluster=SlurmCluster())
    assert slurm.complete is free
    assert free_gpus(TWO, slurm) - merged_allocations(TWO, slurm).keys() == (
        {GpuId("n1", 1)} if free else frozenset()
    )
    slices = snapshot_of({GpuId("n1", 1, 1): node_of(2)[GpuId("n1", 1)]})
    assert free_gpus(slices, slurm) == frozenset()


def test_numbers_of_slurm_are_those_of_device_files() -> None:
    """Where a source reports them, and one differs from the index; an unknown number is no
    GPU's.
    """
    gpus = GpuId("n1", 0), GpuId("n1", 1), GpuId("n1", 2)
    devices = {gpus[0]: GpuDevice(minor_number=1), gpus[1]: GpuDevice(minor_number=0)}
    snapshot = Snapshot(0.0, gpus, np.zeros(3), {}, devices)
    jobs = {("n1", number): GpuAllocation(name) for number, name in enumerate("abc")}
    found = merged_allocations(snapshot, SlurmAllocations({None: jobs}))
    assert {gpu.gpu: of.job_id for gpu, of in found.items()} == {0: "b", 1: "a"}
    by_index = merged_allocations(snapshot, SlurmAllocations({None: jobs}, minor_numbers=False))
    assert {gpu.gpu: of.job_id for gpu, of in by_index.items()} == {0: "a", 1: "b", 2: "c"}


def test_a_read_does_not_wait_for_slurm() -> None:
    polled, answer = threading.Event(), threading.Event()

    def slow() -> SlurmAllocations:
        polled.set()
        answer.wait(120)
        return SlurmAllocations({None: {("n1", 1): GpuAllocation("7", "bo")}})

    source = AllocatedSource(FakeSource([TWO]), slow)
    assert not polled.is_set()
    began = time.monotonic()
    assert source.read().allocations == {}
    assert time.monotonic() - began < 30
    assert polled.wait(60)
    assert source.read().allocations == {}
    answer.set()
    assert source.wait(60)
    assert source.read().allocations == {GpuId("n1", 1): GpuAllocation("7", "bo")}
    source.close()


@pytest.mark.slow
def test_slurm_is_asked_again_and_again_and_no_more_once_closed() -> None:
    times: list[int] = []

    def poll() -> SlurmAllocations:
        times.append(1)
        return SlurmAllocations({None: {("n1", 0): GpuAllocation(str(len(times)))}})

    source = AllocatedSource(FakeSource([TWO]), poll, every_s=0.02)
    source.start()
    assert until(
        lambda: (
            source.read().allocations.get(GpuId("n1", 0), GpuAllocation()).job_id not in (None, "1")
        )
    )
    source.close()
    time.sleep(0.5)
    count = len(times)
    time.sleep(0.1)
    assert len(times) == count


def test_a_slurm_that_fails_is_told_and_the_last_answer_stays() -> None:
    answers: list[SlurmAllocations | InputError] = [
        SlurmAllocations({None: {("n1", 0): GpuAllocation("7")}}),
        InputError("failed", where="squeue", do="run it"),
    ]
    fine = threading.Event()

    def poll() -> SlurmAllocations:
        answer = answers.pop(0) if answers else SlurmAllocations()
        if isinstance(answer, InputError):
            raise answer
        if not answers:
            fine.set()
        return answer

    source = AllocatedSource(FakeSource([TWO]), poll, every_s=0.05)
    assert source.wait()
    assert until(lambda: bool(source.read().problems))
    snapshot = source.read()
    assert snapshot.allocations == {GpuId("n1", 0): GpuAllocation("7")}
    assert snapshot.problems[0].sentence == "squeue: GPU allocations unknown: failed; run it"
    assert fine.wait(60)
    assert until(lambda: not source.read().problems)
    source.close()


def test_a_program_named_in_sources_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!/bin/sh\ncat {RECORDED / VERSIONS[1] / 'squeue.json'}\n")
    squeue.chmod(0o755)
    polled = allocation_poller(
        Configuration(sources=({"source": "slurm-live", "command": [str(squeue)]},))
    )
    assert polled is not None
    assert polled() == held(RECORDED / VERSIONS[1] / "squeue.json")
    monkeypatch.setenv("PATH", str(tmp_path))
    polled = allocation_poller(Configuration())
    assert polled is not None
    squeue.write_text("#!/bin/sh\necho No jobs in the system\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert polled() == SlurmAllocations()


def test_without_slurm_nothing_is_polled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert allocation_poller(Configuration()) is None


def test_wrong_settings_are_reported_at_the_first_poll() -> None:
    polled = allocation_poller(
        Configuration(sources=({"source": "slurm-live", "url": "http://x"},))
    )
    assert polled is not None
    with pytest.raises(ConfigError, match="how is"):
        polled()
