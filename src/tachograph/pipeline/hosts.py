"""Minutes of jobs' nodes, reduced day by day from node samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from types import MappingProxyType

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tachograph.catalog.arrays import Floats, Longs
from tachograph.catalog.compiled import compiled
from tachograph.catalog.counters import HOST_COUNTERS
from tachograph.catalog.tables import HOST_CHARACTERISTICS, JOB_NODE_MINUTES, NODE_SAMPLES, TIME
from tachograph.catalog.units import DAY_US, microseconds, midnight
from tachograph.lake.delta import Lake
from tachograph.lake.partitions import Partition, partitions
from tachograph.lake.places import NodePlaces, read_places, without_places
from tachograph.pipeline.attribution import Attribution
from tachograph.pipeline.kernel import MINUTE_US, spacing
from tachograph.pipeline.minutes import StagedFiles
from tachograph.pipeline.reduction import overlapping_day, part_nodes


@compiled
def spread(
    t: Longs, level: Floats, low: Longs, high: Longs, start: Longs, end: Longs,
    zero: Longs, first: Longs, last: Longs, offset: Longs, total: Floats, weight: Floats,
) -> None:  # fmt: skip
    """Integrate a level by minute: add level x seconds to `total`, and seconds to `weight`.

    `level[i]`: between samples i - 1 and i, NaN if unknown. Both samples must lie in the stretch.
    """
    for k in range(start.shape[0]):
        i = low[k] + np.searchsorted(t[low[k] : high[k]], start[k]) + 1
        while i < high[k] and t[i] < end[k]:
            here, minute = t[i - 1], (t[i - 1] - zero[k]) // MINUTE_US
            while not np.isnan(level[i]) and here < t[i]:
                edge = min(zero[k] + (minute + 1) * MINUTE_US, t[i])
                if first[k] <= minute <= last[k]:
                    slot = offset[k] + minute - first[k]
                    total[slot] += level[i] * (edge - here) * 1e-6
                    weight[slot] += (edge - here) * 1e-6
                here, minute = edge, minute + 1
            i += 1


@compiled
def average(
    t: Longs, value: Floats, low: Longs, high: Longs, start: Longs, end: Longs,
    zero: Longs, first: Longs, last: Longs, offset: Longs, total: Floats, weight: Floats,
) -> None:  # fmt: skip
    """Add to `total` the samples in each minute, to `weight` their number."""
    for k in range(start.shape[0]):
        i = low[k] + np.searchsorted(t[low[k] : high[k]], start[k])
        while i < high[k] and t[i] < end[k]:
            minute = (t[i] - zero[k]) // MINUTE_US
            if first[k] <= minute <= last[k]:
                slot = offset[k] + minute - first[k]
                total[slot] += value[i]
                weight[slot] += 1.0
            i += 1


STRETCHES: Mapping[str, pl.DataType] = MappingProxyType(
    {
        "run": pl.Int32(),
        "node": pl.String(),
        "start": TIME,
        "end": TIME,
        "first": pl.Int32(),
        "last": pl.Int32(),
        "until": TIME,
    }
)
_PLACE = ("run", "node", "start", "end")
_NO_RUN = pl.lit(-1, dtype=pl.Int32).alias("run")


def exclusive_stays(
    intervals: pl.DataFrame, unsure: pl.DataFrame, contested: pl.DataFrame, starts: pl.DataFrame
) -> pl.DataFrame:
    """Return the stretches in which one run had a node to itself, sorted by run, node and start.

    Grain: one row per (run, node, start). `first` and `last`: minutes from the run's start in which
    no other run was there while it was. `until`: end of the last stretch that shares a minute with
    the one before it, from this one on. `intervals` (run, node, start, end) of GPUs owned; `unsure`
    of runs that own none and may have had some; `contested` (node, start, end) of GPUs that two
    runs claim. Runs without GPUs do not count. `starts`: run, start.
    """
    claimed = contested.select(_NO_RUN, "node", "start", "end")
    present = _union(pl.concat([intervals.select(_PLACE), unsure.select(_PLACE), claimed]))
    who = pl.col("run").cast(pl.Int64)
    events = pl.concat(
        [
            present.select("node", t="start", there=pl.lit(1), who=who),
            present.select("node", t="end", there=pl.lit(-1), who=-who),
        ]
    )
    moments = events.group_by("node", "t").agg(pl.col("there", "who").sum()).sort("node", "t")
    # where one is there, the sum of those who came less that of those who left is its number
    levels = moments.with_columns(
        pl.col("there", "who").cum_sum().over("node"), end=pl.col("t").shift(-1).over("node")
    )
    single = levels.filter(pl.col("there") == 1)
    alone = single.select(
        pl.col("who").cast(pl.Int32).alias("run"), "node", pl.col("t").alias("start"), "end"
    )
    return _with_minutes(alone.join(intervals, on="run", how="semi"), present, starts)


def _union(stays: pl.DataFrame) -> pl.DataFrame:
    """Stretches of a run on a node, merged where they overlap or touch."""
    ordered = stays.filter(pl.col("start") < pl.col("end")).sort("run", "node", "start")
    far = (
        (pl.col("end").cum_max().shift(1) < pl.col("start"))
        .over("run", "node")
        .fill_null(value=False)
    )
    merged = ordered.with_columns(stay=far.cum_sum().over("run", "node")).group_by(
        "run", "node", "stay"
    )
    return merged.agg(pl.col("start").min(), pl.col("end").max()).drop("stay")


def _with_minutes(
    stretches: pl.DataFrame, present: pl.DataFrame, starts: pl.DataFrame
) -> pl.DataFrame:
    """Return each stretch's minutes, without those shared with a previous or next run."""
    comes = present.select("run", "node", "start", comes=True)
    leaves = present.select("run", "node", "end", leaves=True)
    marked = stretches.join(comes, on=["run", "node", "start"], how="left").join(
        leaves, on=["run", "node", "end"], how="left"
    )
    marked = marked.join(starts.select("run", zero="start"), on="run", how="left")
    begin, end = (
        (pl.col(name) - pl.col("zero")).dt.total_microseconds() for name in ("start", "end")
    )
    first = pl.when("comes").then(begin // MINUTE_US).otherwise(-(-begin // MINUTE_US))
    last = pl.when("leaves").then((end - 1) // MINUTE_US).otherwise(end // MINUTE_US - 1)
    timed = marked.with_columns(first=first.cast(pl.Int32), last=last.cast(pl.Int32))
    ordered = timed.filter(pl.col("first") <= pl.col("last")).sort("run", "node", "start")
    separate = (
        (pl.col("first") != pl.col("last").shift(1)).over("run", "node").fill_null(value=True)
    )
    chained = ordered.with_columns(chain=separate.cum_sum().over("run", "node"))
    return chained.with_columns(until=pl.col("end").max().over("run", "node", "chain")).select(
        *STRETCHES
    )


CPU_TIMES = ("cpu_user_s", "cpu_nice_s", "cpu_system_s", "cpu_iowait_s", "cpu_idle_s")
LOAD = "load_average"


def _needs(counter: str) -> tuple[str, ...]:
    """Return the counters needed with this one: of CPU time the share in all of it is taken."""
    if counter not in CPU_TIMES:
        return (counter,)
    return (counter, *(other for other in CPU_TIMES if other != counter))


# counters of which a characteristic is made; the first is its own
NEEDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {name: _needs(counter) for name, (_, counter) in HOST_CHARACTERISTICS.items()}
)
HOST_COUNTERS_READ = tuple(
    c.name for c in HOST_COUNTERS if any(c.name in needed for needed in NEEDS.values())
)
_RATES = tuple(name for name in HOST_CHARACTERISTICS if name != LOAD)
_SUMS = tuple(f"{stem}_{name}" for name in HOST_CHARACTERISTICS for stem in ("sum", "weight"))
_KEY: Mapping[str, pl.DataType] = MappingProxyType(
    {"run": pl.Int32(), "node": pl.String(), "minute": pl.Int32()}
)
NODE_MINUTES: Mapping[str, pl.DataType] = MappingProxyType(
    {**_KEY, **dict.fromkeys(HOST_CHARACTERISTICS, pl.Float32())}
)


@dataclass(frozen=True, slots=True)
class CarriedHostSums:
    """State for the next day of nodes whose run continues over midnight.

    tails: last samples, in columns of node_samples. gaps: how far apart (us) two samples may be,
    one row per node and a column per characteristic; `since`: when the first of the tails was, or
    midnight (us). sums: minutes to which the next sample may still add, one row per (run, node,
    minute).
    """

    tails: pl.DataFrame
    gaps: pl.DataFrame
    sums: pl.DataFrame


def merge_carried(parts: Sequence[CarriedHostSums]) -> CarriedHostSums:
    """Return the merged state of several partitions."""
    tails = {name: NODE_SAMPLES.schema[name] for name in ("t", "node", *HOST_COUNTERS_READ)}
    gaps = {"node": pl.String(), "since": pl.Int64(), **dict.fromkeys(_RATES, pl.Float64())}
    sums = {**_KEY, **dict.fromkeys(_SUMS, pl.Float64())}
    return CarriedHostSums(
        pl.concat([pl.DataFrame(schema=tails), *(part.tails for part in parts)], how="diagonal"),
        pl.concat([pl.DataFrame(schema=gaps), *(part.gaps for part in parts)], how="diagonal"),
        pl.concat([pl.DataFrame(schema=sums), *(part.sums for part in parts)]),
    )


def reduce_hosts(
    frame: pl.DataFrame,
    stretches: pl.DataFrame,
    carried: CarriedHostSums,
    starts: Mapping[int, datetime],
    *,
    day: date,
    max_gap_intervals: float,
) -> tuple[pl.DataFrame, CarriedHostSums]:
    """Return the complete minutes (NODE_MINUTES) in the order of `stretches`, and the carry-over.

    `frame`: node_samples of the day, whole nodes, each key once. `stretches`: those of these nodes
    and this day, as `exclusive_stays` returns them. `carried`: from the day before. Null: fewer
    than two samples; a minute of which nothing is known has no row.
    """
    begin = microseconds(midnight(day))
    nodes = stretches["node"].unique().sort()
    samples = _HostSamples(_sum_rows(frame, nodes, carried.tails), nodes, begin, max_gap_intervals)
    before = nodes.to_frame().join(carried.gaps, on="node", how="left", maintain_order="left")
    slots = _HostSlots(
        stretches,
        nodes,
        before["since"].fill_null(begin).to_numpy(),
        starts,
        begin,
    )
    held, slots_held = slots.of(carried.sums)
    last_rows: dict[str, Longs] = {}
    gaps: dict[str, Floats] = {}
    sums: dict[str, Floats] = {}
    for name in HOST_CHARACTERISTICS:
        total, weight = np.zeros(slots.count), np.zeros(slots.count)
        total[slots_held], weight[slots_held] = (
            held[f"sum_{name}"],
            held[f"weight_{name}"],
        )
        series = samples.series(NEEDS[name])
        if name == LOAD:
            slots.add(average, series, series.values[0], total, weight)
        else:
            earlier = before[name].fill_null(float("nan")).to_numpy()
            slots.add(spread, series, samples.levels(series, earlier), total, weight)
            last_rows[name], gaps[name] = series.last_rows, series.gaps
        sums[f"sum_{name}"], sums[f"weight_{name}"] = total, weight
    stays_on = slots.stays_on()
    since, tails = samples.tails(last_rows, gaps, stays_on)
    waits = slots.waiting(since)
    keyed = slots.keys().with_columns(pl.Series(name, values) for name, values in sums.items())
    gaps_of_nodes = pl.DataFrame({"node": nodes, "since": since, **gaps}).filter(
        pl.Series(stays_on)
    )
    return minutes_of_sums(keyed.filter(pl.Series(~waits))), CarriedHostSums(
        tails, gaps_of_nodes.fill_nan(None), keyed.filter(pl.Series(waits))
    )


def minutes_of_sums(sums: pl.DataFrame) -> pl.DataFrame:
    """Return minutes computed from sums, without unknown ones."""
    values = [
        (pl.col(f"sum_{name}") / pl.col(f"weight_{name}"))
        .fill_nan(None)
        .cast(pl.Float32)
        .alias(name)
        for name in HOST_CHARACTERISTICS
    ]
    return sums.select(*_KEY, *values).filter(
        pl.any_horizontal(pl.col(*HOST_CHARACTERISTICS).is_not_null())
    )


def _sum_rows(frame: pl.DataFrame, nodes: pl.Series, tails: pl.DataFrame) -> pl.DataFrame:
    """Samples of some nodes and the last ones of the previous day, by node and time."""
    missing = [
        pl.lit(None, dtype=NODE_SAMPLES.schema[name]).alias(name)
        for name in HOST_COUNTERS_READ
        if name not in frame.columns
    ]
    here = frame.with_columns(missing).select("t", "node", *HOST_COUNTERS_READ)
    both = pl.concat([tails.select(here.columns), here])
    return both.filter(pl.col("node").is_in(nodes.implode())).sort("node", "t", maintain_order=True)


@dataclass(frozen=True, slots=True)
class _HostSeries:
    """Samples that have all of some counters: `rows` of the frame, their times, values by counter.

    stripes: first sample of each node, then their number. gaps: longest distance (us) of
    consecutive samples per node; NaN for fewer than two on the day. last_rows: last of each node,
    -1 without any.
    """

    t: Longs
    values: list[Floats]
    node: Longs
    stripes: Longs
    gaps: Floats
    last_rows: Longs


class _HostSamples:
    """Host samples as arrays, sorted by node and time."""

    def __init__(
        self, rows: pl.DataFrame, nodes: pl.Series, midnight: int, max_gap_intervals: float
    ) -> None:
        self.rows, self.count, self.midnight, self.max_gap_intervals = (
            rows,
            nodes.len(),
            midnight,
            max_gap_intervals,
        )
        self.node, self.t = _numbered(rows["node"], nodes), _physical(rows, "t")

    def series(self, counters: Sequence[str]) -> _HostSeries:
        """The samples that have all of `counters`."""
        valid = self.rows.select(pl.all_horizontal(pl.col(counters).is_not_null())).to_series()
        rows = valid.arg_true().cast(pl.Int64).to_numpy()
        t, node = self.t[rows], self.node[rows]
        stripes = np.searchsorted(node, np.arange(self.count + 1)).astype(np.int64)
        today = np.flatnonzero(t >= self.midnight)
        stripes_today = np.searchsorted(node[today], np.arange(self.count + 1)).astype(np.int64)
        gaps = np.empty(self.count)
        regular, regular_us = np.empty(self.count, np.int64), np.empty(self.count, np.int64)
        spacing(t[today], stripes_today, gaps, regular, regular_us)
        last = np.full(self.count, -1, np.int64)
        some = stripes[1:] > stripes[:-1]
        last[some] = rows[stripes[1:][some] - 1]
        values = [self.rows[name].cast(pl.Float64).to_numpy()[rows] for name in counters]
        return _HostSeries(t, values, node, stripes, gaps * self.max_gap_intervals, last)

    def levels(self, series: _HostSeries, gaps_before: Floats) -> Floats:
        """Rate, or share of the first counter in the sum, since the previous sample; NaN:
        unknown.
        """
        level = np.full(len(series.t), np.nan)
        if len(level) < 2:
            return level
        distance = np.diff(series.t)
        grown = [np.diff(values) for values in series.values]
        node = series.node[:-1]
        gap = np.where(series.t[:-1] < self.midnight, gaps_before[node], series.gaps[node])
        with np.errstate(divide="ignore", invalid="ignore"):
            whole = distance * 1e-6 if len(grown) == 1 else np.sum(grown, axis=0)
            steady = (distance <= gap) & (whole > 0) & (node == series.node[1:])
            level[1:] = np.where(
                steady & np.all([more >= 0 for more in grown], axis=0), grown[0] / whole, np.nan
            )
        return level

    def tails(
        self,
        last_rows: Mapping[str, Longs],
        gaps: Mapping[str, Floats],
        stays_on: NDArray[np.bool_],
    ) -> tuple[Longs, pl.DataFrame]:
        """Last samples that the next day continues, with the counters of which each is the last.

        And since when, per node; midnight without any.
        """
        following = self.midnight + DAY_US
        since = np.full(self.count, following, np.int64)
        tails = [self.rows.clear()]
        for name, last in last_rows.items():
            nodes = np.flatnonzero(stays_on & (last >= 0))
            nodes = nodes[self.t[last[nodes]] + gaps[name][nodes] >= following]
            since[nodes] = np.minimum(since[nodes], self.t[last[nodes]])
            tails.append(self.rows.select("t", "node", *NEEDS[name])[last[nodes].tolist()])
        return since, pl.concat(tails, how="diagonal").unique(maintain_order=True)


class _HostSlots:
    """Minutes of stretches on a day as consecutive slots; stretches of a run share minutes."""

    def __init__(
        self,
        stretches: pl.DataFrame,
        nodes: pl.Series,
        since: Longs,
        starts: Mapping[int, datetime],
        midnight: int,
    ) -> None:
        self.stretches, self.following, self.nodes = stretches, midnight + DAY_US, nodes.len()
        self.node = _numbered(stretches["node"], nodes)
        self.start, self.end, self.until = (
            _physical(stretches, name) for name in ("start", "end", "until")
        )
        self.zero = np.array([microseconds(starts[run]) for run in stretches["run"]], np.int64)
        begin = np.maximum(self.start, since[self.node])
        behind = np.minimum(self.end, self.following)
        first, last = (stretches[name].cast(pl.Int64).to_numpy() for name in ("first", "last"))
        self.first = np.maximum(first, (begin - self.zero) // MINUTE_US)
        self.last = np.minimum(last, (behind - 1 - self.zero) // MINUTE_US)
        self.length = np.maximum(self.last - self.first + 1, 0)
        shared = stretches.select(
            pl.struct("run", "node").eq_missing(pl.struct("run", "node").shift(1))
        ).to_series()
        again = shared.to_numpy() & (self.length > 0)
        again[1:] &= (self.first[1:] == self.last[:-1]) & (self.length[:-1] > 0)
        self.offset: Longs = np.cumsum(self.length - again) - self.length
        self.owner = np.repeat(np.arange(len(self.length)), self.length - again)
        self.count = len(self.owner)
        begun = self.offset + again
        self.minute: Longs = (
            np.arange(self.count) - begun[self.owner] + (self.first + again)[self.owner]
        )

    def add(
        self,
        loop: Callable[..., None],
        series: _HostSeries,
        values: Floats,
        total: Floats,
        weight: Floats,
    ) -> None:
        """Let a loop of `node_loops` go over the samples of each stretch."""
        low, high = series.stripes[self.node], series.stripes[self.node + 1]
        minutes = self.zero, self.first, self.last, self.offset
        loop(series.t, values, low, high, self.start, self.end, *minutes, total, weight)

    def of(self, sums: pl.DataFrame) -> tuple[pl.DataFrame, Longs]:
        """The rows of `sums` with a minute among the slots, and their slots."""
        ranges = self.stretches.select("run", "node").with_columns(
            first=self.first, behind=self.first + self.length, offset=self.offset
        )
        joined = sums.join(ranges, on=["run", "node"], how="inner")
        mine = joined.filter(
            (pl.col("minute") >= pl.col("first")) & (pl.col("minute") < pl.col("behind"))
        )
        held = mine.unique(subset=list(_KEY), keep="first", maintain_order=True)
        return held, held.select(
            pl.col("offset") + pl.col("minute") - pl.col("first")
        ).to_series().to_numpy()

    def stays_on(self) -> NDArray[np.bool_]:
        """True for nodes on which a run is beyond the day."""
        beyond = np.zeros(self.nodes, np.bool_)
        beyond[self.node[self.until > self.following]] = True
        return beyond

    def waiting(self, since: Longs) -> NDArray[np.bool_]:
        """True for slots that end after `since`, of stretches that go on into the next day."""
        ends = self.zero[self.owner] + (self.minute + 1) * MINUTE_US
        waits: NDArray[np.bool_] = (self.until[self.owner] > self.following) & (
            ends > since[self.node[self.owner]]
        )
        return waits

    def keys(self) -> pl.DataFrame:
        """Run, node and minute of each slot."""
        owner = pl.Series(self.owner)
        nodes = self.stretches.select(pl.col("run", "node").gather(owner))
        return nodes.with_columns(pl.Series("minute", self.minute, dtype=pl.Int32))


def _numbered(names: pl.Series, nodes: pl.Series) -> Longs:
    """Index of each name in `nodes`."""
    numbers = pl.DataFrame({"node": nodes, "place": np.arange(nodes.len())})
    joined = names.to_frame("node").join(numbers, on="node", how="left", maintain_order="left")
    return joined["place"].to_numpy()


def _physical(frame: pl.DataFrame, name: str) -> Longs:
    return frame[name].to_physical().to_numpy()


HOST_PARTITION_ROWS = 500_000  # of node samples that are in memory at a time
ONE_DAY = timedelta(days=1)
_STAY_KEY = ("run", "node", "start", "end")


class HostMinutes:
    """Reduces node samples day by day; free without any."""

    def __init__(
        self,
        lake: Lake,
        owned: Attribution,
        runs: pl.DataFrame,
        *,
        number: int,
        max_gap_intervals: float,
        places: NodePlaces,
    ) -> None:
        """`runs`: (run, job_key, job_id, cluster, start), all or some of those in `owned`, whose
        nodes are those of `places`.
        """
        self.lake, self.number, self.max_gap_intervals = lake, number, max_gap_intervals
        self.places = places
        self.keys = runs.select("run", "job_key", "job_id", "cluster", "start")
        self.staged = StagedFiles(lake, JOB_NODE_MINUTES, number)
        self.days = lake.days(NODE_SAMPLES)
        none = pl.DataFrame(schema=STRETCHES)
        self.stretches = _stretches(owned, self.keys) if self.days else none
        self.carried = merge_carried([])
        self.done: date | None = None
        self.kept: list[pl.DataFrame] = []

    def up_to(self, day: date) -> None:
        """Process all days up to this one."""
        while self.days and self.days[0] <= day:
            self._take_day(self.days.pop(0))

    def close(self) -> None:
        """Process the remaining days and pending minutes."""
        self.up_to(date.max)
        self._write(minutes_of_sums(self.carried.sums))
        self.staged.commit()

    def take(self, runs: pl.DataFrame) -> pl.DataFrame:
        """Remove and return node minutes of some runs: one row per (job_key, node, minute)."""
        rows = pl.concat([pl.DataFrame(schema=NODE_MINUTES), *self.kept])
        mine = rows.join(runs.select("run"), on="run", how="semi")
        self.kept = [rows.join(runs.select("run"), on="run", how="anti")] if self.kept else []
        keyed = mine.join(self.keys.select("run", "job_key"), on="run", how="left").drop("run")
        return keyed.sort("job_key", "node", "minute")

    def discard(self) -> None:
        """Delete written but uncommitted files."""
        self.staged.discard()

    def _take_day(self, day: date) -> None:
        stretches = overlapping_day(self.stretches, day)
        if self.done != day - ONE_DAY:
            self._write(minutes_of_sums(self.carried.sums))
            self.carried = merge_carried([])
        before, sums = self.carried, self.carried.sums
        parts = []
        for part in partitions(
            self.lake, NODE_SAMPLES, [day] if stretches.height else [], rows=HOST_PARTITION_ROWS
        ):
            low, high = part_nodes(part)
            mine = stretches.filter(pl.col("node").is_between(pl.lit(low), pl.lit(high)))
            if mine.height and any(part.has(name) for name in HOST_COUNTERS_READ):
                parts.append(self._reduce(part, mine, before))
                sums = sums.join(mine, on="node", how="anti")
        self._write(minutes_of_sums(sums))
        self.carried, self.done = merge_carried(parts), day
        self.staged.commit()

    def _reduce(
        self, part: Partition, stretches: pl.DataFrame, carried: CarriedHostSums
    ) -> CarriedHostSums:
        columns = ["t", "node", *(name for name in HOST_COUNTERS_READ if part.has(name))]
        frame = read_places(self.lake, NODE_SAMPLES, part, columns, self.places)
        mine = self.keys.join(stretches, on="run", how="semi")
        starts: dict[int, datetime] = dict(mine.select("run", "start").iter_rows())
        minutes, further = reduce_hosts(
            frame,
            stretches,
            carried,
            starts,
            day=part.day,
            max_gap_intervals=self.max_gap_intervals,
        )
        self._write(minutes)
        return further

    def _write(self, minutes: pl.DataFrame) -> None:
        if not minutes.height:
            return
        if not self.places.table.is_empty():
            minutes = without_places(minutes)
        keyed = minutes.join(self.keys, on="run", how="left", maintain_order="left")
        begin = pl.col("start") + pl.duration(minutes=pl.col("minute"))
        rows = keyed.with_columns(
            begin.alias("t"), pl.lit(self.number, dtype=pl.Int64).alias("seq")
        )
        self.staged.stage(rows.select(*JOB_NODE_MINUTES.schema).sort(*JOB_NODE_MINUTES.sort))
        self.kept.append(minutes)


def _stretches(owned: Attribution, keys: pl.DataFrame) -> pl.DataFrame:
    """Return when each run in `keys` had exclusive use of a node."""
    starts = owned.runs.select("run", "start")
    stays = pl.concat([owned.intervals, owned.handovers]).select(_STAY_KEY)
    stretches = exclusive_stays(stays, owned.unsure, owned.contested, starts)
    return stretches.join(keys, on="run", how="semi", maintain_order="left")
