"""Mixes of kernels, and what DCGM's means of a job tell: against the same in plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
from colocate_jobs import job

from tachograph.annexes.share.capacity import gpu_of_device
from tachograph.annexes.share.demand import NOTHING, Calibration, Demand
from tachograph.annexes.share.mixes import (
    CorunBounds,
    bounds_of_mixes,
    busy_of,
    corun_bounds,
    mix,
    of_means,
    worst_kernels,
)
from tachograph.catalog.config import InterferenceOptions
from tachograph.catalog.devices import DEVICES_BY_NAME


def demand(name: str = "k", **given: float | None) -> Demand:
    cycles = {
        pipe: share for pipe in ("issue", "fma") if (share := given.pop(pipe, None)) is not None
    }
    return Demand(name=name, cycles=cycles, **given)  # type: ignore[arg-type]


def test_a_mix_is_weighted_by_time_and_keeps_the_worst_phase() -> None:
    found = mix(
        [demand("a", fma=0.9, dram=0.1), demand("b", fma=0.1, dram=0.5)],
        [1.0, 3.0],
        name="both",
    )
    assert [share for share, _ in found.members] == [0.25, 0.75]
    assert found.mean.cycles["fma"] == pytest.approx(0.25 * 0.9 + 0.75 * 0.1)
    assert found.mean.dram == pytest.approx(0.25 * 0.1 + 0.75 * 0.5)
    assert (found.highest.cycles["fma"], found.highest.dram) == (0.9, 0.5)
    assert (found.mean.name, found.highest.name) == ("both", "both")


def test_what_one_member_does_not_report_is_not_known_of_the_mean() -> None:
    found = mix([demand(fma=0.5, dram=0.4, hbm_bytes=1e9), demand(issue=0.3)], [1, 1], name="m")
    assert dict(found.mean.cycles) == {}
    assert (found.mean.dram, found.mean.hbm_bytes, found.highest.hbm_bytes) == (None, 1e9, 1e9)
    assert dict(found.highest.cycles) == {"issue": 0.3, "fma": 0.5}
    assert found.highest.dram == 0.4


def test_two_mixes_are_expected_to_meet_by_their_shares() -> None:
    table = {("a", "c"): 1.0, ("a", "d"): 2.0, ("b", "c"): 1.5, ("b", "d"): 3.0}

    def law(rows: list[Demand], columns: list[Demand]) -> CorunBounds:
        slowdown = np.array([[table[row.name, column.name] for column in columns] for row in rows])
        binding = np.array([[NOTHING, 0], [1, 0]], np.uint8)
        low, in_turn = np.ones((2, 2)), np.zeros((2, 2))
        return CorunBounds(slowdown, low, 2 * slowdown, binding, ("dram", "l2"), in_turn)

    one = mix([demand("a"), demand("b")], [1.0, 3.0], name="one")
    other = mix([demand("c"), demand("d")], [1.0, 1.0], name="other")
    found = bounds_of_mixes([one], [other], law)
    expected = 0.25 * 0.5 * (1.0 + 2.0) + 0.75 * 0.5 * (1.5 + 3.0)
    assert found.slowdown.tolist() == [[pytest.approx(expected)]]
    assert found.high.tolist() == [[pytest.approx(2 * expected)]]
    assert found.low.tolist() == [[pytest.approx(1.0)]]
    assert found.resources[found.binding[0, 0]] == "dram"  # loses 0.875 of 1.0625
    assert worst_kernels(one, other, law) == ("b", "d", 6.0)


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


def test_the_estimator_is_called_in_one_place_and_its_interval_holds_turns_where_unsure() -> None:
    gpu, settings = gpu_of_device(DEVICES_BY_NAME["A100 SXM 80GB"]), InterferenceOptions()
    unknown, known = Demand(name="u"), demand("k", issue=0.2, fma=0.2)
    found = corun_bounds(
        [unknown, known], [known], gpu=gpu, calibration=Calibration(), settings=settings
    )
    assert (found.low <= found.slowdown).all()
    assert (found.slowdown <= found.high).all()
    assert (found.low[0, 0], found.slowdown[0, 0]) == (1.0, pytest.approx(2**0.5))
    assert found.high.min() >= 2.0


def test_means_become_what_is_requested_while_busy() -> None:
    row = job(
        1,
        gr_engine_active_mean=0.5,
        sm_active_mean=0.25,
        dram_active_mean=0.1,
        fp64_active_mean=0.05,
    )
    found = of_means(row)
    assert found.dram == pytest.approx(0.1 / 0.5)
    assert found.sm_share == pytest.approx(0.25 / 0.5)
    assert found.cycles["fp64"] == pytest.approx(0.05 / 0.25)
    assert found.cycles["fma"] == pytest.approx(0.08 / 0.25)
    assert found.hbm_bytes == 10240 * 2**20
    assert "issue" not in found.cycles
    assert (found.irregular, found.l2_hit, found.footprint) == (None, None, None)


def test_nothing_measured_is_nothing_known() -> None:
    found = of_means({})
    numbers = (found.dram, found.sm_share, found.hbm_bytes, found.launch_s)
    assert (dict(found.cycles), numbers) == ({}, (None, None, None, None))
    assert busy_of({}) is None
    assert of_means({"dram_active_mean": 0.3}).dram is None  # of which time is not known
    assert busy_of({"gr_engine_active_mean": math.nan, "gpu_util_mean": 0.2}) == 0.2


def test_rounding_never_needs_for_more_than_there_is() -> None:
    found = of_means(
        job(
            1,
            gr_engine_active_mean=0.4,
            sm_active_mean=0.41,
            tensor_active_mean=0.42,
            dram_active_mean=0.5,
        )
    )
    assert (found.dram, found.sm_share, found.cycles["tensor"]) == (1.0, 1.0, 1.0)
