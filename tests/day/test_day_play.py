"""A day conserves work and room, is the same for the same seed, and is first come first served."""

from __future__ import annotations

import heapq
from collections import defaultdict

import numpy as np
import pytest

from day.gpu import alone
from day.jobs import DAY_S, Application, SharedDay, day_of, dcgm, measured
from day.report import tally
from day.schedule import PAIR, POLICIES, Permits, PlayedDay, PolicyKnowledge, permitted, play, true_speeds
from tachograph.catalog.arrays import Floats
from tachograph.catalog.config import InterferenceOptions
from tachograph.sharing.demand import H100_NVL

GPUS = 8
HBM = H100_NVL.hbm_bytes or 0.0
BY_CODE = {policy.code: policy for policy in POLICIES}
WITHOUT_ESTIMATOR = ("exclusive", "roofline", "occupancy", "oracle")  # policies


def world(seed: int, jobs: int = 150) -> tuple[SharedDay, Floats, PolicyKnowledge]:
    day = day_of(seed, jobs=jobs, gpus=GPUS, load=1.4)
    return day, *known(day, seed)


def known(day: SharedDay, seed: int) -> tuple[Floats, PolicyKnowledge]:
    speed = true_speeds(day, seed)
    chance = np.random.default_rng(seed)
    seen = [measured(application, chance) for application in day.applications]
    unknown = np.full(speed.shape, np.nan)
    return speed, PolicyKnowledge(seen, unknown, unknown, np.zeros(speed.shape, bool), 1 / speed, InterferenceOptions())


def played(code: str, day: SharedDay, speed: Floats, everything: PolicyKnowledge, gpus: int = GPUS) -> PlayedDay:
    return play(day, permitted(BY_CODE[code], everything, hbm_bytes=HBM), speed, gpus=gpus)


@pytest.mark.parametrize("code", WITHOUT_ESTIMATOR)
@pytest.mark.parametrize("seed", [1, 2])
def test_work_and_room_are_conserved(code: str, seed: int) -> None:
    day, speed, everything = world(seed)
    found = played(code, day, speed, everything)
    work: dict[int, float] = defaultdict(float)
    per_gpu: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for stay in found.stays:
        kinds = [int(day.application[job]) for job in stay.jobs]
        assert 1 <= len(stay.jobs) <= PAIR
        assert sum(day.applications[kind].hbm_bytes for kind in kinds) <= 0.9 * HBM or len(kinds) == 1
        for place, job in enumerate(stay.jobs):
            rate = speed[kinds[place], kinds[1 - place]] if len(kinds) == 2 else 1.0
            work[job] += rate * (stay.end_s - stay.begin_s)
            assert found.gpus[job] == stay.gpus
        per_gpu[stay.gpus[0]].append((stay.begin_s, stay.end_s))
    assert [work[job] for job in range(day.alone_s.size)] == pytest.approx(day.alone_s.tolist(), rel=1e-6)
    for times in per_gpu.values():
        assert all(end <= begin for (_, end), (begin, _) in zip(sorted(times), sorted(times)[1:], strict=False))
    assert (found.starts_s >= day.arrives_s).all()
    assert found.ran_s.tolist() == pytest.approx((found.ends_s - found.starts_s).tolist())
    assert (found.ran_s >= day.alone_s * (1 - 1e-9)).all()
    assert tally(day, found).jobs_finished == day.alone_s.size


def test_who_has_a_gpu_alone_is_not_slowed_at_all() -> None:
    day, speed, everything = world(3)
    found = played("exclusive", day, speed, everything)
    assert (found.ran_s / day.alone_s).tolist() == [1.0] * day.alone_s.size
    came = tally(day, found)
    assert (came.slowdown_mean, came.slowdown_max, came.slower_10, came.shared) == (1.0, 1.0, 0.0, 0.0)
    assert came.per_gpu_hour == pytest.approx(1)


def test_exclusive_use_is_a_queue_with_many_counters() -> None:
    day, speed, everything = world(4)
    free = [0.0] * GPUS
    expected = []
    for arrives, alone_s in zip(day.arrives_s.tolist(), day.alone_s.tolist(), strict=True):
        starts = max(arrives, heapq.heappop(free))
        expected.append(starts)
        heapq.heappush(free, starts + alone_s)
    assert played("exclusive", day, speed, everything).starts_s.tolist() == pytest.approx(expected)


def test_a_day_is_the_same_for_the_same_seed() -> None:
    one, again, other = world(5), world(5), world(6)
    assert one[0].alone_s.tolist() == again[0].alone_s.tolist() != other[0].alone_s.tolist()
    assert one[0].applications == again[0].applications
    assert one[1].tolist() == again[1].tolist()
    assert [seen.phases for seen in one[2].seen] == [seen.phases for seen in again[2].seen]
    first, second = played("occupancy", *one), played("occupancy", *again)
    assert first.stays == second.stays
    assert tally(one[0], first) == tally(again[0], second)


@pytest.mark.parametrize("seed", range(1, 6))
def test_the_oracle_keeps_what_it_promises(seed: int) -> None:
    day, speed, everything = world(seed)
    came = tally(day, played("oracle", day, speed, everything))
    assert came.slowdown_max <= InterferenceOptions().max_slowdown + 1e-9
    assert came.slower_10 == 0
    assert came.shared > 0.1


def test_a_day_needs_for_what_it_was_reported_to_and_has_a_shape() -> None:
    day = day_of(1, jobs=5000, gpus=100, load=1.4)
    assert day.alone_s.sum() == pytest.approx(1.4 * 100 * DAY_S)
    assert (np.diff(day.arrives_s) >= 0).all()
    hours = np.histogram(day.arrives_s / 3600, bins=24, range=(0, 24))[0]
    assert hours[12:16].mean() > 5 * hours[0:4].mean()
    assert all(sum(share for share, _ in one.phases) == pytest.approx(1) for one in day.applications)


def two(first: str, second: str) -> SharedDay:
    """Two jobs of an hour each that come at once."""
    applications = tuple(Application(name, ((1.0, name),), 5e9) for name in (first, second))
    return SharedDay(applications, np.array([0, 1]), np.zeros(2), np.full(2, 3600.0), np.ones(2, np.int64))


def test_complementary_classes_double_the_time_of_a_copy() -> None:
    day = two("fmul-ilp4-1024", "copy-132x1024")
    speed, everything = known(day, 1)
    assert [one.bound for one in everything.seen] == ["compute", "memory"]
    found = played("roofline", day, speed, everything, gpus=1)
    assert found.starts_s.tolist() == [0, 0]
    assert 1.8 <= found.ran_s[1] / 3600 <= 2.1


def test_low_occupancies_slow_each_other() -> None:
    day = two("fmul-ilp4-128", "fmul-ilp4-128")
    speed, everything = known(day, 2)
    assert [one.occupancy for one in everything.seen] == [0.0625, 0.0625]
    found = played("occupancy", day, speed, everything, gpus=1)
    assert found.starts_s.tolist() == [0, 0]
    assert 1.65 <= found.ran_s.max() / 3600 <= 1.95
    assert not permitted(BY_CODE["roofline"], everything, hbm_bytes=HBM).may.any()


def test_a_place_beside_another_goes_to_who_costs_least() -> None:
    day = SharedDay(
        tuple(Application(name, ((1.0, name),), 5e9) for name in ("dmul-ilp4", "sleep-132", "dmul-ilp1")),
        np.array([0, 1, 2]),
        np.array([0.0, 1.0, 2.0]),
        np.full(3, 3600.0),
        np.ones(3, np.int64),
    )
    speed = true_speeds(day, 1)
    all_may = Permits(speed > 0, 1 / speed + 1 / speed.T)
    assert play(day, all_may, speed, gpus=2).gpus == ((0,), (1,), (1,))


def test_means_of_dcgm_are_of_all_time() -> None:
    half = Application("half", ((0.5, "dmul-ilp4"), (0.5, None)), 5e9)
    seen = dcgm(half, np.random.default_rng(1))
    ((busy, demand),) = seen.phases
    assert busy == pytest.approx(0.5, rel=0.15)
    assert demand.cycles["fp64"] == pytest.approx(alone("dmul-ilp4").pipes["fp64"], rel=0.25)
    assert demand.hbm_bytes == pytest.approx(5e9)
    assert demand.footprint is None
