"""The runner: days in order, a day's partitions on a pool, each partition read, reduced and let go."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice
from typing import Any

import polars as pl

from tachograph.config import Analysis
from tachograph.lake import Lake
from tachograph.lake.partitions import Partition, partitions, read_partition
from tachograph.reduce.minutes import Written, nothing, write_minutes
from tachograph.reduce.partition import UNIT, Labeller, Reduced, reduce_partition
from tachograph.reduce.pool import Pending, Pool
from tachograph.schema import GPU_SAMPLES, TIME

Ridges = Mapping[tuple[str, int], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be reduced, by whose intervals, under which number; a GPU at rest is below `idle_util`.

    intervals: sorted by (node, gpu, mig, start), never overlapping. keys: run, job_key, job_id, start, and how
    many `gpus`, of each run. labeller: says of each minute of a GPU what it did then; None: nobody asks.
    """

    intervals: pl.DataFrame
    keys: pl.DataFrame
    ridges: Ridges
    analysis: Analysis
    number: int
    idle_util: float
    labeller: Labeller | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """What is the same for every partition; workers get it once."""

    lake: Lake
    ridges: Ridges
    analysis: Analysis
    number: int
    idle_util: float
    labeller: Labeller | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """What one partition comes to, and its minutes, which are written but do not count yet."""

    reduced: Reduced
    minutes: Written


def reduce_days(
    lake: Lake,
    work: Work,
    *,
    pool: Pool,
    everything: bool = False,
    progress: Callable[[date, int, int], None] | None = None,
) -> Iterator[tuple[date, Piece | None]]:
    """Yield (day, accumulators) of each partition that has samples of the runs' nodes, in order of day and node.

    (day, None) follows the last partition of a day. `everything`: also partitions of which no run holds a GPU, so that
    all that was recorded is counted. The pool goes on while a result is looked at; at most twice its width of tasks
    are under way or wait to be looked at.
    """
    days = lake.days(GPU_SAMPLES) if everything else _days(lake, work.intervals)
    setting = pool.share(Setting(lake, work.ridges, work.analysis, work.number, work.idle_util, work.labeller))
    tasks = _tasks(lake, work, days, everything=everything)
    under_way: deque[tuple[date, Pending[Piece] | None]] = deque()
    done = 0
    while True:
        for day, task in islice(tasks, 2 * pool.width - len(under_way)):
            under_way.append((day, pool.submit(reduce_one, setting, *task) if task else None))
        if not under_way:
            return
        day, pending = under_way.popleft()
        if pending is None:
            done += 1
            if progress:
                progress(day, done, len(days))
        yield day, pending.result() if pending else None


def reduce_one(
    setting: Setting, part: Partition, intervals: pl.DataFrame, keys: pl.DataFrame, columns: Sequence[str]
) -> Piece:
    """Return what one partition comes to. `intervals`, `keys`: of its day and nodes.

    Run twice it writes two files, of which the one that lands counts.
    """
    frame, _ = read_partition(setting.lake, GPU_SAMPLES, part, columns)
    starts: dict[int, datetime] = dict(keys.select("run", "start").iter_rows())
    gpus: dict[int, int] = dict(keys.select("run", "gpus").iter_rows())
    reduced = reduce_partition(
        frame, intervals, starts, setting.ridges,
        analysis=setting.analysis, day=part.day, gpus=gpus, labeller=setting.labeller,
    )  # fmt: skip
    written = write_minutes(
        setting.lake, reduced.minutes, keys, number=setting.number, day=part.day, idle_util=setting.idle_util
    )
    return Piece(replace(reduced, minutes=nothing()), written)


def _tasks(
    lake: Lake, work: Work, days: Sequence[date], *, everything: bool
) -> Iterator[tuple[date, tuple[Any, ...] | None]]:
    """Yield what is to be done: for each day the arguments of its partitions' tasks, and None when they were all."""
    for day in days:
        of_day = overlapping_day(work.intervals, day)
        for part in partitions(lake, GPU_SAMPLES, [day]):
            mine = _of_nodes(of_day, part)
            if mine.height:
                columns = [name for name in GPU_SAMPLES.schema if name != "seq" and (part.has(name) or name in UNIT)]
                yield day, (part, mine, work.keys.join(mine, on="run", how="semi"), columns)
            elif everything:
                yield day, (part, mine, work.keys.clear(), ["t", *UNIT])
        yield day, None


def overlapping_day(intervals: pl.DataFrame, day: date) -> pl.DataFrame:
    """Return the intervals that have a part on `day` (UTC)."""
    begin = datetime.combine(day, time(), UTC)
    return intervals.filter(
        (pl.col("start") < pl.lit(begin + timedelta(days=1), dtype=TIME)) & (pl.col("end") > pl.lit(begin, dtype=TIME))
    )


def _days(lake: Lake, intervals: pl.DataFrame) -> list[date]:
    if not intervals.height:
        return []
    first = intervals.get_column("start").dt.date().min()
    last = intervals.get_column("end").dt.date().max()
    return [
        day
        for day in lake.days(GPU_SAMPLES)
        if isinstance(first, date) and isinstance(last, date) and first <= day <= last
    ]


def _of_nodes(intervals: pl.DataFrame, part: Partition) -> pl.DataFrame:
    low, high = part_nodes(part)
    return intervals.filter(pl.col("node").is_between(pl.lit(low), pl.lit(high)))


def part_nodes(part: Partition) -> tuple[str, str]:
    """Return the least and greatest node of a partition."""
    low = part.low if part.low is not None else min(file.low or "" for file in part.files)
    high = part.high if part.high is not None else max(file.high or "\U0010ffff" for file in part.files)
    return low, high
