"""Every key of the table: bound to something that exists, listed in help and docs, harmless in
any order.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import cast

import pytest

from tachograph.annexes.watch.live.monitor import Monitor
from tachograph.annexes.watch.live.sources.simulated import SimulatedSource
from tachograph.annexes.watch.live.view import GpuHistory
from tachograph.annexes.watch.tui import keys
from tachograph.annexes.watch.tui.app import SCREENS, WatchApp
from tachograph.annexes.watch.tui.fleet_table import COLUMNS
from tachograph.annexes.watch.tui.help import ABBREVIATIONS, real_sentence
from tachograph.judge.workload.settings import WorkloadSettings
from tui_screens import Clock, app_of, screen, settled, watching

pytestmark = pytest.mark.anyio

DOCS = Path(__file__).resolve().parents[2] / "docs" / "watch.md"
PRESSED = 40


@pytest.mark.parametrize("key", keys.KEYS, ids=lambda key: f"{key.screen or 'all'}-{key.shown}")
def test_a_key_does_something(key: keys.ScreenKey) -> None:
    method = f"action_{key.action.removeprefix('app.').partition('(')[0]}"
    if not key.screen or key.action.startswith("app."):
        owner: type = WatchApp
    else:
        owner = cast("type", SCREENS[key.screen][0])
    assert callable(getattr(owner, method))


def test_no_key_means_two_things_on_one_screen() -> None:
    for place in {key.screen for key in keys.KEYS}:
        names = [name for key in keys.of(place) for name in key.keys.split(",")]
        assert len(names) == len(set(names))


def test_help_tells_every_key() -> None:
    lines = screen("question_mark", size=(120, 200))
    together = "\n".join(lines)
    for key in keys.KEYS:
        assert key.text.split()[0] in together
        assert key.shown in together


async def test_keys_in_any_order_do_no_harm() -> None:
    """With the real monitor; what raises in a screen ends the app, and with it the test."""
    rng = random.Random(0)
    names = [name for key in keys.KEYS for name in key.keys.split(",") if "quit" not in key.action]
    names += [*"abc0=<", "tab", "enter", "backspace", "escape"]

    clock = Clock()
    source = SimulatedSource(24, clock=clock)
    judge = Monitor(source.about, settings=WorkloadSettings(), history=GpuHistory(60))
    app = app_of(clock=clock, source=source, judge=judge)
    async with watching(app=app, size=(100, 30)) as pilot:
        for place in range(PRESSED):
            await pilot.press(rng.choice(names))
            if place % 10 == 0:
                clock.t += 1
                app.poll()
            if place % 25 == 0:
                await pilot.resize_terminal(rng.randint(5, 200), rng.randint(3, 60))
        await settled(pilot)
        assert app.is_running
        assert app.failure is None


def test_help_tells_what_columns_and_real_utilisation_are() -> None:
    message = " ".join(" ".join(line.split()) for line in screen("question_mark", size=(109, 150)))
    sentence = real_sentence(WorkloadSettings().weights)
    assert sentence in message
    assert sentence in " ".join(DOCS.read_text().split())
    titles = {title for column in COLUMNS for title in (column.title, column.brief)} | {
        "GR",
        "real",
    }
    assert set(ABBREVIATIONS) <= titles
    for title, meaning in ABBREVIATIONS.items():
        assert f"{title} {meaning}" in message
