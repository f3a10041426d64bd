"""What a job's nodes did minute by minute, from the counters of the hosts: a day's samples in, minutes out.

Rates are of two samples that follow each other; what is between them is shared over the minutes it spans. Where a
counter stepped back, or the samples are too far apart, nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from types import MappingProxyType

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tachograph.arrays import Floats, Longs
from tachograph.host_counters import HOST_COUNTERS
from tachograph.reduce.kernel import MINUTE_US, spacing
from tachograph.reduce.node_loops import average, spread
from tachograph.schema import NODE_SAMPLES
from tachograph.summarize.schema import HOST_CHARACTERISTICS

DAY_US = 86_400_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CPU_TIMES = ("cpu_user_s", "cpu_nice_s", "cpu_system_s", "cpu_iowait_s", "cpu_idle_s")
LOAD = "load_average"
# counters of which a characteristic is made; of CPU time it is the share of the first in all of them
NEEDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        name: (counter, *(other for other in CPU_TIMES if other != counter)) if counter in CPU_TIMES else (counter,)
        for name, (_, counter) in HOST_CHARACTERISTICS.items()
    }
)
READ = tuple(c.name for c in HOST_COUNTERS if any(c.name in needed for needed in NEEDS.values()))
_RATES = tuple(name for name in HOST_CHARACTERISTICS if name != LOAD)
_SUMS = tuple(f"{stem}_{name}" for name in HOST_CHARACTERISTICS for stem in ("sum", "weight"))
_KEY: Mapping[str, pl.DataType] = MappingProxyType({"run": pl.Int32(), "node": pl.String(), "minute": pl.Int32()})
NODE_MINUTES: Mapping[str, pl.DataType] = MappingProxyType(
    {**_KEY, **dict.fromkeys(HOST_CHARACTERISTICS, pl.Float32())}
)


@dataclass(frozen=True, slots=True)
class Carried:
    """What the next day has to know of nodes on which a run was at midnight, and stays.

    tails: last samples, in columns of node_samples. gaps: how far apart (us) two samples may be, one row per node and
    a column per characteristic; `since`: when the first of the tails was, or midnight (us). sums: minutes to which the
    next sample may still add, one row per (run, node, minute).
    """

    tails: pl.DataFrame
    gaps: pl.DataFrame
    sums: pl.DataFrame


def together(parts: Sequence[Carried]) -> Carried:
    """Return what several partitions carry."""
    tails = {name: NODE_SAMPLES.schema[name] for name in ("t", "node", *READ)}
    gaps = {"node": pl.String(), "since": pl.Int64(), **dict.fromkeys(_RATES, pl.Float64())}
    sums = {**_KEY, **dict.fromkeys(_SUMS, pl.Float64())}
    return Carried(
        pl.concat([pl.DataFrame(schema=tails), *(part.tails for part in parts)], how="diagonal"),
        pl.concat([pl.DataFrame(schema=gaps), *(part.gaps for part in parts)], how="diagonal"),
        pl.concat([pl.DataFrame(schema=sums), *(part.sums for part in parts)]),
    )


def reduce_hosts(
    frame: pl.DataFrame,
    stretches: pl.DataFrame,
    carried: Carried,
    starts: Mapping[int, datetime],
    *,
    day: date,
    max_gap_intervals: float,
) -> tuple[pl.DataFrame, Carried]:
    """Return the minutes that are complete (NODE_MINUTES), in the order of `stretches`, and what is carried on.

    `frame`: node_samples of the day, whole nodes, each key once. `stretches`: those of these nodes and this day, as
    `node_stays.alone` returns them. `carried`: from the day before. Null: no two samples tell it; a minute of which
    nothing is known has no row.
    """
    midnight = _epoch_us(datetime.combine(day, time(), UTC))
    nodes = stretches.get_column("node").unique().sort()
    samples = _Samples(_rows(frame, nodes, carried.tails), nodes, midnight, max_gap_intervals)
    before = nodes.to_frame().join(carried.gaps, on="node", how="left", maintain_order="left")
    slots = _Slots(stretches, nodes, before.get_column("since").fill_null(midnight).to_numpy(), starts, midnight)
    held, place = slots.of(carried.sums)
    last_rows: dict[str, Longs] = {}
    gaps: dict[str, Floats] = {}
    sums: dict[str, Floats] = {}
    for name in HOST_CHARACTERISTICS:
        total, weight = np.zeros(slots.count), np.zeros(slots.count)
        total[place], weight[place] = held.get_column(f"sum_{name}"), held.get_column(f"weight_{name}")
        series = samples.series(NEEDS[name])
        if name == LOAD:
            slots.add(average, series, series.values[0], total, weight)
        else:
            earlier = before.get_column(name).fill_null(float("nan")).to_numpy()
            slots.add(spread, series, samples.levels(series, earlier), total, weight)
            last_rows[name], gaps[name] = series.last_rows, series.gaps
        sums[f"sum_{name}"], sums[f"weight_{name}"] = total, weight
    stays_on = slots.stays_on()
    since, tails = samples.tails(last_rows, gaps, stays_on)
    waits = slots.waiting(since)
    keyed = slots.keys().with_columns(pl.Series(name, values) for name, values in sums.items())
    known = pl.DataFrame({"node": nodes, "since": since, **gaps}).filter(pl.Series(stays_on))
    return of_sums(keyed.filter(pl.Series(~waits))), Carried(
        tails, known.fill_nan(None), keyed.filter(pl.Series(waits))
    )


def of_sums(sums: pl.DataFrame) -> pl.DataFrame:
    """Return the minutes that sums come to, but for those of which nothing is known."""
    values = [
        (pl.col(f"sum_{name}") / pl.col(f"weight_{name}")).fill_nan(None).cast(pl.Float32).alias(name)
        for name in HOST_CHARACTERISTICS
    ]
    return sums.select(*_KEY, *values).filter(pl.any_horizontal(pl.col(*HOST_CHARACTERISTICS).is_not_null()))


def _rows(frame: pl.DataFrame, nodes: pl.Series, tails: pl.DataFrame) -> pl.DataFrame:
    """The samples of some nodes, and the last ones of the day before, in order of node and time."""
    missing = [pl.lit(None, dtype=NODE_SAMPLES.schema[name]).alias(name) for name in READ if name not in frame.columns]
    here = frame.with_columns(missing).select("t", "node", *READ)
    both = pl.concat([tails.select(here.columns), here])
    return both.filter(pl.col("node").is_in(nodes.implode())).sort("node", "t", maintain_order=True)


@dataclass(frozen=True, slots=True)
class _Series:
    """The samples that have all of some counters: `rows` of the frame, their times and `values`, per counter.

    stripes: first of each node, and behind the last their number. gaps: the longest distance (us) of two that follow
    each other, per node; NaN where it has fewer than two of the day. last_rows: last of each node, -1 where none is.
    """

    t: Longs
    values: list[Floats]
    node: Longs
    stripes: Longs
    gaps: Floats
    last_rows: Longs


class _Samples:
    """Host samples as arrays, sorted by node and time."""

    def __init__(self, rows: pl.DataFrame, nodes: pl.Series, midnight: int, max_gap_intervals: float) -> None:
        self.rows, self.count, self.midnight, self.max_gap_intervals = rows, nodes.len(), midnight, max_gap_intervals
        self.node, self.t = _numbered(rows.get_column("node"), nodes), _physical(rows, "t")

    def series(self, counters: Sequence[str]) -> _Series:
        """The samples that have all of `counters`."""
        valid = self.rows.select(pl.all_horizontal(pl.col(counters).is_not_null())).to_series()
        rows = valid.arg_true().cast(pl.Int64).to_numpy()
        t, node = self.t[rows], self.node[rows]
        stripes = np.searchsorted(node, np.arange(self.count + 1)).astype(np.int64)
        today = np.flatnonzero(t >= self.midnight)
        own = np.searchsorted(node[today], np.arange(self.count + 1)).astype(np.int64)
        gaps = np.empty(self.count)
        spacing(t[today], own, gaps)
        last = np.full(self.count, -1, np.int64)
        some = stripes[1:] > stripes[:-1]
        last[some] = rows[stripes[1:][some] - 1]
        values = [self.rows.get_column(name).cast(pl.Float64).to_numpy()[rows] for name in counters]
        return _Series(t, values, node, stripes, gaps * self.max_gap_intervals, last)

    def levels(self, series: _Series, gaps_before: Floats) -> Floats:
        """Rate, or share of the first counter in all, from each sample's predecessor to it; NaN where not known."""
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
            level[1:] = np.where(steady & np.all([more >= 0 for more in grown], axis=0), grown[0] / whole, np.nan)
        return level

    def tails(
        self, last_rows: Mapping[str, Longs], gaps: Mapping[str, Floats], stays_on: NDArray[np.bool_]
    ) -> tuple[Longs, pl.DataFrame]:
        """Samples that the first of the next day may follow, each with the counters of which it is the last.

        And since when they are, per node; midnight where there is none.
        """
        following = self.midnight + DAY_US
        since = np.full(self.count, following, np.int64)
        kept = [self.rows.clear()]
        for name, last in last_rows.items():
            nodes = np.flatnonzero(stays_on & (last >= 0))
            nodes = nodes[self.t[last[nodes]] + gaps[name][nodes] >= following]
            since[nodes] = np.minimum(since[nodes], self.t[last[nodes]])
            kept.append(self.rows.select("t", "node", *NEEDS[name])[last[nodes].tolist()])
        return since, pl.concat(kept, how="diagonal").unique(maintain_order=True)


class _Slots:
    """The minutes of stretches on a day: slots in a row, one that two stretches of a run share only once."""

    def __init__(
        self, stretches: pl.DataFrame, nodes: pl.Series, since: Longs, starts: Mapping[int, datetime], midnight: int
    ) -> None:
        self.stretches, self.following, self.nodes = stretches, midnight + DAY_US, nodes.len()
        self.node = _numbered(stretches.get_column("node"), nodes)
        self.start, self.end, self.until = (_physical(stretches, name) for name in ("start", "end", "until"))
        self.zero = np.array([_epoch_us(starts[run]) for run in stretches.get_column("run")], np.int64)
        begin = np.maximum(self.start, since[self.node])
        behind = np.minimum(self.end, self.following)
        first, last = (stretches.get_column(name).cast(pl.Int64).to_numpy() for name in ("first", "last"))
        self.first = np.maximum(first, (begin - self.zero) // MINUTE_US)
        self.last = np.minimum(last, (behind - 1 - self.zero) // MINUTE_US)
        self.length = np.maximum(self.last - self.first + 1, 0)
        shared = stretches.select(pl.struct("run", "node").eq_missing(pl.struct("run", "node").shift(1))).to_series()
        again = shared.to_numpy() & (self.length > 0)
        again[1:] &= (self.first[1:] == self.last[:-1]) & (self.length[:-1] > 0)
        self.offset: Longs = np.cumsum(self.length - again) - self.length
        self.owner = np.repeat(np.arange(len(self.length)), self.length - again)
        self.count = len(self.owner)
        begun = self.offset + again
        self.minute: Longs = np.arange(self.count) - begun[self.owner] + (self.first + again)[self.owner]

    def add(self, loop: Callable[..., None], series: _Series, values: Floats, total: Floats, weight: Floats) -> None:
        """Let a loop of `node_loops` go over the samples of each stretch."""
        low, high = series.stripes[self.node], series.stripes[self.node + 1]
        minutes = self.zero, self.first, self.last, self.offset
        loop(series.t, values, low, high, self.start, self.end, *minutes, total, weight)

    def of(self, sums: pl.DataFrame) -> tuple[pl.DataFrame, Longs]:
        """The rows of `sums` whose minute is among the slots, and its slot."""
        ranges = self.stretches.select("run", "node").with_columns(
            first=self.first, behind=self.first + self.length, offset=self.offset
        )
        joined = sums.join(ranges, on=["run", "node"], how="inner")
        mine = joined.filter((pl.col("minute") >= pl.col("first")) & (pl.col("minute") < pl.col("behind")))
        held = mine.unique(subset=list(_KEY), keep="first", maintain_order=True)
        return held, held.select(pl.col("offset") + pl.col("minute") - pl.col("first")).to_series().to_numpy()

    def stays_on(self) -> NDArray[np.bool_]:
        """True for nodes on which a run is beyond the day."""
        beyond = np.zeros(self.nodes, np.bool_)
        beyond[self.node[self.until > self.following]] = True
        return beyond

    def waiting(self, since: Longs) -> NDArray[np.bool_]:
        """True for slots to which a sample of the next day may add; the one it follows is not before `since`."""
        ends = self.zero[self.owner] + (self.minute + 1) * MINUTE_US
        waits: NDArray[np.bool_] = (self.until[self.owner] > self.following) & (ends > since[self.node[self.owner]])
        return waits

    def keys(self) -> pl.DataFrame:
        """Run, node and minute of each slot."""
        owner = pl.Series(self.owner)
        places = self.stretches.select(pl.col("run", "node").gather(owner))
        return places.with_columns(pl.Series("minute", self.minute, dtype=pl.Int32))


def _numbered(names: pl.Series, nodes: pl.Series) -> Longs:
    """The place of each name among `nodes`."""
    places = pl.DataFrame({"node": nodes, "place": np.arange(nodes.len())})
    joined = names.to_frame("node").join(places, on="node", how="left", maintain_order="left")
    return joined.get_column("place").to_numpy()


def _physical(frame: pl.DataFrame, name: str) -> Longs:
    return frame.get_column(name).to_physical().to_numpy()


def _epoch_us(when: datetime) -> int:
    return (when - EPOCH) // timedelta(microseconds=1)
