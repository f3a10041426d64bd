"""Prints how long it takes to read a large raw page of Nsight Compute and to put its launches
together.

The report is written here, of synthetic launches, and read in a process of its own. Seconds are
processor time.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tachograph.annexes.share.kernels import kernels_of
from tachograph.annexes.share.nsight.reports import read_reports

IDENTITY = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size",
            "Grid Size", "Device", "CC")  # fmt: skip
METRICS = ("gpu__time_duration.sum", *(f"smsp__inst_executed_{number}.sum" for number in range(90)))


def lines(launches: int, kernels: int) -> Iterator[str]:
    """Yield the lines of a report; launches differ a little from others of their kernel."""
    chance = random.Random(0)
    kinds = [
        [chance.random() * 10 ** chance.randrange(1, 7) for _ in METRICS]
        for _ in range(min(kernels, 200))
    ]
    yield row([*IDENTITY, *METRICS])
    yield row([*("" for _ in IDENTITY), "ns", *("inst" for _ in METRICS[1:])])
    for number in range(launches):
        kernel = number % kernels
        factor = 1 + number // kernels % 50 / 1000
        name = (
            f"void at::native::vectorized_elementwise_kernel<{kernel}, "
            "at::native::CUDAFunctor_add<float>>(int, T)"
        )
        launch = [
            str(number),
            "4711",
            "python",
            "127.0.0.1",
            name,
            "1",
            "7",
            "(256, 1, 1)",
            "(1320, 2, 1)",
            "0",
            "9.0",
        ]
        yield row([*launch, *(f"{value * factor:,.2f}" for value in kinds[kernel % len(kinds)])])


def row(cells: Iterable[str]) -> str:
    """Return the line of these cells, none of which has a quote in it."""
    return '"' + '","'.join(cells) + '"\n'


def read_here(path: Path) -> dict[str, float]:
    """Return what reading a report and putting its launches together took in this process."""
    begin = time.process_time()
    reports = read_reports([path])
    read = time.process_time()
    kernels = kernels_of(launch for report in reports for launch in report.launches)
    done = time.process_time()
    # Ru_maxrss has the parent's in it.
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return {
        "mb": round(path.stat().st_size / 1e6, 1),
        "launches": sum(len(report.launches) for report in reports),
        "kernels": len(kernels),
        "read_s": round(read - begin, 2),
        "aggregate_s": round(done - read, 2),
        "peak_mib": int(peak[1]) // 1024 if peak else 0,
    }


def main() -> int:
    """Print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=1000)
    parser.add_argument("--kernels", type=int, default=100)
    parser.add_argument("--read", type=Path, metavar="FILE", help="only read this, in this process")
    options = parser.parse_args()
    if options.read:
        print(json.dumps(read_here(options.read)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.csv"
        with path.open("w", encoding="utf-8") as file:
            file.writelines(lines(options.launches, options.kernels))
        command = [sys.executable, __file__, "--read", str(path)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    print(
        json.dumps(
            {"benchmark": "kernels", "python": platform.python_version(), **json.loads(done.stdout)}
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
