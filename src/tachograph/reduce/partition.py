"""One partition reduced: sorted samples and intervals in, accumulators out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import numpy as np
import polars as pl

from tachograph.config import Analysis
from tachograph.counters import COUNTERS, Counter, Kind
from tachograph.reduce import kernel
from tachograph.reduce.kernel import Floats, Longs, Singles
from tachograph.reduce.windows import Windows, windows_of
from tachograph.summarize.schema import MINUTE_MAXIMA, MINUTE_MEANS, PIPES

LOWERING_BITS = 0x4 | 0x8 | 0x20 | 0x40 | 0x80  # power cap, hardware slowdown, software and hardware thermal, brake
INTEGRATED = tuple(c.name for c in COUNTERS if c.kind is Kind.RATE or c.name == "power_w")
UNIT = ("node", "gpu", "mig")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Reduced:
    """What one partition comes to; results of several are put together by `merge`.

    segments: one row per (run, node, gpu, mig): counts, sums, maxima, borders of every counter present.
    intensities: one row per (run, pipe, bin): samples.
    windows: sums and maxima over GPUs per (run, counter, window), for spatial imbalance.
    minutes: one row per (run, node, gpu, mig, minute): means and maxima.
    samples, attributed: rows seen, rows that belong to a run; gpu_seconds likewise (rows times sampling interval).
    """

    segments: pl.DataFrame
    intensities: pl.DataFrame
    windows: Windows
    minutes: pl.DataFrame
    samples: int
    attributed: int
    gpu_seconds: float
    gpu_seconds_attributed: float


@dataclass(slots=True)
class _Layout:
    """Rows, stripes, segments and slots of a partition."""

    t: Longs
    stripes: Longs
    interval_us: Floats  # per stripe
    seg_a: Longs
    seg_b: Longs
    seg_stripe: Longs
    seg_interval: Longs
    seg_slot: Longs
    slot_a: Longs
    slot_seg: Longs
    slot_minute: kernel.Ints

    @property
    def segments(self) -> int:
        return len(self.seg_a)

    @property
    def slots(self) -> int:
        return len(self.slot_a)


def reduce_partition(
    frame: pl.DataFrame,
    intervals: pl.DataFrame,
    starts: Mapping[int, datetime],
    ridges: Mapping[tuple[str, int], tuple[float, ...]],
    *,
    analysis: Analysis,
    day: date,
) -> Reduced:
    """Return the accumulators of `frame` (gpu_samples sorted by node, gpu, mig, t; each key once).

    `intervals`: one row per stretch of a GPU owned by a run, sorted, never overlapping. `starts`: each run's start,
    at which its windows are anchored. `ridges`: FLOP/B of fp64, fp32, fp16, tensor per (node, gpu), where known.
    """
    stripe_rows = _stripe_rows(frame)
    keys = frame.select(*UNIT)[stripe_rows[:-1].tolist()] if frame.height else frame.select(*UNIT)
    layout = _lay_out(frame, stripe_rows, keys, intervals, starts)
    segments = _identity(layout, keys, intervals)
    gap = layout.interval_us[layout.seg_stripe] * analysis.max_gap_intervals
    segments.update(_spans(layout, gap))
    slot_sums: dict[str, tuple[kernel.Ints, Floats]] = {}
    for counter in COUNTERS:
        if counter.name in frame.columns and frame.get_column(counter.name).null_count() < frame.height:
            segments.update(_counter(counter, frame, layout, gap, slot_sums))
    roof, histogram = _roofline(frame, layout, keys, ridges, segments, time_weighted=analysis.time_weighted_bound)
    segments.update(roof)
    segment_frame = pl.DataFrame(segments)
    minutes = _minutes(frame, layout, segment_frame, intervals, starts, slot_sums)
    rows_per_stripe = np.diff(layout.stripes)
    seconds = np.nan_to_num(layout.interval_us) * 1e-6
    attributed = layout.seg_b - layout.seg_a
    return Reduced(
        segments=segment_frame,
        intensities=_intensities(segment_frame, histogram),
        windows=windows_of(_slot_frame(layout, segment_frame, slot_sums, analysis), starts, analysis=analysis, day=day),
        minutes=minutes,
        samples=frame.height,
        attributed=int(attributed.sum()),
        gpu_seconds=float((rows_per_stripe * seconds).sum()),
        gpu_seconds_attributed=float((attributed * seconds[layout.seg_stripe]).sum()),
    )


def _stripe_rows(frame: pl.DataFrame) -> Longs:
    """First row of each (node, gpu, mig), and behind the last the number of rows."""
    if not frame.height:
        return np.zeros(1, np.int64)
    new = pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift(1)) for name in UNIT)
    changed = frame.select(new).to_series().to_numpy()
    rows = np.flatnonzero(changed)
    if not len(rows) or rows[0] != 0:
        rows = np.concatenate([[0], rows])
    return np.concatenate([rows, [frame.height]]).astype(np.int64)


def _microseconds(column: pl.Series) -> Longs:
    return column.to_physical().to_numpy()


def _lay_out(
    frame: pl.DataFrame, stripes: Longs, keys: pl.DataFrame, intervals: pl.DataFrame, starts: Mapping[int, datetime]
) -> _Layout:
    t = _microseconds(frame.get_column("t"))
    first_of: dict[tuple[object, ...], tuple[int, int]] = {}
    for row, unit in enumerate(intervals.select(*UNIT).iter_rows()):
        first_of[unit] = (first_of.get(unit, (row, row))[0], row + 1)
    spans = [first_of.get(unit, (0, 0)) for unit in keys.iter_rows()]
    low = np.array([span[0] for span in spans], np.int64)
    high = np.array([span[1] for span in spans], np.int64)
    start, end = _microseconds(intervals.get_column("start")), _microseconds(intervals.get_column("end"))
    zero = np.array([_epoch_us(starts[run]) for run in intervals.get_column("run")], np.int64)
    interval_us = np.empty(len(stripes) - 1)
    kernel.spacing(t, stripes, interval_us)
    segments, slots = kernel.count_segments(t, stripes, low, high, start, end, zero)
    layout = _Layout(
        t=t,
        stripes=stripes,
        interval_us=interval_us,
        seg_a=np.empty(segments, np.int64),
        seg_b=np.empty(segments, np.int64),
        seg_stripe=np.empty(segments, np.int64),
        seg_interval=np.empty(segments, np.int64),
        seg_slot=np.empty(segments + 1, np.int64),
        slot_a=np.empty(slots, np.int64),
        slot_seg=np.empty(slots, np.int64),
        slot_minute=np.empty(slots, np.int32),
    )
    kernel.fill_segments(
        t, stripes, low, high, start, end, zero,
        layout.seg_a, layout.seg_b, layout.seg_stripe, layout.seg_interval, layout.seg_slot,
        layout.slot_a, layout.slot_seg, layout.slot_minute,
    )  # fmt: skip
    return layout


def _epoch_us(when: datetime) -> int:
    return (when - EPOCH) // timedelta(microseconds=1)


def _identity(layout: _Layout, keys: pl.DataFrame, intervals: pl.DataFrame) -> dict[str, pl.Series]:
    columns = {"run": intervals.get_column("run").gather(layout.seg_interval)}
    columns.update({name: keys.get_column(name).gather(layout.seg_stripe) for name in UNIT})
    return columns


def _spans(layout: _Layout, gap: Floats) -> dict[str, pl.Series]:
    return {
        "samples": pl.Series(layout.seg_b - layout.seg_a),
        "t_first": pl.Series(layout.t[layout.seg_a]),
        "t_last": pl.Series(layout.t[np.maximum(layout.seg_b - 1, 0)]),
        "interval_us": pl.Series(layout.interval_us[layout.seg_stripe]),
        "gap_us": pl.Series(gap),
    }


def _singles(frame: pl.DataFrame, name: str) -> Singles:
    """A counter as single precision, missing as NaN; without a copy where nothing is missing."""
    column = frame.get_column(name)
    if column.null_count():
        column = column.fill_null(float("nan"))
    return column.rechunk().to_numpy()


def _doubles(frame: pl.DataFrame, name: str) -> Floats:
    return frame.get_column(name).cast(pl.Float64).fill_null(float("nan")).rechunk().to_numpy()


def _counter(
    counter: Counter,
    frame: pl.DataFrame,
    layout: _Layout,
    gap: Floats,
    slot_sums: dict[str, tuple[kernel.Ints, Floats]],
) -> dict[str, pl.Series]:
    """Accumulator columns of one counter, by its kind."""
    if counter.unit == "bitmask":
        return _bits(counter.name, frame, layout)
    if counter.unit == "code":
        return _changes(counter.name, frame, layout)
    if counter.kind is Kind.CUMULATIVE:
        return _increases(counter.name, frame, layout)
    size = layout.segments
    column = _singles(frame, counter.name) if counter.storage == "f32" else _doubles(frame, counter.name).astype("f4")
    n, total, most = np.empty(size, np.int64), np.empty(size), np.empty(size)
    if counter.name in MINUTE_MEANS:
        slot_n, slot_total = np.empty(layout.slots, np.int32), np.empty(layout.slots)
        kernel.levels_by_minute(
            column, layout.seg_a, layout.seg_b, layout.seg_slot, layout.slot_a, n, total, most, slot_n, slot_total
        )
        slot_sums[counter.name] = (slot_n, slot_total)
    else:
        kernel.levels(column, layout.seg_a, layout.seg_b, n, total, most)
    columns = {f"n_{counter.name}": pl.Series(n), f"sum_{counter.name}": pl.Series(total)}
    columns[f"max_{counter.name}"] = pl.Series(np.where(n > 0, most, np.nan)).fill_nan(None)
    if counter.name == "gpu_util":
        zero = np.empty(size, np.int64)
        kernel.zeros(column, layout.seg_a, layout.seg_b, zero)
        columns["zeros_gpu_util"] = pl.Series(zero)
    if counter.name in INTEGRATED:
        columns.update(_integrals(counter.name, column, layout, gap))
    return columns


def _integrals(name: str, column: Singles, layout: _Layout, gap: Floats) -> dict[str, pl.Series]:
    area, seconds, first, last = (np.empty(layout.segments) for _ in range(4))
    kernel.integrals(layout.t, column, layout.seg_a, layout.seg_b, gap, area, seconds, first, last)
    return {
        f"area_{name}": pl.Series(area),
        f"seconds_{name}": pl.Series(seconds),
        f"first_{name}": pl.Series(first).fill_nan(None),
        f"last_{name}": pl.Series(last).fill_nan(None),
    }


def _increases(name: str, frame: pl.DataFrame, layout: _Layout) -> dict[str, pl.Series]:
    size = layout.segments
    n, t_first, t_last = (np.zeros(size, np.int64) for _ in range(3))
    first, last, grown = (np.empty(size) for _ in range(3))
    column = _doubles(frame, name)
    kernel.increases(layout.t, column, layout.seg_a, layout.seg_b, n, first, last, grown, t_first, t_last)
    seen = pl.Series(n) > 0
    times = pl.DataFrame({"a": t_first, "b": t_last, "seen": seen}).select(
        pl.when("seen").then("a").alias("a"), pl.when("seen").then("b").alias("b")
    )
    return {
        f"n_{name}": pl.Series(n),
        f"first_{name}": pl.Series(first).fill_nan(None),
        f"last_{name}": pl.Series(last).fill_nan(None),
        f"grown_{name}": pl.Series(grown),
        f"t_first_{name}": times.get_column("a"),
        f"t_last_{name}": times.get_column("b"),
    }


def _changes(name: str, frame: pl.DataFrame, layout: _Layout) -> dict[str, pl.Series]:
    size = layout.segments
    n, events = np.empty(size, np.int64), np.empty(size, np.int64)
    most, first, last = (np.empty(size) for _ in range(3))
    column = _doubles(frame, name)
    kernel.changes(column, layout.stripes, layout.seg_stripe, layout.seg_a, layout.seg_b, n, events, most, first, last)
    return {
        f"n_{name}": pl.Series(n),
        f"events_{name}": pl.Series(events),
        f"max_{name}": pl.Series(np.where(n > 0, most, np.nan)).fill_nan(None),
        f"first_{name}": pl.Series(first).fill_nan(None),
        f"last_{name}": pl.Series(last).fill_nan(None),
    }


def _bits(name: str, frame: pl.DataFrame, layout: _Layout) -> dict[str, pl.Series]:
    column = frame.get_column(name).fill_null(-1).rechunk().to_numpy()
    n, lowered, seen = (np.empty(layout.segments, np.int64) for _ in range(3))
    kernel.bits(column, LOWERING_BITS, layout.seg_a, layout.seg_b, n, lowered, seen)
    return {f"n_{name}": pl.Series(n), f"lowered_{name}": pl.Series(lowered), f"bits_{name}": pl.Series(seen)}


def _roofline(
    frame: pl.DataFrame,
    layout: _Layout,
    keys: pl.DataFrame,
    ridges: Mapping[tuple[str, int], tuple[float, ...]],
    segments: Mapping[str, pl.Series],
    *,
    time_weighted: bool,
) -> tuple[dict[str, pl.Series], Longs]:
    """Labels per pipe, and the histogram of intensities (segments x 4 x 32); nothing where memory is not measured."""
    size = layout.segments
    histogram = np.zeros((size, 4, 32), np.int64)
    names = list(PIPES.values())
    if "n_dram_active" not in segments or not any(f"n_{name}" in segments for name in names):
        return {}, histogram
    measured = np.zeros((size, 4), np.bool_)
    columns = []
    dram = _singles(frame, "dram_active")
    for place, name in enumerate(names):
        if f"n_{name}" in segments:
            measured[:, place] = segments[f"n_{name}"].to_numpy() > 0
            columns.append(_singles(frame, name))
        else:
            columns.append(dram)  # never looked at
    unknown = (float("nan"),) * 4
    of_stripe = np.array([ridges.get((node, gpu), unknown) for node, gpu, _ in keys.iter_rows()]).reshape(-1, 4)
    ridge = of_stripe[layout.seg_stripe]
    compute, memory = np.zeros((size, 4)), np.zeros((size, 4))
    idle, known = np.zeros(size), np.zeros(size)
    edges = kernel.intensity_edges()
    weight = _weights(layout) if time_weighted else np.ones(1)
    kernel.roofline(
        columns[0], columns[1], columns[2], columns[3], dram, weight, measured, ridge,
        kernel.intensity_bins(edges), edges, layout.seg_a, layout.seg_b, compute, memory, idle, known, histogram,
    )  # fmt: skip
    result = {"idle": pl.Series(idle), "known": pl.Series(known)}
    for place, pipe in enumerate(PIPES):
        seen = measured[:, place]
        result[f"compute_{pipe}"] = pl.Series(np.where(seen, compute[:, place], 0.0))
        result[f"memory_{pipe}"] = pl.Series(np.where(seen, memory[:, place], 0.0))
    return result, np.where(measured[:, :, None], histogram, 0)


def _weights(layout: _Layout) -> Floats:
    """Seconds each sample stands for: until the next of its GPU, a silence counting as one sampling interval."""
    distance = np.empty(len(layout.t))
    distance[:-1] = np.diff(layout.t)
    typical = np.repeat(np.nan_to_num(layout.interval_us, nan=1e6), np.diff(layout.stripes))
    ends = layout.stripes[1:] - 1
    distance[ends] = typical[ends]
    return np.asarray(np.where(distance > 3 * typical, typical, distance) * 1e-6)


def _intensities(segments: pl.DataFrame, histogram: Longs) -> pl.DataFrame:
    """One row per (run, pipe, bin) that has samples."""
    segment, pipe, place = np.nonzero(histogram)
    frame = pl.DataFrame(
        {
            "run": segments.get_column("run").gather(segment),
            "bin": pl.Series(pipe * 32 + place, dtype=pl.Int32),
            "samples": pl.Series(histogram[segment, pipe, place], dtype=pl.Int64),
        }
    )
    return frame.group_by("run", "bin").agg(pl.col("samples").sum())


def _slot_frame(
    layout: _Layout, segments: pl.DataFrame, slot_sums: Mapping[str, tuple[kernel.Ints, Floats]], analysis: Analysis
) -> pl.DataFrame:
    """One row per slot: run, unit, minute, and value count and sum of the counters whose imbalance is wanted."""
    columns: dict[str, pl.Series] = {name: segments.get_column(name).gather(layout.slot_seg) for name in ("run", *UNIT)}
    columns["minute"] = pl.Series(layout.slot_minute)
    for name in analysis.imbalance_counters:
        if name in slot_sums:
            n, total = slot_sums[name]
            columns[f"n_{name}"], columns[f"sum_{name}"] = pl.Series(n), pl.Series(total)
    return pl.DataFrame(columns)


def _minutes(
    frame: pl.DataFrame,
    layout: _Layout,
    segments: pl.DataFrame,
    intervals: pl.DataFrame,
    starts: Mapping[int, datetime],
    slot_sums: Mapping[str, tuple[kernel.Ints, Floats]],
) -> pl.DataFrame:
    """One row per slot, means as single precision; `weight_<counter>` is not kept: a minute is a minute."""
    columns: dict[str, pl.Series] = {name: segments.get_column(name).gather(layout.slot_seg) for name in ("run", *UNIT)}
    columns["minute"] = pl.Series(layout.slot_minute)
    ends = np.append(layout.slot_a[1:], 0)
    last_of_segment = layout.seg_slot[1:] - 1
    ends[last_of_segment] = layout.seg_b
    columns["samples"] = pl.Series((ends - layout.slot_a).astype(np.int32))
    for name in MINUTE_MEANS:
        if name in slot_sums:
            n, total = slot_sums[name]
            with np.errstate(invalid="ignore", divide="ignore"):
                columns[name] = pl.Series((total / n).astype(np.float32)).fill_nan(None)
        else:
            columns[name] = pl.repeat(None, layout.slots, dtype=pl.Float32, eager=True)
    for name in MINUTE_MAXIMA:
        if name in frame.columns:
            most = np.empty(layout.slots, np.float32)
            kernel.most_by_minute(_singles(frame, name), layout.seg_b, layout.seg_slot, layout.slot_a, most)
            columns[name] = pl.Series(most).fill_nan(None)
        else:
            columns[name] = pl.repeat(None, layout.slots, dtype=pl.Float32, eager=True)
    return pl.DataFrame(columns)
