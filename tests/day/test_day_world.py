"""The world of a simulated day shows what was published, and is no estimator."""

from __future__ import annotations

import ast
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from day import gpu as day_kernels
from day import gpu as day_world
from day.gpu import KERNELS, NAMES, PIPES, alone, corunners, most_blocks, rates, room_left, world
from day.schedule import Phases, speeds

COPY = "copy-132x1024"
Shares = Sequence[tuple[float, str | None]]


def sequential_over_together(first: str, second: str) -> float:
    """Of two kernels that take as long alone: one after the other, over together until both are done."""
    slow, fast = sorted(rates(first, second))
    return 2 / (1 / fast + 1 - slow / fast)


@pytest.mark.parametrize(
    ("kernel", "ipc"),
    [
        ("fmul-ilp1-128", 1.08),
        ("fmul-ilp2-128", 2.06),
        ("fmul-ilp3-128", 2.9),
        ("fmul-ilp4-128", 3.45),
        ("fmul-ilp4-256", 4.0),
        (COPY, 0.61),
        ("dmul-ilp1", 0.51),
        ("dmul-ilp2", 1.02),
        ("dmul-ilp3", 1.53),
        ("dmul-ilp4", 2.01),
        ("gemm-fp32", 3.0),
    ],
)
def test_instructions_per_cycle_alone_are_as_published(kernel: str, ipc: float) -> None:
    assert 4 * alone(kernel).issued == pytest.approx(ipc, rel=0.1)


@pytest.mark.parametrize(
    ("first", "second", "published", "off"),
    [
        ("fmul-ilp1-128", COPY, 1.915, 0.03),
        ("fmul-ilp2-128", COPY, 1.896, 0.03),
        ("fmul-ilp3-128", COPY, 1.893, 0.03),
        ("fmul-ilp4-128", COPY, 1.65, 0.15),
        ("fmul-ilp4-1024", COPY, 1.001, 0.1),
        ("dmul-ilp1", "dmul-ilp1", 1.988, 0.03),
        ("dmul-ilp2", "dmul-ilp2", 1.977, 0.03),
        ("dmul-ilp3", "dmul-ilp3", 1.356, 0.05),
        ("dmul-ilp4", "dmul-ilp4", 1.018, 0.05),
        ("sleep-132", "sleep-132", 2.0, 0.03),
        ("sleep-264", "sleep-264", 1.0, 0.01),
    ],
)
def test_gains_of_pairs_are_as_published(first: str, second: str, published: float, off: float) -> None:
    assert sequential_over_together(first, second) == pytest.approx(published, rel=off)


def test_kernels_of_low_occupancy_slow_each_other() -> None:
    slowdowns = [1 / rate for rate in rates("fmul-ilp4-128", "fmul-ilp4-128")]
    assert KERNELS["fmul-ilp4-128"].warps_of(1) / 16 == 0.0625
    assert 1.7 <= sum(slowdowns) / 2 <= 1.9


def test_a_pair_is_the_same_the_other_way_round() -> None:
    for first in KERNELS:
        for second in ("fmul-ilp4-256", COPY, "sleep-264"):
            assert rates(first, second) == rates(second, first)[::-1] or first == second


def test_no_kernel_speeds_up_or_uses_more_than_there_is() -> None:
    for kernel in KERNELS:
        counted = alone(kernel)
        assert 0 < counted.issued <= 1
        assert 0 <= counted.dram <= 1
        assert set(counted.pipes) == set(PIPES)
        assert all(0 <= rate <= 1 for rate in rates(kernel, "layer-norm"))


def test_blocks_fit_by_what_runs_out_first() -> None:
    attention, sleep = KERNELS["attention"], KERNELS["sleep-264"]
    assert attention.fitting == int(228 * 1024 / 80e3)  # shared memory; registers would let two fit, threads 16
    assert sleep.fitting == 2
    assert most_blocks(KERNELS["fmul-ilp1-128"], *room_left([sleep], [sleep.resident])) == 0
    assert most_blocks(sleep, *room_left([KERNELS["sleep-132"]], [1])) == 1


def test_the_world_knows_no_estimator() -> None:
    """Else advice would be right by construction."""
    imported = {
        node.module.rsplit(".", 1)[-1]
        for module in (day_world, day_kernels)
        for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tachograph.sharing")
    }
    assert imported == {"demand"}


def walked(first: Shares, second: Shares, cycles: tuple[float, float], seed: int) -> list[float]:
    """Speeds of two applications, counted on a long random walk through their phases."""
    chance, kept = random.Random(1), corunners(seed)
    phases, at = (first, second), [0, 0]
    done, time = [0.0, 0.0], 0.0
    for _ in range(60_000):
        (share_a, a), (share_b, b) = first[at[0]], second[at[1]]
        rate = [1.0, 1.0]
        if a and b:
            i, j = NAMES.index(a), NAMES.index(b)
            rate = [rates(a, b)[0] * kept[i, j], rates(b, a)[0] * kept[j, i]]
        ends = [rate[0] / (share_a * cycles[0]), rate[1] / (share_b * cycles[1])]
        for place, one in enumerate(phases):
            if len(one) == 1:
                ends[place] = 0.0
        step = chance.expovariate(sum(ends))
        time += step
        done = [amount + step * speed for amount, speed in zip(done, rate, strict=True)]
        who = 0 if chance.random() < ends[0] / sum(ends) else 1
        at[who] = (at[who] + 1) % len(phases[who])
    return [amount / time for amount in done]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([(0.6, "fmul-ilp4-256"), (0.4, None)], [(0.7, COPY), (0.3, None)]),
        ([(1.0, "dmul-ilp4")], [(0.2, "dmul-ilp4"), (0.5, "layer-norm"), (0.3, None)]),
    ],
)
def test_speeds_of_applications_are_those_of_a_random_walk(first: Shares, second: Shares) -> None:
    found = speeds(Phases.of(first, cycle_s=3.0), Phases.of(second, cycle_s=20.0), world(5))
    assert found == pytest.approx(walked(first, second, (3.0, 20.0), 5), rel=0.05)


def test_company_costs_what_was_published_for_pairs_that_contend_for_nothing() -> None:
    lost = 1 - corunners(1)
    published = [1 - gain / 2 for gain in (1.988, 1.977, 1.915, 1.896, 1.893)]
    assert lost.mean() == pytest.approx(sum(published) / len(published), abs=0.005)
    assert corunners(1).tolist() == corunners(1).tolist() != corunners(2).tolist()
