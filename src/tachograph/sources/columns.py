"""Producers' column names: time, node, GPU, counters, device facts, LDMS host counters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

import polars as pl

from tachograph.catalog.counters import COUNTERS, HOST_COUNTERS, HOST_UNITS, outside_names

# what distinguishes the rows of one node and time, in order of preference, lower case
INSTANCE_NAMES = (
    "llite",
    "fs_name",
    "iface",
    "interface",
    "cpu",
    "name",
    "instance",
    "instance_name",
)
_ALIASES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"procstat": ("procstat2",), "procnetdev": ("procnetdev2",), "papi": ("papi_sampler",)}
)
# names that are ambiguous elsewhere: recognised where the file or the column names the sampler
_AMBIGUOUS = frozenset(
    {"user", "nice", "sys", "system", "idle", "iowait", "read_bytes", "write_bytes"}
)
_PREFIXES = ("", "ldms_", "nersc_ldms_")
_LUSTRE2_PREFIX = "client.lstats."
_PER_CORE = re.compile(
    r"^(?:per_core_(?P<core>[a-z_]+?)|(?P<papi>papi_[a-z0-9]+_[a-z]+))[._\[#]?(?P<copy>\d+)\]?$"
)
_TOTALS = ("cpu",)  # procstat2's row of the sum, beside cpu0, cpu1, ...
_LEFT_OUT = re.compile(r"^(lo\d*|(osc|mdc)\..*)$")
_SECOND = "second"
_LOAD = "load_average"


@dataclass(frozen=True, slots=True)
class HostColumns:
    """Columns whose sum is one counter, and their unit."""

    columns: tuple[str, ...]
    unit: str


@dataclass(frozen=True, slots=True)
class HostColumnMeaning:
    """Meaning of a column: counter, copy ("": the node's own), unit."""

    counter: str
    copy: str
    unit: str


def sampler_of(path: Path) -> str:
    """Return the sampler in a file's or folder's name, or "".

    >>> sampler_of(Path("csv/procstat-1763700000")), sampler_of(Path("procnetdev2/n1.csv")), sampler_of(Path("a.csv"))
    ('procstat', 'procnetdev', '')
    """
    for text in (path.name.lower(), path.parent.name.lower()):
        words = set(re.split(r"[^a-z0-9_]+", text)) | set(re.split(r"[^a-z0-9]+", text))
        for sampler in _samplers():
            if words & {sampler, *_ALIASES.get(sampler, ())}:
                return sampler
    return ""


@cache
def _samplers() -> tuple[str, ...]:
    return tuple(dict.fromkeys(sampler for counter in HOST_COUNTERS for sampler, _ in counter.ldms))


def host_column_meaning(name: str, sampler: str = "") -> HostColumnMeaning | None:
    """Return the meaning of a sampler's column, or None. `sampler`: of the file, if known.

    >>> host_column_meaning("rx_bytes#hsn0")
    HostColumnMeaning(counter='network_rx_bytes', copy='hsn0', unit='B')
    >>> host_column_meaning("user"), host_column_meaning("user", "procstat")
    (None, HostColumnMeaning(counter='cpu_user_s', copy='', unit='jiffy'))
    """
    lower = name.lower().strip()
    if lower in HOST_UNITS:
        return HostColumnMeaning(lower, "", HOST_UNITS[lower])
    if meaning := _names().get(lower) or _bare_names().get((sampler, lower)):
        return HostColumnMeaning(meaning[0], "", meaning[1])
    base, _, copy = lower.partition("#")
    if split := _PER_CORE.match(lower):
        base, copy = split["core"] or split["papi"], split["copy"]
    if not copy:
        return None
    meaning = _names().get(base) or next(
        (what for (_, metric), what in _bare_names().items() if metric == base), None
    )
    return HostColumnMeaning(meaning[0], copy, meaning[1]) if meaning else None


@cache
def _names() -> Mapping[str, tuple[str, str]]:
    """{lower-case name that needs no sampler: (counter, unit)}"""
    names: dict[str, tuple[str, str]] = {}
    for counter in HOST_COUNTERS:
        for sampler, metric in counter.ldms:
            what = (counter.name, counter.ldms_unit or counter.unit)
            for spelled in {metric.lower(), metric.lower().replace(".", "_")}:
                for of in (sampler, *_ALIASES.get(sampler, ())):
                    names |= {
                        f"{prefix}{of}{sign}{spelled}": what
                        for prefix in _PREFIXES
                        for sign in "_.:"
                    }
                names[_LUSTRE2_PREFIX + spelled] = what
                if spelled not in _AMBIGUOUS:
                    names[spelled] = what
    return MappingProxyType(names)


@cache
def _bare_names() -> Mapping[tuple[str, str], tuple[str, str]]:
    """{(sampler, metric in lower case): (counter, unit)}"""
    names: dict[tuple[str, str], tuple[str, str]] = {}
    for counter in HOST_COUNTERS:
        for sampler, metric in counter.ldms:
            what = (counter.name, counter.ldms_unit or counter.unit)
            of = [sampler, *(alias for alias, others in _ALIASES.items() if sampler in others)]
            names |= {(alias, metric.lower()): what for alias in of}
    return MappingProxyType(names)


def gathered(
    meanings: Iterable[tuple[str, HostColumnMeaning]],
) -> tuple[dict[str, HostColumns], list[str]]:
    """Return {counter: its columns}, and the columns that repeat one.

    Where the node's own value is there, its copies (per core) are part of it and not taken.
    """
    copies: dict[str, dict[str, tuple[str, str]]] = {}
    repeated: list[str] = []
    for name, means in meanings:
        of_counter = copies.setdefault(means.counter, {})
        if means.copy in of_counter:
            repeated.append(name)
        else:
            of_counter[means.copy] = (name, means.unit)
    taken: dict[str, HostColumns] = {}
    for counter, of_counter in copies.items():
        chosen_columns = (
            [of_counter[""]]
            if "" in of_counter
            else [of_counter[c] for c in of_counter if not _LEFT_OUT.match(c)]
        )
        if chosen_columns:
            taken[counter] = HostColumns(
                tuple(name for name, _ in chosen_columns), chosen_columns[0][1]
            )
    return taken, repeated


def host_values(
    rows: pl.DataFrame, host: Mapping[str, HostColumns], instance: pl.Series | None
) -> pl.DataFrame:
    """Return host counters per row of `rows`, or per node and second if their rows differ.

    Grain: `rows` holds t, node and the columns of `host`. A copy that was not read at some time
    counts with its value before (at the begin, with its first): a sum that fell or jumped because
    one was missing would look like a reset, or like traffic. Null where no copy was ever read.
    """
    several = False
    if instance is not None:  # some node has rows of several instances
        pairs = pl.DataFrame([rows["node"].alias("node"), instance.alias("instance")]).drop_nulls()
        several = pairs.n_unique() > pairs["node"].n_unique()
    alone = pl.repeat(None, rows.height, dtype=pl.String, eager=True)
    of = (instance.cast(pl.String) if instance is not None and several else alone).alias("instance")
    keyed = rows.with_columns(of)
    values = [
        _added_up(keyed, host_columns.columns).alias(counter)
        for counter, host_columns in host.items()
    ]
    values_by_row = keyed.select("t", "node", "instance").with_columns(
        _hundredths(v, host) for v in values
    )
    return _over_instances(values_by_row, list(host)) if several else values_by_row.drop("instance")


def _hundredths(values: pl.Series, host: Mapping[str, HostColumns]) -> pl.Series:
    """Scale loads that `loadavg` writes as whole hundredths."""
    if values.name != _LOAD or host[_LOAD].columns == (_LOAD,):
        return values
    numbers = values.cast(pl.Float64, strict=False)
    whole = bool((numbers == numbers.round()).all())
    return numbers / 100 if whole else values


def _added_up(rows: pl.DataFrame, columns: Sequence[str]) -> pl.Series:
    """Return the sum of columns; a single column is returned unchanged."""
    if len(columns) == 1:
        return rows[columns[0]]
    filled = rows.select(
        _number(rows, name)
        .forward_fill()
        .backward_fill()
        .over("node", "instance", order_by="t")
        .alias(name)
        for name in columns
    )
    nothing = pl.all_horizontal(pl.col(columns).is_null())
    return filled.select(_sum(pl.sum_horizontal(columns), nothing).alias("sum")).to_series()


def _number(rows: pl.DataFrame, name: str) -> pl.Expr:
    text = rows.schema[name] == pl.String
    return (pl.col(name).str.strip_chars() if text else pl.col(name)).cast(pl.Float64, strict=False)


def _sum(total: pl.Expr, nothing: pl.Expr) -> pl.Expr:
    return pl.when(~nothing).then(total)


def _over_instances(rows: pl.DataFrame, counters: list[str]) -> pl.DataFrame:
    """One row per node and second: sums over the distinguishing columns."""
    name = pl.col("instance").cast(pl.String).str.to_lowercase()
    total = name.is_in(_TOTALS)
    labelled = rows.with_columns(total.any().over("node").alias("summed"), name.alias("instance"))
    labelled = labelled.filter(
        pl.when("summed").then(total).otherwise(~name.str.contains(_LEFT_OUT.pattern))
    )
    numbers = [_number(labelled, counter).alias(counter) for counter in counters]
    timed = labelled.with_columns(numbers).with_columns(
        pl.col("t").dt.truncate("1s").alias(_SECOND)
    )
    of_instances = timed.group_by("node", _SECOND, "instance").agg(
        pl.col(counters).drop_nulls().last()
    )
    times = timed.group_by("node", _SECOND).agg(pl.col("t").max())
    grid = times.join(timed.select("node", "instance").unique(), on="node")
    full = grid.join(of_instances, on=["node", _SECOND, "instance"], how="left").with_columns(
        pl.col(counters).forward_fill().backward_fill().over("node", "instance", order_by="t")
    )
    sums = [
        _sum(pl.col(counter).sum(), pl.col(counter).is_null().all()).alias(counter)
        for counter in counters
    ]
    return full.group_by("node", "t").agg(sums).sort("node", "t").select("t", "node", *counters)


# in order of preference, lower case
TIME_NAMES = ("t", "ts_ns", "timestamp", "ts", "time", "#time", "datetime", "date_time")
NODE_NAMES = ("node", "hostname", "producername", "host", "nodename")
GPU_NAMES = ("gpu", "gpu_id", "gpuid", "gpu_index")
MIG_NAMES = ("mig", "gpu_i_id", "gpu_instance_id")
JOB_NAMES = (
    "jobid",
    "job_id",
    "job id",
    "slurm_job_id",
    "slurm_jobid",
    "slurm_job",
    "slurmjobid",
    "hpc_job",
    "hpc_jobid",
    "hpc_job_id",
    "jobidraw",
)
STEP_NAMES = (
    "step",
    "stepid",
    "step_id",
    "job_step",
    "jobstep",
    "slurm_step",
    "slurm_stepid",
    "slurm_step_id",
    "hpc_step",
    "srun_step",
)
NODE_VALUES: Mapping[str, str] = MappingProxyType(
    {
        "cpu_power": "cpu_power_w",
        "memory_power": "memory_power_w",
        "node_power": "node_power_w",
        "cpu_power_w": "cpu_power_w",
        "memory_power_w": "memory_power_w",
        "node_power_w": "node_power_w",
    }
)
DEVICE_VALUES: Mapping[str, str] = MappingProxyType(
    {
        "uuid": "uuid",
        "gpu_uuid": "uuid",
        "pci": "pci",
        "pci_bus_id": "pci",
        "model": "model",
        "modelname": "model",
        "gpu_model": "model",
        "hbm_mib": "hbm_mib",
        "nersc_ldms_dcgm_fb_total": "hbm_mib",
        "dcgm_fi_dev_fb_total": "hbm_mib",
    }
)
# row numbers, jobs of samples that are of no GPU, and LDMS's own bookkeeping;
# component_id is the number of the node, not of the GPU
IGNORED = frozenset(
    {"", "(last)", "index", "unnamed: 0", "__index_level_0__", "app_id", "userid", *JOB_NAMES}
    | {"component_id", "time_usec", "dt_usec", "seq"}
)


@dataclass(frozen=True, slots=True)
class RecognisedColumns:
    """A file's columns by meaning. Null: missing."""

    time: str | None
    node: str | None
    gpu: str | None
    mig: str | None
    counters: Mapping[str, tuple[str, str]]  # file column -> (counter, unit)
    node_values: Mapping[str, str]  # file column -> column of node_samples
    device_values: Mapping[str, str]  # file column -> column of devices
    host: Mapping[str, HostColumns]  # host counter -> the file's columns that add up to it
    # What distinguishes rows of one node, where host counters come in a row each.
    instance: str | None
    repeated: tuple[str, ...]  # a second column with the same values
    unknown: tuple[str, ...]
    job: str | None = None  # of samples of GPUs: the job that held it, and the step
    step: str | None = None

    @property
    def used(self) -> tuple[str, ...]:
        """Columns worth reading."""
        keys = (self.time, self.node, self.gpu, self.mig, self.instance, self.job, self.step)
        host = (name for host_columns in self.host.values() for name in host_columns.columns)
        key_columns = (name for name in keys if name is not None)
        return tuple(
            dict.fromkeys(
                (*key_columns, *self.counters, *self.node_values, *host, *self.device_values)
            )
        )


@cache
def counter_names() -> Mapping[str, tuple[str, str]]:
    """Return {lower-case name: (counter, unit)}: catalogue names, and LDMS names without prefix.

    >>> counter_names()["gpu_utilization"], counter_names()["gpu_power"]
    (('gpu_util', 'percent'), ('power_w', 'W'))
    """
    names = {name.lower(): meaning for name, meaning in outside_names().items()}
    for counter in COUNTERS:
        if counter.ldms_name and counter.ldms_unit:
            names.setdefault(counter.ldms_name, (counter.name, counter.ldms_unit))
    names["gpu_power"] = ("power_w", "W")
    return MappingProxyType(names)


def recognise(names: Iterable[str], sampler: str = "") -> RecognisedColumns:
    """Return the meaning of columns by name, ignoring case. `sampler`: LDMS sampler, if known.

    >>> found = recognise(["index", "#Time", "ProducerName", "gpu_id", "fb_used", "fan"])
    >>> found.time, found.node, found.gpu, dict(found.counters), found.unknown
    ('#Time', 'ProducerName', 'gpu_id', {'fb_used': ('hbm_used_mib', 'MiB')}, ('fan',))
    """
    repeated: list[str] = []
    name_of: dict[str, str] = {}
    for name in names:
        lower = name.lower().strip()
        if lower in name_of:
            repeated.append(name)
        else:
            name_of[lower] = name
    time = _first(name_of, TIME_NAMES)
    node = _first(name_of, NODE_NAMES)
    gpu = _first(name_of, GPU_NAMES)
    mig = _first(name_of, MIG_NAMES)
    job = _first(name_of, JOB_NAMES) if gpu else None
    step = _first(name_of, STEP_NAMES) if job else None
    counters: dict[str, tuple[str, str]] = {}
    node_values: dict[str, str] = {}
    device_values: dict[str, str] = {}
    hosts: list[tuple[str, HostColumnMeaning]] = []
    unknown: list[str] = []
    taken: set[str] = set()
    for lower, name in name_of.items():
        if name in (time, node, gpu, mig, job, step) or (
            lower in IGNORED and not (job and lower in JOB_NAMES)
        ):
            continue
        if job and lower in JOB_NAMES:
            repeated.append(name)
            continue
        meaning = counter_names().get(lower)
        into = meaning[0] if meaning else NODE_VALUES.get(lower) or DEVICE_VALUES.get(lower)
        if into is None and (of_host := host_column_meaning(name, sampler)):
            hosts.append((name, of_host))
        elif into is None:
            unknown.append(name)
        elif into in taken:
            repeated.append(name)
        elif meaning:
            counters[name] = meaning
        elif lower in NODE_VALUES:
            node_values[name] = into
        else:
            device_values[name] = into
        if into is not None:
            taken.add(into)
    host, again = gathered((name, means) for name, means in hosts if means.counter not in taken)
    instance = _first(name_of, INSTANCE_NAMES) if host and gpu is None else None
    if host:  # then node values are host counters, too
        for name, column in node_values.items():
            host[column] = HostColumns((name,), HOST_UNITS[column])
        node_values = {}
    unread = tuple(name for name in unknown if name != instance)
    second = (*repeated, *again)
    return RecognisedColumns(
        time,
        node,
        gpu,
        mig,
        counters,
        node_values,
        device_values,
        host,
        instance,
        second,
        unread,
        job,
        step,
    )


def _first(columns: Mapping[str, str], names: Iterable[str]) -> str | None:
    return next((columns[name] for name in names if name in columns), None)
