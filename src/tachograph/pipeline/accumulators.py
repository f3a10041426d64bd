"""Accumulators of runs: merged by addition, kept until a run is complete."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from types import MappingProxyType

import numpy as np
import polars as pl
from deltalake.transaction import AddAction
from numpy.typing import NDArray

from tachograph.catalog.config import AnalysisOptions
from tachograph.catalog.counters import COUNTERS
from tachograph.catalog.units import DAY_US
from tachograph.pipeline.kernel import APART
from tachograph.pipeline.statistics import (
    AREA,
    EVENTS,
    FIRST,
    FIRST_TIME,
    GROWN,
    HIGHEST_NEW,
    INTEGRATED,
    LABEL,
    LAST,
    LAST_TIME,
    PER_SAMPLE,
    SECONDS,
    Merge,
    merge_of,
)
from tachograph.pipeline.timelines import merge_timelines
from tachograph.pipeline.windows import (
    BORDER_WINDOWS,
    COMPLETE_WINDOWS,
    IMBALANCE,
    UNITS,
    Windows,
    fold_windows,
)

SEGMENT_KEY = ("run", "node", "gpu", "mig")
_UNIT = "unit"  # the key as a number


@dataclass(frozen=True, slots=True)
class Accumulators:
    """Sums over samples, of one partition or of complete runs, from which jobs are summarized.

    Those of several partitions add up, reduced in any place and any order.

    segments: one row per (run, node, gpu, mig): counts, sums, maxima, borders of every counter
    present; samples in minutes of each label (`label_0`, ...) where there is a labeller.
    intensities: one row per (run, sampling interval, pipe, bin): samples.
    windows: sums and maxima over GPUs per (run, counter, window), for spatial imbalance;
    of complete runs only `settled`, one row per (run,
    counter). timeline: one row per (run, minute), its GPUs put together: of the whole minutes of a
    partition, or of all. minutes_file: the data file of the whole minutes of a partition, which no
    reader sees yet; None where it has none. cut_minutes: rows of its other minutes, whose other
    part is elsewhere. steps: like segments, of steps of runs under their numbers. samples,
    attributed, handed_over: rows of a partition, those of them that belong to a run, those in the
    second in which a GPU went from one run to another; gpu_seconds likewise (rows times sampling
    interval).
    """

    segments: pl.DataFrame
    intensities: pl.DataFrame
    windows: Windows
    timeline: pl.DataFrame = field(default_factory=pl.DataFrame)
    minutes_file: AddAction | None = None
    cut_minutes: pl.DataFrame = field(default_factory=pl.DataFrame)
    steps: pl.DataFrame = field(default_factory=pl.DataFrame)
    samples: int = 0
    attributed: int = 0
    handed_over: int = 0
    gpu_seconds: float = 0.0
    gpu_seconds_attributed: float = 0.0


def merge_segments(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return one row per (run, node, gpu, mig) from any number of frames of segments.

    Sums and counts add, maxima are compared; between neighbouring segments a cumulative counter's
    step, an integral's trapezoid and a code's change are added, so that cutting a job at midnight
    changes nothing. Where sampling intervals differ, a sample counts by the time it stands for.
    """
    frames = [part for part in parts if part.height]
    if not frames:
        return pl.DataFrame(schema=dict.fromkeys(SEGMENT_KEY, pl.Null)) if not parts else parts[0]
    together = pl.concat(frames, how="diagonal").sort(*SEGMENT_KEY, "t_first")
    together = together.with_columns(pl.struct(SEGMENT_KEY).rle_id().alias(_UNIT))
    repeated = together[_UNIT].is_duplicated()
    if not repeated.any():
        return together.drop(_UNIT)
    several = together.filter(repeated)
    several = several.with_columns(_joints(several.columns))
    several = counted_by_time(_with_known_times(several), _UNIT)
    merged = several.group_by(_UNIT).agg(_additions(several.columns))
    # Weighted counts are no whole numbers.
    frames = [together.filter(~repeated), merged.select(together.columns)]
    return pl.concat(frames, how="vertical_relaxed").sort(_UNIT).drop(_UNIT)


def _with_known_times(segments: pl.DataFrame) -> pl.DataFrame:
    """Segments whose samples stand for the usual interval of their GPU where none is shown."""
    steady = pl.col("steady_us")
    usual = pl.coalesce(steady.median().over(_UNIT), "interval_us")
    known_us = pl.when(steady.is_not_null()).then("sampled_us")
    return segments.with_columns(sampled_us=known_us.otherwise(pl.col("samples") * usual))


def counted_by_time(frame: pl.DataFrame, unit: str) -> pl.DataFrame:
    """Return sums in which each sample counts by the time it stands for.

    The rows of a `unit` with one sampling interval are left as they are. The interval of the others
    becomes the mean time of a sample, so the numbers of samples stay what they were on the whole.
    `frame`: samples, sampled_us, steady_us, and columns of statistics.
    """
    steady, sampled, samples = pl.col("steady_us"), pl.col("sampled_us"), pl.col("samples")
    varied = (steady.max() > APART * steady.min()).over(unit)
    marked = frame.with_columns(varied=varied.fill_null(value=False))
    if not marked["varied"].any():
        return frame
    mean = sampled.sum().over(unit) / samples.filter(sampled.is_not_null()).sum().over(unit)
    units = pl.when(pl.col("varied") & (samples > 0)).then(sampled / samples / mean)
    weight = units.fill_null(1.0)
    labels = [name for name in frame.columns if name.startswith(LABEL.of(""))]
    return marked.with_columns(
        *(pl.col(name) * weight for name in frame.columns if name in PER_SAMPLE),
        *((pl.col(name) * weight).round().cast(pl.Int64) for name in labels),
        steady_us=pl.when("varied").then(mean).otherwise("steady_us"),
    ).drop("varied")


def _joints(columns: Sequence[str]) -> list[pl.Expr]:
    """Changes between adjacent segments, added to the later one.

    Within a day two segments of one job and GPU are apart because another run held the GPU in
    between: a cumulative counter's step there is not the job's. Not so where the later one only
    `continues` with another sampling interval.
    """
    expressions: list[pl.Expr] = []
    next_day = pl.col("t_first") // DAY_US != pl.col("t_last").shift(1).over(_UNIT) // DAY_US
    goes_on = next_day | pl.col("continues")
    longest = pl.max_horizontal(pl.col("gap_us"), pl.col("gap_us").shift(1).over(_UNIT))
    for name in INTEGRATED:
        if AREA.of(name) in columns:
            distance = pl.col(FIRST_TIME.of(name)) - _last_known(LAST_TIME.of(name))
            both = _last_known(LAST.of(name)) + pl.col(FIRST.of(name))
            bridged = (distance <= longest).fill_null(value=False)
            expressions.append(_plus(AREA.of(name), bridged, both * distance * 0.5e-6))
            expressions.append(_plus(SECONDS.of(name), bridged, distance * 1e-6))
    for counter in COUNTERS:
        name = counter.name
        if GROWN.of(name) in columns:
            step = (pl.col(FIRST.of(name)) - _last_known(LAST.of(name))).clip(lower_bound=0)
            distance = pl.col(FIRST_TIME.of(name)) - _last_known(LAST_TIME.of(name))
            expressions.append(_plus(GROWN.of(name), goes_on, step))
            expressions.append(_plus(SECONDS.of(name), goes_on, distance * 1e-6))
        if EVENTS.of(name) in columns:
            first = pl.col(FIRST.of(name))
            # Within a day the kernel has seen it.
            new = (first != _last_known(LAST.of(name))) & (first != 0) & next_day
            expressions.append(pl.col(EVENTS.of(name)) + new.fill_null(value=False).cast(pl.Int64))
            expressions.append(
                pl.max_horizontal(HIGHEST_NEW.of(name), pl.when(new).then(first)).alias(
                    HIGHEST_NEW.of(name)
                )
            )
    return expressions


def _plus(name: str, condition: pl.Expr, value: pl.Expr) -> pl.Expr:
    """The column, plus the value where `condition` holds and the value is known."""
    return pl.col(name) + pl.when(condition).then(value).otherwise(0.0).fill_null(0.0)


def _last_known(name: str) -> pl.Expr:
    """Last non-null value in earlier segments of the same job and GPU."""
    return pl.col(name).forward_fill().shift(1).over(_UNIT)


# {how values become one: the expression of a column of neighbours, in the order of time}
_MERGED: Mapping[Merge, Callable[[pl.Expr], pl.Expr]] = MappingProxyType(
    {
        Merge.SUM: lambda column: column.sum(),
        Merge.MAXIMUM: lambda column: column.max(),
        Merge.FIRST: lambda column: column.drop_nulls().first(),
        Merge.LAST: lambda column: column.drop_nulls().last(),
        Merge.BITS: lambda column: column.bitwise_or(),
        Merge.MEDIAN: lambda column: column.drop_nans().median().fill_null(float("nan")),
    }
)


def _additions(columns: Sequence[str]) -> list[pl.Expr]:
    """Merge rule of each column for adjacent segments."""
    return [_MERGED[merge_of(name)](pl.col(name)) for name in columns if name != _UNIT]


INTENSITY_SCHEMA = {
    "run": pl.Int32(),
    "steady_us": pl.Float64(),
    "bin": pl.Int32(),
    "samples": pl.Int64(),
}


class OpenRuns:
    """Accumulators of incomplete runs; memory grows with runs, not with samples.

    `starts`: run, start.
    """

    def __init__(self, starts: pl.DataFrame, analysis: AnalysisOptions) -> None:
        self.starts, self.analysis = starts, analysis
        self.segments: list[pl.DataFrame] = []
        self.intensities: list[pl.DataFrame] = []
        self.imbalance: list[pl.DataFrame] = []
        self.timelines: list[pl.DataFrame] = []
        self.windows: list[Windows] = []  # of the day that is under way
        self.border = pl.DataFrame(schema=BORDER_WINDOWS)

    def add(self, part: Accumulators) -> None:
        """Add one partition."""
        if part.segments.height:
            self.segments.append(part.segments)
            self.intensities.append(part.intensities)
            self.windows.append(part.windows)
            self.imbalance.append(part.windows.settled)
            self.timelines.append(part.timeline)

    def end_day(self, day: date, timeline: pl.DataFrame) -> None:
        """Close a day: its windows are complete, except those that cross midnight.

        `timeline`: of minutes that the beginning of the day had cut.
        """
        self.timelines.append(timeline)
        windows, self.windows = self.windows, []
        self._fold(windows, day, last=False)

    def close(self, day: date, timeline: pl.DataFrame) -> None:
        """Finish: windows and minutes that wait for the next day are complete."""
        self.timelines.append(timeline)
        self._fold([], day, last=True)

    def unfinished(self) -> pl.DataFrame:
        """Runs with a window that continues on the next day."""
        return self.border.select("run").unique()

    def take(self, runs: pl.DataFrame) -> Accumulators:
        """Remove and return what was accumulated for some runs."""
        greatest = self.starts["run"].max()
        gone = np.zeros((greatest if isinstance(greatest, int) else 0) + 1, np.bool_)
        gone[runs["run"].to_numpy()] = True
        segments, intensities, imbalance, timelines = (
            out_of(frames, gone)
            for frames in (self.segments, self.intensities, self.imbalance, self.timelines)
        )
        return Accumulators(
            merge_segments(segments),
            pl.concat([pl.DataFrame(schema=INTENSITY_SCHEMA), *intensities]),
            Windows(
                complete=pl.DataFrame(schema=COMPLETE_WINDOWS),
                border=pl.DataFrame(schema=BORDER_WINDOWS),
                settled=pl.concat([pl.DataFrame(schema=IMBALANCE), *imbalance]),
                units=pl.DataFrame(schema=UNITS),
            ),
            merge_timelines(timelines),
        )

    def _fold(self, windows: list[Windows], day: date, *, last: bool) -> None:
        folded, self.border = fold_windows(
            windows, self.border, self.starts, analysis=self.analysis, day=day, last=last
        )
        if folded.height:
            self.imbalance.append(folded)


def out_of(frames: list[pl.DataFrame], gone: NDArray[np.bool_]) -> list[pl.DataFrame]:
    """Remove and return the rows of the runs `gone` from the frames."""
    mine, rest = [], []
    for frame in frames:
        taken = pl.Series(gone[frame["run"].to_numpy()])
        if taken.all():
            mine.append(frame)
        elif taken.any():
            mine.append(frame.filter(taken))
            rest.append(frame.filter(~taken))
        else:
            rest.append(frame)
    frames[:] = [pl.concat(rest, how="diagonal")] if rest else []
    return [frame for frame in mine if frame.height]
