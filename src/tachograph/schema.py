"""The tables: their grain, columns, units, and what null means in each; and `conform`, the one gate into them.

A source hands over a frame whose columns carry contract names; `conform` converts units, adds missing columns
as null, removes impossible values and unusable rows, and counts each removal by reason. Nothing is clamped,
nothing is dropped in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

import polars as pl

from tachograph.counters import COUNTERS, Counter
from tachograph.errors import SchemaError
from tachograph.host_counters import HOST_COUNTERS, HostCounter
from tachograph.rejects import BLANK_FLOATS, TEXT_BLANKS
from tachograph.rejects import Reject as Reject
from tachograph.units import factor

TIME = pl.Datetime("us", "UTC")
_STORAGE: Mapping[str, pl.DataType] = {"f32": pl.Float32(), "f64": pl.Float64(), "i64": pl.Int64()}

FIRST_CREDIBLE_TIME = datetime(2006, 1, 1, tzinfo=UTC)  # before CUDA no GPU counter existed
CLOCK_TOLERANCE = timedelta(minutes=10)  # a node's clock may run ahead of ours


@dataclass(frozen=True, slots=True)
class Column:
    """One column: type, unit, meaning, meaning of null (None: null is not allowed)."""

    name: str
    dtype: pl.DataType
    unit: str
    sentence: str
    null: str | None


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the lake."""

    name: str
    grain: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
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
_T = Column("t", TIME, "UTC", "When the value was read.", None)
_NODE = Column("node", pl.String(), "", "Host name, short form.", None)
_GPU = Column("gpu", pl.Int16(), "index", "Index of the GPU on its node.", None)
_MIG = Column("mig", pl.Int16(), "index", "GPU instance id of a MIG slice.", "the whole GPU")
_SEQ = Column(
    "seq",
    pl.Int64(),
    "",
    "Version of the table in which the row landed: of two rows with one key the higher one wins.",
    None,
)
_CLUSTER = Column("cluster", pl.String(), "", "Slurm cluster.", "one cluster only, or not told")
_JOB_ID = Column(
    "job_id", pl.String(), "", "Raw job id (JobIDRaw): unique for each array task and het component.", None
)


def _counter_column(counter: Counter | HostCounter) -> Column:
    return Column(counter.name, _STORAGE[counter.storage], counter.unit, counter.sentence, "nobody measured it")


def _text(name: str, sentence: str, null: str = _UNKNOWN) -> Column:
    return Column(name, pl.String(), "", sentence, null)


def _time(name: str, sentence: str, null: str = _UNKNOWN) -> Column:
    return Column(name, TIME, "UTC", sentence, null)


def _count(name: str, sentence: str, unit: str = "count", null: str = _UNKNOWN) -> Column:
    return Column(name, pl.Int64(), unit, sentence, null)


def _number(name: str, unit: str, sentence: str, null: str = _UNKNOWN) -> Column:
    return Column(name, pl.Float64(), unit, sentence, null)


GPU_SAMPLES = Table(
    "gpu_samples",
    "one row per (node, gpu, mig, t)",
    ("node", "gpu", "mig", "t"),
    (_T, _NODE, _GPU, _MIG, *map(_counter_column, COUNTERS), _SEQ),
    sort=("node", "gpu", "mig", "t"),
    by_day=True,
)
NODE_SAMPLES = Table(
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
DEVICES = Table(
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
JOBS = Table(
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
        Column("exclusive", pl.Boolean(), "", "The job had its nodes to itself.", _UNKNOWN),
        _text("submit_line", "Submit line."),
        _number("time_precision_s", "s", "How coarse the recorded times are: 0 for whole seconds, 60 for minutes."),
        _SEQ,
    ),
    sort=("start", "job_id"),
)
ALLOCATIONS = Table(
    "allocations",
    "one row per (job, node, gpu) and interval; gpu null: on this node, which GPUs is not told",
    ("cluster", "job_id", "node", "gpu", "mig", "start", "provenance"),
    (
        _CLUSTER,
        _JOB_ID,
        _NODE,
        Column("gpu", pl.Int16(), "index", "Index of the GPU on its node.", "which GPUs is not told"),
        _MIG,
        _time("start", "First instant held.", "from the start of the job"),
        _time("end", "First instant no longer held.", "to the end of the job, or still held"),
        Column("provenance", pl.String(), "", "explicit, live_index or node_list: who says so.", None),
        _SEQ,
    ),
    sort=("node", "gpu", "start"),
)
REJECTS = Table(
    "rejects",
    "one row per (chunk, reason, column): what was removed on the way in",
    ("chunk", "target", "reason", "column"),
    (
        Column("chunk", pl.String(), "", "Which chunk was read.", None),
        _text("source", "Name of the source."),
        _text("origin", "File or address."),
        Column("target", pl.String(), "", "Table it was meant for.", None),
        Column("reason", pl.String(), "", "Why it was removed.", None),
        _text("column", "Column whose value was removed.", "the whole row was removed"),
        _count("removed", "How many rows or values.", "count"),
        _text("example", "One of them, as it was written.", "not kept"),
        _SEQ,
    ),
)

# Tables computed by `analyze` are declared beside the code that computes them: summarize.schema.
TABLES: Mapping[str, Table] = MappingProxyType(
    {table.name: table for table in (GPU_SAMPLES, NODE_SAMPLES, DEVICES, JOBS, ALLOCATIONS, REJECTS)}
)


@dataclass(frozen=True, slots=True)
class Conformed:
    """A frame in the table's schema (without `seq`) and what was removed to get there."""

    frame: pl.DataFrame
    rejects: tuple[Reject, ...] = field(default=())


def conform(
    frame: pl.DataFrame, table: Table, *, now: datetime, units: Mapping[str, str] | None = None, origin: str = ""
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


def _unit_of(table: Table, name: str) -> str:
    return next(column.unit for column in table.columns if column.name == name)


def _check_type(name: str, given: pl.DataType, wanted: pl.DataType, *, table: Table, origin: str) -> None:
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


def _remove_rows(frame: pl.DataFrame, table: Table, now: datetime) -> tuple[pl.DataFrame, list[Reject]]:
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
