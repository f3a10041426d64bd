"""The tables of the lake: grain, columns, units, and the meaning of null in each.

Source of the metrics of job summaries: Cankur, Austin, Kulkarni, Bhatele, "Characterizing Production GPU Workloads
using System-wide Telemetry Data" (IPDPS 2026); variations are options of the analysis.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

import polars as pl

from tachograph.catalog.chunks import BLANK_FLOATS, TEXT_BLANKS, Reject
from tachograph.catalog.counters import COUNTERS, HOST_COUNTERS, Counter, CounterKind, HostCounter
from tachograph.catalog.errors import SchemaError
from tachograph.catalog.units import factor

TIME = pl.Datetime("us", "UTC")
_STORAGE: Mapping[str, pl.DataType] = {"f32": pl.Float32(), "f64": pl.Float64(), "i64": pl.Int64()}

FIRST_CREDIBLE_TIME = datetime(2006, 1, 1, tzinfo=UTC)  # before CUDA no GPU counter existed
CLOCK_TOLERANCE = timedelta(minutes=10)  # a node's clock may run ahead of ours


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
    completes: bool = True  # rows of one key complete each other; False: the last one replaces the others

    @property
    def schema(self) -> dict[str, pl.DataType]:
        """{column: type} in order."""
        return {column.name: column.dtype for column in self.columns}

    @property
    def required(self) -> tuple[str, ...]:
        """Columns in which null is not allowed."""
        return tuple(column.name for column in self.columns if column.null is None)

    def empty(self) -> pl.DataFrame:
        """A frame of no rows."""
        return pl.DataFrame(schema=self.schema)


_UNKNOWN = "not known"
_T = TableColumn("t", TIME, "UTC", "When the value was read.", None)
_NODE = TableColumn("node", pl.String(), "", "Host name, short form.", None)
_GPU = TableColumn("gpu", pl.Int16(), "index", "Index of the GPU on its node.", None)
_MIG = TableColumn("mig", pl.Int16(), "index", "GPU instance id of a MIG slice.", "the whole GPU")
_SEQ = TableColumn(
    "seq",
    pl.Int64(),
    "",
    "Version of the table in which the row landed: of two rows with one key the higher one wins.",
    None,
)
_CLUSTER = TableColumn("cluster", pl.String(), "", "Slurm cluster.", "one cluster only, or not told")
_JOB_ID = TableColumn(
    "job_id", pl.String(), "", "Raw job id (JobIDRaw): unique for each array task and het component.", None
)


def _counter_column(counter: Counter | HostCounter) -> TableColumn:
    return TableColumn(counter.name, _STORAGE[counter.storage], counter.unit, counter.sentence, "nobody measured it")


def _text(name: str, sentence: str, null: str = _UNKNOWN) -> TableColumn:
    return TableColumn(name, pl.String(), "", sentence, null)


def _time(name: str, sentence: str, null: str = _UNKNOWN) -> TableColumn:
    return TableColumn(name, TIME, "UTC", sentence, null)


def _count(name: str, sentence: str, unit: str = "count", null: str = _UNKNOWN) -> TableColumn:
    return TableColumn(name, pl.Int64(), unit, sentence, null)


def _number(name: str, unit: str, sentence: str, null: str = _UNKNOWN) -> TableColumn:
    return TableColumn(name, pl.Float64(), unit, sentence, null)


GPU_SAMPLES = LakeTable(
    "gpu_samples",
    "one row per (node, gpu, mig, t)",
    ("node", "gpu", "mig", "t"),
    (_T, _NODE, _GPU, _MIG, *map(_counter_column, COUNTERS), _SEQ),
    sort=("node", "gpu", "mig", "t"),
    by_day=True,
)
NODE_SAMPLES = LakeTable(
    "node_samples",
    "one row per (node, t)",
    ("node", "t"),
    (
        _T,
        _NODE,
        *map(_counter_column, HOST_COUNTERS),
        _SEQ,
    ),
    sort=("node", "t"),
    by_day=True,
)
DEVICES = LakeTable(
    "devices",
    "one row per (node, gpu, mig) as last seen",
    ("node", "gpu", "mig"),
    (
        _NODE,
        _GPU,
        _MIG,
        _text("uuid", "UUID of the GPU."),
        _text("pci", "PCI bus address."),
        _text("model", "Model as the driver writes it."),
        _number("hbm_mib", "MiB", "Capacity of device memory."),
        _SEQ,
    ),
    sort=("node", "gpu", "mig"),
)
JOBS = LakeTable(
    "jobs",
    "one row per run of a job: (cluster, job_id, submit); a requeued job has several",
    ("cluster", "job_id", "submit"),
    (
        _CLUSTER,
        _JOB_ID,
        _text("display_id", "Job id as people write it: 123, 123_4 (array), 123+1 (het).", "same as job_id"),
        _text("array_job_id", "Id of the array the task belongs to.", "not an array task"),
        _count("array_task_id", "Index of the task in its array.", "index", "not an array task"),
        _text("het_job_id", "Id of the heterogeneous job the component belongs to.", "not heterogeneous"),
        _count("het_offset", "Position of the component.", "index", "not heterogeneous"),
        _text("name", "Job name."),
        _text("user", "User name."),
        _text("account", "Account or project."),
        _text("partition", "Partition."),
        _text("qos", "Quality of service."),
        _text("state", "Base state: PENDING, RUNNING, COMPLETED, FAILED, CANCELLED, TIMEOUT, OUT_OF_MEMORY, ..."),
        _count("exit_code", "Exit code of the batch script.", "code"),
        _count("exit_signal", "Signal that ended it.", "signal", "none or not known"),
        _time("submit", "When it was submitted."),
        _time("eligible", "When it could have started."),
        _time("start", "When it started.", "has not started"),
        _time("end", "When it ended.", "still running, or has not started"),
        _number("elapsed_s", "s", "Run time as accounted."),
        _number("timelimit_s", "s", "Requested time limit.", "unlimited or not known"),
        _count("nodes", "Nodes allocated.", "count"),
        _text("node_list", "Node list as written.", "never ran or not known"),
        _count("gpus", "GPUs allocated.", "count"),
        _text("gpu_type", "GPU type in the allocation.", "untyped or not known"),
        _count("cpus", "CPUs allocated.", "count"),
        _text("constraints", "Requested features.", "none or not known"),
        _text("hbm_request", "Requested memory tier of the GPU, for example 80g.", "none asked for"),
        TableColumn("exclusive", pl.Boolean(), "", "The job had its nodes to itself.", _UNKNOWN),
        _text("submit_line", "Submit line."),
        _number("time_precision_s", "s", "How coarse the recorded times are: 0 for whole seconds, 60 for minutes."),
        _SEQ,
    ),
    sort=("start", "job_id"),
)
ALLOCATIONS = LakeTable(
    "allocations",
    "one row per (job, node, gpu) and interval; gpu null: on this node, which GPUs is not told",
    ("cluster", "job_id", "node", "gpu", "mig", "start", "provenance"),
    (
        _CLUSTER,
        _JOB_ID,
        _NODE,
        TableColumn("gpu", pl.Int16(), "index", "Index of the GPU on its node.", "which GPUs is not told"),
        _MIG,
        _time("start", "First instant held.", "from the start of the job"),
        _time("end", "First instant no longer held.", "to the end of the job, or still held"),
        TableColumn("provenance", pl.String(), "", "explicit, live_index or node_list: who says so.", None),
        _SEQ,
    ),
    sort=("node", "gpu", "start"),
)
REJECTS = LakeTable(
    "rejects",
    "one row per (chunk, reason, column): what was removed on the way in",
    ("chunk", "target", "reason", "column"),
    (
        TableColumn("chunk", pl.String(), "", "Which chunk was read.", None),
        _text("source", "Name of the source."),
        _text("origin", "File or address."),
        TableColumn("target", pl.String(), "", "Table it was meant for.", None),
        TableColumn("reason", pl.String(), "", "Why it was removed.", None),
        _text("column", "Column whose value was removed.", "the whole row was removed"),
        _count("removed", "How many rows or values.", "count"),
        _text("example", "One of them, as it was written.", "not kept"),
        _SEQ,
    ),
)

# Tables computed by `analyze` are declared beside the code that computes them: summarize.schema.
TABLES: Mapping[str, LakeTable] = MappingProxyType(
    {table.name: table for table in (GPU_SAMPLES, NODE_SAMPLES, DEVICES, JOBS, ALLOCATIONS, REJECTS)}
)


@dataclass(frozen=True, slots=True)
class Conformed:
    """A frame in the table's schema (without `seq`) and what was removed to get there."""

    frame: pl.DataFrame
    rejects: tuple[Reject, ...] = field(default=())


def conform(
    frame: pl.DataFrame, table: LakeTable, *, now: datetime, units: Mapping[str, str] | None = None, origin: str = ""
) -> Conformed:
    """Return `frame` in the schema of `table`, with every removal counted.

    Grain: that of the input. `units` gives the unit of a column where it is not the contract's.
    Missing columns become null; null keys, times before 2006 or more than ten minutes after `now` cost the row;
    marks for "no value", NaN, infinities and values outside a counter's range cost the value.
    Errors: SchemaError naming unknown columns, or columns whose type cannot be what the table wants.
    """
    schema = {name: dtype for name, dtype in table.schema.items() if name != "seq"}
    unknown = [name for name in frame.columns if name not in schema]
    if unknown:
        raise SchemaError(
            f"table {table.name} has no column {', '.join(unknown)}", where=origin, do=f"it has: {', '.join(schema)}"
        )
    for name in frame.columns:
        _check_type(name, frame.schema[name], schema[name], table=table, origin=origin)
    cast, rejects = _cast(frame, schema)
    counters = _COUNTERS_OF.get(table.name)
    if counters:
        cast, removed = _remove_impossible(cast, counters, units or {})
        rejects += removed
    else:
        cast = cast.with_columns(
            (pl.col(name) * factor(unit, _unit_of(table, name))).cast(schema[name])
            for name, unit in (units or {}).items()
            if name in cast.columns and unit != _unit_of(table, name)
        )
        cast, removed = _remove_non_finite(cast)
        rejects += removed
    cast = cast.with_columns(
        pl.lit(None, dtype=dtype).alias(name) for name, dtype in schema.items() if name not in cast
    )
    cast, removed = _remove_rows(cast.select(*schema), table, now)
    return Conformed(cast, tuple(rejects + removed))


def _unit_of(table: LakeTable, name: str) -> str:
    return next(column.unit for column in table.columns if column.name == name)


def _check_type(name: str, given: pl.DataType, wanted: pl.DataType, *, table: LakeTable, origin: str) -> None:
    numeric = wanted.is_numeric()
    fits = (
        given == wanted
        or given == pl.Null
        or (numeric and (given.is_numeric() or given in (pl.String, pl.Boolean)))
        or (wanted == pl.String and given in (pl.Categorical, pl.Enum))
        or (isinstance(wanted, pl.Datetime) and isinstance(given, pl.Datetime) and given.time_zone is not None)
    )
    if not fits:
        hint = "times must carry their zone" if isinstance(given, pl.Datetime) else f"give it as {wanted}"
        raise SchemaError(f"column {name} of table {table.name} is {given}, not {wanted}", where=origin, do=hint)


def _cast(frame: pl.DataFrame, schema: Mapping[str, pl.DataType]) -> tuple[pl.DataFrame, list[Reject]]:
    """Types made the table's, except counters, which stay numbers as given until their units are converted."""
    rejects: list[Reject] = []
    columns: list[pl.Series] = []
    for series in frame.get_columns():
        wanted = schema[series.name]
        if series.dtype == pl.String and wanted.is_numeric():
            stripped = series.str.strip_chars()
            blank = stripped.is_in(TEXT_BLANKS)
            numbers = stripped.cast(pl.Float64, strict=False)
            bad = numbers.is_null() & series.is_not_null() & ~blank
            rejects += _counted("missing_mark", series.name, blank & (stripped != ""), series)
            rejects += _counted("not_a_number", series.name, bad, series)
            series = numbers
        if wanted.is_integer() and series.dtype.is_float():
            fits = series.is_nan() | series.is_infinite() | (series != series.round()) | (series.abs() > 9.2e18)
            if fits.any() and series.name not in _COUNTER_NAMES:
                rejects += _counted("not_an_integer", series.name, fits.fill_null(value=False), series)
                series = pl.select(pl.when(~fits).then(series)).to_series().alias(series.name)
        if series.name in _COUNTER_NAMES:
            columns.append(series)
        else:
            cast = series.cast(wanted, strict=False)
            rejects += _counted("out_of_range", series.name, cast.is_null() & series.is_not_null(), series)
            columns.append(cast)
    return pl.DataFrame(columns), rejects


_COUNTERS_OF: Mapping[str, tuple[Counter | HostCounter, ...]] = MappingProxyType(
    {GPU_SAMPLES.name: COUNTERS, NODE_SAMPLES.name: HOST_COUNTERS}
)
_COUNTER_NAMES = frozenset(counter.name for counters in _COUNTERS_OF.values() for counter in counters)


def _counted(reason: str, column: str | None, mask: pl.Series, values: pl.Series) -> list[Reject]:
    count = int(mask.sum() or 0)
    if not count:
        return []
    return [Reject(reason, column, count, first_as_text(values.filter(mask.fill_null(value=False))))]


def first_as_text(values: pl.Series) -> str | None:
    """Return the first value as Python writes it, 200 characters at most; None for null.

    A time outside Python's years is written as Polars does.
    """
    try:
        value = values[0]
    except (ValueError, OverflowError):
        value = values.head(1).cast(pl.String)[0]
    return None if value is None else str(value)[:200]


def _remove_impossible(
    frame: pl.DataFrame, counters: Iterable[Counter | HostCounter], units: Mapping[str, str]
) -> tuple[pl.DataFrame, list[Reject]]:
    """Counters in contract units and types; marks, NaN, infinities and values out of range become null."""
    rejects: list[Reject] = []
    columns: list[pl.Series] = []
    for counter in counters:
        if counter.name not in frame.columns:
            continue
        given_as = frame.get_column(counter.name)
        raw = given_as.cast(pl.Float64)
        marks = raw.is_in(BLANK_FLOATS)
        if given_as.dtype == pl.Float32:  # which rounds the 32-bit marks up
            marks = marks | (raw == 2.0**31)
        unsupported = raw == 0 if counter.zero_is_missing else marks & ~marks
        not_finite = raw.is_nan() | raw.is_infinite()
        given = units.get(counter.name, counter.unit)
        values = raw * factor(given, counter.unit) if given != counter.unit else raw
        impossible = ~marks & ~not_finite & ~values.is_between(counter.low, counter.high)
        removals = {
            "missing_mark": marks,
            "unsupported": unsupported,
            "not_finite": not_finite,
            "out_of_range": impossible,
        }
        for reason, mask in removals.items():
            rejects += _counted(reason, counter.name, mask, raw)
        keep = ~(marks | unsupported | not_finite | impossible)
        kept = pl.select(pl.when(keep).then(values)).to_series().alias(counter.name)
        if counter.storage == "i64":
            kept = kept.round()
        columns.append(kept.cast(_STORAGE[counter.storage]))
    return frame.with_columns(columns), rejects


def _remove_non_finite(frame: pl.DataFrame) -> tuple[pl.DataFrame, list[Reject]]:
    rejects: list[Reject] = []
    columns: list[pl.Series] = []
    for series in frame.get_columns():
        if series.dtype.is_float():
            bad = (series.is_nan() | series.is_infinite()).fill_null(value=False)
            if bad.any():
                rejects += _counted("not_finite", series.name, bad, series)
                columns.append(pl.select(pl.when(~bad).then(series)).to_series().alias(series.name))
    return frame.with_columns(columns), rejects


def _remove_rows(frame: pl.DataFrame, table: LakeTable, now: datetime) -> tuple[pl.DataFrame, list[Reject]]:
    """Rows without a key, outside credible time, or ending before they start, removed and counted."""
    checks: list[tuple[str, str, pl.Expr]] = [
        (f"no_{name}", name, pl.col(name).is_null()) for name in table.required if name != "seq"
    ]
    if "t" in frame.columns:
        checks.append(("time_too_early", "t", pl.col("t") < FIRST_CREDIBLE_TIME))
        checks.append(("time_in_future", "t", pl.col("t") > now + CLOCK_TOLERANCE))
    if "gpu" in frame.columns:
        checks.append(("negative_gpu", "gpu", pl.col("gpu") < 0))
    if "start" in frame.columns:
        checks.append(("start_too_early", "start", pl.col("start") < FIRST_CREDIBLE_TIME))
        checks.append(("start_in_future", "start", pl.col("start") > now + CLOCK_TOLERANCE))
        checks.append(("end_before_start", "end", pl.col("end") < pl.col("start")))
    rejects: list[Reject] = []
    for reason, column, expression in checks:
        mask = frame.select(expression.fill_null(value=False)).to_series()
        if mask.any():
            first = frame.filter(mask).head(1)
            texts = [(series.name, first_as_text(series)) for series in first]
            shown = ", ".join(f"{name}={text}" for name, text in texts if text is not None)
            rejects.append(Reject(reason, None, int(mask.sum()), f"{column}: {shown}"[:200]))
            frame = frame.filter(~mask)
    return frame, rejects


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
    {c.name: c.name.removesuffix("_per_s") for c in COUNTERS if c.kind is CounterKind.RATE}
)

_NOT_MEASURED = "nobody measured it"
_JOB_KEY = TableColumn(
    "job_key", pl.String(), "", "cluster:job_id:submit (seconds since 1970): one run of a job.", None
)
_COMPUTED_JOB_ID = TableColumn("job_id", pl.String(), "", "Raw job id.", None)
_COMPUTED_SEQ = TableColumn("seq", pl.Int64(), "", "When it was computed: the higher one counts.", None)


def _f(name: str, unit: str, sentence: str, null: str = _NOT_MEASURED) -> TableColumn:
    return TableColumn(name, pl.Float64(), unit, sentence, null)


def _i(name: str, sentence: str, null: str = _NOT_MEASURED) -> TableColumn:
    return TableColumn(name, pl.Int64(), "count", sentence, null)


def _s(name: str, sentence: str, null: str = "not known") -> TableColumn:
    return TableColumn(name, pl.String(), "", sentence, null)


def _statistics(counter: Counter) -> tuple[TableColumn, TableColumn]:
    """`<counter>_mean` and `<counter>_max`; what they mean depends on the kind."""
    if counter.unit == "bitmask":
        mean = "Share of samples in which clocks were lowered for power or heat (0x4, 0x8, 0x20, 0x40, 0x80)."
        return _f(f"{counter.name}_mean", "fraction", mean), _f(f"{counter.name}_max", "bitmask", "All bits seen.")
    if counter.unit == "code":
        return (
            _f(f"{counter.name}_mean", "code", "Always null: codes have no mean.", "codes have no mean"),
            _f(f"{counter.name}_max", "code", "Largest code seen."),
        )
    if counter.kind is CounterKind.CUMULATIVE:
        return (
            _f(f"{counter.name}_mean", counter.unit, "Increase over the job, corrected for resets: mean over GPUs."),
            _f(f"{counter.name}_max", counter.unit, "Increase over the job: largest of the GPUs."),
        )
    return (
        _f(f"{counter.name}_mean", counter.unit, "Mean over GPUs of the mean over time."),
        _f(f"{counter.name}_max", counter.unit, "Largest sample of any GPU."),
    )


def _all_statistics(*, without: tuple[str, ...] = ()) -> tuple[TableColumn, ...]:
    return tuple(column for c in COUNTERS for column in _statistics(c) if column.name not in without)


def _roofline(pipe: str) -> tuple[TableColumn, ...]:
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


def _imbalances(counter: str) -> tuple[TableColumn, ...]:
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


def _scores() -> tuple[TableColumn, ...]:
    null = "a counter it needs was not measured"
    return (
        _f("score_gpu", "percent", "100 x (1 - resident warps / most warps): 0 is best, 100 worst.", null),
        _f("score_gpumem", "percent", "Memory activity over memory and SM activity, clocks weighted.", null),
        _f("score_gpumem_normalized", "percent", "The same with both clocks taken as equal.", null),
    )


def _waste() -> tuple[TableColumn, ...]:
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

JOB_SUMMARIES = LakeTable(
    "job_summaries",
    "one row per run of a job that held, or may have held, GPUs",
    ("job_key",),
    (
        _JOB_KEY,
        _COMPUTED_JOB_ID,
        *_JOB_COLUMNS,
        _s("gpu_model", "Model of its GPUs; several are joined with +."),
        _f("hbm_mib", "MiB", "Capacity of one of its GPUs (the smallest where they differ).", "not known"),
        _f("gpu_hours", "h", "Allocated GPUs times run time, idle ones too."),
        TableColumn("attribution", pl.String(), "", "explicit, live_index, whole_node or ambiguous.", None),
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
        TableColumn("pipes", pl.List(pl.String()), "", "Pipes in use: fp64, fp32, fp16, tensor.", _NOT_MEASURED),
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
        TableColumn(
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
        TableColumn(
            "intensity_histogram",
            pl.List(pl.Int64()),
            "count",
            "Samples by arithmetic intensity (30 bins from 1e-3 to 1e3 FLOP/B, one under, one over), "
            "fp64, fp32, fp16, tensor one behind the other.",
            "device peaks not known, or not measured",
        ),
        _s("excluded", "Why it is left out of a study; several are joined with a comma.", "in the study"),
        TableColumn(
            "as_of", TIME, "UTC", "Up to when it was summarized: its end, or the analysis while it runs.", None
        ),
        _COMPUTED_SEQ,
    ),
    sort=("start", "job_id"),
    completes=False,
)

_GPU_KEY = (
    _JOB_KEY,
    _COMPUTED_JOB_ID,
    TableColumn("node", pl.String(), "", "Host name.", None),
    TableColumn("gpu", pl.Int16(), "index", "Index of the GPU on its node.", None),
    TableColumn("mig", pl.Int16(), "index", "GPU instance id of a MIG slice.", "the whole GPU"),
)

JOB_GPUS = LakeTable(
    "job_gpus",
    "one row per (job_key, node, gpu, mig)",
    ("job_key", "node", "gpu", "mig"),
    (
        *_GPU_KEY,
        _s("gpu_model", "Model."),
        _f("hbm_mib", "MiB", "Capacity.", "not known"),
        _i("samples", "Samples that belong to the job; 0: it held this GPU but nothing was recorded."),
        TableColumn("first_t", TIME, "UTC", "First sample.", "no samples"),
        TableColumn("last_t", TIME, "UTC", "Last sample.", "no samples"),
        *_all_statistics(),
        _f("temporal_imbalance", "fraction", "1 - mean / max of utilisation.", "no activity"),
        _f("hbm_peak_fraction", "fraction", "Peak of memory used over capacity."),
        _f("energy_j", "J", "Energy over the job's run time."),
        _f("zero_util_fraction", "fraction", "Share of samples with utilisation zero."),
        *_scores(),
        TableColumn(
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
        _COMPUTED_SEQ,
    ),
    sort=("job_key", "node", "gpu", "mig"),
    completes=False,
)

JOB_MINUTES = LakeTable(
    "job_minutes",
    "one row per (job_key, node, gpu, mig, minute); minutes are counted from the job's start",
    ("job_key", "node", "gpu", "mig", "minute"),
    (
        *_GPU_KEY,
        TableColumn("minute", pl.Int32(), "min", "Whole minutes since the job's start.", None),
        TableColumn("t", TIME, "UTC", "Begin of the minute.", None),
        TableColumn("samples", pl.Int32(), "count", "Samples in the minute.", None),
        *(
            TableColumn(name, pl.Float32(), "", f"Mean of {name} in the minute.", _NOT_MEASURED)
            for name in MINUTE_MEANS
        ),
        *(TableColumn(name, pl.Float32(), "", f"Maximum of {name}.", _NOT_MEASURED) for name in MINUTE_MAXIMA),
        _COMPUTED_SEQ,
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

JOB_NODE_MINUTES = LakeTable(
    "job_node_minutes",
    "one row per (job_key, node, minute) of nodes that the job had to itself; minutes from the job's start",
    ("job_key", "node", "minute"),
    (
        _JOB_KEY,
        _COMPUTED_JOB_ID,
        TableColumn("node", pl.String(), "", "Host name.", None),
        TableColumn("minute", pl.Int32(), "min", "Whole minutes since the job's start.", None),
        TableColumn("t", TIME, "UTC", "Begin of the minute.", None),
        *(
            TableColumn(name, pl.Float32(), unit, f"From {counter}, in the minute.", _NOT_MEASURED)
            for name, (unit, counter) in HOST_CHARACTERISTICS.items()
        ),
        _COMPUTED_SEQ,
    ),
    sort=("job_key", "node", "minute"),
    by_day=True,
    completes=False,
)

FINDINGS = LakeTable(
    "findings",
    "one row per (job_key, code): what was looked for in a job, and what came of it",
    ("job_key", "code"),
    (
        _JOB_KEY,
        _COMPUTED_JOB_ID,
        TableColumn("code", pl.String(), "", "Name of the finding, for example one_gpu_of_many.", None),
        TableColumn("kind", pl.String(), "", "advice, class, rule, score, workload or health.", None),
        TableColumn("verdict", pl.String(), "", "yes, no, or insufficient: the data do not tell.", None),
        TableColumn("severity", pl.String(), "", "problem, hint, note, or fact: true and nothing to mend.", None),
        TableColumn("title", pl.String(), "", "What it is, in a few words.", None),
        TableColumn("sentence", pl.String(), "", "What was seen, with its numbers.", None),
        TableColumn("advice", pl.String(), "", "What to do.", "nothing to do"),
        TableColumn("begin", TIME, "UTC", "Begin of the interval it is about.", "the whole job"),
        TableColumn("end", TIME, "UTC", "End of the interval it is about.", "the whole job"),
        TableColumn("evidence", pl.String(), "", "JSON object: the numbers behind it.", None),
        TableColumn("checks", pl.String(), "", "JSON list: values against thresholds.", None),
        TableColumn("needs", pl.List(pl.String()), "", "Counters that it needs and nobody measured.", None),
        _COMPUTED_SEQ,
    ),
    sort=("job_key", "code"),
    completes=False,
)

COMPUTED: Mapping[str, LakeTable] = MappingProxyType(
    {table.name: table for table in (JOB_SUMMARIES, JOB_GPUS, JOB_MINUTES, JOB_NODE_MINUTES, FINDINGS)}
)


def in_schema(frame: pl.DataFrame, table: LakeTable) -> pl.DataFrame:
    """Return `frame` in the schema of a computed table without `seq`; what is judged later is null."""
    return frame.select(
        pl.col(name).cast(dtype) if name in frame.columns or name not in JUDGED else pl.lit(None, dtype).alias(name)
        for name, dtype in table.schema.items()
        if name != "seq"
    )


ANALYSED = (GPU_SAMPLES, JOBS, ALLOCATIONS, DEVICES, NODE_SAMPLES)  # what an analysis reads


def _null(table: LakeTable) -> str | None:
    """Analyses that knew nothing of host counters left no version of theirs."""
    return "was not read" if table is NODE_SAMPLES else None


ANALYSES = LakeTable(
    "analyses",
    "one row per analysis that is complete",
    ("seq",),
    (
        *(
            TableColumn(f"{t.name}_version", pl.Int64(), "version", f"Version of {t.name} read.", _null(t))
            for t in ANALYSED
        ),
        TableColumn("method", pl.String(), "", "Digest of the options that decide the numbers.", None),
        TableColumn("as_of", TIME, "UTC", "When it was made.", None),
        TableColumn("jobs", pl.Int64(), "count", "Jobs summarized.", None),
        TableColumn("samples", pl.Int64(), "count", "Samples read.", None),
        TableColumn("attributed", pl.Int64(), "count", "Samples that belong to a job.", None),
        TableColumn("seq", pl.Int64(), "", "Number of the analysis, in the rows it wrote.", None),
    ),
    sort=("seq",),
    completes=False,
)


ALL_TABLES = (*TABLES.values(), *COMPUTED.values(), ANALYSES)
