"""Prints what `tachograph record` costs: CPU of the recorder beside a command, a command's run time
with and without.

The recorder samples simulated GPUs, whose values are made up in the same process: that counts, too.
Its CPU time is read from the kernel while a command sleeps, once it has started; what starting
takes is told beside. Then a command that computes on one core runs alternately without and with a
recorder; it times itself, so that neither the start of Python nor the report counts, by the clock
and in CPU time of its own, and waits until a recorder has started.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GOAL_SHARE = 0.005
START_S = 8.0  # after which a recorder has started, on busy cores too
BEFORE_S = 3.0  # that the command waits for it, with and without
COMPUTE = """
import sys, time
time.sleep(float(sys.argv[2]))
wall, cpu = time.perf_counter(), time.process_time()
total = 0
for number in range(int(sys.argv[1])):
    total += number * number % 7
print(time.perf_counter() - wall, time.process_time() - cpu)
"""


def main() -> int:
    """Measure; return 1 where the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="in which the recorder's CPU time is read"
    )
    parser.add_argument("--pairs", type=int, default=5, help="runs without and with a recorder")
    parser.add_argument("--work", type=int, default=20_000_000, help="turns of the command's loop")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        start_s, share, bytes_per_s = recorder(Path(folder), options)
        wall, cpu = ratios(Path(folder), options)
    found = {
        "gpus": options.gpus,
        "interval_s": options.interval,
        "cores": os.cpu_count(),
        "start_cpu_s": round(start_s, 3),
        "recorder_share_of_core": round(share, 5),
        "spool_bytes_per_s": round(bytes_per_s),
        "pairs": options.pairs,
        "command_wall_ratio_median": round(statistics.median(wall), 4),
        "command_cpu_ratio_median": round(statistics.median(cpu), 4),
        "command_cpu_ratio_least": round(min(cpu), 4),
        "command_cpu_ratio_most": round(max(cpu), 4),
        "goal_share_of_core": GOAL_SHARE,
    }
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    return int(share > GOAL_SHARE)


def recorder(folder: Path, options: argparse.Namespace) -> tuple[float, float, float]:
    """Return CPU seconds of the start, the share of a core afterwards, and bytes a second of the
    spool.
    """
    command = ["sleep", str(START_S + options.seconds + 5)]
    parent = subprocess.Popen(
        [*record(folder / "steady", options), *command], stdout=subprocess.DEVNULL
    )
    time.sleep(START_S)
    pid = next(
        pid
        for pid in children(parent.pid)
        if b"tachograph" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    began, size = cpu_s(pid), spool_bytes(folder / "steady")
    clock = time.monotonic()
    time.sleep(options.seconds)
    spent, grown = cpu_s(pid) - began, spool_bytes(folder / "steady") - size
    passed = time.monotonic() - clock
    if parent.wait():
        raise SystemExit("the recorded command failed")
    return began, spent / passed, grown / passed


def ratios(folder: Path, options: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Return run times with over without a recorder, by the clock and in CPU time, pair by pair."""
    wall, cpu = [], []
    for pair in range(options.pairs):
        order = ("without", "with") if pair % 2 == 0 else ("with", "without")
        took = {how: computed(folder / f"{pair}", options, recorded=how == "with") for how in order}
        wall.append(took["with"][0] / took["without"][0])
        cpu.append(took["with"][1] / took["without"][1])
    return wall, cpu


def computed(folder: Path, options: argparse.Namespace, *, recorded: bool) -> tuple[float, float]:
    """Return seconds by the clock, and of CPU, that the command took."""
    command = [sys.executable, "-c", COMPUTE, str(options.work), str(BEFORE_S)]
    line = [*record(folder, options), *command] if recorded else command
    wall, cpu = subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()
    return float(wall), float(cpu)


def record(folder: Path, options: argparse.Namespace) -> list[str]:
    """Return what stands before a command that is recorded."""
    how = [
        "--simulate",
        str(options.gpus),
        "--interval",
        str(options.interval),
        "--quiet",
        "-o",
        str(folder),
    ]
    return [sys.executable, "-m", "tachograph", "record", *how, "--"]


def children(pid: int) -> list[int]:
    """Return the processes that a process started."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process, all its threads, in seconds."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def spool_bytes(folder: Path) -> int:
    """Return how large the spool is now."""
    return sum(file.stat().st_size for file in folder.rglob("*.spool"))


if __name__ == "__main__":
    sys.exit(main())
