"""Labels of the details page with their metrics; units as factors to base units.

Source: the section files that ship with Nsight Compute since 2021.2. Labels of which nothing is
computed are left out, and those of which another metric is meant from version to version.
"""

from __future__ import annotations

import re

_STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
_STALLS = (
    "Barrier",
    "Branch Resolving",
    "Dispatch Stall",
    "Drain",
    "GMMA",
    "IMC Miss",
    "LG Throttle",
    "Long Scoreboard",
    "MIO Throttle",
    "Math Pipe Throttle",
    "Membar",
    "Misc",
    "No Instruction",
    "Not Selected",
    "Short Scoreboard",
    "Sleeping",
    "Tex Throttle",
    "Wait",
)
# section -> label -> metric
_LABELS: dict[str, dict[str, str]] = {
    "GPU Speed Of Light Throughput": {
        "Memory Throughput": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
        "L1/TEX Cache Throughput": "l1tex__throughput.avg.pct_of_peak_sustained_active",
        "L2 Cache Throughput": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
        "DRAM Throughput": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "Duration": "gpu__time_duration.sum",
        "Elapsed Cycles": "gpc__cycles_elapsed.max",
        "SM Active Cycles": "sm__cycles_active.avg",
        "SM Frequency": "gpc__cycles_elapsed.avg.per_second",
    },
    "Compute Workload Analysis": {
        "Executed Ipc Elapsed": "sm__inst_executed.avg.per_cycle_elapsed",
        "Issued Ipc Active": "sm__inst_issued.avg.per_cycle_active",
    },
    "Memory Workload Analysis": {
        "Memory Throughput": "dram__bytes.sum.per_second",
        "L1/TEX Hit Rate": "l1tex__t_sector_hit_rate.pct",
        "L2 Hit Rate": "lts__t_sector_hit_rate.pct",
    },
    "Scheduler Statistics": {
        "One or More Eligible": "smsp__issue_active.avg.pct_of_peak_sustained_active",
        "Issued Warp Per Scheduler": "smsp__issue_active.avg.per_cycle_active",
        "Active Warps Per Scheduler": "smsp__warps_active.avg.per_cycle_active",
    },
    "Warp State Statistics": {
        "Warp Cycles Per Issued Instruction": "smsp__average_warp_latency_per_inst_issued.ratio",
        "Avg. Active Threads Per Warp": "smsp__thread_inst_executed_per_inst_executed.ratio",
        "Selected": _STALLED.format("selected"),
        **{f"Stall {label}": _STALLED.format(label.lower().replace(" ", "_")) for label in _STALLS},
    },
    "Instruction Statistics": {
        "Executed Instructions": "smsp__inst_executed.sum",
        "Issued Instructions": "smsp__inst_issued.sum",
    },
    "Launch Statistics": {
        "Grid Size": "launch__grid_size",
        "Block Size": "launch__block_size",
        "Registers Per Thread": "launch__registers_per_thread",
        "Static Shared Memory Per Block": "launch__shared_mem_per_block_static",
        "Dynamic Shared Memory Per Block": "launch__shared_mem_per_block_dynamic",
        "Driver Shared Memory Per Block": "launch__shared_mem_per_block_driver",
        "Waves Per SM": "launch__waves_per_multiprocessor",
        "# SMs": "launch__sm_count",
    },
    "Occupancy": {
        "Theoretical Occupancy": "sm__maximum_warps_per_active_cycle_pct",
        "Achieved Occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
        "Achieved Active Warps Per SM": "sm__warps_active.avg.per_cycle_active",
        "Block Limit SM": "launch__occupancy_limit_blocks",
        "Block Limit Registers": "launch__occupancy_limit_registers",
        "Block Limit Shared Mem": "launch__occupancy_limit_shared_mem",
        "Block Limit Warps": "launch__occupancy_limit_warps",
    },
    "GPU and Memory Workload Distribution": {
        "Average SM Active Cycles": "sm__cycles_active.avg",
        "Average DRAM Active Cycles": "dram__cycles_active.avg",
    },
}

_METRIC = re.compile(r"[a-z][a-z0-9_:]*__[A-Za-z0-9_.:]+")
_REQUESTED_BY_NAME = "Command line profiler metrics"


def metric_of(section: str, label: str) -> str | None:
    """Return the metric of a section label, or of a name as requested; None: unknown.

    >>> metric_of("Memory Workload Analysis", "Memory Throughput")
    'dram__bytes.sum.per_second'
    >>> metric_of("Command line profiler metrics", "smsp__inst_executed.sum")
    'smsp__inst_executed.sum'
    """
    if section == _REQUESTED_BY_NAME or _METRIC.fullmatch(label):
        return label
    return _LABELS.get(section, {}).get(label)


_TIMES_NS = {
    **dict.fromkeys(("ns", "nsecond"), 1.0),
    **dict.fromkeys(("us", "usecond"), 1e3),
    **dict.fromkeys(("ms", "msecond"), 1e6),
    **dict.fromkeys(("s", "second"), 1e9),
}
# Of 1,000: 65,536 byte is 65.54 Kbyte.
_PREFIXES = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_PREFIXED = re.compile(r"[KMGTP](?=[a-z])")  # before a unit in small letters, unlike in TPC


def unit_factor(unit: str) -> float:
    """Return the factor from `unit` to ns, byte, hz, or these per second.

    Units of counts are base units, whatever they count.

    >>> unit_factor("usecond"), unit_factor("Gbyte/second"), unit_factor("cycle/nsecond"), unit_factor("%/register")
    (1000.0, 1000000000.0, 1000000000.0, 1.0)
    """
    above, _, below = unit.strip().partition("/")
    if above in _TIMES_NS:
        return _TIMES_NS[above] / _TIMES_NS.get(below, 1.0)
    factor = _PREFIXES[above[0]] if _PREFIXED.match(above) else 1.0
    return factor * 1e9 / _TIMES_NS[below] if below in _TIMES_NS else factor
