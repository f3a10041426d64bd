"""When a source is polled again: on the grid, later after failures."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tachograph.collect.readers import PollGrid, retry_s

seconds = st.floats(0.01, 1e5)


@given(start=st.floats(0, 1e6), every_s=seconds, late=st.floats(0, 1e7))
def test_the_next_instant_is_the_first_of_the_grid_to_come(
    start: float, every_s: float, late: float
) -> None:
    now = start + late
    instant = PollGrid(start, every_s).after(now)
    assert now < instant <= now + every_s * (1 + 1e-6) + 1e-6
    steps = (instant - start) / every_s
    assert abs(steps - round(steps)) < 1e-3


@given(every_s=seconds)
def test_failures_double_the_wait_up_to_ten_intervals(every_s: float) -> None:
    waits = [retry_s(failures, every_s=every_s) for failures in range(1, 40)]
    assert waits[0] == min(5.0, every_s)
    assert waits == sorted(waits)
    assert waits[-1] == 10 * every_s
    assert all(later == min(2 * wait, 10 * every_s) for wait, later in pairwise(waits))
