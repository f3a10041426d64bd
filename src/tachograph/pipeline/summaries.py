"""Accumulators to one row per GPU and per job: every metric of the study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec
import numpy as np
import polars as pl

from tachograph.catalog.config import AnalysisOptions, StudyFilters
from tachograph.catalog.counters import COUNTERS, Counter, CounterKind
from tachograph.catalog.mig import mig_share
from tachograph.catalog.table_columns import ENERGY, RECORDED_USE
from tachograph.catalog.tables import (
    FINDINGS,
    JOB_GPUS,
    JOB_SUMMARIES,
    OTHER_IMBALANCES,
    PIPES,
    RATE_VOLUMES,
    RESOURCES,
    WINDOWED,
    LimitingResource,
)
from tachograph.lake.conform import in_schema
from tachograph.lake.places import without_places
from tachograph.pipeline.accumulators import SEGMENT_KEY, Accumulators, counted_by_time
from tachograph.pipeline.kernel import APART
from tachograph.pipeline.statistics import (
    AREA,
    BITS,
    BORDERS,
    COMPUTE,
    EVENTS,
    GROWN,
    HIGHEST,
    HIGHEST_NEW,
    LABEL,
    LAST,
    LOWERED,
    MEMORY,
    SAMPLES,
    SECONDS,
    SQUARE,
    SQUARED,
    TOTAL,
    ZEROS,
    seconds_between,
    statistics_of,
)
from tachograph.pipeline.windows import mean_imbalance


@dataclass(frozen=True, slots=True)
class JobTables:
    """Computed rows of some jobs, without `seq`.

    jobs: rows of job_summaries. gpus: their rows of job_gpus. timelines: one row per (job_key,
    minute), in order, as `merge_timelines` returns them. node_minutes: HOST_CHARACTERISTICS, one
    row per (job_key, node, minute), in order; none where no host counter was recorded. findings:
    none before the jobs are judged.
    """

    jobs: pl.DataFrame
    gpus: pl.DataFrame
    timelines: pl.DataFrame
    node_minutes: pl.DataFrame
    findings: pl.DataFrame = field(default_factory=lambda: FINDINGS.empty().drop("seq"))


def summarize(
    complete: Accumulators,
    held: pl.DataFrame,
    runs: pl.DataFrame,
    facts: pl.DataFrame,
    node_minutes: pl.DataFrame,
    host_use: pl.DataFrame,
    *,
    analysis: AnalysisOptions,
    filters: StudyFilters,
    now: datetime,
) -> JobTables:
    """Return summaries of `runs` from all their samples, not judged yet.

    `held`, `facts`: see `summarize_gpus`. `node_minutes`: of these runs. `host_use`: see
    `summarize_jobs`.
    """
    gpus = summarize_gpus(complete.segments, held, runs, facts, analysis=analysis)
    jobs = summarize_jobs(
        runs,
        gpus,
        complete.intensities,
        complete.windows.settled,
        host_use,
        analysis=analysis,
        filters=filters,
        now=now,
    )
    timelines = complete.timeline.join(
        runs.select("run", "job_key"), on="run", maintain_order="left"
    )
    return JobTables(jobs, without_places(in_schema(gpus, JOB_GPUS)), timelines, node_minutes)


def excluded(filters: StudyFilters) -> pl.Expr:
    """Return the reasons of each job, joined with a comma; null: it is in the study."""
    reasons: dict[str, pl.Expr] = {
        "ambiguous_attribution": pl.col("attribution") == "ambiguous",
        "still_running": pl.col("end").is_null(),
        "no_samples": pl.col("samples") == 0,
    }
    if filters.min_elapsed_s:
        reasons["short"] = pl.col("elapsed_s") < filters.min_elapsed_s
    if filters.min_gpu_util_mean:
        reasons["idle"] = pl.col("gpu_util_mean") < filters.min_gpu_util_mean
    if filters.gpu_partitions:
        reasons["other_partition"] = ~pl.col("partition").is_in(list(filters.gpu_partitions))
    if filters.staff_accounts:
        reasons["staff_account"] = pl.col("account").is_in(list(filters.staff_accounts))
    if filters.login_nodes:
        reasons["login_node"] = pl.col("node_list").is_in(list(filters.login_nodes))
    named = [pl.when(test).then(pl.lit(name)) for name, test in reasons.items()]
    joined = pl.concat_str(named, separator=",", ignore_nulls=True)
    return pl.when(joined != "").then(joined)


COARSE_S = 60.0
# Of its interval; where the mean time of a sample is less, many came sooner.
DENSER = 0.99


def summarize_gpus(
    segments: pl.DataFrame,
    held: pl.DataFrame,
    runs: pl.DataFrame,
    facts: pl.DataFrame,
    *,
    analysis: AnalysisOptions,
) -> pl.DataFrame:
    """Return one row per (run, node, gpu, mig): JOB_GPUS without `seq`, and the sums for jobs.

    `segments`: merged, one row per (run, GPU) that has samples. `held`: one row per (run, GPU) with
    `held_s`. `facts`: as of `gpu_facts`. A GPU without samples has
    samples 0 and null statistics.
    """
    running = pl.col("end").is_null().alias("running")
    names = ("run", "job_key", "job_id", "cluster", "elapsed_s", "time_precision_s")
    run_columns = runs.select(*names, running)
    joined = held.join(run_columns, on="run", how="left").join(
        facts, on=list(SEGMENT_KEY[1:]), how="left", nulls_equal=True
    )
    if segments.width > len(SEGMENT_KEY):
        joined = joined.join(segments, on=list(SEGMENT_KEY), how="left", nulls_equal=True)
    joined = _with_all_accumulators(joined)
    joined = joined.with_columns(samples=pl.col("samples").fill_null(0), **_sampling())
    joined = joined.with_columns(
        interval_s=pl.when(pl.col("samples") > 0).then(pl.col("interval_us") * 1e-6),
        sampled_us=pl.col("samples") * pl.col("interval_us"),
        span_s=_span(analysis),
    )
    joined = joined.with_columns(
        pl.when(pl.col(SECONDS.of(rate)) > 0).then(AREA.of(rate)).alias(AREA.of(rate))
        for rate in RATE_VOLUMES
    )
    statistics = [expression for counter in COUNTERS for expression in _statistics(counter)]
    return joined.with_columns(
        pl.from_epoch("t_first", "us").dt.replace_time_zone("UTC").alias("first_t"),
        pl.from_epoch("t_last", "us").dt.replace_time_zone("UTC").alias("last_t"),
        *statistics,
        *_energy(),
        temporal_imbalance=_temporal("gpu_util", analysis),
        hbm_peak_fraction=pl.col(HIGHEST.of("hbm_used_mib")) / pl.col("hbm_mib"),
        zero_util_fraction=_ratio(ZEROS.of("gpu_util"), SAMPLES.of("gpu_util")),
        workload_samples=_labelled(joined.columns),
        remapped_rows_uncorrectable_last=LAST.of("remapped_rows_uncorrectable"),
        xid_events=pl.when(pl.col(SAMPLES.of("xid")) > 0).then(EVENTS.of("xid")),
        xid_event_max=pl.col(HIGHEST_NEW.of("xid")),
        **{f"temporal_imbalance_{name}": _temporal(name, analysis) for name in OTHER_IMBALANCES},
    )


def _sampling() -> dict[str, pl.Expr]:
    """The sampling interval of each GPU of a run, shown by many of its distances.

    Where these are of several lengths, it is the mean time of a sample. Of a GPU with fewer
    distances it is the usual one of the run's others; without any, its own usual distance.
    """
    steady = pl.col("steady_us").fill_nan(None)
    time_of_sample = pl.col("sampled_us") / pl.col("samples")
    shown = pl.when(time_of_sample < DENSER * steady).then(time_of_sample).otherwise(steady)
    own = pl.col("interval_us").fill_nan(None)
    return {
        "steady_us": shown,
        "interval_us": pl.coalesce(shown, shown.median().over("run"), own),
    }


def _with_all_accumulators(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with all accumulator columns of metrics, null if not measured."""
    wanted: dict[str, pl.DataType] = {
        "samples": pl.Int64(),
        "t_first": pl.Int64(),
        "t_last": pl.Int64(),
    }
    intervals = ("interval_us", "steady_us", "sampled_us")
    wanted |= dict.fromkeys((*intervals, "idle", "known"), pl.Float64())
    for counter in COUNTERS:
        for statistic in statistics_of(counter):
            if statistic not in BORDERS:
                dtype = pl.Int64() if statistic.is_count else pl.Float64()
                wanted[statistic.of(counter.name)] = dtype
    wanted[LAST.of("remapped_rows_uncorrectable")] = pl.Float64()
    for pipe in PIPES:
        for statistic in (COMPUTE, MEMORY):
            wanted[statistic.of(pipe)] = pl.Float64()
    return frame.with_columns(
        pl.lit(None, dtype=dtype).alias(name)
        for name, dtype in wanted.items()
        if name not in frame.columns
    )


def _labelled(columns: list[str]) -> pl.Expr:
    """Samples per label, in label order; null without samples or labels."""
    labels = [
        pl.col(LABEL.of(str(place)))
        for place in range(sum(name.startswith(LABEL.of("")) for name in columns))
    ]
    if not labels:
        return pl.lit(None, dtype=pl.List(pl.Int64))
    return pl.when(pl.col("samples") > 0).then(pl.concat_list(labels))


def _ratio(part: str, whole: str) -> pl.Expr:
    return pl.when(pl.col(whole) > 0).then(pl.col(part) / pl.col(whole))


def _statistics(counter: Counter) -> list[pl.Expr]:
    name = counter.name
    if counter.unit == "bitmask":
        return [
            _ratio(LOWERED.of(name), SAMPLES.of(name)).alias(f"{name}_mean"),
            pl.when(pl.col(SAMPLES.of(name)) > 0).then(BITS.of(name)).alias(f"{name}_max"),
        ]
    if counter.unit == "code":
        return [
            pl.lit(None, dtype=pl.Float64).alias(f"{name}_mean"),
            pl.col(HIGHEST.of(name)).alias(f"{name}_max"),
        ]
    if counter.kind is CounterKind.CUMULATIVE:
        grown = pl.when(pl.col(SAMPLES.of(name)) > 1).then(GROWN.of(name))
        return [grown.alias(f"{name}_mean"), grown.alias(f"{name}_max")]
    return [
        _ratio(TOTAL.of(name), SAMPLES.of(name)).alias(f"{name}_mean"),
        pl.col(HIGHEST.of(name)).alias(f"{name}_max"),
    ]


def _temporal(name: str, analysis: AnalysisOptions) -> pl.Expr:
    """TI(j, g) = 1 - sum / (n * max); of an idle GPU null, or 0 in the variant of the notebooks."""
    if name not in ("gpu_util", *analysis.imbalance_counters):
        return pl.lit(None, dtype=pl.Float64)
    idle = pl.lit(0.0) if analysis.zero_temporal_imbalance else pl.lit(None, dtype=pl.Float64)
    most = pl.col(HIGHEST.of(name))
    value = 1 - pl.col(TOTAL.of(name)) / (pl.col(SAMPLES.of(name)) * most)
    return pl.when(pl.col(SAMPLES.of(name)) > 0).then(
        pl.when(most > 0).then(value.clip(lower_bound=0)).otherwise(idle)
    )


def _span(analysis: AnalysisOptions) -> pl.Expr:
    """Seconds that energy covers: the job's allocation; of a running job the measured time.

    Accounting may be stale: what runs by it may have ended long ago, and nothing was measured
    after. So an end without samples counts for as many intervals as a silence that is no gap.
    """
    coarse = (pl.col("time_precision_s") >= COARSE_S).fill_null(value=False)
    whole = pl.when(coarse).then(pl.coalesce("elapsed_s", "held_s")).otherwise("held_s")
    ends_us = 2 * analysis.max_gap_intervals * pl.col("interval_us")
    measured = (pl.col("t_last") - pl.col("t_first") + ends_us) / 1e6
    return pl.when("running").then(pl.min_horizontal(whole, measured)).otherwise(whole)


def _energy() -> list[pl.Expr]:
    """Measured energy (counter increase, or integrated power) and its estimate for `_span`.

    The counter is used unless it is constant while power was drawn, or covers less than half of the
    time of power. Null for a MIG slice: measurements are of the whole GPU.
    """
    whole = pl.col("mig").is_null()
    counted_s, measured_s = pl.col(SECONDS.of("energy_j")), pl.col(SECONDS.of("power_w"))
    stuck = (pl.col(GROWN.of("energy_j")) == 0) & (pl.col(AREA.of("power_w")) > 0)
    poor = counted_s < 0.5 * measured_s
    usable = (counted_s > 0) & ~stuck.fill_null(value=False) & ~poor.fill_null(value=False)
    counted = pl.when(whole & usable).then(pl.col(GROWN.of("energy_j")))
    integrated = pl.when(whole & (measured_s > 0)).then(pl.col(AREA.of("power_w")))
    source = pl.when(counted.is_not_null()).then(pl.lit("counter"))
    return [
        pl.coalesce(counted, integrated).alias("energy_j"),
        pl.coalesce(counted * _scaled(counted_s), integrated * _scaled(measured_s)).alias(
            "energy_j_estimated"
        ),
        source.when(integrated.is_not_null()).then(pl.lit("power")).alias("energy_source"),
    ]


def _scaled(measured_s: pl.Expr) -> pl.Expr:
    """Factor from the measured seconds to the span, which is not shorter."""
    return pl.max_horizontal(pl.lit(1.0), pl.col("span_s") / measured_s)


def step_rows(steps: pl.DataFrame, gpus: pl.DataFrame) -> pl.DataFrame:
    """Return one row per step (its number is `run`): accounting, and sums over its GPUs.

    `gpus`: from `summarize_gpus`. An ambiguous step has null for everything that would need
    samples; so has one that held no GPU, except that it has 0 of them.
    """
    gpus = counted_by_time(gpus, "run")
    summed = gpus.group_by("run").agg(_sums(), measured_s=pl.col("held_s").sum())
    ambiguous = pl.col("attribution") == "ambiguous"
    frame = (
        steps.drop("gpus")
        .join(summed, on="run", how="left")
        .with_columns(elapsed_s=seconds_between("start", "until"))
    )
    expected = pl.max_horizontal(pl.col("measured_s") / pl.col("interval_s"), pl.lit(1.0))
    return frame.with_columns(
        gpus=pl.when(~ambiguous).then(pl.col("gpus_held").fill_null(0)),
        samples=pl.when(~ambiguous).then(pl.col("samples").fill_null(0)),
        coverage=pl.when(pl.col("gpus_held") > 0).then(
            pl.when(pl.col("samples") == 0)
            .then(0.0)
            .otherwise(pl.min_horizontal(pl.col("samples") / expected, 1.0))
        ),
        power_w_mean=pl.col("power_w_sampled_mean"),
    )


HISTOGRAM_BINS = 4 * 32
LEAST_POPULATION = 100  # jobs


def summarize_jobs(
    runs: pl.DataFrame,
    gpus: pl.DataFrame,
    intensities: pl.DataFrame,
    imbalance: pl.DataFrame,
    host_use: pl.DataFrame,
    *,
    analysis: AnalysisOptions,
    filters: StudyFilters,
    now: datetime,
) -> pl.DataFrame:
    """Return one row per run: JOB_SUMMARIES without `seq` and `pipes`, which need all jobs.

    `gpus`: from `summarize_gpus`. `imbalance`: one row per (run, counter), added up over days.
    `host_use`: of `host_sums` and `energy_of_nodes`.
    Ambiguous runs have their identity, GPUs and GPU-hours, and null for everything that would need
    samples. Hours of a MIG slice are its share of those of the GPU; of an unknown share all of
    them. Those of runs that have shares of GPUs are of their `gpu_share`.
    """
    gpus = counted_by_time(gpus, "run")
    summed = gpus.group_by("run").agg(_sums())
    frame = runs.drop("elapsed_s").join(summed, on="run", how="left")
    frame = frame.join(runs.select("run", accounted_s="elapsed_s"), on="run", how="left")
    frame = frame.join(_spatial(imbalance, gpus, analysis), on="run", how="left")
    frame = frame.join(_histograms(intensities), on="run", how="left")
    frame = frame.join(host_use, on="run", how="left")
    ambiguous = pl.col("attribution") == "ambiguous"
    some = _is_part()
    wall_s = seconds_between("start", "until")
    frame = frame.with_columns(
        as_of=pl.coalesce(
            "end", pl.min_horizontal("until", pl.lit(now, dtype=frame.schema["until"]))
        ),
        elapsed_s=pl.when(pl.col("end").is_null())
        .then(wall_s)
        .otherwise(pl.coalesce("accounted_s", wall_s)),
        gpus=pl.coalesce("gpus", pl.when(~some).then("gpus_held")),
        nodes=pl.coalesce("nodes", "nodes_held"),
        samples=pl.when(~ambiguous).then(pl.col("samples").fill_null(0)),
        gpus_seen=pl.when(~ambiguous).then(pl.col("gpus_seen").fill_null(0)),
        part=some,
    )
    share_of_gpu = pl.coalesce("mig_share", _share_of_type(frame))
    frame = frame.with_columns(
        cpu_efficiency=_cpu_efficiency(),
        gpu_hours=pl.when("shares")
        .then(pl.col("gpu_share") * pl.col("elapsed_s") / 3600)
        .otherwise(pl.col("gpus") * pl.col("elapsed_s") / 3600 * share_of_gpu),
        coverage=_coverage(ambiguous)
        * pl.when("part").then(pl.col("nodes_held") / pl.col("nodes")).otherwise(1.0),
        power_w_mean=pl.when((pl.col("energy_gpus") > 0) & (pl.col("span_sum_s") > 0)).then(
            pl.col("energy_j_estimated") / pl.col("span_sum_s")
        ),
        **_roofline(),
        **_at_work(),
    )
    frame = frame.with_columns(
        # What was measured counts, not what somebody else made of it.
        pl.when(pl.col("samples").fill_null(0) == 0).then(pl.col(*RECORDED_USE)),
        excluded=excluded(filters),
        pipes=pl.lit(None, dtype=pl.List(pl.String)),
    )
    return in_schema(frame, JOB_SUMMARIES)


def _cpu_efficiency() -> pl.Expr:
    """CPU time over available CPU time; above 1 if the job was not confined."""
    available_s = pl.col("elapsed_s") * pl.col("cpus")
    return pl.when(pl.col("end").is_not_null() & (available_s > 0)).then(
        pl.col("cpu_time_s") / available_s
    )


def used_pipes(
    summaries: pl.DataFrame, population: pl.DataFrame, *, analysis: AnalysisOptions
) -> pl.DataFrame:
    """Return `summaries` with `pipes`: job mean above max(5th percentile of `population`, 0.005).

    The paper takes the percentile over all jobs; the notebooks use the fixed threshold alone
    (analysis.notebooks), and so does a population too small for a percentile to mean anything.
    """
    names = []
    measured = pl.any_horizontal(
        pl.col(f"{counter}_mean").is_not_null() for counter in PIPES.values()
    )
    for pipe, counter in PIPES.items():
        threshold = analysis.pipe_threshold
        means = population[f"{counter}_mean"].drop_nulls()
        if analysis.pipe_percentile and len(means) >= LEAST_POPULATION:
            low = means.quantile(0.05, "linear")
            threshold = max(threshold, low or 0.0)
        names.append(pl.when(pl.col(f"{counter}_mean") > threshold).then(pl.lit(pipe)))
    return summaries.with_columns(
        pipes=pl.when(measured).then(pl.concat_list(names).list.drop_nulls())
    )


def _sums() -> list[pl.Expr]:
    """Sums over the GPUs of a run."""
    sampled = (pl.col("samples") > 0) & pl.col("interval_us").is_not_null()
    intervals_us = pl.col("interval_us").filter(sampled)
    mean_us = pl.col("sampled_us").filter(sampled).sum() / pl.col("samples").filter(sampled).sum()
    apart = intervals_us.max() > APART * intervals_us.min()
    expressions: list[pl.Expr] = [
        pl.len().cast(pl.Int64).alias("gpus_held"),
        pl.col("node").n_unique().cast(pl.Int64).alias("nodes_held"),
        pl.col("samples").sum(),
        (pl.col("samples") > 0).sum().cast(pl.Int64).alias("gpus_seen"),
        pl.col("mig_share").fill_null(1.0).mean(),
        (pl.when(apart).then(mean_us).otherwise(intervals_us.median()) * 1e-6).alias("interval_s"),
        pl.col("gpu_model")
        .drop_nulls()
        .unique(maintain_order=True)
        .sort()
        .str.join("+")
        .replace("", None),
        pl.col("hbm_mib").min(),
        pl.col("hbm_peak_fraction").max(),
        *(_sum_known(name) for name in ENERGY),
        pl.col("energy_source").drop_nulls().unique().sort().str.join("+").replace("", None),
        pl.col("energy_j").is_not_null().sum().cast(pl.Int64).alias("energy_gpus"),
        pl.col("span_s").filter(pl.col("energy_j").is_not_null()).sum().alias("span_sum_s"),
        pl.col("power_w_mean").mean().alias("power_w_sampled_mean"),
        pl.when(pl.col(SAMPLES.of("gpu_util")).sum() > 0)
        .then(((pl.col(SAMPLES.of("gpu_util")) > 0) & (pl.col(HIGHEST.of("gpu_util")) == 0)).sum())
        .cast(pl.Int64)
        .alias("gpus_never_used"),
        (_sum_known(ZEROS.of("gpu_util")) / _sum_known(SAMPLES.of("gpu_util")))
        .fill_nan(None)
        .alias("zero_util_fraction"),
        _sum_known("xid_events"),
        pl.col("xid_event_max").max(),
        pl.col("temporal_imbalance").max(),
        *(pl.col(f"temporal_imbalance_{name}").max() for name in OTHER_IMBALANCES),
        *(_sum_known(AREA.of(rate)).alias(volume) for rate, volume in RATE_VOLUMES.items()),
        *(_sum_known(name) for name in ("known", "idle")),
    ]
    for pipe, activity in PIPES.items():
        expressions += [_sum_known(one.of(pipe)) for one in (COMPUTE, MEMORY)]
        expressions.append(_sum_known(SAMPLES.of(activity)).alias(f"measured_{pipe}"))
    for activity in SQUARED:
        total, square = pl.col(TOTAL.of(activity)), pl.col(SQUARE.of(activity))
        expressions += [_sum_known(one.of(activity)) for one in (TOTAL, SQUARE)]
        share = total**2 / (pl.col(SAMPLES.of(activity)) * square)  # of its time, one GPU at work
        expressions.append((total * share).filter(square > 0).sum().alias(f"share_{activity}"))
    for counter in COUNTERS:
        if counter.name != "power_w":
            expressions.append(pl.col(f"{counter.name}_mean").mean())
        most = pl.col(f"{counter.name}_max")
        if counter.unit == "bitmask":
            bits = most.cast(pl.Int64).fill_null(0).bitwise_or()
            reported = pl.when(most.is_not_null().any()).then(bits)
            expressions.append(reported.alias(f"{counter.name}_max"))
        else:
            expressions.append(most.max())
    return expressions


def _sum_known(name: str) -> pl.Expr:
    """Sum of the non-null values; null without any."""
    return pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum()).alias(name)


def _share_of_type(runs: pl.DataFrame) -> pl.Expr:
    """Share of a GPU that each GPU of a run is, by its type in the allocation; 1 if not a slice."""
    types = runs["gpu_type"].drop_nulls().unique().to_list()
    shares = {name: mig_share(name) or 1.0 for name in types}
    if not shares:
        return pl.lit(1.0)
    return pl.col("gpu_type").replace_strict(shares, default=1.0, return_dtype=pl.Float64)


def _coverage(ambiguous: pl.Expr) -> pl.Expr:
    """Samples present over samples expected at the job's own interval, at most 1."""
    expected = pl.max_horizontal(
        pl.col("gpus_held") * pl.col("elapsed_s") / pl.col("interval_s"), pl.lit(1.0)
    )
    share = pl.min_horizontal(pl.col("samples") / expected, pl.lit(1.0))
    known = pl.when(pl.col("interval_s").is_not_null()).then(share)
    return pl.when(~ambiguous).then(pl.when(pl.col("samples") == 0).then(0.0).otherwise(known))


def _is_part() -> pl.Expr:
    """Whether named GPUs cover only some of the job's nodes, and no other source counts them."""
    named = pl.col("attribution").is_in(["explicit", "live_index"]) & pl.col("gpus").is_null()
    return (named & (pl.col("nodes_held") < pl.col("nodes"))).fill_null(value=False)


def _roofline() -> dict[str, pl.Expr]:
    columns: dict[str, pl.Expr] = {}
    for pipe in PIPES:
        end = "" if pipe == "fp64" else f"_{pipe}"
        compute, memory = pl.col(COMPUTE.of(pipe)), pl.col(MEMORY.of(pipe))
        measured = (pl.col(f"measured_{pipe}") > 0) & (pl.col("known") > 0)
        labelled = pl.when(measured & (compute + memory > 0)).then(compute + memory)
        columns[f"compute_fraction{end}"] = compute / labelled
        columns[f"memory_fraction{end}"] = memory / labelled
        columns[f"idle_fraction{end}"] = pl.when(measured).then(pl.col("idle") / pl.col("known"))
        majority = (
            pl.when(compute > memory)
            .then(pl.lit("compute"))
            .when(memory > compute)
            .then(pl.lit("memory"))
        )
        columns[f"bound{end}"] = pl.when(labelled.is_not_null()).then(majority)
    return columns


def _at_work() -> dict[str, pl.Expr]:
    """Most active pipe; level of pipe, memory and links at work, and the share of that time.

    Each sample, and each GPU, counts by how active the resource was in it: a GPU that rests, and
    the time before the work, add nothing. Each resource is weighted by itself, so memory without
    arithmetic has a level, too.
    """
    columns = {
        "main_pipe": pl.coalesce(
            pl.when(_is_busiest(counter, tuple(PIPES.values()))).then(pl.lit(pipe))
            for pipe, counter in PIPES.items()
        )
    }
    for resource in RESOURCES:
        columns[resource.at_work] = _of_busiest(resource, SQUARE.stem)
        columns[resource.share] = _of_busiest(resource, "share")
    return columns


def _is_busiest(counter: str, counters: Sequence[str]) -> pl.Expr:
    mean = pl.col(f"{counter}_mean")
    return (mean > 0) & (mean == pl.max_horizontal(f"{name}_mean" for name in counters))


def _of_busiest(resource: LimitingResource, stem: str) -> pl.Expr:
    """A sum over GPUs and samples, per sum of the activity; of the counter with the most."""
    return pl.coalesce(
        pl.when(_is_busiest(counter, resource.counters)).then(
            pl.col(f"{stem}_{counter}") / pl.col(TOTAL.of(counter))
        )
        for counter in resource.counters
    )


def _spatial(
    imbalance: pl.DataFrame, gpus: pl.DataFrame, analysis: AnalysisOptions
) -> pl.DataFrame:
    """One row per run: imbalance over the GPUs that have the counter, windows, share of zero
    windows. Imbalance is null where only one GPU has it.
    """
    names = ("gpu_util", *OTHER_IMBALANCES)
    measured = gpus.group_by("run", maintain_order=True).agg(
        (pl.col(SAMPLES.of(name)) > 0).sum().cast(pl.Int64).alias(name) for name in names
    )
    measured_by_counter = measured.unpivot(
        names, index="run", variable_name="counter", value_name="measured"
    )
    added = imbalance.group_by("run", "counter").agg(
        pl.col("windows", "zero_windows", "even_gpus").sum()
    )
    value = mean_imbalance(pl.col("measured"), count_zero_windows=analysis.count_zero_windows)
    added = added.join(measured_by_counter, on=["run", "counter"], how="left")
    added = added.with_columns(value=value)
    of_util = added.filter(pl.col("counter") == "gpu_util")
    result = measured.select("run").join(
        of_util.select(
            "run",
            spatial_imbalance="value",
            spatial_windows="windows",
            spatial_zero_fraction=pl.col("zero_windows") / pl.col("windows"),
        ),
        on="run",
        how="left",
    )
    for name in OTHER_IMBALANCES:
        one = added.filter(pl.col("counter") == name).select(
            "run", pl.col("value").alias(f"spatial_imbalance_{name}")
        )
        result = result.join(one, on="run", how="left")
    return result


def _histograms(intensities: pl.DataFrame) -> pl.DataFrame:
    """One row per run with data: its 4 x 32 bins as a list.

    Where the sampling intervals of a run differ, a sample counts by the time it stands for.
    """
    steady, samples = pl.col("steady_us"), pl.col("samples")
    varied = (steady.max() > APART * steady.min()).over("run").fill_null(value=False)
    interval = pl.coalesce(steady, steady.median().over("run"))
    mean = (interval * samples).sum().over("run") / samples.sum().over("run")
    by_time = intensities.with_columns(
        pl.when(varied).then(samples * interval / mean).otherwise(samples)
    )
    added = by_time.group_by("run", "bin").agg(pl.col("samples").sum().round().cast(pl.Int64))
    found = added["run"].unique().sort()
    place = {run: row for row, run in enumerate(found)}
    dense = np.zeros((len(found), HISTOGRAM_BINS), np.int64)
    for run, where, samples in added.iter_rows():
        dense[place[run], where] += samples
    lists = pl.Series("intensity_histogram", dense.tolist(), dtype=pl.List(pl.Int64))
    return pl.DataFrame({"run": found.cast(pl.Int32), "intensity_histogram": lists})


PIPE_THRESHOLD = 0.005  # notebooks 2, 7, 9


def as_in_notebooks(jobs: pl.DataFrame, analysis: AnalysisOptions) -> pl.DataFrame:
    """Return job_summaries with the metrics as the public notebooks define them.

    `analysis`: what the summaries were made with. A job without samples, which the notebooks never
    see, has null in all that is changed.
    """
    seen = pl.when(pl.col("gpus_seen") > 0).then(pl.col("gpus_seen"))
    elapsed_s = seconds_between("start", "end")
    energy_j = pl.when(pl.col("energy_j").is_not_null()).then(pl.col("energy_j_mean") * seen)
    fixed = msgspec.structs.replace(analysis, pipe_percentile=False, pipe_threshold=PIPE_THRESHOLD)
    changed = used_pipes(jobs, jobs, analysis=fixed).with_columns(
        gpus=seen,
        gpu_hours=seen * elapsed_s / 3600,
        spatial_imbalance=_notebook_spatial(analysis),
        hbm_peak_fraction=pl.col("hbm_peak_fraction").clip(0, 1),
        energy_j=energy_j,
        energy_j_estimated=energy_j,
        energy_gpus=pl.when(energy_j.is_not_null()).then(seen),
        energy_source=pl.when(energy_j.is_not_null()).then(pl.lit("counter")),
        power_w_mean=pl.when(elapsed_s > 0).then(energy_j / (seen * elapsed_s)),
        **_notebook_temporal(analysis),
    )
    return changed.select(pl.col(name).cast(dtype) for name, dtype in jobs.schema.items())


def _notebook_spatial(analysis: AnalysisOptions) -> pl.Expr:
    """Mean over all windows, 0 for idle windows; null for jobs without any activity."""
    active = 1 - pl.col("spatial_zero_fraction")
    stored = pl.col("spatial_imbalance")
    over_all = stored if analysis.count_zero_windows else stored * active
    return pl.when(active > 0).then(over_all)


def _notebook_temporal(analysis: AnalysisOptions) -> dict[str, pl.Expr]:
    """The largest of the GPUs' imbalances is missing only where all of them were idle, or it was
    not configured.
    """
    expressions: dict[str, pl.Expr] = {}
    for name in WINDOWED:
        if name == "power_w" or name not in ("gpu_util", *analysis.imbalance_counters):
            continue
        column = "temporal_imbalance" if name == "gpu_util" else f"temporal_imbalance_{name}"
        measured = pl.col(f"{name}_mean").is_not_null()
        expressions[column] = pl.when(measured).then(pl.col(column).fill_null(0.0))
    return expressions
