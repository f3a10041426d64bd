"""Pairs of job groups: bounds, modes and matching against the same in plain Python."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from colocate_jobs import law_by_hand
from hypothesis import given
from hypothesis import strategies as st

from tachograph.annexes.share import proposals
from tachograph.annexes.share.capacity import gpu_of_device
from tachograph.annexes.share.demand import Calibration, Demand, Footprint
from tachograph.annexes.share.job_groups import GroupProfile, JobGroup
from tachograph.annexes.share.mixes import mix
from tachograph.annexes.share.proposals import (
    CONTEXT_BYTES,
    SHARING_MODES,
    GroupPairs,
    SharingProposal,
    matched,
)
from tachograph.catalog.config import InterferenceOptions
from tachograph.catalog.devices import DEVICES_BY_NAME
from tachograph.catalog.mig import MIG_PROFILES

GIB = 2.0**30
ACHIEVABLE = 0.8
SETTINGS = InterferenceOptions()


def group(name: str = "train", *, user: str | None = "ann", model: str = "A100 SXM 80GB",
          gpus: int = 1, runs: int = 2, hours: float = 4.0, busy: float = 0.8, memory: float = 8.0,
          dram: float | None = 0.1, width: float | None = 0.4,
          kernels: Sequence[Demand] = ()) -> JobGroup:  # fmt: skip
    """A job group of one demand; with `kernels`, profiled."""
    demand = Demand(
        name=name, cycles={"fma": 0.1}, dram=dram, sm_share=width, hbm_bytes=memory * GIB
    )
    profile = None
    if kernels:
        whole = mix(kernels, [kernel.seconds or 0.0 for kernel in kernels], name=name)
        profile = GroupProfile(("r.csv",), whole, len(kernels), len(kernels), 1.0)
    return JobGroup(
        user=user, name=name, device=DEVICES_BY_NAME[model], gpus=gpus, runs=runs, gpu_hours=hours,
        busy=busy, mix=mix([demand], [1.0], name=name), spread=0.0, spread_of="busy", jobs=("1",),
        hbm_mib=DEVICES_BY_NAME[model].hbm_mib, profile=profile,
    )  # fmt: skip


def kernel(issue: float, dram: float = 0.05, *, seconds: float = 1.0, **rest: Any) -> Demand:
    return Demand(
        name=f"k{issue:.3f}",
        cycles={"issue": issue},
        dram=dram,
        seconds=seconds,
        sm_share=0.5,
        **rest,
    )


def pairs(*groups: JobGroup, settings: InterferenceOptions = SETTINGS) -> GroupPairs:
    gpu = gpu_of_device(groups[0].device)
    calibration = Calibration(achievable_share=ACHIEVABLE)
    return GroupPairs(groups, gpu, calibration, settings, law_by_hand)


def one_pair(*groups: JobGroup, settings: InterferenceOptions = SETTINGS) -> SharingProposal:
    return pairs(*groups, settings=settings).proposal(0, len(groups) - 1)


def some_groups(seed: int, count: int, **fixed: Any) -> list[JobGroup]:
    """Groups of which some hardly work, and some are profiled."""
    chance = random.Random(seed)
    groups = []
    for number in range(count):
        kernels = [
            kernel(chance.uniform(0, 0.7), chance.uniform(0, 0.5), seconds=chance.uniform(0.1, 1))
            for _ in range(chance.choice([0, 1, 3]))
        ]
        drawn = group(
            f"g{number}",
            user=chance.choice(["ann", "bob", None]),
            runs=chance.choice([1, 2]),
            hours=chance.choice([1.0, 2.0, chance.uniform(0.5, 9)]),
            busy=chance.choice([0.02, 0.08, 0.1, 0.5, 1.0]),
            memory=chance.choice([2.0, 15.0, 34.0, 60.0]),
            dram=chance.choice([None, 0.02, 0.4]),
            width=chance.choice([None, 0.03, 0.5]),
            kernels=kernels,
        )
        groups.append(replace(drawn, **fixed))
    return groups


@given(st.floats(0.01, 1.0), st.floats(0.01, 1.0))
def test_without_profiles_the_upper_end_is_taking_turns(busy: float, other_busy: float) -> None:
    found = one_pair(group("a", busy=busy, gpus=4), group("b", busy=other_busy, gpus=4))
    assert {option.mode for option in found.options} == {"mps", "time_slicing"}
    for option in found.options:
        assert option.low == (1.0, 1.0)
        assert option.high == option.slowdowns == pytest.approx((1 + other_busy, 1 + busy))
    within = max(busy, other_busy) <= 0.1 + 1e-9
    assert found.verdict == ("share" if within else "try")
    assert found.best is not None
    assert found.best.mode == ("time_slicing" if within else "mps")
    assert not found.safe


def test_the_published_pair_of_servers_is_inside_its_bounds() -> None:
    """Two vLLM servers on an RTX 2000 Ada, each busy 85.7 % of the time: measured 1.843x."""
    found = one_pair(group("a", busy=0.857, gpus=2), group("b", busy=0.857, gpus=2))
    assert found.best is not None
    assert found.best.high[0] == pytest.approx(1.857)
    assert found.best.low[0] <= 1.843 <= found.best.high[0]


@pytest.mark.parametrize("seed", range(6))
def test_rows_of_all_pairs_are_the_pairs_one_by_one(seed: int) -> None:
    groups = some_groups(seed, 14)
    whole = pairs(*groups)
    table = whole.under_mps()
    for i, one in enumerate(groups):
        least, trial = whole.least_high(i), whole.trial_slowdown(i)
        for j, other in enumerate(groups):
            alone = one_pair(one, other) if i != j else one_pair(one)
            found = whole.proposal(i, j)
            assert [option.label for option in found.options] == [
                option.label for option in alone.options
            ]
            assert found.saved_h == pytest.approx(alone.saved_h)
            ends = [max(option.high) for option in found.options]
            assert least[j] == pytest.approx(min(ends, default=math.inf))
            mps = [option for option in found.options if option.mode == "mps"]
            if not mps:
                assert trial[j] == math.inf
                continue
            for name, cells in (
                ("slowdowns", table.slowdown),
                ("low", table.low),
                ("high", table.high),
            ):
                assert getattr(mps[0], name) == pytest.approx((cells[i, j], cells[j, i]))
            middle = (max(mps[0].low) + max(mps[0].high)) / 2
            assert trial[j] == pytest.approx(middle if max(mps[0].low) <= 1.1 else math.inf)


@pytest.mark.parametrize("seed", range(12))
def test_the_best_mode_frees_most_within_the_limit_and_changes_least(seed: int) -> None:
    groups = some_groups(seed, 10)
    whole = pairs(*groups)
    modes = list(SHARING_MODES)
    for i in range(10):
        for j in range(10):
            found = whole.proposal(i, j)
            within = [option for option in found.options if max(option.high) <= 1.1 + 1e-9]
            assert (found.verdict == "share") == bool(within)
            if not within:
                assert found.verdict == "no" or (found.best and found.best.mode == "mps")
                continue
            assert found.best in within
            most = min(max(option.high) for option in within)
            assert max(found.best.high) <= most + 0.011
            for option in within:
                equal = round(max(option.high), 2) == round(max(found.best.high), 2)
                assert not equal or modes.index(found.best.mode) <= modes.index(option.mode)
            freed = found.overlap_h * (2 - max(found.best.high))
            assert found.saved_h == pytest.approx(freed)
            assert found.saved_h <= found.saved_most_h


def test_safe_needs_the_upper_end_below_the_limit() -> None:
    # 0.1 lost of each while both run, 0.2 at the upper end
    fitting = [group(name, busy=0.49, kernels=[kernel(0.55)]) for name in "ab"]
    at_limit = [group(name, busy=0.5, kernels=[kernel(0.55)]) for name in "ab"]
    wide = InterferenceOptions(max_slowdown=1.5)
    halves = [one_pair(*both, settings=wide).options for both in (fitting, at_limit)]
    mps = [next(option for option in options if option.mode == "mps") for options in halves]
    assert [max(option.high) for option in mps] == pytest.approx([1.098, 1.1])
    for both, safe in ((fitting, True), (at_limit, False)):
        found = one_pair(*both, settings=wide)
        only_mps = replace(found, options=tuple(mps[:1] if safe else mps[1:]))
        assert only_mps.safe is safe


@pytest.mark.parametrize(("memory", "fits"), [(35.74, True), (35.76, False)])
def test_memory_must_hold_both_and_a_context(memory: float, fits: bool) -> None:
    # 2 x 35.75 + 0.5 GiB are 90 % of 80 GiB
    found = one_pair(group("a", memory=memory, gpus=2), group("b", memory=memory, gpus=2))
    assert bool(found.options) == fits
    assert found.memory == pytest.approx((2 * memory * GIB + CONTEXT_BYTES) / (80 * GIB))


@given(
    st.lists(
        st.tuples(st.floats(0.01, 1), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=5
    )
)
def test_no_job_of_any_phases_leaves_the_bounds_of_a_slice(
    phases: list[tuple[float, float, float]],
) -> None:
    """Phases of (time, SMs, bandwidth), each as wide at once as its mean: narrow ones fit in."""
    total = math.fsum(time for time, _, _ in phases)
    width = math.fsum(time * sms for time, sms, _ in phases) / total
    moved = math.fsum(time * bandwidth for time, _, bandwidth in phases) / total
    whole = pairs(group(width=width, dram=moved * ACHIEVABLE, memory=1.0))
    for part in MIG_PROFILES["A100 SXM 80GB"]:
        sms, memory = float(part.sms), float(part.memory)
        exact = math.fsum(
            time * max(1.0, used / sms, bandwidth / memory) for time, used, bandwidth in phases
        )
        low, high = whole._on_slice(whole.groups[0], part)
        assert low - 1e-9 <= exact / total <= high + 1e-9
        assert high <= 1 / min(sms, memory) + 1e-9


def test_slices_are_for_jobs_on_one_gpu_of_a_model_that_has_them() -> None:
    narrow: dict[str, Any] = {"width": 0.05, "dram": 0.01, "busy": 0.95}
    found = one_pair(group("a", **narrow), group("b", **narrow))
    best = found.best
    assert best is not None
    assert (best.mode, best.binding, found.safe) == ("mig", "slices", False)
    names = [part.name for part in best.slices or ()]
    assert names == ["3g.40gb", "3g.40gb"]  # the only one on which the SMs cost less than 10 %
    expected = 1 + 0.05 * (7 / 3 - 1) + 0.01 / ACHIEVABLE * (2 - 1)
    assert best.high == pytest.approx((expected, expected))
    several = one_pair(group("a", gpus=2, **narrow), group("b", gpus=2, **narrow))
    without = one_pair(group("a", model="A40", **narrow), group("b", model="A40", **narrow))
    for other in (several, without):
        assert all(option.slices is None for option in other.options)


def test_a_kernel_with_fewer_blocks_than_a_slice_has_sms_loses_none() -> None:
    slow, fast = (
        [kernel(0.9, dram=0.0, footprint=Footprint(blocks, 128, blocks_per_sm=8))]
        for blocks in (60, 40)
    )
    ends = [
        pairs(group(kernels=kernels))._on_slice(
            group(kernels=kernels), MIG_PROFILES["A100 SXM 80GB"][3]
        )
        for kernels in (slow, fast)
    ]
    assert ends[0][1] == pytest.approx(1 + 0.5 * (7 / 3 - 1))  # 60 blocks on 46 of 108 SMs
    assert ends[1] == (1.0, 1.0)


@pytest.mark.parametrize("seed", range(30))
def test_matching_is_greedy_over_all_pairs(seed: int) -> None:
    """Against a sort of all pairs; gains with many ties."""
    chance = np.random.default_rng(seed)
    count = int(chance.integers(1, 25))
    table = chance.choice([0.0, 0.0, 1.0, 2.0, 3.0, chance.random()], size=(count, count))
    table = np.maximum(table, table.T)
    left = set(range(count))
    expected = []
    cells = [(-table[i, j], i, j) for i in range(count) for j in range(i, count) if table[i, j] > 0]
    for _, i, j in sorted(cells):
        if {i, j} <= left:
            expected.append((i, j))
            left -= {i, j}
    free = np.ones(count, dtype=bool)
    found = matched(lambda i: table[i], free)
    assert [tuple(sorted(pair)) for pair in found] == expected
    assert set(np.flatnonzero(free).tolist()) == left


def test_groups_of_one_user_come_first() -> None:
    whole = pairs(*(group(name, user=user, hours=hours) for name, user, hours in (
        ("a", "ann", 90.0), ("b", "bob", 80.0), ("c", "ann", 1.0), ("d", None, 70.0), ("e", None, 60.0),
    )))  # fmt: skip
    gains = [whole.gains(i, whole.trial_slowdown(i)) for i in range(5)]
    assert gains[0].argmax() in (0, 2)
    assert gains[0][2] > gains[0][1] > 0
    assert gains[3][4] < whole.hours.sum()  # users that are not known are not one


def test_profiles_beyond_the_most_count_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposals, "MOST_PROFILED", 1)
    whole = pairs(*(group(name, busy=0.05, kernels=[kernel(0.01)]) for name in "ab"))
    found = whole.proposal(0, 1)
    assert (found.profiled, found.safe) == (False, False)
    assert found.options[0].high == pytest.approx((1.05, 1.05))
    assert whole.proposal(0, 0).safe
