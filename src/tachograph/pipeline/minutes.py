"""Minutes of jobs: written per partition, joined across midnight, committed day by day."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta

import numpy as np
import polars as pl
from deltalake.transaction import AddAction
from numpy.typing import NDArray

from tachograph.catalog.arrays import Ints, Longs, Singles
from tachograph.catalog.tables import (
    GPU_KEY,
    JOB_MINUTES,
    MINUTE_MAXIMA,
    MINUTE_MEANS,
    TIME,
    LakeTable,
)
from tachograph.catalog.units import DAY_US, microseconds, midnight
from tachograph.lake.delta import Lake
from tachograph.lake.places import without_places
from tachograph.lake.query import read_gpus, read_minutes, read_node_minutes
from tachograph.pipeline.accumulators import Accumulators
from tachograph.pipeline.kernel import APART, MINUTE_US
from tachograph.pipeline.timelines import (
    empty_timeline,
    timeline_of_minutes,
    timeline_of_slots,
    timelines_of,
)


class StagedFiles:
    """Staged files of one table; each `commit` commits the files since the last one at once."""

    def __init__(self, lake: Lake, table: LakeTable, number: int) -> None:
        self.lake, self.table, self.number = lake, table, number
        self.staged: list[AddAction] = []
        self.commits = 0

    def take(self, file: AddAction) -> None:
        """Add a file that was staged elsewhere."""
        self.staged.append(file)

    def stage(self, rows: pl.DataFrame) -> None:
        """Write rows in the schema and order of the table, one file per day."""
        for day, of_day in rows.group_by(pl.col("t").dt.date(), maintain_order=True):
            if isinstance(day[0], date):
                self.staged.append(self.lake.stage(self.table, of_day, day=day[0]))

    def commit(self) -> None:
        """Commit the staged files."""
        if self.staged:
            self.commits += 1
            self.lake.commit(
                self.table, self.staged, app_id=f"analysis:{self.number}", mark=self.commits
            )
            self.staged = []

    def discard(self) -> None:
        """Delete staged files that will not be committed."""
        self.lake.discard(self.table, self.staged)


_VALUES = (*MINUTE_MEANS, *MINUTE_MAXIMA)
_OWNER = ("job_key", "job_id", "cluster", *GPU_KEY)
CUT_MINUTES: Mapping[str, pl.DataType] = {
    "run": pl.Int32(),
    "interval_us": pl.Float64(),
    **{name: JOB_MINUTES.schema[name] for name in (*GPU_KEY, "minute", "t", "samples", *_VALUES)},
}


@dataclass(frozen=True, slots=True)
class PartitionMinutes:
    """Minutes of a partition, in order of segment and time.

    owner: one row per segment (run, node, gpu, mig), and its sampling interval. begin: first minute
    of each segment, and behind the last their number. values: {counter: mean or maximum}, NaN where
    not measured.
    """

    owner: pl.DataFrame
    begin: Longs
    minute: Ints
    samples: Ints
    values: Mapping[str, Singles]


def write_minutes(
    lake: Lake,
    part: Accumulators,
    minutes: PartitionMinutes,
    keys: pl.DataFrame,
    *,
    number: int,
    day: date,
    idle_util: float,
) -> Accumulators:
    """Write a partition's whole minutes as one file; return the rest and the timeline.

    `keys`: run, job_key, job_id, cluster, start. Errors: LakeError when it cannot be written.
    """
    if not len(minutes.minute):
        return replace(
            part, timeline=empty_timeline(), cut_minutes=pl.DataFrame(schema=CUT_MINUTES)
        )
    owner = without_places(minutes.owner).join(keys, on="run", how="left", maintain_order="left")
    lengths = np.diff(minutes.begin)
    start = owner["start"].to_physical().to_numpy()
    t = np.repeat(start, lengths) + minutes.minute * np.int64(MINUTE_US)
    whole = ~_cut(minutes, t, day)
    order = _order(minutes, owner)
    whole &= ~_shared(minutes, owner, order)
    first, behind = minutes.begin[:-1][order], minutes.begin[1:][order]
    slots = _ranges(first, behind)
    segment = np.repeat(order, behind - first)
    if not whole.all():
        written = whole[slots]
        pending = np.flatnonzero(~whole)
        cut = _rows(
            minutes, owner, np.repeat(np.arange(len(lengths)), lengths)[pending], pending, t, number
        )
        slots, segment = slots[written], segment[written]
    else:
        cut = _rows(minutes, owner, segment[:0], slots[:0], t, number)
    rows = _rows(minutes, owner, segment, slots, t, number).select(*JOB_MINUTES.schema)
    run = minutes.owner["run"].to_numpy()
    timeline = timeline_of_slots(
        run, minutes.begin, minutes.minute, whole, minutes.values, idle_util=idle_util
    )
    file = lake.stage(JOB_MINUTES, rows, day=day) if rows.height else None
    return replace(part, timeline=timeline, minutes_file=file, cut_minutes=cut.select(*CUT_MINUTES))


def _cut(minutes: PartitionMinutes, t: Longs, day: date) -> NDArray[np.bool_]:
    """True for minutes that cross midnight: only the first and last of a segment can."""
    begin = microseconds(midnight(day))
    cut = np.zeros(len(t), np.bool_)
    first, last = minutes.begin[:-1], minutes.begin[1:] - 1
    cut[first] = t[first] < begin
    cut[last] |= t[last] + MINUTE_US > begin + DAY_US
    return cut


def _order(minutes: PartitionMinutes, owner: pl.DataFrame) -> Longs:
    """Segments in the order of the table."""
    placed = owner.select("job_key", *GPU_KEY, minute=minutes.minute[minutes.begin[:-1]])
    # Segments of a GPU that begin in the same minute keep the order of time.
    order = placed.select(pl.arg_sort_by(JOB_MINUTES.sort, maintain_order=True)).to_series()
    return order.cast(pl.Int64).to_numpy()


def _shared(minutes: PartitionMinutes, owner: pl.DataFrame, order: Longs) -> NDArray[np.bool_]:
    """True for a minute in which a segment ends and the next one of the same run and GPU begins."""
    shared = np.zeros(len(minutes.minute), np.bool_)
    same_gpu = owner.select("run", *GPU_KEY)[order.tolist()].select(
        pl.all_horizontal(pl.all().eq_missing(pl.all().shift(-1)))
    )
    here = np.flatnonzero(same_gpu.to_series().to_numpy()[:-1])
    last, following = minutes.begin[1:][order[here]] - 1, minutes.begin[:-1][order[here + 1]]
    twice = minutes.minute[last] == minutes.minute[following]
    shared[last[twice]] = shared[following[twice]] = True
    return shared


def _ranges(first: Longs, behind: Longs) -> Longs:
    """Concatenated ranges, each from `first` up to its `behind`, exclusive.

    >>> _ranges(np.array([5, 0]), np.array([7, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    lengths = behind - first
    begun = np.cumsum(lengths) - lengths
    numbers: Longs = np.arange(int(lengths.sum())) + np.repeat(first - begun, lengths)
    return numbers


def _rows(
    minutes: PartitionMinutes,
    owner: pl.DataFrame,
    segment: Longs,
    slot: Longs,
    t: Longs,
    number: int,
) -> pl.DataFrame:
    """Minutes as table rows, and their runs (`run`)."""
    segments = pl.Series(segment)
    columns = {name: owner[name].gather(segments) for name in ("run", "interval_us", *_OWNER)}
    columns["t"] = pl.Series(t[slot]).cast(TIME)
    columns["minute"], columns["samples"] = (
        pl.Series(minutes.minute[slot]),
        pl.Series(minutes.samples[slot]),
    )
    for name in _VALUES:
        if name in minutes.values:
            columns[name] = pl.Series(minutes.values[name][slot]).fill_nan(None)
        else:
            columns[name] = pl.repeat(None, len(slot), dtype=pl.Float32, eager=True)
    columns["seq"] = pl.repeat(number, len(slot), dtype=pl.Int64, eager=True)
    return pl.DataFrame(columns)


_MINUTE_KEY = ("run", "node", "gpu", "mig", "minute")


class MinuteWriter:
    """Writes minutes day by day; a minute that crosses midnight waits for its second part."""

    def __init__(self, lake: Lake, keys: pl.DataFrame, number: int, *, idle_util: float) -> None:
        self.keys, self.number, self.idle_util = keys, number, idle_util
        self.staged = StagedFiles(lake, JOB_MINUTES, number)
        self.cut = pl.DataFrame(schema=CUT_MINUTES)

    def add(self, part: Accumulators) -> None:
        """Add the files and remainders of one partition."""
        if part.minutes_file is not None:
            self.staged.take(part.minutes_file)
        self.cut = pl.concat([self.cut, part.cut_minutes])

    def end_day(self, day: date) -> pl.DataFrame:
        """Commit the minutes of a complete day; return the timeline of those that cross
        midnight.
        """
        following = pl.lit(midnight(day + timedelta(days=1)), dtype=TIME)
        waits = pl.col("t") + pl.duration(minutes=1) > following
        done, self.cut = self.cut.filter(~waits), self.cut.filter(waits)
        return self._commit(done)

    def close(self) -> pl.DataFrame:
        """Commit pending minutes, as no day follows; return their timeline."""
        done, self.cut = self.cut, self.cut.clear()
        return self._commit(done)

    def unfinished(self) -> pl.DataFrame:
        """Runs with a minute that continues on the next day."""
        return self.cut.select("run").unique()

    def discard(self) -> None:
        """Delete staged files that will not be committed."""
        self.staged.discard()

    def _commit(self, cut: pl.DataFrame) -> pl.DataFrame:
        joined = joined_minutes(cut)
        self.staged.stage(self._rows(joined))
        self.staged.commit()
        return timeline_of_minutes(joined, idle_util=self.idle_util)

    def _rows(self, minutes: pl.DataFrame) -> pl.DataFrame:
        keyed = minutes.join(self.keys, on="run", how="left").with_columns(
            seq=pl.lit(self.number, dtype=pl.Int64)
        )
        return keyed.select(
            pl.col(name).cast(dtype) for name, dtype in JOB_MINUTES.schema.items()
        ).sort(*JOB_MINUTES.sort)


def joined_minutes(rows: pl.DataFrame) -> pl.DataFrame:
    """Merge parts of a minute into one row, means weighted by samples.

    A sample counts by the time it stands for where the sampling intervals of the parts differ.
    Grain: (run, node, gpu, mig, minute).
    """
    interval = pl.col("interval_us").fill_nan(None)
    varied = interval.max() > APART * interval.min()
    weight = pl.col("samples") * pl.when(varied).then(interval / interval.max()).otherwise(1.0)
    means = [
        ((pl.col(name) * weight).sum() / weight.filter(pl.col(name).is_not_null()).sum())
        .fill_nan(None)
        .cast(pl.Float32)
        .alias(name)
        for name in MINUTE_MEANS
    ]
    maxima = [pl.col(name).max() for name in MINUTE_MAXIMA]
    repeated = rows.select(pl.struct(_MINUTE_KEY).is_duplicated()).to_series()
    groups = rows.filter(repeated).group_by(*_MINUTE_KEY, maintain_order=True)
    merged = groups.agg(
        *means, *maxima, pl.col("samples").sum(), pl.col("t", "interval_us").first()
    )
    return pl.concat([rows.filter(~repeated), merged.select(*rows.columns)])


JOBS_PER_BATCH = 1000  # jobs whose minutes are in memory at a time


def read_stored(
    lake: Lake, jobs: pl.DataFrame, *, idle_util: float
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return stored GPUs, timelines and node minutes of `jobs`, rows of job_summaries.

    Timelines have one row per (job_key, minute), minutes of nodes one per (job_key, node, minute).
    """
    ordered = jobs.sort("start", "job_key")
    parts = [
        timelines_of(read_minutes(lake, ordered.slice(at, JOBS_PER_BATCH)), idle_util=idle_util)
        for at in range(0, max(1, ordered.height), JOBS_PER_BATCH)
    ]
    return read_gpus(lake, jobs), pl.concat(parts), read_node_minutes(lake, ordered)
