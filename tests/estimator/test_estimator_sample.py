"""The published numbers once more, of a report that tells all that profilers tell, DRAM and
caches included.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tachograph.annexes.share.demand import Demand, GpuCapacity
from tachograph.annexes.share.estimate import estimate
from tachograph.annexes.share.kernels import kernels_of
from tachograph.annexes.share.nsight.reports import read_reports

SAMPLE = Path(__file__).parents[2] / "docs" / "samples" / "published-h100.csv"
PAIRS = (
    ("fmul<1>", "copy", 1.915), ("fmul<2>", "copy", 1.896), ("fmul<3>", "copy", 1.893), ("fmul<4>", "copy", 1.65),
    ("fmul<4, 256>", "copy", 1.001), ("dmul<1>", "dmul<1>", 1.988), ("dmul<2>", "dmul<2>", 1.977),
    ("dmul<3>", "dmul<3>", 1.356), ("dmul<4>", "dmul<4>", 1.018), ("fmul<4>", "fmul<4>", 2 / 1.85),
    ("sleep_<132>", "sleep_<132>", 2.0),
    ("sleep_<264>", "sleep_<264>", 1.0),
)  # fmt: skip


@pytest.fixture(scope="module")
def sample() -> tuple[dict[str, Demand], GpuCapacity]:
    found = kernels_of(launch for report in read_reports([SAMPLE]) for launch in report.launches)
    return {one.name.removeprefix("void ").split("(")[0]: one.demand for one in found}, found[0].gpu


@pytest.mark.parametrize(("one", "other", "measured"), PAIRS)
def test_the_sample_shows_what_was_published(
    sample: tuple[dict[str, Demand], GpuCapacity], one: str, other: str, measured: float
) -> None:
    demands, gpu = sample
    pair = [demands[one], demands[other]]
    assert all(demand.dram for demand in pair)
    result = estimate([replace(demand, launch_s=1.0) for demand in pair], gpu=gpu)
    # The copy of this report issues half as much as that of the table, and waits less for slots.
    least = 0.15 if (one, other) == ("fmul<4>", "copy") else 0.10
    assert result.gain == pytest.approx(measured, rel=least)


def test_two_copies_of_the_sample_take_as_long_as_published(
    sample: tuple[dict[str, Demand], GpuCapacity],
) -> None:
    demands, gpu = sample
    member = estimate([demands["copy"], demands["copy"]], gpu=gpu).members[0]
    assert member.slowdown == pytest.approx(1.36, rel=0.05)
    assert member.binding == "dram"
