"""Every key of every screen of `tachograph watch`, over a fleet where every text of others is
hostile.
"""

from __future__ import annotations

import asyncio

import pytest
from hostile_fleet import TEXTS, HostileSource
from hostile_lake import MARK
from written import assert_plain

from tachograph.annexes.watch.tui.keys import KEYS, ScreenKey
from tui_screens import Clock, app_of, lines_of, press, settled, watching

pytestmark = pytest.mark.anyio

SIZE = (220, 80)  # every GPU is on the screen
OPENED_BY = {"fleet": (), "focus": ("enter",), "job": ("j",)}
LEAVING = ("quit", "suspend", "app.filter", "back")


async def pressed(place: str, pressing: list[ScreenKey]) -> set[str]:
    """Press the keys one by one, on the screen of the place; what was on all screens."""
    clock, seen = Clock(), set()
    async with watching(app=app_of(source=HostileSource(clock), clock=clock), size=SIZE) as pilot:
        for key in pressing:
            await press(pilot, *OPENED_BY[place], key.keys.partition(",")[0])
            for line in lines_of(pilot.app):
                assert_plain(line, key.shown)
                seen.add(line)
            await pilot.press("escape", "escape")
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("place", OPENED_BY)
def test_no_text_acts_on_a_screen(place: str) -> None:
    pressing = [
        key for key in KEYS if key.screen in ("", place) and not key.action.startswith(LEAVING)
    ]
    seen = asyncio.run(pressed(place, pressing))
    assert any(MARK in line for line in seen)


@pytest.mark.slow
async def test_the_screen_of_each_gpu_shows_text_alone() -> None:
    clock = Clock()
    async with watching(app=app_of(source=HostileSource(clock), clock=clock), size=SIZE) as pilot:
        await pilot.press("home", "enter")
        for text in TEXTS:
            await settled(pilot)
            lines = lines_of(pilot.app)
            assert any(MARK in line for line in lines), text[:50]
            for line in lines:
                assert_plain(line, text[:50])
            await pilot.press("n")


def test_every_screen_is_walked() -> None:
    assert {key.screen for key in KEYS} - {""} == set(OPENED_BY)
