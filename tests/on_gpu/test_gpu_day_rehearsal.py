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
STEPS = ("proof", "pairs", "pm", "overhead", "samples", "summary")
# {step: a file that it has in its middle}; the first of them ends by SIGTERM, the other by SIGKILL
MIDDLE = {
    "proof": "proof/results.json",
    "pairs": "calibration.toml",
}


def command(out: Path, *options: str) -> list[str]:
    words = [
        "--out",
        str(out),
        "--rehearse",
        "--workloads",
        "idle,fp16",
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
    kept = (out / "proof" / "results.json").read_text(encoding="utf-8")
    done = subprocess.run(
        command(out), env=environment(), capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stderr
    documents = {step: read(out / f"{step}.json") for step in STEPS}
    assert {one["state"] for one in documents.values()} <= {"done", "skipped"}
    before, after = json.loads(kept)["workloads"], documents["proof"]["result"]["workloads"]
    for name, had in before.items():
        if "shown" in had.get("done", ()):
            assert after[name]["shares"] == had["shares"]  # not measured again
    energy = next(
        table for table in documents["proof"]["tables"] if table["title"].startswith("Energy")
    )
    drawn = {row[0]: row for row in energy["rows"]}["fp16"]
    assert drawn[-1] is not False
    checks = documents["pairs"]["result"]["real_pairs"]
    assert len(checks) == 30
    assert documents["pairs"]["result"]["errors"]["checked"] == 30
    rounds = len(documents["overhead"]["result"]["rounds"])
    assert rounds in (1, 2)  # on a busy machine its time may be up after the first
    lacking = any("the time was up" in one for one in documents["overhead"]["not_measured"])
    assert lacking == (rounds < 2)
    report = (out / "report.md").read_text(encoding="utf-8")
    assert "A rehearsal with stand-ins" in report
    assert all(f"## {one['title']}" in report for one in documents.values())
    assert {file.name for file in (out / "back").iterdir()} == {
        "gpu-day-results.tar.gz", "report.md", "sample-data.tar.xz",
    }  # fmt: skip
    assert (out / "back" / "sample-data.tar.xz").stat().st_size < 600_000
    again = subprocess.run(
        command(out), env=environment(), capture_output=True, text=True, timeout=600
    )
    assert again.returncode == 0
    assert again.stderr.count(" before\n") == 4
