"""The fleet as people see it: at three sizes, grouped, by keys, by mouse."""

from __future__ import annotations

import re

import pytest
from syrupy.assertion import SnapshotAssertion

from tachograph.annexes.watch.live.snapshot import GpuId
from tachograph.annexes.watch.tui.app import SCREENS
from tachograph.annexes.watch.tui.fleet import FleetScreen
from tachograph.annexes.watch.tui.header import footer
from tui_screens import ByHand, app_of, lines_of, press, screen, settled, watching

pytestmark = pytest.mark.anyio

SIZES = ((80, 24), (120, 40), (200, 50))
# keys that lead from each to the next
VIEWS: dict[str, tuple[str, ...]] = {
    "fleet": (),
    "grouped": ("g", "g", "down"),
    "folded": ("enter",),
    "help": ("question_mark",),
}


def typed(text: str) -> tuple[str, ...]:
    """Keys as Textual names them, one for each letter."""
    names = {
        " ": "space",
        ":": "colon",
        "/": "slash",
        "=": "equals_sign",
        "<": "less_than_sign",
        "-": "minus",
    }
    return tuple(names.get(letter, letter) for letter in text)


def fleet_of(app: ByHand) -> FleetScreen:
    found = app.fleet
    assert isinstance(found, FleetScreen)
    return found


@pytest.mark.parametrize("size", SIZES, ids=["80x24", "120x40", "200x50"])
async def test_the_fleet_is_drawn(size: tuple[int, int], snapshot: SnapshotAssertion) -> None:
    app = app_of(64)
    async with watching(app=app, size=size) as pilot:
        for name, pressed in VIEWS.items():
            await press(pilot, *pressed)
            lines = lines_of(app)
            assert len(lines) == size[1]
            assert "\n".join(lines) == snapshot(name=name)


def test_every_letter_in_view_is_named_at_80_columns() -> None:
    lines = screen(gpus=1000, polls=1)
    assert lines[1].startswith("1,000 GPUs  │ CRIT !! 1  HOT ^ 1  OK 998")
    found = dict(re.findall(r"(\S) [\d,]+ (held idle|\S+)", lines[2]))
    assert found == {
        "_": "free",
        "H": "held idle",
        "C": "compute",
        "I": "I/O",
        "M": "memory",
        "X": "mixed",
    }
    assert lines[3].startswith("real utilisation = ")
    assert lines[3].endswith("20 % DRAM + 10 % GR activity")


async def test_sizes_that_nobody_likes_are_drawn() -> None:
    app = app_of(24)
    async with watching(app=app) as pilot:
        for width, height in ((20, 6), (1, 1), (400, 100), (40, 10)):
            for pressed in ((), ("g",), ("question_mark",), ("escape",)):
                await pilot.press(*pressed)
                await pilot.resize_terminal(width, height)
                await pilot.pause()
                lines = lines_of(app)
                assert len(lines) == height
                assert all(len(line) <= width for line in lines)


async def test_a_filter_holds_while_it_is_written_and_goes_with_esc() -> None:
    app = app_of(64)
    async with watching(app=app) as pilot:
        fleet = fleet_of(app)
        await press(pilot, *typed("/user=ana"))
        shown = [line for line in lines_of(app) if line.startswith("sim0")]
        assert shown
        assert all(" ana " in line for line in shown)
        await press(pilot, "escape")  # gives up what is being written
        assert (fleet.filter, fleet.filtered) == ("", 64)
        await press(pilot, *typed("/user=ana"), "enter")
        assert fleet.filter == "user=ana"
        assert 0 < fleet.filtered < 64
        await press(pilot, "slash", "ctrl+u", *typed("sm<x"), "enter")  # a term that is wrong
        assert fleet.filter == "user=ana"
        assert "invalid number" in lines_of(app)[-1]
        await press(pilot, "escape", "escape")  # gives up, drops it
        assert fleet.filter == ""


async def test_the_column_sorted_by_is_marked_and_named() -> None:
    app = app_of(16)
    async with watching(app=app) as pilot:
        titles = next(line for line in lines_of(app) if line.startswith("gpu"))
        assert "MHz" not in titles
        assert titles.endswith("›")
        fleet = fleet_of(app)
        fleet.sort_by("clock", reverse=True)
        await settled(pilot)
        lines = lines_of(app)
        assert "sorted by clock, smallest first" in lines[0]
        assert "MHz▲" in next(line for line in lines if line.startswith("gpu"))
        await press(pilot, "r")
        assert "sorted by clock, largest first" in lines_of(app)[0]
        await pilot.resize_terminal(260, 24)
        await settled(pilot)
        assert "›" not in "".join(lines_of(app))


@pytest.mark.parametrize("place", list(SCREENS))
def test_how_to_quit_is_always_shown(place: str) -> None:
    for width in (20, 80):
        line = "".join(text for text, _ in footer(place, width=width))
        assert "q quit" in line
        assert len(line) <= width


async def test_the_cursor_stays_on_its_gpu() -> None:
    app = app_of(64)
    async with watching(app=app) as pilot:
        fleet = fleet_of(app)
        await pilot.press("down", "down", "down")
        before = fleet.selected_gpu
        await press(pilot, "P")
        assert fleet.selected_gpu == before
        await press(pilot, "home")
        view = app.view
        assert view is not None
        power = view.snapshot.column("power_w")
        assert fleet.selected_gpu == view.snapshot.gpus[int(power.argmax())]


async def test_columns_move_and_letters_sort() -> None:
    app = app_of(64)
    async with watching(app=app) as pilot:
        fleet = fleet_of(app)
        for letter, column in (
            ("M", "mem"),
            ("U", "user"),
            ("S", "sm"),
            ("X", "health"),
            ("N", "gpu"),
        ):
            await pilot.press(letter)
            assert (fleet.sort, fleet.reverse) == (column, False)
            await pilot.press(letter)
            assert (fleet.sort, fleet.reverse) == (column, True)
        await pilot.press("N", "tab", "tab", "shift+tab")
        assert fleet.selected_gpu == GpuId("sim001", 1)
        await press(pilot, *["right"] * 4)
        assert " SM " not in lines_of(app)[4]
        await press(pilot, *["left"] * 4)
        assert " SM " in lines_of(app)[4]


async def test_mouse_chooses_sorts_and_opens() -> None:
    app = app_of(64)
    async with watching(app=app) as pilot:
        fleet = fleet_of(app)
        await pilot.click(FleetScreen, offset=(2, 5))
        await settled(pilot)
        assert fleet.selected_gpu == GpuId("sim001", 3)
        title = lines_of(app)[4]
        await pilot.click(FleetScreen, offset=(title.index("DRAM") + 1, 1))
        await settled(pilot)
        assert fleet.sort == "dram"
        await pilot.press("N", "home")
        await pilot.click(FleetScreen, offset=(2, 2))
        await settled(pilot)
        assert app.screen_name == "focus"
        await press(pilot, "escape")
        assert app.screen_name == "fleet"


async def test_pausing_holds_the_screen_and_not_the_history() -> None:
    app = app_of(8)
    async with watching(app=app) as pilot:
        await pilot.press("space")
        held = app.view
        app.clock.t += 1
        app.poll()
        await settled(pilot)
        assert app.view is held
        assert "PAUSED" in lines_of(app)[0]
        await press(pilot, "space")
        assert app.view is not held
        assert app.view is not None
        assert len(app.view.history.times()) == 4
