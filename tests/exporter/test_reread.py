"""A value that is read again is no new sample; a new reading of the GPU is one, even with the
same values.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tachograph.sources.series import SeriesRereads

NAN = float("nan")


def fresh(
    rereads: SeriesRereads,
    after_s: float,
    value: float = 5.0,
    *,
    gpu: int = 0,
    column: str = "gpu_util",
) -> bool:
    """Whether one scrape of a GPU is a new sample."""
    mask = rereads.fresh(
        ("n1", gpu, None), np.array([round(after_s * 1e6)]), {column: np.array([value])}
    )
    return bool(mask[0])


def test_one_value_that_changed_makes_a_sample_of_its_gpu_only() -> None:
    rereads = SeriesRereads(30)
    assert [fresh(rereads, 0, gpu=0), fresh(rereads, 0, gpu=1), fresh(rereads, 0, NAN, gpu=2)] == [
        True,
        True,
        True,
    ]
    assert [
        fresh(rereads, 10, gpu=0),
        fresh(rereads, 10, 6.0, gpu=1),
        fresh(rereads, 10, NAN, gpu=2),
    ] == [
        False,
        True,
        False,
    ]


def test_a_counter_that_comes_or_goes_is_a_change() -> None:
    rereads = SeriesRereads(30)
    assert fresh(rereads, 0)
    assert fresh(rereads, 5, column="power_w")
    assert fresh(rereads, 10, NAN)


def test_a_clock_that_was_set_back_loses_nothing() -> None:
    rereads = SeriesRereads(30)
    assert [fresh(rereads, after_s) for after_s in (1000, 400, 410)] == [True, True, False]


@given(st.lists(st.tuples(st.floats(0.5, 40), st.sampled_from([1.0, 2.0, NAN])), max_size=20))
def test_it_is_what_a_plain_reading_keeps(steps: list[tuple[float, float]]) -> None:
    rereads = SeriesRereads(30)
    t_us = 0
    last: tuple[int, str] | None = None
    for step, value in steps:
        t_us += round(step * 1e6)
        new = last is None or repr(value) != last[1] or t_us - last[0] >= 27_000_000
        assert fresh(rereads, t_us / 1e6, value) == new
        last = (t_us, repr(value)) if new else last
