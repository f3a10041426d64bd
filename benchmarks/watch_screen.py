"""What `tachograph watch` costs in a real terminal: processor time per second, and until the first
screen.

python benchmarks/watch_screen.py --gpus 1000 --seconds 30
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

TICKS = os.sysconf("SC_CLK_TCK")
KEYS = {"table": "", "sorted by power": "P", "grouped by node": "g", "grouped by job": "g g"}
GOAL_PERCENT = 3.0


def main() -> int:
    """Print the numbers; 1 when the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--size", default="200x50")
    options = parser.parse_args()
    found = {name: measured(options, keys.split()) for name, keys in KEYS.items()}
    told = {
        "benchmark": "watch_screen",
        "gpus": options.gpus,
        "size": options.size,
        "load": os.getloadavg()[0],
    }
    print(json.dumps(told | {"goal_percent": GOAL_PERCENT, "screens": found}))
    return int(max(screen["core_percent"] for screen in found.values()) > GOAL_PERCENT)


def measured(options: argparse.Namespace, keys: list[str]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        tmux = ["tmux", "-S", str(Path(folder) / "socket"), "-f", os.devnull]
        width, height = options.size.split("x")
        command = (
            f"cd {folder}; exec {sys.executable} -m tachograph watch --simulate "
            f"{options.gpus} --interval 1"
        )
        begin = time.monotonic()
        subprocess.run([*tmux, "new-session", "-d", "-x", width, "-y", height, command], check=True)
        try:
            pid = int(said(tmux, "list-panes", "-F", "#{pane_pid}"))
            while "sim001" not in said(tmux, "capture-pane", "-p"):
                time.sleep(0.02)
            first_s, first_cpu_s = time.monotonic() - begin, processor_s(pid)
            for key in keys:
                subprocess.run([*tmux, "send-keys", key], check=True)
            time.sleep(5)
            before, start = processor_s(pid), time.monotonic()
            time.sleep(options.seconds)
            share = (processor_s(pid) - before) / (time.monotonic() - start)
        finally:
            subprocess.run([*tmux, "kill-server"], check=False)
    return {
        "first_screen_s": round(first_s, 2),
        "first_screen_cpu_s": first_cpu_s,
        "core_percent": round(100 * share, 2),
    }


def said(tmux: list[str], *words: str) -> str:
    return subprocess.run(
        [*tmux, *words], capture_output=True, text=True, check=True
    ).stdout.strip()


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


if __name__ == "__main__":
    sys.exit(main())
