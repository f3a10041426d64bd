"""Characteristics of jobs by minute, as flat arrays; their means per node and GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tachograph.catalog.arrays import Bytes, Flags, Ints, Longs, Singles
from tachograph.catalog.devices import DEVICES_BY_NAME
from tachograph.catalog.tables import HOST_CHARACTERISTICS
from tachograph.judge.classes import kernel
from tachograph.judge.classes.characteristics import (
    AWAKE,
    FIRST_WORK,
    GPU,
    HOST,
    SM_AWAKE,
    SM_BUSY,
    SPINNING,
    WORK,
)
from tachograph.judge.classes.work_level import WORKING, MinuteColumns, work_levels
from tachograph.pipeline.timelines import ACTIVITY

ALL_REPORT = 0.9  # of a job's GPUs: a few of very many may report nothing
# column of job_gpus that shows whether a GPU ever reported a characteristic
_REPORTED_BY: Mapping[str, tuple[str, ...]] = {
    name: tuple(f"{counter}_mean" for counter in c.needs) for name, c in GPU.items()
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Series:
    """Characteristics of jobs in sequence, one element per minute since the job's start.

    `offset`: first place of each job, and behind the last their number; a job's places end with its
    last minute, as of when it is judged. `values`: {characteristic: value per place}, NaN where not
    measured. `works`: marks, kernel.WORKS where a GPU of the job surely works, so that the minute
    is not idle, kernel.LIGHT where one has a light load. `looks_busy`: utilisation of the busiest
    GPU. `work_level`: see `judge.classes.work_level`; of hosts unknown.
    """

    job_keys: tuple[str, ...]
    offset: Longs
    values: Mapping[str, Singles]
    works: Bytes
    looks_busy: Singles
    work_level: Singles

    @property
    def minutes(self) -> Longs:
        """Minutes of each job."""
        return np.diff(self.offset)

    def of(self, name: str) -> Singles:
        """Return the values of a characteristic; NaN everywhere where it was never measured."""
        found = self.values.get(name)
        return np.full(int(self.offset[-1]), np.nan, np.float32) if found is None else found

    def measures(self, name: str) -> Flags:
        """Return which jobs have a measured minute of a characteristic."""
        known = np.concatenate(([0], np.cumsum(~np.isnan(self.of(name)))))
        measured: Flags = np.diff(known[self.offset]) > 0
        return measured


@dataclass(frozen=True, slots=True)
class IdleTimes:
    """Per job: first and last minute of work (-1: none), longest idle interval, minutes."""

    first: Ints
    last: Ints
    longest: Ints
    measured: Ints


def gpu_series(
    jobs: pl.DataFrame, timelines: pl.DataFrame, *, gpus: pl.DataFrame | None = None
) -> Series:
    """Return the GPU characteristics of `jobs` (rows of job_summaries), the mean over a job's GPUs.

    `timelines`: one row per (job_key, minute), jobs together, as `reduce.timelines` returns them.
    `gpus`: rows of job_gpus, the GPUs that each job held and what they report; None: a GPU reports
    all or nothing. Power is a share of the board's power, or of the job's own highest minute where
    the device is unknown. A minute in which some GPUs of the job report nothing counts as not
    measured, unless another is at work: their load may differ from that of the others. So does a
    characteristic that some never report, in minutes in which activity does not show all of them
    idle.
    """
    places = _places(jobs, timelines)
    values = {name: places.put(timelines, c.column) for name, c in GPU.items()}
    known = places.put(timelines, "measured_gpus")
    sm, work = places.put(timelines, "sm_active"), _work(places, timelines, values, known)
    boards = np.array([board_power_w(model) or np.nan for model in jobs["gpu_model"]], np.float32)
    values["power"] = _share_of_power(values["power"], places.offset, boards)
    looks_busy = _activity(places, timelines)
    # NaN fails all comparisons.
    light = ((looks_busy >= AWAKE) | (sm >= SM_AWAKE)) & (looks_busy < SPINNING)
    surely = (work >= WORK) | (sm >= SM_BUSY)
    works = np.where(surely, kernel.WORKS, np.where(light, kernel.LIGHT, 0)).astype(np.uint8)
    held, by_some_of = _reports(places.keys, gpus)
    partial = _partly_measured(known, places.offset, held)
    unsure = ~surely & (partial | ~(looks_busy < AWAKE))
    lengths = np.diff(places.offset)
    some = {name: np.repeat(by_some_of[name], lengths) for name in values}
    by_some = some["tensor_active"] | some["dram_active"]
    columns = MinuteColumns(
        util=looks_busy,
        # the others of the GPUs may work
        work=np.where(by_some & ~(work >= WORK), np.float32(np.nan), work),
        sm=sm,
        memory=places.put(timelines, "mem_copy_util"),
        power_w=np.where(
            some["power"], np.float32(np.nan), places.put(timelines, "highest_power_w")
        ),
        pcie=values["pcie"],
        nvlink=values["nvlink"],
    )
    level = work_levels(columns, places.offset, boards)
    for name, each in values.items():
        each[partial & ~surely] = np.nan
        each[unsure & some[name]] = np.nan
    looks_busy[partial & (works == 0) & (looks_busy < SPINNING)] = np.nan
    level[partial & ~(level >= WORKING)] = np.nan
    return Series(places.keys, places.offset, MappingProxyType(values), works, looks_busy, level)


def host_series(jobs: pl.DataFrame, node_minutes: pl.DataFrame, timelines: pl.DataFrame) -> Series:
    """Return the host characteristics of `jobs`, means over reporting nodes, and gpu_util.

    `node_minutes`: rows of job_node_minutes.
    """
    names = [name for name in HOST if name != "gpu_util"]
    means = (
        node_minutes.group_by("job_key", "minute")
        .agg(pl.col(names).mean())
        .sort("job_key", "minute")
    )
    places = _places(jobs, means)
    values = {name: places.put(means, name) for name in names}
    values["gpu_util"] = _Places(
        places.keys, places.offset, *_rows(places.keys, places.offset, timelines)
    ).put(timelines, "mean_gpu_util")
    size = int(places.offset[-1])
    unknown = np.full(size, np.nan, np.float32)
    marks = np.zeros(size, np.uint8)
    return Series(places.keys, places.offset, MappingProxyType(values), marks, unknown, unknown)


def idle_times(series: Series) -> IdleTimes:
    """Return when the GPUs of each job were at work and idle, by the activity of the busiest.

    >>> busy = np.array([0, 0, 1, 0, 1], np.float32)
    >>> found = idle_times(Series(("job",), np.array([0, 5]), {}, np.zeros(5, np.uint8), busy, busy))
    >>> int(found.first[0]), int(found.last[0]), int(found.longest[0])
    (2, 4, 2)
    """
    busy, offset = series.looks_busy, series.offset
    alive = np.where(np.isnan(busy), -1, (busy >= FIRST_WORK).astype(np.int8)).astype(np.int8)
    found = IdleTimes(*(np.zeros(len(offset) - 1, np.int32) for _ in range(4)))
    kernel.idle_times(alive, offset, found.first, found.last, found.longest, found.measured)
    return found


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the rows of a frame go: `rows` of it to `target`."""

    keys: tuple[str, ...]
    offset: Longs
    rows: NDArray[np.bool_]
    target: Longs

    def put(self, frame: pl.DataFrame, column: str) -> Singles:
        values = np.full(int(self.offset[-1]), np.nan, np.float32)
        if column in frame.columns:
            # Null becomes NaN.
            values[self.target] = frame.get_column(column).cast(pl.Float32).to_numpy()[self.rows]
        return values


def _places(jobs: pl.DataFrame, frame: pl.DataFrame) -> _Places:
    """One element per minute from start to end; of a running job to the last measured minute."""
    keys = tuple(jobs["job_key"].to_list())
    measured = frame.group_by("job_key").agg(measured=pl.col("minute").max() + 1)
    run = (pl.col("as_of") - pl.col("start")).dt.total_microseconds()
    ran = (run / 1e6 / 60).ceil().cast(pl.Int64).fill_null(0)
    is_running = (pl.col("state") == "RUNNING") & pl.col("measured").is_not_null()
    lengths = (
        jobs.join(measured, on="job_key", how="left", maintain_order="left")
        .select(
            pl.max_horizontal(
                pl.col("measured").fill_null(0), pl.when(is_running).then(0).otherwise(ran), 0
            )
        )
        .to_series()
        .to_numpy()
    )
    offset = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))).astype(np.int64)
    return _Places(keys, offset, *_rows(keys, offset, frame))


def _rows(
    keys: Sequence[str], offset: Longs, frame: pl.DataFrame
) -> tuple[NDArray[np.bool_], Longs]:
    """Which rows of `frame` belong to a place, and to which."""
    begin = dict(zip(keys, offset.tolist(), strict=False))
    runs = frame.get_column("job_key").rle().struct.unnest()
    first = np.array([begin.get(key, -1) for key in runs.get_column("value")], np.int64)
    ends = dict(zip(keys, offset[1:].tolist(), strict=True))
    end = np.array([ends.get(key, -1) for key in runs.get_column("value")], np.int64)
    lengths = runs.get_column("len").to_numpy()
    minute = frame.get_column("minute").to_numpy().astype(np.int64)
    place = np.repeat(first, lengths) + minute
    rows = (np.repeat(first, lengths) >= 0) & (minute >= 0) & (place < np.repeat(end, lengths))
    return rows, place[rows]


def _activity(places: _Places, timelines: pl.DataFrame) -> Singles:
    """Activity of the busiest GPU in each minute, by the first counter that reports it.

    Where GPUs report different counters it is at least the mean of those at work, each by its own.
    """
    found = places.put(timelines, ACTIVITY[0])
    for name in ACTIVITY[1:]:
        other = places.put(timelines, name)
        found = np.where(np.isnan(found), other, found)
    active = places.put(timelines, "measured_gpus") - places.put(timelines, "idle_gpus")
    return np.fmax(
        found,
        places.put(timelines, "active_sum") / np.where(active > 0, active, np.float32(np.nan)),
    )


def _work(
    places: _Places, timelines: pl.DataFrame, values: Mapping[str, Singles], measured: Singles
) -> Singles:
    """Arithmetic or memory traffic of the busiest GPU, or an upper bound if not recorded.

    They record it for GPUs that report utilisation, too, and MIG slices do not: no GPU can do more
    than all together.
    """
    work = places.put(timelines, "work")
    most = np.fmax(values["tensor_active"], values["dram_active"]) * measured
    return np.where(np.isnan(work), most, work)


def _reports(keys: Sequence[str], gpus: pl.DataFrame | None) -> tuple[Singles, Mapping[str, Flags]]:
    """Return how many GPUs each job held (0: unknown), and where not all report, some do not.

    Of each characteristic the jobs in which too many GPUs never report it.
    """
    if gpus is None:
        return np.zeros(len(keys), np.float32), dict.fromkeys(GPU, np.zeros(len(keys), np.bool_))
    counted = gpus.group_by("job_key").agg(
        pl.len().alias("held"),
        **{name: pl.any_horizontal(pl.col(_REPORTED_BY[name]).is_not_null()).sum() for name in GPU},
    )
    jobs = pl.DataFrame({"job_key": keys}, schema={"job_key": pl.String})
    of_jobs = jobs.join(counted, on="job_key", how="left", maintain_order="left").fill_null(0)
    counts = {name: of_jobs.get_column(name).cast(pl.Float32).to_numpy() for name in ("held", *GPU)}
    held = counts.pop("held")
    return held, {name: known < ALL_REPORT * held for name, known in counts.items()}


def _partly_measured(measured: Singles, offset: Longs, held: Singles) -> NDArray[np.bool_]:
    """Minutes with fewer reporting GPUs than the job held, or than in its best minute."""
    most = held.copy()
    there = np.diff(offset) > 0
    if there.any():
        most[there] = np.fmax(most[there], np.fmax.reduceat(measured, offset[:-1][there]))
    # NaN: no GPU reports.
    return np.asarray(measured < ALL_REPORT * np.repeat(most, np.diff(offset)))


def _share_of_power(watts: Singles, offset: Longs, boards: Singles) -> Singles:
    highest = np.zeros(len(boards), np.float32)
    lengths = np.diff(offset)
    there = lengths > 0
    if there.any():
        filled = np.where(np.isnan(watts), np.float32(0), watts)
        highest[there] = np.maximum.reduceat(filled, offset[:-1][there])
    whole = np.where(np.isnan(boards), highest, boards)
    whole[~(whole > 0)] = np.nan
    share: Singles = (watts / np.repeat(whole, lengths)).astype(np.float32)
    return share


def board_power_w(model: str | None) -> float | None:
    """Return the board power of a catalogue device; None for other or several models.

    >>> board_power_w("A100 SXM 40GB"), board_power_w("A100 SXM 40GB+A40"), board_power_w(None)
    (400, None, None)
    """
    device = None if model is None else DEVICES_BY_NAME.get(model)
    return None if device is None else device.board_power_w


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

    `offset`: first of each job, and behind the last their number. `labels`: (node, gpu, mig); gpu
    and mig are None of nodes. `values`: {characteristic: mean}, NaN not measured.
    """

    offset: Longs
    labels: Sequence[tuple[str, int | None, int | None]]
    values: Mapping[str, Singles]


@dataclass(frozen=True, slots=True)
class Extremes:
    """Per job the highest and lowest mean of its units, and the number reporting. NaN: none."""

    busiest: Singles
    least: Singles
    measured: Longs


def gpu_units(job_keys: Sequence[str], gpus: pl.DataFrame) -> Units:
    """Return the GPUs of jobs from rows of job_gpus."""
    return _units(job_keys, _with_power(gpus), ("node", "gpu", "mig"), (*_OF_GPUS, "power"))


def node_units(job_keys: Sequence[str], gpus: pl.DataFrame) -> Units:
    """Return the nodes of jobs, each with the mean of its GPUs."""
    names = (*_OF_GPUS, "power")
    means = _with_power(gpus).group_by("job_key", "node").agg(pl.col(names).mean())
    return _units(job_keys, _as_nodes(means), ("node", "gpu", "mig"), names)


def host_units(job_keys: Sequence[str], node_minutes: pl.DataFrame, gpus: pl.DataFrame) -> Units:
    """Return the nodes of jobs with host characteristics, and mean utilisation of their GPUs."""
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
    found = Extremes(
        np.full(jobs, np.nan, np.float32),
        np.full(jobs, np.nan, np.float32),
        np.zeros(jobs, np.int64),
    )
    there = np.diff(units.offset) > 0
    if there.any():
        begins = units.offset[:-1][there]
        found.busiest[there] = np.fmax.reduceat(values, begins)
        found.least[there] = np.fmin.reduceat(values, begins)
        found.measured[there] = np.add.reduceat((~np.isnan(values)).astype(np.int64), begins)
    return found


def _with_power(gpus: pl.DataFrame) -> pl.DataFrame:
    models = gpus.get_column("gpu_model").unique().to_list()
    board = {model: board_power_w(model) for model in models if model is not None}
    watts = pl.col("gpu_model").replace_strict(board, default=None, return_dtype=pl.Float64)
    return gpus.select(
        "job_key",
        "node",
        "gpu",
        "mig",
        *(pl.col(column).alias(name) for name, column in _OF_GPUS.items()),
        power=pl.col("power_w_mean") / watts,
    )


def _as_nodes(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(gpu=pl.lit(None, pl.Int16), mig=pl.lit(None, pl.Int16))


def _units(
    job_keys: Sequence[str], frame: pl.DataFrame, label: Sequence[str], names: Sequence[str]
) -> Units:
    order = pl.DataFrame({"job_key": list(job_keys)}, schema={"job_key": pl.String}).with_row_index(
        "job"
    )
    rows = frame.join(order, on="job_key", how="inner").sort("job", *label)
    counts = np.bincount(rows.get_column("job").to_numpy(), minlength=len(job_keys))
    offset = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    # Null becomes NaN.
    values = {name: rows.get_column(name).cast(pl.Float32).to_numpy() for name in names}
    return Units(
        offset, list(zip(*(rows.get_column(name).to_list() for name in label), strict=True)), values
    )
