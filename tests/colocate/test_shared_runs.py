"""Slowdowns of runs beside others: planted ones are recovered, and what is not known stays unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import combinations, count, pairwise
from math import inf, log
from statistics import fmean, median
from typing import Any

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


@st.composite
def some_runs(draw: st.DrawFn) -> list[HeldRun]:
    """Runs of at least ten minutes on one or both of two GPUs, each group on none twice at once."""
    runs = []
    for _ in range(draw(st.integers(1, 6))):
        group = draw(st.sampled_from([ANN, BOB, EVE, UNKNOWN]))
        gpus = draw(st.sampled_from([(GPU,), (OTHER_GPU,), (GPU, OTHER_GPU)]))
        begin, minutes = draw(st.integers(0, 30)), draw(st.integers(10, 60))
        runs.append(held(group, begin, minutes, *gpus, completed=draw(st.booleans())))
    return runs


@given(some_runs())
def test_who_was_beside_whom_minute_by_minute(runs: list[HeldRun]) -> None:
    found = shared_runs(runs)
    beside = {
        row.run.key: (pair.key.partner, row.share) for pair in found.pairs for row in pair.beside
    }
    left_out: Counter[tuple[RunGroup, str]] = Counter()
    for run in runs:
        length = round(run.elapsed_s / 60)
        minutes = [run.start + timedelta(minutes=minute) for minute in range(length)]
        # Of each minute on each GPU the groups that are there, too.
        there = {
            gpu: [
                [o.group for o in runs if o is not run and gpu in o.gpus and o.start <= m < o.end]
                for m in minutes
            ]
            for gpu in run.gpus
        }
        met = Counter(group for of_gpu in there.values() for groups in of_gpu for group in groups)
        if not run.completed or met.total() <= 0.02 * length:
            assert run.key not in beside
            continue
        ((group, most),) = met.most_common(1)
        alike = [other for other, count in met.items() if count == most]
        covered = [sum(bool(groups) for groups in of_gpu) for of_gpu in there.values()]
        few = 0.02 * length * len(run.gpus)
        several = met.total() - most > few or met.total() - sum(covered) > few
        if several or group == UNKNOWN:
            assert run.key not in beside or len(alike) > 1
            left_out[run.group, "several"] += 1
        elif min(covered) < 0.8 * length:
            left_out[run.group, "partly"] += 1
        else:
            partner, share = beside.pop(run.key)
            assert (partner, round(share, 9)) == (group, round(min(covered) / length, 9))
    assert not beside
    assert found.left_out == left_out


@pytest.mark.parametrize("missing", ["alone", "beside"])
def test_two_runs_on_a_side_are_too_few(missing: str) -> None:
    counts = (2, 30) if missing == "alone" else (30, 2)
    runs = [*alone(ANN, *[60.0] * counts[0]), *together(counts[1], (ANN, 0, 75), (BOB, 0, 75))]
    assert [slowdown_by_time(pair) for pair in shared_runs(runs).pairs] == [None, None]


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
    durations = [1 / rate if rate > 0 else inf for rate in rates]
    assert found.slowdown == pytest.approx(median(durations))
    assert found.low <= found.slowdown <= found.high
    between = [(one * two) ** 0.5 for one, two in pairwise(ratios) if two / one > 1 + 1e-6]
    for factor in (ratios[0] / 2, *between, ratios[-1] * 2):
        assert is_kept(factor) == (found.low < factor < found.high)


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
