"""Replays of many GPUs at once against `remember` of each."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from one_gpu import EventMemory, remember
from tachograph.annexes.watch.live.monitor import RecentErrors

COUNT = st.one_of(st.none(), st.integers(0, 4))
LOOK = st.tuples(
    st.sampled_from([0.0, 1.0, 1.0, 3.0, 5.0, 6.0, -2.0]), st.lists(COUNT, min_size=3, max_size=3)
)


@given(st.lists(LOOK, min_size=1, max_size=30))
def test_all_at_once_are_as_one_by_one(polls: list[tuple[float, list[int | None]]]) -> None:
    replays, memories, t = RecentErrors(5.0), [EventMemory()] * 3, 50.0
    replays.rearrange(np.full(3, -1))
    for passed, counts in polls:
        t += passed
        memories = [
            remember(memory, t, count, keep_s=5.0)
            for memory, count in zip(memories, counts, strict=True)
        ]
        found = replays.step(
            t, np.array([math.nan if count is None else count for count in counts], float)
        )
        assert [None if math.isnan(one) else one for one in found.tolist()] == [
            one.replays for one in memories
        ]


def test_other_gpus_keep_what_is_theirs() -> None:
    replays = RecentErrors(100.0)
    replays.rearrange(np.array([-1, -1]))
    replays.step(0, np.array([1.0, 5.0]))
    assert replays.step(1, np.array([1.0, 8.0])).tolist() == [0.0, 3.0]
    replays.rearrange(np.array([1, -1, 0]))
    found = replays.step(2, np.array([8.0, 7.0, 2.0]))
    assert (found[0], math.isnan(found[1]), found[2]) == (3.0, True, 1.0)
