"""Who computes on a GPU: user and command from a made-up /proc, asked once for each process."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from in_process_nvml import Clock, Code, InProcessNvml, handle, source_of

from tachograph.annexes.watch.live.snapshot import GpuId, GpuProcess
from tachograph.annexes.watch.live.sources.nvml_devices import GpuProcesses

MIB = 1024 * 1024
HOST = "pid:[4026531836]"
CALL = "nvmlDeviceGetComputeRunningProcesses_v3"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").symlink_to(HOST)
    return tmp_path


def make(
    proc: Path, pid: int, *, line: bytes, name: str = "python", started: int = 5, uid: int = 0
) -> None:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True, exist_ok=True)
    fields = " ".join(str(number) for number in range(4, 22)).split()
    (folder / "stat").write_text(f"{pid} ({name}) S {' '.join(fields)} {started} 23 24\n")
    (folder / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t0\t0\t0\nGid:\t0\n")
    (folder / "cmdline").write_bytes(line)


def running(*held: tuple[int, int | None]) -> list[Any]:
    return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in held]


def test_user_command_and_memory(proc: Path) -> None:
    make(proc, 71, line=b"python\0train.py\0--lr\x1b[2J\0", uid=os.getuid())
    make(proc, 72, line=b"", name="odd) (name", uid=123_456)
    nvml = InProcessNvml(1, {CALL: running((72, None), (71, 3 * MIB), (73, MIB), (0, MIB))})
    assert GpuProcesses(nvml, proc=proc).of([handle(0)]) == (
        GpuProcess(71, pwd.getpwuid(os.getuid()).pw_name, "python train.py --lr\x1b[2J", 3.0),
        GpuProcess(72, "123456", "odd) (name", None),
        GpuProcess(73, None, None, 1.0),
    )


def test_a_process_is_looked_up_once_and_a_new_one_of_its_number_again(proc: Path) -> None:
    make(proc, 71, line=b"first")
    nvml = InProcessNvml(1, {CALL: running((71, MIB))})
    processes = GpuProcesses(nvml, proc=proc)
    (first,) = processes.of([handle(0)])
    (proc / "71/cmdline").write_bytes(b"changed")  # a process may write over it, or exec
    (same,) = processes.of([handle(0)])
    make(proc, 71, line=b"second", started=6)
    (second,) = processes.of([handle(0)])
    assert [one.command for one in (first, same, second)] == ["first", "first", "second"]
    processes.forget_ended()
    nvml.answers[CALL] = []
    processes.of([handle(0)])
    processes.forget_ended()
    assert processes._known == {}


def test_in_a_container_only_who_holds_the_gpu_has_a_name(proc: Path) -> None:
    (proc / "self/ns/pid").unlink()
    (proc / "self/ns/pid").symlink_to("pid:[4026532999]")
    make(proc, 71, line=b"holds")
    make(proc, 72, line=b"chance")
    (proc / "71/fd/4").symlink_to("/dev/nvidia0")
    (proc / "72/fd/4").symlink_to("/dev/null")
    nvml = InProcessNvml(1, {CALL: running((71, MIB), (72, MIB))})
    held, other = GpuProcesses(nvml, proc=proc).of([handle(0)])
    assert (held.command, other.command, other.user) == ("holds", None, None)


def test_an_older_driver_is_asked_in_the_old_way(proc: Path) -> None:
    old = {
        CALL: Code(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND),
        CALL.replace("_v3", "_v2"): running((9, MIB)),
    }
    assert [one.pid for one in GpuProcesses(InProcessNvml(1, old), proc=proc).of([handle(0)])] == [
        9
    ]


def test_clients_of_a_shared_context_are_told_once(proc: Path) -> None:
    of_mps = "nvmlDeviceGetMPSComputeRunningProcesses_v3"
    nvml = InProcessNvml(1, {CALL: running((9, None), (8, MIB)), of_mps: running((9, 2 * MIB))})
    found = GpuProcesses(nvml, proc=proc).of([handle(0)])
    assert [(one.pid, one.hbm_used_mib) for one in found] == [(8, 1.0), (9, 2.0)]


def test_processes_are_asked_once_a_second_and_a_refusal_is_nobody(proc: Path) -> None:
    clock = Clock()
    nvml = InProcessNvml(2, {CALL: {0: running((9, MIB)), 1: Code(pynvml.NVML_ERROR_UNKNOWN)}})
    gpus = source_of(nvml, clock, processes=GpuProcesses(nvml, proc=proc))
    gpus.start()
    nvml.calls.clear()
    for _ in range(25):
        clock.now += 0.1
        snapshot = gpus.read()
    assert nvml.calls.count(CALL) == 2 * 2
    assert list(snapshot.processes) == [GpuId("n", 0)]
