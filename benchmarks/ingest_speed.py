"""Prints what rows of two raw Parquet files cost from there to sorted days: ingest, then
compaction.

Both files hold the samples of the same GPUs and times with other counters each, as the published
study's do (notebook_layout.py), sorted by time (`--order gpu`: by node, GPU and time; `both`). Each
command is a process of its own whose time, processor time and peak memory are taken; a row is one
of a file, so a sample of both counts twice. With `--against OLD` another checkout, its own .venv
set up, does the same in turn on the same files, and the ratio of processor times, this checkout's
over its, is printed of each round.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

import notebook_layout

GOAL_CPU_US_PER_ROW = 0.5
HERE = Path(__file__).resolve().parents[1]
SETS = ("ldms_set1.parquet", "ldms_set2.parquet")
ORDERS = {"time": ("ts_ns", "hostname", "gpu_id"), "gpu": ("hostname", "gpu_id", "ts_ns")}
# its peak memory is asked for inside of it: what the system says of an ended process begins with
# that of its parent
COMMAND = """
import re, sys
from tachograph.cli import main
code = main(sys.argv[1:])
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1], file=sys.stderr)
sys.exit(code)
"""


def write_raw(rows: int, folder: Path) -> dict[str, list[Path]]:
    """Return the two files in each order; `rows` of both together, or a little more."""
    layout = notebook_layout.write(rows // 2, folder, median_hours=6.0)
    files: dict[str, list[Path]] = {}
    for order, keys in ORDERS.items():
        files[order] = [folder / f"{order}_{name}" for name in SETS]
        for name, file in zip(SETS, files[order], strict=True):
            raw = pl.scan_parquet(layout.notebooks / name).sort(*keys).collect()
            raw.write_parquet(
                file, compression="snappy", row_group_size=notebook_layout.ROWS_PER_GROUP
            )
    shutil.rmtree(layout.notebooks)
    shutil.rmtree(layout.tachograph)
    return files


def spent(checkout: Path, command: Sequence[str], folder: Path) -> tuple[dict[str, float], Any]:
    """Return wall and processor seconds and peak memory of one command, and the JSON that it
    prints.

    Errors: SystemExit when it fails.
    """
    begin, before = time.perf_counter(), os.times()
    done = subprocess.run(
        [checkout / ".venv/bin/python", "-c", COMMAND, *command, "--lake", "lake", "--json", "--quiet"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr}")
    after = os.times()
    cpu_s = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    mib = int(done.stderr.split()[-1]) / 1024
    return {"wall_s": time.perf_counter() - begin, "cpu_s": cpu_s, "peak_mib": mib}, json.loads(
        done.stdout
    )


def run_once(checkout: Path, files: Sequence[Path]) -> dict[str, float]:
    """Return what one round took: of ingest and of compaction after it, and the bytes of a
    sample at the end.
    """
    with tempfile.TemporaryDirectory(dir=files[0].parent) as name:
        folder = Path(name)
        ingest, report = spent(checkout, ["ingest", "ldms", *map(str, files)], folder)
        appended = _bytes(folder)
        compact, tables = spent(checkout, ["lake", "compact", "--vacuum-hours", "0"], folder)
        rows = report["rows_read"]
        samples = sum(
            pl.scan_parquet(file).select(pl.len()).collect().item() for file in _files(folder)
        )
        rewritten = next(
            (table["rows_before"] for table in tables if table["table"] == "gpu_samples"), 0
        )
        return {
            "rows": rows,
            "samples": samples,
            **{f"ingest_{what}": round(value, 3) for what, value in ingest.items()},
            **{f"compact_{what}": round(value, 3) for what, value in compact.items()},
            "rows_that_compaction_read": rewritten,
            "ingest_cpu_us_per_row": round(ingest["cpu_s"] / rows * 1e6, 3),
            "compact_cpu_us_per_row": round(compact["cpu_s"] / rows * 1e6, 3),
            "cpu_us_per_row": round((ingest["cpu_s"] + compact["cpu_s"]) / rows * 1e6, 3),
            "bytes_per_sample_appended": round(appended / samples, 2),
            "bytes_per_sample": round(_bytes(folder) / samples, 2),
        }


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("lake/gpu_samples/day=*/*.parquet"))


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in _files(folder))


def measure(files: Sequence[Path], options: argparse.Namespace) -> dict[str, Any]:
    """Return the median of each figure over the rounds, and the ratios to the other checkout."""
    olds, news = [], []
    for _ in range(options.rounds):
        if options.against:
            olds.append(run_once(options.against.resolve(), files))
        news.append(run_once(HERE, files))
    found: dict[str, Any] = {name: statistics.median(one[name] for one in news) for name in news[0]}
    if olds:
        found["before"] = {name: statistics.median(one[name] for one in olds) for name in olds[0]}
        found["cpu_ratio_of_rounds"] = [
            round(new["cpu_us_per_row"] / old["cpu_us_per_row"], 3)
            for old, new in zip(olds, news, strict=True)
        ]
    return found


def main() -> int:
    """Print the numbers; 1 when a row costs more than the goal, where there are enough rows to
    see it.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows", type=lambda text: int(float(text)), default=400_000, help="of both files"
    )
    parser.add_argument("--order", choices=(*ORDERS, "both"), default="time")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--against", type=Path, metavar="OLD", help="a checkout whose .venv is set up, too"
    )
    parser.add_argument(
        "--folder", type=Path, help="with the raw files of an earlier run, or where they are kept"
    )
    options = parser.parse_args()
    orders = list(ORDERS) if options.order == "both" else [options.order]
    with tempfile.TemporaryDirectory() as other:
        folder = options.folder or Path(other)
        files = {order: [folder / f"{order}_{name}" for name in SETS] for order in ORDERS}
        if not all(file.exists() for of_order in files.values() for file in of_order):
            folder.mkdir(parents=True, exist_ok=True)
            files = write_raw(options.rows, folder)
        found = {order: measure(files[order], options) for order in orders}
    print(
        json.dumps(
            {
                "benchmark": "ingest_speed",
                "goal_cpu_us_per_row": GOAL_CPU_US_PER_ROW,
                "orders": found,
            }
        )
    )
    large = [one for one in found.values() if one["rows"] >= 5_000_000]
    return 1 if any(one["cpu_us_per_row"] > GOAL_CPU_US_PER_ROW for one in large) else 0


if __name__ == "__main__":
    sys.exit(main())
