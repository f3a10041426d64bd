"""Units of jobs: means over time of each node, or each GPU, of many jobs; the busiest and the least busy of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from tachograph.arrays import Longs, Singles
from tachograph.classes.series import board_power_w
from tachograph.summarize.schema import HOST_CHARACTERISTICS

# of job_gpus; power becomes a share of the board's
_OF_GPUS = {
    "gpu_util": "gpu_util_mean",
    "sm_active": "sm_active_mean",
    "tensor_active": "tensor_active_mean",
    "dram_active": "dram_active_mean",
}


@dataclass(frozen=True, slots=True)
class Units:
    """Nodes, or GPUs, of many jobs, one job behind the other.

    `offset`: first of each job, and behind the last their number. `labels`: (node, gpu, mig); gpu and mig are None
    of nodes. `values`: {characteristic: mean}, NaN not measured.
    """

    offset: Longs
    labels: Sequence[tuple[str, int | None, int | None]]
    values: Mapping[str, Singles]


@dataclass(frozen=True, slots=True)
class Extremes:
    """Per job the highest and the lowest mean of its units, and how many tell it. NaN: none does."""

    busiest: Singles
    least: Singles
    told: Longs


def gpu_units(job_keys: Sequence[str], gpus: pl.DataFrame) -> Units:
    """Return the GPUs of jobs from rows of job_gpus."""
    return _units(job_keys, _with_power(gpus), ("node", "gpu", "mig"), (*_OF_GPUS, "power"))


def node_units(job_keys: Sequence[str], gpus: pl.DataFrame) -> Units:
    """Return the nodes of jobs, each with the mean of its GPUs."""
    names = (*_OF_GPUS, "power")
    means = _with_power(gpus).group_by("job_key", "node").agg(pl.col(names).mean())
    return _units(job_keys, _as_nodes(means), ("node", "gpu", "mig"), names)


def host_units(job_keys: Sequence[str], node_minutes: pl.DataFrame, gpus: pl.DataFrame) -> Units:
    """Return the nodes of jobs with their host characteristics, and the mean utilisation of their GPUs."""
    names = tuple(HOST_CHARACTERISTICS)
    means = node_minutes.group_by("job_key", "node").agg(pl.col(names).mean())
    util = gpus.group_by("job_key", "node").agg(gpu_util=pl.col("gpu_util_mean").mean())
    both = means.join(util, on=["job_key", "node"], how="left")
    return _units(job_keys, _as_nodes(both), ("node", "gpu", "mig"), (*names, "gpu_util"))


def extremes(units: Units, name: str) -> Extremes:
    """Return the busiest and the least busy unit of each job by one characteristic.

    >>> of = Units(np.array([0, 2]), [("n1", 0, None), ("n1", 1, None)], {"x": np.array([0.5, 0.125], np.float32)})
    >>> float(extremes(of, "x").busiest[0]), float(extremes(of, "x").least[0])
    (0.5, 0.125)
    """
    jobs, values = len(units.offset) - 1, units.values[name]
    found = Extremes(np.full(jobs, np.nan, np.float32), np.full(jobs, np.nan, np.float32), np.zeros(jobs, np.int64))
    there = np.diff(units.offset) > 0
    if there.any():
        begins = units.offset[:-1][there]
        found.busiest[there] = np.fmax.reduceat(values, begins)
        found.least[there] = np.fmin.reduceat(values, begins)
        found.told[there] = np.add.reduceat((~np.isnan(values)).astype(np.int64), begins)
    return found


def _with_power(gpus: pl.DataFrame) -> pl.DataFrame:
    models = gpus.get_column("gpu_model").unique().to_list()
    board = {model: board_power_w(model) for model in models if model is not None}
    watts = pl.col("gpu_model").replace_strict(board, default=None, return_dtype=pl.Float64)
    return gpus.select(
        "job_key",
        *("node", "gpu", "mig"),
        *(pl.col(column).alias(name) for name, column in _OF_GPUS.items()),
        power=pl.col("power_w_mean") / watts,
    )


def _as_nodes(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(gpu=pl.lit(None, pl.Int16), mig=pl.lit(None, pl.Int16))


def _units(job_keys: Sequence[str], frame: pl.DataFrame, label: Sequence[str], names: Sequence[str]) -> Units:
    order = pl.DataFrame({"job_key": list(job_keys)}, schema={"job_key": pl.String}).with_row_index("job")
    rows = frame.join(order, on="job_key", how="inner").sort("job", *label)
    counts = np.bincount(rows.get_column("job").to_numpy(), minlength=len(job_keys))
    offset = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    values = {name: rows.get_column(name).cast(pl.Float32).to_numpy() for name in names}  # null becomes NaN
    return Units(offset, list(zip(*(rows.get_column(name).to_list() for name in label), strict=True)), values)
