"""Windows of spatial imbalance: sum and maximum per run and window, across midnight.

SI(j, w) = 1 - sum_g TC / (g_j * max_g TC), TC = sum of the counter over the window on one GPU;
windows are anchored at the job's start (IPDPS 2026, section on load imbalance). A GPU without
samples in a window counts 0; one without any value of the counter is none of the g_j, which are
only known at the end of a run. So sums here are of sum_g TC / max_g TC. Where the sampling
intervals of a run differ, sums are of samples times the time they stand for, in units of the run's
shortest interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import date, datetime, timedelta

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tachograph.catalog.arrays import Floats, Ints, Longs
from tachograph.catalog.config import AnalysisOptions
from tachograph.catalog.errors import ConfigError
from tachograph.catalog.tables import GPU_KEY, TIME
from tachograph.catalog.units import DAY_US, microseconds, midnight
from tachograph.pipeline import kernel

COMPLETE_WINDOWS = {
    "run": pl.Int32(),
    "counter": pl.String(),
    "window": pl.Int32(),
    "total": pl.Float64(),
    "most": pl.Float64(),
}
UNITS = {"run": pl.Int32(), "unit_us": pl.Float64()}
BORDER_WINDOWS = {
    "run": pl.Int32(),
    "node": pl.String(),
    "gpu": pl.Int16(),
    "mig": pl.Int16(),
    "counter": pl.String(),
    "window": pl.Int32(),
    "n": pl.Int64(),
    "total": pl.Float64(),
    "unit_us": pl.Float64(),
}
IMBALANCE = {
    "run": pl.Int32(),
    "counter": pl.String(),
    "windows": pl.Int64(),
    "zero_windows": pl.Int64(),
    "even_gpus": pl.Float64(),
}


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of a partition: complete, border and settled ones.

    complete: one row per (run, counter, window) of this partition's GPUs. border: one row per (run,
    GPU, counter, window) for windows that cross midnight, which the next day completes. settled:
    one row per (run, counter) of runs with all GPUs in this partition; their complete windows are
    only there. `even_gpus`: sum over windows of how many GPUs as busy as the busiest would do the
    work of the window. units: one row per run of the partition: what a sample in its sums stands
    for.
    """

    complete: pl.DataFrame
    border: pl.DataFrame
    settled: pl.DataFrame
    units: pl.DataFrame


@dataclass(frozen=True, slots=True)
class MinuteSlots:
    """Minutes of a partition by stripe and time: their run and GPU, and means of the counters.

    run, stripe: of each segment; begin: first slot of each segment, and behind the last the number
    of slots; segment, minute: of each slot. sums: {counter: (values, sum)} per slot. units: node,
    gpu, mig per stripe. steady_us: sampling interval of each segment; NaN: not known.
    """

    run: NDArray[np.int32]
    stripe: Longs
    begin: Longs
    segment: Longs
    minute: Ints
    sums: Mapping[str, tuple[Ints, Floats]]
    units: pl.DataFrame
    steady_us: Floats


def windows_of(
    slots: MinuteSlots,
    starts: Mapping[int, datetime],
    whole: Set[int],
    *,
    analysis: AnalysisOptions,
    day: date,
) -> Windows:
    """Return the windows of one partition's minutes, those that cross midnight apart.

    `whole`: the runs that have no GPU outside the partition.
    """
    counters = [
        name
        for name in dict.fromkeys(("gpu_util", *analysis.imbalance_counters))
        if name in slots.sums
    ]
    if not counters or not len(slots.minute):
        schemas = (COMPLETE_WINDOWS, BORDER_WINDOWS, IMBALANCE, UNITS)
        return Windows(*(pl.DataFrame(schema=schema) for schema in schemas))
    every = slots.minute if analysis.window_s == 60 else slots.minute // (analysis.window_s // 60)
    groups = _per_gpu(slots, every)
    if groups is None:
        window = every
        segment = np.repeat(np.arange(len(slots.run)), np.diff(slots.begin))
    else:
        window = every[groups.slot]
        segment = slots.segment[groups.slot]
    runs, of_segment = np.unique(slots.run, return_inverse=True)
    offset, owner, numbers = window_places(
        of_segment, every[slots.begin[:-1]], every[slots.begin[1:] - 1]
    )
    since = _since_midnight(runs, starts, day)
    begin = since[owner] + numbers * np.int64(analysis.window_s * 1_000_000)
    place = offset[of_segment][segment] + window
    crosses = _crosses_midnight(begin, analysis.window_s)
    across_all = np.flatnonzero(crosses[place])
    place[across_all] = -1
    is_whole = np.array([int(run) in whole for run in runs], np.bool_)
    steady_us = np.minimum(slots.steady_us, analysis.window_s * 1e6)
    weight, unit_us = _weights(steady_us, of_segment)
    complete, border, settled = [], [], []
    for name in counters:
        n, total = slots.sums[name]
        if weight is not None:
            total = total * weight[slots.segment]
        if groups is not None:
            n, total = groups.add(n, total)
        counted, summed, most = (
            np.zeros(len(owner), np.int64),
            np.zeros(len(owner)),
            np.full(len(owner), -np.inf),
        )
        kernel.over_gpus(place, n, total, counted, summed, most)
        there = counted > 0
        settled.append(_settled(name, runs, is_whole, owner, there, summed, most))
        kept = np.flatnonzero(there & ~is_whole[owner])
        run = runs[owner[kept]]
        complete.append(
            _frame(
                COMPLETE_WINDOWS,
                name,
                run=run,
                window=numbers[kept],
                total=summed[kept],
                most=most[kept],
            )
        )
        across = across_all[n[across_all] > 0]
        of_gpu = segment[across]
        parts = total[across] if weight is None else total[across] / weight[of_gpu]
        units = {key: slots.units[key].gather(slots.stripe[of_gpu]) for key in GPU_KEY}
        run = runs[of_segment[of_gpu]]
        border.append(
            _frame(
                BORDER_WINDOWS,
                name,
                run=run,
                window=window[across],
                n=n[across],
                total=parts,
                unit_us=pl.Series(steady_us[of_gpu]).fill_nan(None),
                **units,
            )
        )
    units_us = pl.DataFrame({"run": runs, "unit_us": unit_us}, schema=UNITS).fill_nan(None)
    return Windows(pl.concat(complete), pl.concat(border), pl.concat(settled), units_us)


def _weights(steady_us: Floats, of_segment: Longs) -> tuple[Floats | None, Floats]:
    """How many units a sample of each segment counts, and the unit (us) of each run, NaN: unknown.

    None where all count 1: runs have one sampling interval.
    """
    shortest = np.full(int(of_segment.max()) + 1, np.nan)
    longest = shortest.copy()
    np.fmin.at(shortest, of_segment, steady_us)
    np.fmax.at(longest, of_segment, steady_us)
    varied = longest > kernel.APART * shortest
    if not varied.any():
        return None, shortest
    units = steady_us / shortest[of_segment]
    return np.where(varied[of_segment] & ~np.isnan(units), units, 1.0), shortest


def _varied(units: pl.DataFrame) -> pl.DataFrame:
    """The runs of which `units` has several, and the `least` of each."""
    unit = pl.col("unit_us")
    spans = units.group_by("run").agg(least=unit.min(), longest=unit.max())
    return spans.filter(pl.col("longest") > kernel.APART * pl.col("least")).drop("longest")


def _in_unit(windows: pl.DataFrame, varied: pl.DataFrame) -> pl.DataFrame:
    """Sums of windows in the least unit of their run, where its units differ."""
    joined = windows.join(varied, on="run", how="left", maintain_order="left")
    factor = (pl.col("unit_us") / pl.col("least")).fill_null(1.0)
    sums = [name for name in ("total", "most") if name in windows.columns]
    unit = pl.coalesce("least", "unit_us")
    return joined.with_columns(*(pl.col(name) * factor for name in sums), unit_us=unit)


def _complete(parts: Sequence[Windows]) -> list[pl.DataFrame]:
    """Complete windows of partitions, in one unit per run."""
    varied = _varied(pl.concat([pl.DataFrame(schema=UNITS), *(part.units for part in parts)]))
    if varied.is_empty():
        return [part.complete for part in parts]
    with_units = (
        part.complete.join(part.units, on="run", how="left", maintain_order="left")
        for part in parts
    )
    return [_in_unit(windows, varied).select(*COMPLETE_WINDOWS) for windows in with_units]


def _border(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Windows of GPUs that cross midnight, in one unit per run.

    The unit of a part with few samples is that of the other part on the same GPU.
    """
    border = pl.concat(parts)
    unit = pl.col("unit_us")
    usual = unit.max().over("run", *GPU_KEY)
    border = border.with_columns(unit_us=pl.coalesce(unit, usual))
    varied = _varied(border)
    return border if varied.is_empty() else _in_unit(border, varied).select(*BORDER_WINDOWS)


def _settled(
    name: str,
    runs: NDArray[np.int32],
    is_whole: NDArray[np.bool_],
    owner: Longs,
    there: NDArray[np.bool_],
    total: Floats,
    most: Floats,
) -> pl.DataFrame:
    """The `there` windows of each run that has no GPU elsewhere, summed up."""
    active = there & (most > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        even_gpus = np.where(active, total / most, 0.0)
    count = np.bincount(owner, there, minlength=len(runs)).astype(np.int64)
    busy = np.bincount(owner, active, minlength=len(runs)).astype(np.int64)
    added = np.bincount(owner, even_gpus, minlength=len(runs))
    kept = np.flatnonzero(is_whole & (count > 0))
    return _frame(
        IMBALANCE,
        name,
        run=runs[kept],
        windows=count[kept],
        zero_windows=(count - busy)[kept],
        even_gpus=added[kept],
    )


def _frame(schema: Mapping[str, pl.DataType], counter: str, **columns: object) -> pl.DataFrame:
    frame = pl.DataFrame(columns).with_columns(counter=pl.lit(counter))
    return frame.select(pl.col(name).cast(dtype) for name, dtype in schema.items())


@dataclass(frozen=True, slots=True)
class _Groups:
    """Order that groups minutes by run, GPU and window, and where each group begins."""

    order: Longs
    first: Longs

    @property
    def slot(self) -> Longs:
        """One slot per group."""
        return self.order[self.first]

    def add(self, n: Ints, total: Floats) -> tuple[Ints, Floats]:
        """Values and sums of each group."""
        return np.add.reduceat(n[self.order], self.first), np.add.reduceat(
            total[self.order], self.first
        )


def _per_gpu(slots: MinuteSlots, window: Ints) -> _Groups | None:
    """Minutes per window of a GPU; None if every minute is one."""
    pair = slots.stripe * (np.int64(slots.run.max()) + 1) + slots.run
    # A run has a GPU, loses it to another, and has it again.
    again = len(np.unique(pair)) < len(pair)
    if not again and window is slots.minute:
        return None
    whose = pair[slots.segment]
    order = np.lexsort((window, whose)) if again else np.arange(len(window))
    whose, window = whose[order], window[order]
    changed = np.ones(len(order), np.bool_)
    changed[1:] = (whose[1:] != whose[:-1]) | (window[1:] != window[:-1])
    return _Groups(order, np.flatnonzero(changed))


def _since_midnight(runs: NDArray[np.int32], starts: Mapping[int, datetime], day: date) -> Longs:
    """Start of each run, in microseconds since the beginning of `day`."""
    begin = microseconds(midnight(day))
    return np.array([microseconds(starts[int(run)]) - begin for run in runs], np.int64)


def _crosses_midnight(begin: Longs, length_s: int) -> NDArray[np.bool_]:
    """True for windows that begin before a border of the day and end after it."""
    end = begin + length_s * 1_000_000
    return np.asarray(((begin < 0) & (end > 0)) | ((begin < DAY_US) & (end > DAY_US)))


def window_places(of_segment: Longs, first: Ints, last: Ints) -> tuple[Longs, Longs, Longs]:
    """Return offsets of each run's windows in one array for all runs; run and window of each place.

    `of_segment`: run of each segment, counted from 0; `first`, `last`: window in which it begins
    and ends.
    """
    runs = int(of_segment.max()) + 1
    low, high = np.full(runs, np.iinfo(np.int64).max), np.full(runs, np.iinfo(np.int64).min)
    np.minimum.at(low, of_segment, first)
    np.maximum.at(high, of_segment, last)
    count = high - low + 1
    offset = np.cumsum(count) - count - low
    owner = np.repeat(np.arange(runs), count)
    return offset, owner, np.arange(len(owner)) - offset[owner]


def _over_gpus(per_gpu: pl.DataFrame) -> pl.DataFrame:
    return (
        per_gpu.group_by("run", "counter", "window")
        .agg(pl.col("total").sum(), most=pl.col("total").max())
        .select(*COMPLETE_WINDOWS)
    )


def fold_windows(
    parts: Sequence[Windows],
    carried: pl.DataFrame,
    starts: pl.DataFrame,
    *,
    analysis: AnalysisOptions,
    day: date,
    last: bool,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return (complete windows per (run, counter) of this day, windows carried to the next day).

    `starts`: run, start. `last`: no day follows, so nothing is carried.
    """
    border = _border([carried, *(part.border for part in parts)])
    unit = ["run", "node", "gpu", "mig", "counter", "window"]
    border = (
        border.group_by(unit, maintain_order=True)
        .agg(pl.col("n", "total").sum(), pl.col("unit_us").first())
        .select(*BORDER_WINDOWS)
    )
    begun = starts.select("run", begun="start")
    following = midnight(day + timedelta(days=1))
    length = pl.duration(seconds=(pl.col("window").cast(pl.Int64) + 1) * analysis.window_s)
    timed = border.join(begun, on="run", how="left").with_columns(
        open=(pl.col("begun") + length) > following
    )
    still_open = (
        timed.filter("open").select(*BORDER_WINDOWS)
        if not last
        else pl.DataFrame(schema=BORDER_WINDOWS)
    )
    done = (
        timed.select(*BORDER_WINDOWS)
        if last
        else timed.filter(~pl.col("open")).select(*BORDER_WINDOWS)
    )
    windows = pl.concat([*_complete(parts), _over_gpus(done)])
    windows = windows.group_by("run", "counter", "window", maintain_order=True).agg(
        pl.col("total").sum(), pl.col("most").max()
    )
    active = pl.col("most") > 0
    even_gpus = pl.when(active).then(pl.col("total") / pl.col("most")).otherwise(0.0)
    result = windows.group_by("run", "counter").agg(
        windows=pl.len().cast(pl.Int64),
        zero_windows=(~active).sum().cast(pl.Int64),
        even_gpus=even_gpus.sort_by("window").sum(),
    )
    return result.select(*IMBALANCE), still_open


def mean_imbalance(gpus: pl.Expr, *, count_zero_windows: bool) -> pl.Expr:
    """Return the mean imbalance of windows that are summed up as in IMBALANCE.

    Null for a single GPU, and where no window counts. `gpus`: those with values of the counter.
    `count_zero_windows`: windows in which all is zero count 0, else they are left out.
    """
    active = pl.col("windows") - pl.col("zero_windows")
    counted = pl.col("windows") if count_zero_windows else active
    added = active - pl.col("even_gpus") / gpus
    return pl.when((gpus > 1) & (counted > 0)).then(added / counted)


MINUTE_S = 60
_UNIT_WINDOW = ("run", "window", "node", "gpu", "mig")
_FOLDED = {
    "run": pl.UInt32(),
    "windows": pl.Int64(),
    "zero_windows": pl.Int64(),
    "even_gpus": pl.Float64(),
}


def spatial_imbalance(
    minutes: pl.LazyFrame,
    jobs: pl.DataFrame,
    gpus: pl.DataFrame,
    *,
    window_s: int,
    count_zero_windows: bool = False,
) -> pl.DataFrame:
    """Return spatial imbalance per row of `jobs`, in order, over windows of one length.

    As `spatial_imbalances`.
    """
    lengths = (window_s,)
    of_lengths = spatial_imbalances(
        minutes, jobs, gpus, windows_s=lengths, count_zero_windows=count_zero_windows
    )
    return of_lengths[window_s]


def spatial_imbalances(
    minutes: pl.LazyFrame,
    jobs: pl.DataFrame,
    gpus: pl.DataFrame,
    *,
    windows_s: Sequence[int],
    count_zero_windows: bool = False,
) -> dict[int, pl.DataFrame]:
    """Return spatial imbalance per row of `jobs`, in order, for each length of windows.

    Columns: job_key, spatial_imbalance, spatial_windows, spatial_zero_fraction.

    `minutes`: rows of job_minutes; those of other jobs or another analysis are passed over. `jobs`:
    job_key, seq and `gpus`, those with utilisation (`with_gpus_measured`). `gpus`:
    WINDOW_GPU_COLUMNS of their rows of job_gpus; samples count by their intervals where these
    differ within a job. A GPU without samples in a window counts 0; windows in which all is zero
    are left out, or count 0 with `count_zero_windows`. Imbalance is null for a single GPU and where
    nothing was active; all is null where utilisation was not measured.

    Days are read one after the other, each once for all lengths, so that memory is that of one day.
    A minute's sum is its mean times its samples: exact up to the single precision of stored means
    where utilisation is in each sample, else samples without it count like the others of their
    minute. Errors: ConfigError for windows that are not of whole minutes.
    """
    for window_s in windows_s:
        if window_s <= 0 or window_s % MINUTE_S:
            raise ConfigError(
                f"windows of {window_s} s are not whole minutes", do="use 60, 300, 900 or 1800"
            )
    numbered = jobs.select("job_key", "seq", "gpus").with_row_index("run")
    measured = minutes.filter(pl.col("gpu_util").is_not_null()).select(_OF_MINUTES)
    lengths = [_LengthWindows.of(measured, numbered, gpus, window_s) for window_s in windows_s]
    t = pl.col("t")
    for day in _days(minutes) if lengths else ():
        begin, following = midnight(day), midnight(day + timedelta(days=1))
        of_day = measured.filter(t >= pl.lit(begin, dtype=TIME), t < pl.lit(following, dtype=TIME))
        shared = of_day.cache()  # read once for all plans
        plans = [length.with_minutes(shared) for length in lengths]
        for length, whole in zip(lengths, pl.collect_all(plans, engine="streaming"), strict=True):
            length.add(whole, following)
    return {
        window_s: length.of_jobs(count_zero_windows=count_zero_windows)
        for window_s, length in zip(windows_s, lengths, strict=True)
    }


@dataclass(slots=True)
class _LengthWindows:
    """Windows of one length: those folded so far, and those that go on after the last day."""

    numbered: pl.DataFrame
    units: pl.DataFrame
    length: int  # minutes
    still_open: pl.DataFrame
    folded: list[pl.DataFrame]

    @classmethod
    def of(
        cls, minutes: pl.LazyFrame, numbered: pl.DataFrame, gpus: pl.DataFrame, window_s: int
    ) -> _LengthWindows:
        """Return the windows before the first day."""
        units, length = _units_of_gpus(gpus, window_s), window_s // MINUTE_S
        parts = _parts_of_windows(minutes, numbered, units, length)
        still_open = pl.DataFrame(schema=parts.collect_schema())
        return cls(numbered, units, length, still_open, [pl.DataFrame(schema=_FOLDED)])

    def with_minutes(self, minutes: pl.LazyFrame) -> pl.LazyFrame:
        """Return the plan of the windows of a day's minutes, with those that began before."""
        parts = _parts_of_windows(minutes, self.numbered, self.units, self.length)
        return (
            pl.concat([self.still_open.lazy(), parts])
            .group_by(_UNIT_WINDOW)
            .agg(pl.col("ends").max(), pl.col("total").sum())
            .select(self.still_open.columns)
        )

    def add(self, whole: pl.DataFrame, following: datetime) -> None:
        """Add a day's windows: those that end by then are complete."""
        is_open = pl.col("ends") > pl.lit(following, dtype=TIME)
        self.still_open = whole.filter(is_open)
        self.folded.append(_fold(whole.filter(~is_open)))

    def of_jobs(self, *, count_zero_windows: bool) -> pl.DataFrame:
        """Return a row per job."""
        folded = pl.concat([*self.folded, _fold(self.still_open)])
        return _of_jobs(folded, self.numbered, count_zero_windows=count_zero_windows)


def with_gpus_measured(jobs: pl.DataFrame, gpus: pl.DataFrame) -> pl.DataFrame:
    """Return `jobs` with `gpus`: those of which job_gpus has the utilisation; null: none."""
    measured = gpus.filter(pl.col("gpu_util_mean").is_not_null()).group_by("job_key", "seq")
    counted = measured.agg(gpus=pl.len().cast(pl.Int64))
    return jobs.drop("gpus").join(counted, on=["job_key", "seq"], how="left").select(*jobs.columns)


# what of job_gpus windows of stored minutes need
WINDOW_GPU_COLUMNS = ("job_key", "seq", *GPU_KEY, "interval_s", "gpu_util_mean")


def _units_of_gpus(gpus: pl.DataFrame, window_s: int) -> pl.DataFrame:
    """How many `units` a sample of a GPU counts: WINDOW_GPU_COLUMNS of jobs whose intervals differ.

    The unit is the job's shortest interval; a sample stands for a window at most.
    """
    interval_s = pl.col("interval_s").clip(upper_bound=window_s)
    shortest = interval_s.min().over("job_key", "seq")
    longest = interval_s.max().over("job_key", "seq")
    varied = gpus.filter(longest > kernel.APART * shortest)
    return varied.select("job_key", "seq", *GPU_KEY, units=(interval_s / shortest).fill_null(1.0))


_OF_MINUTES = ("job_key", "seq", *GPU_KEY, "t", "minute", "gpu_util", "samples")


def _parts_of_windows(
    minutes: pl.LazyFrame, numbered: pl.DataFrame, units: pl.DataFrame, length: int
) -> pl.LazyFrame:
    """Per measured minute and GPU: run, window, end of the window, sum of utilisation."""
    wanted = numbered.lazy().select("run", "job_key", "seq")
    total = pl.col("gpu_util").cast(pl.Float64) * pl.col("samples")
    if units.height:
        unit = ["job_key", "seq", *GPU_KEY]
        minutes = minutes.join(units.lazy(), on=unit, how="left", nulls_equal=True)
        total = total * pl.col("units").fill_null(1.0)
    window = pl.col("minute") // length
    left = ((window + 1) * length - pl.col("minute")).cast(pl.Int64)
    return minutes.join(wanted, on=["job_key", "seq"], how="inner").select(
        "run",
        "node",
        "gpu",
        "mig",
        window=window,
        ends=pl.col("t") + pl.duration(minutes=left),
        total=total,
    )


def _days(minutes: pl.LazyFrame) -> list[date]:
    found = minutes.select(day=pl.col("t").dt.date()).unique().collect(engine="streaming")
    return sorted(found["day"].to_list())


def _fold(per_gpu: pl.DataFrame) -> pl.DataFrame:
    """One row per run: windows, all-zero windows, `even_gpus` of the others."""
    active = pl.col("most") > 0
    even_gpus = pl.col("total") / pl.col("most")
    return (
        per_gpu.group_by("run", "window")
        .agg(pl.col("total").sum(), most=pl.col("total").max())
        .sort("run", "window")
        .group_by("run", maintain_order=True)
        .agg(
            windows=pl.len().cast(pl.Int64),
            zero_windows=(~active).sum().cast(pl.Int64),
            even_gpus=even_gpus.filter(active).sum(),
        )
    )


def _of_jobs(
    folded: pl.DataFrame, numbered: pl.DataFrame, *, count_zero_windows: bool
) -> pl.DataFrame:
    added = folded.group_by("run", maintain_order=True).agg(
        pl.col("windows", "zero_windows", "even_gpus").sum()
    )
    return numbered.join(added, on="run", how="left", maintain_order="left").select(
        "job_key",
        spatial_imbalance=mean_imbalance(pl.col("gpus"), count_zero_windows=count_zero_windows),
        spatial_windows="windows",
        spatial_zero_fraction=pl.col("zero_windows") / pl.col("windows"),
    )
