"""Spatial imbalance of a live job, against the formula in plain Python; which GPUs are far from
the others.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.annexes.watch.tui.job_table import never_used, spread

_NAN = math.nan
_ACTIVITY = st.lists(
    st.lists(st.one_of(st.just(_NAN), st.just(0.0), st.floats(0, 1)), min_size=4, max_size=4),
    min_size=1,
    max_size=40,
)


def by_hand(
    times: list[float], rows: list[list[float]], anchor: float
) -> tuple[float | None, list[float]]:
    """1 - sum / (GPUs x largest) per whole minute, its mean; and the lag of each GPU."""
    reported = [gpu for gpu in range(4) if any(not math.isnan(row[gpu]) for row in rows)]
    windows: dict[int, list[list[float]]] = {}
    for t, row in zip(times, rows, strict=True):
        windows.setdefault(math.floor((t - anchor) / 60), []).append(row)
    last = max(windows)
    whole = {
        w: members for w, members in windows.items() if w < last and anchor + 60 * w >= times[0]
    }
    imbalances: list[float] = []
    lags: list[list[float]] = []
    for members in (whole or {last: windows[last]}).values():
        sums = [
            math.fsum(row[gpu] for row in members if not math.isnan(row[gpu])) for gpu in reported
        ]
        if not sums or max(sums) <= 0:
            continue
        imbalances.append(1 - math.fsum(sums) / (len(reported) * max(sums)))
        lags.append([1 - one / max(sums) for one in sums])
    if not imbalances:
        return None, [_NAN] * 4
    means = dict(zip(reported, np.mean(lags, axis=0).tolist(), strict=True))
    return (math.fsum(imbalances) / len(imbalances) if len(reported) > 1 else None), [
        means.get(gpu, _NAN) for gpu in range(4)
    ]


@given(_ACTIVITY, st.floats(0, 59))
def test_imbalance_is_that_of_the_formula(rows: list[list[float]], anchor: float) -> None:
    times = [1000.0 + 10 * place for place in range(len(rows))]
    found = spread(np.array(times), np.array(rows), anchor=anchor)
    imbalance, lags = by_hand(times, rows, anchor)
    if imbalance is None:
        assert found.imbalance is None
    else:
        assert found.imbalance == pytest.approx(imbalance)
    assert found.lags.tolist() == pytest.approx(lags, nan_ok=True)


def test_without_values_and_without_gpus() -> None:
    for activity in (np.full((10, 2), _NAN), np.zeros((0, 2)), np.zeros((10, 0))):
        found = spread(np.arange(float(len(activity))), activity, anchor=0.0)
        assert found.imbalance is None
        assert not found.behind.any()
        assert not never_used(activity).any()


def test_noise_makes_no_straggler() -> None:
    noise = np.random.default_rng(1)
    resting = np.clip(noise.normal(0.02, 0.02, (180, 8)), 0, 1)
    resting[:, 3] = 0.0
    found = spread(np.arange(180.0), resting, anchor=0.0)
    assert found.imbalance is not None
    assert not found.behind.any()
    assert not found.ahead.any()


def test_before_a_window_is_over_nobody_is_marked() -> None:
    activity = np.full((50, 4), 0.9)
    activity[:, 2] = 0.1
    early = spread(np.arange(50.0), activity, anchor=0.0)
    assert early.imbalance == pytest.approx(1 - 2.8 / 3.6)
    assert not early.behind.any()
    assert spread(np.arange(10.0, 60.0), activity, anchor=10.0 - 60).behind.tolist() == [False] * 4
    assert spread(np.arange(0.0, 100.0, 2.0), activity, anchor=0.0).behind.tolist() == [
        False,
        False,
        True,
        False,
    ]


def test_an_incomplete_window_is_shown() -> None:
    activity = np.full((130, 2), 0.5)
    assert spread(np.arange(11.0), activity[:11], anchor=0.0).growing_s == 10
    assert spread(np.arange(130.0), activity, anchor=0.0).growing_s is None
    assert spread(np.empty(0), activity[:0], anchor=0.0).growing_s is None
