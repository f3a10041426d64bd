"""A job's GPU activity over time in few enough bins to draw."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from tachograph.catalog.tables import MINUTE_MAXIMA, MINUTE_MEANS

MAX_BINS = 240
Series = tuple[float | None, ...]
GpuKey = tuple[str, int, int | None]


@dataclass(frozen=True, slots=True)
class JobTimeline:
    """Series of `bins` bins of `bin_s` seconds from the job's start; None: not measured.

    `per_gpu` is the mean of counter `counter` for each (node, gpu, mig); `means` are means over
    GPUs of each counter (maxima for hbm_used_mib); `power_low` and `power_high` are the lowest and
    highest GPU's mean power.
    """

    bin_s: float
    bins: int
    counter: str | None = None
    per_gpu: Mapping[GpuKey, Series] = field(default_factory=dict)
    means: Mapping[str, Series] = field(default_factory=dict)
    power_low: Series = ()
    power_high: Series = ()


def build_timeline(
    minutes: pl.DataFrame, *, elapsed_s: float | None, counter: str | None
) -> JobTimeline:
    """Return the timeline of one job's rows of job_minutes, at most MAX_BINS long."""
    last = int(minutes.select(pl.col("minute").max()).item()) if minutes.height else -1
    length = max(last + 1, math.ceil((elapsed_s or 0) / 60))
    per_bin = max(1, math.ceil(length / MAX_BINS))
    bins = math.ceil(length / per_bin)
    if minutes.is_empty():
        return JobTimeline(per_bin * 60.0, bins)
    binned = minutes.filter(pl.col("minute") >= 0).with_columns(place=pl.col("minute") // per_bin)
    by_gpu = binned.group_by("node", "gpu", "mig", "place").agg(pl.col(*MINUTE_MEANS).mean())
    overall = (
        by_gpu.group_by("place")
        .agg(
            pl.col(*MINUTE_MEANS).mean(),
            power_low=pl.col("power_w").min(),
            power_high=pl.col("power_w").max(),
        )
        .join(binned.group_by("place").agg(pl.col(*MINUTE_MAXIMA).max()), on="place")
    )
    names = (*MINUTE_MEANS, *MINUTE_MAXIMA)
    series = {name: _series(overall, name, bins) for name in (*names, "power_low", "power_high")}
    low, high = series.pop("power_low"), series.pop("power_high")
    means = {
        name: values
        for name, values in series.items()
        if any(value is not None for value in values)
    }
    per_gpu = _per_gpu(by_gpu, counter, bins) if counter in MINUTE_MEANS else {}
    return JobTimeline(per_bin * 60.0, bins, counter, per_gpu, means, low, high)


def _per_gpu(by_gpu: pl.DataFrame, counter: str | None, bins: int) -> dict[GpuKey, Series]:
    groups = by_gpu.partition_by("node", "gpu", "mig", as_dict=True)
    return {
        (str(node), int(gpu), mig): _series(rows, str(counter), bins)
        for (node, gpu, mig), rows in groups.items()
    }


def _series(rows: pl.DataFrame, name: str, bins: int) -> Series:
    values: list[Any] = [None] * bins
    for place, value in zip(
        rows.get_column("place").to_list(), rows.get_column(name).to_list(), strict=True
    ):
        values[place] = value
    return tuple(values)
