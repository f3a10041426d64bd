"""Reduction of a partition: sorted samples and intervals in, accumulators out."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from types import MappingProxyType
from typing import Protocol

import numpy as np
import polars as pl

from tachograph.catalog.arrays import Bytes, Flags, Floats, Ints, Longs, Singles
from tachograph.catalog.config import AnalysisOptions
from tachograph.catalog.counters import COUNTERS, Counter, CounterKind
from tachograph.catalog.tables import GPU_KEY, MINUTE_MAXIMA, MINUTE_MEANS, PIPES
from tachograph.catalog.units import microseconds
from tachograph.pipeline import kernel
from tachograph.pipeline.accumulators import Accumulators
from tachograph.pipeline.minutes import PartitionMinutes
from tachograph.pipeline.sampling import Sampling
from tachograph.pipeline.statistics import (
    AREA,
    BITS,
    COMPUTE,
    EVENTS,
    FIRST,
    FIRST_TIME,
    GROWN,
    HIGHEST,
    HIGHEST_NEW,
    INTEGRATED,
    LABEL,
    LAST,
    LAST_TIME,
    LOWERED,
    MEMORY,
    SAMPLES,
    SECONDS,
    SQUARE,
    SQUARED,
    TOTAL,
    ZEROS,
)
from tachograph.pipeline.windows import MinuteSlots, windows_of

INTERVAL_DIGITS = 3  # of intervals that are counted apart: jitter is below
# Power cap, hardware slowdown, software and hardware thermal, brake.
LOWERING_BITS = 0x4 | 0x8 | 0x20 | 0x40 | 0x80


class Labeller(Protocol):
    """Labels each minute of a GPU; can be pickled, as minutes are reduced on other machines."""

    @property
    def labels(self) -> int:
        """Number of labels."""

    @property
    def counters(self) -> Collection[str]:
        """Counters with means it needs."""

    def __call__(self, means: Mapping[str, Singles], size: int) -> Bytes:
        """Return the labels of `size` minutes from means of the present counters; NaN: missing."""


@dataclass(slots=True)
class _Layout:
    """Rows, stripes, segments and slots of a partition."""

    sampling: Sampling
    seg_us: Floats  # sampling interval
    steady_us: Floats  # likewise; NaN where few distances show it
    continues: Flags  # after the segment before, with another sampling interval
    seg_a: Longs
    seg_b: Longs
    seg_stripe: Longs
    seg_interval: Longs
    seg_slot: Longs
    slot_a: Longs
    slot_b: Longs
    slot_seg: Longs
    slot_minute: Ints

    @property
    def segments(self) -> int:
        return len(self.seg_a)

    @property
    def slots(self) -> int:
        return len(self.slot_a)


@dataclass(frozen=True, slots=True)
class _SlotValues:
    """Statistics of a counter per slot: values, sum, maximum (-inf if empty), mean (NaN if
    empty).
    """

    n: Ints
    total: Floats
    highest: Singles
    mean: Singles


def reduce_partition(
    frame: pl.DataFrame,
    intervals: pl.DataFrame,
    starts: Mapping[int, datetime],
    ridges: Mapping[tuple[str, int], tuple[float, ...]],
    *,
    analysis: AnalysisOptions,
    day: date,
    gpus: Mapping[int, int] = MappingProxyType({}),
    labeller: Labeller | None = None,
    steps: pl.DataFrame | None = None,
    handovers: pl.DataFrame | None = None,
) -> tuple[Accumulators, PartitionMinutes]:
    """Return the accumulators and minutes of a partition's frame.

    gpu_samples sorted by node, gpu, mig, t; each key once.

    `intervals`: one row per stretch of a GPU owned by a run, sorted, never overlapping. `starts`:
    each run's start, at which its windows are anchored. `ridges`: FLOP/B of fp64, fp32, fp16,
    tensor per (node, gpu), where known. `gpus`: how many GPUs each run has; one that has them all
    in `intervals` needs no other partition for its windows. `steps`: as `intervals`, of steps under
    their numbers; `handovers`: stretches of which samples are counted.
    """
    stripe_rows = _stripe_rows(frame)
    keys = (
        frame.select(*GPU_KEY)[stripe_rows[:-1].tolist()]
        if frame.height
        else frame.select(*GPU_KEY)
    )
    sampling = Sampling.of(_microseconds(frame["t"]), stripe_rows)
    zero = np.array([microseconds(starts[run]) for run in intervals["run"]], np.int64)
    layout = _lay_out(sampling, keys, intervals, zero)
    by_minute: dict[str, _SlotValues] = {}
    columns = _Columns(frame)
    minutely = frozenset((*MINUTE_MEANS, *MINUTE_MAXIMA, *(labeller.counters if labeller else ())))
    segments = _segments(columns, layout, keys, intervals, minutely, by_minute, analysis=analysis)
    if labeller:
        segments.update(_labelled(labeller, layout, by_minute))
    roof, histogram = _roofline(columns, layout, keys, ridges, segments)
    segments.update(roof)
    segment_frame = pl.DataFrame(segments)
    run = segment_frame["run"].to_numpy()
    sums = {name: (slots.n, slots.total) for name, slots in by_minute.items()}
    slots = MinuteSlots(
        run,
        layout.seg_stripe,
        layout.seg_slot,
        layout.slot_seg,
        layout.slot_minute,
        sums,
        keys,
        layout.steady_us,
    )
    attributed = layout.seg_b - layout.seg_a
    accumulators = Accumulators(
        segments=segment_frame,
        intensities=_intensities(segment_frame, histogram),
        windows=windows_of(slots, starts, _all_here(intervals, gpus), analysis=analysis, day=day),
        steps=_of_steps(columns, layout, keys, steps, analysis=analysis),
        samples=frame.height,
        attributed=int(attributed.sum()),
        handed_over=_samples_in(handovers, layout, keys),
        gpu_seconds=_seconds(
            sampling.sampled_us(np.arange(len(stripe_rows) - 1), stripe_rows[:-1], stripe_rows[1:])
        ),
        gpu_seconds_attributed=_seconds(segment_frame["sampled_us"].to_numpy()),
    )
    return accumulators, _minutes(layout, segment_frame, by_minute)


def _seconds(sampled_us: Floats) -> float:
    return float(np.nansum(sampled_us) * 1e-6)


def _segments(
    columns: _Columns,
    layout: _Layout,
    keys: pl.DataFrame,
    intervals: pl.DataFrame,
    minutely: Collection[str],
    by_minute: dict[str, _SlotValues],
    *,
    analysis: AnalysisOptions,
) -> dict[str, pl.Series]:
    """Identity, span and counters of the segments; fills `by_minute` with `minutely` counters."""
    segments = _identity(layout, keys, intervals)
    gap = layout.seg_us * analysis.max_gap_intervals
    segments.update(_spans(layout, gap))
    distances = np.zeros(len(layout.sampling.t), np.int32)
    kernel.spaces(layout.sampling.t, layout.seg_a, layout.seg_b, gap, distances)
    for counter in COUNTERS:
        if counter.name in columns:
            segments.update(_counter(counter, columns, layout, gap, distances, minutely, by_minute))
    return segments


def _of_steps(
    columns: _Columns,
    layout: _Layout,
    keys: pl.DataFrame,
    steps: pl.DataFrame | None,
    *,
    analysis: AnalysisOptions,
) -> pl.DataFrame:
    """Segments of steps; `layout`: of the runs."""
    if steps is None or steps.is_empty():
        return pl.DataFrame()
    zero = _microseconds(steps["start"])
    of_steps = _lay_out(layout.sampling, keys, steps, zero)
    return pl.DataFrame(
        _segments(columns, of_steps, keys, steps, frozenset(), {}, analysis=analysis)
    )


def _samples_in(stretches: pl.DataFrame | None, layout: _Layout, keys: pl.DataFrame) -> int:
    """Number of rows in GPU stretches; `layout`: of the runs."""
    if stretches is None or stretches.is_empty():
        return 0
    zero = _microseconds(stretches["start"])
    stretches_layout = _lay_out(layout.sampling, keys, stretches, zero)
    return int((stretches_layout.seg_b - stretches_layout.seg_a).sum())


def _all_here(intervals: pl.DataFrame, gpus: Mapping[int, int]) -> set[int]:
    """Return the runs that have no GPU outside `intervals`."""
    here = intervals.select("run", *GPU_KEY).unique().group_by("run").len()
    return {run for run, count in here.iter_rows() if gpus.get(run) == count}


def _stripe_rows(frame: pl.DataFrame) -> Longs:
    """First row of each (node, gpu, mig), followed by the number of rows.

    Nodes are few and sorted, so their borders are found by bisection; names are not compared row by
    row.
    """
    nodes = frame["node"]
    starts, row = np.zeros(frame.height, np.bool_), 0
    while row < frame.height:
        starts[row] = True
        row = bisect_right(nodes, nodes[row], row)
    for name in ("gpu", "mig"):
        column = frame[name]
        if column.null_count() < frame.height:
            values = column.fill_null(-1).to_numpy()
            starts[1:] |= values[1:] != values[:-1]
    return np.append(np.flatnonzero(starts), frame.height).astype(np.int64)


def _microseconds(column: pl.Series) -> Longs:
    return column.to_physical().to_numpy()


def _lay_out(
    sampling: Sampling, keys: pl.DataFrame, intervals: pl.DataFrame, zero: Longs
) -> _Layout:
    """Row ranges of the intervals. `zero`: origin of each interval's minutes."""
    first_of: dict[tuple[object, ...], tuple[int, int]] = {}
    for row, unit in enumerate(intervals.select(*GPU_KEY).iter_rows()):
        first_of[unit] = (first_of.get(unit, (row, row))[0], row + 1)
    spans = [first_of.get(unit, (0, 0)) for unit in keys.iter_rows()]
    low = np.array([span[0] for span in spans], np.int64)
    high = np.array([span[1] for span in spans], np.int64)
    start, end = (
        _microseconds(intervals["start"]),
        _microseconds(intervals["end"]),
    )
    parent = np.arange(len(start))  # the interval that each is a part of
    piece_us = np.full(len(start), np.nan)
    if sampling.pieces:
        low, high, start, end, parent, piece_us = _in_pieces(sampling, low, high, start, end)
        zero = zero[parent]
    times = (sampling.t, sampling.stripes, low, high, start, end, zero)
    nothing = np.empty(0, np.int64)
    segments, slots = kernel.place_segments(
        *times, nothing, nothing, nothing, nothing, nothing, nothing, nothing, np.empty(0, np.int32)
    )
    layout = _Layout(
        sampling=sampling,
        seg_us=np.empty(0),
        steady_us=np.empty(0),
        continues=np.zeros(segments, np.bool_),
        seg_a=np.empty(segments, np.int64),
        seg_b=np.empty(segments, np.int64),
        seg_stripe=np.empty(segments, np.int64),
        seg_interval=np.empty(segments, np.int64),
        seg_slot=np.empty(segments + 1, np.int64),
        slot_a=np.empty(slots, np.int64),
        slot_b=np.empty(slots, np.int64),
        slot_seg=np.empty(slots, np.int64),
        slot_minute=np.empty(slots, np.int32),
    )
    kernel.place_segments(
        *times,
        layout.seg_a, layout.seg_b, layout.seg_stripe, layout.seg_interval, layout.seg_slot,
        layout.slot_a, layout.slot_seg, layout.slot_minute,
    )  # fmt: skip
    layout.slot_b[:-1] = layout.slot_a[1:]
    layout.slot_b[layout.seg_slot[1:] - 1] = layout.seg_b
    of_piece = piece_us[layout.seg_interval]
    by_stripe = (sampling.interval_us, sampling.steady_us)
    layout.seg_us, layout.steady_us = (
        np.where(np.isnan(of_piece), of_stripe[layout.seg_stripe], of_piece)
        for of_stripe in by_stripe
    )
    layout.seg_interval = parent[layout.seg_interval]
    layout.continues[1:] = layout.seg_interval[1:] == layout.seg_interval[:-1]
    return layout


def _in_pieces(
    sampling: Sampling, low: Longs, high: Longs, start: Longs, end: Longs
) -> tuple[Longs, Longs, Longs, Longs, Longs, Floats]:
    """Intervals cut where the sampling interval changes.

    Columns: low, high, start, end, parent, sampling interval (us). `parent`: the interval that each
    is a part of.
    """
    begins: list[Longs] = []
    ends: list[Longs] = []
    parents: list[Longs] = []
    sampled_us: list[Floats] = []
    new_low, new_high = np.zeros_like(low), np.zeros_like(high)
    count = 0
    for stripe in range(len(low)):
        rows = np.arange(low[stripe], high[stripe])
        begin, end_of = start[rows, None], end[rows, None]
        interval = np.full((len(rows), 1), np.nan)
        if stripe in sampling.pieces:
            first, of_pieces = sampling.pieces[stripe]
            changes = np.broadcast_to(sampling.t[first[1:]], (len(rows), len(first) - 1))
            begin, end_of = (
                np.column_stack(both).clip(begin, end_of)
                for both in ((begin, changes), (changes, end_of))
            )
            interval = np.broadcast_to(of_pieces, begin.shape)
        nonempty = begin < end_of
        begins.append(begin[nonempty])
        ends.append(end_of[nonempty])
        sampled_us.append(interval[nonempty])
        parents.append(np.repeat(rows, nonempty.sum(axis=1)))
        new_low[stripe], count = count, count + len(begins[-1])
        new_high[stripe] = count
    return (
        new_low,
        new_high,
        np.concatenate(begins),
        np.concatenate(ends),
        np.concatenate(parents),
        np.concatenate(sampled_us),
    )


def _identity(layout: _Layout, keys: pl.DataFrame, intervals: pl.DataFrame) -> dict[str, pl.Series]:
    columns = {"run": intervals["run"].gather(layout.seg_interval)}
    columns.update({name: keys[name].gather(layout.seg_stripe) for name in GPU_KEY})
    return columns


def _spans(layout: _Layout, gap: Floats) -> dict[str, pl.Series]:
    return {
        "samples": pl.Series(layout.seg_b - layout.seg_a),
        "t_first": pl.Series(layout.sampling.t[layout.seg_a]),
        "t_last": pl.Series(layout.sampling.t[np.maximum(layout.seg_b - 1, 0)]),
        "interval_us": pl.Series(layout.seg_us),
        "steady_us": pl.Series(layout.steady_us).fill_nan(None),
        "sampled_us": pl.Series(
            layout.sampling.sampled_us(layout.seg_stripe, layout.seg_a, layout.seg_b)
        ),
        "continues": pl.Series(layout.continues),
        "gap_us": pl.Series(gap).fill_nan(None),
    }


class _Columns:
    """Counters of a partition as arrays, built once each; missing is NaN; copied only if needed."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self.frame = frame
        self.made: dict[str, Singles] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.frame.columns and self.frame[name].null_count() < self.frame.height

    def singles(self, name: str) -> Singles:
        if name not in self.made:
            column = self.frame[name].cast(pl.Float32)
            self.made[name] = (
                (column.fill_null(float("nan")) if column.null_count() else column)
                .rechunk()
                .to_numpy()
            )
        return self.made[name]

    def doubles(self, name: str) -> Floats:
        column = self.frame[name].cast(pl.Float64)
        return (
            (column.fill_null(float("nan")) if column.null_count() else column).rechunk().to_numpy()
        )

    def longs(self, name: str) -> Longs:
        return self.frame[name].fill_null(-1).rechunk().to_numpy()


def _counter(
    counter: Counter,
    columns: _Columns,
    layout: _Layout,
    gap: Floats,
    steps: Ints,
    minutely: Collection[str],
    by_minute: dict[str, _SlotValues],
) -> dict[str, pl.Series]:
    """Accumulator columns of one counter, by its kind."""
    if counter.unit == "bitmask":
        return _bits(counter.name, columns, layout)
    if counter.unit == "code":
        return _changes(counter.name, columns, layout)
    if counter.kind is CounterKind.CUMULATIVE:
        return _increases(counter.name, columns, layout)
    size = layout.segments
    column = columns.singles(counter.name)
    n, total, highest = np.empty(size, np.int64), np.empty(size), np.empty(size)
    if counter.name in minutely:
        slots = _of_slots(column, layout)
        by_minute[counter.name] = slots
        kernel.over_minutes(layout.seg_slot, slots.n, slots.total, slots.highest, n, total, highest)
    else:
        kernel.levels(column, layout.seg_a, layout.seg_b, n, total, highest)
    result = {SAMPLES.of(counter.name): pl.Series(n), TOTAL.of(counter.name): pl.Series(total)}
    result[HIGHEST.of(counter.name)] = pl.Series(np.where(n > 0, highest, np.nan)).fill_nan(None)
    if counter.name in SQUARED:
        square = np.empty(size)
        kernel.squares(column, layout.seg_a, layout.seg_b, square)
        result[SQUARE.of(counter.name)] = pl.Series(square)
    if counter.name == "gpu_util":
        zero = np.empty(size, np.int64)
        kernel.zeros(column, layout.seg_a, layout.seg_b, zero)
        result[ZEROS.of("gpu_util")] = pl.Series(zero)
    if counter.name in INTEGRATED:
        result.update(_integrals(counter.name, column, layout, gap, steps))
    return result


def _integrals(
    name: str, column: Singles, layout: _Layout, gap: Floats, steps: Ints
) -> dict[str, pl.Series]:
    n, t_first, t_last = (np.zeros(layout.segments, np.int64) for _ in range(3))
    area, seconds, first, last = (np.empty(layout.segments) for _ in range(4))
    kernel.integrals(
        layout.sampling.t,
        steps,
        column,
        layout.seg_a,
        layout.seg_b,
        gap,
        n,
        area,
        seconds,
        first,
        last,
        t_first,
        t_last,
    )
    sums = {AREA.of(name): pl.Series(area), SECONDS.of(name): pl.Series(seconds)}
    return sums | _borders(name, n, first, last, t_first, t_last)


def _borders(
    name: str, n: Longs, first: Floats, last: Floats, t_first: Longs, t_last: Longs
) -> dict[str, pl.Series]:
    """First and last value of a segment with times (us); null without values."""
    times = pl.DataFrame({"n": n, "first": t_first, "last": t_last}).select(
        pl.when(pl.col("n") > 0).then("first").alias("first"),
        pl.when(pl.col("n") > 0).then("last").alias("last"),
    )
    return {
        FIRST.of(name): pl.Series(first).fill_nan(None),
        LAST.of(name): pl.Series(last).fill_nan(None),
        FIRST_TIME.of(name): times["first"],
        LAST_TIME.of(name): times["last"],
    }


def _increases(name: str, columns: _Columns, layout: _Layout) -> dict[str, pl.Series]:
    size = layout.segments
    n, t_first, t_last = (np.zeros(size, np.int64) for _ in range(3))
    first, last, grown = (np.empty(size) for _ in range(3))
    column = columns.doubles(name)
    kernel.increases(
        layout.sampling.t,
        column,
        layout.seg_a,
        layout.seg_b,
        n,
        first,
        last,
        grown,
        t_first,
        t_last,
    )
    sums = {
        SAMPLES.of(name): pl.Series(n),
        GROWN.of(name): pl.Series(grown),
        SECONDS.of(name): pl.Series((t_last - t_first) * 1e-6),
    }
    return sums | _borders(name, n, first, last, t_first, t_last)


def _changes(name: str, columns: _Columns, layout: _Layout) -> dict[str, pl.Series]:
    size = layout.segments
    n, events = np.empty(size, np.int64), np.empty(size, np.int64)
    highest, newest, first, last = (np.empty(size) for _ in range(4))
    kernel.changes(
        columns.doubles(name), layout.sampling.stripes, layout.seg_stripe,
        layout.seg_a, layout.seg_b, n, events, highest, newest, first, last,
    )  # fmt: skip
    return {
        SAMPLES.of(name): pl.Series(n),
        EVENTS.of(name): pl.Series(events),
        HIGHEST.of(name): pl.Series(np.where(n > 0, highest, np.nan)).fill_nan(None),
        HIGHEST_NEW.of(name): pl.Series(newest).fill_nan(None),
        FIRST.of(name): pl.Series(first).fill_nan(None),
        LAST.of(name): pl.Series(last).fill_nan(None),
    }


def _bits(name: str, columns: _Columns, layout: _Layout) -> dict[str, pl.Series]:
    column = columns.longs(name)
    n, lowered, any_bits = (np.empty(layout.segments, np.int64) for _ in range(3))
    kernel.bits(column, LOWERING_BITS, layout.seg_a, layout.seg_b, n, lowered, any_bits)
    return {
        SAMPLES.of(name): pl.Series(n),
        LOWERED.of(name): pl.Series(lowered),
        BITS.of(name): pl.Series(any_bits),
    }


def _roofline(
    columns: _Columns,
    layout: _Layout,
    keys: pl.DataFrame,
    ridges: Mapping[tuple[str, int], tuple[float, ...]],
    segments: Mapping[str, pl.Series],
) -> tuple[dict[str, pl.Series], Longs]:
    """Labels per pipe, and the intensity histogram (segments x 4 x 32); empty without memory
    data.
    """
    size = layout.segments
    histogram = np.zeros((size, 4, kernel.INTENSITY_BINS), np.int64)
    if SAMPLES.of("dram_active") not in segments or not any(
        SAMPLES.of(name) in segments for name in PIPES.values()
    ):
        return {}, histogram
    dram = columns.singles("dram_active")
    measured = np.zeros((size, 4), np.float32)
    pipes = [dram] * 4  # where a pipe is not measured, its column is never read
    for column, name in enumerate(PIPES.values()):
        if SAMPLES.of(name) in segments:
            measured[:, column] = segments[SAMPLES.of(name)].to_numpy() > 0
            pipes[column] = columns.singles(name)
    compute, memory = np.zeros((size, 4)), np.zeros((size, 4))
    idle, complete = np.zeros(size), np.zeros(size)
    kernel.labels(
        pipes[0], pipes[1], pipes[2], pipes[3], dram, measured, layout.seg_a, layout.seg_b,
        compute, memory, idle, complete,
    )  # fmt: skip
    any_pipe = measured.any(axis=1)  # memory alone means neither idle nor busy
    result = {
        "idle": pl.Series(np.where(any_pipe, idle, 0.0)),
        "known": pl.Series(np.where(any_pipe, complete, 0.0)),
    }
    for column, pipe in enumerate(PIPES):
        has_pipe = measured[:, column] > 0
        result[COMPUTE.of(pipe)] = pl.Series(np.where(has_pipe, compute[:, column], 0.0))
        result[MEMORY.of(pipe)] = pl.Series(np.where(has_pipe, memory[:, column], 0.0))
    _count_intensities(pipes, dram, measured, _ridges(layout, keys, ridges), layout, histogram)
    return result, histogram


def _ridges(
    layout: _Layout, keys: pl.DataFrame, ridges: Mapping[tuple[str, int], tuple[float, ...]]
) -> Singles:
    """FLOP/B per segment and pipe; NaN unknown."""
    unknown = (float("nan"),) * 4
    of_stripe = np.array(
        [ridges.get((node, gpu), unknown) for node, gpu, _ in keys.iter_rows()], np.float32
    )
    return of_stripe.reshape(-1, 4)[layout.seg_stripe]


def _count_intensities(
    pipes: list[Singles],
    dram: Singles,
    measured: Singles,
    ridge: Singles,
    layout: _Layout,
    histogram: Longs,
) -> None:
    cells, edges = kernel.intensity_bins()
    for column in range(len(pipes)):
        counts = np.zeros((layout.segments, kernel.INTENSITY_BINS + 1), np.int64)
        known_ridge = np.where(measured[:, column] > 0, ridge[:, column], np.float32(np.nan))
        if not np.isnan(known_ridge).all():
            kernel.intensities(
                pipes[column], dram, known_ridge, cells, edges, layout.seg_a, layout.seg_b, counts
            )
            histogram[:, column] = counts[:, :-1]


def _intensities(segments: pl.DataFrame, histogram: Longs) -> pl.DataFrame:
    """One row per non-empty (run, sampling interval, pipe, bin)."""
    segment, pipe, intensity_bin = np.nonzero(histogram)
    frame = pl.DataFrame(
        {
            "run": segments["run"].gather(segment),
            "steady_us": segments["steady_us"].gather(segment).round_sig_figs(INTERVAL_DIGITS),
            "bin": pl.Series(pipe * 32 + intensity_bin, dtype=pl.Int32),
            "samples": pl.Series(histogram[segment, pipe, intensity_bin], dtype=pl.Int64),
        }
    )
    return frame.group_by("run", "steady_us", "bin").agg(pl.col("samples").sum())


def _of_slots(column: Singles, layout: _Layout) -> _SlotValues:
    size = layout.slots
    values = _SlotValues(
        np.empty(size, np.int32),
        np.empty(size),
        np.empty(size, np.float32),
        np.empty(size, np.float32),
    )
    kernel.by_minute(
        column, layout.slot_a, layout.slot_b, values.n, values.total, values.highest, values.mean
    )
    return values


def _labelled(
    labeller: Labeller, layout: _Layout, by_minute: Mapping[str, _SlotValues]
) -> dict[str, pl.Series]:
    """Samples of each segment in slots of each label."""
    labels_of_slots = labeller(
        {name: slots.mean for name, slots in by_minute.items()}, layout.slots
    )
    counts = np.zeros((labeller.labels, layout.segments), np.int64)
    kernel.add_labels(layout.seg_slot, layout.slot_a, layout.slot_b, labels_of_slots, counts)
    return {LABEL.of(str(label_number)): pl.Series(row) for label_number, row in enumerate(counts)}


def _minutes(
    layout: _Layout, segments: pl.DataFrame, by_minute: Mapping[str, _SlotValues]
) -> PartitionMinutes:
    """The slots with their means and maxima in single precision."""
    values = {name: slots.mean for name, slots in by_minute.items() if name in MINUTE_MEANS}
    for name in MINUTE_MAXIMA:
        if name in by_minute:
            highest = by_minute[name].highest
            values[name] = np.where(by_minute[name].n > 0, highest, np.float32(np.nan))
    samples = (layout.slot_b - layout.slot_a).astype(np.int32)
    return PartitionMinutes(
        segments.select("run", *GPU_KEY, "interval_us"),
        layout.seg_slot,
        layout.slot_minute,
        samples,
        values,
    )
