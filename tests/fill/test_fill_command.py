"""`tachograph simulate DIR --lake LAKE`, in processes of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SIZE = ("--nodes", "3", "--days", "2", "--interval", "120", "--seed", "5")


def tachograph(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tachograph", *words], cwd=folder, capture_output=True, text=True, timeout=120
    )


def test_a_lake_is_filled_and_analyzed(tmp_path: Path) -> None:
    first = tachograph(
        tmp_path, "simulate", "cluster", *SIZE, "--lake", "lake", "--fill-days", "1", "--processes", "1", "--json"
    )
    told = json.loads(first.stdout)
    assert (told["lake"], told["samples"], told["chunks"], told["chunks_known"]) == ("lake", 12 * 720, 1, 0)
    assert 0.9 * told["samples"] < told["rows"] <= told["samples"]
    second = tachograph(tmp_path, "simulate", "cluster", *SIZE, "--lake", "lake", "--processes", "2")
    assert second.returncode == 0, second.stderr
    assert "(1 of 2 chunks were there)" in second.stdout
    more = ("--lake", "lake", "--config", "cluster/tachograph.toml")
    analyzed = tachograph(tmp_path, "analyze", "--as-of", "2025-03-05T00:00:00Z", "--json", *more)
    found = json.loads(analyzed.stdout)
    assert found["jobs"] > 10
    assert 0.9 * 12 * 1440 < found["samples"] <= 12 * 1440
    assert not (tmp_path / "cluster" / "telemetry").exists()


def test_what_fills_a_lake_needs_one(tmp_path: Path) -> None:
    done = tachograph(tmp_path, "simulate", "cluster", *SIZE, "--fill-days", "1")
    assert done.returncode == 2
    assert done.stderr == (
        "tachograph: --fill-days and --processes fill a lake; name it with --lake, or leave them out\n"
    )
