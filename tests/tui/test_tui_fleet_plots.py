"""Plots over time below the table of a small fleet: where they fit, in the order of the lines."""

from __future__ import annotations

import math
import re
import statistics

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from tachograph.annexes.watch.tui.counter_rows import span
from tachograph.annexes.watch.tui.fleet_plots import FleetActivity, fleet_plots
from tachograph.annexes.watch.tui.page import quantity
from tachograph.catalog.arrays import Floats, Singles
from tachograph.report.lines import LEVELS
from tui_screens import screen


def _plotted(lines: list[str]) -> list[str]:
    """Names in the titles of plots, in order."""
    (heading,) = [index for index, line in enumerate(lines) if "of the last" in line]
    below = " ".join(lines[heading + 1 :])
    return [word for word in below.split() if word.startswith("sim001:")]


def test_a_large_screen_with_eight_gpus_is_filled(snapshot: SnapshotAssertion) -> None:
    lines = screen(size=(160, 50), polls=60)
    assert len(lines) == 50
    assert all(len(line) <= 160 for line in lines)
    assert _plotted(lines) == [f"sim001:{gpu}" for gpu in range(8)]
    blank = sum(not line.strip() for line in lines)
    assert blank < 15  # idle GPUs have low columns
    assert "\n".join(lines) == snapshot


@pytest.mark.parametrize(
    ("size", "gpus", "keys"),
    [((80, 24), 8, ()), ((160, 14), 8, ()), ((160, 50), 64, ()), ((160, 50), 8, ("g",))],
    ids=["narrow", "low", "many", "grouped"],
)
def test_without_room_there_are_no_plots(
    size: tuple[int, int], gpus: int, keys: tuple[str, ...]
) -> None:
    assert "of the last" not in " ".join(screen(*keys, size=size, gpus=gpus, polls=10))


def test_plots_follow_filter_and_order() -> None:
    reverse = screen("r", size=(160, 50), polls=10)
    assert _plotted(reverse) == [f"sim001:{gpu}" for gpu in reversed(range(8))]


@pytest.mark.parametrize("height", range(6, 50))
@pytest.mark.parametrize("gpus", [1, 3, 8, 31])
def test_plots_take_no_more_lines_than_there_are(gpus: int, height: int) -> None:
    names = tuple(f"n\x1b[2J{gpu}" for gpu in range(gpus))
    values = np.full((5, gpus), np.nan, np.float32)
    activity = FleetActivity("gpu_util", np.arange(5.0), values, names, np.zeros(gpus, np.uint8))
    lines = fleet_plots(activity, range(gpus), width=160, height=height)
    assert 3 <= len(lines) <= height
    text = "".join(part for line in lines for part, _ in line)
    assert "\x1b" not in text
    assert max(sum(len(part) for part, _ in line) for line in lines) <= 160


@st.composite
def histories(draw: st.DrawFn) -> tuple[Floats, Singles]:
    """Times with gaps, and activity 0..1 of some GPUs, values missing here and there."""
    steps = draw(st.lists(st.sampled_from([1.0, 1.0, 1.0, 2.0, 45.0]), min_size=0, max_size=90))
    times = 1e9 + np.concatenate([[0.0], np.cumsum(steps)])
    gpus = draw(st.integers(1, 9))
    level = st.one_of(st.just(float("nan")), st.sampled_from([0.0, 1.0]), st.floats(0, 1, width=32))
    cells = draw(st.lists(level, min_size=1, max_size=40))
    repeated = np.resize(np.array(cells, np.float32), (len(times), gpus))
    return times, repeated


def drawn_fleet(
    activity: FleetActivity, width: int, height: int
) -> dict[str, tuple[float, Floats]]:
    """Values read off the drawn blocks, by GPU, and what a cell is: NaN where nothing is drawn."""
    lines = _drawn_lines(activity, width, height)[2:]
    decoded: dict[str, tuple[float, Floats]] = {}
    titles = [index for index, line in enumerate(lines) if re.match(r"n1:\d+ ", line)]
    for title, end in zip(titles, [*titles[1:], len(lines)], strict=True):
        starts = [found.start() for found in re.finditer(r"n1:\d+ ", lines[title])]
        columns = len(starts)
        each_width = starts[1] - 2 if columns > 1 else len(lines[title])
        for start in starts:
            name = lines[title][start:].split()[0]
            bars = [line[start : start + each_width] for line in lines[title + 1 : end]]
            eighths = np.array([[f" {LEVELS}".index(mark) for mark in bar] for bar in bars])
            below = np.minimum.accumulate(np.flip(eighths, 0) == len(LEVELS), axis=0)
            # Above a block that is not full there is none.
            assert not (np.flip(eighths, 0)[1:] > 0)[~below[:-1]].any()
            filled = eighths.sum(0)
            cell = 1 / (len(LEVELS) * len(bars))  # an eighth of a line
            decoded[name] = cell, np.where(filled > 0, filled * cell, np.nan)
    return decoded


def _drawn_lines(activity: FleetActivity, width: int, height: int) -> list[str]:
    lines = fleet_plots(activity, range(len(activity.names)), width=width, height=height)
    return ["".join(part for part, _ in line) for line in lines]


@settings(max_examples=settings().max_examples // 2)
@given(history=histories(), width=st.integers(100, 170), height=st.integers(8, 50))
@example(history=(np.array([1e9]), np.array([[0.5, np.nan]], np.float32)), width=120, height=20)
def test_every_block_is_the_mean_of_its_seconds(
    history: tuple[Floats, Singles], width: int, height: int
) -> None:
    """Read back from the screen each value is right within one cell, from the newest at the right
    to the oldest, and nothing is drawn where nothing was measured.
    """
    times, values = history
    gpus = values.shape[1]
    names = tuple(f"n1:{gpu}" for gpu in range(gpus))
    activity = FleetActivity("gpu_util", times, values, names, np.zeros(gpus, np.uint8))
    heading = _drawn_lines(activity, width, height)[1]
    decoded = drawn_fleet(activity, width, height)
    assert decoded
    assert list(decoded) == list(names[: len(decoded)])
    for gpu, (cell, drawn) in enumerate(decoded.values()):
        seconds = span(times, len(drawn))
        assert heading == f"gpu_util of the last {quantity(len(drawn) * seconds, 's')}, 0 to 100 %"
        last = math.floor(times[-1] / seconds)
        buckets: dict[int, list[float]] = {}
        for t, value in zip(times.tolist(), values[:, gpu].tolist(), strict=True):
            if not math.isnan(value):
                buckets.setdefault(len(drawn) - 1 - (last - math.floor(t / seconds)), []).append(
                    value
                )
        assert min(buckets, default=0) >= 0
        known = {column for column, value in enumerate(drawn) if not math.isnan(value)}
        assert known == set(buckets)
        for column, measured in buckets.items():
            assert abs(drawn[column] - statistics.fmean(measured)) <= cell
