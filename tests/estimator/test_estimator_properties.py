"""What holds of any two kernels, and of all pairs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.annexes.share.contention import residency
from tachograph.annexes.share.corun import STARVED
from tachograph.annexes.share.demand import (
    CYCLES,
    H100_NVL,
    Calibration,
    Demand,
    Footprint,
    GpuCapacity,
    Sharing,
)
from tachograph.annexes.share.estimate import estimate, matrix
from tachograph.catalog.errors import InputError

SHARE = st.one_of(st.none(), st.floats(0, 1), st.sampled_from([0.0, 0.25, 0.5, 1.0]))
ANY = st.floats(0, 1)
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
    warps=st.one_of(st.none(), st.floats(0.1, 16)),
    irregular=SHARE,
    seconds=st.one_of(st.none(), st.floats(1e-3, 1e3)),
    footprint=st.one_of(st.none(), FOOTPRINTS),
)
KNOWN = st.builds(
    Demand, name=st.just("kernel"), cycles=st.fixed_dictionaries(dict.fromkeys(CYCLES, ANY)), dram=ANY,
    warps=st.floats(1, 16), irregular=ANY, seconds=st.just(1.0), l2_hit=ANY, l2_bytes=st.floats(0, 2e8),
    l2_bytes_per_s=st.floats(0, 2e13),
)  # fmt: skip


def slowdowns(demands: list[Demand]) -> list[float]:
    found = [member.slowdown for member in estimate(demands, gpu=H100_NVL).members]
    return [math.nan if one is None else one for one in found]


PAIRS = st.lists(DEMANDS, min_size=2, max_size=2)


@given(PAIRS)
def test_nobody_gets_faster_and_the_worst_is_worse(demands: list[Demand]) -> None:
    result = estimate(demands, gpu=H100_NVL)
    for member in result.members:
        assert member.slowdown is None or 1.0 <= member.slowdown <= (member.worst or 0.0) < math.inf
        assert (member.slowdown is None) == (member.worst is None)
    assert result.gain is None or 0.0 < result.gain <= 2 * (1 + 1e-9)
    assert result.gain is None or (
        result.worst_gain is not None and result.worst_gain <= result.gain
    )


def test_numbers_next_to_nothing_overflow_nowhere() -> None:
    for tiny in (5e-324, 1e-313, 1e-300, 1e-12):
        one = Demand(name="a", cycles={"issue": tiny, "fma": 1.0}, dram=tiny, warps=tiny, irregular=1.0, seconds=tiny,
                     l2_hit=1.0, l2_bytes=1e308, l1_hit=tiny, l1_bytes=tiny)  # fmt: skip
        two = replace(
            one, cycles={"issue": 1.0, "fma": tiny}, dram=1.0, seconds=1e300, l2_bytes=tiny
        )
        for sharing in (Sharing(), Sharing("mps", (tiny, 1.0)), Sharing(lasting=True)):
            result = matrix([one, two], gpu=H100_NVL, sharing=sharing)
            assert (
                result.slowdown[0, 1]
                == estimate([one, two], gpu=H100_NVL, sharing=sharing).members[0].slowdown
            )
            assert 1.0 <= result.slowdown.min() <= result.slowdown.max() < math.inf


@given(KNOWN)
def test_beside_one_without_demand_nothing_happens(demand: Demand) -> None:
    idle = Demand(
        name="idle",
        cycles=dict.fromkeys(CYCLES, 0.0),
        dram=0.0,
        l2_hit=0.0,
        l2_bytes=0.0,
        seconds=1.0,
    )
    member = estimate([demand, replace(idle, l2_bytes_per_s=0.0)], gpu=H100_NVL).members[0]
    assert member.slowdown == pytest.approx(1.0, abs=0.01)


@given(KNOWN, KNOWN, st.sampled_from([*CYCLES, "dram", "l2_bytes"]), st.floats(1, 5))
def test_the_more_the_other_needs_the_slower(
    own: Demand, other: Demand, what: str, times: float
) -> None:
    if what in CYCLES:
        more = replace(other, cycles={**other.cycles, what: min(1.0, other.cycles[what] * times)})
    elif what == "dram":
        more = replace(other, dram=min(1.0, (other.dram or 0.0) * times))
    else:
        more = replace(other, l2_bytes=(other.l2_bytes or 0.0) * times)
    # Shares below 1e-9 count as none.
    assert slowdowns([own, more])[0] >= slowdowns([own, other])[0] * (1 - 1e-8)


@given(
    st.lists(DEMANDS, min_size=1, max_size=4),
    st.lists(DEMANDS, min_size=1, max_size=3),
    st.booleans(),
    st.booleans(),
)
def test_all_pairs_show_what_a_pair_shows(
    rows: list[Demand], columns: list[Demand], confined: bool, lasting: bool
) -> None:
    sharing = Sharing("mps", (0.5, 0.75) if confined else None, lasting)
    whole = matrix(rows, columns, gpu=H100_NVL, sharing=sharing)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            result = estimate([row, column], gpu=H100_NVL, sharing=sharing)
            member = result.members[0]
            assert whole.slowdown[i, j] == member.slowdown or member.slowdown is None
            assert whole.worst[i, j] == member.worst or member.worst is None
            assert math.isnan(whole.slowdown[i, j]) == (member.slowdown is None)
            assert whole.gain[i, j] == result.gain or (
                math.isnan(whole.gain[i, j]) and result.gain is None
            )
            bound = int(whole.binding[i, j])
            assert (None if bound == 255 else whole.resources[bound]) == member.binding
            assert bool(whole.safe[i, j]) == result.safe


@pytest.mark.parametrize("square", [True, False])
def test_many_pairs_compiled_show_what_one_shows(square: bool) -> None:
    chosen = [_kernel(place) for place in range(60)]
    whole = matrix(chosen, None if square else list(reversed(chosen)), gpu=H100_NVL)
    for i in range(0, 60, 7):
        for j in range(0, 60, 3):
            result = estimate([chosen[i], chosen[j if square else 59 - j]], gpu=H100_NVL)
            assert whole.slowdown[i, j] == result.members[0].slowdown
            assert whole.worst[i, j] == result.members[0].worst
            assert whole.gain[i, j] == result.gain
            assert bool(whole.safe[i, j]) == result.safe


def _kernel(place: int) -> Demand:
    """Any kernel, the same in every run."""
    part = [((place + 3) * step * 0.6180339887) % 1.0 for step in range(1, 30)]
    return Demand(
        name=f"kernel {place}", cycles={name: part[i] ** 2 for i, name in enumerate(CYCLES)}, dram=part[11] ** 2,
        warps=1 + 15 * part[12], irregular=part[13], seconds=0.1 + part[14], l2_hit=part[15], l2_bytes=1e8 * part[16],
        l1_hit=part[17], l1_bytes=5e5 * part[18], footprint=Footprint(1 + int(600 * part[19]), 32 + int(9 * part[20])),
        l2_bytes_per_s=1e13 * part[21],
    )  # fmt: skip


def test_two_share_a_pipeline_and_then_one_is_alone() -> None:
    each = [Demand(name=str(s), cycles={"fp64": 0.8}, irregular=0.0, seconds=s) for s in (1.0, 3.0)]
    result = estimate(each, gpu=H100_NVL)
    # At most in turn.
    assert [member.slowdown for member in result.members] == pytest.approx([1.6, 1.0 + 1.0 / 3.0])
    # the first ends at 1.6, the second then has two of its three seconds left
    assert result.gain == pytest.approx(4.0 / (1.6 + 2.0))


def test_blocks_that_leave_no_room_run_in_turn() -> None:
    big = Demand(
        name="big", cycles={"issue": 0.05}, dram=0.0, seconds=1.0, footprint=Footprint(264, 1024)
    )
    small = replace(big, name="small", footprint=Footprint(132, 1024))
    assert estimate([big, big], gpu=H100_NVL).members[0].binding == "blocks"
    assert estimate([big, big], gpu=H100_NVL).gain == 1.0
    assert estimate([small, small], gpu=H100_NVL).members[0].binding is None
    assert estimate([small, big], gpu=H100_NVL).members[0].slowdown == 2.0
    assert not estimate([small, big], gpu=H100_NVL).safe
    halves = replace(big, footprint=Footprint(66, 1024))
    assert estimate([halves, halves], gpu=H100_NVL).sums["issue"] == 0.05  # an SM for each block


SAFE = Demand(
    name="known", cycles=dict.fromkeys(CYCLES, 0.1), dram=0.02, warps=4.0, irregular=0.5, seconds=1.0,
    footprint=Footprint(132, 128, 32, 1024.0), l2_hit=0.9, l2_bytes=1e6, l1_hit=0.02, l1_bytes=1e3,
)  # fmt: skip
NO_MEMORY = {**SAFE.cycles, "lsu": 0.0, "tex": 0.005}


@pytest.mark.parametrize(
    ("less", "safe"),
    [
        (SAFE, True),
        (replace(SAFE, footprint=None), False),
        (replace(SAFE, footprint=Footprint(132, 128, 32)), False),  # shared memory decides, too
        (replace(SAFE, l2_bytes=None), False),
        (replace(SAFE, l2_bytes=None, l2_hit=None), False),
        # Beside one or two of 1 MB: 33.75 surely stay.
        (replace(SAFE, l2_bytes=None, l2_most=31.7e6), True),
        (replace(SAFE, l2_bytes=None, l2_hit=None, l2_bytes_per_s=1e12, l2_most=31.7e6), True),
        (replace(SAFE, l2_bytes=None, l2_most=32.8e6), False),
        (replace(SAFE, l2_bytes=2e6, l2_most=44.1e6), True),  # what it comes back to is told
        # The other finds much, and how much this one brings is open.
        (replace(SAFE, l2_bytes=None, l2_hit=0.1), False),
        # 1 % of the bandwidth went through L2.
        (replace(SAFE, l2_bytes=None, l2_hit=0.6, dram=0.0035), True),
        (replace(SAFE, l2_bytes=None, l2_hit=0.6, dram=0.0037), False),
        (replace(SAFE, l2_bytes=None, l2_hit=None, dram=0.001, cycles=NO_MEMORY), True),
        (replace(SAFE, l2_bytes=None, l2_hit=None, dram=0.1, cycles=NO_MEMORY), False),
        (replace(SAFE, l1_bytes=None), True),  # neither finds much there
        # A tenth of its sectors is found there, and may be no more.
        (replace(SAFE, l1_bytes=None, l1_hit=0.1), False),
        (replace(SAFE, l1_bytes=None, l1_hit=0.7), False),
        (replace(SAFE, l1_bytes=None, l1_hit=0.7, cycles=NO_MEMORY), True),
    ],
)
def test_safe_needs_all_that_decides(less: Demand, safe: bool) -> None:
    assert estimate([SAFE, less], gpu=H100_NVL).safe == safe
    assert estimate([less, SAFE], gpu=H100_NVL).safe == safe
    assert matrix([SAFE, less], gpu=H100_NVL).safe[0].tolist() == [1, safe]


OTHER_PIPES = {name: 0.1 for name in CYCLES if name != "issue"}


@pytest.mark.parametrize(
    ("less", "message"),
    [
        (replace(SAFE, cycles=OTHER_PIPES), "issue slots"),
        (replace(SAFE, cycles={"issue": 0.1, "l1_bandwidth": 0.1}), "alu, fma"),
        (replace(SAFE, cycles={"issue": 0.1, "fma": 0.1}), "bandwidth of L1"),
        (replace(SAFE, dram=None), "bandwidth of DRAM"),
        (replace(SAFE, l2_hit=None, l2_bytes=None), "L2"),
        (replace(SAFE, footprint=None), "launch is not known"),
    ],
)
def test_what_was_not_measured_is_reported_and_contended(less: Demand, message: str) -> None:
    """Beside a kernel of which all is known and little: the worst is that of waiting in turn."""
    assert estimate([SAFE, SAFE], gpu=H100_NVL).unknown == ()
    result = estimate([SAFE, less], gpu=H100_NVL)
    assert [member.worst for member in result.members] == [2.0, 2.0]
    assert not result.safe
    assert any(message in sentence for sentence in result.unknown)


def test_what_is_not_known_of_a_launch_and_of_a_gpu_is_reported() -> None:
    bare = replace(SAFE, warps=None, irregular=None, footprint=None, seconds=None)
    result = estimate([SAFE, bare], gpu=H100_NVL)
    assert len(result.unknown) == 4
    assert result.gain is None
    nothing = estimate([SAFE, Demand(name="nothing")], gpu=H100_NVL)
    assert [member.slowdown for member in nothing.members] == [None, None]
    other = estimate([SAFE, SAFE], gpu=GpuCapacity(name="NVIDIA H200"), calibration=Calibration())
    assert any("NVIDIA H200" in sentence for sentence in other.unknown)
    # Two of unknown pipelines may use the same.
    pipes = replace(SAFE, cycles={"issue": 0.1, "l1_bandwidth": 0.1})
    assert not estimate([pipes, pipes], gpu=H100_NVL).safe
    again = Sharing(lasting=True)
    found = estimate([SAFE, replace(SAFE, cycles=OTHER_PIPES)], gpu=H100_NVL, sharing=again)
    assert found.members[0].worst == STARVED


@pytest.mark.parametrize("pipe", ["xu", "tensor", "lsu"])
def test_a_pipeline_that_one_uses_and_of_the_other_was_not_measured_is_not_safe(pipe: str) -> None:
    """Reports of different coverage: what the other one needs of it may be all."""
    busy = replace(SAFE, name="busy", cycles={**SAFE.cycles, pipe: 0.2})
    idle = replace(SAFE, name="idle", cycles={**SAFE.cycles, pipe: 0.005})
    less = replace(
        SAFE, name="less", cycles={name: used for name, used in SAFE.cycles.items() if name != pipe}
    )
    for one, other, safe in (
        (busy, SAFE, True),
        (busy, less, False),
        (idle, less, True),
        (less, less, True),
    ):
        for pair in ([one, other], [other, one]):
            found = estimate(pair, gpu=H100_NVL)
            assert found.safe is safe
        assert matrix([one], [other], gpu=H100_NVL).safe.item() == safe
    found = estimate([busy, less], gpu=H100_NVL)
    assert f"less: not measured: {pipe}" in found.unknown
    assert [member.worst for member in found.members] == [2.0, 2.0]  # in turn
    assert [member.slowdown for member in found.members] == pytest.approx([1.0] * 2, abs=0.1)


def test_dram_slows_what_waits_for_it() -> None:
    copy = Demand(
        name="copy",
        cycles={"issue": 0.15},
        dram=0.8,
        dram_of="achievable",
        irregular=1.0,
        seconds=1.0,
    )
    bare = replace(copy, cycles={})
    curve = Calibration().dram_curvature
    alone = 1 + curve * 0.8**2
    # N / L, at most all.
    assert slowdowns([copy, copy]) == slowdowns([bare, bare]) == pytest.approx([2 * 0.8] * 2)
    # Of a kernel that is busy for 0.6 of its time: the share used / 0.6 waits.
    for used in (0.0003, 0.05, 0.3):
        busy = replace(copy, cycles={"fma": 0.6}, dram=used)
        low, high = alone, 4.0
        for _ in range(100):  # both at the latency at which they use what makes it
            at = (low + high) / 2
            slow = 1 + used / 0.6 * (at / (1 + curve * used**2) - 1)
            requested = used / slow + 0.8 * alone / at
            low, high = (
                (at, high) if requested > min(1.0, math.sqrt((at - 1) / curve)) else (low, at)
            )
        assert slowdowns([busy, copy]) == pytest.approx([slow, at / alone], rel=1e-9)
        assert slowdowns([copy, busy]) == pytest.approx([at / alone, slow], rel=1e-9)
    assert slowdowns([replace(busy, dram=0.0003), copy])[0] < 1.001


# A copy of 66 blocks of which nothing is in L2.
MISSES = 0.4012 * 0.42 / 0.6918 / Calibration().achievable_share


def _swept(size: float) -> Demand:
    """Copies an array of so many bytes to another again and again, on half of the SMs of an
    H100.
    """
    missed = 1.0 - residency(2 * size / 50e6, 0.9, 1.6)
    longer = 1.0 + missed * (Calibration().l2_miss_cost - 1.0)
    requests = MISSES * (1 + Calibration().dram_curvature * MISSES**2) * Calibration().l2_miss_cost
    moved = requests * 3.938e12 * Calibration().achievable_share / longer
    return Demand(
        name="copy", dram=missed * requests / longer, dram_of="achievable", irregular=1.0, l2_bytes=2 * size,
        l2_bytes_per_s=moved, footprint=Footprint(66, 1024),
    )  # fmt: skip


def test_l2_is_lost_most_where_one_just_fits() -> None:
    """Published: little below, 1.79 times as long at two arrays of 22.5 MB of each, less after
    it.
    """
    slow = {
        size: slowdowns([_swept(size * 1e6), _swept(size * 1e6)])[0]
        for size in (4, 8, 12, 16, 20, 22.5, 25, 30, 60)
    }
    assert slow[4] == slow[8] == 1.0
    assert slow[22.5] == pytest.approx(1.79, abs=0.01)
    assert max(slow, key=lambda size: slow[size]) == pytest.approx(22.5, abs=2.5)
    assert slow[8] < slow[12] < slow[16] < slow[20] <= slow[22.5]
    assert slow[25] > slow[30] > slow[60]
    assert slow[60] < 1.2


def test_l1_is_lost_at_half_the_array_together() -> None:
    """Published: arrays above 108 KB no longer stay alone, above 54 KB of each not together; two
    arrays a block.

    What they are alone is what L1 has room for; together, and in turn at 64 KB, follows.
    """

    def copy(size: float) -> Demand:
        return Demand(name="copy", cycles={"issue": 0.0}, irregular=1.0, l1_bytes=2 * size * 1024)

    slow = {
        size: slowdowns([copy(size), copy(size)])[0]
        for size in (30, 50, 53, 56, 64, 80, 100, 108, 400)
    }
    assert slow[30] == slow[50] == slow[53] == 1.0 < slow[56]
    assert slow[64] == pytest.approx(2.0, abs=0.01)
    assert max(slow, key=lambda size: slow[size]) in (100, 108)
    assert slow[400] == 1.0


def test_hits_that_are_lost_fill_dram() -> None:
    """A copy that lives in L2 takes 2.9 times what DRAM gives: beside another, without L2, both
    wait for DRAM.
    """
    gpu = replace(H100_NVL, l2_bytes=96e6)
    peak = (gpu.dram_bytes_per_s or 0.0) * Calibration().achievable_share
    copy = Demand(name="copy", dram=0.0, irregular=1.0, seconds=1.0, l2_hit=1.0, l2_bytes=80e6,
                  l2_bytes_per_s=2.9 * peak, l2_bandwidth=0.5, footprint=Footprint(66, 1024))  # fmt: skip
    result = estimate([copy, copy], gpu=gpu)
    assert result.members[0].slowdown == pytest.approx(5.8, rel=0.01)
    assert result.members[0].binding == "l2"
    little = replace(copy, l2_bytes=20e6)
    assert estimate([little, little], gpu=gpu).members[0].slowdown == 1.0
    full = replace(little, l2_bandwidth=0.9)
    result = estimate([full, full], gpu=gpu)
    assert result.members[0].slowdown == pytest.approx(1.8)
    assert result.members[0].binding == "l2_bandwidth"


def test_who_is_always_ready_is_served_before_who_waits() -> None:
    """A scheduler goes on with the warp that it issued from last: published of a copy, measured
    of a matrix product.
    """
    ready = Demand(name="fma", cycles={"issue": 1.0, "fma": 1.0}, irregular=0.0, seconds=5.0)
    gemm = Demand(
        name="gemm", cycles={"issue": 0.7, "fma": 0.6}, irregular=0.8, warps=2.0, seconds=1.0
    )
    first, second = estimate([ready, gemm], gpu=H100_NVL).members
    assert first.slowdown == 1.0
    assert second.slowdown == pytest.approx(6.0)  # after it, and no more than in turn
    same = replace(gemm, irregular=0.0)
    # At most in turn.
    assert estimate([ready, same], gpu=H100_NVL).members[0].slowdown == pytest.approx(1.2)
    nearly = replace(ready, cycles={"issue": 0.9, "fma": 0.9}, irregular=0.05, seconds=9.0)
    first, second = estimate(
        [nearly, replace(gemm, irregular=0.5, seconds=1.0)], gpu=H100_NVL
    ).members
    assert first.slowdown == pytest.approx(1.0, abs=0.01)
    assert second.slowdown == pytest.approx(0.7 / 0.1, rel=0.1)  # what the other leaves


def test_two_kernels_are_compared_with_a_share_for_each() -> None:
    kernel = Demand(name="kernel")
    for count in (0, 1, 3):
        with pytest.raises(InputError, match=f"{count} kernels cannot be compared; name two"):
            estimate([kernel] * count, gpu=H100_NVL)
    for shares in ((0.5,), (0.5, 0.0), (0.5, 1.5)):
        with pytest.raises(InputError, match="shares of the SMs for 2 kernels"):
            estimate([kernel, kernel], gpu=H100_NVL, sharing=Sharing("mps", shares))
