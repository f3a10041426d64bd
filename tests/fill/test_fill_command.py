"""`tachograph simulate DIR --lake LAKE`, in processes of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tachograph.catalog.tables import GPU_SAMPLES
from tachograph.lake.delta import Lake

pytestmark = pytest.mark.slow

FILL = """
import sys
from tachograph.service.fill import fill
from tachograph.simulate.plan import NodeGroup, SimulationPlan as Plan
if __name__ == "__main__":
    plan = Plan(seed=3, days=3, groups=(NodeGroup(6, 4, "A100 SXM 40GB"),), interval_s=60, rows_per_file=12_000)
    fill(plan, sys.argv[1], sys.argv[1] + "-cluster", processes=2)
"""
SIZE = ("--nodes", "3", "--days", "2", "--interval", "120", "--seed", "5")


def tachograph(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tachograph", *words], cwd=folder, capture_output=True, text=True, timeout=300
    )


def ends(group: int, *, within_s: float) -> bool:
    """Whether all processes of a group are gone in time."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_a_lake_is_filled_and_analyzed(tmp_path: Path) -> None:
    first = tachograph(
        tmp_path, "simulate", "cluster", *SIZE, "--lake", "lake", "--fill-days", "1", "--processes", "1", "--json"
    )
    told = json.loads(first.stdout)
    assert (told["lake"], told["samples"], told["chunks"], told["chunks_known"]) == ("lake", 12 * 720, 1, 0)
    assert 0.9 * told["samples"] < told["rows"] <= told["samples"]
    second = tachograph(tmp_path, "simulate", "cluster", *SIZE, "--lake", "lake", "--processes", "2")
    assert second.returncode == 0, second.stderr
    assert "(1 of 2 chunks were already in the lake)" in second.stdout
    more = ("--lake", "lake", "--config", "cluster/tachograph.toml")
    analyzed = tachograph(tmp_path, "analyze", "--as-of", "2025-03-05T00:00:00Z", "--json", *more)
    found = json.loads(analyzed.stdout)
    assert found["jobs"] > 10
    assert 0.9 * 12 * 1440 < found["samples"] <= 12 * 1440
    assert not (tmp_path / "cluster" / "telemetry").exists()


def test_killed_it_leaves_nothing_running_and_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FILL, "killed"]
    process = subprocess.Popen(command, cwd=tmp_path, start_new_session=True)
    while not list((tmp_path / "killed" / "gpu_samples").glob("day=*/*.parquet")):
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    gone = ends(process.pid, within_s=240)
    if not gone:
        os.killpg(process.pid, signal.SIGKILL)
    assert gone
    for lake in ("killed", "whole"):
        subprocess.run([sys.executable, "-c", FILL, lake], cwd=tmp_path, check=True, timeout=300)
    killed, whole = (Lake.open(str(tmp_path / lake)).latest(GPU_SAMPLES) for lake in ("killed", "whole"))
    assert killed.drop("seq").equals(whole.drop("seq"))
    assert whole.height > 0.9 * 4 * 6 * 1440 * 3


def test_what_fills_a_lake_needs_one(tmp_path: Path) -> None:
    done = tachograph(tmp_path, "simulate", "cluster", *SIZE, "--fill-days", "1")
    assert done.returncode == 2
    assert done.stderr == (
        "tachograph: --fill-days and --processes need --lake; name a lake with --lake, or leave them out\n"
    )
