"""Sampling intervals and the time that samples stand for, from loops over distances."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from tachograph.pipeline.kernel import BACK, CHANGED, LIKE, STEADY
from tachograph.pipeline.sampling import MOSTLY, Sampling

Piece = tuple[int, float]  # its first row, and its sampling interval (us)


def quarter(distance: int) -> int:
    """The quarter of an octave in which a distance is."""
    mantissa, octave = math.frexp(distance)
    return octave * 4 + int(mantissa * 8)


def usual(distances: list[int]) -> list[int]:
    """The distances in the median's quarter octave and the two beside it."""
    quarters = sorted(map(quarter, distances))
    middle = quarters[(len(quarters) - 1) // 2]
    return [one for one in distances if abs(quarter(one) - middle) <= 1]


def near(one: float, other: float) -> bool:
    return one <= other * CHANGED and other <= one * CHANGED


def pieces(distances: list[int]) -> list[Piece]:
    """Runs of like distances that are long, or short ones of the interval that was there before."""
    runs: list[tuple[int, list[int]]] = []
    for row, distance in enumerate(distances):
        n, total = (len(runs[-1][1]), sum(runs[-1][1])) if runs else (0, 0)
        if n and distance * n <= total * LIKE and total <= distance * n * LIKE:
            runs[-1][1].append(distance)
        else:
            runs.append((row, [distance]))
    joined: list[tuple[int, list[int]]] = []
    for row, run in runs:
        mean = sum(run) / len(run)
        means = [sum(one) / len(one) for _, one in joined]
        again = len(run) >= BACK and len(means) > 1 and near(mean, means[-2])
        if len(run) < STEADY and not again:
            continue
        if not means or not near(mean, means[-1]):
            joined.append((row, []))
        joined[-1][1].extend(run)
    return [(row if number else 0, sum(one) / len(one)) for number, (row, one) in enumerate(joined)]


def stands_for(distances: list[int], of_pieces: list[Piece]) -> list[float]:
    """The time of each sample."""
    times: list[float] = []
    ends = [row for row, _ in of_pieces[1:]] + [len(distances) + 1]
    for (begin, every), end in zip(of_pieces, ends, strict=True):
        late = 0.0
        for row in range(begin, end):
            distance = distances[row] if row < len(distances) else every
            ends_piece = row + 1 == end <= len(distances)
            is_short = ends_piece or distance * CHANGED < every
            times.append(min(every, distance + late) if is_short else every)
            late = min(max(distance - every, 0.0), every)
    return times


def made(draw: random.Random) -> list[int]:
    """Distances in stretches about as long, and about as different, as matters."""
    found: list[int] = []
    for _ in range(draw.randrange(6)):
        every = draw.choice((140, 200, 280, 300, 420, 600, 1000))
        count = draw.choice((1, BACK - 1, BACK, STEADY - 1, STEADY, STEADY, 3 * STEADY))
        found += draw.choices(
            (every, every + 7, every * 3), (8, 2, draw.choice((0, 0, 1))), k=count
        )
    return found


@pytest.mark.parametrize("seed", range(4))
def test_intervals_and_times_are_those_of_plain_loops(seed: int) -> None:
    draw = random.Random(seed)
    stripes = [made(draw) for _ in range(60)] + [[200] * 499 + [400], [200] * 998 + [400]]
    t = [time for distances in stripes for time in np.cumsum([50, *distances])]
    first = [0, *np.cumsum([len(distances) + 1 for distances in stripes])]
    sampling = Sampling.of(np.array(t, np.int64), np.array(first, np.int64))
    for number, (distances, begin) in enumerate(zip(stripes, first[:-1], strict=True)):
        kept = usual(distances) if distances else []
        interval = sum(kept) / len(kept) if kept else math.nan
        shown = interval if len(kept) >= STEADY else math.nan
        told = (sampling.interval_us[number], sampling.steady_us[number])
        assert told == pytest.approx((interval, shown), nan_ok=True)
        whole = sum(kept) >= MOSTLY * sum(distances) and len(kept) >= MOSTLY * len(distances)
        found = [] if whole else pieces(distances)
        rows, intervals = sampling.pieces.get(number, (np.array([]), np.array([])))
        expected = found if len(found) > 1 else []
        assert [int(row) - begin for row in rows] == [row for row, _ in expected]
        assert intervals.tolist() == pytest.approx([every for _, every in expected])
        times = [interval] * (len(distances) + 1)
        if expected:
            times = stands_for(distances, expected)
        elif not whole and min(distances) * CHANGED < interval:
            times = stands_for(distances, [(0, interval)])
        ranges = [sorted(draw.sample(range(len(times) + 1), 2)) for _ in range(9)]
        low, high = (np.array(column) for column in zip(*ranges, strict=True))
        sampled = sampling.sampled_us(np.full(9, number), begin + low, begin + high)
        sums = [sum(times[a:b]) for a, b in ranges]
        assert sampled.tolist() == pytest.approx(sums, nan_ok=True)
