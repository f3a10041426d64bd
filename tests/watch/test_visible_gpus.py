"""Which GPUs are shown: named, of one's own job, of any job; errors name those that are there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from watching import FakeSource, node_of, snapshot_of

from tachograph.annexes.watch.live.allocations import job_environment, select_own
from tachograph.annexes.watch.live.selection import (
    GpuSelection,
    SelectedSource,
    gpu_terms,
    select_job,
    select_named,
)
from tachograph.annexes.watch.live.snapshot import (
    GpuAllocation,
    GpuDevice,
    GpuId,
    Snapshot,
    SourceInfo,
)
from tachograph.catalog.errors import NotFoundError, UsageError

NVML, EXPORTER = SourceInfo("nvml", "NVML"), SourceInfo("dcgm-exporter", "an exporter")
EIGHT = snapshot_of(node_of(8))
TWO_NODES = snapshot_of({**node_of(4), **node_of(4, node="n2")})
SLICES = snapshot_of(
    {GpuId("n1", 0, mig): GpuDevice(uuid=f"MIG-0000000{mig}-1") for mig in (1, 2)}
    | {
        GpuId("n1", 1, 5): GpuDevice(uuid="GPU-8932f937-aa"),
        GpuId("n1", 2): GpuDevice(uuid="GPU-8932f937-bb"),
    }
)


def named(written: str, snapshot: Snapshot = EIGHT) -> list[str]:
    return [snapshot.gpus[row].name for row in select_named(written)(snapshot, NVML).rows]


def own(environment: dict[str, str], snapshot: Snapshot, about: SourceInfo = NVML) -> GpuSelection:
    held = job_environment(environment)
    assert held is not None
    return select_own(held, host="n1")(snapshot, about)


@pytest.mark.parametrize(
    ("snapshot", "written", "found"),
    [
        (EIGHT, "0", "n1:0"),
        (EIGHT, "0,3-5", "n1:0 n1:3 n1:4 n1:5"),
        (EIGHT, " 7 , 7 ,6", "n1:6 n1:7"),
        (EIGHT, "GPU-N1-0002", "n1:2"),
        (EIGHT, "00000000:1C:00.0", "n1:1"),
        (EIGHT, "0000:1c:00.0,1d:00.0", "n1:1 n1:2"),
        (EIGHT, "n1:4", "n1:4"),
        (EIGHT, "n1:4-5,GPU-n1-0000", "n1:0 n1:4 n1:5"),
        # an index is that of every node unless one is named
        (TWO_NODES, "1", "n1:1 n2:1"),
        (TWO_NODES, "n2:1,n1:0", "n1:0 n2:1"),
        (SLICES, "0", "n1:0.1 n1:0.2"),
        (SLICES, "0.2", "n1:0.2"),
        (SLICES, "MIG-00000001-1", "n1:0.1"),
    ],
)
def test_gpus_are_found_by_index_uuid_and_address(
    snapshot: Snapshot, written: str, found: str
) -> None:
    assert named(written, snapshot) == found.split()


@pytest.mark.parametrize("written", ["8", "6-9", "GPU-n2", "5e:00.0", "n2:0", "0.1"])
def test_a_gpu_that_is_not_there_is_told_with_those_that_are(written: str) -> None:
    with pytest.raises(NotFoundError, match=r"known: 0, 1, 2, 3, 4, 5, 6, 7 on n1") as reported:
        named(written)
    assert written in reported.value.what


def test_of_many_gpus_some_are_named() -> None:
    with pytest.raises(NotFoundError, match=r"n1:0, n1:1, n1:2, .* and 4 others"):
        named("99", snapshot_of({**node_of(8), **node_of(8, node="n2")}))


def test_the_beginning_of_two_uuids_is_refused() -> None:
    with pytest.raises(UsageError, match="several UUIDs begin with GPU-8932f937"):
        named("GPU-8932f937", SLICES)


@pytest.mark.parametrize(
    "written", ["", ",", "x", "0-", "-1", "0,,a", "GPU-", "5-3", "1.2.3", "0;1", "٣"]
)
def test_what_names_no_gpu_is_refused_before_any_poll(written: str) -> None:
    with pytest.raises(UsageError):
        gpu_terms(written)


JOB = {"SLURM_JOB_ID": "14", "SLURM_JOB_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": "0,1", "USER": "ana"}


LABELLED = replace(
    EIGHT, allocations={EIGHT.gpus[5]: GpuAllocation("1"), EIGHT.gpus[6]: GpuAllocation("2")}
)
OF_14 = ("2 of 8 GPUs, those of job 14", GpuAllocation("14", "ana"))
OF_1 = {"SLURM_JOB_ID": "1"}


@pytest.mark.parametrize(
    ("environment", "snapshot", "about", "rows", "said"),
    [
        # outside a cgroup the numbers of Slurm count, and those of CUDA do not
        (JOB, EIGHT, NVML, (2, 3), OF_14),
        (JOB, EIGHT, EXPORTER, (2, 3), OF_14),
        # inside a cgroup all that is seen is the job's
        (JOB, snapshot_of(node_of(2)), NVML, (0, 1), None),
        # a step has fewer GPUs than its job
        (JOB | {"SLURM_STEP_GPUS": "3"}, EIGHT, NVML, (3,), None),
        # UUIDs count before numbers
        (
            JOB | {"CUDA_VISIBLE_DEVICES": "GPU-n1-0006,GPU-n1-0007"},
            *(EIGHT, EXPORTER, (6, 7), None),
        ),
        (OF_1 | {"CUDA_VISIBLE_DEVICES": "MIG-00000002-1"}, SLICES, NVML, (1,), None),
        # slices whose UUIDs are not reported are not guessed
        (
            OF_1 | {"SLURM_JOB_GPUS": "1", "CUDA_VISIBLE_DEVICES": "MIG-00000002-1"},
            *(replace(SLICES, devices={}), EXPORTER, (0, 1, 2, 3)),
            ("4 GPUs: which of them belong to job 1 is unknown; select them with --gpus", None),
        ),
        # indices of CUDA are NVML's, and nobody else's inside a job
        (OF_1 | {"CUDA_VISIBLE_DEVICES": "0,1"}, EIGHT, NVML, (0, 1), None),
        (
            OF_1 | {"CUDA_VISIBLE_DEVICES": "0,1"},
            *(EIGHT, EXPORTER, tuple(range(8))),
            ("8 GPUs: which of them belong to job 1 is unknown; select them with --gpus", None),
        ),
        # the job that an exporter names counts where numbers are missing
        (OF_1 | {"CUDA_VISIBLE_DEVICES": "0"}, LABELLED, EXPORTER, (5,), None),
        # outside of jobs CUDA_VISIBLE_DEVICES counts
        (
            {"CUDA_VISIBLE_DEVICES": "6,7,-1,0"},
            *(EIGHT, EXPORTER, (6, 7)),
            ("2 of 8 GPUs, those of CUDA_VISIBLE_DEVICES", None),
        ),
    ],
)
def test_ones_own_gpus(
    environment: dict[str, str],
    snapshot: Snapshot,
    about: SourceInfo,
    rows: tuple[int, ...],
    said: tuple[str, GpuAllocation | None] | None,
) -> None:
    picked = own(environment, snapshot, about)
    assert picked.rows == rows
    assert said is None or (picked.sentence, picked.allocation) == said


@pytest.mark.parametrize("devices", ["", "-1", "NoDevFiles", None])
def test_a_job_without_gpus_sees_all_with_a_remark(devices: str | None) -> None:
    environment = {"SLURM_JOB_ID": "9"} | (
        {} if devices is None else {"CUDA_VISIBLE_DEVICES": devices}
    )
    picked = own(environment, EIGHT)
    assert (len(picked.rows), picked.sentence) == (8, "8 GPUs, as job 9 lists none")


def test_of_a_fleet_only_this_host_is_ones_own() -> None:
    held = job_environment({**JOB, "SLURMD_NODENAME": "n2"})
    assert held is not None
    assert select_own(held, host="n2.example.org")(TWO_NODES, EXPORTER).rows == (6, 7)


def test_an_array_task_is_called_as_people_call_it() -> None:
    held = job_environment(
        {
            **JOB,
            "SLURM_ARRAY_JOB_ID": "12",
            "SLURM_ARRAY_TASK_ID": "3",
            "SLURM_JOB_START_TIME": "1700000000",
        }
    )
    assert held is not None
    assert held.allocation == GpuAllocation("12_3", "ana", 1_700_000_000.0)


def test_without_job_and_devices_nothing_is_ones_own() -> None:
    assert job_environment({"USER": "ana"}) is None


HELD = replace(
    TWO_NODES,
    allocations={
        gpu: GpuAllocation(job)
        for gpu, job in zip(TWO_NODES.gpus, ["7", "7", "8_1", None, "7", "8_2", "70"], strict=False)
    },
)


def test_a_job_is_found_on_all_nodes_an_array_with_all_its_tasks() -> None:
    assert select_job("7")(HELD, NVML) == GpuSelection(
        (0, 1, 4), "3 of 8 GPUs, those of job 7 on 2 nodes"
    )
    assert select_job("8")(HELD, NVML).rows == (2, 5)
    assert select_job("8_2")(HELD, NVML).rows == (5,)
    assert select_job("99", lambda job: frozenset({"8_1"}))(HELD, NVML).rows == (2,)


def test_a_gpu_that_jobs_share_is_found_by_each_of_them() -> None:
    shared = replace(
        HELD, allocations={**HELD.allocations, TWO_NODES.gpus[3]: GpuAllocation("8_3,9")}
    )
    assert select_job("9")(shared, NVML).rows == (3,)
    assert select_job("8")(shared, NVML).rows == (2, 3, 5)
    with pytest.raises(NotFoundError, match=r"jobs in view: 7, 70, 8_1, 8_2, 8_3, 9$"):
        select_job("8_3,9")(shared, NVML)


def test_a_job_that_is_not_seen_is_told_with_those_that_are() -> None:
    with pytest.raises(
        NotFoundError, match=r"job 9 has no GPU in view; jobs in view: 7, 70, 8_1, 8_2"
    ):
        select_job("9")(HELD, NVML)
    with pytest.raises(
        NotFoundError, match=r"GPU allocations are unknown: .* squeue .* hpc_job .* --gpus"
    ):
        select_job("9")(TWO_NODES, NVML)


def test_a_part_of_a_snapshot_has_what_belongs_to_its_gpus() -> None:
    part = HELD.of((GpuId("n2", 2), GpuId("n1", 1), GpuId("n3", 0)))
    assert part.column("gpu_util")[:2].tolist() == [0.06, 0.01]
    assert np.isnan([part.column("gpu_util")[2], part.measured[2]]).all()  # it is new
    assert part.measured[:2].tolist() == HELD.measured[:2].tolist()
    assert part.allocations == {
        GpuId("n2", 2): GpuAllocation("70"),
        GpuId("n1", 1): GpuAllocation("7"),
    }
    assert set(part.devices) == set(part.gpus[:2])
    assert HELD.of(HELD.gpus) is HELD


def test_what_was_looked_at_is_read_once_and_errors_come_at_once() -> None:
    source = FakeSource([EIGHT])
    shown = SelectedSource(source, select_named("2"))
    assert shown.poll() is shown.read()
    assert source.reads == 1
    assert shown.about.sentence == "nvml, 8 GPUs; 1 of 8 GPUs, as selected"
    with pytest.raises(NotFoundError):
        SelectedSource(FakeSource([EIGHT]), select_named("9")).poll()


def test_values_are_new_where_gpus_are_the_same() -> None:
    polls = [
        snapshot_of(node_of(4), {"gpu_util": [0.1 * poll, 0.2, 0.3, 0.4 * poll]}, t=poll)
        for poll in (1, 2)
    ]
    shown = SelectedSource(FakeSource(polls), select_named("0,3"))
    first, second = shown.read(), shown.read()
    assert [one.column("gpu_util").tolist() for one in (first, second)] == [[0.1, 0.4], [0.2, 0.8]]
    assert (first.t, second.t, second.measured.tolist()) == (1, 2, [2, 2])
    assert first.devices == second.devices
    assert [gpu.name for gpu in second.devices] == ["n1:0", "n1:3"]


def test_gpus_of_a_job_that_ended_stay_with_a_problem() -> None:
    ended = replace(
        HELD,
        allocations={
            gpu: allocation
            for gpu, allocation in HELD.allocations.items()
            if allocation.job_id != "7"
        },
    )
    shown = SelectedSource(FakeSource([HELD, ended, HELD]), select_job("7"))
    before, after, again = (shown.read() for _ in range(3))
    assert before.gpus == after.gpus == again.gpus
    assert [problem.what for problem in after.problems] == ["job 7 has no GPU in view"]
    assert before.problems == again.problems == ()


def test_a_gpu_that_vanishes_leaves_the_others() -> None:
    shown = SelectedSource(FakeSource([EIGHT, snapshot_of(node_of(7))]), select_named("6-7"))
    assert [gpu.name for gpu in shown.read().gpus] == ["n1:6", "n1:7"]
    after = shown.read()
    assert [gpu.name for gpu in after.gpus] == ["n1:6"]
    assert after.problems[0].what == "GPU 6-7 not found"


def test_ones_own_gpus_are_held_by_ones_own_job() -> None:
    held = job_environment(JOB)
    assert held is not None
    snapshot = SelectedSource(FakeSource([EIGHT]), select_own(held, host="n1")).read()
    assert snapshot.allocations == dict.fromkeys(snapshot.gpus, GpuAllocation("14", "ana"))


def test_a_source_without_gpus_yet_is_waited_for() -> None:
    empty = snapshot_of({})
    shown = SelectedSource(FakeSource([empty, EIGHT]), select_named("3"))
    assert shown.poll().gpus == ()
    shown.read()
    assert [gpu.name for gpu in shown.read().gpus] == ["n1:3"]
