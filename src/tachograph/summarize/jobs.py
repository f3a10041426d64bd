"""From the GPUs of a run to one row per run: every metric of the study, nothing dropped in silence."""

from __future__ import annotations

from datetime import datetime

import numpy as np
import polars as pl

from tachograph.config import Analysis, Filters
from tachograph.counters import COUNTERS
from tachograph.summarize.exclude import excluded
from tachograph.summarize.gpus import volume_columns
from tachograph.summarize.schema import JOB_SUMMARIES, OTHER_IMBALANCES, PIPES, in_schema

HISTOGRAM_BINS = 4 * 32
LEAST_POPULATION = 100  # jobs


def summarize_jobs(
    runs: pl.DataFrame,
    gpus: pl.DataFrame,
    intensities: pl.DataFrame,
    imbalance: pl.DataFrame,
    *,
    analysis: Analysis,
    filters: Filters,
    now: datetime,
) -> pl.DataFrame:
    """Return one row per run in the schema of JOB_SUMMARIES without `seq` and `pipes`, which need all jobs.

    `gpus`: from `summarize_gpus`. `imbalance`: one row per (run, counter), added up over days. Ambiguous runs have
    their identity, GPUs and GPU-hours, and null for everything that would need samples.
    """
    summed = gpus.group_by("run").agg(_sums(gpus))
    frame = runs.drop("elapsed_s").join(summed, on="run", how="left")
    frame = frame.join(runs.select("run", accounted_s="elapsed_s"), on="run", how="left")
    frame = frame.join(_spatial(imbalance, gpus, analysis), on="run", how="left")
    frame = frame.join(_histograms(intensities), on="run", how="left")
    ambiguous = pl.col("attribution") == "ambiguous"
    wall_s = (pl.col("until") - pl.col("start")).dt.total_microseconds() / 1e6
    frame = frame.with_columns(
        as_of=pl.coalesce("end", pl.lit(now, dtype=frame.schema["until"])),
        elapsed_s=pl.when(pl.col("end").is_null()).then(wall_s).otherwise(pl.coalesce("accounted_s", wall_s)),
        gpus=pl.coalesce("gpus", "gpus_held"),
        samples=pl.when(~ambiguous).then(pl.col("samples").fill_null(0)),
        gpus_seen=pl.when(~ambiguous).then(pl.col("gpus_seen").fill_null(0)),
    )
    frame = frame.with_columns(
        gpu_hours=pl.col("gpus") * pl.col("elapsed_s") / 3600,
        coverage=_coverage(ambiguous),
        power_w_mean=pl.when((pl.col("energy_gpus") > 0) & (pl.col("span_sum_s") > 0)).then(
            pl.col("energy_j") / pl.col("span_sum_s")
        ),
        **_roofline(),
    )
    frame = frame.with_columns(excluded=excluded(frame, filters), pipes=pl.lit(None, dtype=pl.List(pl.String)))
    return in_schema(frame, JOB_SUMMARIES)


def used_pipes(summaries: pl.DataFrame, population: pl.DataFrame, *, analysis: Analysis) -> pl.DataFrame:
    """Return `summaries` with `pipes`: those whose job mean exceeds max(5th percentile of `population`, 0.005).

    The paper takes the percentile over all jobs; the notebooks use the fixed threshold alone
    (analysis.pipe_percentile false), and so does a population too small for a percentile to mean anything.
    """
    names = []
    measured = pl.any_horizontal(pl.col(f"{counter}_mean").is_not_null() for counter in PIPES.values())
    for pipe, counter in PIPES.items():
        threshold = analysis.pipe_threshold
        means = population.get_column(f"{counter}_mean").drop_nulls()
        if analysis.pipe_percentile and len(means) >= LEAST_POPULATION:
            low = means.quantile(0.05, "linear")
            threshold = max(threshold, low or 0.0)
        names.append(pl.when(pl.col(f"{counter}_mean") > threshold).then(pl.lit(pipe)))
    return summaries.with_columns(pipes=pl.when(measured).then(pl.concat_list(names).list.drop_nulls()))


def _sums(gpus: pl.DataFrame) -> list[pl.Expr]:
    """What the GPUs of a run add up to."""
    expressions: list[pl.Expr] = [
        pl.len().cast(pl.Int64).alias("gpus_held"),
        pl.col("samples").sum(),
        (pl.col("samples") > 0).sum().cast(pl.Int64).alias("gpus_seen"),
        (_weighted_median("interval_us") * 1e-6).alias("interval_s"),
        pl.col("gpu_model").drop_nulls().unique(maintain_order=True).sort().str.join("+").replace("", None),
        pl.col("hbm_mib").min(),
        pl.col("hbm_peak_fraction").max(),
        _sum_known("energy_j"),
        pl.col("energy_source").drop_nulls().unique().sort().str.join("+").replace("", None),
        pl.col("energy_j").is_not_null().sum().cast(pl.Int64).alias("energy_gpus"),
        pl.col("span_s").filter(pl.col("energy_j").is_not_null()).sum().alias("span_sum_s"),
        pl.col("power_w_mean").mean().alias("power_w_sampled_mean"),
        pl.when(pl.col("n_gpu_util").sum() > 0)
        .then(((pl.col("n_gpu_util") > 0) & (pl.col("max_gpu_util") == 0)).sum())
        .cast(pl.Int64)
        .alias("gpus_never_used"),
        (_sum_known("zeros_gpu_util") / _sum_known("n_gpu_util")).fill_nan(None).alias("zero_util_fraction"),
        _sum_known("xid_events"),
        pl.col("xid_event_max").max(),
        pl.col("temporal_imbalance").max(),
        *(pl.col(f"temporal_imbalance_{name}").max() for name in OTHER_IMBALANCES),
        *(_sum_known(accumulator).alias(volume) for accumulator, volume in volume_columns().items()),
        *(_sum_known(name) for name in ("known", "idle")),
    ]
    for pipe, activity in PIPES.items():
        expressions += [_sum_known(f"{label}_{pipe}") for label in ("compute", "memory")]
        expressions.append(_sum_known(f"n_{activity}").alias(f"measured_{pipe}"))
    for counter in COUNTERS:
        if counter.name != "power_w":
            expressions.append(pl.col(f"{counter.name}_mean").mean())
        most = pl.col(f"{counter.name}_max")
        expressions.append(
            pl.when(most.is_not_null().any())
            .then(most.cast(pl.Int64).fill_null(0).bitwise_or())
            .alias(most.meta.output_name())
            if counter.unit == "bitmask"
            else most.max()
        )
    return expressions


def _sum_known(name: str) -> pl.Expr:
    """Sum of the values that are not null; null where there is none."""
    return pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum()).alias(name)


def _weighted_median(name: str) -> pl.Expr:
    return pl.col(name).fill_nan(None).filter(pl.col("samples") > 0).drop_nulls().median()


def _coverage(ambiguous: pl.Expr) -> pl.Expr:
    """Samples present over samples expected at the job's own interval, at most 1."""
    expected = pl.max_horizontal(pl.col("gpus_held") * pl.col("elapsed_s") / pl.col("interval_s"), pl.lit(1.0))
    share = pl.min_horizontal(pl.col("samples") / expected, pl.lit(1.0))
    known = pl.when(pl.col("interval_s").is_not_null()).then(share)
    return pl.when(~ambiguous).then(pl.when(pl.col("samples") == 0).then(0.0).otherwise(known))


def _roofline() -> dict[str, pl.Expr]:
    columns: dict[str, pl.Expr] = {}
    for pipe in PIPES:
        end = "" if pipe == "fp64" else f"_{pipe}"
        compute, memory = pl.col(f"compute_{pipe}"), pl.col(f"memory_{pipe}")
        measured = (pl.col(f"measured_{pipe}") > 0) & (pl.col("known") > 0)
        labelled = pl.when(measured & (compute + memory > 0)).then(compute + memory)
        columns[f"compute_fraction{end}"] = compute / labelled
        columns[f"memory_fraction{end}"] = memory / labelled
        columns[f"idle_fraction{end}"] = pl.when(measured).then(pl.col("idle") / pl.col("known"))
        majority = pl.when(compute > memory).then(pl.lit("compute")).when(memory > compute).then(pl.lit("memory"))
        columns[f"bound{end}"] = pl.when(labelled.is_not_null()).then(majority)
    return columns


def _spatial(imbalance: pl.DataFrame, gpus: pl.DataFrame, analysis: Analysis) -> pl.DataFrame:
    """One row per run: imbalance over GPUs, windows, share of all-zero windows; null for a single GPU."""
    several = gpus.group_by("run").len("held").with_columns(several=pl.col("held") > 1)
    added = imbalance.group_by("run", "counter").agg(pl.col("windows", "zero_windows", "imbalance").sum())
    counted = pl.col("windows") - (0 if analysis.count_zero_windows else pl.col("zero_windows"))
    added = added.join(several, on="run", how="left").with_columns(
        value=pl.when("several").then(pl.when(counted > 0).then(pl.col("imbalance") / counted))
    )
    of_util = added.filter(pl.col("counter") == "gpu_util")
    result = several.select("run").join(
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
        one = added.filter(pl.col("counter") == name).select("run", pl.col("value").alias(f"spatial_imbalance_{name}"))
        result = result.join(one, on="run", how="left")
    return result


def _histograms(intensities: pl.DataFrame) -> pl.DataFrame:
    """One row per run that has any: its 4 x 32 bins as a list."""
    added = intensities.group_by("run", "bin").agg(pl.col("samples").sum())
    found = added.get_column("run").unique().sort()
    place = {run: row for row, run in enumerate(found)}
    dense = np.zeros((len(found), HISTOGRAM_BINS), np.int64)
    for run, where, samples in added.iter_rows():
        dense[place[run], where] += samples
    lists = pl.Series("intensity_histogram", dense.tolist(), dtype=pl.List(pl.Int64))
    return pl.DataFrame({"run": found.cast(pl.Int32), "intensity_histogram": lists})
