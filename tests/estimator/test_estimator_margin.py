"""Upper values: the margin, and what was not measured."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.catalog.config import InterferenceOptions
from tachograph.sharing.accuracy import estimator_accuracy
from tachograph.sharing.demand import CYCLES, H100_NVL, Demand, Footprint, Sharing
from tachograph.sharing.estimate import estimate, matrix

KERNELS = st.builds(
    Demand,
    name=st.just("kernel"),
    cycles=st.fixed_dictionaries({"issue": st.floats(0, 1), "fma": st.floats(0, 1)}),
    dram=st.floats(0, 1),
    seconds=st.just(1.0),
)


def test_the_margin_is_what_no_resource_explains() -> None:
    """Two kernels that take half of the FP64 pipe of a V100 and little else lost 4.6 % (124.381 of 237.894 / 2 ms)."""
    assert 2 * 124.381 / 237.894 < InterferenceOptions().margin == pytest.approx(1.046, abs=0.005)
    measured = [one for one in estimator_accuracy().tables[-1].rows if one.predicted in (1.0, 2.0)]
    small = [one.published.slowdown for one in measured if one.upper < 1.2]
    assert small
    assert max(small) < InterferenceOptions().margin


@given(KERNELS, KERNELS, st.floats(1, 2), st.booleans())
def test_upper_is_no_less_than_the_worst_and_the_margin(
    one: Demand, other: Demand, factor: float, lasting: bool
) -> None:
    chosen, sharing = InterferenceOptions(margin=factor), Sharing(lasting=lasting)
    result = estimate([one, other], gpu=H100_NVL, settings=chosen, sharing=sharing).members[0]
    whole = matrix([one], [other], gpu=H100_NVL, settings=chosen, sharing=sharing)
    assert (result.upper or 0.0) >= (result.worst or math.nan) * factor * (1 - 1e-12)
    assert result.upper == whole.upper[0, 0]


def test_what_was_not_measured_is_contended() -> None:
    """Beside a kernel of which all is known and little: whatever is missing makes the bound that of waiting in turn."""
    known = Demand(
        name="known", cycles=dict.fromkeys(CYCLES, 0.1), dram=0.02, warps=4.0, irregular=0.5, seconds=1.0,
        footprint=Footprint(132, 128, 32, 1024.0), l2_hit=0.1, l2_bytes=1e6, l1_hit=0.02, l1_bytes=1e3,
    )  # fmt: skip
    less: dict[str, Demand] = {
        "issue": replace(known, cycles={"fma": 0.1, "l1_bandwidth": 0.1}),
        "pipes": replace(known, cycles={"issue": 0.1, "l1_bandwidth": 0.1}),
        "l1_bandwidth": replace(known, cycles={"issue": 0.1, "fma": 0.1}),
        "dram": replace(known, dram=None),
        "l2_bandwidth": replace(known, l2_hit=None, l2_bytes=None),
        "room": replace(known, footprint=None),
    }
    assert estimate([known, known], gpu=H100_NVL).safe
    for name, one in less.items():
        members = estimate([known, one], gpu=H100_NVL).members
        assert min(member.upper or 0.0 for member in members) >= 1.05, name
        assert max(member.upper or 0.0 for member in members) >= 1.1, name
        assert not estimate([known, one], gpu=H100_NVL).safe, name
    tensor = replace(known, cycles={"issue": 0.1, "l1_bandwidth": 0.1})  # two of unknown pipelines may use the same
    assert not estimate([tensor, tensor], gpu=H100_NVL).safe


def test_two_that_live_on_l2_are_never_safe() -> None:
    """Measured on an RTX 5090: 1.82 times as long; half of L2's bandwidth each is no reason to call it safe."""
    copy = Demand(
        name="copy", cycles=dict.fromkeys(CYCLES, 0.05), dram=0.0, l2_hit=1.0, warps=8.0, irregular=1.0, seconds=1.0,
        l1_hit=0.0, footprint=Footprint(66, 1024, 32, 1024.0),
    )  # fmt: skip
    for one in (copy, replace(copy, l2_bandwidth=0.9), replace(copy, l2_bandwidth=0.3), replace(copy, l2_bytes=8e6)):
        assert not estimate([one, one], gpu=H100_NVL).safe
    fits = replace(copy, l2_bandwidth=0.3, l2_bytes=8e6, l2_bytes_per_s=1e12)
    assert estimate([fits, fits], gpu=H100_NVL).safe


def test_who_is_alone_has_no_margin_and_what_is_not_known_no_upper() -> None:
    unmeasured, sees = Demand(name="blind"), Demand(name="sees", cycles={"issue": 0.4})
    assert estimate([sees], gpu=H100_NVL).members[0].upper == 1.0
    assert estimate([sees, unmeasured], gpu=H100_NVL).members[0].upper is None
    assert math.isnan(matrix([sees], [unmeasured], gpu=H100_NVL).upper[0, 0])
