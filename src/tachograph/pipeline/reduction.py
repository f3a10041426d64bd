"""The reduction of days: partitions as tasks on a pool, each read, reduced and released."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from itertools import islice
from types import TracebackType
from typing import Any, Protocol, TypeVar

import polars as pl

from tachograph.catalog.chunks import CLUSTER_MARK
from tachograph.catalog.config import AnalysisOptions
from tachograph.catalog.tables import GPU_KEY, GPU_SAMPLES, TIME
from tachograph.catalog.units import midnight
from tachograph.lake.data_files import GREATEST
from tachograph.lake.delta import Lake
from tachograph.lake.partitions import Partition, partitions
from tachograph.lake.places import NodePlaces, read_places
from tachograph.pipeline.accumulators import Accumulators
from tachograph.pipeline.attribution import INTERVALS_SCHEMA
from tachograph.pipeline.minutes import write_minutes
from tachograph.pipeline.partition import Labeller, reduce_partition

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class PendingResult(Protocol[T_co]):
    """A future result."""

    def result(self) -> T_co:
        """Wait for and return the result; raises the task's error."""


class TaskPool(Protocol):
    """Runs tasks: functions of a module with arguments that can be pickled.

    A task may be run again where its worker is killed, so running it twice must do no harm.
    """

    width: int  # how many tasks run at a time
    has_processes: bool  # of its own: Python code there runs beside that of the analysis

    def share(self, value: T) -> Any:
        """Send a large value to every worker once; `submit` takes the returned handle."""

    def submit(self, function: Callable[..., T], /, *arguments: Any) -> PendingResult[T]:
        """Start a task as soon as a worker is free."""


class ThreadPool:
    """A thread pool; leaving its block drops waiting tasks and waits for running ones."""

    has_processes = False

    def __init__(self, width: int) -> None:
        self.width = width
        self._executor = ThreadPoolExecutor(max_workers=width)

    def __enter__(self) -> ThreadPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._executor.shutdown(cancel_futures=True)

    def share(self, value: T) -> T:
        """Return the value unchanged: threads share memory."""
        return value

    def submit(self, function: Callable[..., T], /, *arguments: Any) -> PendingResult[T]:
        """Start a task as soon as a thread is free."""
        return self._executor.submit(function, *arguments)


Ridges = Mapping[tuple[str, int], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Reduction:
    """Input of a reduction: tables, intervals, options, number; idle is below `idle_util`.

    intervals: sorted by (node, gpu, mig, start), never overlapping; nodes are those of `places`;
    steps: those of steps;
    handovers: seconds between them, whose samples are only counted. keys: run, job_key, job_id,
    start, and how many `gpus`, of each run. labeller: labels each minute of a GPU; None: no labels.
    """

    lake: Lake
    intervals: pl.DataFrame
    keys: pl.DataFrame
    ridges: Ridges
    analysis: AnalysisOptions
    number: int
    idle_util: float
    labeller: Labeller | None = None
    steps: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=INTERVALS_SCHEMA))
    handovers: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=INTERVALS_SCHEMA))
    places: NodePlaces = field(default_factory=NodePlaces)


def reduce_days(
    reduction: Reduction,
    *,
    pool: TaskPool,
    everything: bool = False,
    progress: Callable[[date, int, int], None] | None = None,
) -> Iterator[tuple[date, Accumulators | None]]:
    """Yield (day, accumulators) of each partition with samples of the runs' nodes, by day and node.

    (day, None) follows the last partition of a day. `everything`: also partitions without GPUs of a
    run, so that all recorded samples are counted. The pool works while a result is processed; at
    most twice its width of tasks are running or waiting.
    """
    lake = reduction.lake
    days = lake.days(GPU_SAMPLES) if everything else _days(lake, reduction.intervals)
    # each task has the stretches and keys of its partition
    nothing = reduction.intervals.clear()
    empty = replace(
        reduction, intervals=nothing, keys=reduction.keys.clear(), steps=nothing, handovers=nothing
    )
    shared = pool.share(empty)
    tasks = _tasks(reduction, days, everything=everything)
    under_way: deque[tuple[date, PendingResult[Accumulators] | None]] = deque()
    done = 0
    while True:
        for day, task in islice(tasks, 2 * pool.width - len(under_way)):
            under_way.append((day, pool.submit(reduce_one, shared, *task) if task else None))
        if not under_way:
            return
        day, pending = under_way.popleft()
        if pending is None:
            done += 1
            if progress:
                progress(day, done, len(days))
        yield day, pending.result() if pending else None


def reduce_one(
    reduction: Reduction,
    part: Partition,
    intervals: pl.DataFrame,
    steps: pl.DataFrame,
    handovers: pl.DataFrame,
    keys: pl.DataFrame,
    columns: Sequence[str],
) -> Accumulators:
    """Return the reduction of a partition; its minutes are written, but not committed.

    `intervals`, `steps`, `handovers`, `keys`: of its day and nodes. Run twice it writes two files,
    and only the committed one counts.
    """
    frame = read_places(reduction.lake, GPU_SAMPLES, part, columns, reduction.places)
    starts: dict[int, datetime] = dict(keys.select("run", "start").iter_rows())
    gpus: dict[int, int] = dict(keys.select("run", "gpus").iter_rows())
    reduced, minutes = reduce_partition(
        frame,
        intervals,
        starts,
        reduction.ridges,
        analysis=reduction.analysis,
        day=part.day,
        gpus=gpus,
        labeller=reduction.labeller,
        steps=steps,
        handovers=handovers,
    )
    return write_minutes(
        reduction.lake, reduced, minutes, keys,
        number=reduction.number, day=part.day, idle_util=reduction.idle_util,
    )  # fmt: skip


def _tasks(
    reduction: Reduction, days: Sequence[date], *, everything: bool
) -> Iterator[tuple[date, tuple[Any, ...] | None]]:
    """Yield the task arguments of each partition of a day, and None after the last of the day."""
    for day in days:
        every = (reduction.intervals, reduction.steps, reduction.handovers)
        of_day, *others = (overlapping_day(frame, day) for frame in every)
        for part in partitions(reduction.lake, GPU_SAMPLES, [day]):
            mine = _of_nodes(of_day, part)
            if mine.height:
                columns = [
                    name
                    for name in GPU_SAMPLES.schema
                    if name != "seq" and (part.has(name) or name in GPU_KEY)
                ]
                keys = reduction.keys.join(mine, on="run", how="semi")
                yield (
                    day,
                    (part, mine, *(_of_nodes(other, part) for other in others), keys, columns),
                )
            elif everything:
                yield day, (part, mine, mine, mine, reduction.keys.clear(), ["t", *GPU_KEY])
        yield day, None


def overlapping_day(intervals: pl.DataFrame, day: date) -> pl.DataFrame:
    """Return the intervals that have a part on `day` (UTC)."""
    begin = midnight(day)
    return intervals.filter(
        (pl.col("start") < pl.lit(begin + timedelta(days=1), dtype=TIME))
        & (pl.col("end") > pl.lit(begin, dtype=TIME))
    )


def _days(lake: Lake, intervals: pl.DataFrame) -> list[date]:
    if not intervals.height:
        return []
    first = intervals["start"].dt.date().min()
    last = intervals["end"].dt.date().max()
    return [
        day
        for day in lake.days(GPU_SAMPLES)
        if isinstance(first, date) and isinstance(last, date) and first <= day <= last
    ]


def _of_nodes(intervals: pl.DataFrame, part: Partition) -> pl.DataFrame:
    low, high = part_nodes(part)
    return intervals.filter(pl.col("node").is_between(pl.lit(low), pl.lit(high)))


def part_nodes(part: Partition) -> tuple[str, str]:
    """Return the least and greatest node of a partition, by cluster, too."""
    low = min(file.low or "" for file in part.files)
    high = max(file.high or GREATEST for file in part.files)
    return part.low or low, f"{part.high or high}{CLUSTER_MARK}{GREATEST}"
