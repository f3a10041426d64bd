"""Prints the peak memory of each step for a recording of a few days and one of many, as the real
commands run.

Memory is bounded by the partition (a day's rows of some nodes) and the number of threads, not by
the length of the recording: the peak of many days may exceed that of a few by what is kept of jobs,
not by what is kept of samples.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GOAL_RATIO = 1.5
FEW_DAYS = 3  # enough for every thread to have something to do
STEPS = ("simulate", "ingest", "analyze", "compact")


def peak(command: list[str], folder: Path) -> tuple[float, float]:
    """Return (peak memory in MiB, seconds) of one `tachograph` command.

    Errors: RuntimeError when it fails.
    """
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "tachograph", *command], cwd=folder, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"tachograph {' '.join(command)} failed")
    return usage.ru_maxrss / 1024, time.perf_counter() - begin


def measure(nodes: int, days: int) -> dict[str, dict[str, float]]:
    """Return peak memory and seconds of each step for a cluster of `nodes` nodes over `days`
    days, every 10 s.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = ["--nodes", str(nodes), "--days", str(days), "--interval", "10"]
        options = ["--config", "cluster/tachograph.toml", "--lake", "lake"]
        found = {"simulate": peak(["lab", "simulate", "cluster", *size], folder)}
        found["ingest"] = peak(["ingest", "ldms", "cluster/telemetry", *options], folder)
        peak(["ingest", "sacct", "cluster/accounting/sacct.txt", *options], folder)
        found["analyze"] = peak(
            ["analyze", "--threads", "2", "--as-of", "2025-04-30", *options], folder
        )
        found["compact"] = peak(["lake", "compact", *options], folder)
    return {
        step: {"mib": round(mib), "s": round(seconds, 1)} for step, (mib, seconds) in found.items()
    }


def main() -> int:
    """Print the numbers; 1 when a step's memory grows with the length of the recording."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=24)
    parser.add_argument("--days", type=int, default=12)
    options = parser.parse_args()
    short, long = measure(options.nodes, FEW_DAYS), measure(options.nodes, options.days)
    ratios = {step: round(long[step]["mib"] / short[step]["mib"], 2) for step in STEPS}
    reached = all(ratios[step] <= GOAL_RATIO for step in ("ingest", "analyze", "compact"))
    measured = {
        "benchmark": "memory",
        "nodes": options.nodes,
        "samples_per_day": options.nodes * 4 * 8640,
        "few_days": short,
        "days": options.days,
        "many_days": long,
        "ratio": ratios,
        "goal_ratio": GOAL_RATIO,
        "reached": reached,
    }
    print(json.dumps(measured))
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
