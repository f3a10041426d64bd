"""Spatial imbalance over longer windows, from the stored minutes of jobs instead of their samples.

SI(j, w) = 1 - sum_g TC / (g_j * max_g TC), TC = sum of utilisation over the window on one GPU; windows are anchored at
the job's start (IPDPS 2026, section on load imbalance). What `analyze` computes for analysis.window_s, a study can have
for any number of whole minutes without reading samples again.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

import polars as pl

from tachograph.errors import ConfigError
from tachograph.schema import TIME

MINUTE_S = 60
_UNIT_WINDOW = ("run", "window", "node", "gpu", "mig")
_FOLDED = {"run": pl.UInt32(), "windows": pl.Int64(), "zero_windows": pl.Int64(), "imbalance": pl.Float64()}


def spatial_imbalance(
    minutes: pl.LazyFrame, jobs: pl.DataFrame, *, window_s: int, count_zero_windows: bool = False
) -> pl.DataFrame:
    """Return (job_key, spatial_imbalance, spatial_windows, spatial_zero_fraction), one row per row of `jobs`, in order.

    `minutes`: rows of job_minutes; those of other jobs or another analysis are passed over. `jobs`: job_key, seq and
    `gpus`, the GPUs held (`with_gpus_held`). A GPU silent in a window counts 0; windows in which all is zero are left
    out, or count 0 with `count_zero_windows`. Imbalance is null for a single GPU and where nothing was active; all is
    null where utilisation was not measured.

    Days are read one after the other, so that memory is that of one day. A minute's sum is its mean times its samples:
    exact up to the single precision of stored means where utilisation is in each sample, else samples without it count
    like the others of their minute.
    Errors: ConfigError for windows that are not of whole minutes.
    """
    if window_s <= 0 or window_s % MINUTE_S:
        raise ConfigError(f"windows of {window_s} s are not of whole minutes", do="use 60, 300, 900 or 1800")
    numbered = jobs.select("job_key", "seq", "gpus").with_row_index("run")
    rows = _parts_of_windows(minutes, numbered, window_s // MINUTE_S)
    still_open = pl.DataFrame(schema=rows.collect_schema()).drop("t")
    folded = [pl.DataFrame(schema=_FOLDED)]
    for day in _days(minutes):
        midnight, next_midnight = _midnight(day), _midnight(day + timedelta(days=1))
        of_day = rows.filter((pl.col("t") >= midnight) & (pl.col("t") < next_midnight)).drop("t")
        whole = (
            pl.concat([still_open.lazy(), of_day])
            .group_by(_UNIT_WINDOW)
            .agg(pl.col("ends").max(), pl.col("total").sum())
            .select(still_open.columns)
            .collect(engine="streaming")
        )
        still_open = whole.filter(pl.col("ends") > next_midnight)
        folded.append(_fold(whole.filter(pl.col("ends") <= next_midnight), numbered))
    return _of_jobs(pl.concat([*folded, _fold(still_open, numbered)]), numbered, count_zero_windows=count_zero_windows)


def with_gpus_held(jobs: pl.DataFrame, gpus: pl.DataFrame) -> pl.DataFrame:
    """Return `jobs` with `gpus` the number of GPUs each held: its rows of job_gpus. Accounting may tell another."""
    held = gpus.group_by("job_key", "seq").agg(gpus=pl.len().cast(pl.Int64))
    return jobs.drop("gpus").join(held, on=["job_key", "seq"], how="left").select(*jobs.columns)


def _parts_of_windows(minutes: pl.LazyFrame, numbered: pl.DataFrame, length: int) -> pl.LazyFrame:
    """Per minute and GPU: whose it is, its window, when that ends, what utilisation comes to."""
    wanted = numbered.lazy().select("run", "job_key", "seq")
    measured = minutes.filter(pl.col("gpu_util").is_not_null())
    window = pl.col("minute") // length
    left = ((window + 1) * length - pl.col("minute")).cast(pl.Int64)
    return measured.join(wanted, on=["job_key", "seq"], how="inner").select(
        "t",
        "run",
        "node",
        "gpu",
        "mig",
        window=window,
        ends=pl.col("t") + pl.duration(minutes=left),
        total=pl.col("gpu_util").cast(pl.Float64) * pl.col("samples"),
    )


def _days(minutes: pl.LazyFrame) -> list[date]:
    found = minutes.select(day=pl.col("t").dt.date()).unique().collect(engine="streaming")
    return sorted(found.get_column("day").to_list())


def _midnight(day: date) -> pl.Expr:
    return pl.lit(datetime.combine(day, time(), UTC), dtype=TIME)


def _fold(per_gpu: pl.DataFrame, numbered: pl.DataFrame) -> pl.DataFrame:
    """One row per run: its windows, those in which all is zero, the sum of the others' imbalances."""
    active = pl.col("most") > 0
    imbalance = 1 - pl.col("total") / (pl.col("gpus") * pl.col("most"))
    return (
        per_gpu.group_by("run", "window")
        .agg(pl.col("total").sum(), most=pl.col("total").max())
        .join(numbered.select("run", "gpus"), on="run", how="left")
        .sort("run", "window")
        .group_by("run", maintain_order=True)
        .agg(
            windows=pl.len().cast(pl.Int64),
            zero_windows=(~active).sum().cast(pl.Int64),
            imbalance=imbalance.filter(active).sum(),
        )
    )


def _of_jobs(folded: pl.DataFrame, numbered: pl.DataFrame, *, count_zero_windows: bool) -> pl.DataFrame:
    added = folded.group_by("run", maintain_order=True).agg(pl.col("windows", "zero_windows", "imbalance").sum())
    counted = pl.col("windows") - (0 if count_zero_windows else pl.col("zero_windows"))
    several = pl.col("gpus") > 1
    return numbered.join(added, on="run", how="left", maintain_order="left").select(
        "job_key",
        spatial_imbalance=pl.when(several & (counted > 0)).then(pl.col("imbalance") / counted),
        spatial_windows="windows",
        spatial_zero_fraction=pl.col("zero_windows") / pl.col("windows"),
    )
