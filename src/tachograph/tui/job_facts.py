"""What a job does on its GPUs, of a view: its rows there, sums over them, how evenly they work, its processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tachograph.arrays import Flags, Floats, Singles
from tachograph.live.snapshot import Holder, Process
from tachograph.live.view import View
from tachograph.tui.job_spread import OVER_S, WINDOW_S, Spread, activity_counter, never_used, spread


@dataclass(frozen=True, slots=True)
class JobFacts:
    """One row per GPU of the job, in the order of `rows` (places in the view).

    counter: what says that a GPU works, None where nothing does; activity: its values at `times`, all that is kept.
    unused: GPUs at zero in all that time.
    """

    job_id: str
    rows: tuple[int, ...]
    holder: Holder
    counter: str | None
    times: Floats
    activity: Singles
    spread: Spread
    unused: Flags


@dataclass(frozen=True, slots=True)
class Program:
    """Processes with one user and command: how many, on how many GPUs, their device memory (None: not told)."""

    user: str | None
    command: str | None
    processes: int
    gpus: int
    hbm_used_mib: float | None


def facts(view: View, job_id: str) -> JobFacts | None:
    """Return what is known of a job; None where it holds no GPU that is seen."""
    snapshot = view.snapshot
    held = [(place, snapshot.holders.get(gpu)) for place, gpu in enumerate(snapshot.gpus)]
    own = [(place, holder) for place, holder in held if holder is not None and job_id in (*holder.jobs, holder.job_id)]
    if not own:
        return None
    rows = tuple(place for place, _ in own)
    holder = own[0][1]
    times = view.history.times()
    counter = activity_counter(view, rows)
    activity = view.history.block(counter or "gpu_util", rows)
    last = times > snapshot.t - OVER_S - WINDOW_S
    anchor = holder.since if holder.since is not None else 0.0
    evenness = spread(times[last], activity[last], anchor=anchor)
    return JobFacts(job_id, rows, holder, counter, times, activity, evenness, never_used(activity))


def total(values: Floats) -> float | None:
    """Return the sum of what is known; None where nothing is.

    >>> total(np.array([1.0, np.nan, 2.0])), total(np.array([np.nan]))
    (3.0, None)
    """
    known = values[np.isfinite(values)]
    return float(known.sum()) if len(known) else None


def mean(values: Floats) -> float | None:
    """Return the mean of what is known; None where nothing is."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def programs(view: View, rows: Sequence[int]) -> list[Program]:
    """Return what runs on some GPUs, by user and command, the one with most memory first."""
    grouped: dict[tuple[str | None, str | None], list[tuple[int, Process]]] = {}
    for row in rows:
        for process in view.snapshot.processes.get(view.snapshot.gpus[row], ()):
            grouped.setdefault((process.user, process.command), []).append((row, process))
    found = [
        Program(
            user,
            command,
            len({(view.snapshot.gpus[row].node, process.pid) for row, process in members}),
            len({row for row, _ in members}),
            total(np.array([process.hbm_used_mib for _, process in members], np.float64)),
        )
        for (user, command), members in grouped.items()
    ]
    return sorted(found, key=lambda one: -(one.hbm_used_mib or 0.0))
