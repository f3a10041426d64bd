"""Timelines: a run's minutes with its GPUs put together. They are what rules look at, and add up over partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tachograph.reduce import kernel
from tachograph.reduce.kernel import Ints, Longs, Singles
from tachograph.reduce.windows import places

# counters that say whether a GPU was working, best known first; MIG slices have no gpu_util
ACTIVITY = ("gpu_util", "gr_engine_active", "sm_active")
WORK = ("fp64_active", "fp32_active", "fp16_active", "tensor_active", "dram_active")
NEEDED = ("gpu_util", "tensor_active", "dram_active")  # of a GPU's minute that tells whether it was busy and at work
# largest of the GPUs' means; busy and work (the largest of WORK) of those where NEEDED is measured; their power added
TIMELINE: Mapping[str, pl.DataType] = MappingProxyType(
    {
        "minute": pl.Int32(),
        **dict.fromkeys((*ACTIVITY, "busy", "work"), pl.Float32()),
        "power_sum": pl.Float64(),
        "power_gpus": pl.Int32(),
    }
)
_MOST = (*ACTIVITY, "busy", "work")


def empty(key: str = "run") -> pl.DataFrame:
    """Return a timeline of nothing."""
    return pl.DataFrame(schema={key: pl.Int32() if key == "run" else pl.String(), **TIMELINE})


def of_slots(
    run: NDArray[np.int32], begin: Longs, minute: Ints, whole: NDArray[np.bool_], values: Mapping[str, Singles]
) -> pl.DataFrame:
    """Return one row per (run, minute) of the minutes that are `whole`; null where nobody measured.

    `run`: of each segment; `begin`: first minute of each, and behind the last their number. `values`: per minute the
    means of counters, NaN where there is none.
    """
    if not whole.any():
        return empty()
    runs, of_segment = np.unique(run, return_inverse=True)
    offset, owner, numbers = places(of_segment, minute[begin[:-1]], minute[begin[1:] - 1])
    place = np.repeat(offset[of_segment], np.diff(begin)) + minute
    place[~whole] = -1
    nothing = np.full(len(minute), np.nan, np.float32)
    columns = tuple(values.get(name, nothing) for name in (*ACTIVITY, *WORK, "power_w"))
    most = np.full((len(_MOST), len(owner)), -np.inf, np.float32)
    power, gpus, seen = np.zeros(len(owner)), np.zeros(len(owner), np.int32), np.zeros(len(owner), np.bool_)
    kernel.over_gpus_by_minute(place, columns, most, power, gpus, seen)
    kept = np.flatnonzero(seen)
    found = {"run": pl.Series(runs[owner[kept]], dtype=pl.Int32), "minute": pl.Series(numbers[kept], dtype=pl.Int32)}
    for name, column in zip(_MOST, most[:, kept], strict=True):
        found[name] = pl.Series(np.where(column > -np.inf, column, np.float32(np.nan))).fill_nan(None)
    return pl.DataFrame(found).with_columns(power_sum=power[kept], power_gpus=gpus[kept])


def of_minutes(rows: pl.DataFrame, *, key: str = "run") -> pl.DataFrame:
    """Return one row per (`key`, minute) of `rows`, which has one per GPU and minute."""
    complete = pl.all_horizontal(pl.col(name).is_not_null() for name in NEEDED)
    power = pl.when(complete).then(pl.col("power_w"))
    return rows.group_by(key, "minute", maintain_order=True).agg(
        *(pl.col(name).max() for name in ACTIVITY),
        busy=pl.when(complete).then(pl.col("gpu_util")).max(),
        work=pl.when(complete).then(pl.max_horizontal(*WORK)).max(),
        power_sum=power.cast(pl.Float64).sum(),
        power_gpus=power.count().cast(pl.Int32),
    )


def together(parts: Sequence[pl.DataFrame], *, key: str = "run") -> pl.DataFrame:
    """Return one row per (`key`, minute) of any number of timelines, in order; `power_w`: mean of its GPUs."""
    rows = pl.concat([empty(key), *parts]).sort(key, "minute")
    if rows.select(pl.struct(key, "minute").is_duplicated().any()).item():
        most = [pl.col(name).max() for name in _MOST]
        rows = rows.group_by(key, "minute", maintain_order=True).agg(*most, pl.col("power_sum", "power_gpus").sum())
    mean = (pl.col("power_sum") / pl.col("power_gpus")).fill_nan(None).cast(pl.Float32)
    return rows.with_columns(power_w=mean).drop("power_sum", "power_gpus")
