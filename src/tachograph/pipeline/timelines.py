"""Timelines: a run's minutes over all its GPUs, which are judged and can be added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tachograph.catalog.arrays import Ints, Longs, Singles
from tachograph.pipeline import kernel
from tachograph.pipeline.windows import window_places

# counters that show whether a GPU was working, best known first; MIG slices have no gpu_util
ACTIVITY = ("gpu_util", "gr_engine_active", "sm_active")
WORK = ("fp64_active", "fp32_active", "fp16_active", "tensor_active", "dram_active")
# Of a GPU's minute that shows whether it was busy and at work.
NEEDED = ("gpu_util", "tensor_active", "dram_active")
# what a job's GPUs do on average; bytes of both directions together
AVERAGED = (
    "gpu_util",
    "gr_engine_active",
    "sm_active",
    "tensor_active",
    "dram_active",
    "power_w",
    "pcie",
    "nvlink",
)
# The largest of the GPUs' means; busy and work (the largest of WORK) of those where NEEDED is
# measured, and power of those. Sums over GPUs and their number: of AVERAGED; of GPUs with known
# activity (`measured`) those that were idle, their power, and the activity of the others.
_MOST = (*ACTIVITY, "busy", "work", "highest_power_w", "mem_copy_util")
_SUMS = ("power_sum", *(f"sum_{name}" for name in AVERAGED), "idle_power_w", "active_sum")
_COUNTS = ("power_gpus", *(f"gpus_{name}" for name in AVERAGED), "measured_gpus", "idle_gpus")
TIMELINE: Mapping[str, pl.DataType] = MappingProxyType(
    {
        "minute": pl.Int32(),
        **dict.fromkeys(_MOST, pl.Float32()),
        **dict.fromkeys(_SUMS, pl.Float64()),
        **dict.fromkeys(_COUNTS, pl.Int32()),
    }
)
_COLUMNS = (*ACTIVITY, *WORK, "power_w", *("pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"),
            *("nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s"), "mem_copy_util")  # fmt: skip


def empty_timeline(key: str = "run") -> pl.DataFrame:
    """Return a timeline of nothing."""
    return pl.DataFrame(schema={key: pl.Int32() if key == "run" else pl.String(), **TIMELINE})


def timeline_of_slots(
    run: NDArray[np.int32],
    begin: Longs,
    minute: Ints,
    whole: NDArray[np.bool_],
    values: Mapping[str, Singles],
    *,
    idle_util: float,
) -> pl.DataFrame:
    """Return one row per (run, minute) of `whole` minutes; null: not measured.

    `run`: of each segment; `begin`: first minute of each, then their number. `values`: means of
    counters per minute, NaN without any. A GPU is idle in a minute with activity below `idle_util`.
    """
    if not whole.any():
        return empty_timeline()
    runs, of_segment = np.unique(run, return_inverse=True)
    offset, owner, numbers = window_places(of_segment, minute[begin[:-1]], minute[begin[1:] - 1])
    position = np.repeat(offset[of_segment], np.diff(begin)) + minute
    position[~whole] = -1
    nothing = np.full(len(minute), np.nan, np.float32)
    columns = tuple(values.get(name, nothing) for name in _COLUMNS)
    highest = np.full((len(_MOST), len(owner)), -np.inf, np.float32)
    sums, counts = (
        np.zeros((len(_SUMS), len(owner))),
        np.zeros((len(_COUNTS), len(owner)), np.int32),
    )
    present = np.zeros(len(owner), np.bool_)
    kernel.over_gpus_by_minute(
        position, columns, np.float32(idle_util), highest, sums, counts, present
    )
    rows = np.flatnonzero(present)
    timeline = {
        "run": pl.Series(runs[owner[rows]], dtype=pl.Int32),
        "minute": pl.Series(numbers[rows], dtype=pl.Int32),
    }
    for name, column in zip(_MOST, highest[:, rows], strict=True):
        timeline[name] = pl.Series(np.where(column > -np.inf, column, np.float32(np.nan))).fill_nan(
            None
        )
    timeline |= {name: pl.Series(column) for name, column in zip(_SUMS, sums[:, rows], strict=True)}
    timeline |= {
        name: pl.Series(column) for name, column in zip(_COUNTS, counts[:, rows], strict=True)
    }
    return pl.DataFrame(timeline)


def timeline_of_minutes(rows: pl.DataFrame, *, idle_util: float, key: str = "run") -> pl.DataFrame:
    """Return one row per (`key`, minute) from one row per GPU and minute."""
    complete = pl.all_horizontal(pl.col(name).is_not_null() for name in NEEDED)
    power = pl.when(complete).then(pl.col("power_w"))
    averaged = {
        **{name: pl.col(name) for name in AVERAGED if name not in ("pcie", "nvlink")},
        "pcie": _both("pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"),
        "nvlink": _both("nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s"),
    }
    activity = pl.coalesce(ACTIVITY)
    idle = activity < pl.lit(idle_util, dtype=pl.Float32)
    return rows.group_by(key, "minute").agg(
        *(pl.col(name).max() for name in ACTIVITY),
        busy=pl.when(complete).then(pl.col("gpu_util")).max(),
        work=pl.when(complete).then(pl.max_horizontal(*WORK)).max(),
        highest_power_w=pl.col("power_w").max(),
        mem_copy_util=pl.col("mem_copy_util").max(),
        power_sum=power.cast(pl.Float64).sum(),
        **{f"sum_{name}": value.cast(pl.Float64).sum() for name, value in averaged.items()},
        idle_power_w=pl.when(idle).then(pl.col("power_w")).cast(pl.Float64).sum(),
        active_sum=pl.when(~idle).then(activity).cast(pl.Float64).sum(),
        power_gpus=power.count().cast(pl.Int32),
        **{f"gpus_{name}": value.count().cast(pl.Int32) for name, value in averaged.items()},
        measured_gpus=activity.count().cast(pl.Int32),
        idle_gpus=idle.sum().cast(pl.Int32),
    )


def merge_timelines(parts: Sequence[pl.DataFrame], *, key: str = "run") -> pl.DataFrame:
    """Return one row per (`key`, minute) of any number of timelines, in order.

    `power_w`: mean of the GPUs with known activity and work. `mean_<name>`: of AVERAGED, over GPUs
    that have it.
    """
    rows = pl.concat([empty_timeline(key), *parts]).sort(key, "minute")
    if rows.select(pl.struct(key, "minute").is_duplicated().any()).item():
        maxima = [pl.col(name).max() for name in _MOST]
        rows = rows.group_by(key, "minute", maintain_order=True).agg(
            *maxima, pl.col(*_SUMS, *_COUNTS).sum()
        )
    means = {f"mean_{name}": _mean(f"sum_{name}", f"gpus_{name}") for name in AVERAGED}
    rows = rows.with_columns(power_w=_mean("power_sum", "power_gpus"), **means)
    return rows.drop(
        "power_sum",
        "power_gpus",
        *(f"{stem}_{name}" for stem in ("sum", "gpus") for name in AVERAGED),
    )


def timelines_of(minutes: pl.DataFrame, *, idle_util: float) -> pl.DataFrame:
    """Return timelines of job_minutes: one row per (job_key, minute) over all GPUs, in order.

    Columns: `minute`; the largest mean of the GPUs for each of ACTIVITY; `busy`, `work`, `power_w`:
    utilisation and work (arithmetic or memory traffic) of the busiest and mean power, of the GPUs
    with known utilisation and work; `highest_power_w`, `mem_copy_util`: the largest;
    `mean_<name>` of AVERAGED; `measured_gpus`, `idle_gpus`: GPUs with known activity, and idle ones
    (below `idle_util`), `idle_power_w` their power; `active_sum`: activity of the others, added up.
    """
    return merge_timelines(
        [timeline_of_minutes(minutes, idle_util=idle_util, key="job_key")], key="job_key"
    )


def _mean(total: str, count: str) -> pl.Expr:
    return (pl.col(total) / pl.col(count)).fill_nan(None).cast(pl.Float32)


def _both(sent: str, received: str) -> pl.Expr:
    """Bytes of both directions, or of the measured one."""
    return pl.when(pl.any_horizontal(pl.col(sent, received).is_not_null())).then(
        pl.sum_horizontal(sent, received)
    )
