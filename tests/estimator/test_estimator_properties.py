"""What holds of any two kernels: identities, growth, continuity, symmetry, turns, and all pairs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.annexes.share import estimate as module
from tachograph.annexes.share.demand import (
    CYCLES,
    H100_NVL,
    PORTS,
    Calibration,
    CorunOutcome,
    Demand,
    Footprint,
    GpuCapacity,
    Sharing,
)
from tachograph.annexes.share.estimate import estimate, matrix
from tachograph.catalog.errors import InputError

ANY = st.floats(0, 1)
SHARE = st.one_of(st.none(), ANY, st.sampled_from([0.0, 0.25, 0.5, 1.0]))
FOOTPRINTS = st.builds(
    Footprint,
    blocks=st.integers(1, 5000),
    threads=st.integers(1, 1024),
    registers=st.one_of(st.none(), st.integers(16, 255)),
    shared_bytes=st.one_of(st.none(), st.floats(0, 2e5)),
)
DEMANDS = st.builds(
    Demand,
    name=st.just("kernel"),
    cycles=st.dictionaries(st.sampled_from(CYCLES), ANY, max_size=4),
    dram=SHARE,
    dram_of=st.sampled_from(["peak", "achievable"]),
    l2_hit=SHARE,
    l2_bytes=st.one_of(st.none(), st.floats(0, 2e8)),
    l2_most=st.one_of(st.none(), st.floats(0, 6e7)),
    l2_bandwidth=SHARE,
    l2_bytes_per_s=st.one_of(st.none(), st.floats(0, 2e13)),
    l1_hit=SHARE,
    l1_bytes=st.one_of(st.none(), st.floats(0, 1e6)),
    irregular=SHARE,
    power_w=st.one_of(st.none(), st.floats(0, 800)),
    launch_s=st.one_of(st.none(), st.floats(1e-6, 1e3)),
    footprint=st.one_of(st.none(), FOOTPRINTS),
)
# two of these find room on every SM of the H100
BESIDE = Footprint(blocks=132, threads=256, registers=32, shared_bytes=1024.0)
# and none of these beside the other
FULL = Footprint(blocks=132, threads=1024, registers=64, shared_bytes=1024.0)
KNOWN = st.builds(
    Demand,
    name=st.just("kernel"),
    cycles=st.fixed_dictionaries(dict.fromkeys(CYCLES, ANY)),
    dram=ANY,
    irregular=ANY,
    launch_s=st.sampled_from([0.001, 0.001, 0.004]),
    l2_hit=ANY,
    l2_bytes=st.floats(0, 2e8),
    l2_bytes_per_s=st.floats(0, 2e13),
    l1_hit=ANY,
    l1_bytes=st.floats(0, 5e5),
    sm_share=st.just(1.0),
    footprint=st.just(BESIDE),
)
IDLE = Demand(
    name="idle", cycles=dict.fromkeys(CYCLES, 0.0), dram=0.0, l2_hit=0.0, l2_bytes=0.0, l2_bytes_per_s=0.0,
    l1_hit=0.0, l1_bytes=0.0, irregular=0.0, launch_s=0.001, sm_share=1.0, footprint=BESIDE,
)  # fmt: skip
GROWING = (*CYCLES, "dram", "l2_bytes", "l2_bytes_per_s", "l1_bytes", "power_w")


def members(*demands: Demand, gpu: GpuCapacity = H100_NVL) -> tuple[CorunOutcome, ...]:
    return estimate(demands, gpu=gpu).members


def slowdown(own: Demand, other: Demand, gpu: GpuCapacity = H100_NVL) -> float:
    found = members(own, other, gpu=gpu)[0].slowdown
    assert found is not None
    return found


def more(demand: Demand, what: str, by: float) -> Demand:
    """The demand for one thing raised by a share of what there is of it."""
    if what in CYCLES:
        value = min(1.0, demand.cycles[what] + by)
        return replace(demand, cycles={**demand.cycles, what: value})
    sizes = {
        "dram": 1.0,
        "l2_bytes": 1e8,
        "l2_bytes_per_s": 5e12,
        "l1_bytes": 5e5,
        "power_w": 400.0,
    }
    value = (getattr(demand, what) or 0.0) + by * sizes[what]
    changed: dict[str, Any] = {what: min(1.0, value) if what == "dram" else value}
    return replace(demand, **changed)


@given(DEMANDS, DEMANDS)
def test_nobody_gets_faster_and_the_interval_holds_what_is_expected(
    one: Demand, other: Demand
) -> None:
    result = estimate([one, other], gpu=H100_NVL)
    for member in result.members:
        assert member.low is not None
        assert member.slowdown is not None
        assert member.high is not None
        assert 1.0 - 1e-9 <= member.low <= member.slowdown <= member.high < math.inf
    assert result.gain is not None
    assert 0.0 < result.gain <= 2.0 + 1e-9
    if result.safe:
        assert max(member.high or math.inf for member in result.members) <= 1.1


@given(KNOWN, st.sampled_from([BESIDE, Footprint(1, 32, 16, 0.0)]))
def test_beside_one_without_demand_nothing_happens(demand: Demand, footprint: Footprint) -> None:
    idle = replace(IDLE, footprint=footprint, launch_s=demand.launch_s)
    assert slowdown(demand, idle) == pytest.approx(1.0, abs=1e-6)
    assert slowdown(idle, demand) == pytest.approx(1.0, abs=1e-6)


@given(KNOWN, KNOWN, st.sampled_from(GROWING), st.floats(0.001, 1))
def test_the_more_either_needs_the_slower_both(
    own: Demand, other: Demand, what: str, by: float
) -> None:
    """Needs for slots, pipes, bandwidths and power of one slow the other, and never speed up.

    Its own need slows a kernel, too, but for what hides time: a kernel that is busy otherwise waits
    less for memory.
    """
    before = slowdown(own, other)
    assert slowdown(own, more(other, what, by)) >= before * (1 - 1e-6)
    if what not in ("l2_bytes", "l1_bytes") and own.dram == other.dram == 0.0:
        alone = replace(own, l2_bytes=0.0, l1_bytes=0.0)
        assert slowdown(more(alone, what, by), other) >= slowdown(alone, other) * (1 - 1e-6)


@given(KNOWN, KNOWN, st.sampled_from(GROWING), st.booleans())
def test_no_law_jumps(own: Demand, other: Demand, what: str, mine: bool) -> None:
    step = 1e-9
    before = slowdown(own, other)
    after = (
        slowdown(more(own, what, step), other) if mine else slowdown(own, more(other, what, step))
    )
    assert after == pytest.approx(before, rel=1e-4)


@pytest.mark.parametrize("at", [0.399, 0.4, 0.5, 0.98, 0.99])
def test_places_where_earlier_laws_jumped(at: float) -> None:
    """More demand by a thousandth changes little, wherever it is, and never slows less."""
    busy = replace(IDLE, cycles={**IDLE.cycles, "issue": 0.9}, irregular=0.0)
    for irregular in (0.099, 0.1, 0.101, 0.9):
        kernel = replace(IDLE, cycles={**IDLE.cycles, "issue": at}, irregular=irregular)
        before = slowdown(kernel, busy)
        assert before <= slowdown(more(kernel, "issue", 0.001), busy) <= before * 1.02
        waits_more = slowdown(replace(kernel, irregular=irregular + 0.001), busy)
        assert waits_more == pytest.approx(before, rel=0.01)


@given(KNOWN, KNOWN)
def test_the_order_of_two_does_not_matter(one: Demand, other: Demand) -> None:
    there, back = estimate([one, other], gpu=H100_NVL), estimate([other, one], gpu=H100_NVL)
    for found, again in zip(there.members, back.members[::-1], strict=True):
        assert (found.slowdown, found.low, found.high) == pytest.approx(
            (again.slowdown, again.low, again.high), rel=1e-9
        )
    assert there.gain == pytest.approx(back.gain)
    twins = members(one, one)
    assert twins[0].slowdown == pytest.approx(twins[1].slowdown, rel=1e-9)


@given(KNOWN, KNOWN, st.floats(1e-5, 1.0), st.floats(1e-5, 1.0))
def test_launches_that_fill_the_gpu_take_turns(
    one: Demand, other: Demand, one_s: float, other_s: float
) -> None:
    """Whatever they need: neither finds room, so that each waits for a launch of the other."""
    one = replace(one, footprint=FULL, launch_s=one_s)
    other = replace(other, footprint=replace(FULL, blocks=264), launch_s=other_s)
    found = members(replace(one, footprint=replace(FULL, blocks=264)), other)
    assert found[0].slowdown == pytest.approx(1.0 + other_s / one_s)
    assert found[1].slowdown == pytest.approx(1.0 + one_s / other_s)
    assert found[0].binding == "blocks"


def test_what_is_not_known_lies_between_turns_and_beside() -> None:
    fp64 = replace(IDLE, cycles={**IDLE.cycles, "fp64": 0.75}, footprint=BESIDE)
    known = members(fp64, fp64)[0]
    unknown = members(replace(fp64, footprint=None), fp64)[0]
    assert known.slowdown == pytest.approx(1.5, abs=0.01)
    assert unknown.slowdown == pytest.approx(math.sqrt(1.5 * 2.0), abs=0.01)
    assert (unknown.low or 9) < 1.5
    assert (unknown.high or 0) >= 2.0


@pytest.mark.parametrize(
    "lacking",
    [{"dram": None}, {"cycles": {}}, {"cycles": {"fma": 0.1}}, {"cycles": {"issue": 0.1}}, {"footprint": None}],
)  # fmt: skip
def test_what_was_not_measured_may_bind(lacking: dict[str, object]) -> None:
    quiet = replace(IDLE, l2_bytes_per_s=0.0)
    assert estimate([quiet, quiet], gpu=H100_NVL).safe
    found = estimate([quiet, replace(quiet, name="b", **lacking)], gpu=H100_NVL)  # type: ignore[arg-type]
    assert not found.safe
    assert (found.members[0].high or 0) >= 2.0  # in turn
    assert any(sentence.startswith("b: ") for sentence in found.unknown)


@pytest.mark.parametrize(
    ("capability", "shared"), [("9.0", 1.2), ("8.0", 1.2), ("8.6", 1.0), (None, 1.0)]
)
def test_fp64_and_tensor_cores_share_a_port_where_the_table_says(
    capability: str | None, shared: float
) -> None:
    gpu = replace(H100_NVL, compute_capability=capability)
    fp64, tensor = (replace(IDLE, cycles={**IDLE.cycles, pipe: 0.6}) for pipe in ("fp64", "tensor"))
    assert slowdown(fp64, tensor, gpu) == pytest.approx(shared, abs=0.01)
    measured = replace(IDLE, cycles={**IDLE.cycles, "shared": 0.6})
    assert slowdown(measured, measured, gpu) == pytest.approx(1.2, abs=0.01)
    assert ("shared" in PORTS.get(capability or "", {})) == (shared > 1.0)


def test_power_over_the_limit_slows_the_clock() -> None:
    """Two of 500 W on a GPU of 700, 70 of them idle: 860 of 630 W, the cube root of it."""
    gpu = replace(H100_NVL, power_limit_w=700.0)
    kernel = replace(IDLE, power_w=500.0)
    found = members(kernel, kernel, gpu=gpu)[0]
    assert found.slowdown == pytest.approx((860 / 630) ** (1 / 3))
    assert found.binding == "power"
    assert slowdown(replace(IDLE, power_w=380.0), replace(IDLE, power_w=380.0), gpu) == 1.0


@given(KNOWN, KNOWN)
def test_shares_of_the_sms_that_add_up_to_one_keep_what_an_sm_has_apart(
    one: Demand, other: Demand
) -> None:
    """A quarter of the SMs each: four times the demand of an SM's cycles, and nothing of the
    other's.
    """
    gpu = replace(H100_NVL, compute_capability=None)  # no ports
    one, other = (
        replace(demand, dram=0.0, l2_bytes_per_s=0.0, l2_hit=0.0) for demand in (one, other)
    )
    found = estimate([one, other], gpu=gpu, sharing=Sharing("mps", (0.25, 0.25))).members[0]
    assert found.slowdown == pytest.approx(max(1.0, 4.0 * max(one.cycles.values())), rel=1e-6)


@given(
    st.lists(DEMANDS, min_size=1, max_size=4),
    st.lists(DEMANDS, min_size=1, max_size=3),
    st.booleans(),
)
def test_all_pairs_show_what_a_pair_shows(
    rows: list[Demand], columns: list[Demand], confined: bool
) -> None:
    sharing = Sharing("mps", (0.5, 0.75)) if confined else Sharing()
    whole = matrix(rows, columns, gpu=H100_NVL, sharing=sharing)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            result = estimate([row, column], gpu=H100_NVL, sharing=sharing)
            member = result.members[0]
            assert whole.slowdown[i, j] == pytest.approx(member.slowdown)
            assert whole.low[i, j] == pytest.approx(member.low)
            assert whole.high[i, j] == pytest.approx(member.high)
            assert whole.gain[i, j] == pytest.approx(result.gain)
            assert whole.bound_by(i, j) == member.binding
            assert bool(whole.safe[i, j]) == result.safe


def test_pairs_computed_in_parts_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    demands = [
        replace(IDLE, name=str(n), cycles={**IDLE.cycles, "fma": n / 20}, launch_s=0.001 * (n + 1))
        for n in range(20)
    ]
    whole = matrix(demands, demands[:7], gpu=H100_NVL)
    monkeypatch.setattr(module, "_AT_ONCE", 21)
    parts = matrix(demands, demands[:7], gpu=H100_NVL)
    for name in ("slowdown", "low", "high", "gain", "binding", "in_turn", "safe"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(parts, name))


def test_numbers_next_to_nothing_overflow_nowhere() -> None:
    for tiny in (5e-324, 1e-313, 1e-300, 1e-12):
        one = Demand(name="a", cycles={"issue": tiny, "fma": 1.0}, dram=tiny, irregular=1.0, launch_s=tiny,
                     l2_hit=1.0, l2_bytes=1e308, l1_hit=tiny, l1_bytes=tiny)  # fmt: skip
        two = replace(
            one, cycles={"issue": 1.0, "fma": tiny}, dram=1.0, launch_s=1e300, l2_bytes=tiny
        )
        for sharing in (Sharing(), Sharing("mps", (max(tiny, 1e-300), 1.0))):
            result = matrix([one, two], gpu=H100_NVL, sharing=sharing)
            assert np.isfinite(result.slowdown).all()
            assert result.slowdown.min() >= 1.0


@pytest.mark.parametrize("shares", [(0.5,), (0.5, 0.5, 0.5), (0.0, 0.5), (0.5, 1.5), (-1.0, 0.5)])
def test_shares_that_are_none(shares: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="shares of the SMs for 2 kernels"):
        estimate([IDLE, IDLE], gpu=H100_NVL, sharing=Sharing("mps", shares))
    with pytest.raises(InputError, match="1 kernels cannot be compared"):
        estimate([IDLE], gpu=H100_NVL)


def test_the_calibration_of_another_model_is_named() -> None:
    kernel = replace(IDLE, dram=0.3)
    sentence = "latency of DRAM under load was not measured"
    for measured_on, named in (("NVIDIA A100", True), ("H100 NVL 94GB", False), (None, True)):
        found = estimate(
            [kernel, kernel], gpu=H100_NVL, calibration=Calibration(measured_on=measured_on)
        )
        assert any(sentence in text for text in found.unknown) is named
