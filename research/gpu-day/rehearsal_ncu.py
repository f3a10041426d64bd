"""`ncu` of a rehearsal: the raw page of one made kernel for each workload. Nothing of it was
measured.
"""

from __future__ import annotations

import sys
from pathlib import Path

from workloads import KERNELS

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from nsight_reports import SMS, Made, metrics, raw_csv

WARPS_ACTIVE, SM_ELAPSED = "sm__warps_active.avg", "sm__cycles_elapsed.avg"
_DRAM = {"gemm-bf16": 30.0, "gemm-fp32": 10.0, "attention-forward": 20.0}


def kernel(name: str) -> Made:
    """Return a kernel that streams, or multiplies."""
    dram = _DRAM.get(name, 90.0 if KERNELS[name] == "memory-bound" else 15.0)
    busy = {"tensor": 80.0} if dram < 50 else {}
    return Made(
        f"{name.replace('-', '_')}(float*)", 8 * SMS, 256, 1.0, dram, busy, {}, 2.0, 32, l2_hit=50.0
    )


if __name__ == "__main__":
    place = next(at for at, word in enumerate(sys.argv) if word.endswith("profiled.py"))
    page = raw_csv([kernel(sys.argv[place + 1])], gpu="NVIDIA H100 80GB HBM3").splitlines()
    counted = metrics(kernel(sys.argv[place + 1]))
    added = (
        (f'"{WARPS_ACTIVE}"', '"cycle"', f'"{24 * counted["sm__cycles_active.avg"]:.0f}"'),
        (f'"{SM_ELAPSED}"', '"cycle"', f'"{counted["gpc__cycles_elapsed.max"]:.0f}"'),
    )
    for row, line in enumerate(page):
        sys.stdout.write(",".join([line, *(cells[row] for cells in added)]) + "\n")
