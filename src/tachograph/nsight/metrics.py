"""Labels of the details page and the metrics behind them; units and what they are in base units.

Source: the section files that ship with Nsight Compute. Labels of 2019 to 2021.1 ("SOL ...", "... [%]", in the section
"GPU Speed Of Light") are kept beside those of 2021.2 and later ("... Throughput").
"""

from __future__ import annotations

import re
from functools import cache

# sections by the name on the page, each under the name it has here; the rules of a section name its identifier
_SECTIONS = {
    "GPU Speed Of Light": "speed",
    "GPU Speed Of Light Throughput": "speed",
    "SpeedOfLight": "speed",
    "Compute Workload Analysis": "compute",
    "Memory Workload Analysis": "memory",
    "Scheduler Statistics": "scheduler",
    "Warp State Statistics": "warp",
    "Instruction Statistics": "instruction",
    "Launch Statistics": "launch",
    "Occupancy": "occupancy",
    "PM Sampling": "sampling",
    "GPU and Memory Workload Distribution": "distribution",
    "Source Counters": "source",
}
_STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
_STALLS = {
    "Barrier": "barrier",
    "Branch Resolving": "branch_resolving",
    "Dispatch Stall": "dispatch_stall",
    "Drain": "drain",
    "GMMA": "gmma",
    "IMC Miss": "imc_miss",
    "LG Throttle": "lg_throttle",
    "Long Scoreboard": "long_scoreboard",
    "MIO Throttle": "mio_throttle",
    "Math Pipe Throttle": "math_pipe_throttle",
    "Membar": "membar",
    "Misc": "misc",
    "No Instruction": "no_instruction",
    "Not Selected": "not_selected",
    "Short Scoreboard": "short_scoreboard",
    "Sleeping": "sleeping",
    "Tex Throttle": "tex_throttle",
    "Wait": "wait",
}
_LABELS: dict[str, dict[str, str]] = {
    "speed": {
        "Compute (SM) Throughput": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "SM [%]": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "SOL SM": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "Memory Throughput": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
        "Memory [%]": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
        "L1/TEX Cache Throughput": "l1tex__throughput.avg.pct_of_peak_sustained_active",
        "SOL L1/TEX Cache": "l1tex__throughput.avg.pct_of_peak_sustained_active",
        "L2 Cache Throughput": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
        "SOL L2 Cache": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
        "SOL L2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
        "DRAM Throughput": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "SOL DRAM": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        "Duration": "gpu__time_duration.sum",
        "Elapsed Cycles": "gpc__cycles_elapsed.max",
        "SM Active Cycles": "sm__cycles_active.avg",
        "SM Frequency": "gpc__cycles_elapsed.avg.per_second",
        "DRAM Frequency": "dram__cycles_elapsed.avg.per_second",
        "Memory Frequency": "dram__cycles_elapsed.avg.per_second",
    },
    "compute": {
        "Executed Ipc Elapsed": "sm__inst_executed.avg.per_cycle_elapsed",
        "Executed Ipc Active": "sm__inst_executed.avg.per_cycle_active",
        "Issued Ipc Active": "sm__inst_issued.avg.per_cycle_active",
    },
    "memory": {
        "Memory Throughput": "dram__bytes.sum.per_second",
        "Mem Busy": "gpu__compute_memory_access_throughput.avg.pct_of_peak_sustained_elapsed",
        "Max Bandwidth": "gpu__compute_memory_request_throughput.avg.pct_of_peak_sustained_elapsed",
        "Mem Pipes Busy": "sm__memory_throughput.avg.pct_of_peak_sustained_elapsed",
        "L1 Hit Rate": "l1tex__t_sector_hit_rate.pct",
        "L1/TEX Hit Rate": "l1tex__t_sector_hit_rate.pct",
        "L2 Hit Rate": "lts__t_sector_hit_rate.pct",
        "Local Memory Spilling Requests": "derived__local_spilling_requests",
        "Local Memory Spilling Request Overhead": "derived__local_spilling_requests_pct",
        "L2 Persisting Size": "launch__persisting_l2_cache_size",
    },
    "scheduler": {
        "One or More Eligible": "smsp__issue_active.avg.pct_of_peak_sustained_active",
        "Issued Warp Per Scheduler": "smsp__issue_active.avg.per_cycle_active",
        "No Eligible": "smsp__issue_inst0.avg.pct_of_peak_sustained_active",
        "Active Warps Per Scheduler": "smsp__warps_active.avg.per_cycle_active",
        "Eligible Warps Per Scheduler": "smsp__warps_eligible.avg.per_cycle_active",
        "GPU Maximum Warps Per Scheduler": "smsp__warps_active.avg.peak_sustained",
        "Theoretical Warps Per Scheduler": "smsp__maximum_warps_avg_per_active_cycle",
    },
    "warp": {
        "Warp Cycles Per Issued Instruction": "smsp__average_warp_latency_per_inst_issued.ratio",
        "Warp Cycles Per Executed Instruction": "smsp__average_warps_active_per_inst_executed.ratio",
        "Avg. Active Threads Per Warp": "smsp__thread_inst_executed_per_inst_executed.ratio",
        "Avg. Not Predicated Off Threads Per Warp": "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio",
        "Selected": _STALLED.format("selected"),
        **{f"Stall {label}": _STALLED.format(name) for label, name in _STALLS.items()},
    },
    "instruction": {
        "Executed Instructions": "smsp__inst_executed.sum",
        "Issued Instructions": "smsp__inst_issued.sum",
        "Avg. Executed Instructions Per Scheduler": "smsp__inst_executed.avg",
        "Avg. Issued Instructions Per Scheduler": "smsp__inst_issued.avg",
    },
    "launch": {
        "Grid Size": "launch__grid_size",
        "Block Size": "launch__block_size",
        "Threads": "launch__thread_count",
        "Registers Per Thread": "launch__registers_per_thread",
        "Static Shared Memory Per Block": "launch__shared_mem_per_block_static",
        "Dynamic Shared Memory Per Block": "launch__shared_mem_per_block_dynamic",
        "Driver Shared Memory Per Block": "launch__shared_mem_per_block_driver",
        "Shared Memory Configuration Size": "launch__shared_mem_config_size",
        "Waves Per SM": "launch__waves_per_multiprocessor",
        "Cluster Size": "launch__cluster_size",
        "Preferred Cluster Size": "launch__preferred_cluster_size",
        "Stack Size": "launch__stack_size",
        "Uses Green Context": "launch__uses_green_context",
        "# SMs": "launch__sm_count",
        "# TPCs": "launch__tpc_count",
    },
    "occupancy": {
        "Theoretical Occupancy": "sm__maximum_warps_per_active_cycle_pct",
        "Theoretical Active Warps per SM": "sm__maximum_warps_avg_per_active_cycle",
        "Achieved Occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
        "Achieved Active Warps Per SM": "sm__warps_active.avg.per_cycle_active",
        "Block Limit SM": "launch__occupancy_limit_blocks",
        "Block Limit Registers": "launch__occupancy_limit_registers",
        "Block Limit Shared Mem": "launch__occupancy_limit_shared_mem",
        "Block Limit Warps": "launch__occupancy_limit_warps",
        "Block Limit Barriers": "launch__occupancy_limit_barriers",
        "Cluster Occupancy": "launch__occupancy_cluster_pct",
        "Max Active Clusters": "launch__cluster_max_active",
        "Max Cluster Size": "launch__cluster_max_potential_size",
        "Overall GPU Occupancy": "launch__occupancy_cluster_gpu_pct",
    },
    "sampling": {
        "# Pass Groups": "profiler__pmsampler_pass_groups",
        "Maximum Buffer Size": "profiler__pmsampler_buffer_size_bytes",
    },
    "distribution": {
        "Average SM Active Cycles": "sm__cycles_active.avg",
        "Average SMSP Active Cycles": "smsp__cycles_active.avg",
        "Average L1 Active Cycles": "l1tex__cycles_active.avg",
        "Average L2 Active Cycles": "lts__cycles_active.avg",
        "Average DRAM Active Cycles": "dram__cycles_active.avg",
        "Average MC Channel Active Cycles": "mcc__cycles_active.avg",
        "Total SM Elapsed Cycles": "sm__cycles_elapsed.sum",
        "Total SMSP Elapsed Cycles": "smsp__cycles_elapsed.sum",
        "Total L1 Elapsed Cycles": "l1tex__cycles_elapsed.sum",
        "Total L2 Elapsed Cycles": "lts__cycles_elapsed.sum",
        "Total DRAM Elapsed Cycles": "dram__cycles_elapsed.sum",
        "Total MC Channel Elapsed Cycles": "mcc__cycles_elapsed.sum",
    },
    "source": {
        "Branch Instructions": "smsp__inst_executed_op_branch.sum",
        "Branch Efficiency": "smsp__sass_average_branch_targets_threads_uniform.pct",
        "Branch Instructions Ratio": "derived__smsp__inst_executed_op_branch_pct",
        "Avg. Divergent Branches": "smsp__sass_branch_targets_threads_divergent.avg",
    },
}
# text in place of numbers
TEXTS = frozenset({"Function Cache Configuration", "Cluster Scheduling Policy", "Enabled TPC IDs"})
TEXT_METRICS = frozenset({"launch__func_cache_config", "launch__cluster_scheduling_policy", "launch__tpc_enabled"})
# of active cycles up to 2025.1, of elapsed cycles since; or another counter from chip to chip
VARIES = frozenset(
    {
        ("compute", "SM Busy"),
        ("compute", "Issue Slots Busy"),
        ("memory", "L2 Compression Input Sectors"),
        ("memory", "L2 Compression Ratio"),
        ("memory", "L2 Compression Success Rate"),
        ("sampling", "Maximum Sampling Interval"),
        ("speed", "SOL FB"),
    }
)
_METRIC = re.compile(r"[a-z][a-z0-9_:]*__[A-Za-z0-9_.:]+")
_OWN_NAMES = "Command line profiler metrics"


def metric_of(section: str, label: str) -> str | None:
    """Return the metric behind a label of a section; metrics requested by name have their own. None: unknown.

    >>> metric_of("Memory Workload Analysis", "Memory Throughput")
    'dram__bytes.sum.per_second'
    >>> metric_of("Command line profiler metrics", "smsp__inst_executed.sum")
    'smsp__inst_executed.sum'
    """
    if section == _OWN_NAMES or _METRIC.fullmatch(label):
        return label
    return _LABELS.get(_SECTIONS.get(section, ""), {}).get(label)


def varies(section: str, label: str) -> bool:
    """Whether the label means one metric or another, depending on the version of ncu or on the chip."""
    return (_SECTIONS.get(section, ""), label) in VARIES


def labels() -> dict[tuple[str, str], str]:
    """Return {(section as pages name it, label): metric}, all that is known."""
    return {
        (section, label): metric for section, key in _SECTIONS.items() for label, metric in _LABELS.get(key, {}).items()
    }


# word of a unit: factor to the base unit
_WORDS: dict[str, float] = {
    "": 1.0,
    "%": 1.0,
    "pct": 1.0,
    "percent": 1.0,
    **dict.fromkeys(("byte", "bytes", "B", "bit", "bits", "hz", "Hz", "cycle", "cycles", "node", "nodes"), 1.0),
    **dict.fromkeys(("inst", "instruction", "instructions", "warp", "warps", "thread", "threads", "op", "ops"), 1.0),
    **dict.fromkeys(("block", "blocks", "cta", "ctas", "cluster", "clusters", "register", "registers", "flop"), 1.0),
    **dict.fromkeys(("sector", "sectors", "request", "requests", "SM", "SMs", "sm", "TPC", "tpc", "pass", "mode"), 1.0),
    **dict.fromkeys(("sample", "samples", "wavefront", "wavefronts", "event", "events", "tag", "tags"), 1.0),
    **dict.fromkeys(("query", "queries", "context", "scheduler", "group", "groups"), 1.0),
}
_NS: dict[str, float] = {
    **dict.fromkeys(("ns", "nsecond", "nanosecond", "nanoseconds"), 1.0),
    **dict.fromkeys(("us", "usecond", "microsecond", "microseconds"), 1e3),
    **dict.fromkeys(("ms", "msecond", "millisecond", "milliseconds"), 1e6),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1e9),
    **dict.fromkeys(("min", "minute"), 60e9),
    **dict.fromkeys(("h", "hour"), 3600e9),
}
_OF_PERCENT = frozenset({"", "%", "pct", "percent"})
_PREFIXES = {"K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}  # of 1,000: 65,536 byte is 65.54 Kbyte
_PREFIXED = frozenset({"byte", "bytes", "B", "hz", "Hz", "inst", "cycle", "bit", "thread", "warp", "sector", "request"})


@cache
def unit_factor(unit: str) -> float | None:
    """Return what a value in `unit` is multiplied by to be in ns, byte, hz, or the like per second; None: unknown unit.

    >>> unit_factor("usecond"), unit_factor("Gbyte/second"), unit_factor("cycle/nsecond"), unit_factor("furlong")
    (1000.0, 1000000000.0, 1000000000.0, None)
    """
    above, slash, below = unit.strip().partition("/")
    factor = _NS[above] if above in _NS else _counted(above)
    if not slash or factor is None:
        return factor
    if below in _NS:
        # a rate is per second, and a fraction of two times has no unit
        return factor / _NS[below] if above in _NS else factor * (1e9 / _NS[below])
    divisor = _counted(below)
    return factor / divisor if divisor else None


def _counted(word: str) -> float | None:
    """Return the factor of a word with or without prefix: byte, Kbyte."""
    if word in _WORDS:
        return _WORDS[word]
    if word[:1] in _PREFIXES and word[1:] in _PREFIXED:
        return _PREFIXES[word[:1]]
    return None


_PERCENT = re.compile(r"[._]pct\b|[._]pct(_|$)")


def fits(metric: str, unit: str) -> bool:
    """Whether a metric can have the unit: percentages have no other.

    >>> fits("lts__t_sector_hit_rate.pct", "%"), fits("lts__t_sector_hit_rate.pct", "Gbyte/s")
    (True, False)
    """
    return unit.strip() in _OF_PERCENT or _PERCENT.search(metric) is None


_WHOLE_UNITS = frozenset(
    {"ns", "nsecond", "byte", "byte/block", "inst", "instruction", "cycle", "sector", "request", "thread", "warp"}
    | {"block", "register/thread"}
)
_WHOLE = re.compile(r"launch__(?!waves|occupancy_cluster).*|[a-z0-9]+__\w+\.(sum|max|min)")
_WHOLE_ALWAYS = re.compile(r"launch__(grid|block)_(size|dim_[xyz])|launch__thread_count|device__attribute_\w+")


def is_whole(metric: str, unit: str) -> bool:
    """Whether values are whole numbers, so that a comma or point within them can only separate thousands.

    >>> is_whole("gpu__time_duration.sum", "ns"), is_whole("gpu__time_duration.sum", "usecond")
    (True, False)
    """
    unit = unit.strip()
    counted = unit in _WHOLE_UNITS and _WHOLE.fullmatch(metric) is not None
    return counted or (not unit and _WHOLE_ALWAYS.fullmatch(metric) is not None)


_SCALED = re.compile(
    r"time_duration|bytes|per_second|shared_mem|_size_bytes|cache_size|frequency|_time\b|^launch__stack"
)


def may_be_scaled(metric: str) -> bool:
    """Whether ncu may write the metric in Kbyte, us or the like, so that the value is ambiguous without its unit."""
    return _SCALED.search(metric) is not None and ".pct" not in metric
