"""What is never safe: what was not measured is contended, and what a profile bounds of L2."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tachograph.annexes.share.capacity import l2_most
from tachograph.annexes.share.demand import (
    CYCLES,
    H100_NVL,
    Calibration,
    Demand,
    Footprint,
    GpuCapacity,
)
from tachograph.annexes.share.estimate import estimate
from tachograph.annexes.share.nsight.launches import Chip, Launch

RTX_5090 = GpuCapacity(
    name="NVIDIA GeForce RTX 5090", sms=170, threads_per_sm=1536, blocks_per_sm=24, registers_per_sm=65536,
    shared_bytes_per_sm=100 * 1024.0, l1_bytes=128 * 1024.0, l2_bytes=96e6, dram_bytes_per_s=1.792e12,
)  # fmt: skip
SECTORS, BYTES = "lts__t_sectors.sum", "lts__t_bytes.sum"


@pytest.mark.parametrize(
    ("launches", "most"),
    [
        ([{SECTORS: 1000.0}], 32_000.0),
        ([{BYTES: 32_000.0}], 32_000.0),
        ([{SECTORS: 1000.0, BYTES: 31_000.0}], 31_000.0),  # of two bounds the lower one
        # Not added up: the launch that may touch most.
        ([{SECTORS: 1000.0}, {SECTORS: 3000.0}], 96_000.0),
        ([{SECTORS: 1000.0}, {}], None),  # any of them may touch more
        ([{SECTORS: float("nan")}], None),
        ([{SECTORS: 0.0}], None),
        ([], None),
    ],
)
def test_a_launch_touches_at_most_what_it_moved(
    launches: list[dict[str, float]], most: float | None
) -> None:
    each = [
        Launch("add", metrics, Chip(), "a.csv", n, None, None) for n, metrics in enumerate(launches)
    ]
    assert l2_most(each) == most


def test_a_bound_makes_nothing_slower_and_shows_what_was_open() -> None:
    """Only certainty comes of it: 33.75 of the 50 MB surely stay, so 20 + 13.7 MB do, and 20 +
    13.8 may not.
    """
    one = Demand(
        name="one", cycles=dict.fromkeys(CYCLES, 0.1), dram=0.02, l2_hit=0.8, l1_hit=0.0, irregular=0.5,
        launch_s=1.0, footprint=Footprint(132, 128, 32, 1024.0), l2_most=20e6,
    )  # fmt: skip
    for most, held in ((13.7e6, True), (13.8e6, False), (None, False)):
        pair = [one, replace(one, name="other", l2_most=most)]
        found, unmeasured = (
            estimate(requested, gpu=H100_NVL)
            for requested in (pair, [replace(each, l2_most=None) for each in pair])
        )
        assert found.safe is held
        assert [member.slowdown for member in found.members] == [
            member.slowdown for member in unmeasured.members
        ]
        assert found.may_thrash is not held
        assert any("thrash" in sentence for sentence in found.unknown) is not held
        assert any("thrash" in sentence for sentence in unmeasured.unknown)


def test_two_that_l2_keeps_busy_are_not_safe_where_what_it_delivers_was_not_measured() -> None:
    """A profiler counts shares of a peak that no L2 reaches."""
    kernel = Demand(
        name="k", cycles={"issue": 0.1, "fma": 0.0, "lsu": 0.1, "l1_bandwidth": 0.1}, dram=0.0, l2_bandwidth=0.44,
        l2_hit=1.0, l2_bytes=1e6, l1_hit=0.0, l1_bytes=0.0, irregular=1.0, launch_s=1.0,
        footprint=Footprint(66, 128, 32, 1024.0),
    )  # fmt: skip
    unmeasured = replace(H100_NVL, l2_bytes_per_s=None)
    found = estimate([kernel, kernel], gpu=unmeasured)
    assert not found.safe
    assert found.members[0].high == pytest.approx(2.0 * 1.06)  # in turn
    assert any("what its L2 can deliver was not measured" in sentence for sentence in found.unknown)
    known = estimate(
        [kernel, kernel], gpu=unmeasured, calibration=Calibration(l2_bytes_per_s=5.5e12)
    )
    assert (known.members[0].high or 9) < 1.2
    half = replace(kernel, l2_bytes_per_s=2.75e12)  # of what was measured, whatever the peak is
    slow = estimate([half, half], gpu=unmeasured, calibration=Calibration(l2_bytes_per_s=4e12))
    assert slow.members[0].slowdown == pytest.approx(2.75 / 2, rel=1e-3)


@pytest.mark.parametrize("bandwidth", [0.2, None])
def test_two_that_live_on_l2_are_not_safe_though_next_to_nothing_goes_to_dram(
    bandwidth: float | None,
) -> None:
    """Measured of two that copy 40 MB each on an RTX 5090: 5.62 times as long. Alone all of it
    is found in L2.
    """
    sweep = Demand(
        name="sweep", cycles=dict.fromkeys(CYCLES, 0.02), dram=0.00005, l2_hit=0.99, l2_bandwidth=bandwidth, l1_hit=0.0,
        l1_bytes=0.0, irregular=1.0, launch_s=1.0, footprint=Footprint(85, 128, 32, 1024.0),
    )  # fmt: skip
    for demand in (sweep, replace(sweep, l2_bytes=80e6)):
        found = estimate([demand, demand], gpu=RTX_5090)
        assert not found.safe
    little = replace(sweep, l2_hit=0.9, l2_bandwidth=None if bandwidth is None else 0.005)
    assert estimate([sweep, little], gpu=RTX_5090).safe
