"""Keys of focus, plot, job and events; numbers on these screens are those of the view."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest
from scenes import JOB, Scene, body, page
from textual.pilot import Pilot

from tachograph.catalog.counters import COUNTER_NAMES
from tachograph.catalog.errors import UsageError
from tachograph.catalog.units import text
from tachograph.live.snapshot import GpuId
from tachograph.live.view import EventKind, LiveEvent
from tachograph.tui.counter_rows import GROUPS, counter_text
from tachograph.tui.events import EventsScreen
from tachograph.tui.focus import FocusScreen
from tachograph.tui.job import JobScreen
from tachograph.tui.plot import PlotScreen
from tui_screens import ByHand, Clock, app_of, settled, watching

G = [GpuId("sim001", place) for place in range(8)]


@asynccontextmanager
async def opened(
    name: str, of: GpuId | str | None = None, *, size: tuple[int, int] = (120, 40), scene: Scene | None = None
) -> AsyncIterator[tuple[Pilot[int], ByHand]]:
    """An app with a screen open."""
    scene = scene or Scene(8, clock=Clock())
    app = app_of(source=scene, clock=scene.clock)
    async with watching(size=size, polls=5, app=app) as pilot:
        app.open(name, of)
        await settled(pilot)
        yield pilot, app


def run(test: Callable[[], Coroutine[object, object, None]]) -> None:
    """Run a test of a pilot."""
    asyncio.run(test())


async def press(pilot: Pilot[int], *keys: str) -> None:
    """Press keys, and wait."""
    await pilot.press(*keys)
    await settled(pilot)


def test_focus_goes_to_the_next_gpu_and_round() -> None:
    async def test() -> None:
        async with opened("focus", G[6]) as (pilot, app):
            seen = page(app)
            assert isinstance(seen, FocusScreen)
            for key, gpu in (("right", G[7]), ("n", G[0]), ("left", G[7]), ("N", G[6])):
                await press(pilot, key)
                assert seen.gpu == seen.chosen == gpu
                assert body(pilot)[0].startswith(gpu.name)

    run(test)


def test_focus_shows_every_counter_with_the_value_of_the_view() -> None:
    assert sorted(name for group in GROUPS.values() for name in group) == sorted(COUNTER_NAMES)

    async def test() -> None:
        async with opened("focus", G[2], size=(120, 60)) as (pilot, app):
            lines = body(pilot)
            assert app.view is not None
            for counter, column in app.view.snapshot.values.items():
                line = next(line for line in lines if line.startswith(counter))
                assert line[len(counter) :].split()[0] == counter_text(counter, float(column[2])).split()[0]
            assert text(float(app.view.real[2]), "fraction") in lines[0]

    run(test)


def test_plot_keys() -> None:
    async def test() -> None:
        async with opened("plot") as (pilot, app):
            seen = page(app)
            assert isinstance(seen, PlotScreen)
            assert seen.counters == ["sm_active", "power_w"]
            await press(pilot, "4")
            assert seen.counters == ["sm_active", "power_w", "dram_active"]
            assert any(line.startswith("dram_active") for line in body(pilot))
            await press(pilot, "2", "7", "4")
            assert seen.counters == ["dram_active"]  # one is always left
            await press(pilot, "c")
            assert app.view is not None
            values = app.view.snapshot.values
            reported = [name for name in COUNTER_NAMES if name in values and not np.isnan(values[name]).all()]
            assert len(reported) < len(COUNTER_NAMES)
            assert seen.counters == [reported[reported.index("dram_active") + 1]]
            await press(pilot, "C", "C")
            assert seen.counters == [reported[reported.index("dram_active") - 1]]
            seen.take("dram_active")
            for _ in reported:
                await press(pilot, "c")
                assert seen.counters[0] in reported
            assert seen.counters == ["dram_active"]
            await press(pilot, "plus", "plus")
            assert seen.window_s == 600
            assert body(pilot)[0].startswith("last 10 min")
            await press(pilot, "minus", "minus", "minus")
            assert seen.window_s == 60
            await press(pilot, "o", "z")
            assert (seen.apart, seen.zoomed) == (True, True)
            await press(pilot, "a")
            assert seen.gpus == G
            await press(pilot, "a")
            assert seen.gpus == G[:1]
            await press(pilot, "a", "n")
            assert seen.gpus == G[2:4]
            await press(pilot, "left", "N")
            assert seen.gpus == G[6:]
            assert app.feed.interval_s == 1.0  # + and - are of the window here

    run(test)


def test_plot_takes_counters_and_gpus() -> None:
    async def test() -> None:
        async with opened("plot") as (pilot, app):
            seen = page(app)
            assert isinstance(seen, PlotScreen)
            seen.take("sm_active,gpu_temp_c sim001:5 sim001:1")
            await settled(pilot)
            assert seen.counters == ["sm_active", "gpu_temp_c"]
            assert seen.gpus == [G[5], G[1]]
            with pytest.raises(UsageError, match="'smactive' is no counter and no GPU; did you mean sm_active"):
                seen.take("smactive")
            with pytest.raises(UsageError, match="'zzz' is no counter and no GPU; Tab lists them"):
                seen.take("zzz")
            assert seen.counters == ["sm_active", "gpu_temp_c"]
            seen.take("power,mem nvlink")
            assert seen.counters == ["power_w", "hbm_used_mib", "nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s"]

    run(test)


def test_plot_begins_with_the_gpu_that_was_chosen() -> None:
    async def test() -> None:
        async with opened("focus", G[3]) as (pilot, app):
            await press(pilot, "p")
            seen = page(app)
            assert isinstance(seen, PlotScreen)
            assert seen.chosen == G[3]

    run(test)


def test_a_job_has_a_cursor_and_orders() -> None:
    async def test() -> None:
        clock = Clock()
        async with opened("job", JOB, scene=Scene(8, clock=clock, slow=(3, 5)), size=(80, 24)) as (pilot, app):
            seen = page(app)
            assert isinstance(seen, JobScreen)
            for _ in range(7):  # until a minute is over
                app.clock.t += 10
                app.poll()
            await settled(pilot)
            assert seen.chosen == G[5]  # not used at all
            await press(pilot, "down")
            assert seen.chosen == G[3]
            await press(pilot, *["down"] * 7)
            assert seen.chosen == G[7]
            await press(pilot, "k", "up")
            assert seen.chosen == G[4]
            await press(pilot, "s")
            assert (seen.order, seen.chosen) == ("by index", G[0])
            await press(pilot, "s")
            assert (seen.order, seen.chosen) == ("least active first", G[5])
            await press(pilot, "s", "enter")
            assert app.view is not None
            most = max(range(8), key=app.view.snapshot.column("hbm_used_mib").__getitem__)
            assert isinstance(focus := page(app), FocusScreen)
            assert focus.gpu == G[most]

    run(test)


def test_numbers_of_a_job_are_those_of_the_view() -> None:
    async def test() -> None:
        clock = Clock()
        scene = Scene(8, clock=clock, slow=(3, 5), lost=(6,))
        async with opened("job", JOB, scene=scene, size=(160, 30)) as (pilot, app):
            assert app.view is not None
            lines = body(pilot)
            values = app.view.snapshot
            for place, gpu in enumerate(G):
                line = next(line for line in lines if line[2:].startswith(f"{gpu.name} "))
                for counter, unit in (("hbm_used_mib", "MiB"), ("power_w", "W")):
                    value = values.value(counter, place)
                    assert (text(value, unit) if value is not None else "-") in line
                sm = values.value("sm_active", place)
                assert "0%" not in line.split()[:9] if sm is None else f"{sm * 100:.0f}%" in line
            used = [float(value) for value in values.column("hbm_used_mib") if value == value]
            assert text(sum(used), "MiB") in "\n".join(lines[:4])

    run(test)


def _with_events(app: ByHand, count: int) -> None:
    """Some events of several kinds, the last an alarm."""
    assert app.view is not None
    kinds = (EventKind.CLASS, EventKind.XID, EventKind.THROTTLE)
    made = tuple(
        LiveEvent(app.clock.t + place, kinds[place % 3], G[place % 8], f"event {place}", alarm=place % 3 == 1)
        for place in range(count)
    )
    app.view = replace(app.view, events=made)
    app.show_view()


def test_events_are_filtered() -> None:
    async def test() -> None:
        async with opened("events", size=(80, 24)) as (pilot, app):
            seen = page(app)
            assert isinstance(seen, EventsScreen)
            _with_events(app, 30)
            await settled(pilot)
            assert body(pilot)[0].startswith("30 events, 10 alarms")
            assert "event 29" in body(pilot)[1]
            await press(pilot, "a")
            assert body(pilot)[0].startswith("10 events")
            assert body(pilot)[1].startswith("! ")
            await press(pilot, "a", "down", "g")
            assert seen.gpu == G[28 % 8]
            assert all(G[4].name in line for line in body(pilot)[1:] if line)
            await press(pilot, "g", "t")
            assert seen.only is EventKind.HEALTH
            assert "no event matches" in body(pilot)[1]
            seen.take("xid")
            assert body(pilot)[0].startswith("10 events")
            assert seen.dismiss()
            assert not seen.dismiss()
            assert body(pilot)[0].startswith("30 events")
            with pytest.raises(UsageError, match="unknown event type 'noise'"):
                seen.take("noise")

    run(test)


def test_events_are_followed_or_held() -> None:
    async def test() -> None:
        async with opened("events", size=(80, 24)) as (pilot, app):
            seen = page(app)
            assert isinstance(seen, EventsScreen)
            _with_events(app, 60)
            await press(pilot, *["down"] * 24)
            await settled(pilot)
            place = next(y for y, line in enumerate(body(pilot)) if "event 35" in line)
            held = [line for line in body(pilot) if line]
            assert app.view is not None
            more = (
                *app.view.events,
                *(LiveEvent(app.clock.t + 100 + n, EventKind.JOB, G[0], f"new {n}") for n in range(5)),
            )
            app.view = replace(app.view, events=more)
            app.show_view()
            await settled(pilot)
            assert "event 35" in body(pilot)[place]
            assert [line for line in body(pilot) if line] == held
            await press(pilot, "home")
            assert "new 4" in body(pilot)[1]
            await press(pilot, "enter")
            assert isinstance(focus := page(app), FocusScreen)
            assert focus.gpu == G[0]

    run(test)


def test_the_bell_is_off_until_it_is_asked_for() -> None:
    async def test() -> None:
        async with opened("events") as (pilot, app):
            rung: list[int] = []
            app.bell = lambda: rung.append(1)  # type: ignore[method-assign]
            _with_events(app, 5)
            await press(pilot, "b")
            assert rung == []
            assert "bell on" in body(pilot)[0]
            _with_events(app, 5)  # an alarm that is new
            _with_events(app, 0)
            await settled(pilot)
            assert rung == [1]

    run(test)


@pytest.mark.slow
def test_every_size_is_survived() -> None:
    async def test() -> None:
        for name, of in (("focus", G[1]), ("plot", None), ("job", "1001"), ("events", None)):
            async with opened(name, of, size=(80, 24)) as (pilot, _):
                for size in ((20, 5), (1, 1), (300, 90), (40, 10)):
                    await pilot.resize_terminal(*size)
                    await settled(pilot)
                assert any(body(pilot))

    run(test)
