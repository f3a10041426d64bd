"""From segments to one row per (run, GPU): the statistics of every counter, energy, imbalance over time."""

from __future__ import annotations

import polars as pl

from tachograph.config import Analysis
from tachograph.counters import COUNTERS, Counter, Kind
from tachograph.reduce.merge import KEY
from tachograph.summarize.schema import JOB_GPUS, OTHER_IMBALANCES, PIPES, RATE_VOLUMES, in_schema

COARSE_S = 60.0


def summarize_gpus(
    segments: pl.DataFrame, held: pl.DataFrame, runs: pl.DataFrame, facts: pl.DataFrame, *, analysis: Analysis
) -> pl.DataFrame:
    """Return one row per (run, node, gpu, mig) held: JOB_GPUS without `seq`, and what `jobs` adds up.

    `segments`: merged, one row per (run, GPU) that has samples. `held`: one row per (run, GPU) with `held_s`.
    `facts`: (node, gpu, mig) with `gpu_model` and `hbm_mib`. A GPU without samples has samples 0 and null statistics.
    """
    running = pl.col("end").is_null().alias("running")
    run_columns = runs.select("run", "job_key", "job_id", "elapsed_s", "time_precision_s", running)
    joined = held.join(run_columns, on="run", how="left").join(facts, on=list(KEY[1:]), how="left", nulls_equal=True)
    if segments.width > len(KEY):
        joined = joined.join(segments, on=list(KEY), how="left", nulls_equal=True)
    joined = _with_all_accumulators(joined)
    joined = joined.with_columns(
        samples=pl.col("samples").fill_null(0),
        span_s=_span(analysis),
    )
    joined = joined.with_columns(
        pl.when(pl.col(f"seconds_{rate}") > 0).then(f"area_{rate}").alias(f"area_{rate}") for rate in RATE_VOLUMES
    )
    statistics = [expression for counter in COUNTERS for expression in _statistics(counter)]
    return joined.with_columns(
        pl.from_epoch("t_first", "us").dt.replace_time_zone("UTC").alias("first_t"),
        pl.from_epoch("t_last", "us").dt.replace_time_zone("UTC").alias("last_t"),
        *statistics,
        *_energy(),
        temporal_imbalance=_temporal("gpu_util", analysis),
        hbm_peak_fraction=pl.col("max_hbm_used_mib") / pl.col("hbm_mib"),
        zero_util_fraction=_ratio("zeros_gpu_util", "n_gpu_util"),
        workload_samples=_labelled(joined.columns),
        remapped_rows_uncorrectable_last="last_remapped_rows_uncorrectable",
        xid_events=pl.when(pl.col("n_xid") > 0).then("events_xid"),
        xid_event_max=pl.col("max_new_xid"),
        **{f"temporal_imbalance_{name}": _temporal(name, analysis) for name in OTHER_IMBALANCES},
    )


def gpu_columns(gpus: pl.DataFrame) -> pl.DataFrame:
    """Return only what the table JOB_GPUS holds, without `seq`."""
    return in_schema(gpus, JOB_GPUS)


def _with_all_accumulators(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with every accumulator column a metric may ask for, null where nothing was measured."""
    wanted: dict[str, pl.DataType] = {"samples": pl.Int64(), "t_first": pl.Int64(), "t_last": pl.Int64()}
    wanted |= {"interval_us": pl.Float64(), "zeros_gpu_util": pl.Int64(), "idle": pl.Float64(), "known": pl.Float64()}
    for counter in COUNTERS:
        name = counter.name
        wanted[f"n_{name}"] = pl.Int64()
        stems = {Kind.CUMULATIVE: ("grown",), Kind.RATE: ("sum", "max", "area", "seconds")}.get(
            counter.kind, ("sum", "max")
        )
        wanted |= {f"{stem}_{name}": pl.Float64() for stem in stems}
    wanted |= {name: pl.Float64() for name in ("area_power_w", "seconds_power_w", "seconds_energy_j")}
    wanted |= {f"{stem}_throttle_reasons": pl.Int64() for stem in ("lowered", "bits")}
    wanted |= {"events_xid": pl.Int64(), "max_new_xid": pl.Float64()}
    wanted |= {"last_remapped_rows_uncorrectable": pl.Float64()}
    wanted |= {f"{label}_{pipe}": pl.Float64() for pipe in PIPES for label in ("compute", "memory")}
    return frame.with_columns(
        pl.lit(None, dtype=dtype).alias(name) for name, dtype in wanted.items() if name not in frame.columns
    )


def _labelled(columns: list[str]) -> pl.Expr:
    """Samples by label in the order of labels; null without samples, or where nobody labelled them."""
    labels = [pl.col(f"label_{place}") for place in range(sum(name.startswith("label_") for name in columns))]
    if not labels:
        return pl.lit(None, dtype=pl.List(pl.Int64))
    return pl.when(pl.col("samples") > 0).then(pl.concat_list(labels))


def _ratio(part: str, whole: str) -> pl.Expr:
    return pl.when(pl.col(whole) > 0).then(pl.col(part) / pl.col(whole))


def _statistics(counter: Counter) -> list[pl.Expr]:
    name = counter.name
    if counter.unit == "bitmask":
        return [
            _ratio(f"lowered_{name}", f"n_{name}").alias(f"{name}_mean"),
            pl.when(pl.col(f"n_{name}") > 0).then(f"bits_{name}").alias(f"{name}_max"),
        ]
    if counter.unit == "code":
        return [pl.lit(None, dtype=pl.Float64).alias(f"{name}_mean"), pl.col(f"max_{name}").alias(f"{name}_max")]
    if counter.kind is Kind.CUMULATIVE:
        grown = pl.when(pl.col(f"n_{name}") > 1).then(f"grown_{name}")
        return [grown.alias(f"{name}_mean"), grown.alias(f"{name}_max")]
    return [_ratio(f"sum_{name}", f"n_{name}").alias(f"{name}_mean"), pl.col(f"max_{name}").alias(f"{name}_max")]


def _temporal(name: str, analysis: Analysis) -> pl.Expr:
    """TI(j, g) = 1 - sum / (n * max); a GPU without activity: null, or 0 as the notebooks have it."""
    if name not in ("gpu_util", *analysis.imbalance_counters):
        return pl.lit(None, dtype=pl.Float64)
    idle = pl.lit(0.0) if analysis.zero_temporal_imbalance else pl.lit(None, dtype=pl.Float64)
    most = pl.col(f"max_{name}")
    value = 1 - pl.col(f"sum_{name}") / (pl.col(f"n_{name}") * most)
    return pl.when(pl.col(f"n_{name}") > 0).then(pl.when(most > 0).then(value.clip(lower_bound=0)).otherwise(idle))


def _span(analysis: Analysis) -> pl.Expr:
    """Seconds that energy is said of: the job's hold on the GPU; of a running job what was measured, and its ends.

    Accounting may be stale: what it says runs may have ended long ago, and nobody measured what came after. So an end
    without samples counts for as many intervals as a silence that is no gap.
    """
    coarse = (pl.col("time_precision_s") >= COARSE_S).fill_null(value=False)
    whole = pl.when(coarse).then(pl.coalesce("elapsed_s", "held_s")).otherwise("held_s")
    ends_us = 2 * analysis.max_gap_intervals * pl.col("interval_us").fill_nan(None)
    measured = (pl.col("t_last") - pl.col("t_first") + ends_us) / 1e6
    return pl.when("running").then(pl.min_horizontal(whole, measured)).otherwise(whole)


def _energy() -> list[pl.Expr]:
    """Energy over the span (`_span`): the counter's increase or integrated power, each scaled from what it covers.

    The counter is used unless it stood still while power was drawn, or covers less than half of what power covers.
    Null for a MIG slice: what is measured is the whole GPU's.
    """
    whole = pl.col("mig").is_null()
    counted_s, measured_s = pl.col("seconds_energy_j"), pl.col("seconds_power_w")
    stuck = (pl.col("grown_energy_j") == 0) & (pl.col("area_power_w") > 0)
    poor = counted_s < 0.5 * measured_s
    usable = (counted_s > 0) & ~stuck.fill_null(value=False) & ~poor.fill_null(value=False)
    counted = pl.when(whole & usable).then(pl.col("grown_energy_j") * pl.col("span_s") / counted_s)
    integrated = pl.when(whole & (measured_s > 0)).then(pl.col("area_power_w") * pl.col("span_s") / measured_s)
    source = pl.when(counted.is_not_null()).then(pl.lit("counter"))
    return [
        pl.coalesce(counted, integrated).alias("energy_j"),
        source.when(integrated.is_not_null()).then(pl.lit("power")).alias("energy_source"),
    ]


def volume_columns() -> dict[str, str]:
    """{accumulator: summary column} of the integrals of rates."""
    return {f"area_{rate}": volume for rate, volume in RATE_VOLUMES.items()}
