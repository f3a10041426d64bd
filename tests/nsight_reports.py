"""Reports of Nsight Compute made of published numbers: raw pages as `ncu --csv --page raw` writes
them.

Nothing here was recorded. What the paper gives of a kernel alone on an H100 NVL (IPC, FP64 pipe,
share of DRAM bandwidth, launch shape; Elvinger, Strati, Enright Jerger, Klimovic, "Measuring GPU
utilization one level deeper", 2025) is in `PUBLISHED`; what follows from it (cycles, FLOP, warps,
occupancy limits) is computed, and what neither tells (durations, registers, cache hits, stalls) is
assumed there as well. `python tests/nsight_reports.py FILE` writes them.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# Of an H100; all but the first per SM.
SMS, WARPS, THREADS, BLOCKS, REGISTERS = 132, 64, 2048, 32, 65536
SM_HZ, DRAM_HZ = 1.785e9, 2.619e9
DRAM_BYTES_PER_CYCLE = 1504.0  # x 2.619 GHz: 3.94 TB/s
SHARED_RESERVED = 1024.0  # byte of shared memory of each block that the driver takes
NOT_RECORDED = (
    "A sample, not recorded: made of numbers published of the H100 NVL, and of assumptions."
)
ATTRIBUTES: Mapping[str, float] = {
    "multiprocessor_count": SMS,
    "max_threads_per_multiprocessor": THREADS,
    "max_warps_per_multiprocessor": WARPS,
    "max_blocks_per_multiprocessor": BLOCKS,
    "max_registers_per_multiprocessor": REGISTERS,
    "max_shared_memory_per_multiprocessor": 228 * 1024,
    "max_ipc_per_multiprocessor": 4,
    "l2_cache_size": 50 * 2**20,
    "clock_rate": SM_HZ / 1e3,
    "memory_clock_rate": DRAM_HZ / 1e3,
    "global_memory_bus_width": 6016,
    "total_memory": 94 * 2**30,
    "compute_capability_major": 9,
    "compute_capability_minor": 0,
}
STALLS = (
    "drain",
    "imc_miss",
    "lg_throttle",
    "long_scoreboard",
    "membar",
    "mio_throttle",
    "short_scoreboard",
)


@dataclass(frozen=True)
class Made:
    """A kernel: launch shape and what was measured of it alone. Percentages are 0..100 as in a
    report.
    """

    kernel: str
    blocks: int
    threads: int
    ipc: float
    dram: float = 0.02
    pipes: Mapping[str, float] = field(default_factory=dict)
    flop: Mapping[str, float] = field(default_factory=dict)  # {instruction: share of those issued}
    ms: float = 10.0
    registers: int = 24
    l1_hit: float = 0.5
    l2_hit: float = 60.0
    waits_for_memory: float = 2.0  # percent of warp latency
    busy: float = 0.99  # share of the time in which an SM with blocks has a warp
    shared: float = 0.0  # byte, dynamic


def _fmul(ilp: int, ipc: float, threads: int = 128) -> Made:
    name = (
        f"void fmul<{ilp}>(float*, int)"
        if threads == 128
        else f"void fmul<{ilp}, {threads}>(float*, int)"
    )
    share = ipc / 4 * 97
    return Made(
        name, SMS, threads, ipc, pipes={"fma": share, "alu": ipc}, flop={"fmul": 0.97}, ms=8 + ilp
    )


def _dmul(ilp: int, ipc: float, pipe: float) -> Made:
    return Made(
        f"void dmul<{ilp}>(double*, int)",
        SMS,
        128,
        ipc,
        pipes={"fp64": pipe, "alu": 1.0},
        flop={"dmul": 0.97},
    )


def _sleep(blocks: int) -> Made:
    return Made(
        f"void sleep_<{blocks}>(long)",
        blocks,
        1024,
        0.1,
        pipes={"alu": 1.5},
        ms=20.0,
        registers=16,
        l2_hit=90,
    )


PUBLISHED: tuple[Made, ...] = (
    Made("copy(float const*, float*, unsigned long)", SMS, 1024, 0.61, 42.0, {"lsu": 7.6, "alu": 3.0}, {}, 12.0, 32,
         l1_hit=0.0, l2_hit=50.0, waits_for_memory=88.0),
    _fmul(1, 1.08), _fmul(2, 2.06), _fmul(3, 2.9), _fmul(4, 3.45), _fmul(4, 4.0, 256),
    _dmul(1, 0.51, 24.96), _dmul(2, 1.02, 49.32), _dmul(3, 1.53, 72.99), _dmul(4, 2.01, 96.59),
    Made("void mm_1024<128, 64>(float const*, float const*, float*)", 128, 128, 3.0, 9.0,
         {"fma": 60.0, "lsu": 22.0, "alu": 9.0}, {"ffma": 0.8}, 0.09, 122, 34.0, 88.0, 12.0, 0.93, 32768.0),
    _sleep(132), _sleep(264),
)  # fmt: skip


def metrics(made: Made) -> dict[str, float]:
    """Return what a report with `--set full` says of a kernel, in base units."""
    cycles = made.ms * 1e-3 * SM_HZ
    used = min(1.0, made.blocks / SMS)
    limits = _limits(made)
    resident = min(*limits.values(), -(-made.blocks // SMS)) * made.threads / 32
    seconds = made.ms * 1e-3
    issued = made.ipc * used * made.busy
    told = {
        "gpu__time_duration.sum": made.ms * 1e6,
        "launch__grid_size": float(made.blocks),
        "launch__block_size": float(made.threads),
        "launch__thread_count": float(made.blocks * made.threads),
        "launch__registers_per_thread": float(made.registers),
        "launch__shared_mem_per_block": made.shared + SHARED_RESERVED,
        "launch__shared_mem_per_block_dynamic": made.shared,
        "launch__shared_mem_per_block_static": 0.0,
        "launch__shared_mem_per_block_driver": SHARED_RESERVED,
        "launch__waves_per_multiprocessor": made.blocks / SMS / min(limits.values()),
        **{f"launch__occupancy_limit_{name}": float(limit) for name, limit in limits.items()},
        "sm__maximum_warps_per_active_cycle_pct": 100
        * min(limits.values())
        * made.threads
        / 32
        / WARPS,
        "sm__warps_active.avg.pct_of_peak_sustained_active": 100 * resident / WARPS,
        "sm__warps_active.avg.per_cycle_active": resident,
        "sm__inst_issued.avg.per_cycle_active": made.ipc,
        "sm__inst_executed.avg.per_cycle_active": made.ipc,
        "sm__inst_executed.avg.per_cycle_elapsed": issued,
        "sm__cycles_active.avg": cycles * used * made.busy,
        "sm__cycles_active.max": cycles * made.busy,
        "sm__cycles_active.min": cycles * made.busy if used == 1 else 0.0,
        "sm__cycles_elapsed.max": cycles,
        "gpc__cycles_elapsed.max": cycles,
        "sm__cycles_elapsed.avg.per_second": SM_HZ,
        "smsp__cycles_elapsed.avg.per_second": SM_HZ,
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": made.dram,
        "dram__bytes.sum": made.dram / 100 * DRAM_BYTES_PER_CYCLE * DRAM_HZ * seconds,
        "dram__bytes.sum.per_second": made.dram / 100 * DRAM_BYTES_PER_CYCLE * DRAM_HZ,
        "dram__bytes.sum.peak_sustained": DRAM_BYTES_PER_CYCLE,
        "dram__cycles_elapsed.avg.per_second": DRAM_HZ,
        "dram__cycles_elapsed.avg": DRAM_HZ * seconds,
        "dram__cycles_active.avg": DRAM_HZ * seconds * made.dram / 100,
        "lts__t_sector_hit_rate.pct": made.l2_hit,
        "l1tex__t_sector_hit_rate.pct": made.l1_hit,
        "smsp__thread_inst_executed_per_inst_executed.ratio": 32.0,
        "smsp__average_warp_latency_per_inst_issued.ratio": resident / made.ipc,
        "derived__sm__sass_thread_inst_executed_op_ffma_pred_on_x2": 2.0 * 128 * SMS,
        "derived__sm__sass_thread_inst_executed_op_dfma_pred_on_x2": 2.0 * 64 * SMS,
    }
    for pipe in ("alu", "fma", "fp16", "fp64", "lsu", "tensor", "uniform", "xu"):
        told[f"sm__inst_executed_pipe_{pipe}.avg.pct_of_peak_sustained_active"] = made.pipes.get(
            pipe, 0.0
        )
    for operation in ("fadd", "fmul", "ffma", "dadd", "dmul", "dfma"):
        threads = made.flop.get(operation, 0.0) * issued * 32 * SMS
        told[f"smsp__sass_thread_inst_executed_op_{operation}_pred_on.sum.per_cycle_elapsed"] = (
            threads
        )
        told[f"smsp__sass_thread_inst_executed_op_{operation}_pred_on.sum"] = threads * cycles
    for stall, share in _stalls(made).items():
        name = f"smsp__average_warps_issue_stalled_{stall}_per_issue_active.ratio"
        told[name] = share / 100 * resident / made.ipc
    return told


def _stalls(made: Made) -> dict[str, float]:
    """Reasons to wait in percent of warp latency: what is not for memory is for arithmetic, or
    sleep.
    """
    few = dict.fromkeys((*STALLS, "tex_throttle", "barrier", "math_pipe_throttle", "sleeping"), 0.2)
    left = 98 - made.waits_for_memory - sum(few.values())
    rest = "sleeping" if "sleep" in made.kernel else "wait"
    return {**few, "wait": 0.2, "long_scoreboard": made.waits_for_memory, rest: left}


def _limits(made: Made) -> dict[str, int]:
    """How many blocks fit into an SM by each of its resources."""
    return {
        "blocks": BLOCKS,
        "registers": REGISTERS // (made.registers * made.threads),
        "shared_mem": int(228 * 1024 // (made.shared + SHARED_RESERVED)),
        "warps": WARPS // (made.threads // 32),
    }


UNITS = {
    "gpu__time_duration.sum": "ns",
    "dram__bytes.sum": "byte",
    "dram__bytes.sum.per_second": "byte/s",
    "dram__bytes.sum.peak_sustained": "byte/cycle",
    "launch__grid_size": "block",
    "launch__block_size": "thread",
    "launch__thread_count": "thread",
    "launch__registers_per_thread": "register/thread",
}


def unit_of(metric: str) -> str:
    """Return the unit that the second line of a raw page gives."""
    if metric in UNITS:
        return UNITS[metric]
    if metric.endswith((".pct", "_pct")) or ".pct_of_peak" in metric:
        return "%"
    if "shared_mem_per_block" in metric:
        return "byte/block"
    if metric.endswith("cycles_elapsed.avg.per_second"):
        return "hz"
    return "cycle" if "cycles" in metric else "block" if "occupancy_limit" in metric else ""


FIXED = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
         "Device", "CC")  # fmt: skip


def raw_csv(
    kernels: Sequence[Made] = PUBLISHED,
    *,
    attributes: Mapping[str, float] = ATTRIBUTES,
    gpu: str = "NVIDIA H100 NVL",
    capability: str = "9.0",
    launches: int = 1,
    without: Iterable[str] = (),
    instead: Mapping[str, str] | None = None,
) -> str:
    """Return the raw page of launches of these kernels.

    `without`: beginnings of metrics that were not collected; `instead`: {metric: what stands in its
    place}.
    """
    left_out = tuple(without)
    rows = [made for made in kernels for _ in range(launches)]
    names = sorted(
        name for name in metrics(PUBLISHED[0]) if not name.startswith(left_out or ("\0",))
    )
    told = ["device__attribute_display_name", *(f"device__attribute_{name}" for name in attributes)]
    buffer = io.StringIO()
    writer = csv.writer(buffer, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow([*FIXED, *told, *names])
    writer.writerow([*([""] * (len(FIXED) + len(told))), *map(unit_of, names)])
    for number, made in enumerate(rows):
        values = metrics(made)
        fixed = [number, 4242, "sample", "127.0.0.1", made.kernel, 1, 7, f"({made.threads}, 1, 1)",
                 f"({made.blocks}, 1, 1)", 0, capability]  # fmt: skip
        of_gpu = [gpu, *(_written(value) for value in attributes.values())]
        writer.writerow(
            [
                *fixed,
                *of_gpu,
                *((instead or {}).get(name) or _written(values[name]) for name in names),
            ]
        )
    return buffer.getvalue()


def _written(value: float) -> str:
    """A number as the profiler prints it: thousands with commas, no more digits than it knows."""
    return (
        f"{value:,.0f}"
        if value == int(value)
        else f"{value:,.2f}"
        if value >= 1000
        else f"{value:.6g}"
    )


def sample() -> str:
    """Return the sample of the documentation."""
    return f"{NOT_RECORDED}\n{raw_csv()}"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(sample(), encoding="utf-8")
