"""The types of tables and columns, and columns shared by several computed tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import polars as pl

from tachograph.catalog.counters import COUNTERS, Counter, CounterKind

NOT_KNOWN = "not known"
NOT_MEASURED = "not measured"
TIME = pl.Datetime("us", "UTC")


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column: type, unit, meaning, meaning of null (None: null is not allowed)."""

    name: str
    dtype: pl.DataType
    unit: str
    sentence: str
    null: str | None


@dataclass(frozen=True, slots=True)
class LakeTable:
    """One table of the lake."""

    name: str
    grain: str
    key: tuple[str, ...]
    columns: tuple[TableColumn, ...]
    sort: tuple[str, ...] = ()
    by_day: bool = False
    # Rows of one key complete each other; False: the last one replaces the others.
    completes: bool = True
    # Of a row group of its files, where rows are large and read one by one.
    group_rows: int | None = None
    apart: tuple[str, str] | None = None  # (column, value): rows with it lie in files of their own

    @property
    def schema(self) -> dict[str, pl.DataType]:
        """{column: type} in order."""
        return {column.name: column.dtype for column in self.columns}

    @property
    def row_schema(self) -> dict[str, pl.DataType]:
        """{column: type} of rows that are not committed yet: a commit adds `seq`."""
        return {name: dtype for name, dtype in self.schema.items() if name != "seq"}

    @property
    def required(self) -> tuple[str, ...]:
        """Columns in which null is not allowed."""
        return tuple(column.name for column in self.columns if column.null is None)

    def empty(self) -> pl.DataFrame:
        """A frame of no rows."""
        return pl.DataFrame(schema=self.schema)


def real(name: str, unit: str, sentence: str, null: str | None = NOT_MEASURED) -> TableColumn:
    """Return a column of numbers."""
    return TableColumn(name, pl.Float64(), unit, sentence, null)


def count(
    name: str, sentence: str, null: str | None = NOT_MEASURED, *, unit: str = "count"
) -> TableColumn:
    """Return a column of whole numbers."""
    return TableColumn(name, pl.Int64(), unit, sentence, null)


def index(name: str, sentence: str, null: str | None = NOT_KNOWN) -> TableColumn:
    """Return a column of small numbers that name a device."""
    return TableColumn(name, pl.Int16(), "index", sentence, null)


def text(name: str, sentence: str, null: str | None = NOT_KNOWN) -> TableColumn:
    """Return a column of texts."""
    return TableColumn(name, pl.String(), "", sentence, null)


def texts(name: str, sentence: str, null: str | None = None) -> TableColumn:
    """Return a column of lists of texts."""
    return TableColumn(name, pl.List(pl.String()), "", sentence, null)


def flag(name: str, sentence: str, null: str | None = NOT_KNOWN) -> TableColumn:
    """Return a column of true and false."""
    return TableColumn(name, pl.Boolean(), "", sentence, null)


def time(name: str, sentence: str, null: str | None = NOT_KNOWN) -> TableColumn:
    """Return a column of times."""
    return TableColumn(name, TIME, "UTC", sentence, null)


def _of_counter(counter: Counter) -> tuple[TableColumn, TableColumn]:
    """Return `<counter>_mean` and `<counter>_max`; their meaning depends on the kind."""
    if counter.unit == "bitmask":
        mean = (
            "Share of samples in which clocks were lowered for power or heat (0x4, 0x8, "
            "0x20, 0x40, 0x80)."
        )
        return real(f"{counter.name}_mean", "fraction", mean), real(
            f"{counter.name}_max", "bitmask", "All bits seen."
        )
    if counter.unit == "code":
        return (
            real(
                f"{counter.name}_mean",
                "code",
                "Always null: codes have no mean.",
                "codes have no mean",
            ),
            real(f"{counter.name}_max", "code", "Largest code seen."),
        )
    if counter.kind is CounterKind.CUMULATIVE:
        return (
            real(
                f"{counter.name}_mean",
                counter.unit,
                "Increase over the job, corrected for resets: mean over GPUs.",
            ),
            real(
                f"{counter.name}_max", counter.unit, "Increase over the job: largest of the GPUs."
            ),
        )
    return (
        real(f"{counter.name}_mean", counter.unit, "Mean over GPUs of the mean over time."),
        real(f"{counter.name}_max", counter.unit, "Largest sample of any GPU."),
    )


def statistics(*, without: tuple[str, ...] = ()) -> tuple[TableColumn, ...]:
    """Return mean and maximum of every counter."""
    return tuple(
        column for c in COUNTERS for column in _of_counter(c) if column.name not in without
    )


ENERGY = ("energy_j", "energy_j_estimated")


def energy(of: str) -> tuple[TableColumn, ...]:
    """Return energy as measured, and the estimate for the run time."""
    return (
        real(ENERGY[0], "J", f"{of}, while it was measured."),
        real(
            ENERGY[1],
            "J",
            "Scaled to the run time: an estimate where not all of it was measured.",
        ),
    )


def roofline(pipe: str) -> tuple[TableColumn, ...]:
    """Return the columns of compute-bound and memory-bound samples of a pipe."""
    end = "" if pipe == "fp64" else f"_{pipe}"
    return (
        text(
            f"bound{end}",
            f"compute or memory: majority of the labelled samples, {pipe} pipe.",
            "a tie, or nothing labelled",
        ),
        real(
            f"compute_fraction{end}",
            "fraction",
            "Compute-bound samples over labelled ones.",
            "nothing labelled",
        ),
        real(
            f"memory_fraction{end}",
            "fraction",
            "Memory-bound samples over labelled ones.",
            "nothing labelled",
        ),
        real(
            f"idle_fraction{end}",
            "fraction",
            "Samples with all pipes idle over all that were measured.",
        ),
    )


def speed() -> tuple[TableColumn, ...]:
    """Return what limited the speed of a job, and what that is concluded from."""
    null = "not measured, or never active"
    return (
        text("main_pipe", "Pipe with the highest mean activity.", "none measured, or all at zero"),
        real("main_pipe_at_work", "fraction", "Its mean activity, samples weighted by that activity.", null),
        real("work_fraction", "fraction", "Share of the time in which the pipe was active: "
             "sum^2 / (n x sum of squares), GPUs weighted by their work.", null),
        real("dram_at_work", "fraction", "Mean DRAM activity, samples weighted by that activity.", null),
        real("dram_work_fraction", "fraction", "As work_fraction, of DRAM activity.", null),
        *(
            column
            for link, name in (("nvlink", "NVLink"), ("pcie", "PCIe"))
            for column in (
                real(f"{link}_bytes_per_s_at_work", "B/s",
                     f"Traffic of {name} per GPU, busier direction, samples weighted by that traffic.", null),
                real(f"{link}_work_fraction", "fraction", f"As work_fraction, of that traffic of {name}.", null),
            )
        ),
        text("limiter", ("What set the speed: compute, memory, nvlink, pcie; neither: none of them was "
        "near its peak."),
             "not measured, ambiguous, idle or hung"),
    )  # fmt: skip


def imbalances(counter: str) -> tuple[TableColumn, ...]:
    """Return the imbalances of a counter."""
    null = "one GPU, or no activity; not computed for most counters"
    return (
        real(f"spatial_imbalance_{counter}", "fraction", f"Spatial imbalance of {counter}.", null),
        real(
            f"temporal_imbalance_{counter}", "fraction", f"Temporal imbalance of {counter}.", null
        ),
    )


XID_EVENTS = (
    count("xid_events", "Changes of the XID code."),
    real("xid_event_max", "code", "Largest XID code reported during the job.", "none came up"),
)
HOST_USE = ("cpus", "cpu_time_s", "mem_requested_mib", "max_rss_mib")


def host_use() -> tuple[TableColumn, ...]:
    """Return CPUs and host memory of a job as accounted."""
    cpus, cpu_time_s, requested, largest = HOST_USE
    return (
        count(cpus, "CPUs allocated.", "not known"),
        real(
            cpu_time_s,
            "s",
            "CPU time used, user and system, by its processes on all CPUs.",
            "not known, or running",
        ),
        real(
            requested,
            "MiB",
            (
                "Host memory requested for the whole job; allocated, where the request is all or "
                "not recorded."
            ),
            "not known",
        ),
        real(
            largest,
            "MiB",
            "Peak host memory of its largest task, as polled.",
            "not known, or running",
        ),
    )


RECORDED_USE = (
    "recorded_by",
    "recorded_gpu_util_mean",
    "recorded_hbm_used_mib_max",
    "recorded_hbm_peak_fraction",
    "recorded_gpus",
)
TASK_GPU_USE = ("task_gpu_util_max", "task_gpu_mem_mib_max")


def recorded_use() -> tuple[TableColumn, ...]:
    """Return GPU use that the accounting has of a job: summaries by others, without samples."""
    by, busy, used, peak, gpus = RECORDED_USE
    null = "no such summary, or the job has samples"
    util_max, mem_max = TASK_GPU_USE
    return (
        text(
            by,
            "Source of the recorded_ columns, which have no samples behind them: jobstats or "
            "tachograph, by a comment in the accounting.",
            null,
        ),
        real(busy, "fraction", "Utilisation: mean over its GPUs, as summarized there.", null),
        real(used, "MiB", "Peak of device memory used, largest of its GPUs.", null),
        real(peak, "fraction", "Peak of memory used over capacity, largest of its GPUs.", null),
        text(
            gpus,
            "JSON list: node, gpu, gpu_util_mean, hbm_used_mib_max, hbm_mib of each GPU.",
            null,
        ),
        real(
            util_max,
            "fraction",
            "Highest utilisation of a task that Slurm polled, the sum over its GPUs.",
            "not polled",
        ),
        real(
            mem_max,
            "MiB",
            "Peak device memory of its largest task that Slurm polled, over its GPUs.",
            "not polled",
        ),
    )


def waste(causes: Mapping[str, str], with_energy: Iterable[str]) -> tuple[TableColumn, ...]:
    """Return GPU-hours and energy lost to each cause: {cause: which GPUs, when}."""
    null = "no activity counter was measured, or attribution is ambiguous"
    hours = (
        real(f"gpu_hours_{cause}", "h", f"GPU-hours lost: {meaning}.", null)
        for cause, meaning in causes.items()
    )
    energy = (
        real(f"energy_j_{cause}", "J", f"Energy drawn in gpu_hours_{cause}.", null)
        for cause in with_energy
    )
    long = real(
        "gpu_hours_idle_long",
        "h",
        "Idle GPU-hours after the first 30 minutes without work.",
        null,
    )
    others = {
        "in_use": "GPU-hours in use, with work seen in arithmetic, memory traffic or SMs.",
        "in_use_unknown": "GPU-hours in use in which no counter shows whether there was work.",
        "unmeasured": "GPU-hours without recorded activity.",
    }
    rest = (real(f"gpu_hours_{name}", "h", meaning, null) for name, meaning in others.items())
    return (*hours, long, *rest, *energy)


def scores() -> tuple[TableColumn, ...]:
    """Return the scores of recorded counters."""
    null = "a counter it needs was not measured"
    return (
        real(
            "score_gpu",
            "percent",
            "100 x (1 - resident warps / most warps): 0 is best, 100 worst.",
            null,
        ),
        real(
            "score_gpumem",
            "percent",
            "Memory activity over memory and SM activity, clocks weighted.",
            null,
        ),
        real(
            "score_gpumem_normalized", "percent", "The same with both clocks taken as equal.", null
        ),
    )


def pm_sampling() -> tuple[TableColumn, ...]:
    """Return PM sampling over a span: sums over its samples, and the scores of the sums."""
    cut = "the chip cannot count it"
    share = "share of its peak x sm_cycles_elapsed, added up."
    return (
        real("duration_s", "s", "From the start of the first sample to the end of the last."),
        real("measured_s", "s", "Total length of the samples."),
        count("pm_samples", "PM samples."),
        count("overflows", "How often the buffer was full, and samples were lost."),
        real("lost_s", "s", "Time between samples that no sample covers."),
        real("sm_cycles_active", "cycles", "Sum of sm__cycles_active.avg.", cut),
        real(
            "sm_cycles_elapsed",
            "cycles",
            "Sum of sm__cycles_elapsed.avg.",
            "a row of an older version, where gpc_cycles_elapsed stands for it",
        ),
        real(
            "gpc_cycles_elapsed",
            "cycles",
            "Sum of gpc__cycles_elapsed.max.",
            "sm_cycles_elapsed is counted instead",
        ),
        real(
            "warps_active",
            "warp cycles",
            "Sum of sm__warps_active.avg, resident warps in each cycle.",
            cut,
        ),
        real("dram_cycles_active", "cycles", "Sum of dram__cycles_active.avg.", cut),
        real("dram_cycles_elapsed", "cycles", "Sum of dram__cycles_elapsed.avg.", cut),
        real("pipe_tensor_cycles_active", "cycles", f"Tensor pipe: {share}", cut),
        real("pipe_fp64_cycles_active", "cycles", f"FP64 pipe: {share}", cut),
        real("pipe_fp32_cycles_active", "cycles", f"FP32 (FMA) pipe: {share}", cut),
        count(
            "max_warps",
            "W_max: maximum number of resident warps per SM.",
            "the device is not known",
        ),
        text(
            "cut",
            "Metrics that the chip cannot count in the same pass, separated by commas; those that "
            "have a sum were counted in alternating passes.",
            "nothing",
        ),
        real(
            "score_gpu",
            "percent",
            "Published formula (2), applied to the sums.",
            "W_max or a metric is missing",
        ),
        real(
            "score_gpumem",
            "percent",
            "Published formula (4), applied to the sums.",
            "a metric is missing, or nothing ran",
        ),
        real(
            "score_gpumem_normalized",
            "percent",
            "Formula (4), applied to shares of elapsed cycles.",
            "as score_gpumem",
        ),
    )
