"""Screens of exporters at which everything goes wrong: `make screens` (SCREENS=10000). Prints
failures; 1 if any.

Pages go through the exporters' own reading, the monitor and the app; between two of them terminal,
keys and filters do what they like. All of it is decided by the seed. After each refresh the text on
the screen is taken, and:

- nothing was raised, in the app or in the feed; no traceback is on the screen, and nothing that
  steers a terminal
- every line is as long as the terminal is wide, at most
- numbers of the fleet's table are those of the snapshot; what is not reported is "-"
- every value of the snapshot is within the range of its counter

    python tests/live_faults/screens.py --screens 500 --seed 1
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import random
import sys
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    sys.path[:0] = [
        str(Path(__file__).resolve().parent.parent),
        str(Path(__file__).resolve().parent),
    ]

from faulty_fleet import HOSTS, JOBS, FaultyFleet
from textual import events
from textual.app import ScreenStackError
from textual.pilot import Pilot

from tachograph.annexes.watch.live.selection import GpuSelection, SelectedSource
from tachograph.annexes.watch.live.snapshot import Snapshot
from tachograph.annexes.watch.tui import keys
from tachograph.annexes.watch.tui.fleet import FleetScreen
from tachograph.annexes.watch.tui.fleet_table import COLUMNS
from tachograph.catalog.counters import COUNTER_NAMES, COUNTERS_BY_NAME
from tachograph.catalog.limits import LARGEST_OF_SLICE
from tui_screens import ByHand, lines_of

if TYPE_CHECKING:
    from tachograph.annexes.watch.live.snapshot import LiveSource, SourceInfo

SEED = 20261121
LIFE = 1000  # screens of one app; the fleet goes on from one to the next
HISTORY_S = 60.0
# a screen, of a process whose fleet has been through everything once: objects of Python, memory
GIVE_UP = 50  # failures
SIZES = (
    *((80, 24), (80, 24), (120, 40), (200, 60), (300, 100)),
    *((40, 10), (20, 5), (10, 3), (3, 2), (1, 1), (80, 1), (1, 50)),
)
OTHER_KEYS = (
    "tab",
    "shift+tab",
    "x",
    "ö",
    "f5",
    "delete",
    "ctrl+l",
    "ctrl+u",
    "ctrl+w",
    "end",
    "home",
    "界",
    "ctrl+a",
)
QUITS = {"q", "f10", "ctrl+c", "ctrl+q"}
WORDS = (
    *(
        *(column.name for column in COLUMNS),
        *COUNTER_NAMES[:12],
        *HOSTS,
        *JOBS,
        "n1:0",
        "n0",
        ":3",
        "n2:1.3",
        "node",
        "job",
        "user",
        "class",
        "health",
    ),
    *(
        "sm<20",
        "sm>",
        "user=",
        "job!=4711",
        "gpu=n*",
        "(",
        ")",
        "'",
        '"',
        "\\",
        "[",
        "]",
        "*",
        "=",
        "and",
        "or",
    ),
    *("0", "-1", "1e309", "nan", "inf", "5", "0.1", "1e-9", "-power"),
)
# column of the fleet's table: its counter, how the value is written
WRITTEN = {
    "util": ("gpu_util", "%"),
    "sm": ("sm_active", "%"),
    "tensor": ("tensor_active", "%"),
    "dram": ("dram_active", "%"),
    "temp": ("gpu_temp_c", "°"),
    "clock": ("sm_clock_mhz", ""),
}


@dataclass(slots=True)
class Outcome:
    """What came of the screens. cells: compared with the snapshot; failures: of each kind the
    first.
    """

    screens: int = 0
    cells: int = 0
    places: set[str] = field(default_factory=set)
    failures: dict[str, str] = field(default_factory=dict)

    def fail(self, what: str, detail: str = "") -> None:
        """Note a failure."""
        self.failures.setdefault(what, f"screen {self.screens}: {detail}")


def run(screens: int, *, seed: int = SEED, recorded: bytes = b"", life: int = LIFE) -> Outcome:
    """Draw so many screens, in one app after the other; return what came of it."""
    fleet, outcome = FaultyFleet(random.Random(seed), recorded=recorded), Outcome()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one would be written over the screen
        while outcome.screens < screens and len(outcome.failures) < GIVE_UP:
            until = min(screens, outcome.screens + life)
            asyncio.run(_live(fleet, _restricted(fleet), outcome, until=until))
    fleet.source.close()
    return outcome


def _restricted(fleet: FaultyFleet) -> LiveSource:
    """The source as `choose` hands it on: all GPUs, or those that somebody picked."""

    def pick(snapshot: Snapshot, about: SourceInfo) -> GpuSelection:
        return GpuSelection(tuple(range(0, len(snapshot.gpus), 2)), "every other one")

    sources: list[LiveSource] = [fleet.source, SelectedSource(fleet.source, pick)]
    return fleet.random.choice(sources)


async def _live(fleet: FaultyFleet, source: LiveSource, outcome: Outcome, *, until: int) -> None:
    """One app from start to end."""
    app = ByHand(
        source,
        interval_s=1.0,
        history_s=HISTORY_S,
        job=fleet.random.choice([None, None, "4711", "no such"]),
    )
    try:
        async with app.run_test(size=(80, 24)) as pilot:
            await _settle(pilot)
            while outcome.screens < until and app.is_running and not app._exit:
                await _act(pilot, fleet.random, outcome)
                fleet.go_on()
                app.poll()
                await _settle(pilot)
                if app._exception is not None or app._exit:
                    break
                outcome.screens += 1
                _check(app, outcome)
    except Exception as error:  # noqa: BLE001  what the app raises comes out here
        trace = traceback.extract_tb(error.__traceback__)
        place = next(
            (frame for frame in reversed(trace) if "tachograph" in frame.filename), trace[-1]
        )
        what = f"raised {type(error).__name__} in {Path(place.filename).name}:{place.name}"
        outcome.fail(what, "".join(traceback.format_exception(error))[-3000:])


async def _settle(pilot: Pilot[int]) -> None:
    """Wait until all messages were handled and all was drawn."""
    for _ in range(3):  # what is called after a refresh may request another one
        await pilot._wait_for_screen()
        with contextlib.suppress(ScreenStackError):  # the app was quit
            pilot.app.screen._on_timer_update()


# --- what a user does


async def _act(pilot: Pilot[int], random_: random.Random, outcome: Outcome) -> None:
    app = pilot.app
    assert isinstance(app, ByHand)
    for _ in range(random_.choice([0, 1, 1, 2, 4])):
        action = random_.choice([*["key"] * 5, *["open"] * 2, "typed", "typed", "resize", "back"])
        match action:
            case "key":
                _press(app, _key(random_))
            case "open":
                _press(app, random_.choice(["escape", "enter", "j", "question_mark"]))
            case "back":
                _press(app, "escape")
            case "typed":
                await _type(pilot, random_)
            case "resize":
                await pilot.resize_terminal(*random_.choice(SIZES))
        await _settle(pilot)
        if app._exit or app._exception is not None:
            return


def _key(random_: random.Random) -> str:
    key = random_.choice(
        [name for key in keys.KEYS for name in key.keys.split(",")] + [*OTHER_KEYS]
    )
    return "f" if key in QUITS and random_.random() < 0.97 else key


def _press(app: ByHand, key: str) -> None:
    event = events.Key(key, key if len(key) == 1 else None)
    event.set_sender(app)
    app.post_message(event)


async def _type(pilot: Pilot[int], random_: random.Random) -> None:
    """Write a line as people do: begin, letters, perhaps Tab, end or give up."""
    app = pilot.app
    assert isinstance(app, ByHand)
    _press(app, random_.choice(["slash", "f4"]))
    for letter in _line(random_)[:20]:
        event = events.Key(events.Key(letter, letter).key, letter)
        event.set_sender(app)
        app.post_message(event)
        if random_.random() < 0.1:
            _press(app, random_.choice(["tab", "backspace", "left", "ctrl+u"]))
    await pilot._wait_for_screen()
    _press(app, random_.choice(["enter", "enter", "escape"]))
    await pilot._wait_for_screen()
    _press(app, "escape")


def _line(random_: random.Random) -> str:
    """A filter that may be one."""
    return " ".join(random_.choices(WORDS, k=random_.choice([0, 1, 1, 2, 3])))


# --- what must hold


def _check(app: ByHand, outcome: Outcome) -> None:
    lines = lines_of(app)
    outcome.places.add(app.screen_name)
    if app.failure is not None and app.failure.detail:
        outcome.fail(f"the feed raised {app.failure.problem.what[:80]}", app.failure.detail[-3000:])
    for line in lines:
        if "Traceback" in line or "most recent call" in line:
            outcome.fail("a traceback on the screen", line)
        if not line.isprintable():
            outcome.fail(f"something that is not printable on {app.screen_name}", repr(line))
    for strip in app.screen._compositor.render_strips():
        if strip.cell_length > app.size.width:
            outcome.fail(f"a line that is too long on {app.screen_name}", repr(strip.text))
    if app.view is None:
        return
    _check_ranges(app.view.snapshot, outcome)
    if isinstance(app.visible_screen, FleetScreen):
        for what, detail in _wrong_cells(app.visible_screen, app.view.snapshot, outcome):
            outcome.fail(what, detail)


def _check_ranges(snapshot: Snapshot, outcome: Outcome) -> None:
    for name, column in snapshot.values.items():
        counter = COUNTERS_BY_NAME[name]
        wrong = []
        for gpu, value in zip(snapshot.gpus, column.tolist(), strict=True):
            # Normalised by the profile of the slice.
            of_slice = gpu.mig is not None and counter.unit == "fraction"
            high = LARGEST_OF_SLICE if of_slice else counter.high
            if not math.isnan(value) and not counter.low <= value <= high:
                wrong.append(value)
        if wrong:
            outcome.fail(f"{name} out of its range", str(wrong[:3]))


def _wrong_cells(
    fleet: FleetScreen, snapshot: Snapshot, outcome: Outcome
) -> Iterator[tuple[str, str]]:
    """Cells of the table that do not say what the snapshot does."""
    if not fleet._places:
        return
    top = int(fleet.scroll_offset.y)
    for y in range(fleet._titles, len(fleet.lines)):
        place = top + y - fleet._titles
        line = fleet._lines[place] if place < len(fleet._lines) else None
        if not isinstance(line, int):
            continue
        for cell in fleet._places:
            if cell.column.name not in WRITTEN:
                continue
            shown = fleet.lines[y].crop(cell.at, cell.at + cell.width).text.strip()
            counter, unit = WRITTEN[cell.column.name]
            value = snapshot.value(counter, line)
            wanted = _written(value, unit)
            outcome.cells += 1
            if shown != wanted and fleet.lines[y].cell_length >= cell.at + cell.width:
                yield (
                    f"{cell.column.name} differs from the snapshot",
                    f"{shown!r} for {value!r} in {fleet.lines[y].text!r}",
                )


def _written(value: float | None, unit: str) -> str:
    """A value as the fleet's table writes it, by other means than those of the table."""
    if value is None:
        return "-"
    return "{:.0f}{}".format(value * 100 if unit == "%" else value, unit)


def main() -> int:
    """Run, print what failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--screens", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    outcome = run(arguments.screens, seed=arguments.seed)
    for what, detail in outcome.failures.items():
        sys.stdout.write(f"{what}: {detail}\n")
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
