"""The local runner: days in order, a day's partitions on threads, each partition read, reduced and let go."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from itertools import islice

import polars as pl

from tachograph.config import Analysis
from tachograph.lake import Lake
from tachograph.lake.partitions import Partition, partitions, read_partition
from tachograph.reduce.partition import UNIT, Reduced, reduce_partition
from tachograph.schema import GPU_SAMPLES, TIME

Ridges = Mapping[tuple[str, int], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be reduced, by whose intervals.

    intervals: sorted by (node, gpu, mig, start), never overlapping. starts: anchor of each run's windows.
    """

    intervals: pl.DataFrame
    starts: Mapping[int, datetime]
    ridges: Ridges
    analysis: Analysis


def reduce_days(
    lake: Lake,
    work: Work,
    *,
    threads: int,
    everything: bool = False,
    progress: Callable[[date, int, int], None] | None = None,
) -> Iterator[tuple[date, Reduced | None]]:
    """Yield (day, accumulators) of each partition that has samples of the runs' nodes, in order of day and node.

    (day, None) follows the last partition of a day. `everything`: also partitions of which no run holds a GPU, so that
    all that was recorded is counted. Threads go on while a result is looked at; at most `threads` partitions are read
    at a time, and as many results wait.
    """
    days = lake.days(GPU_SAMPLES) if everything else _days(lake, work.intervals)
    tasks = _tasks(lake, work, days, everything=everything)
    under_way: deque[tuple[date, Future[Reduced] | None]] = deque()
    done = 0
    with ThreadPoolExecutor(max_workers=threads) as pool:
        while True:
            for day, task in islice(tasks, 2 * threads - len(under_way)):
                under_way.append((day, pool.submit(task) if task else None))
            if not under_way:
                return
            day, future = under_way.popleft()
            if future is None:
                done += 1
                if progress:
                    progress(day, done, len(days))
            yield day, future.result() if future else None


def _tasks(
    lake: Lake, work: Work, days: Sequence[date], *, everything: bool
) -> Iterator[tuple[date, Callable[[], Reduced] | None]]:
    """Yield what is to be done: for each day its partitions, and None when they were all."""
    for day in days:
        of_day = overlapping_day(work.intervals, day)
        for part in partitions(lake, GPU_SAMPLES, [day]):
            touched = _touched(part, of_day)
            if touched or everything:
                yield day, partial(_reduce_one, lake, part, work, of_day, count_only=not touched)
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


def _touched(part: Partition, intervals: pl.DataFrame) -> bool:
    low, high = part_nodes(part)
    return bool(intervals.select(pl.col("node").is_between(pl.lit(low), pl.lit(high)).any()).item())


def part_nodes(part: Partition) -> tuple[str, str]:
    """Return the least and greatest node of a partition."""
    low = part.low if part.low is not None else min(file.low or "" for file in part.files)
    high = part.high if part.high is not None else max(file.high or "\U0010ffff" for file in part.files)
    return low, high


def _reduce_one(lake: Lake, part: Partition, work: Work, intervals: pl.DataFrame, *, count_only: bool) -> Reduced:
    low, high = part_nodes(part)
    columns = [name for name in GPU_SAMPLES.schema if name != "seq" and (part.has(name) or name in UNIT)]
    if count_only:
        columns = ["t", *UNIT]
    frame, _ = read_partition(lake, GPU_SAMPLES, part, columns)
    mine = intervals.filter(pl.col("node").is_between(pl.lit(low), pl.lit(high)))
    return reduce_partition(frame, mine, work.starts, work.ridges, analysis=work.analysis, day=part.day)
