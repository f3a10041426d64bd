"""The day from end to end against stand-ins, ended in the middle of its longest steps, and
resumed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from servers.process import program

DAY = Path(__file__).resolve().parents[2] / "research" / "gpu-day"
STEPS = ("pm", "pairs", "overhead", "summary")
# {step: a file that it has in its middle}; the first of them ends by SIGTERM, the other by SIGKILL
MIDDLE = {
    "pm": "pm/spans.json",
    "pairs": "calibration.toml",
}
WORKLOADS = "gemm-bf16,tiny-kernels"


def command(out: Path, *options: str) -> list[str]:
    words = [
        "--out",
        str(out),
        "--rehearse",
        "--workloads",
        WORKLOADS,
        "--collect",
        str(out / "back"),
    ]
    return [sys.executable, str(DAY / "gpu_day.py"), *words, *options]


def environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TACHOGRAPH_", "SLURM"))
    }


def await_file(file: Path, process: subprocess.Popen[bytes]) -> None:
    """Return when the file is there, or the process has ended."""
    end = time.monotonic() + 300
    while not file.exists() and process.poll() is None:
        assert time.monotonic() < end, file
        time.sleep(0.02)


def read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


@pytest.mark.slow
def test_a_day_that_is_killed_goes_on(tmp_path: Path) -> None:
    program("gcc", package="gcc libc6-dev")
    out = tmp_path / "day"
    for number, (step, middle) in enumerate(MIDDLE.items()):
        process = subprocess.Popen(
            command(out, "--only", step), env=environment(), stderr=subprocess.DEVNULL
        )
        file = out / middle
        await_file(file, process)
        process.send_signal(signal.SIGKILL if number % 2 else signal.SIGTERM)
        process.wait(120)
        state = read(out / f"{step}.json")["state"] if (out / f"{step}.json").exists() else "begun"
        assert state in ("begun", "skipped")
    kept = (out / "pm" / "pm.jsonl").read_text(encoding="utf-8")
    done = subprocess.run(
        command(out), env=environment(), capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stderr
    documents = {step: read(out / f"{step}.json") for step in STEPS}
    assert {one["state"] for one in documents.values()} <= {"done", "skipped"}
    assert (out / "pm" / "pm.jsonl").read_text(encoding="utf-8") == kept  # not sampled again
    checks = documents["pairs"]["result"]["real_pairs"]
    assert len(checks) == 12
    assert documents["pairs"]["result"]["errors"]["checked"] == 12
    activity = documents["pm"]["tables"][0]["rows"]
    assert [row[0] for row in activity] == ["gemm-bf16", "tiny-kernels"]
    for row in activity:  # GPCs of the stand-in count 4 % more cycles
        assert row[2:4] == pytest.approx([0.5, 0.5 / 1.04])
    assert [row[5] is None for row in activity] == [False, True]  # not profiled: bound by launches
    rounds = len(documents["overhead"]["result"]["rounds"])
    assert rounds in (1, 2)  # on a busy machine its time may be up after the first
    lacking = any("rounds: the time" in one for one in documents["overhead"]["not_measured"])
    assert lacking == (rounds < 2)
    report = (out / "report.md").read_text(encoding="utf-8")
    assert "A rehearsal with stand-ins" in report
    assert all(f"## {one['title']}" in report for one in documents.values())
    assert {file.name for file in (out / "back").iterdir()} == {
        "gpu-day-results.tar.gz",
        "report.md",
    }
    assert documents["summary"]["device"] == "NVIDIA H100 80GB HBM3"
    again = subprocess.run(
        command(out), env=environment(), capture_output=True, text=True, timeout=600
    )
    assert again.returncode == 0
    assert again.stderr.count(" before\n") == 3
