"""Keys of focus and job; numbers on these screens are those of the view."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from scenes import JOB, Scene, body, page
from textual.pilot import Pilot

from tachograph.annexes.watch.live.snapshot import GpuId
from tachograph.annexes.watch.tui.counter_rows import GROUPS, counter_text
from tachograph.annexes.watch.tui.focus import FocusScreen
from tachograph.annexes.watch.tui.job import JobScreen
from tachograph.catalog.counters import COUNTER_NAMES
from tachograph.catalog.units import text
from tui_screens import ByHand, app_of, press, settled, watching

pytestmark = pytest.mark.anyio

G = [GpuId("sim001", place) for place in range(8)]


@asynccontextmanager
async def opened(
    name: str,
    of: GpuId | str | None = None,
    *,
    size: tuple[int, int] = (120, 40),
    scene: Scene | None = None,
) -> AsyncIterator[tuple[Pilot[int], ByHand]]:
    """An app with a screen open."""
    scene = scene or Scene(8)
    app = app_of(source=scene, clock=scene.clock)
    async with watching(size=size, polls=5, app=app) as pilot:
        app.open(name, of)
        await settled(pilot)
        yield pilot, app


async def test_focus_goes_to_the_next_gpu_and_round() -> None:
    async with opened("focus", G[6]) as (pilot, app):
        seen = page(app)
        assert isinstance(seen, FocusScreen)
        for key, gpu in (("right", G[7]), ("n", G[0]), ("left", G[7]), ("N", G[6])):
            await press(pilot, key)
            assert seen.gpu == seen.selected_gpu == gpu
            assert body(pilot)[0].startswith(gpu.name)


async def test_focus_shows_every_counter_with_the_value_of_the_view() -> None:
    assert sorted(name for group in GROUPS.values() for name in group) == sorted(COUNTER_NAMES)

    async with opened("focus", G[2], size=(120, 60)) as (pilot, app):
        lines = body(pilot)
        assert app.view is not None
        for counter, column in app.view.snapshot.values.items():
            line = next(line for line in lines if line.startswith(counter))
            assert (
                line[len(counter) :].split()[0]
                == counter_text(counter, float(column[2])).split()[0]
            )
        assert text(float(app.view.real[2]), "fraction") in lines[0]


async def test_a_job_has_a_cursor_and_orders() -> None:
    async with opened("job", JOB, scene=Scene(8, slow=(3, 5)), size=(80, 24)) as (
        pilot,
        app,
    ):
        seen = page(app)
        assert isinstance(seen, JobScreen)
        for _ in range(7):  # until a minute is over
            app.clock.t += 10
            app.poll()
        await settled(pilot)
        assert seen.selected_gpu == G[5]  # not used at all
        await press(pilot, "down")
        assert seen.selected_gpu == G[3]
        await press(pilot, *["down"] * 7)
        assert seen.selected_gpu == G[7]
        await press(pilot, "k", "up")
        assert seen.selected_gpu == G[4]
        await press(pilot, "s")
        assert (seen.order, seen.selected_gpu) == ("by index", G[0])
        await press(pilot, "s")
        assert (seen.order, seen.selected_gpu) == ("least active first", G[5])
        await press(pilot, "s", "enter")
        assert app.view is not None
        most = max(range(8), key=app.view.snapshot.column("hbm_used_mib").__getitem__)
        assert isinstance(focus := page(app), FocusScreen)
        assert focus.gpu == G[most]
