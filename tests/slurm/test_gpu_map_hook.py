"""contrib/slurm/gpu-map.sh: what it writes, that it never fails a job, and that a job never
waits for it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tachograph.sources.slurm.allocations import read_log
from tachograph.sources.slurm.records import SlurmCluster

# The hook needs programs that a bare machine lacks: bash, grep, flock.
pytestmark = pytest.mark.slow

HOOK = Path(__file__).resolve().parents[2] / "contrib" / "slurm" / "gpu-map.sh"
JOB = {
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_GPUS": "0,3",
    "SLURMD_NODENAME": "gpu01",
    "SLURM_JOB_RESTART_COUNT": "0",
    "SLURM_CLUSTER_NAME": "demo",
    "SLURM_SCRIPT_CONTEXT": "prolog_slurmd",
    "CUDA_VISIBLE_DEVICES": "0,3",
}
SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]


def started(folder: Path, shell: str = "sh", **more: str) -> subprocess.Popen[bytes]:
    environment = {"PATH": os.environ["PATH"], "TACHOGRAPH_MAP_FOLDER": str(folder), **JOB, **more}
    words = ["busybox", "sh"] if shell == "busybox" else [shell]
    return subprocess.Popen(
        [*words, str(HOOK)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def call(folder: Path, shell: str = "sh", **more: str) -> None:
    """Call it once; it says nothing, and ends with 0."""
    process = started(folder, shell, **more)
    said, _ = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, b"")


def lines(folder: Path, node: str = "gpu01") -> list[str]:
    """What stands in the file of a node, without the times."""
    file = folder / f"{node}.log"
    return (
        [line.split(" ", 1)[1] for line in file.read_text(encoding="utf-8").splitlines()]
        if file.exists()
        else []
    )


@pytest.mark.parametrize("shell", SHELLS)
def test_a_job_leaves_two_lines_that_are_understood(tmp_path: Path, shell: str) -> None:
    folder = tmp_path / "a" / "b c"
    before = int(time.time())
    call(folder, shell)
    call(folder, shell, SLURM_SCRIPT_CONTEXT="epilog_slurmd")
    assert lines(folder) == [
        "prolog job=17 restart=0 node=gpu01 gpus=0,3 cluster=demo",
        "epilog job=17 restart=0 node=gpu01 gpus=0,3 cluster=demo",
    ]
    rows, rejected, _, _ = read_log(
        (folder / "gpu01.log").read_text(encoding="utf-8"), cluster=SlurmCluster()
    )
    assert rejected == []
    assert [(row["cluster"], row["job_id"], row["node"], row["gpu"]) for row in rows] == [
        ("demo", "17", "gpu01", 0),
        ("demo", "17", "gpu01", 3),
    ]
    written = float((folder / "gpu01.log").read_text(encoding="utf-8").split()[0])
    assert before <= written <= time.time()


def test_called_again_for_the_same_start_it_writes_nothing_for_the_next_it_does(
    tmp_path: Path,
) -> None:
    for restart in ("0", "0", "1", "1"):
        call(tmp_path, SLURM_JOB_RESTART_COUNT=restart)
        call(tmp_path, SLURM_JOB_RESTART_COUNT=restart, SLURM_SCRIPT_CONTEXT="epilog_slurmd")
    assert [(line.split()[0], line.split()[2]) for line in lines(tmp_path)] == [
        ("prolog", "restart=0"),
        ("epilog", "restart=0"),
        ("prolog", "restart=1"),
        ("epilog", "restart=1"),
    ]
    call(tmp_path, SLURM_JOB_ID="1")  # is no part of 17
    call(tmp_path, SLURM_JOB_RESTART_COUNT="10")
    assert len(lines(tmp_path)) == 6


def test_a_requeued_run_whose_epilog_is_told_the_count_of_the_next(tmp_path: Path) -> None:
    """As slurmd of 22.05 does: both runs have an end, and a second call of either epilog adds
    none.
    """
    for event, restart in (("prolog", "0"), ("epilog", "1"), ("prolog", "1"), ("epilog", "1")):
        for _ in range(2):
            call(tmp_path, SLURM_SCRIPT_CONTEXT=f"{event}_slurmd", SLURM_JOB_RESTART_COUNT=restart)
    assert [line.split()[0] for line in lines(tmp_path)] == ["prolog", "epilog", "prolog", "epilog"]
    rows, _, _, _ = read_log(
        (tmp_path / "gpu01.log").read_text(encoding="utf-8"), cluster=SlurmCluster()
    )
    assert [row["gpu"] for row in rows] == [0, 3, 0, 3]
    assert all(row["start"] and row["end"] for row in rows)


def test_jobs_that_start_at_once_do_not_mix_their_lines(tmp_path: Path) -> None:
    processes = [started(tmp_path, SLURM_JOB_ID=str(job)) for job in range(100, 130)]
    assert [process.wait(20) for process in processes] == [0] * 30
    for process in processes:
        process.communicate()
    expected = sorted(
        f"prolog job={job} restart=0 node=gpu01 gpus=0,3 cluster=demo" for job in range(100, 130)
    )
    assert sorted(lines(tmp_path)) == expected


@pytest.mark.parametrize(
    "more",
    [
        {"SLURM_JOB_GPUS": ""},
        {"SLURM_JOB_ID": ""},
        {"SLURM_JOB_ID": "1; rm"},
        {"SLURMD_NODENAME": "../../etc/x"},
        {"SLURM_JOB_GPUS": "0 1\n2"},
        {"SLURM_JOB_GPUS": "$(id)"},
    ],
)
def test_without_a_job_gpus_or_a_proper_name_nothing_is_written(
    tmp_path: Path, more: Mapping[str, str]
) -> None:
    call(tmp_path / "map", **more)
    assert not (tmp_path / "map").exists()


def test_slices_are_not_taken_for_gpus(tmp_path: Path) -> None:
    call(
        tmp_path,
        CUDA_VISIBLE_DEVICES="MIG-c7384736-a75d-5afc-978f-d2f1294409fd",
        SLURM_JOB_GPUS="5",
    )
    assert lines(tmp_path) == ["prolog job=17 restart=0 node=gpu01 mig=5 cluster=demo"]
    _, rejected, _, _ = read_log(
        (tmp_path / "gpu01.log").read_text(encoding="utf-8"), cluster=SlurmCluster()
    )
    assert [reason for _, reason, _ in rejected] == ["mig_index"]


def test_a_folder_that_cannot_be_written_fails_no_job(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    call(blocked / "folder")
    call(blocked)
    (tmp_path / "gpu01.log").mkdir()
    call(tmp_path)
    assert blocked.read_text(encoding="utf-8") == ""


@pytest.mark.slow
def test_storage_that_hangs_holds_up_no_job(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gpu01.log")  # opening it waits for somebody who reads
    began = time.monotonic()
    process = started(tmp_path)
    process.communicate(timeout=60)  # slurmd waits for what it listens to, too
    assert process.returncode == 0
    assert 4 < time.monotonic() - began < 30
    os.killpg(process.pid, signal.SIGKILL)  # as slurmd does with what a prolog leaves


def test_without_its_context_the_name_tells(tmp_path: Path) -> None:
    for name in ("epilog-gpu-map.sh", "gpu-map.sh"):
        script = tmp_path / name
        script.symlink_to(HOOK)
        environment = {**JOB, "TACHOGRAPH_MAP_FOLDER": str(tmp_path), "PATH": os.environ["PATH"]}
        del environment["SLURM_SCRIPT_CONTEXT"]
        assert (
            subprocess.run([str(script)], env=environment, check=False, timeout=60).returncode == 0
        )
    assert [line.split()[0] for line in lines(tmp_path)] == ["epilog", "prolog"]
