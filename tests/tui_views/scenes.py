"""Fleets with something special about them, and their screens as text: what is seen between
header and footer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from textual.pilot import Pilot

from tachograph.annexes.watch.live.monitor import Monitor
from tachograph.annexes.watch.live.snapshot import (
    GpuAllocation,
    GpuId,
    GpuProcess,
    Snapshot,
    SourceInfo,
)
from tachograph.annexes.watch.live.sources.simulated import SimulatedSource
from tachograph.annexes.watch.live.unsupported import unsupported_counters
from tachograph.annexes.watch.live.view import FleetView, GpuHistory
from tachograph.annexes.watch.tui.job import job_lines
from tachograph.annexes.watch.tui.job_table import job_facts
from tachograph.annexes.watch.tui.page import Page, Row
from tachograph.catalog.arrays import Floats
from tachograph.catalog.counters import COUNTER_NAMES
from tachograph.judge.workload.settings import WorkloadSettings
from tui_screens import ByHand, Clock, app_of, press, settled, watching

JOB = "4711"


class Scene:
    """A simulated fleet of which some is changed.

    without: unsupported counters; lost: rows of GPUs that report nothing now; mig: GPUs are slices;
    slow: rows of GPUs idle within one job that holds all; hostile: processes have names that would
    steer a terminal. idle: GPUs on which nothing runs at all. ran_s: how long the job had run
    before.
    """

    def __init__(
        self,
        gpus: int,
        *,
        without: tuple[str, ...] = (),
        lost: tuple[int, ...] = (),
        mig: bool = False,
        slow: tuple[int, ...] | None = None,
        hostile: bool = False,
        idle: tuple[int, ...] = (),
        ran_s: float = 600.0,
    ) -> None:
        self.clock = Clock()
        self._source, self._began = SimulatedSource(gpus, seed=3, clock=self.clock), self.clock()
        self._without, self._lost, self._idle = without, list(lost), list(idle)
        self._mig, self._slow, self._hostile, self._ran_s = mig, slow, hostile, ran_s

    @property
    def about(self) -> SourceInfo:
        if not self._without:
            return SourceInfo("simulated", "a scene")
        supported = set(COUNTER_NAMES) - set(self._without)
        missing = unsupported_counters(supported, "dcgm-exporter")
        return SourceInfo("dcgm-exporter", "a scene", missing)

    def read(self) -> Snapshot:
        snapshot = self._source.read()
        held = {
            gpu: replace(one, since=self._began - 90) for gpu, one in snapshot.allocations.items()
        }
        snapshot = replace(snapshot, allocations=held)
        values = {
            name: column for name, column in snapshot.values.items() if name not in self._without
        }
        gpus, measured = snapshot.gpus, snapshot.measured.copy()
        if self._slow is not None:
            values = _even(values, self._slow)
            job = GpuAllocation(JOB, "ana", self._began - self._ran_s)
            snapshot = replace(snapshot, allocations=dict.fromkeys(gpus, job))
        for name in (name for name in values if name.endswith(("_active", "_util")) and self._idle):
            values[name] = values[name].copy()
            values[name][self._idle] = 0.0
        if self._lost:
            measured[self._lost] = np.nan
            values = {name: _gone(column, self._lost) for name, column in values.items()}
        if self._hostile:
            bad = (
                GpuProcess(1, "mal\x1b[2Jory", "python \x07evil.py", None),
                GpuProcess(2, None, None, 1024.0),
            )
            snapshot = replace(snapshot, processes=dict.fromkeys(gpus, bad))
        if self._mig:
            sliced = {gpu: GpuId(gpu.node, gpu.gpu // 4, gpu.gpu % 4 + 3) for gpu in gpus}
            values = {
                name: column
                for name, column in values.items()
                if name not in ("gpu_util", "pcie_rx_bytes_per_s")
            }
            facts: dict[str, Any] = {
                name: {sliced[gpu]: fact for gpu, fact in getattr(snapshot, name).items()}
                for name in ("devices", "allocations", "processes")
            }
            snapshot = replace(snapshot, gpus=tuple(sliced.values()), **facts)
        return replace(snapshot, values=values, measured=measured)

    def close(self) -> None:
        """Nothing is held."""


def _gone(column: Floats, places: list[int]) -> Floats:
    left = column.copy()
    left[places] = np.nan
    return left


def _even(values: Mapping[str, Floats], slow: tuple[int, ...]) -> dict[str, Floats]:
    """All GPUs of one job busy alike, but for some idle and one that does half."""
    found = dict(values)
    busy = np.full(len(next(iter(values.values()))), 0.9)
    busy[list(slow)] = 0.0
    if slow:
        busy[slow[0]] = 0.4
    for name in ("gpu_util", "gr_engine_active", "sm_active"):
        found[name] = busy
    return found


def view_of(scene: Scene, polls: int = 3, step_s: float = 1.0) -> FleetView:
    """Return the view after so many looks."""
    judge = Monitor(scene.about, settings=WorkloadSettings(), history=GpuHistory(600))
    view = judge.step(scene.read())
    for _ in range(polls - 1):
        scene.clock.t += step_s
        view = judge.step(scene.read())
    return view


def text_of(rows: list[Row]) -> str:
    """Return rows as text."""
    return "\n".join("".join(part.text for part in row).rstrip() for row in rows)


def job_text(view: FleetView, order: str = "by index", *, width: int = 79, job: str = JOB) -> str:
    """Return the screen of a job as text."""
    facts = job_facts(view, job)
    assert facts is not None
    lines = job_lines(view, facts, order, 0, width=width)
    return text_of([lines[index] for index in range(len(lines))])


def page(app: ByHand) -> Page:
    """Return the screen that is seen."""
    seen = app.visible_screen
    assert isinstance(seen, Page)
    return seen


def body(pilot: Pilot[int]) -> list[str]:
    """Return what the screen shows, line by line, without what stands around it."""
    assert isinstance(pilot.app, ByHand)
    seen = page(pilot.app)
    return [seen.render_line(y).text.rstrip() for y in range(seen.size.height)]


def drawn(
    name: str,
    of: GpuId | str | None,
    *keys: str,
    size: tuple[int, int],
    scene: Scene,
    polls: int = 3,
) -> list[str]:
    """Return a screen after some keys."""

    async def shown() -> list[str]:
        app = app_of(source=scene, clock=scene.clock)
        async with watching(size=size, polls=polls, app=app) as pilot:
            app.open(name, of)
            await settled(pilot)
            await press(pilot, *keys)
            return body(pilot)

    return asyncio.run(shown())
