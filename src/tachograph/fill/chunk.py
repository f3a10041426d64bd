"""One chunk: a day of some nodes, simulated and landed once, and the state in which these nodes go on.

The state after a day is written before the day lands, and that before the day is deleted after it. So the state of
the first day that has not landed is always there, and whoever runs a chunk again does what was done before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tachograph.errors import LakeError
from tachograph.lake import Lake
from tachograph.lake.resolve import resolve
from tachograph.schema import GPU_SAMPLES, Reject
from tachograph.simulate.conformed import Day, day_of, summed
from tachograph.simulate.defects import Defect, Log
from tachograph.simulate.plan import Plan
from tachograph.simulate.telemetry import Source

LEVEL = 3  # of zstd: 1.6 % more bytes than compaction's 6, and a fifth of the time less
_OF_STATE = ("energy_j", "temperature_c", "idle_w")
_OF_RESETS = ("offset", "last")


@dataclass(frozen=True, slots=True)
class Task:
    """What one process does: `day` of the nodes of `sources`, which are part number `part` of the plan.

    `drawn`: the defects of these nodes. `name`: of the fill, the same whenever it is run again.
    """

    plan: Plan
    lake: str
    folder: Path
    name: str
    part: int
    day: int
    sources: Sequence[Source]
    drawn: Mapping[tuple[int, int], list[Defect]]

    @property
    def transaction(self) -> str:
        """What the landing of the chunk is called."""
        return f"fill:{self.name}:{self.part}:{self.day}"

    def state(self, day: int) -> Path:
        """File of the state before `day`."""
        return self.folder / f"part-{self.part:04d}-day-{day:04d}.npz"


@dataclass(slots=True)
class Removed:
    """What was removed and what was planted so far in a part."""

    rejects: tuple[Reject, ...] = ()
    log: Log = field(default_factory=Log)


def run(task: Task) -> int:
    """Simulate and land the chunk; return its rows, 0 where it was there already.

    Errors: LakeError when it cannot be written, or the state that it begins with is gone.
    """
    lake = Lake.create(task.lake, level=LEVEL)
    if lake.mark(GPU_SAMPLES, task.transaction) is not None:
        task.state(task.day).unlink(missing_ok=True)
        return 0
    removed = _restore(task)
    day = day_of(task.plan, task.sources, task.day, task.drawn, removed.log, now=datetime.now(UTC))
    frame, duplicates = _resolved(day)
    twice = (Reject("duplicate", None, duplicates),) if duplicates else ()
    removed.rejects = summed((*removed.rejects, *day.removed, *twice))
    _keep(task, removed)
    lake.append(GPU_SAMPLES, frame, app_id=task.transaction)
    task.state(task.day).unlink(missing_ok=True)
    return frame.height


def removed_by(task: Task) -> Removed:
    """Return what was removed and planted in the task's part before its day."""
    with np.load(task.state(task.day)) as arrays:
        return _removed(arrays)


def _resolved(day: Day) -> tuple[pl.DataFrame, int]:
    """The day with each key once, and how many rows were merged away."""
    rows, merged = resolve(day.touched.with_columns(pl.lit(0, dtype=pl.Int64).alias("seq")), GPU_SAMPLES)
    return day.with_touched(rows), merged


def _restore(task: Task) -> Removed:
    """Put the sources into the state before the day."""
    if not task.day:
        return Removed()
    file = task.state(task.day)
    if not file.exists():
        raise LakeError(
            "the state of the fill is gone", where=str(file), do="fill a new lake from the start, in a new folder"
        )
    with np.load(file) as archive:
        arrays = dict(archive)
    for place, source in enumerate(task.sources):
        for name in _OF_STATE:
            setattr(source.state, name, arrays[name][place])
        for name in _OF_RESETS:
            getattr(source.resets, name)[:] = arrays[name][place]
        source.state.last_ns = int(arrays["last_ns"][place])
    return _removed(arrays)


def _removed(arrays: Mapping[str, Any]) -> Removed:
    told = json.loads(str(arrays["told"]))
    return Removed(tuple(Reject(*row) for row in told["rejects"]), Log([tuple(row) for row in told["defects"]]))


def _keep(task: Task, removed: Removed) -> None:
    """Write the state after the day, whole or not at all."""
    states: dict[str, Any] = {name: np.stack([getattr(s.state, name) for s in task.sources]) for name in _OF_STATE}
    resets: dict[str, Any] = {name: np.stack([getattr(s.resets, name) for s in task.sources]) for name in _OF_RESETS}
    rejects = [(each.reason, each.column, each.count, each.example) for each in removed.rejects]
    told = np.array(json.dumps({"rejects": rejects, "defects": removed.log.rows}))
    file = task.state(task.day + 1)
    half = file.with_suffix(".half")
    with half.open("wb") as out:
        np.savez(out, last_ns=[s.state.last_ns for s in task.sources], told=told, **states, **resets)
    half.replace(file)
