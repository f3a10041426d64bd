"""What is told of warps at a scheduler, against schedulers simulated slot by slot."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scheduler import Warps, irregular, regular, served

from tachograph.annexes.share.contention import DOMINANCE, cycles_rate, elsewhere, through

FEW, MANY = -0.09, 0.05  # told against simulated: at most so much too slow, too fast


def waits(own: float, warps: float) -> float:
    return float(elsewhere(np.array(own), np.array(warps)))


def found(own: float, other: float, warps: int, how: float, others_warps: int) -> float:
    """The rate of one kernel beside one other, as the estimator tells it."""
    first, last = other > DOMINANCE * own, own > DOMINANCE * other
    stands = other if first else other / (1 + other / others_warps)
    peers = 0.0 if first or last else other
    return cycles_rate(own, other if first else 0.0, peers, stands, waits(own, warps), warps, how)


@pytest.mark.parametrize(
    ("warps", "wait", "gap"), list(itertools.product((1, 8), (6, 60), (0.05, 0.5)))
)
def test_a_kernel_behind_one_that_is_served_first(warps: int, wait: int, gap: float) -> None:
    own, other = Warps(warps, irregular(wait)), Warps(1, irregular(gap), first=True)
    alone, requested = served([own])[0], served([other])[0]
    if alone * DOMINANCE < requested:
        simulated = served([own, other])[0] / alone
        assert FEW < found(alone, requested, warps, 1.0, 1) / simulated - 1 < MANY


@pytest.mark.parametrize(("warps", "wait"), list(itertools.product((1, 2, 8), (0.33, 3, 20))))
def test_two_of_the_same_whose_warps_wait_irregularly(warps: int, wait: float) -> None:
    own = Warps(warps, irregular(wait))
    alone = served([own])[0]
    simulated = sum(served([own, own])) / 2 / alone
    assert -0.15 < found(alone, alone, warps, 1.0, warps) / simulated - 1 < 0.02


@pytest.mark.parametrize(("warps", "wait"), list(itertools.product((1, 2, 8), (1, 8))))
def test_two_of_the_same_whose_warps_wait_regularly_lose_nothing(warps: int, wait: int) -> None:
    own = Warps(warps, regular(wait))
    alone = served([own])[0]
    simulated = sum(served([own, own])) / 2 / alone
    assert found(alone, alone, warps, 0.0, warps) == pytest.approx(simulated, rel=0.002)


def test_two_of_one_warp_are_the_two_customers_of_the_book() -> None:
    think = 1 / 0.75 - 1  # P0 of two customers: 1 / (1 + 2 / Z + 2 / Z^2)
    busy = 1 - 1 / (1 + 2 / think + 2 / think**2)
    assert 1 / found(0.75, 0.75, 1, 1.0, 1) == pytest.approx(1.5 / busy, rel=1e-12)


@pytest.mark.parametrize(("warps", "own"), [(1, 0.6), (2, 0.7), (4, 0.3), (8, 0.1525), (16, 0.9)])
def test_a_closed_queue_is_close_to_the_exact_one(warps: int, own: float) -> None:
    def exact(think: float, service: float) -> float:
        line = 0.0
        for customers in range(1, warps + 1):  # mean value analysis
            response = service * (1 + line)
            line = customers * response / (think + response)
        return line / response

    low, high = 0.0, warps / own
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if exact(middle, 1.0) > own else (low, middle)
    for left in (0.05, 0.14, 0.3, 0.5, 0.8, 1.0):
        assert through(own, waits(own, warps), warps, left) == pytest.approx(
            exact(low, 1 / left) / own, rel=0.07
        )
