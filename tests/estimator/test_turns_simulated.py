"""Turns against a block scheduler that is simulated block by block, and by hand."""

from __future__ import annotations

import random
from statistics import mean, median

import pytest
from block_scheduler import SimulatedLaunch, StreamTimes, repeated

from tachograph.annexes.share.demand import CYCLES, Demand, Footprint, GpuCapacity
from tachograph.annexes.share.estimate import estimate

SMS, THREADS = 8, 2048
GPU = GpuCapacity(
    name="simulated", sms=SMS, threads_per_sm=THREADS, blocks_per_sm=32, registers_per_sm=65536,
    shared_bytes_per_sm=2e5,
)  # fmt: skip


def demand(launch: SimulatedLaunch, alone: StreamTimes) -> Demand:
    """What a profile says of a launch that contends with none."""
    return Demand(
        name="k", cycles=dict.fromkeys(CYCLES, 0.0), dram=0.0, l2_hit=0.0, l2_bandwidth=0.0, irregular=0.0,
        sm_share=alone.active, launch_s=alone.launch_s,
        footprint=Footprint(launch.blocks, launch.threads, 0, 0.0),
    )  # fmt: skip


def test_any_two_launches_take_as_long_as_the_simulated_scheduler_makes_them() -> None:
    """Launches of any width and any number of waves. The rule of turns is three times as far off
    on the mean, and ten times on the median.
    """
    chance = random.Random(5)
    by_law: list[float] = []
    by_turns: list[float] = []
    while len(by_law) < 60:
        pair = [
            SimulatedLaunch(
                blocks=chance.choice([1, 3, 8, 12, 20, 32, 70, 200]),
                threads=chance.choice([64, 128, 256, 512, 1024, 2048]),
                block_s=10 ** chance.uniform(0, 1.3),
            )
            for _ in range(2)
        ]
        alone = [repeated([launch], sms=SMS, threads_per_sm=THREADS, seed=3)[0] for launch in pair]
        times = sorted(one.launch_s for one in alone)
        if times[1] > 30 * times[0]:
            continue
        together = repeated(pair, sms=SMS, threads_per_sm=THREADS, seed=4)
        found = estimate([demand(*one) for one in zip(pair, alone, strict=True)], gpu=GPU)
        for member, one, both in zip(found.members, alone, together, strict=True):
            measured = both.launch_s / one.launch_s
            assert member.slowdown is not None
            by_law.append(abs(member.slowdown / measured - 1.0))
            by_turns.append(abs(sum(times) / one.launch_s / measured - 1.0))
    assert median(by_law) < 0.03
    assert mean(by_law) < 0.12
    assert mean(by_turns) > 3 * mean(by_law)
    assert median(by_turns) > 10 * median(by_law)


def launch(blocks: int, threads: int, launch_s: float, active: float = 1.0) -> Demand:
    return demand(SimulatedLaunch(blocks, threads, 0.0), StreamTimes(launch_s, active))


@pytest.mark.parametrize(
    ("own", "other", "slowdown"),
    [
        # Both fill the GPU once: one launch waits for the other.
        (launch(8, 2048, 1.0), launch(8, 2048, 3.0), 4.0),
        # One block of 1 s beside ten full waves: it waits for all of them, and they for an eighth of
        # the SMs.
        (launch(1, 2048, 1.0), launch(80, 2048, 10.0), 10.0 + 1 / 8),
        # Of 9.5 waves the last one leaves half of the SMs: in its 1 s ten launches of 0.1 s end, and
        # half of one is under way, for which the other waits with an eighth of the SMs.
        (launch(1, 2048, 0.1), launch(76, 2048, 10.0), (10.0 + 0.5 * 0.1 / 8) / (10.5 * 0.1)),
        # Beside a launch that leaves room on every SM nothing waits.
        (launch(8, 256, 1.0), launch(8, 1024, 1.0), 1.0),
        (launch(1, 32, 0.1), launch(8, 1024, 10.0), 1.0),
    ],
)
def test_turns_by_hand(own: Demand, other: Demand, slowdown: float) -> None:
    assert estimate([own, other], gpu=GPU).members[0].slowdown == pytest.approx(slowdown, rel=1e-6)
