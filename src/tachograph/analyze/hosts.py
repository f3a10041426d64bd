"""Minutes of the nodes of jobs, from node samples: read day by day, written, and kept for jobs that are not over."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta

import polars as pl

from tachograph.analyze.landing import Landing
from tachograph.attribute import Attribution
from tachograph.lake import Lake
from tachograph.lake.partitions import Partition, partitions, read_partition
from tachograph.reduce.hosts import NODE_MINUTES, READ, Carried, of_sums, reduce_hosts, together
from tachograph.reduce.node_stays import alone
from tachograph.reduce.run import overlapping_day, part_nodes
from tachograph.schema import NODE_SAMPLES
from tachograph.summarize.schema import JOB_NODE_MINUTES

PARTITION_ROWS = 500_000  # of node samples that are in memory at a time
ONE_DAY = timedelta(days=1)
_PLACE = ("run", "node", "start", "end")


class HostMinutes:
    """Takes the node samples of one day after the other; costs nothing where there are none."""

    def __init__(
        self, lake: Lake, owned: Attribution, runs: pl.DataFrame, *, number: int, max_gap_intervals: float
    ) -> None:
        """Of `runs` (run, job_key, job_id, start), which are all or some of those in `owned`."""
        self.lake, self.number, self.max_gap_intervals = lake, number, max_gap_intervals
        self.keys = runs.select("run", "job_key", "job_id", "start")
        self.starts: Mapping[int, datetime] = dict(runs.select("run", "start").iter_rows())
        self.landing = Landing(lake, JOB_NODE_MINUTES, number)
        self.days = lake.days(NODE_SAMPLES)
        self.stretches = _stretches(owned, self.keys) if self.days else pl.DataFrame()
        self.carried = together([])
        self.done: date | None = None
        self.kept: list[pl.DataFrame] = []

    def up_to(self, day: date) -> None:
        """Take all days up to this one."""
        while self.days and self.days[0] <= day:
            self._take_day(self.days.pop(0))

    def close(self) -> None:
        """Take all days that are left, and what waits for another."""
        self.up_to(date.max)
        self._write(of_sums(self.carried.sums))
        self.landing.land()

    def take(self, runs: pl.DataFrame) -> pl.DataFrame:
        """Return the minutes of the nodes of some runs, and forget them: one row per (job_key, node, minute)."""
        rows = pl.concat([pl.DataFrame(schema=NODE_MINUTES), *self.kept])
        mine = rows.join(runs.select("run"), on="run", how="semi")
        self.kept = [rows.join(runs.select("run"), on="run", how="anti")] if self.kept else []
        keyed = mine.join(self.keys.select("run", "job_key"), on="run", how="left").drop("run")
        return keyed.sort("job_key", "node", "minute")

    def discard(self) -> None:
        """Delete what was written and will not land."""
        self.landing.discard()

    def _take_day(self, day: date) -> None:
        stretches = overlapping_day(self.stretches, day)
        if self.done != day - ONE_DAY:
            self._write(of_sums(self.carried.sums))
            self.carried = together([])
        before, sums = self.carried, self.carried.sums
        parts = []
        for part in partitions(self.lake, NODE_SAMPLES, [day] if stretches.height else [], rows=PARTITION_ROWS):
            low, high = part_nodes(part)
            mine = stretches.filter(pl.col("node").is_between(pl.lit(low), pl.lit(high)))
            if mine.height and any(part.has(name) for name in READ):
                parts.append(self._reduce(part, mine, before))
                sums = sums.join(mine, on="node", how="anti")
        self._write(of_sums(sums))
        self.carried, self.done = together(parts), day
        self.landing.land()

    def _reduce(self, part: Partition, stretches: pl.DataFrame, carried: Carried) -> Carried:
        columns = ["t", "node", *(name for name in READ if part.has(name))]
        frame, _ = read_partition(self.lake, NODE_SAMPLES, part, columns)
        minutes, further = reduce_hosts(
            frame, stretches, carried, self.starts, day=part.day, max_gap_intervals=self.max_gap_intervals
        )
        self._write(minutes)
        return further

    def _write(self, minutes: pl.DataFrame) -> None:
        if not minutes.height:
            return
        keyed = minutes.join(self.keys, on="run", how="left", maintain_order="left")
        begin = pl.col("start") + pl.duration(minutes=pl.col("minute"))
        rows = keyed.with_columns(begin.alias("t"), pl.lit(self.number, dtype=pl.Int64).alias("seq"))
        self.landing.stage(rows.select(*JOB_NODE_MINUTES.schema).sort(*JOB_NODE_MINUTES.sort))
        self.kept.append(minutes)


def _stretches(owned: Attribution, keys: pl.DataFrame) -> pl.DataFrame:
    """When one of the runs in `keys` had a node to itself."""
    starts: dict[int, datetime] = dict(owned.runs.select("run", "start").iter_rows())
    found = alone(owned.intervals.select(_PLACE), owned.unsure, owned.contested, starts)
    return found.join(keys, on="run", how="semi", maintain_order="left")
