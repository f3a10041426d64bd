"""Curves of dots, bars and small histories, against the same in plain Python."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.report.lines import bar
from tachograph.tui import chart

_NAN = math.nan
# dots of a character by their number in Unicode's drawing: 1 2 3 7 left, 4 5 6 8 right
_LEFT, _RIGHT = (1, 2, 3, 7), (4, 5, 6, 8)


def _place(value: float, low: float, high: float, count: int) -> int:
    exact = (value - low) / (high - low) * (count - 1)
    return min(count - 1, max(0, math.floor(exact + 0.5)))


def _half_up(value: Fraction) -> int:
    return math.floor(value + Fraction(1, 2))


def expected(
    times: list[float], values: list[float], *, width: int, height: int, low: float, high: float, gap: float
) -> set[tuple[int, int]]:
    """Dots (row, column) that a curve covers: point by point, column by column."""
    found: set[tuple[int, int]] = set()
    columns, count = 2 * width, 4 * height
    before: tuple[float, int, int] | None = None
    for t, value in zip(times, values, strict=True):
        if math.isnan(value):
            before = None
            continue
        x = _place(t, times[0], times[-1], columns) if times[-1] > times[0] else 0
        y = count - 1 - _place(value, low, high, count)
        found.add((y, x))
        if before is not None and t - before[0] <= gap:
            x0, y0 = before[1], before[2]
            steps = max(1, x - x0)
            row = y0
            for step in range(1, steps + 1):
                to = y0 + _half_up(Fraction((y - y0) * step, steps))
                column = x0 + step if x > x0 else x
                while row != to:
                    row += 1 if to > row else -1
                    found.add((row, column))
                found.add((to, column))
        before = (t, x, y)
    return found


def seen(text: list[str]) -> set[tuple[int, int]]:
    """Dots (row, column) that characters show."""
    found = set()
    for line, characters in enumerate(text):
        for place, character in enumerate(characters):
            bits = 0 if character == " " else ord(character) - 0x2800
            for column, numbers in enumerate((_LEFT, _RIGHT)):
                for row, number in enumerate(numbers):
                    if bits & 1 << (number - 1):
                        found.add((4 * line + row, 2 * place + column))
    return found


@given(
    st.lists(st.one_of(st.just(_NAN), st.floats(-2, 12)), min_size=1, max_size=40),
    st.integers(1, 12),
    st.integers(1, 6),
    st.data(),
)
def test_a_curve_covers_the_dots_of_its_points_and_of_what_joins_them(
    values: list[float], width: int, height: int, data: st.DataObject
) -> None:
    steps = data.draw(st.lists(st.integers(1, 5), min_size=len(values), max_size=len(values)))
    times = np.cumsum(steps).astype(np.float64)
    drawn = chart.braille_rows(chart.curve(times, np.array(values), width=width, height=height, low=0, high=10, gap=3))
    assert [len(line) for line in drawn] == [width] * height
    wanted = expected(times.tolist(), values, width=width, height=height, low=0, high=10, gap=3)
    assert seen(drawn) == wanted


def test_a_gap_stays_a_gap() -> None:
    times, values = np.arange(40.0), np.full(40, 0.5)
    values[10:20] = _NAN
    cells = chart.curve(times, values, width=20, height=2, low=0, high=1)
    empty = {column for column in range(20) if not cells[:, column].any()}
    assert empty == set(range(5, 10))  # dots 10 .. 19
    assert not chart.curve(times, np.full(40, _NAN), width=20, height=2, low=0, high=1).any()


def test_what_lies_before_the_left_edge_is_not_drawn() -> None:
    times, values = np.array([0.0, 100.0]), np.array([1.0, 0.0])
    drawn = seen(chart.braille_rows(chart.curve(times, values, width=5, height=1, low=0, high=1, begin=50, end=100)))
    assert drawn == {(3, 9)}  # a single dot: not measured at the edge


@pytest.mark.parametrize("size", [(0, 3), (3, 0), (-1, 2)])
def test_no_room_is_no_curve(size: tuple[int, int]) -> None:
    cells = chart.curve(np.arange(3.0), np.arange(3.0), width=size[0], height=size[1], low=0, high=1)
    assert cells.size == 0


def test_no_times_and_no_span_are_no_trouble() -> None:
    nothing = np.empty(0)
    assert not chart.curve(nothing, nothing, width=3, height=2, low=0, high=1).any()
    one = chart.braille_rows(chart.curve(np.array([5.0]), np.array([3.0]), width=3, height=1, low=3, high=3))
    assert seen(one) == {(3, 0)}


@given(st.lists(st.one_of(st.just(_NAN), st.floats(0, 1)), max_size=50), st.integers(1, 20), st.integers(1, 7))
def test_means_are_those_of_whole_spans(values: list[float], width: int, each: int) -> None:
    times = [1000.0 + place for place in range(len(values))]
    spans: dict[int, list[float]] = {}
    for t, value in zip(times, values, strict=True):
        if not math.isnan(value):
            spans.setdefault(int(t // each), []).append(value)
    last = int(times[-1] // each) if times else 0
    wanted = [spans.get(last - width + 1 + place, []) for place in range(width)]
    found = chart.means(np.array(times), np.array(values), width=width, each=each).tolist()
    assert len(found) == width
    for got, members in zip(found, wanted, strict=True):
        assert math.isnan(got) if not members else got == pytest.approx(math.fsum(members) / len(members))


def test_what_was_shown_of_the_past_stays() -> None:
    times, values = np.arange(30.0), np.random.default_rng(1).random(30)
    early = chart.spark(times[:25], values[:25], width=4, each=5, low=0, high=1)
    later = chart.spark(times, values, width=4, each=5, low=0, high=1)
    assert early[1:] == later[:3]


@given(st.floats(0, 1), st.integers(1, 40))
def test_a_bar_is_as_long_as_its_value(value: float, width: int) -> None:
    drawn = bar(value, width, empty=" ")
    eighths = sum(_eighths(character) for character in drawn)
    assert len(drawn) == width
    assert eighths == max(round(value * width * 8), int(value > 0))


def _eighths(character: str) -> int:
    return {" ": 0, "█": 8}.get(character) or "▏▎▍▌▋▊▉".find(character) + 1
