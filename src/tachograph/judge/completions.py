"""What a job that was measured in part may have done in the time without samples.

A verdict holds if it could not be the other way, whatever the unmeasured time held. So a job is
judged as it was measured, and again for each of FILLS: as if its GPUs had done that in all of the
unmeasured time. Whatever decides (checks, classes, rules, scores) sees tables of the same form and
need not know; `families.settled` compares the verdicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import polars as pl

from tachograph.catalog.counters import COUNTERS, Counter, CounterKind
from tachograph.catalog.devices import DEVICES_BY_NAME
from tachograph.catalog.tables import HOST_CHARACTERISTICS, OTHER_IMBALANCES
from tachograph.pipeline.summaries import JobTables
from tachograph.pipeline.timelines import ACTIVITY, AVERAGED
from tachograph.pipeline.timelines import WORK as WORK_COUNTERS

_MINUTE_S = 60.0
_ARITHMETIC = tuple(c.name for c in COUNTERS if c.name.startswith(("fp", "tensor")))
_IDLE_POWER, _WAITING_POWER = 0.1, 0.3  # of the highest; a collective that waits draws that much
_LINK_BYTES_PER_S = 1e13
_MOST_MINUTES = 1440  # after the last sample of a job that are judged: more would change no verdict


@dataclass(frozen=True, slots=True)
class Fill:
    """What GPUs may have done while nothing was measured.

    `values`: of counters between 0 and 1; others are 0. `power`: of the highest. `links`: they
    carried as much as can be. `errors`: errors happened, and levels were as high as can be. `who`:
    which GPUs of the job did it, by their mean activity; the others were idle. `bursts`: for three
    minutes of six.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    power: float = 1.0
    links: bool = False
    errors: bool = False
    who: Literal["all", "busiest", "least busy"] = "all"
    bursts: bool = False

    def fraction(self, name: str) -> float:
        """Return the value of a counter between 0 and 1 while it works."""
        return self.values.get(name, 0.0)

    @property
    def part(self) -> float:
        """The part of the time in which it works."""
        return 0.5 if self.bursts else 1.0


_FRACTIONS = tuple(c.name for c in COUNTERS if c.kind is CounterKind.FRACTION)
_ALL = dict.fromkeys(_FRACTIONS, 1.0)
_KERNELS = {"gpu_util": 1.0, "gr_engine_active": 1.0}
_TRAFFIC = {"dram_active": 1.0, "mem_copy_util": 1.0}
_PLAIN = {"fp64_active": 1.0, "fp32_active": 1.0, "fp16_active": 1.0}
_FEW = {"sm_active": 0.1, "sm_occupancy": 0.1, "dram_active": 0.02, "fp32_active": 0.02}
FILLS: tuple[Fill, ...] = (
    Fill(power=_IDLE_POWER),
    Fill(_ALL, links=True, errors=True),
    Fill(dict.fromkeys(_FRACTIONS, 0.5), power=0.5),
    Fill(_KERNELS, power=_WAITING_POWER),
    Fill(_KERNELS | _FEW, power=0.5),
    Fill(_KERNELS, power=_WAITING_POWER, links=True),
    Fill(_KERNELS | _TRAFFIC | {"sm_active": 1.0, "sm_occupancy": 1.0}),
    Fill(_KERNELS | _PLAIN | {"sm_active": 1.0}),
    Fill(_ALL, who="busiest"),
    Fill(_ALL, who="least busy"),
    Fill(_ALL, bursts=True),
)
_IDLE = FILLS[0]


def unmeasured(jobs: pl.DataFrame, timelines: pl.DataFrame) -> pl.DataFrame:
    """Return one row per job: the `share` of its GPU time without samples, and the longest gaps.

    `elapsed_s`: its run time. `begin`, `end`: minutes before the first and after the last measured
    one; `within`: the longest between two. Null where nothing was measured. Samples at the edges of
    a run may lie up to an interval apart from them, so one of each GPU may be missing. A sample
    whose interval is unknown is taken for a minute. `timelines`: one row per (job_key, minute), in
    order.
    """
    minutes = (
        timelines.lazy()
        .filter(pl.col("measured_gpus") > 0)
        .select("job_key", pl.col("minute").cast(pl.Int64))
    )
    stretches = minutes.group_by("job_key").agg(
        begin=pl.col("minute").min(),
        last=pl.col("minute").max(),
        within=pl.col("minute").sort().diff().max().fill_null(1) - 1,
    )
    ran = ((pl.col("as_of") - pl.col("start")).dt.total_seconds() / _MINUTE_S).ceil().cast(pl.Int64)
    edge = pl.col("interval_s") / pl.col("elapsed_s")
    single = 1.0 - _MINUTE_S / pl.col("elapsed_s")
    missing = pl.when(pl.col("samples") > 0).then(
        pl.coalesce(1.0 - pl.col("coverage") - edge, single)
    )
    return (
        jobs.lazy()
        .select(
            "job_key",
            "elapsed_s",
            share=missing.fill_nan(None).clip(0.0, 1.0).round(9).fill_null(0.0),
            ran=ran,
        )
        .join(stretches, on="job_key", how="left", maintain_order="left")
        .select(
            "job_key",
            "elapsed_s",
            "share",
            "begin",
            "within",
            end=(pl.col("ran") - 1 - pl.col("last")).clip(lower_bound=0),
        )
        .collect()
    )


@dataclass(frozen=True, slots=True)
class Completed:
    """Tables with further rows: jobs that were measured in part, completed with each of FILLS.

    `of`: `job_key` of each further row of jobs, and `job`, the key of the job that it is of.
    """

    tables: JobTables
    of: pl.DataFrame


def completed(tables: JobTables, gaps: pl.DataFrame, *, idle_util: float) -> Completed:
    """Return the tables, and behind them the completed jobs. `gaps`: from `unmeasured`."""
    partial = gaps.filter(pl.col("share") > 0)
    of = partial.select("job_key", job="job_key").clear()
    if not partial.height:
        return Completed(tables, of)
    edges = pl.col("begin").fill_null(1) + pl.col("end").fill_null(1) > 0
    jobs = tables.jobs.join(
        partial.select("job_key", _edges=edges), on="job_key", maintain_order="left"
    ).with_columns(
        _board=_highest_power(),
        _seconds=(pl.col("as_of") - pl.col("start")).dt.total_seconds(),
    )
    gpus, timelines, node_minutes = (
        frame.join(partial, on="job_key", how="semi", maintain_order="left")
        for frame in (tables.gpus, tables.timelines, tables.node_minutes)
    )
    gpus = _with_shares(gpus, jobs)
    minutes = _every_minute(jobs, gpus, timelines)
    host_minutes = _every_host_minute(jobs, node_minutes)
    parts = [(tables.jobs, tables.gpus, tables.timelines, tables.node_minutes)]
    for number, fill in enumerate(FILLS):
        filled = gpus.with_columns(**_counters(fill)).with_columns(**_derived(fill))
        whole = (
            _summaries(jobs, filled, fill),
            filled,
            _filled_minutes(minutes, fill, idle_util),
            _filled_host_minutes(host_minutes, fill),
        )
        key = pl.concat_str("job_key", pl.lit(f"\n{number}"))  # no key of a job has a line break
        of = of.vstack(partial.select(key.alias("job_key"), job="job_key"))
        parts.append(
            tuple(
                frame.with_columns(key).select(like.schema.names()).cast(dict(like.schema))
                for frame, like in zip(whole, parts[0], strict=True)
            )
        )
    jobs, gpus, timelines, node_minutes = (pl.concat(frames) for frames in zip(*parts, strict=True))
    return Completed(JobTables(jobs, gpus, timelines, node_minutes), of)


def _highest_power() -> pl.Expr:
    """Power that a GPU of the job may have drawn, W."""
    boards = {name: device.board_power_w for name, device in DEVICES_BY_NAME.items()}
    board = pl.col("gpu_model").replace_strict(boards, default=None, return_dtype=pl.Float64())
    return pl.max_horizontal(board, "power_w_max")


def _with_shares(gpus: pl.DataFrame, jobs: pl.DataFrame) -> pl.DataFrame:
    """The GPUs with their unmeasured `_share`, and what their job measured at all."""
    measured = {f"_has_{c.name}": pl.col(f"{c.name}_max").is_not_null() for c in COUNTERS}
    facts = jobs.select("job_key", "_board", "_edges", "elapsed_s", "interval_s", **measured)
    joined = gpus.join(facts, on="job_key", maintain_order="left")
    expected = pl.col("elapsed_s") / pl.coalesce("interval_s", pl.lit(_MINUTE_S))
    activity = pl.coalesce(f"{name}_mean" for name in ACTIVITY).fill_null(0.0)
    place = activity.rank("ordinal").over("job_key")
    return joined.with_columns(
        _share=(1.0 - (pl.col("samples").fill_null(0) + 1) / expected).clip(0.0, 1.0),
        _busiest=place == pl.len().over("job_key"),
        _least=place == 1,
    ).drop("elapsed_s", "interval_s")


def _counters(fill: Fill) -> dict[str, pl.Expr]:
    """Means and maxima of a GPU's counters over the whole time, where its job measured them."""
    does = {
        "all": pl.lit(value=True),
        "busiest": pl.col("_busiest"),
        "least busy": pl.col("_least"),
    }[fill.who]
    share = pl.col("_share")
    found: dict[str, pl.Expr] = {}
    for counter in COUNTERS:
        mean, most = pl.col(f"{counter.name}_mean"), pl.col(f"{counter.name}_max")
        then, at_rest = (_values(counter, one) for one in (fill, _IDLE))
        value, peak = (
            pl.when(does).then(one).otherwise(other)
            for one, other in zip(then, at_rest, strict=True)
        )
        has = pl.when(f"_has_{counter.name}")
        whole = pl.coalesce(mean * (1 - share) + value * share, value)
        found[f"{counter.name}_mean"] = has.then(whole)
        found[f"{counter.name}_max"] = has.then(
            pl.when(share > 0).then(pl.max_horizontal(most, peak)).otherwise(most)
        )
    return found


def _values(counter: Counter, fill: Fill) -> tuple[pl.Expr, pl.Expr]:
    """Mean and maximum of a counter in the time without samples."""
    mean, most = pl.col(f"{counter.name}_mean"), pl.col(f"{counter.name}_max")
    if counter.kind is CounterKind.FRACTION:
        value = fill.fraction(counter.name)
        return pl.lit(fill.part * value), pl.lit(value)
    if counter.name == "power_w":
        value = pl.col("_board") * fill.power
        return fill.part * value, value
    if counter.kind is CounterKind.RATE:
        value = pl.lit(counter.high if fill.links else 0.0)
        return value, value
    if counter.unit == "bitmask":
        bits = 2.0**32 - 1 if fill.errors else 0.0
        return pl.lit(float(fill.errors)), pl.lit(bits)
    if counter.kind is CounterKind.CUMULATIVE or counter.unit in ("code", "flag"):
        # What happens between two samples shows in the second: only the edges hide it.
        happened = pl.col("_edges").cast(pl.Float64) if fill.errors else pl.lit(0.0)
        return mean, most.fill_null(0.0) + happened
    return mean, pl.lit(counter.high) if fill.errors else most


def _derived(fill: Fill) -> dict[str, pl.Expr]:
    """What is made of a GPU's counters, which are completed already."""
    share = pl.col("_share")
    zeros = share * (1.0 if not fill.fraction("gpu_util") else 1.0 - fill.part)
    highest = pl.col("gpu_util_max")
    events = pl.col("_edges").cast(pl.Int64) if fill.errors else pl.lit(0)
    return {
        "zero_util_fraction": pl.when("_has_gpu_util").then(
            pl.col("zero_util_fraction").fill_null(0.0) * (1 - share) + zeros
        ),
        "temporal_imbalance": pl.when(highest > 0).then(1 - pl.col("gpu_util_mean") / highest),
        "hbm_peak_fraction": (pl.col("hbm_used_mib_max") / pl.col("hbm_mib")).clip(0.0, 1.0),
        "remapped_rows_uncorrectable_last": pl.col("remapped_rows_uncorrectable_last") + events,
        "xid_events": pl.col("xid_events") + events,
    }


def _summaries(jobs: pl.DataFrame, gpus: pl.DataFrame, fill: Fill) -> pl.DataFrame:
    """Return the rows of job_summaries over the whole time; `gpus` are completed."""
    means = [pl.col(f"{c.name}_mean").mean() for c in COUNTERS]
    peaks = [pl.col(f"{c.name}_max").max() for c in COUNTERS]
    summed = gpus.group_by("job_key").agg(
        *means,
        *peaks,
        pl.col("temporal_imbalance", "hbm_peak_fraction").max(),
        pl.col("zero_util_fraction").mean(),
        pl.col("xid_events").sum(),
        gpus_never_used=(pl.col("gpu_util_max") == 0).sum().cast(pl.Int64),
        _share=pl.col("_share").mean(),
        _rows=pl.len(),
    )
    names = [name for name in summed.columns if not name.startswith("_") and name != "job_key"]
    joined = jobs.join(summed, on="job_key", how="left", suffix="_whole", maintain_order="left")
    # of what the job never measured nothing is known now
    whole = joined.with_columns(
        pl.when(pl.col(name).is_not_null()).then(f"{name}_whole").alias(name) for name in names
    )
    return whole.with_columns(
        coverage=1.0,
        gpus_seen=pl.coalesce("gpus", "gpus_seen"),
        **_imbalances(fill),
        **_at_work(fill),
    )


def _imbalances(fill: Fill) -> dict[str, pl.Expr]:
    """Imbalance over GPUs: a mean over windows with activity."""
    counted = (1 - pl.col("_share")) * (1 - pl.col("spatial_zero_fraction").fill_null(0.0))
    several = pl.when(pl.col("_rows") > 1)
    found: dict[str, pl.Expr] = {}
    for name in ("gpu_util", *OTHER_IMBALANCES):
        column = "spatial_imbalance" if name == "gpu_util" else f"spatial_imbalance_{name}"
        added = pl.col("_share") * (fill.part if fill.fraction(name) else 0.0)
        lag = pl.lit(0.0) if fill.who == "all" else 1 - 1 / pl.col("_rows")
        known = pl.col(column).fill_null(0.0) * counted
        found[column] = several.then((known + lag * added) / (counted + added))
    return {name: value.fill_nan(None) for name, value in found.items()}


def _at_work(fill: Fill) -> dict[str, pl.Expr]:
    """What was active while the job worked, and for which part of the time."""
    pipe = max(fill.fraction(name) for name in _ARITHMETIC)
    traffic = fill.fraction("dram_active")
    worked = pl.col("work_fraction").fill_null(0.0) * (1 - pl.col("_share"))
    if not pipe and not traffic:
        return {"work_fraction": pl.when(pl.col("work_fraction").is_not_null()).then(worked)}
    added = fill.part * pl.col("_share")
    work = worked + added
    values = {"main_pipe_at_work": pipe, "dram_at_work": traffic}
    found = {
        name: (pl.col(name).fill_null(0.0) * worked + value * added) / work
        for name, value in values.items()
    }
    found["work_fraction"] = work
    return {name: pl.when(pl.col("main_pipe").is_not_null()).then(v) for name, v in found.items()}


def _every_minute(jobs: pl.DataFrame, gpus: pl.DataFrame, timelines: pl.DataFrame) -> pl.DataFrame:
    """Return one row per job and minute of its run, with `_missing`, its GPUs without samples.

    Where samples come less often than once a minute, those around a minute stand for it. The last
    minute counts where it is long enough for a sample.
    """
    last = timelines.group_by("job_key").agg(_last=pl.col("minute").max().cast(pl.Int64))
    run_s = pl.min_horizontal(
        "_seconds", (pl.col("_last").fill_null(0) + _MOST_MINUTES) * _MINUTE_S
    )
    jobs = jobs.join(last, on="job_key", how="left", maintain_order="left").with_columns(
        _seconds=run_s
    )
    interval = pl.coalesce("interval_s", pl.lit(_MINUTE_S))
    held = gpus.group_by("job_key").agg(_held=pl.len(), _seen=(pl.col("samples") > 0).sum())
    has = {
        f"_has_{name}": pl.col(name).is_not_null().any()
        for name in timelines.columns
        if name not in ("job_key", "minute")
    }
    facts = (
        jobs.select(
            "job_key",
            "_board",
            _run_s=pl.col("_seconds"),
            _interval=interval,
            _stands_for=(1.5 * interval / _MINUTE_S).floor().cast(pl.Int32),
        )
        .join(held, on="job_key", maintain_order="left")
        .join(timelines.group_by("job_key").agg(**has), on="job_key", maintain_order="left")
    )
    every = facts.with_columns(
        minute=pl.int_ranges(0, (pl.col("_run_s") / _MINUTE_S).ceil().cast(pl.Int32))
    ).explode("minute", empty_as_null=False)
    every = every.with_columns(pl.col("minute").cast(pl.Int32)).join(
        timelines, on=["job_key", "minute"], how="left", maintain_order="left"
    )
    measured = pl.col("measured_gpus").fill_null(0)
    seen = pl.when(measured > 0).then("minute")
    nearest = pl.min_horizontal(
        pl.col("minute") - seen.forward_fill().over("job_key"),
        seen.backward_fill().over("job_key") - pl.col("minute"),
    )
    inside = pl.min_horizontal(_MINUTE_S, pl.col("_run_s") - pl.col("minute") * _MINUTE_S)
    long_enough = inside >= pl.min_horizontal("_interval", _MINUTE_S)
    unseen = pl.when(pl.col("_stands_for") == 0).then(measured).otherwise("_seen")
    missing = (
        pl.when(measured > 0)
        .then((pl.col("_held") - unseen).clip(lower_bound=0))
        .when((nearest > pl.col("_stands_for")) & long_enough)
        .then("_held")
        .otherwise(0)
    )
    counts = ("measured_gpus", "idle_gpus", "active_sum", "idle_power_w")
    every = every.with_columns(pl.col(*counts).fill_null(0), _missing=missing.cast(pl.Int32))
    return every.filter(pl.col("measured_gpus") + pl.col("_missing") > 0)


def _filled_minutes(every: pl.DataFrame, fill: Fill, idle_util: float) -> pl.DataFrame:
    """Return the minutes as if the GPUs without samples had done what `fill` says."""
    missing, measured = pl.col("_missing"), pl.col("measured_gpus")
    doing = missing if fill.who == "all" else missing.clip(upper_bound=1)
    if fill.bursts:
        doing = doing * (pl.col("minute") // 3 % 2)
    resting = missing - doing
    active = fill.fraction(ACTIVITY[0])
    idle = resting if active >= idle_util else missing
    most = {name: fill.fraction(name) for name in ACTIVITY}
    most |= {"busy": active, "work": max(fill.fraction(name) for name in WORK_COUNTERS)}
    watts = pl.col("_board") * (fill.power * doing + _IDLE_POWER * resting)
    added = {f"mean_{name}": doing * fill.fraction(name) for name in AVERAGED}
    added |= dict.fromkeys(("mean_power_w", "power_w"), watts)
    added |= {
        f"mean_{link}": doing * (_LINK_BYTES_PER_S if fill.links else 0.0)
        for link in ("pcie", "nvlink")
    }
    changed: dict[str, pl.Expr] = {}
    for name, value in most.items():
        changed[name] = pl.max_horizontal(name, pl.when(doing > 0).then(value).otherwise(0.0))
    for name, total in added.items():
        changed[name] = (pl.col(name).fill_null(0.0) * measured + total) / (measured + missing)
    filled = every.with_columns(
        pl.when((missing > 0) & pl.col(f"_has_{name}"))
        .then(value)
        .otherwise(name)
        .cast(every.schema[name])
        .alias(name)
        for name, value in changed.items()
    )
    sums = {
        "measured_gpus": measured + missing,
        "idle_gpus": pl.col("idle_gpus") + idle,
        "active_sum": pl.col("active_sum") + active * (missing - idle),
        "idle_power_w": pl.col("idle_power_w") + idle * pl.col("_board") * _IDLE_POWER,
    }
    return filled.with_columns(
        pl.coalesce(value, name).cast(every.schema[name]).alias(name)
        for name, value in sums.items()
    )


def _every_host_minute(jobs: pl.DataFrame, node_minutes: pl.DataFrame) -> pl.DataFrame:
    """Return one row per job, node and minute of the run; null: not measured."""
    if not node_minutes.height:
        return node_minutes
    spans = jobs.select("job_key", _minutes=(pl.col("_seconds") / _MINUTE_S).floor().cast(pl.Int32))
    nodes = node_minutes.select("job_key", "node").unique(maintain_order=True)
    every = nodes.join(spans, on="job_key", maintain_order="left").with_columns(
        minute=pl.int_ranges(0, "_minutes")
    )
    every = every.explode("minute", empty_as_null=False).with_columns(
        pl.col("minute").cast(node_minutes.schema["minute"])
    )
    keys = ["job_key", "node", "minute"]
    return every.join(node_minutes, on=keys, how="full", coalesce=True, maintain_order="left").sort(
        keys
    )


def _filled_host_minutes(every: pl.DataFrame, fill: Fill) -> pl.DataFrame:
    """Return the minutes of nodes: what is missing was at rest, lively, or like its neighbours."""
    node = ("job_key", "node")
    filled: list[pl.Expr] = []
    for name in (name for name in HOST_CHARACTERISTICS if name in every.columns):
        value = pl.col(name)
        if fill.errors:
            lively = 2 * value.max().over(node) * (pl.col("minute") % 2)
            filled.append(value.fill_null(lively))
        elif not fill.values:
            filled.append(value.fill_null(value.min().over(node) * 0))
        else:
            filled.append(value.forward_fill().backward_fill().over(node))
    return every.with_columns(filled)
