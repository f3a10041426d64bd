"""`tachograph watch sample`, `record` and `scores` with PM sampling, as processes: their output,
their ends, their faults.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pm_node import PmNode, gpu

from in_process import run_here
from tachograph.catalog.tables import GPU_BURSTS, GPU_SAMPLES, GPU_SCORES
from tachograph.lake.delta import Lake

KERNEL = {"sm_active": 0.5, "warps": 16, "dram_active": 0.25}


def command(*words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "tachograph", *words]


def run(
    node: PmNode, *words: str, programs: Path | None = None
) -> subprocess.CompletedProcess[str]:
    environment = node.environment(programs=programs)
    return subprocess.run(
        command(*words),
        cwd=node.folder,
        env=environment,
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


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_sample_prints_json_lines(tmp_path: Path) -> None:
    node = PmNode(
        tmp_path, [gpu(0, kernel=KERNEL), gpu(1, kernel=KERNEL | {"warps": 64, "sm_active": 1.0})]
    )
    words = ("watch", "sample", "--json", "--duration", "1", "--every", "0.5", "--interval", "0.01")
    done = run(node, *words, programs=dcgmi(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert calls(tmp_path) == []  # DCGM is paused only where that is requested
    found = lines(done.stdout)
    whole = {one["gpu"]: one for one in found if one["kind"] == "whole"}
    assert set(whole) == {0, 1}
    for place, score in ((0, 87.5), (1, 0.0)):
        periods = [one for one in found if one["kind"] == "period" and one["gpu"] == place]
        assert sum(one["pm_samples"] for one in periods) == whole[place]["pm_samples"] > 20
        assert whole[place]["score_gpu"] == pytest.approx(score)
        assert whole[place]["overflows"] == 0
    first = whole[0]
    assert (first["chip"], first["model"], first["max_warps"]) == ("GH100", "NVIDIA H200", 64)
    assert first["score_gpumem"] == pytest.approx(100 * 0.25 * 3.201 / (0.25 * 3.201 + 0.5 * 1.98))
    assert first["score_gpumem_normalized"] == pytest.approx(100 / 3)
    assert first["sm_clock_mhz"] == pytest.approx(1980)


def test_sample_prints_a_table_of_chosen_gpus(tmp_path: Path) -> None:
    node = PmNode(tmp_path, [gpu(0, kernel=KERNEL), gpu(1, kernel=KERNEL)])
    words = ("watch", "sample", "--duration", "0.6", "--gpus", "1", "--pause-dcgm")
    done = run(node, *words, programs=dcgmi(tmp_path))
    assert done.returncode == 0
    assert calls(tmp_path) == ["profile --pause", "profile --resume"]
    head, *rows = done.stdout.splitlines()
    assert head.split()[:4] == ["time", "GPU", "score_gpu", "score_gpumem"]
    assert {row.split()[1] for row in rows} == {"1"}
    assert rows[-1].split()[:3] == ["all", "1", "87.5"]


@pytest.mark.parametrize(
    "words",
    [
        ("--interval", "0"),
        ("--interval", "x"),
        ("--interval", "0.00001"),
        ("--interval", "1", "--interval-cycles", "5"),
        ("--gpus", "7"),
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, words: Sequence[str]) -> None:
    environment = PmNode(tmp_path).environment()
    done = run_here(("watch", "sample", "--duration", "1", *words), tmp_path, environment)
    assert done.returncode in (2, 4)
    assert done.stderr.count("\n") == 1


def dcgmi(folder: Path, *, fails: bool = False) -> Path:
    """A folder with a `dcgmi` that notes how it was called."""
    programs = folder / "programs"
    programs.mkdir()
    script = programs / "dcgmi"
    end = "echo 'Error: not permitted'; exit 1" if fails else "exit 0"
    script.write_text(f'#!/bin/sh\necho "$*" >> {folder}/dcgmi.log\n{end}\n', encoding="utf-8")
    script.chmod(0o755)
    return programs


def calls(folder: Path) -> list[str]:
    log = folder / "dcgmi.log"
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "whom"),
    [(signal.SIGINT, "parent"), (signal.SIGKILL, "parent"), (signal.SIGKILL, "child")],
)
def test_dcgm_is_resumed_however_sampling_ends(
    tmp_path: Path, number: signal.Signals, whom: str
) -> None:
    node, programs = PmNode(tmp_path), dcgmi(tmp_path)
    with subprocess.Popen(
        command("watch", "sample", "--pause-dcgm", "--every", "0.2", "--duration", "30"),
        cwd=tmp_path, env=node.environment(programs=programs), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        while len(process.stdout.readline().split()) < 9:  # headings, then it samples
            assert process.poll() is None
        process.stdout.readline()
        child = sampler_of(process.pid)
        assert child is not None
        os.kill(process.pid if whom == "parent" else child, number)
        until(lambda: "profile --resume" in calls(tmp_path))
        process.kill()
    until(lambda: not is_there(child))
    assert calls(tmp_path)[:2] == ["profile --pause", "profile --resume"]


def test_dcgm_that_refuses_to_pause_is_one_line(tmp_path: Path) -> None:
    done = run(
        PmNode(tmp_path),
        "watch",
        "sample",
        "--pause-dcgm",
        "--duration",
        "1",
        programs=dcgmi(tmp_path, fails=True),
    )
    assert done.returncode == 4
    assert "dcgmi profile --pause fails: Error: not permitted" in done.stderr
    assert calls(tmp_path) == ["profile --pause"]  # nothing is resumed that was not paused


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
def test_a_recording_keeps_minutes_and_bursts(tmp_path: Path) -> None:
    node = PmNode(tmp_path, [gpu(kernel=KERNEL | {"on": 100_000_000, "off": 900_000_000})])
    done = recording(node, "sh", "-c", f"{WAIT_FOR_SPOOL}; sleep 3.5; echo done")
    out, err = done.communicate(timeout=300)
    assert (done.returncode, out) == (0, "done\n"), err
    lake = Lake.open(str(tmp_path / "kept"))
    scores, bursts = lake.latest(GPU_SCORES), lake.latest(GPU_BURSTS)
    samples = lake.latest(GPU_SAMPLES)
    assert scores.get_column("pm_samples").sum() > 20
    assert 2 <= bursts.height <= 7
    assert bursts.get_column("pm_samples").max() in (2, 3)  # 100 ms in samples of 50 ms
    assert samples.filter(sm_active=0).height < samples.height
    whole = scores.select("sm_cycles_active", "gpc_cycles_elapsed").sum().row(0)
    # All activity is in bursts.
    assert bursts.get_column("sm_cycles_active").sum() == pytest.approx(whole[0])
    assert whole[0] / whole[1] < 0.2
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
    try:
        process.begin()
        until(lambda: process.take().sums)
        node.gpus[0]["kernel"] = {"crash": True}
        node.write()
        until(
            lambda: (
                process.take() and any("signal 11" in one.fault.what for one in process.faults())
            )
        )
        node.gpus[0]["kernel"] = KERNEL
        node.write()
        until(lambda: process.take().sums and not process.faults())
    finally:
        process.close()
