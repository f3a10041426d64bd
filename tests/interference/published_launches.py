"""Launches as published for an H100 NVL, and launches made by hand, for tests."""

from __future__ import annotations

from collections.abc import Mapping

from tachograph.annexes.share.kernel_metrics import pipe_metric
from tachograph.annexes.share.nsight.launches import Chip, Launch

H100 = Chip(
    "NVIDIA H100 NVL",
    "9.0",
    {
        "multiprocessor_count": 132.0,
        "max_threads_per_multiprocessor": 2048.0,
        "max_blocks_per_multiprocessor": 32.0,
        "max_registers_per_multiprocessor": 65536.0,
        "max_shared_memory_per_multiprocessor": 233472.0,
        "l2_cache_size": 52428800.0,
        "total_memory": 99857989632.0,
        "global_memory_bus_width": 6016.0,
        "max_mem_frequency_khz": 2619000.0,
    },
)
BIG = {"launch__registers_per_thread": 16.0, "launch__shared_mem_per_block": 1024.0}
STALLS = (
    *(
        "barrier",
        "lg_throttle",
        "long_scoreboard",
        "math_pipe_throttle",
        "mio_throttle",
        "short_scoreboard",
        "wait",
    ),
    *(
        "drain",
        "membar",
        "sleeping",
        "tex_throttle",
        "selected",
        "not_selected",
        "branch_resolving",
    ),
)


def launch(
    metrics: Mapping[str, float],
    name: str = "kernel",
    *,
    seconds: float | None = 1e-3,
    chip: Chip = H100,
    report: str = "a.ncu-rep",
    number: int = 0,
    grid: tuple[int, int, int] | None = (132, 1, 1),
    block: tuple[int, int, int] | None = (128, 1, 1),
) -> Launch:
    timed = {} if seconds is None else {"gpu__time_duration.sum": seconds * 1e9}
    return Launch(name, {**metrics, **timed}, chip, report, number, grid, block)


def waiting(**stalls: float) -> dict[str, float]:
    """Warps stalled per issue, 0 for the reasons that are not named."""
    found = {**dict.fromkeys(STALLS, 0.0), **stalls}
    return {
        f"smsp__average_warps_issue_stalled_{why}_per_issue_active.ratio": value
        for why, value in found.items()
    }


def busy(ipc: float, occupancy: float, *, dram: float = 0.1, **pipes: float) -> dict[str, float]:
    """IPC, percentages of occupancy, DRAM and pipelines."""
    return {
        "sm__inst_issued.avg.per_cycle_active": ipc,
        "sm__inst_executed.avg.per_cycle_active": ipc,
        "sm__warps_active.avg.pct_of_peak_sustained_active": occupancy,
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": dram,
        **{pipe_metric(pipe): value for pipe, value in pipes.items()},
        **BIG,
    }


# as published of each kernel, alone on an H100 NVL; what was not published is not in them
COPY = launch(busy(0.61, 100.0, dram=42.0), "copy", block=(1024, 1, 1))
FMUL = {
    ipc: launch(busy(ipc, 6.25), f"fmul_ilp{ilp}")
    for ilp, ipc in enumerate((1.08, 2.06, 2.9, 3.45), start=1)
}
FMUL_FULL = launch(busy(4.0, 12.5), "fmul_full", block=(256, 1, 1))
DMUL = {
    pipe: launch(busy(ipc, 6.25, fp64=pipe), f"dmul_ilp{ilp}")
    for ilp, (ipc, pipe) in enumerate(
        ((0.51, 24.96), (1.02, 49.32), (1.53, 72.99), (2.01, 96.59)), start=1
    )
}
MM = launch(busy(3.0, 12.5, fma=60.0), "sgemm", grid=(128, 1, 1))


def sleep(blocks: int) -> Launch:
    return launch(
        busy(0.1, 50.0, lsu=0.1), f"sleep_{blocks}", grid=(blocks, 1, 1), block=(1024, 1, 1)
    )
