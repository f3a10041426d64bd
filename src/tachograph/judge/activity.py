"""What checks and reports read from a job's tables: numbers, activity over time, names of GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import numpy.typing as npt
import polars as pl

from tachograph.pipeline.timelines import ACTIVITY

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow


ACTIVITY_NAMES = {
    "gpu_util": "utilisation",
    "gr_engine_active": "graphics engine activity",
    "sm_active": "SM activity",
}
PIPE_NAMES = {
    "fp64": "FP64 units",
    "fp32": "FP32 units",
    "fp16": "FP16 units",
    "tensor": "tensor cores",
}
UNIT = ("node", "gpu", "mig")


class GpuKeyRow(TypedDict, total=False):
    """Row with the name of a GPU, or of a MIG slice of it, and more."""

    node: str
    gpu: int
    mig: int | None


class GpuActivityRow(GpuKeyRow, total=False):
    """A GPU and its mean activity (0..1)."""

    activity_mean: float


GpuRows = Sequence[GpuKeyRow]
_NAMED = 4  # GPUs of a list; the others are counted
ENOUGH_MINUTES = 0.8  # of a period must have been measured for a result about it


def number(row: Mapping[str, object], name: str) -> float | None:
    """Return a number of a row, or None where it is absent or not a number.

    >>> number({"gpus": 4}, "gpus"), number({"gpus": None}, "gpus"), number({}, "gpus")
    (4.0, None, None)
    """
    value: Any = row.get(name)
    if value is None or value != value:
        return None
    return float(value)


def activity_counter(summary: Mapping[str, object]) -> str | None:
    """Return the counter that shows whether the job's GPUs work, or None if none was measured."""
    return next((name for name in ACTIVITY if number(summary, f"{name}_mean") is not None), None)


def activity_mean() -> pl.Expr:
    """Return the mean of the counter that shows whether GPUs work; null if none was measured."""
    return pl.coalesce(f"{name}_mean" for name in ACTIVITY)


def gpu_label(row: GpuKeyRow, *, with_node: bool = True) -> str:
    """Return a GPU's name as people read it.

    >>> gpu_label({"node": "n1", "gpu": 0, "mig": None}), gpu_label({"node": "n1", "gpu": 0, "mig": 7}, with_node=False)
    ('n1 GPU 0', 'GPU 0/7')
    """
    slice_ = "" if row.get("mig") is None else f"/{row['mig']}"
    name = f"GPU {row['gpu']}{slice_}"
    return f"{row['node']} {name}" if with_node else name


def gpu_labels(rows: GpuRows, *, of: GpuRows) -> str:
    """Return the GPUs of `rows` as a short list, with node names if the job has several nodes."""
    several = len({row["node"] for row in of}) > 1
    names = [gpu_label(row, with_node=several) for row in rows[:_NAMED]]
    more = len(rows) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def gpu_activity(
    summary: JobSummaryRow, column: Callable[[str], list[Any]]
) -> list[GpuActivityRow] | None:
    """Return one row per measured GPU, busiest first: its key, and its `activity_mean` (0..1).

    `column`: returns one of the job's rows of job_gpus. None where no activity was measured on two
    GPUs or more.
    """
    counter = activity_counter(summary)
    if counter is None:
        return None
    rows = zip(*map(column, UNIT), column(f"{counter}_mean"), strict=True)
    measured = sorted(
        (row for row in rows if row[3] is not None), key=lambda row: (-row[3], row[0], row[1])
    )
    if len(measured) < 2:
        return None
    return [
        {"node": node, "gpu": gpu, "mig": mig, "activity_mean": mean}
        for node, gpu, mig, mean in measured
    ]


@dataclass(frozen=True, slots=True)
class Activity:
    """Activity of a job over time: measured minutes, and the busiest GPU's mean in each (0..1)."""

    counter: str
    minute: npt.NDArray[np.int64]
    level: npt.NDArray[np.float64]
    busy: npt.NDArray[np.bool_]

    @property
    def first_busy(self) -> int:
        """First minute with work."""
        return int(self.minute[self.busy][0])

    @property
    def last_busy(self) -> int:
        """Last minute with work."""
        return int(self.minute[self.busy][-1])

    @property
    def last(self) -> int:
        """Last minute that was measured."""
        return int(self.minute[-1])

    def measured_share(self, begin: int, end: int) -> float:
        """Return which share of the minutes begin <= m < end was measured; 0 for no minutes."""
        if end <= begin:
            return 0.0
        return float(np.count_nonzero((self.minute >= begin) & (self.minute < end))) / (end - begin)


def activity_over_time(
    column: Callable[[str], npt.NDArray[Any]], minutes: int, idle_level: float
) -> Activity | None:
    """Return the job's activity over time; minutes above `idle_level` are busy.

    `column`: returns one of a job's `minutes`, NaN where not measured.
    None where no activity counter was measured, or no minute is busy.
    """
    counter = next(
        (name for name in ACTIVITY if minutes and not np.isnan(column(name)).all()), None
    )
    if counter is None:
        return None
    level, place = column(counter).astype(np.float64), column("minute")
    measured = ~np.isnan(level) & (place >= 0)
    if not measured.any():
        return None
    highest = np.full(int(place.max()) + 1, -1.0)
    np.maximum.at(highest, place[measured], level[measured])
    minute = np.flatnonzero(highest >= 0)
    busy = highest[minute] > idle_level
    return Activity(counter, minute, highest[minute], busy) if busy.any() else None


def idle_periods(activity: Activity) -> list[tuple[int, int]]:
    """Return the idle periods between first and last work: [(first minute, minutes)].

    A period is a run of two consecutive measured minutes or more; a minute not measured ends it.
    """
    inside = (
        (activity.minute > activity.first_busy)
        & (activity.minute < activity.last_busy)
        & ~activity.busy
    )
    return runs([int(minute) for minute in activity.minute[inside]], at_least=2)


def runs(ordered: Sequence[int], *, at_least: int = 1) -> list[tuple[int, int]]:
    """Return the runs of consecutive numbers: [(first, length)].

    >>> runs([1, 2, 3, 7, 9, 10], at_least=2)
    [(1, 3), (9, 2)]
    """
    found: list[tuple[int, int]] = []
    for value in ordered:
        if found and value == found[-1][0] + found[-1][1]:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((value, 1))
    return [run for run in found if run[1] >= at_least]


def so_far(summary: JobSummaryRow) -> str:
    """Return " so far" for a job that still runs, else nothing.

    >>> so_far({"state": "RUNNING"}), so_far({"state": "COMPLETED"})
    (' so far', '')
    """
    return " so far" if summary.get("state") == "RUNNING" else ""
