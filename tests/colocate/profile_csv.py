"""Reports of Nsight Compute of made-up kernels on an A100: raw pages as `ncu --csv --page raw`
writes them.

`python tests/colocate/profile_csv.py FILE` writes the sample of docs/colocate.md.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

A100 = "NVIDIA A100-SXM4-40GB"
SMS = 108
STALLS = dict.fromkeys(
    ("barrier", "drain", "lg_throttle", "membar", "mio_throttle", "short_scoreboard"), 0.1
)
STALLS |= {
    "sleeping": 0.0,
    "tex_throttle": 0.0,
    "long_scoreboard": 2.0,
    "math_pipe_throttle": 2.0,
    "wait": 4.0,
}
MADE_UP = (
    "A sample, not recorded: all numbers are made up, for jobs of the demo that there never were."
)


@dataclass(frozen=True)
class Ran:
    """Launches of a kernel: shares are 0..1, as a demand has them."""

    kernel: str
    ms: float  # of all its launches together
    issue: float
    dram: float = 0.05
    pipes: Mapping[str, float] = field(default_factory=dict)
    sm_share: float = 0.5
    blocks: int = 64
    launches: int = 2


# what the jobs named qmc of the demo might launch
QMC = (
    Ran("void move_walkers<double, 3>(double*, double const*, int)", 60.0, 0.30, 0.08, {"fp64": 0.42, "fma": 0.2}),
    Ran("void determinant_update(double*, double*, long)", 25.0, 0.22, 0.16, {"fp64": 0.3, "fma": 0.2, "tensor": 0.4}),
    Ran("void accumulate(double const*, float*, int)", 15.0, 0.12, 0.5, {"fp64": 0.12, "lsu": 0.2}, 0.6, 108),
)  # fmt: skip


def metrics(ran: Ran, sms: int) -> dict[str, float]:
    """What the profiler tells of one launch, in base units; percentages 0..100."""
    cycles = ran.ms / ran.launches * 1e-3 * 1.095e9
    found = {
        "gpu__time_duration.sum": ran.ms / ran.launches * 1e6,
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": 100 * ran.dram,
        "sm__inst_issued.avg.per_cycle_active": 4 * ran.issue,
        "sm__cycles_active.avg": cycles * ran.sm_share,
        "sm__cycles_elapsed.max": cycles,
        "sm__warps_active.avg.per_cycle_active": 8.0,
        "launch__grid_size": ran.blocks,
        "launch__block_size": 256,
        "launch__registers_per_thread": 32,
        "launch__shared_mem_per_block": 1024,
        "lts__t_sector_hit_rate.pct": 20.0,
        "l1tex__t_sector_hit_rate.pct": 5.0,
        "lts__throughput.avg.pct_of_peak_sustained_elapsed": 60 * ran.dram,
        "l1tex__throughput.avg.pct_of_peak_sustained_active": 50 * ran.pipes.get("lsu", 0.1),
        "device__attribute_multiprocessor_count": sms,
    }
    for pipe in ("alu", "fma", "fp16", "fp64", "lsu", "tensor", "uniform", "xu"):
        found[f"sm__inst_executed_pipe_{pipe}.avg.pct_of_peak_sustained_active"] = (
            100 * ran.pipes.get(pipe, 0.0)
        )
    for stall, waited in STALLS.items():
        found[f"smsp__average_warps_issue_stalled_{stall}_per_issue_active.ratio"] = waited
    found["smsp__average_warp_latency_per_inst_issued.ratio"] = 8.0
    return found


def raw(
    kernels: Sequence[Ran] = QMC, *, gpu: str = A100, sms: int = SMS, without: Sequence[str] = ()
) -> str:
    """A raw page; `without`: metrics that were not collected."""
    names = [name for name in metrics(kernels[0], sms) if name not in without]
    header = [
        "ID",
        "Kernel Name",
        "Block Size",
        "Grid Size",
        "Device",
        "CC",
        "device__attribute_display_name",
        *names,
    ]
    units = ["%" if ".pct" in name else "ns" if "duration" in name else "" for name in names]
    rows = [header, [*[""] * (len(header) - len(names)), *units]]
    for ran in kernels:
        found = metrics(ran, sms)
        for _ in range(ran.launches):
            fixed = [
                str(len(rows) - 2),
                ran.kernel,
                "(256, 1, 1)",
                f"({ran.blocks}, 1, 1)",
                "0",
                "8.0",
                gpu,
            ]
            rows.append([*fixed, *(f"{found[name]:.10g}" for name in names)])
    return "\n".join(",".join(f'"{cell}"' for cell in row) for row in rows) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(f"{MADE_UP}\n{raw()}", encoding="utf-8")
