"""Metrics that rules may name, and their values of many jobs at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from tachograph.catalog.arrays import Flags, Longs
from tachograph.catalog.counters import COUNTERS, COUNTERS_BY_NAME, CounterKind
from tachograph.catalog.tables import (
    HOST_CHARACTERISTICS,
    JOB_SUMMARIES,
    JUDGED,
    PIPES,
    RATE_VOLUMES,
    SCORES,
)
from tachograph.judge.limiter import of_model
from tachograph.judge.rules.model import LONGEST_TEXT, RuleLevel, RuleMetric
from tachograph.pipeline.timelines import ACTIVITY

# Columns that rows are given.
ACTIVITY_MEAN, ACTIVITY_MAX, ELAPSED = "activity_mean", "activity_max", "_elapsed_s"
# Bits of throttle_reasons: hardware and thermal slowdown; power limits.
_HEAT, _POWER = 0x8 | 0x20 | 0x40, 0x4 | 0x80
_TIER = r"(?i)^(\d+)\s*g"
_TEXTS = ("state", "partition", "qos", "gpu_model", "attribution")
_NEVER_ZERO = frozenset(
    {
        "number_of_available_compute_units",
        "numberOfProcesses",
        "number_of_nodes",
        "walltime",
        "jobWallTime",
        "time_limit",
        "node_gpus",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered(RuleMetric):
    """An offered metric: value `of` the rows of its level; null without its `needs`."""

    sentence: str
    needs: tuple[str, ...]
    of: pl.Expr


def _offered(
    level: RuleLevel, name: str, unit: str, sentence: str, of: pl.Expr, *needs: str
) -> Offered:
    is_text, is_positive = name in _TEXTS, name in _NEVER_ZERO
    return Offered(name, level, unit, is_text, is_positive, sentence=sentence, needs=needs, of=of)


_job, _gpu = partial(_offered, "job"), partial(_offered, "gpu")


def _node(name: str, *described: Any) -> Offered:
    return _offered("node", f"node_{name}", *described)


def _all(column: str, total: pl.Expr) -> pl.Expr:
    """`total` over a node's GPUs, null if one of them does not report `column`."""
    return pl.when(pl.col(column).is_not_null().all()).then(total)


def _positive(column: str) -> pl.Expr:
    """The column, with null for 0, which means unknown."""
    return pl.when(pl.col(column) > 0).then(pl.col(column))


def _any_bit(mask: int) -> pl.Expr:
    """1 where any bit of `mask` is among the reasons seen, else 0."""
    return (pl.col("throttle_reasons_max").cast(pl.Int64) & mask).ne(0).cast(pl.Float64)


_RUN_TIME = pl.col(ELAPSED)
_WORK = pl.col(ACTIVITY_MEAN) * _RUN_TIME
_WORK_SENTENCE = "GPU-seconds of activity: mean activity x run time of the job."
_PCIE, _NVLINK = (
    pl.col(f"{link}_tx_bytes") + pl.col(f"{link}_rx_bytes") for link in ("pcie", "nvlink")
)
_BOTH = {link: (f"{link}_tx_bytes_per_s", f"{link}_rx_bytes_per_s") for link in ("pcie", "nvlink")}
_LINKS = {
    link: pl.col(f"{link}_tx_bytes_per_s_mean") + pl.col(f"{link}_rx_bytes_per_s_mean")
    for link in ("pcie", "nvlink")
}

COMPUTED: tuple[Offered, ...] = (
    _job("number_of_available_compute_units", "count", "GPUs of the job.", _positive("gpus"), "gpus"),
    _job("number_of_nodes", "count", "Nodes of the job.", _positive("nodes"), "nodes"),
    _job("walltime", "s", "Run time.", _positive("elapsed_s"), "elapsed_s"),
    _job("numberOfProcesses", "count", "number_of_available_compute_units, as published.", _positive("gpus"), "gpus"),
    _job("jobWallTime", "s", "walltime, as published.", _positive("elapsed_s"), "elapsed_s"),
    _job("time_limit", "s", "Requested time limit.", _positive("timelimit_s"), "timelimit_s"),
    _job(
        "hbm_requested_gb",
        "GB",
        "Memory tier of the GPU that was requested; 0: none was requested.",
        pl.col("hbm_request").str.extract(_TIER).cast(pl.Float64).fill_null(0.0),
    ),
    _job("activity_mean", "fraction", "Activity of its GPUs, mean.", pl.col(ACTIVITY_MEAN), ACTIVITY[0]),
    _job("activity_max", "fraction", "Activity, highest sample of any GPU.", pl.col(ACTIVITY_MAX), ACTIVITY[0]),
    _job("pcie_bytes_per_s", "B/s", "PCIe traffic of a GPU, both ways, mean.", _LINKS["pcie"], *_BOTH["pcie"]),
    _job("nvlink_bytes_per_s", "B/s", "NVLink traffic of a GPU, both ways, mean.", _LINKS["nvlink"], *_BOTH["nvlink"]),
    _job("throttled_fraction", "fraction", ("Share of samples in which clocks were lowered for heat or "
    "power."),
         pl.col("throttle_reasons_mean"), "throttle_reasons"),
    _job("throttled_for_heat", "flag", "1: heat or a hardware slowdown was among the reasons.",
         _any_bit(_HEAT), "throttle_reasons"),
    _job("throttled_for_power", "flag", "1: the power limit or power brake was among the reasons.",
         _any_bit(_POWER), "throttle_reasons"),
    _gpu("work", "s", _WORK_SENTENCE, _WORK, ACTIVITY[0]),
    _gpu("gpu_work_s", "s", _WORK_SENTENCE, _WORK, ACTIVITY[0]),
    _gpu("idle_s", "s", "GPU-seconds without activity.", _RUN_TIME - _WORK, ACTIVITY[0]),
    _gpu("sm_work_s", "s", "GPU-seconds of SM activity.", pl.col("sm_active_mean") * _RUN_TIME, "sm_active"),
    _gpu("tensor_work_s", "s", "GPU-seconds of activity of the tensor pipes.",
         pl.col("tensor_active_mean") * _RUN_TIME, "tensor_active"),
    _gpu("activity", "fraction", "Activity, mean over time.", pl.col(ACTIVITY_MEAN), ACTIVITY[0]),
    _gpu("activity_peak", "fraction", "Activity, highest sample.", pl.col(ACTIVITY_MAX), ACTIVITY[0]),
    _gpu("gpu_pcie_bytes", "B", "PCIe bytes, both ways.",
         _LINKS["pcie"] * _RUN_TIME, *_BOTH["pcie"]),
    _gpu("gpu_nvlink_bytes", "B", "NVLink bytes, both ways.", _LINKS["nvlink"] * _RUN_TIME, *_BOTH["nvlink"]),
    _gpu("gpu_throttled_fraction", "fraction", ("Share of samples in which clocks were lowered for heat or "
    "power."),
         pl.col("throttle_reasons_mean"), "throttle_reasons"),
    _gpu("gpu_throttled_for_heat", "flag", "1: heat or a hardware slowdown was among the reasons.",
         _any_bit(_HEAT), "throttle_reasons"),
    _gpu("gpu_throttled_for_power", "flag", ("1: the power limit or power brake was among the "
    "reasons."),
         _any_bit(_POWER), "throttle_reasons"),
    _gpu("gpu_power_limit_fraction", "fraction", "Highest power over the power limit of its board, of the catalogue.",
         pl.col("power_w_max") / of_model("board_power_w"), "power_w", "gpu_model"),
    _gpu("gpu_energy_j", "J", "Energy, while it was measured.", pl.col("energy_j"), "energy_j", "power_w"),
    _gpu("gpu_hbm_mib", "MiB", "Capacity of its memory.", pl.col("hbm_mib"), "gpu_model"),
    _gpu("gpu_hbm_peak_fraction", "fraction", "Peak of memory used over capacity.", pl.col("hbm_peak_fraction"),
         "hbm_used_mib"),
    _gpu("gpu_zero_util_fraction", "fraction", "Share of samples with utilisation zero.",
         pl.col("zero_util_fraction"), "gpu_util"),
    _gpu("gpu_temporal_imbalance", "fraction", "1 - mean / max of utilisation.", pl.col("temporal_imbalance"),
         "gpu_util"),
    _gpu("gpu_xid_events", "count", "Changes of the XID code.", pl.col("xid_events"), "xid"),
    _node("gpu_work_s", "s", "GPU-seconds of activity of its GPUs, added up.", _all(ACTIVITY_MEAN, _WORK.sum()),
          ACTIVITY[0]),
    _node("gpus", "count", "GPUs that the job held on it.", pl.len()),
    _node("activity", "fraction", "Activity of its GPUs, mean.", _all(ACTIVITY_MEAN, pl.col(ACTIVITY_MEAN).mean()),
          ACTIVITY[0]),
    _node("power_w", "W", "Power of its GPUs, mean over time, added up.", _all("power_w_mean", pl.sum("power_w_mean")),
          "power_w"),
    _node("gpu_energy_j", "J", "Energy of its GPUs, added up.", _all("energy_j", pl.sum("energy_j")),
          "energy_j"),
    _node("hbm_used_mib_max", "MiB", "Most memory used on one of its GPUs.",
          _all("hbm_used_mib_max", pl.max("hbm_used_mib_max")), "hbm_used_mib"),
    *(
        _node(name, unit, f"Mean over the job of {counter}, as in job_node_minutes.", pl.col(name), counter)
        for name, (unit, counter) in HOST_CHARACTERISTICS.items()
    ),
)  # fmt: skip

_OF_OTHERS: Mapping[str, tuple[str, ...]] = {
    "elapsed_s": ("elapsed_s",),
    "timelimit_s": ("timelimit_s",),
    "nodes": ("nodes",),
    "gpus": ("gpus",),
    "gpu_hours": ("elapsed_s",),
    "hbm_mib": ("gpu_model",),
    "hbm_peak_fraction": ("hbm_used_mib",),
    "energy_j": ("energy_j", "power_w"),
    "power_w_sampled_mean": ("power_w",),
    "score_gpu": ("sm_occupancy",),
    "score_gpumem": ("dram_active", "sm_active"),
    "score_gpumem_normalized": ("dram_active", "sm_active"),
    "xid_events": ("xid",),
    "xid_event_max": ("xid",),
}
# codes and counts of rows are no quantities; what is judged later than rules is not there yet
_NOT_OFFERED = frozenset({"gpu", "mig", "seq", "xid_mean", *JUDGED} - set(SCORES))


def _needs(column: str) -> tuple[str, ...]:
    """What a column of summaries is made of: counters, or columns of accounting."""
    if column in _OF_OTHERS:
        return _OF_OTHERS[column]
    stem = column.removesuffix("_mean").removesuffix("_max")
    if stem in COUNTERS_BY_NAME:
        return (stem,)
    if f"{column}_per_s" in RATE_VOLUMES:
        return (f"{column}_per_s",)
    for counter in COUNTERS_BY_NAME:
        if column.endswith(f"_imbalance_{counter}"):
            return (counter,)
    if column.startswith(("compute_fraction", "memory_fraction", "idle_fraction")):
        pipe = next(
            (counter for name, counter in PIPES.items() if column.endswith(f"_{name}")),
            PIPES["fp64"],
        )
        return ("dram_active", pipe)
    return (ACTIVITY[0],)


def _of_summaries() -> Iterator[Offered]:
    """Numbers of job_summaries and some of its texts, under their own names."""
    taken = {metric.name for metric in COMPUTED}
    for column in JOB_SUMMARIES.columns:
        name = column.name
        if name in _TEXTS:
            yield _job(name, "text", column.sentence, pl.col(name), name)
        elif column.dtype.is_numeric() and name not in _NOT_OFFERED | taken:
            yield _job(name, column.unit, column.sentence, pl.col(name), *_needs(name))


def _of_counters() -> Iterator[Offered]:
    """GPU counters: over the whole job, and the largest sample; non-quantities left out."""
    for counter in COUNTERS:
        name, needs = counter.name, (counter.name,)
        if counter.unit in ("bitmask", "code") or name == "energy_j":
            continue
        if counter.kind is CounterKind.CUMULATIVE:
            yield _gpu(
                name,
                counter.unit,
                f"Increase of {name} over the job.",
                pl.col(f"{name}_mean"),
                *needs,
            )
            continue
        yield _gpu(name, counter.unit, f"Mean of {name} over time.", pl.col(f"{name}_mean"), *needs)
        yield _gpu(
            f"{name}_peak",
            counter.unit,
            f"Largest sample of {name}.",
            pl.col(f"{name}_max"),
            *needs,
        )


OFFERED: Mapping[str, Offered] = {
    metric.name: metric for metric in (*COMPUTED, *_of_summaries(), *_of_counters())
}
# those that are made of job_node_minutes
OF_HOSTS = frozenset(f"node_{name}" for name in HOST_CHARACTERISTICS)


_LABEL = "_label"
# Of a job's samples: with fewer a mean times the run time is extrapolated rather than measured.
ENOUGH = 0.5


@dataclass(frozen=True, slots=True)
class MeasuredRanks:
    """Metrics of jobs, of their GPUs and of their nodes, in order of jobs (`model.JobMetrics`).

    tables: by level, with a column per metric. counts: ranks of each job.
    """

    count: int
    tables: Mapping[str, pl.DataFrame]
    counts: Mapping[str, Longs]

    def rank_counts(self, level: RuleLevel) -> Longs:
        """Return the number of GPUs or nodes of each job."""
        return self.counts[level]

    def labels(self, level: RuleLevel) -> Sequence[str]:
        """Return the names of all GPUs or nodes."""
        return self.tables[level].get_column(_LABEL).to_list() if level in self.tables else []

    def values(self, metric: str, level: RuleLevel, *, is_text: bool) -> tuple[Flags, Any]:
        """Return which values of a metric are known, and the values; null and NaN are unknown."""
        column = self.tables[level].get_column(metric)
        if is_text:
            texts = column.cast(pl.String).str.slice(0, LONGEST_TEXT)
            return texts.is_not_null().to_numpy(), texts.to_numpy()
        numbers = column.cast(pl.Float64).to_numpy()
        return np.isfinite(numbers), numbers


def measure(
    jobs: pl.DataFrame, gpus: pl.DataFrame, node_minutes: pl.DataFrame, names: Collection[str]
) -> MeasuredRanks:
    """Return the metrics called `names` of `jobs`, in their order.

    `jobs`: rows of job_summaries. `gpus`, `node_minutes`: their rows of job_gpus and
    job_node_minutes. A GPU or node of which nothing was recorded is there, with nulls.
    """
    wanted: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        wanted[OFFERED[name].level].append(name)
    rows = jobs.with_columns(
        _activity("mean").alias(ACTIVITY_MEAN), _activity("max").alias(ACTIVITY_MAX)
    )
    tables = {"job": rows.select(OFFERED[name].of.alias(name) for name in wanted["job"])}
    if not wanted["gpu"] and not wanted["node"]:
        none = np.zeros(jobs.height, np.int64)
        return MeasuredRanks(jobs.height, tables, {"gpu": none, "node": none})
    devices = _devices(jobs, gpus)
    metrics = [OFFERED[name].of.alias(name) for name in wanted["gpu"]]
    places = jobs.select("job_key").with_row_index("_place")
    counts = {}
    for level, frame in (
        ("gpu", devices.select("job_key", _LABEL, *metrics)),
        ("node", _nodes(devices, node_minutes, wanted["node"])),
    ):
        of_jobs = places.join(frame, on="job_key", maintain_order="left_right")
        tables[level] = of_jobs
        counts[level] = np.bincount(of_jobs.get_column("_place").to_numpy(), minlength=jobs.height)
    return MeasuredRanks(jobs.height, tables, counts)


def _activity(statistic: str, of: str = "") -> pl.Expr:
    """Statistic of the best-known counter in ACTIVITY that was measured for the whole job."""
    choice = pl.lit(None, dtype=pl.Float64())
    for counter in reversed(ACTIVITY):
        known = pl.col(f"{counter}_mean{of}").is_not_null()
        choice = pl.when(known).then(pl.col(f"{counter}_{statistic}")).otherwise(choice)
    return choice


def _devices(jobs: pl.DataFrame, gpus: pl.DataFrame) -> pl.DataFrame:
    """Rows of job_gpus with activity, run time, labels (with node if there are several).

    The run time is null where not ENOUGH was measured.
    """
    known = [pl.col(f"{counter}_mean").alias(f"{counter}_mean_of_job") for counter in ACTIVITY]
    hardly = (pl.col("coverage") < ENOUGH).fill_null(value=False)
    run_time = pl.when(~hardly).then("elapsed_s").alias(ELAPSED)
    of_job = jobs.select("job_key", run_time, *known)
    rows = gpus.join(of_job, on="job_key", how="inner").sort("job_key", "node", "gpu", "mig")
    one_node = (pl.col("node").first() == pl.col("node").last()).over("job_key")
    piece = pl.concat_str(pl.lit("/"), pl.col("mig")).fill_null("")
    name = pl.concat_str(pl.lit("GPU "), pl.col("gpu"), piece)
    return rows.with_columns(
        _activity("mean", "_of_job").alias(ACTIVITY_MEAN),
        _activity("max", "_of_job").alias(ACTIVITY_MAX),
        pl.when(one_node)
        .then(name)
        .otherwise(pl.concat_str(pl.col("node"), pl.lit(" "), name))
        .alias(_LABEL),
    )


def _nodes(devices: pl.DataFrame, minutes: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """One row per (job_key, node): its name and metrics of nodes."""
    host = minutes.group_by("job_key", "node").agg(
        pl.col(name).mean() for name in HOST_CHARACTERISTICS
    )
    of_host = {name for name in names if name.removeprefix("node_") in HOST_CHARACTERISTICS}
    of_gpus = [OFFERED[name].of.alias(name) for name in names if name not in of_host]
    nodes = devices.group_by("job_key", "node", maintain_order=True).agg(*of_gpus)
    joined = nodes.join(host, on=["job_key", "node"], how="left", maintain_order="left")
    own = [name if name not in of_host else OFFERED[name].of.alias(name) for name in names]
    return joined.select("job_key", pl.col("node").alias(_LABEL), *own)
