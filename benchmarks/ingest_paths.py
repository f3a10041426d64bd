"""Prints what `tachograph ingest PATH...` costs beside a command per source, of the demo's
recordings.

Each pair reads the same folder into two new lakes, once by its path and once by `ingest ldms`,
`sacct` and `allocation-map`, the first of the two in turn. Taken is the processor time of all
processes, starts and imports included.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

GOAL_RATIO = 1.1
COMMAND = [sys.executable, "-m", "tachograph"]


def processor_s(commands: Sequence[Sequence[str]], lake: Path) -> float:
    """Return the processor time of commands with a lake, one after the other."""
    before = os.times()
    for words in commands:
        subprocess.run(
            [*COMMAND, *words, "--lake", str(lake), "--time-zone", "Europe/Berlin"],
            check=True,
            cwd=lake.parent,
            stdout=subprocess.DEVNULL,
        )
    after = os.times()
    return (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )


def pairs(demo: Path, count: int) -> Iterator[tuple[float, float]]:
    """Yield the processor time of the path and of the sources, per pair."""
    cluster = (demo / "cluster").absolute()
    by_path = [["ingest", str(cluster), "--trusted"]]
    by_source = [
        ["ingest", "ldms", str(cluster / "telemetry")],
        ["ingest", "sacct", str(cluster / "accounting" / "sacct.txt"), "--trusted"],
        ["ingest", "allocation-map", str(cluster / "allocations" / "gpu_map.csv")],
    ]
    for number in range(count):
        with tempfile.TemporaryDirectory() as folder:
            both = [("path", by_path), ("source", by_source)]
            if number % 2:
                both.reverse()
            took = {name: processor_s(commands, Path(folder) / name) for name, commands in both}
        yield took["path"], took["source"]


def main() -> None:
    """Measure in pairs; print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--demo", type=Path, help="folder of a demo (default: a new one)")
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        demo = options.demo
        if demo is None:
            subprocess.run([*COMMAND, "demo", "--quiet"], check=True, cwd=folder, stdout=2)
            demo = Path(folder) / "tachograph-demo"
        took = list(pairs(demo, options.pairs))
    ratios = [path_s / source_s for path_s, source_s in took]
    result = {
        "path_cpu_s": [round(path_s, 2) for path_s, _ in took],
        "sources_cpu_s": [round(source_s, 2) for _, source_s in took],
        "ratios": [round(ratio, 2) for ratio in ratios],
        "ratio_median": round(statistics.median(ratios), 2),
        "goal_ratio": GOAL_RATIO,
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
