"""The computed tables: job summaries, their GPUs, their minutes, findings.

Source of the metrics: Cankur, Austin, Kulkarni, Bhatele, "Characterizing Production GPU Workloads using
System-wide Telemetry Data" (IPDPS 2026); variations are options of `summarize`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import polars as pl

from tachograph.counters import COUNTERS, Counter, Kind
from tachograph.schema import JOBS, TIME, Column, Table

PIPES: Mapping[str, str] = MappingProxyType(
    {"fp64": "fp64_active", "fp32": "fp32_active", "fp16": "fp16_active", "tensor": "tensor_active"}
)
# counters of which windows are kept for imbalance; all those with a per-minute mean, and with a per-minute maximum
WINDOWED = (
    "gpu_util",
    "sm_active",
    "gr_engine_active",
    "fp64_active",
    "fp32_active",
    "fp16_active",
    "tensor_active",
    "dram_active",
    "power_w",
)
MINUTE_MEANS = (
    *WINDOWED,
    "mem_copy_util",
    "pcie_tx_bytes_per_s",
    "pcie_rx_bytes_per_s",
    "nvlink_tx_bytes_per_s",
    "nvlink_rx_bytes_per_s",
)
MINUTE_MAXIMA = ("hbm_used_mib",)
OTHER_IMBALANCES = tuple(name for name in WINDOWED if name not in ("gpu_util", "power_w"))
RATE_VOLUMES: Mapping[str, str] = MappingProxyType(
    {c.name: c.name.removesuffix("_per_s") for c in COUNTERS if c.kind is Kind.RATE}
)

_NOT_MEASURED = "nobody measured it"
_JOB_KEY = Column("job_key", pl.String(), "", "cluster:job_id:submit (seconds since 1970): one run of a job.", None)
_JOB_ID = Column("job_id", pl.String(), "", "Raw job id.", None)
_SEQ = Column("seq", pl.Int64(), "", "When it was computed: the higher one counts.", None)


def _f(name: str, unit: str, sentence: str, null: str = _NOT_MEASURED) -> Column:
    return Column(name, pl.Float64(), unit, sentence, null)


def _i(name: str, sentence: str, null: str = _NOT_MEASURED) -> Column:
    return Column(name, pl.Int64(), "count", sentence, null)


def _s(name: str, sentence: str, null: str = "not known") -> Column:
    return Column(name, pl.String(), "", sentence, null)


def _statistics(counter: Counter) -> tuple[Column, Column]:
    """`<counter>_mean` and `<counter>_max`; what they mean depends on the kind."""
    if counter.unit == "bitmask":
        mean = "Share of samples in which clocks were lowered for power or heat (0x4, 0x8, 0x20, 0x40, 0x80)."
        return _f(f"{counter.name}_mean", "fraction", mean), _f(f"{counter.name}_max", "bitmask", "All bits seen.")
    if counter.unit == "code":
        return (
            _f(f"{counter.name}_mean", "code", "Always null: codes have no mean.", "codes have no mean"),
            _f(f"{counter.name}_max", "code", "Largest code seen."),
        )
    if counter.kind is Kind.CUMULATIVE:
        return (
            _f(f"{counter.name}_mean", counter.unit, "Increase over the job, corrected for resets: mean over GPUs."),
            _f(f"{counter.name}_max", counter.unit, "Increase over the job: largest of the GPUs."),
        )
    return (
        _f(f"{counter.name}_mean", counter.unit, "Mean over GPUs of the mean over time."),
        _f(f"{counter.name}_max", counter.unit, "Largest sample of any GPU."),
    )


def _all_statistics(*, without: tuple[str, ...] = ()) -> tuple[Column, ...]:
    return tuple(column for c in COUNTERS for column in _statistics(c) if column.name not in without)


def _roofline(pipe: str) -> tuple[Column, ...]:
    end = "" if pipe == "fp64" else f"_{pipe}"
    return (
        _s(
            f"bound{end}",
            f"compute or memory: majority of the labelled samples, {pipe} pipe.",
            "a tie, or nothing labelled",
        ),
        _f(f"compute_fraction{end}", "fraction", "Compute-bound samples over labelled ones.", "nothing labelled"),
        _f(f"memory_fraction{end}", "fraction", "Memory-bound samples over labelled ones.", "nothing labelled"),
        _f(f"idle_fraction{end}", "fraction", "Samples with all pipes idle over all that were measured."),
    )


def _imbalances(counter: str) -> tuple[Column, ...]:
    null = "not asked for (analysis.imbalance_counters), one GPU, or no activity"
    return (
        _f(f"spatial_imbalance_{counter}", "fraction", f"Spatial imbalance of {counter}.", null),
        _f(f"temporal_imbalance_{counter}", "fraction", f"Temporal imbalance of {counter}.", null),
    )


SCORES = ("score_gpu", "score_gpumem", "score_gpumem_normalized")
# causes of GPU time that did no work, in the order in which an hour is given to them: none is given to two
WASTE = ("never_used", "hung", "cold_start", "idle", "imbalance")
WASTE_ENERGY = WASTE[:-1]  # a GPU that waits for others draws power for their work, too
JUDGED = frozenset(  # columns that are null until the jobs are judged
    {
        *SCORES,
        *("workload", "workload_fractions", "workload_samples", "health", "remapped_rows_uncorrectable_last"),
        *("gpu_hours_unmeasured", "gpu_hours_idle_long"),
        *(f"gpu_hours_{cause}" for cause in WASTE),
        *(f"energy_j_{cause}" for cause in WASTE_ENERGY),
    }
)


def _scores() -> tuple[Column, ...]:
    null = "a counter it needs was not measured"
    return (
        _f("score_gpu", "percent", "100 x (1 - resident warps / most warps): 0 is best, 100 worst.", null),
        _f("score_gpumem", "percent", "Memory activity over memory and SM activity, clocks weighted.", null),
        _f("score_gpumem_normalized", "percent", "The same with both clocks taken as equal.", null),
    )


def _waste() -> tuple[Column, ...]:
    null = "no activity counter was measured, or it is ambiguous"
    hours = (_f(f"gpu_hours_{cause}", "h", f"GPU-hours lost to: {cause}.", null) for cause in WASTE)
    energy = (_f(f"energy_j_{cause}", "J", f"Energy drawn in them: {cause}.", null) for cause in WASTE_ENERGY)
    long = _f("gpu_hours_idle_long", "h", "Of idle ones: behind the first waste.idle_minutes without any work.", null)
    unknown = _f("gpu_hours_unmeasured", "h", "GPU-hours of which no activity was recorded.", null)
    return (*hours, long, unknown, *energy)


_JOB_COLUMNS = tuple(
    column
    for column in JOBS.columns
    if column.name
    in {
        *("cluster", "display_id", "array_job_id", "het_job_id", "name", "user", "account", "partition", "qos"),
        *("state", "submit", "start", "end", "elapsed_s", "timelimit_s", "nodes", "gpus", "hbm_request"),
        "time_precision_s",
    }
)

JOB_SUMMARIES = Table(
    "job_summaries",
    "one row per run of a job that held, or may have held, GPUs",
    ("job_key",),
    (
        _JOB_KEY,
        _JOB_ID,
        *_JOB_COLUMNS,
        _s("gpu_model", "Model of its GPUs; several are joined with +."),
        _f("hbm_mib", "MiB", "Capacity of one of its GPUs (the smallest where they differ).", "not known"),
        _f("gpu_hours", "h", "Allocated GPUs times run time, idle ones too."),
        Column("attribution", pl.String(), "", "explicit, live_index, whole_node or ambiguous.", None),
        _f("coverage", "fraction", "Samples present over samples expected at the job's own interval.", "ambiguous"),
        _i("samples", "GPU samples that belong to it."),
        _f("interval_s", "s", "Its sampling interval: median distance of a GPU's samples.", "fewer than two samples"),
        _i("gpus_seen", "GPUs of which it has samples."),
        *_all_statistics(without=("power_w_mean",)),
        *(_f(volume, "B", f"Integral of {rate} over time and GPUs.") for rate, volume in RATE_VOLUMES.items()),
        _f("spatial_imbalance", "fraction", "Mean over windows of 1 - sum / (GPUs x max).", "one GPU, or no activity"),
        _i("spatial_windows", "Windows with data."),
        _f("spatial_zero_fraction", "fraction", "Share of windows in which all GPUs were at zero."),
        _f("temporal_imbalance", "fraction", "Largest of its GPUs' 1 - mean / max.", "no activity"),
        *(column for name in OTHER_IMBALANCES for column in _imbalances(name)),
        *(column for pipe in PIPES for column in _roofline(pipe)),
        Column("pipes", pl.List(pl.String()), "", "Pipes in use: fp64, fp32, fp16, tensor.", _NOT_MEASURED),
        _f("hbm_peak_fraction", "fraction", "Peak of memory used over capacity, of the GPU where it is largest."),
        _f("energy_j", "J", "Energy of the GPUs of which it is known, over the run time."),
        _s("energy_source", "counter, or power (integrated); both are joined with +.", _NOT_MEASURED),
        _i("energy_gpus", "GPUs whose energy is known and in `energy_j`."),
        _f("power_w_mean", "W", "Energy over (GPUs of which it is known x run time)."),
        _f("power_w_sampled_mean", "W", "Mean over GPUs of the mean of the power samples."),
        _i("gpus_never_used", "GPUs whose utilisation never left zero."),
        _f("zero_util_fraction", "fraction", "Share of samples with utilisation zero."),
        *_scores(),
        _s("workload", "Workload class most of its GPU time is of; unknown: counters are missing.", "no samples"),
        Column(
            "workload_fractions",
            pl.List(pl.Float64()),
            "fraction",
            "Share of its GPU time in each workload class, in the order of `workload.CLASSES`; the last is unknown.",
            "no samples",
        ),
        _s("health", "Worst of its GPUs: CRIT, WARN, HOT, unknown, OK.", "no samples"),
        *_waste(),
        _i("xid_events", "Changes of the XID code."),
        _f("xid_event_max", "code", "Largest XID code that came up meanwhile.", "none came up"),
        Column(
            "intensity_histogram",
            pl.List(pl.Int64()),
            "count",
            "Samples by arithmetic intensity (30 bins from 1e-3 to 1e3 FLOP/B, one under, one over), "
            "fp64, fp32, fp16, tensor one behind the other.",
            "device peaks not known, or not measured",
        ),
        _s("excluded", "Why it is left out of a study; several are joined with a comma.", "in the study"),
        Column("as_of", TIME, "UTC", "Up to when it was summarized: its end, or the analysis while it runs.", None),
        _SEQ,
    ),
    sort=("start", "job_id"),
    completes=False,
)

_GPU_KEY = (
    _JOB_KEY,
    _JOB_ID,
    Column("node", pl.String(), "", "Host name.", None),
    Column("gpu", pl.Int16(), "index", "Index of the GPU on its node.", None),
    Column("mig", pl.Int16(), "index", "GPU instance id of a MIG slice.", "the whole GPU"),
)

JOB_GPUS = Table(
    "job_gpus",
    "one row per (job_key, node, gpu, mig)",
    ("job_key", "node", "gpu", "mig"),
    (
        *_GPU_KEY,
        _s("gpu_model", "Model."),
        _f("hbm_mib", "MiB", "Capacity.", "not known"),
        _i("samples", "Samples that belong to the job; 0: it held this GPU but nothing was recorded."),
        Column("first_t", TIME, "UTC", "First sample.", "no samples"),
        Column("last_t", TIME, "UTC", "Last sample.", "no samples"),
        *_all_statistics(),
        _f("temporal_imbalance", "fraction", "1 - mean / max of utilisation.", "no activity"),
        _f("hbm_peak_fraction", "fraction", "Peak of memory used over capacity."),
        _f("energy_j", "J", "Energy over the job's run time."),
        _f("zero_util_fraction", "fraction", "Share of samples with utilisation zero."),
        *_scores(),
        Column(
            "workload_samples",
            pl.List(pl.Int64()),
            "count",
            "Samples in minutes of each workload class, in the order of `workload.CLASSES`; the last is unknown.",
            "no samples",
        ),
        _i("remapped_rows_uncorrectable_last", "Rows remapped after uncorrectable errors, up to its last sample."),
        _s("health", "CRIT, WARN, HOT, OK, or unknown: not all was measured.", "no samples"),
        _i("xid_events", "Changes of the XID code."),
        _f("xid_event_max", "code", "Largest XID code that came up meanwhile.", "none came up"),
        _SEQ,
    ),
    sort=("job_key", "node", "gpu", "mig"),
    completes=False,
)

JOB_MINUTES = Table(
    "job_minutes",
    "one row per (job_key, node, gpu, mig, minute); minutes are counted from the job's start",
    ("job_key", "node", "gpu", "mig", "minute"),
    (
        *_GPU_KEY,
        Column("minute", pl.Int32(), "min", "Whole minutes since the job's start.", None),
        Column("t", TIME, "UTC", "Begin of the minute.", None),
        Column("samples", pl.Int32(), "count", "Samples in the minute.", None),
        *(Column(name, pl.Float32(), "", f"Mean of {name} in the minute.", _NOT_MEASURED) for name in MINUTE_MEANS),
        *(Column(name, pl.Float32(), "", f"Maximum of {name}.", _NOT_MEASURED) for name in MINUTE_MAXIMA),
        _SEQ,
    ),
    sort=("job_key", "node", "gpu", "mig", "minute"),
    by_day=True,
    completes=False,
)

# host characteristics of a node: {name: (unit, host counter it is made of)}; of counters that add up their rate.
# cpu_user and cpu_nice are shares of the time of all CPUs of the node
HOST_CHARACTERISTICS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "cpu_user": ("fraction", "cpu_user_s"),
        "cpu_nice": ("fraction", "cpu_nice_s"),
        "load_average": ("count", "load_average"),
        "l1_misses_per_s": ("1/s", "l1_misses"),
        "llc_misses_per_s": ("1/s", "llc_misses"),
        "network_rx_bytes_per_s": ("B/s", "network_rx_bytes"),
        "network_tx_bytes_per_s": ("B/s", "network_tx_bytes"),
        "network_rx_packets_per_s": ("1/s", "network_rx_packets"),
        "network_tx_packets_per_s": ("1/s", "network_tx_packets"),
        "fs_read_bytes_per_s": ("B/s", "fs_read_bytes"),
        "fs_write_bytes_per_s": ("B/s", "fs_write_bytes"),
        "fs_read_operations_per_s": ("1/s", "fs_read_operations"),
        "fs_write_operations_per_s": ("1/s", "fs_write_operations"),
    }
)

JOB_NODE_MINUTES = Table(
    "job_node_minutes",
    "one row per (job_key, node, minute) of nodes that the job had to itself; minutes from the job's start",
    ("job_key", "node", "minute"),
    (
        _JOB_KEY,
        _JOB_ID,
        Column("node", pl.String(), "", "Host name.", None),
        Column("minute", pl.Int32(), "min", "Whole minutes since the job's start.", None),
        Column("t", TIME, "UTC", "Begin of the minute.", None),
        *(
            Column(name, pl.Float32(), unit, f"From {counter}, in the minute.", _NOT_MEASURED)
            for name, (unit, counter) in HOST_CHARACTERISTICS.items()
        ),
        _SEQ,
    ),
    sort=("job_key", "node", "minute"),
    by_day=True,
    completes=False,
)

FINDINGS = Table(
    "findings",
    "one row per (job_key, code): what was looked for in a job, and what came of it",
    ("job_key", "code"),
    (
        _JOB_KEY,
        _JOB_ID,
        Column("code", pl.String(), "", "Name of the finding, for example one_gpu_of_many.", None),
        Column("kind", pl.String(), "", "advice, class, rule, score, workload or health.", None),
        Column("verdict", pl.String(), "", "yes, no, or insufficient: the data do not tell.", None),
        Column("severity", pl.String(), "", "problem, hint, note, or fact: true and nothing to mend.", None),
        Column("title", pl.String(), "", "What it is, in a few words.", None),
        Column("sentence", pl.String(), "", "What was seen, with its numbers.", None),
        Column("advice", pl.String(), "", "What to do.", "nothing to do"),
        Column("begin", TIME, "UTC", "Begin of the interval it is about.", "the whole job"),
        Column("end", TIME, "UTC", "End of the interval it is about.", "the whole job"),
        Column("evidence", pl.String(), "", "JSON object: the numbers behind it.", None),
        Column("checks", pl.String(), "", "JSON list: values against thresholds.", None),
        Column("needs", pl.List(pl.String()), "", "Counters that it needs and nobody measured.", None),
        _SEQ,
    ),
    sort=("job_key", "code"),
    completes=False,
)

COMPUTED: Mapping[str, Table] = MappingProxyType(
    {table.name: table for table in (JOB_SUMMARIES, JOB_GPUS, JOB_MINUTES, JOB_NODE_MINUTES, FINDINGS)}
)


def in_schema(frame: pl.DataFrame, table: Table) -> pl.DataFrame:
    """Return `frame` in the schema of a computed table without `seq`; what is judged later is null."""
    return frame.select(
        pl.col(name).cast(dtype) if name in frame.columns or name not in JUDGED else pl.lit(None, dtype).alias(name)
        for name, dtype in table.schema.items()
        if name != "seq"
    )
