"""Windows of spatial imbalance: per run and window the sum and the largest GPU's share, whole across midnight.

SI(j, w) = 1 - sum_g TC / (g_j * max_g TC), TC = sum of the counter over the window on one GPU; windows are anchored
at the job's start (IPDPS 2026, section on load imbalance). A GPU silent in a window counts 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

import polars as pl

from tachograph.config import Analysis
from tachograph.schema import TIME

COMPLETE = {
    "run": pl.Int32(),
    "counter": pl.String(),
    "window": pl.Int32(),
    "total": pl.Float64(),
    "most": pl.Float64(),
}
BORDER = {
    "run": pl.Int32(),
    "node": pl.String(),
    "gpu": pl.Int16(),
    "mig": pl.Int16(),
    "counter": pl.String(),
    "window": pl.Int32(),
    "n": pl.Int64(),
    "total": pl.Float64(),
}
IMBALANCE = {
    "run": pl.Int32(),
    "counter": pl.String(),
    "windows": pl.Int64(),
    "zero_windows": pl.Int64(),
    "imbalance": pl.Float64(),
}


@dataclass(frozen=True, slots=True)
class Windows:
    """complete: one row per (run, counter, window) of this partition's GPUs; border: one row per (run, GPU, counter,
    window) for windows that cross midnight, which the neighbouring day completes.
    """

    complete: pl.DataFrame
    border: pl.DataFrame


def windows_of(slots: pl.DataFrame, starts: Mapping[int, datetime], *, analysis: Analysis, day: date) -> Windows:
    """Return the windows of one partition's slots (one row per run, GPU and minute with `n_` and `sum_` columns)."""
    counters = [name.removeprefix("sum_") for name in slots.columns if name.startswith("sum_")]
    if not counters or not slots.height:
        return Windows(pl.DataFrame(schema=COMPLETE), pl.DataFrame(schema=BORDER))
    minutes = analysis.window_s // 60
    unit = ["run", "node", "gpu", "mig"]
    per_gpu = slots.with_columns(window=pl.col("minute") // minutes)
    if minutes > 1:
        per_gpu = per_gpu.group_by(*unit, "window", maintain_order=True).agg(pl.col("^(n|sum)_.*$").sum())
    begun = pl.DataFrame({"run": list(starts), "begun": list(starts.values())}, schema={"run": pl.Int32, "begun": TIME})
    begin = pl.col("begun") + pl.duration(seconds=pl.col("window").cast(pl.Int64) * analysis.window_s)
    edges = [datetime.combine(day, time(), UTC), datetime.combine(day + timedelta(days=1), time(), UTC)]
    placed = per_gpu.join(begun, on="run", how="left").with_columns(begin=begin)
    crosses = pl.any_horizontal(
        (pl.col("begin") < edge) & (pl.col("begin") + pl.duration(seconds=analysis.window_s) > edge) for edge in edges
    )
    placed = placed.with_columns(crosses=crosses)
    complete, border = [], []
    for name in counters:
        one = placed.select(
            *unit, "window", "crosses", pl.lit(name).alias("counter"),
            pl.col(f"n_{name}").cast(pl.Int64).alias("n"), pl.col(f"sum_{name}").alias("total"),
        ).filter(pl.col("n") > 0)  # fmt: skip
        complete.append(_over_gpus(one.filter(~pl.col("crosses"))))
        border.append(one.filter("crosses").select(*BORDER))
    return Windows(pl.concat(complete), pl.concat(border))


def _over_gpus(per_gpu: pl.DataFrame) -> pl.DataFrame:
    return (
        per_gpu.group_by("run", "counter", "window", maintain_order=True)
        .agg(pl.col("total").sum(), most=pl.col("total").max())
        .select(*COMPLETE)
    )


def fold(
    parts: Sequence[Windows], carried: pl.DataFrame, starts: Mapping[int, datetime], gpus: pl.DataFrame, *,
    analysis: Analysis, day: date, last: bool,
) -> tuple[pl.DataFrame, pl.DataFrame]:  # fmt: skip
    """Return (one row per (run, counter) of this day's complete windows, border windows to carry to the next day).

    `gpus`: one row per run with the number of GPUs it held. `last`: nothing follows, so nothing is carried.
    """
    border = pl.concat([carried, *(part.border for part in parts)])
    unit = ["run", "node", "gpu", "mig", "counter", "window"]
    border = border.group_by(unit, maintain_order=True).agg(pl.col("n", "total").sum()).select(*BORDER)
    begun = pl.DataFrame({"run": list(starts), "begun": list(starts.values())}, schema={"run": pl.Int32, "begun": TIME})
    midnight = datetime.combine(day + timedelta(days=1), time(), UTC)
    length = pl.duration(seconds=(pl.col("window").cast(pl.Int64) + 1) * analysis.window_s)
    timed = border.join(begun, on="run", how="left").with_columns(open=(pl.col("begun") + length) > midnight)
    still_open = timed.filter("open").select(*BORDER) if not last else pl.DataFrame(schema=BORDER)
    done = timed.select(*BORDER) if last else timed.filter(~pl.col("open")).select(*BORDER)
    windows = pl.concat([*(part.complete for part in parts), _over_gpus(done)])
    windows = windows.group_by("run", "counter", "window", maintain_order=True).agg(
        pl.col("total").sum(), pl.col("most").max()
    )
    imbalance = 1 - pl.col("total") / (pl.col("held") * pl.col("most"))
    active = pl.col("most") > 0
    result = (
        windows.join(gpus.select("run", held="gpus"), on="run", how="left")
        .group_by("run", "counter")
        .agg(
            windows=pl.len().cast(pl.Int64),
            zero_windows=(~active).sum().cast(pl.Int64),
            imbalance=pl.when(active).then(imbalance).otherwise(0.0).sort_by("window").sum(),
        )
    )
    return result.select(*IMBALANCE), still_open
