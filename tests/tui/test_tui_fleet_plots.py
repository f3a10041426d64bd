"""Plots over time below the table of a small fleet: where they fit, in the order of the lines."""

from __future__ import annotations

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion

from tachograph.annexes.watch.tui.fleet_plots import FleetActivity, fleet_plots
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
