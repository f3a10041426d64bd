"""Slowdown of kernels with room beside each other, computed again in plain Python."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.annexes.share.demand import CYCLES, H100_NVL, Calibration, Demand, Footprint
from tachograph.annexes.share.estimate import estimate

ROOM = Footprint(blocks=132, threads=128, registers=32, shared_bytes=0.0)
GPU = replace(H100_NVL, compute_capability=None)  # no ports
CALIBRATION = Calibration()
ANY = st.floats(0, 1)
KERNELS = st.builds(
    Demand,
    name=st.just("kernel"),
    cycles=st.fixed_dictionaries(dict.fromkeys(CYCLES, ANY)),
    dram=ANY,
    dram_of=st.just("achievable"),
    irregular=ANY,
    l2_hit=ANY,
    l2_bytes=st.floats(0, 1.2e8),
    l2_bytes_per_s=st.floats(0, 6e12),
    l1_hit=ANY,
    l1_bytes=st.floats(0, 5e5),
    launch_s=st.just(0.001),
    sm_share=st.just(1.0),
    footprint=st.just(ROOM),
)


def stays(filled: float, knee: float, cliff: float) -> float:
    return min(1.0, max(0.0, (cliff - filled) / (cliff - knee)))


def left(hit: float, own: float, other: float, knee: float, cliff: float) -> float:
    alone = stays(own, knee, cliff)
    return hit * stays(own + other, knee, cliff) / alone if alone else hit


def over(demand: float) -> float:
    if demand <= 0.86:
        return 1.0
    return demand if demand >= 1.14 else 1.0 + (demand - 0.86) ** 2 / 0.56


def by_pipe(own: float, other: float) -> float:
    return 1 + over(own + other) - over(max(own, other))


def by_issue(own: float, other: float, behind: float) -> float:
    own, other = min(own, 0.99), min(other, 0.99)
    longer = 1 + max(own + other - 1, 0) / max(min(own, other), 1e-9)
    last = min(max(own / (1 - other), 1), 20)
    return math.pow(longer, 1 - abs(behind)) * math.pow(last, max(behind, 0))


def traffic(kernel: Demand) -> float:
    peak = (GPU.dram_bytes_per_s or 0.0) * CALIBRATION.achievable_share
    return min((kernel.l2_bytes_per_s or 0.0) / peak, 6.0)


def l2(kernel: Demand, other: Demand) -> tuple[float, float]:
    """Hits that are lost, and how much longer their latency makes it."""
    size = GPU.l2_bytes or 1.0
    found = min(
        kernel.l2_hit or 0.0,
        1 - min(1.0, (kernel.dram or 0.0) / traffic(kernel)) if traffic(kernel) > 1e-9 else 1.0,
    )
    rest = left(found, (kernel.l2_bytes or 0.0) / size, (other.l2_bytes or 0.0) / size, CALIBRATION.l2_knee,
                CALIBRATION.l2_cliff)  # fmt: skip
    cost = CALIBRATION.l2_miss_cost
    longer = (1 + (1 - rest) * (cost - 1)) / (1 + (1 - found) * (cost - 1))
    exposed = (kernel.irregular or 0.0) * (1 - max(kernel.cycles.values()))
    return found - rest, 1 + exposed * (longer - 1)


def by_dram(own: Demand, other: Demand) -> tuple[float, float]:
    """By DRAM, and by DRAM and the latency of lost hits, by a search for the latency."""
    c = CALIBRATION.dram_curvature
    uses = []
    for one, beside in ((own, other), (other, own)):
        lost, longer = l2(one, beside)
        used = ((one.dram or 0.0) + traffic(one) * lost) / longer
        waits = min(1.0, used / max(*one.cycles.values(), used + 1e-9))
        uses.append((used, waits, 1 + c * (one.dram or 0.0) ** 2, longer))

    def slower(latency: float, waits: float, alone: float) -> float:
        return max(1.0, 1 + waits * (latency / alone - 1))

    least, most = 1.0, 1e4
    for _ in range(200):
        latency = math.sqrt(least * most)
        load = sum(used / slower(latency, waits, alone) for used, waits, alone, _ in uses)
        if load > min(1.0, math.sqrt((latency - 1) / c)):
            least = latency
        else:
            most = latency
    used, waits, alone, longer = uses[0]
    by = slower(least, waits, alone) if used > 0 else 1.0
    return by, by * longer if longer > 1 else 1.0


@given(KERNELS, KERNELS)
def test_two_with_room_for_both(own: Demand, other: Demand) -> None:
    behind = (own.irregular or 0.0) - (other.irregular or 0.0)
    expected = [by_pipe(own.cycles[name], other.cycles[name]) for name in CYCLES if name != "issue"]
    expected.append(by_issue(own.cycles["issue"], other.cycles["issue"], behind))
    expected += by_dram(own, other)
    delivered = GPU.l2_bytes_per_s or 1.0
    shares = [min(1.0, (one.l2_bytes_per_s or 0.0) / delivered) for one in (own, other)]
    expected.append(by_pipe(*shares))
    size, cost = GPU.l1_bytes or 1.0, CALIBRATION.l1_miss_cost
    hit = own.l1_hit or 0.0
    rest = left(hit, (own.l1_bytes or 0.0) / size, (other.l1_bytes or 0.0) / size, CALIBRATION.l1_knee,
                CALIBRATION.l1_cliff)  # fmt: skip
    longer = (1 + (1 - rest) * (cost - 1)) / (1 + (1 - hit) * (cost - 1))
    expected.append(1 + (own.irregular or 0.0) * (1 - max(own.cycles.values())) * (longer - 1))
    found = estimate([own, other], gpu=GPU, calibration=CALIBRATION).members[0]
    assert found.slowdown == pytest.approx(max(expected), rel=1e-4)
