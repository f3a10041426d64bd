"""Screens as text: an app with a clock that tests move, a fleet that is simulated, keys pressed one
by one.

def test_it() -> None:
    lines = screen("j", size=(80, 24), gpus=8)          # named as Textual does
    async with watching(gpus=8) as pilot: ...           # for more than keys; await settled(pilot); lines_of(pilot.app)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import numpy as np
import pytest
from textual.app import App
from textual.pilot import Pilot

from tachograph.annexes.watch.live.feed import SnapshotJudge
from tachograph.annexes.watch.live.snapshot import LiveSource, Snapshot, SourceInfo
from tachograph.annexes.watch.live.sources.simulated import SimulatedSource
from tachograph.annexes.watch.live.view import FleetView, GpuHistory
from tachograph.annexes.watch.tui.app import WatchApp
from tachograph.catalog.arrays import Bytes
from tachograph.judge.health import CRIT, HOT, OK, STATES
from tachograph.judge.workload.classes import RULED

BEGIN = 1_795_255_200.0  # 2026-11-21 10:00:00 UTC


class Clock:
    """Tells a time that moves only when it is told to."""

    def __init__(self, t: float = BEGIN) -> None:
        self.t = t

    def __call__(self) -> float:
        """What time it is."""
        return self.t


class StandIn:
    """Judges by the nearest profile, without smoothing: what screens need of a monitor, and no
    more.
    """

    def __init__(self, about: SourceInfo) -> None:
        self.about = about
        self.history = GpuHistory(600)

    def step(self, snapshot: Snapshot, about: SourceInfo | None = None) -> FleetView:
        """Return a view; GPU 5 is hot, GPU 7 has lost rows."""
        self.about = about or self.about
        self.history.add(snapshot)
        names = ("sm_active", "tensor_active", "dram_active", "gr_engine_active")
        seen = np.column_stack([snapshot.column(name) for name in names])
        profiles = np.array([one.profile[:4] for one in RULED])
        labels: Bytes = np.abs(seen[:, None, :] - profiles[None]).sum(2).argmin(1).astype(np.uint8)
        real = np.clip(seen @ np.array([0.35, 0.35, 0.2, 0.1]), 0, 1)
        health: Bytes = np.full(len(snapshot.gpus), STATES.index(OK), np.uint8)
        health[5:6], health[7:8] = STATES.index(HOT), STATES.index(CRIT)
        reported = ~np.isnan(snapshot.measured)
        return FleetView(
            self.about,
            snapshot,
            labels,
            real,
            health,
            reported,
            snapshot.t - snapshot.measured,
            self.history,
        )


class ByHand(WatchApp):
    """An app whose feed runs when a test says so."""

    clock = Clock()

    def start(self) -> None:
        """Look once; go on by `poll`."""
        self.poll()

    def poll(self) -> None:
        """Ask the source once, as the thread of the feed would."""
        self.deliver(self.feed.once())


def app_of(
    gpus: int = 8,
    *,
    clock: Clock | None = None,
    source: LiveSource | None = None,
    judge: SnapshotJudge | None = None,
    job: str | None = None,
    interval_s: float = 1.0,
) -> ByHand:
    """Return an app of a simulated fleet, or of `source`, that nothing moves but the test."""
    clock = clock or Clock()
    source = source or SimulatedSource(gpus, clock=clock)
    app = ByHand(source, interval_s=interval_s, judge=judge or StandIn(source.about), job=job)
    app.clock = clock
    return app


@contextmanager
def at_utc() -> Iterator[None]:
    """Times of day are those of UTC."""
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TZ", "UTC")
            time.tzset()
            yield
    finally:
        time.tzset()


@asynccontextmanager
async def watching(
    gpus: int = 8, *, size: tuple[int, int] = (80, 24), polls: int = 3, app: ByHand | None = None
) -> AsyncIterator[Pilot[int]]:
    """Run an app on a terminal of `size` after so many looks, a second apart, at UTC."""
    app = app or app_of(gpus)
    with at_utc():
        async with app.run_test(size=size) as pilot:
            for _ in range(polls - 1):
                app.clock.t += 1
                app.poll()
            await settled(pilot)
            yield pilot


async def settled(pilot: Pilot[int]) -> None:
    """Wait until everything that was asked for is drawn."""
    for _ in range(2):
        await pilot.pause()


async def press(pilot: Pilot[int], *keys: str) -> None:
    """Press keys, and wait."""
    await pilot.press(*keys)
    await settled(pilot)


def lines_of(app: App[int]) -> list[str]:
    """Return what is on the screen, line by line, spaces at the ends dropped."""
    strips = app.screen._compositor.render_strips()  # the one place where all that is seen meets
    return [strip.text.rstrip() for strip in strips]


def screen(
    *keys: str,
    gpus: int = 8,
    size: tuple[int, int] = (80, 24),
    polls: int = 3,
    app: ByHand | None = None,
    picture: Callable[[str], object] | None = None,
) -> list[str]:
    """Return the screen after some keys. picture: gets it as SVG, too."""

    async def shown() -> list[str]:
        async with watching(gpus, size=size, polls=polls, app=app) as pilot:
            await press(pilot, *keys)
            if picture is not None:
                picture(pilot.app.export_screenshot())
            return lines_of(pilot.app)

    return asyncio.run(shown())
