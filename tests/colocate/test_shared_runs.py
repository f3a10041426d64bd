"""Slowdowns of runs beside others: planted ones are recovered, and what is not known stays unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import combinations, count, pairwise
from math import log
from statistics import fmean, median
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted_runs import PLANTED, held_runs

from tachograph.annexes.lab.simulate.plan import SimulationPlan
from tachograph.annexes.lab.simulate.shared_gpus import sharing_runs
from tachograph.annexes.share.shared_runs import (
    CONFIDENCE,
    HeldGpu,
    HeldRun,
    PairKey,
    RunGroup,
    SharedPair,
    SharedRuns,
    caveats,
    median_slowdown,
    own_counter,
    shared_runs,
    slowdown_by_rate,
    slowdown_by_time,
)

SEEDS = range(16)
START = datetime(2026, 4, 1, tzinfo=UTC)
GPU, OTHER_GPU = HeldGpu("c", "n1", 0), HeldGpu("c", "n1", 1)
ANN, BOB, EVE = (RunGroup(user, "train", "H100", 1) for user in ("ann", "bob", "eve"))
UNKNOWN = RunGroup(None, None, None, 0)
_NUMBERS = count()


def held(
    group: RunGroup, begin_min: float, minutes: float, *gpus: HeldGpu, **given: Any
) -> HeldRun:
    start = START + timedelta(minutes=begin_min)
    values: dict[str, Any] = {
        "key": f"{group.user}{next(_NUMBERS)}",
        "end": start + timedelta(minutes=minutes),
        "elapsed_s": 60 * minutes,
        "completed": True,
        "gpus": gpus or (GPU,),
    }
    return HeldRun(group=group, start=start, **(values | given))


def alone(group: RunGroup, *minutes: float, **given: Any) -> list[HeldRun]:
    """Runs one after the other, long before those of the tests, on a GPU of their own."""
    gpu = HeldGpu("c", "n2", next(_NUMBERS))
    return [
        held(group, -1000 * (place + 1), length, gpu, alone=True, **given)
        for place, length in enumerate(minutes)
    ]


def together(times: int, *members: tuple[RunGroup, float, float], **given: Any) -> list[HeldRun]:
    """Each of (group, begin, minutes) on one GPU, so many times, a day apart."""
    return [
        held(group, 1440 * day + begin, minutes, **given)
        for day in range(times)
        for group, begin, minutes in members
    ]


@pytest.fixture(scope="module")
def by_seed() -> list[SharedRuns]:
    plans = [SimulationPlan.sharing(seed=seed) for seed in SEEDS]
    return [shared_runs(held_runs(plan, sharing_runs(plan))) for plan in plans]


def names_of(pair: SharedPair) -> tuple[str, str]:
    return str(pair.key.group.name), str(pair.key.partner.name)


def test_planted_slowdowns_are_in_nine_of_ten_intervals(by_seed: list[SharedRuns]) -> None:
    hits: Counter[tuple[str, str]] = Counter()
    errors: dict[tuple[str, str], list[float]] = {}
    for found in by_seed:
        for pair in found.pairs:
            measured, planted = slowdown_by_time(pair), PLANTED[names_of(pair)]
            if measured is not None:
                assert measured.low <= measured.slowdown <= measured.high
                errors.setdefault(names_of(pair), []).append(log(measured.slowdown / planted))
                hits[names_of(pair)] += measured.low <= planted <= measured.high
    measured_pairs = {name: len(of_pair) for name, of_pair in errors.items()}
    assert sum(measured_pairs.values()) > 10 * len(SEEDS)
    coverage = hits.total() / sum(measured_pairs.values())
    assert CONFIDENCE - 0.05 <= coverage <= 0.97  # wider intervals than claimed are wrong, too
    for name, of_pair in errors.items():
        assert abs(fmean(of_pair)) < 0.02, name
        assert hits[name] / len(of_pair) > 0.75, name


def test_who_never_shares_or_changes_partners_has_no_slowdown(by_seed: list[SharedRuns]) -> None:
    for found in by_seed:
        names = {names_of(pair) for pair in found.pairs}
        assert not [pair for pair in names if "solo" in pair]
        # Where a partner failed at its start, the other one was there for most of the time.
        changing = [pair for pair in found.pairs if pair.key.group.name == "sweep"]
        assert [slowdown_by_time(pair) for pair in changing] == [None] * len(changing)
        rare = [pair for pair in found.pairs if pair.key.group.name == "rare"]
        assert [slowdown_by_time(pair) for pair in rare] == [None] * len(rare)
        left_out = {(group.name, reason) for group, reason in found.left_out}
        assert ("sweep", "several") in left_out
        assert "solo" not in {name for name, _ in left_out}


def test_models_are_kept_apart(by_seed: list[SharedRuns]) -> None:
    """Jobs take half as long again on an A100, and have both models in the accounting."""
    for found in by_seed:
        for pair in found.pairs:
            runs = [*pair.alone, *(shared.run for shared in pair.beside)]
            assert {run.group for run in runs} == {pair.key.group}
            assert {run.completed for run in runs} == {True}
    models = {pair.key.group.gpu_model for found in by_seed for pair in found.pairs}
    assert models == {"H100 SXM 80GB", "A100 SXM 80GB"}


def test_three_and_three_runs_by_hand() -> None:
    runs = [*alone(ANN, 60, 50, 40), *together(3, (ANN, 0, 75), (BOB, 0, 75))]
    (pair,) = [pair for pair in shared_runs(runs).pairs if pair.key.group == ANN]
    measured = slowdown_by_time(pair)
    assert measured is not None
    ends = (measured.slowdown, measured.low, measured.high)
    assert ends == pytest.approx((75 / 50, 75 / 60, 75 / 40))
    other = shared_runs(runs).pairs[1]
    assert (other.key.group, slowdown_by_time(other)) == (BOB, None)  # it was never alone


def test_a_run_alone_for_a_part_of_its_time_did_that_part_at_full_speed() -> None:
    """80 of 100 minutes at half speed and 20 alone are the work of 60 minutes."""
    runs = [*alone(ANN, 60, 60, 60), *together(3, (ANN, 0, 100), (BOB, 20, 80))]
    (pair,) = [pair for pair in shared_runs(runs).pairs if pair.key.group == ANN]
    measured = slowdown_by_time(pair)
    assert measured is not None
    assert (measured.low, measured.high) == pytest.approx((2.0, 2.0))


@pytest.mark.parametrize("missing", ["alone", "beside"])
def test_two_runs_on_a_side_are_too_few(missing: str) -> None:
    counts = (2, 30) if missing == "alone" else (30, 2)
    runs = [*alone(ANN, *[60.0] * counts[0]), *together(counts[1], (ANN, 0, 75), (BOB, 0, 75))]
    assert [slowdown_by_time(pair) for pair in shared_runs(runs).pairs] == [None, None]


CASES = {
    "two partners in turn": (together(3, (ANN, 0, 90), (BOB, 0, 45), (EVE, 45, 45)), "several"),
    "two partners at once": (together(3, (ANN, 0, 90), (BOB, 0, 90), (EVE, 0, 90)), "several"),
    "two runs of a partner at once": (
        together(3, (ANN, 0, 90), (BOB, 0, 90), (BOB, 0, 90)),
        "several",
    ),
    "somebody unknown": (together(3, (ANN, 0, 90), (UNKNOWN, 0, 90)), "several"),
    "somebody unknown for a tenth": (
        together(3, (ANN, 0, 90), (BOB, 0, 90), (UNKNOWN, 0, 9)),
        "several",
    ),
    "a half of the time": (together(3, (ANN, 0, 90), (BOB, 0, 45)), "partly"),
}


@pytest.mark.parametrize(("runs", "reason"), CASES.values(), ids=CASES)
def test_runs_that_are_left_out(runs: list[HeldRun], reason: str) -> None:
    found = shared_runs([*alone(ANN, 60, 60, 60), *runs])
    assert not [pair for pair in found.pairs if pair.key.group == ANN]
    assert found.left_out[ANN, reason] == 3


def test_runs_of_a_partner_one_after_the_other_are_one_company() -> None:
    in_turn = together(3, (ANN, 0, 90), (BOB, 0, 45), (BOB, 10, 1), (BOB, 45, 45))
    found = shared_runs([*alone(ANN, 60, 60, 60), *in_turn])
    (pair,) = [pair for pair in found.pairs if pair.key.group == ANN]
    assert [shared.share for shared in pair.beside] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(("gpus", "share"), [((GPU,), None), ((GPU, OTHER_GPU), 0.9)])
def test_the_gpu_that_is_shared_least_decides(
    gpus: tuple[HeldGpu, ...], share: float | None
) -> None:
    wide = replace(ANN, gpus=2)
    runs = [held(wide, 0, 90, GPU, OTHER_GPU), held(replace(BOB, gpus=2), 0, 81, *gpus)]
    pairs = [pair for pair in shared_runs(runs).pairs if pair.key.group == wide]
    assert [pair.beside[0].share for pair in pairs] == ([] if share is None else [share])


def test_a_hand_over_is_no_company() -> None:
    runs = [held(ANN, 100 * place, 100.5, alone=True) for place in range(3)]
    found = shared_runs([*runs, *together(3, (ANN, 5000, 90), (BOB, 5000, 90))])
    (pair,) = [pair for pair in found.pairs if pair.key.group == ANN]
    assert [run.key for run in pair.alone] == [run.key for run in runs]


def test_only_completed_runs_with_the_whole_gpu_are_the_baseline() -> None:
    good = alone(ANN, 60, 60, 60)
    others = [
        *alone(ANN, 30, completed=False),
        *alone(ANN, 99, mps=0.5),  # its part of the SMs slows it alone, too
        *alone(replace(ANN, gpus=2), 20),
        *alone(replace(ANN, gpu_model="A100"), 90),
        held(ANN, 9000, 60),  # no record says that nobody was beside it
    ]
    # attribution said alone, but a record names another run on its GPU
    claimed = [held(ANN, 9900, 55, alone=True), held(EVE, 9900, 60)]
    shared = together(3, (ANN, 0, 75), (BOB, 0, 75))
    failed = together(2, (ANN, 20000, 10), (BOB, 20000, 10), completed=False)
    found = shared_runs([*good, *others, *claimed, *shared, *failed])
    (pair,) = [pair for pair in found.pairs if pair.key.group == ANN and pair.key.partner == BOB]
    assert {run.key for run in pair.alone} == {run.key for run in good}
    assert len(pair.beside) == 3


def test_parts_by_mps_are_pairs_of_their_own() -> None:
    runs = together(3, (ANN, 0, 75), (BOB, 0, 75))
    halves = together(3, (ANN, 9000, 90), (BOB, 9000, 90), mps=0.5)
    keys = {pair.key for pair in shared_runs([*runs, *halves]).pairs if pair.key.group == ANN}
    assert keys == {PairKey(ANN, BOB, None, None), PairKey(ANN, BOB, 0.5, 0.5)}


def test_only_chosen_runs_are_measured_but_all_are_company() -> None:
    runs = [*alone(ANN, 60, 60, 60), *alone(BOB, 60, 60, 60)]
    runs += together(3, (ANN, 0, 75), (BOB, 0, 75))
    mine = {run.key for run in runs[1:] if run.group == ANN}  # all but one that was alone
    (pair,) = shared_runs(runs, mine).pairs
    assert (pair.key.group, pair.key.partner) == (ANN, BOB)
    assert (len(pair.alone), len(pair.beside), len(pair.partner_alone)) == (2, 3, 3)


def test_the_last_thirty_runs_of_either_side_count() -> None:
    runs = [*alone(ANN, *[60.0] * 35), *together(40, (ANN, 0, 75), (BOB, 0, 75))]
    (pair,) = [pair for pair in shared_runs(runs).pairs if pair.key.group == ANN]
    of_ann = sorted((run for run in runs if run.group == ANN), key=lambda run: run.start)
    assert list(pair.alone) == of_ann[5:35]
    assert [shared.run for shared in pair.beside] == of_ann[-30:]


@given(
    st.lists(st.floats(0.5, 2), min_size=3, max_size=5),
    st.lists(st.tuples(st.floats(0.5, 2), st.floats(0.8, 1)), min_size=3, max_size=5),
)
def test_the_interval_is_that_of_the_rank_sum_test(
    alone_s: list[float], beside: list[tuple[float, float]]
) -> None:
    """Factors inside are those that the exact two-sided test does not reject, by all orders."""
    found = median_slowdown(alone_s, beside)
    sizes = len(alone_s), len(beside)
    of_all = []
    for places in combinations(range(sum(sizes)), sizes[1]):
        rest = [place for place in range(sum(sizes)) if place not in places]
        of_all.append(sum(place > other for place in places for other in rest))

    def is_kept(factor: float) -> bool:
        work = [length * (share / factor + 1 - share) for length, share in beside]
        longer = sum(one > other for one in work for other in alone_s)
        tails = (
            sum(other <= longer for other in of_all),
            sum(other >= longer for other in of_all),
        )
        return min(tails) / len(of_all) > (1 - CONFIDENCE) / 2 + 1e-9

    rates = [(other / length - 1 + share) / share for length, share in beside for other in alone_s]
    ratios = sorted({1 / rate for rate in rates if rate > 0})
    if found is None:  # beside the other it did nothing: any factor is possible, however high
        assert is_kept(1e9)
        return
    between = [(one * two) ** 0.5 for one, two in pairwise(ratios) if two / one > 1 + 1e-6]
    for factor in (ratios[0] / 2, *between, ratios[-1] * 2):
        assert is_kept(factor) == (found.low < factor < found.high)


@given(st.integers(3, 12), st.integers(3, 12), st.integers(0, 2**32 - 1))
def test_slowdowns_are_ratios(first: int, second: int, seed: int) -> None:
    """Times in other units change nothing; a slowed side scales the result."""
    rng = np.random.default_rng(seed)
    alone_s = rng.lognormal(0, 0.2, first).tolist()
    lengths = rng.lognormal(0, 0.2, second).tolist()
    found = median_slowdown(alone_s, [(length, 1.0) for length in lengths])
    twice = median_slowdown(alone_s, [(2 * length, 1.0) for length in lengths])
    minutes = median_slowdown(
        [length / 60 for length in alone_s], [(length / 60, 1.0) for length in lengths]
    )
    assert found
    assert twice
    assert minutes
    ratios = [length / other for length in lengths for other in alone_s]
    assert found.slowdown == pytest.approx(median(ratios))
    assert min(ratios) <= found.low * (1 + 1e-9)
    assert found.low <= found.slowdown <= found.high <= max(ratios) * (1 + 1e-9)
    for name in ("slowdown", "low", "high"):
        assert getattr(twice, name) == pytest.approx(2 * getattr(found, name))
        assert getattr(minutes, name) == pytest.approx(getattr(found, name))


def pair_of(
    own: dict[str, float], others: dict[str, float], *, partner: RunGroup = BOB
) -> SharedPair:
    runs = [*alone(ANN, 60, 60, 60, rates=own), *alone(BOB, 60, 60, 60, rates=others)]
    shared = together(3, (ANN, 0, 75), (partner, 0, 75))
    return next(pair for pair in shared_runs([*runs, *shared]).pairs if pair.key.group == ANN)


@pytest.mark.parametrize(
    ("own", "others", "counter"),
    [
        ({"fp64": 0.3, "dram": 0.5}, {"fp64": 0.0, "dram": 0.1}, "fp64"),
        ({"fp64": 0.3, "dram": 0.5}, {"fp64": 0.006, "dram": 0.01}, "dram"),
        ({"fp64": 0.3, "dram": 0.5}, {"fp64": 0.007, "dram": 0.011}, None),
        ({"fp64": 0.3}, {}, None),  # it is not known what the other does there
        ({"fp64": 0.009}, {"fp64": 0.0}, None),
        ({}, {"fp64": 0.0}, None),
    ],
)
def test_a_counter_is_a_jobs_own_where_the_other_hardly_moves_it(
    own: dict[str, float], others: dict[str, float], counter: str | None
) -> None:
    assert own_counter(pair_of(own, others)) == counter


def test_two_runs_alone_show_no_counter_of_the_other() -> None:
    pair = pair_of({"fp64": 0.3}, {"fp64": 0.0})
    assert own_counter(replace(pair, partner_alone=pair.partner_alone[:2])) is None


def test_the_rate_of_a_jobs_own_counter_gives_its_slowdown() -> None:
    pair = pair_of({"fp64": 0.3}, {"fp64": 0.0})
    rates = {shared.run.key: {"fp64": 0.2} for shared in pair.beside}
    measured = slowdown_by_rate(pair, "fp64", rates)
    assert measured is not None
    assert (measured.low, measured.slowdown, measured.high) == pytest.approx((1.5, 1.5, 1.5))
    rates.pop(pair.beside[0].run.key)  # its samples are not kept
    assert slowdown_by_rate(pair, "fp64", rates) is None


def test_beside_itself_a_run_has_half_and_both_count_once() -> None:
    runs = [*alone(ANN, 60, 60, 60, rates={"fp64": 0.3, "dram": 0.1})]
    for days in (2, 3):
        (pair,) = shared_runs([*runs, *together(days, (ANN, 0, 75), (ANN, 1, 75))]).pairs
        assert (len(pair.beside), own_counter(pair)) == (2 * days, "fp64")
        rates = {shared.run.key: {"fp64": 0.4} for shared in pair.beside}
        measured = slowdown_by_rate(pair, "fp64", rates)
        assert (measured and measured.slowdown) == (pytest.approx(1.5) if days == 3 else None)


def said(*runs: HeldRun) -> Iterator[str]:
    return caveats(shared_runs(runs).pairs[0])


def test_what_differs_besides_is_named() -> None:
    shared = together(3, (ANN, 0, 75), (BOB, 0, 75), cpus=16)
    before = alone(ANN, 60, 60, 60, cpus=32)
    after = [held(ANN, 9000, 60, OTHER_GPU, alone=True, cpus=16)]
    assert list(said(*shared, *before)) == [
        "32 CPUs alone, 16 beside it",
        "its runs alone were at another time: another version of it is not excluded",
    ]
    later = [held(ANN, 9000, 60, OTHER_GPU, alone=True, cpus=16)]
    assert ["at another time" in sentence for sentence in said(*shared, *later)] == [True]
    around = [replace(run, cpus=16) for run in before]
    assert list(said(*shared, *around, *after)) == []
    assert list(said(*shared)) == []
