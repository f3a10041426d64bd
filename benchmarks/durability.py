"""Prints what it costs that a lake is there after a power cut: the same work with `fsync` and with
none, in turn.

Work: the ingest of two raw Parquet files (ingest_speed.py), and the commits of a collector: a chunk
of a minute of 64 GPUs each. Ratios are those of rounds, of this checkout with `fsync` over without;
`--against SRC` adds another checkout's sources, whose ratio is this checkout's with `fsync` over
it.
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

import ingest_speed

GOAL = 1.10  # wall and processor time of an ingest
SRC = Path(__file__).resolve().parents[1] / "src"
# the first argument: whether to sync; then `ingest` and its arguments, or `polls` and their number
COMMAND = """
import os, sys
from datetime import UTC, datetime, timedelta
synced, work, *rest = sys.argv[1:]
if synced == "no":
    os.fsync = os.fdatasync = lambda descriptor: None
if work == "ingest":
    from tachograph.cli import main
    sys.exit(main([work, *rest]))
import polars as pl
from tachograph.catalog.chunks import Chunk, ChunkPart
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest
lake, start = Lake.create("lake"), datetime(2026, 3, 1, tzinfo=UTC)
for number in range(int(rest[0])):
    begun = start + timedelta(minutes=number)
    times = [begun + timedelta(seconds=10 * place) for place in range(6)]
    keys = [(t, f"n{gpu // 4}", gpu % 4) for gpu in range(64) for t in times]
    frame = pl.DataFrame(keys, schema=["t", "node", "gpu"], orient="row")
    frame = frame.with_columns(gpu_util=pl.lit(0.5), power_w=pl.lit(100.0 + number % 300))
    part = ChunkPart("gpu_samples", frame)
    chunk = Chunk("stream", "b", "b", (part,), frame.height, watermark=begun + timedelta(minutes=1), since=begun)
    ingest(lake, [chunk], now=start + timedelta(days=2))
"""


def spent(sources: Path, synced: str, work: Sequence[str], folder: Path) -> dict[str, float]:
    """Return wall and processor seconds of some work on a new lake. Errors: SystemExit when it
    fails.
    """
    with tempfile.TemporaryDirectory(dir=folder) as name:
        # What the round before left to write.
        subprocess.run(["sync", "-f", str(folder)], check=True)
        begin, before = time.perf_counter(), os.times()
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, synced, *work],
            cwd=name, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(sources)},
        )  # fmt: skip
        wall_s, after = time.perf_counter() - begin, os.times()
        if done.returncode:
            raise SystemExit(f"{' '.join(work)} failed: {done.stderr}")
    cpu_s = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    return {"wall_s": round(wall_s, 3), "cpu_s": round(cpu_s, 3)}


def measure(work: Sequence[str], options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the median of each variant, and the ratios of the rounds."""
    variants = {"synced": (SRC, "yes"), "not_synced": (SRC, "no")}
    if options.against:
        variants["before"] = (options.against.resolve(), "yes")
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
    for number in range(options.rounds):
        turn = list(variants)
        for name in turn[number % len(turn) :] + turn[: number % len(turn)]:
            rounds[name].append(spent(*variants[name], work, folder))
    found: dict[str, Any] = {
        name: {what: statistics.median(one[what] for one in of) for what in of[0]}
        for name, of in rounds.items()
    }
    for other in list(variants)[1:]:
        for what in ("wall_s", "cpu_s"):
            ratios = [
                round(a[what] / b[what], 3)
                for a, b in zip(rounds["synced"], rounds[other], strict=True)
            ]
            found[f"{what[:-2]}_over_{other}"] = {
                "median": statistics.median(ratios),
                "rounds": ratios,
            }
    return found


def main() -> int:
    """Print the numbers; 1 when an ingest costs more than the goal, where there are enough rows
    to see it.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows", type=lambda text: int(float(text)), default=400_000, help="of both files"
    )
    parser.add_argument("--polls", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--against", type=Path, metavar="SRC", help="the folder src of another checkout"
    )
    parser.add_argument("--folder", type=Path, help="on the disk that is measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        files = ingest_speed.write_raw(options.rows, folder)["time"]
        ingest = ["ingest", "ldms", *map(str, files), "--lake", "lake", "--quiet"]
        found = {
            "ingest": measure(ingest, options, folder),
            "polls": measure(["polls", str(options.polls)], options, folder),
        }
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    print(
        json.dumps({"benchmark": "durability", "goal": GOAL, "rows": options.rows, "work": found})
    )
    ratios = [found["ingest"][f"{what}_over_not_synced"]["median"] for what in ("wall", "cpu")]
    return int(options.rows >= 1_000_000 and max(ratios) > GOAL)


if __name__ == "__main__":
    sys.exit(main())
