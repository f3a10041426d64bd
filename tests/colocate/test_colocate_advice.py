"""Advice on sharing: the order of the ways, the numbers behind them, and what is never advised."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import hypothesis
import pytest
from colocate_jobs import by_hand, on_shares
from hypothesis import given
from hypothesis import strategies as st

from tachograph.annexes.share.advice import (
    CONTEXT_BYTES,
    SharingAdvice,
    SharingCase,
    advise,
    limit,
)
from tachograph.annexes.share.capacity import gpu_of_device
from tachograph.annexes.share.demand import (
    Calibration,
    CorunOutcome,
    Demand,
    Estimate,
    Footprint,
    GpuCapacity,
)
from tachograph.annexes.share.mixes import issuing
from tachograph.annexes.share.partitions import on_share, smallest_together
from tachograph.catalog.config import InterferenceOptions
from tachograph.catalog.devices import DEVICES_BY_NAME
from tachograph.catalog.mig import MIG_PROFILES

A100, A40 = (gpu_of_device(DEVICES_BY_NAME[name]) for name in ("A100 SXM 80GB", "A40"))
ALL_OF_IT = Calibration(achievable_share=1.0)
GIB = 2.0**30


def kernel(
    name: str = "a", *, memory: float | None = 8.0, dram: float | None = 0.1, **given: Any
) -> Demand:
    cycles: dict[str, float] = {
        pipe: given.pop(pipe) for pipe in ("issue", "fma", "fp64") if pipe in given
    }
    return Demand(
        name=name,
        cycles=cycles,
        dram=dram,
        hbm_bytes=None if memory is None else memory * GIB,
        **given,
    )


def advice(
    *demands: Demand, gpu: GpuCapacity = A100, busy: tuple[float, ...] | None = None, **given: Any
) -> SharingAdvice:
    settings = InterferenceOptions(
        **{
            name: given.pop(name)
            for name in tuple(given)
            if name.startswith(("safe", "max", "assumed"))
        }
    )
    conservative = by_hand(
        [issuing(demand, settings.assumed_issue) for demand in demands], ALL_OF_IT
    )
    estimate = given.get("estimate") or by_hand(demands, ALL_OF_IT)
    options: dict[str, Any] = {
        "estimate": estimate,
        "conservative": conservative if conservative.sums != estimate.sums else estimate,
        "same_user": True,
        "by_worst": False,
        "shared": lambda _: on_shares(demands),
    } | given
    case = SharingCase(
        demands=demands,
        members=tuple(((1.0, issuing(demand, settings.assumed_issue)),) for demand in demands),
        gpu=gpu,
        settings=settings,
        calibration=ALL_OF_IT,
        busy=busy or (1.0,) * len(demands),
        **options,
    )
    return advise(case)


def test_all_that_fits_shares_by_mps() -> None:
    found = advice(kernel("a", issue=0.3, fma=0.2), kernel("b", issue=0.4, fma=0.1))
    assert (found.mode, found.safe, found.slowdowns, found.unknown) == ("mps", True, (1.0, 1.0), ())
    assert "16.5 GiB" not in found.why[0]
    assert "8.0 GiB + 8.0 GiB" in found.why[0]
    assert "issue slots 70 % (limit 90 %)" in found.why[-1]


@pytest.mark.parametrize(("memory", "mode"), [(35.7, "mps"), (35.8, "no")])
def test_memory_is_requested_first(memory: float, mode: str) -> None:
    # 2 x 35.75 + 0.5 GiB are 90 % of 80 GiB
    found = advice(kernel(memory=memory, issue=0.1), kernel(memory=memory, issue=0.1))
    assert found.mode == mode
    if mode == "no":
        assert (found.binding, len(found.why), found.slowdowns) == ("hbm", 1, ())
        assert "more than the 90 % allowed" in found.why[0]


def test_issue_slots_are_parted_by_shares_of_the_sms() -> None:
    one, other = kernel("a", issue=0.9, sm_share=0.04), kernel("b", issue=0.6, sm_share=0.06)
    found = advice(one, other)
    assert found.mode == "mps_share"
    needs = (0.9 * 0.04, 0.6 * 0.06)
    # Half of the SMs each, were they wide at times.
    assert found.conservative == pytest.approx((1 + 0.04, 1 + 0.06))
    assert found.worst == found.conservative
    assert found.shares == pytest.approx([need / sum(needs) for need in needs])
    assert found.slowdowns == pytest.approx((1.0, 1.0))
    assert found.binding == "issue"
    assert "issue slots 150 %, limit 90 %" in found.why[1]
    assert math.fsum(found.shares or ()) == pytest.approx(1)


def test_kernels_that_may_be_wide_are_not_put_on_a_part_of_the_sms() -> None:
    """0.2 and 0.6 of the SMs' time: narrow kernels lose nothing on a part of them, wide ones do."""
    one, other = kernel("a", issue=0.9, sm_share=0.2), kernel("b", issue=0.6, sm_share=0.6)
    found = advice(one, other)
    assert found.mode == "no"
    shares = [0.18 / 0.54, 0.36 / 0.54]
    wide = [1 + width * (1 / share - 1) for width, share in zip((0.2, 0.6), shares, strict=True)]
    message = (
        f"expected 1.00x each if their kernels leave the other SMs idle, {wide[0]:.2f}x "
        f"and {wide[1]:.2f}x if they"
    )
    assert any(message in sentence for sentence in found.why)
    known = [
        replace(demand, footprint=Footprint(blocks, 128, blocks_per_sm=1))
        for demand, blocks in ((one, 36), (other, 72))
    ]
    # Blocks for a third and two thirds of 108 SMs: what they are as wide as is measured.
    found = advice(*known)
    assert (found.mode, found.conservative) == ("mps_share", found.slowdowns)


def test_memory_bandwidth_is_parted_by_mig() -> None:
    one, other = (
        kernel("a", dram=0.45, issue=0.1, sm_share=0.07),
        kernel("b", dram=0.4, issue=0.1, sm_share=0.07),
    )
    found = advice(one, other)
    assert (found.mode, found.profiles, found.binding) == ("mig", ("3g.40gb", "3g.40gb"), "dram")
    assert found.slowdowns == pytest.approx((1.0, 1.0))
    assert "demand above the limit: memory bandwidth 85 %, limit 70 %" in found.why[1]
    assert found.worst == found.conservative == pytest.approx([1 + 0.07 * (7 / 3 - 1)] * 2)


def test_jobs_that_rarely_meet_take_turns() -> None:
    hungry = kernel(dram=0.8, issue=0.9, sm_share=1.0)
    found = advice(hungry, hungry, busy=(0.05, 0.08))
    assert found.mode == "time_slicing"
    assert found.slowdowns == pytest.approx((1.08, 1.05))
    assert advice(hungry, hungry, busy=(0.5, 0.5)).mode == "no"


def test_unmeasured_issue_slots_are_counted_and_both_numbers_reported() -> None:
    # 0.6 of the issue slots each: 1.2 while both are busy.
    pair = (kernel(fma=0.2), kernel(fma=0.2))
    found = advice(*pair, busy=(0.4, 0.3), assumed_issue=0.6)
    assert (found.mode, found.slowdowns) == ("mps", (1.0, 1.0))
    assert found.conservative == pytest.approx((1 + 0.3 * 0.2, 1 + 0.4 * 0.2))
    assert (
        "expected 1.00x each by what was measured, 1.06x and 1.08x if each also needs 60 %"
        in found.why[-1]
    )
    often = advice(*pair, busy=(0.6, 0.3), assumed_issue=0.6)
    assert (often.mode, often.slowdowns, often.binding) == ("no", (1.0, 1.0), "issue")
    assert often.conservative == pytest.approx((1.06, 1.12))
    assert (
        "1.06x and 1.12x if each also needs 60 % of the issue slots, slowed by issue slots"
        in often.why[1]
    )
    measured = advice(
        kernel(issue=0.1, fma=0.2), kernel(issue=0.1, fma=0.2), busy=(0.6, 0.3), assumed_issue=0.6
    )
    assert (measured.mode, measured.conservative, measured.unknown) == (
        "mps",
        measured.slowdowns,
        (),
    )


def test_what_is_undetermined_is_not_advised() -> None:
    unmeasured = Estimate(
        (CorunOutcome("a", None, None, None),) * 2, {}, None, None, False, ("nothing in common",)
    )
    found = advice(kernel(), kernel(), estimate=unmeasured)
    assert (found.mode, found.safe) == ("no", False)
    assert "nothing in common" in found.unknown


@pytest.mark.parametrize(
    ("demand", "share", "expected"),
    [
        (kernel(sm_share=0.5), 0.5, 1.0),
        (kernel(sm_share=0.6), 0.4, 1.5),
        (kernel(issue=0.9, sm_share=0.8), 0.4, 2.0),
        (kernel(issue=0.5), 0.25, None),  # how wide it is is not known
        # 132 blocks of which 16 fit on an SM: on 8 of 132 SMs two waves; its SMs are asked for 0.5
        # x 16.5
        (kernel(fma=0.01, footprint=Footprint(132, 128, blocks_per_sm=16)), 8 / 132, 2.0),
        (kernel(fma=0.5, footprint=Footprint(132, 128, blocks_per_sm=16)), 8 / 132, 8.25),
        (kernel(), 0.0, None),
    ],
)
def test_fewer_sms_by_the_wave(demand: Demand, share: float, expected: float | None) -> None:
    found = on_share(demand, share, gpu=GpuCapacity(name="H100", sms=132))
    assert found == (None if expected is None else pytest.approx(expected))


def test_slices_are_the_smallest_that_fit_together() -> None:
    for choices in product([MIG_PROFILES["A100 SXM 80GB"][n:] for n in range(5)], repeat=2):
        found = smallest_together(choices)
        fitting = [
            pair
            for pair in product(*choices)
            if sum(one.sms for one in pair) <= 1 and sum(one.memory for one in pair) <= 1
        ]
        if found is None:
            assert not fitting
        else:
            assert found in fitting
            assert sum(one.sms for one in found) == min(
                sum(one.sms for one in pair) for pair in fitting
            )


SHARE = st.floats(0, 1)
DEMANDS = st.builds(
    lambda issue, fma, dram, memory, wide: Demand(
        name="k",
        cycles={
            name: share for name, share in (("issue", issue), ("fma", fma)) if share is not None
        },
        dram=dram,
        hbm_bytes=None if memory is None else memory * GIB,
        sm_share=wide,
    ),
    st.none() | SHARE,
    st.none() | SHARE,
    st.none() | SHARE,
    st.none() | st.floats(0, 90),
    st.none() | SHARE,
)


BUSY = st.none() | st.tuples(SHARE, SHARE)


@given(DEMANDS, DEMANDS, BUSY, st.sampled_from([A100, A40]))
@hypothesis.settings(deadline=None)
def test_nothing_is_advised_that_must_not_be(
    one: Demand, other: Demand, busy: tuple[float, float] | None, gpu: GpuCapacity
) -> None:
    settings, estimate = InterferenceOptions(), by_hand([one, other], ALL_OF_IT)
    found = advice(one, other, gpu=gpu, busy=busy)
    used = [demand.hbm_bytes for demand in (one, other)]
    if None not in used and gpu.hbm_bytes is not None:
        holds = (
            sum(amount for amount in used if amount is not None) + CONTEXT_BYTES
            <= 0.9 * gpu.hbm_bytes
        )
        assert holds or found.mode == "no"
    over = [name for name, total in estimate.sums.items() if total > limit(name, settings)]
    assert found.mode != "mps" or not over
    assert not (found.safe and found.unknown)
    assert not found.safe or all(
        "issue" in demand.cycles and demand.dram is not None for demand in (one, other)
    )
    assert not found.safe or None not in used
    if found.mode != "no":
        result = (*found.slowdowns, *found.conservative)
        assert all(
            slowdown is not None and slowdown <= settings.max_slowdown + 1e-6 for slowdown in result
        )
    assert (found.shares is None) == (found.mode != "mps_share")
    assert (found.profiles is None) == (found.mode != "mig")
    assert found.profiles is None or gpu is A100
    assert found.shares is None or (sum(found.shares) <= 1 + 1e-9 and min(found.shares) >= 0)
    assert found.why


@given(DEMANDS, DEMANDS, st.tuples(SHARE, SHARE))
@hypothesis.settings(deadline=None)
def test_who_is_always_busy_is_no_better_off(
    one: Demand, other: Demand, busy: tuple[float, float]
) -> None:
    rarely = advice(one, other, busy=busy)
    always = advice(one, other)
    assert always.mode != "mps" or rarely.mode == "mps"
    assert rarely.mode != "no" or always.mode == "no"
