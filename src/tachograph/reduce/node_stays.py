"""When a run had a node to itself: host counters are of a whole node, so only then do they tell of one job."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType

import polars as pl

from tachograph.reduce.kernel import MINUTE_US
from tachograph.schema import TIME

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
_NOBODY = pl.lit(-1, dtype=pl.Int32).alias("run")


def alone(
    intervals: pl.DataFrame, unsure: pl.DataFrame, contested: pl.DataFrame, starts: Mapping[int, datetime]
) -> pl.DataFrame:
    """Return the stretches in which one run had a node to itself, sorted by run, node and start.

    Grain: one row per (run, node, start). `first` and `last`: minutes from the run's start in which nobody else was
    there while it was. `until`: end of the last stretch that shares a minute with the one before it, from this one on.
    `intervals` (run, node, start, end) of GPUs owned; `unsure` of runs that own none and may have had some; `contested`
    (node, start, end) of GPUs that two runs claim. Runs without GPUs do not count.
    """
    claimed = contested.select(_NOBODY, "node", "start", "end")
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
    levels = moments.with_columns(pl.col("there", "who").cum_sum().over("node"), end=pl.col("t").shift(-1).over("node"))
    single = levels.filter(pl.col("there") == 1)
    found = single.select(pl.col("who").cast(pl.Int32).alias("run"), "node", pl.col("t").alias("start"), "end")
    return _with_minutes(found.join(intervals, on="run", how="semi"), present, starts)


def _union(places: pl.DataFrame) -> pl.DataFrame:
    """Stretches of a run on a node that overlap or touch made one."""
    ordered = places.filter(pl.col("start") < pl.col("end")).sort("run", "node", "start")
    far = (pl.col("end").cum_max().shift(1) < pl.col("start")).over("run", "node").fill_null(value=False)
    stays = ordered.with_columns(stay=far.cum_sum().over("run", "node")).group_by("run", "node", "stay")
    return stays.agg(pl.col("start").min(), pl.col("end").max()).drop("stay")


def _with_minutes(found: pl.DataFrame, present: pl.DataFrame, starts: Mapping[int, datetime]) -> pl.DataFrame:
    """The minutes of each stretch, but for those in which it begins because another run left, or ends as one comes."""
    comes = present.select("run", "node", "start", comes=True)
    leaves = present.select("run", "node", "end", leaves=True)
    marked = found.join(comes, on=["run", "node", "start"], how="left").join(
        leaves, on=["run", "node", "end"], how="left"
    )
    zero = pl.col("run").replace_strict(list(starts), list(starts.values()), default=None, return_dtype=TIME)
    begin, end = ((pl.col(name) - zero).dt.total_microseconds() for name in ("start", "end"))
    first = pl.when("comes").then(begin // MINUTE_US).otherwise(-(-begin // MINUTE_US))
    last = pl.when("leaves").then((end - 1) // MINUTE_US).otherwise(end // MINUTE_US - 1)
    timed = marked.with_columns(first=first.cast(pl.Int32), last=last.cast(pl.Int32))
    ordered = timed.filter(pl.col("first") <= pl.col("last")).sort("run", "node", "start")
    apart = (pl.col("first") != pl.col("last").shift(1)).over("run", "node").fill_null(value=True)
    chained = ordered.with_columns(chain=apart.cum_sum().over("run", "node"))
    return chained.with_columns(until=pl.col("end").max().over("run", "node", "chain")).select(*STRETCHES)
