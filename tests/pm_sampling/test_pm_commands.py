"""`tachograph record` and `scores` with PM sampling, as processes: output, ends, faults."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pm_node import PmNode, gpu

from tachograph.catalog.tables import GPU_SAMPLES, GPU_SCORES
from tachograph.lake.delta import Lake

KERNEL = {"sm_active": 0.5, "warps": 16, "dram_active": 0.25}


def command(*words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "tachograph", *words]


def run(node: PmNode, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words),
        cwd=node.folder,
        env=node.environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    """The processes below a process, all generations."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
    found = [one for one, parent in parents.items() if parent == pid]
    return [*found, *(below for one in found for below in children(one))]


def sampler_of(pid: int) -> int | None:
    """The process that samples, below another."""
    for one in children(pid):
        try:
            if (
                b"tachograph.annexes.watch.pm_sampling.child"
                in Path(f"/proc/{one}/cmdline").read_bytes()
            ):
                return one
        except OSError:
            continue
    return None


def is_there(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def recording(node: PmNode, *work: str) -> subprocess.Popen[str]:
    words = ("record", "--source", "pm-sampling", "--interval", "0.2", "-o", "kept", "--", *work)
    return subprocess.Popen(
        command(*words),
        cwd=node.folder,
        env=node.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# a minute at most, however long the recorder takes to start
WAIT_FOR_SPOOL = (
    "n=0; until ls kept/recordings/*.spool || [ $((n += 1)) -gt 600 ]; do sleep 0.1; done "
    ">/dev/null 2>&1"
)


@pytest.mark.slow
def test_a_recording_keeps_minutes(tmp_path: Path) -> None:
    node = PmNode(tmp_path, [gpu(kernel=KERNEL | {"on": 100_000_000, "off": 900_000_000})])
    done = recording(node, "sh", "-c", f"{WAIT_FOR_SPOOL}; sleep 3.5; echo done")
    out, err = done.communicate(timeout=300)
    assert (done.returncode, out) == (0, "done\n"), err
    lake = Lake.open(str(tmp_path / "kept"))
    scores, samples = lake.latest(GPU_SCORES), lake.latest(GPU_SAMPLES)
    assert scores.get_column("pm_samples").sum() > 20
    assert samples.filter(sm_active=0).height < samples.height
    whole = scores.select("sm_cycles_active", "sm_cycles_elapsed").sum().row(0)
    assert 0 < whole[0] / whole[1] < 0.2  # 100 ms of each second, at half of the cycles
    job = json.loads(run(node, "jobs", "--lake", "kept", "--json").stdout)[0]["job_id"]
    ways = json.loads(run(node, "lab", "scores", job, "--lake", "kept", "--json").stdout)["ways"]
    assert [way["way"] for way in ways] == ["dcgm", "pm"]
    assert ways[1]["score_gpu"] == pytest.approx(scores.get_column("score_gpu").item(0), abs=5)


@pytest.mark.slow
def test_a_killed_sampler_leaves_the_job_and_the_recording(tmp_path: Path) -> None:
    node = PmNode(tmp_path)
    with recording(
        node, "sh", "-c", "until test -e stop; do sleep 0.1; done; echo job done"
    ) as process:
        spool = tmp_path / "kept" / "recordings"
        until(lambda: spool.is_dir() and any(one.stat().st_size > 2000 for one in spool.iterdir()))
        child = sampler_of(process.pid)
        assert child is not None
        os.kill(child, signal.SIGKILL)
        until(lambda: not is_there(child))
        time.sleep(1.0)  # some polls without the sampler
        (tmp_path / "stop").touch()
        out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (0, "job done\n")
    assert "while it was recorded: " in err
    assert (
        "PM sampling: the process that samples was ended by signal 9; other counters continue"
        in err
    )
    assert Lake.open(str(tmp_path / "kept")).latest(GPU_SCORES).height


@pytest.mark.slow
def test_a_killed_recorder_leaves_the_job_and_ends_the_sampler(tmp_path: Path) -> None:
    node = PmNode(tmp_path)
    with recording(
        node, "sh", "-c", "until test -e stop; do sleep 0.1; done; echo job done"
    ) as process:
        until(lambda: sampler_of(process.pid) is not None)
        child = sampler_of(process.pid)
        assert child is not None
        recorder = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
        assert recorder != process.pid
        os.kill(recorder, signal.SIGKILL)
        until(lambda: not is_there(child))
        (tmp_path / "stop").touch()
        out, _ = process.communicate(timeout=300)
    assert (process.returncode, out) == (0, "job done\n")


@pytest.mark.slow
def test_a_library_that_crashes_is_started_again(tmp_path: Path) -> None:
    from tachograph.annexes.watch.pm_sampling.child import PmRequest
    from tachograph.annexes.watch.pm_sampling.process import PmProcess

    node = PmNode(tmp_path)
    process = PmProcess(PmRequest(report_s=0.1), environment=node.environment(), restart_s=0.1)

    def has_died() -> bool:
        process.take()
        return any("signal 11" in failed.fault.what for failed in process.faults())

    try:
        process.begin()
        until(process.take)
        node.gpus[0]["kernel"] = {"crash": True}
        node.write()
        until(has_died)
        node.gpus[0]["kernel"] = KERNEL
        node.write()
        until(lambda: process.take() and not process.faults())
    finally:
        process.close()
