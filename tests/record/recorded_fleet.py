"""A fleet that is recorded under a clock that tests move, with GPUs that stop reporting and
missing counters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tachograph.annexes.watch.live.snapshot import LiveSource, Snapshot, SourceInfo
from tachograph.annexes.watch.live.sources.simulated import SimulatedSource
from tachograph.annexes.watch.record.commit import commit_spool
from tachograph.annexes.watch.record.foreground import CommandEnd
from tachograph.annexes.watch.record.sampler import SpoolSampler
from tachograph.annexes.watch.record.spooling import JobIdentity, RecordPlan, _head
from tachograph.catalog.spool import SpoolWriter
from tachograph.lake.delta import Lake

BEGIN = 1_741_080_000.0  # 2025-03-04 09:20 UTC
SILENT_GPU, SILENT_FROM, SILENT_TO = 2, 20, 30  # looks
PARTLY_GPU, PARTLY_FROM = 5, 40
JOB = JobIdentity("local-1", "python train.py", "ana", cluster="tiny")


@dataclass
class Clock:
    """Gives a time that moves only when it is set."""

    t: float = BEGIN

    def __call__(self) -> float:
        return self.t


class Faulty:
    """A simulated fleet: one GPU is lost for a while, another loses a counter, one has an XID
    error.
    """

    def __init__(self, clock: Clock, gpus: int = 8, seed: int = 3) -> None:
        self._source = SimulatedSource(gpus, per_node=4, seed=seed, clock=clock)
        self._looks = -1

    @property
    def about(self) -> SourceInfo:
        return self._source.about

    def read(self) -> Snapshot:
        self._looks += 1
        snapshot = self._source.read()
        values = {name: np.array(column) for name, column in snapshot.values.items()}
        measured = snapshot.measured.copy()
        if SILENT_FROM <= self._looks < SILENT_TO:
            for column in values.values():
                column[SILENT_GPU] = np.nan
            measured[SILENT_GPU] = np.nan
        if self._looks >= PARTLY_FROM:
            values["tensor_active"][PARTLY_GPU] = np.nan
        values["xid"][1] = 79.0 if self._looks >= SILENT_TO else 0.0
        return replace(snapshot, measured=measured, values=values, allocations={}, processes={})

    def close(self) -> None:
        self._source.close()


def recorded(
    folder: Path,
    looks: int,
    *,
    interval_s: float = 1.0,
    end: bool = True,
    anonymous: bool = False,
    clock: Clock | None = None,
    source: LiveSource | None = None,
    begin: float = BEGIN,
) -> tuple[Path, list[Snapshot]]:
    """Record so many looks; return the spool, and the snapshots as they were live."""
    clock = clock or Clock()
    source = source or Faulty(clock)
    plan = RecordPlan(folder, JOB, begin, interval_s, anonymous)
    plan.spool.parent.mkdir(parents=True, exist_ok=True)
    spool = SpoolWriter(plan.spool, _head(plan))
    sampler = SpoolSampler(source, spool, anonymous=anonymous)
    live = []
    for look in range(looks):
        clock.t = begin + look * interval_s
        live.append(sampler.step())
    if end:
        ended = CommandEnd(0, None, begin + looks * interval_s)
        spool.note(
            {"kind": "end", "end": ended.at, "exit_code": ended.code, "exit_signal": ended.signal}
        )
    assert spool.flush()
    spool.close()
    return plan.spool, live


def committed(folder: Path, looks: int, **options: Any) -> Lake:
    """Record, and return the lake of the recording."""
    spool, _ = recorded(folder, looks, **options)
    return commit_spool(spool, folder)
