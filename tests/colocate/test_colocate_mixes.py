"""Mixes of kernels, and what DCGM's means of a job tell: against the same in plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tachograph.annexes.share.demand import CorunBounds, Demand
from tachograph.annexes.share.mixes import (
    bounds_of_mixes,
    busy_of,
    mix,
    of_means,
)


def demand(name: str = "k", **given: float | None) -> Demand:
    cycles = {
        pipe: share for pipe in ("issue", "fma") if (share := given.pop(pipe, None)) is not None
    }
    return Demand(name=name, cycles=cycles, **given)  # type: ignore[arg-type]


def test_what_one_member_does_not_report_is_not_known_of_the_mean() -> None:
    found = mix([demand(fma=0.5, dram=0.4, hbm_bytes=1e9), demand(issue=0.3)], [1, 1], name="m")
    assert dict(found.mean.cycles) == {}
    assert (found.mean.dram, found.mean.hbm_bytes, found.highest.hbm_bytes) == (None, 1e9, 1e9)
    assert dict(found.highest.cycles) == {"issue": 0.3, "fma": 0.5}
    assert found.highest.dram == 0.4


@pytest.mark.parametrize(("in_turn", "expected"), [(0.0, 1.9), (1.0, 1.1), (0.5, 1.5)])
def test_in_turns_one_meets_launches_and_beside_each_other_time(
    in_turn: float, expected: float
) -> None:
    """Nine of ten launches are short and slow nothing, but nine tenths of the time one is long."""

    def law(rows: list[Demand], columns: list[Demand]) -> CorunBounds:
        slowdown = np.array([[2.0 if one.name == "long" else 1.0 for one in columns]])
        binding = np.zeros((1, 2), np.uint8)
        return CorunBounds(slowdown, slowdown, slowdown, binding, ("x",), np.full((1, 2), in_turn))

    one = mix([demand("a")], [1.0], name="one")
    other = mix(
        [demand("long", launch_s=0.081), demand("short", launch_s=0.001)], [0.9, 0.1], name="other"
    )
    found = bounds_of_mixes([one], [other], law)
    assert found.slowdown[0, 0] == pytest.approx(expected)
    unknown = mix([demand("long"), demand("short", launch_s=0.001)], [0.9, 0.1], name="other")
    assert bounds_of_mixes([one], [unknown], law).slowdown[0, 0] == pytest.approx(1.9)


def test_nothing_measured_is_nothing_known() -> None:
    found = of_means({})
    numbers = (found.dram, found.sm_share, found.hbm_bytes, found.launch_s)
    assert (dict(found.cycles), numbers) == ({}, (None, None, None, None))
    assert busy_of({}) is None
    assert of_means({"dram_active_mean": 0.3}).dram is None  # of which time is not known
    assert busy_of({"gr_engine_active_mean": math.nan, "gpu_util_mean": 0.2}) == 0.2
