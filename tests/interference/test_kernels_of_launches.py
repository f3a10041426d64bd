"""Kernels of launches: what is weighted by what, what is told of launches that cannot be used."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from math import fsum
from operator import mul

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published_launches import H100, busy, launch, waiting

from tachograph.annexes.share.kernel_names import labels
from tachograph.annexes.share.kernels import Kernel, kernels_of, short_name
from tachograph.annexes.share.nsight.launches import Chip, Launch
from tachograph.annexes.share.utilization import idle_sms

L2_HIT = "lts__t_sector_hit_rate.pct"
DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
IPC = "sm__inst_issued.avg.per_cycle_active"
ACTIVE = "sm__cycles_active.avg"
REGULAR = re.compile("_(wait|math_pipe_throttle|branch_resolving)_")  # waits of a fixed length


def only(*launches: Launch) -> Kernel:
    (kernel,) = kernels_of(launches)
    return kernel


@pytest.mark.parametrize(
    ("other", "grid"),
    [
        ({"launch__registers_per_thread": 64.0}, (20, 1, 1)),
        ({"launch__shared_mem_per_block": 1024.0}, (20, 1, 1)),
        ({}, (10, 1, 1)),
        ({"launch__waves_per_multiprocessor": 3.0}, (20, 1, 1)),
    ],
)
def test_launches_that_occupy_something_else_are_kept_apart(
    other: dict[str, float], grid: tuple[int, int, int]
) -> None:
    usual = {"launch__registers_per_thread": 32.0, "launch__shared_mem_per_block": 0.0}
    one = launch(usual, grid=(20, 1, 1), seconds=5e-3)
    two = launch({**usual, **other}, grid=grid, number=1)
    found = kernels_of([one, two])
    assert [kernel.launches for kernel in found] == [1, 1]
    assert len(set(labels(found))) == 2 or grid == (20, 1, 1)
    assert only(one, replace(two, metrics=one.metrics, grid=one.grid)).launches == 2


@pytest.mark.parametrize(
    ("seconds", "problem"), [(None, "have no duration"), (0.0, "took no time")]
)
def test_a_launch_without_time_is_counted_and_reported_but_weighs_nothing(
    seconds: float | None, problem: str
) -> None:
    kernel = only(
        launch({DRAM: 40.0}),
        launch({DRAM: 99.0, "dram__bytes.sum": 7.0}, seconds=seconds, number=1),
    )
    assert (kernel.launches, kernel.metrics[DRAM]) == (2, 40.0)
    assert "dram__bytes.sum" not in kernel.metrics
    assert any(line.startswith("1 of 2") and problem in line for line in kernel.problems)


def test_other_gpus_blocks_and_slices_are_other_kernels() -> None:
    a100 = Chip("NVIDIA A100-SXM4-80GB", "8.0")
    mig = replace(H100, attributes={**H100.attributes, "multiprocessor_count": 16.0})
    one = launch({})
    assert (
        len(
            kernels_of(
                [one, launch({}, chip=a100), launch({}, chip=mig), launch({}, block=(256, 1, 1))]
            )
        )
        == 4
    )
    assert len(kernels_of([one, launch({}, report="b.ncu-rep")])) == 1


def test_some_stalls_are_not_all_stalls() -> None:
    found = {
        name: value
        for name, value in waiting(long_scoreboard=3.0).items()
        if "wait" not in name.split("_")
    }
    assert only(launch(found)).demand.irregular is None


def test_without_stalls_only_a_kernel_that_touches_no_memory_is_regular() -> None:
    assert only(launch(busy(3.0, 6.25, dram=0.1, lsu=0.2))).demand.irregular == 0.0
    assert only(launch(busy(3.0, 6.25, dram=0.1))).demand.irregular is None
    assert only(launch(busy(3.0, 6.25, dram=0.1, lsu=5.0))).demand.irregular is None


def test_sm_share_and_idle_sms_are_quotients_of_sums_over_all_launches() -> None:
    cycles = ("sm__cycles_active.avg", "sm__cycles_active.max", "sm__cycles_elapsed.max")
    first, second = (
        launch(dict(zip(cycles, values, strict=True)), number=number)
        for number, values in enumerate([(100.0, 200.0, 400.0), (400.0, 400.0, 600.0)])
    )
    both = only(first, second)
    assert both.demand.sm_share == pytest.approx(500 / 1000)
    assert idle_sms(both) == pytest.approx(1 - 500 / 600)
    unreported = launch({ACTIVE: 100.0}, number=2)
    assert only(first, first, unreported).demand.sm_share == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void gemm<128, (int)4, A<B<float>>>(Params<float>, int)", "gemm"),
        ("copy", "copy"),
        ("at::native::(anonymous namespace)::fill<float>(float*)", "at::native::fill"),
        ("<unnamed>::fill(int)", "fill"),
        ("std::enable_if<!(false), void>::type ns::kernel<float, 256>(int)", "ns::kernel"),
        ("void a<&(B::operator())>(int)", "void a<&(B::operator())>(int)"),
        ("", ""),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert short_name(name) == short


FRACTIONS = st.floats(0, 100, allow_subnormal=False)
METRICS = st.dictionaries(
    st.sampled_from(
        [DRAM, L2_HIT, IPC, ACTIVE, "dram__bytes.sum", "smsp__inst_issued.sum", *waiting()]
    ),
    FRACTIONS,
)
LAUNCHES = st.lists(
    st.tuples(METRICS, st.sampled_from([None, 0.0, 1e-6, 3e-4, 0.25])), min_size=1, max_size=6
)


@settings(deadline=None)
@given(LAUNCHES, st.randoms())
def test_the_order_of_launches_does_not_matter(
    found: list[tuple[dict[str, float], float | None]], chance: random.Random
) -> None:
    launches = [
        launch(metrics, seconds=seconds, number=number)
        for number, (metrics, seconds) in enumerate(found)
    ]
    mixed = list(launches)
    chance.shuffle(mixed)
    assert kernels_of(launches) == kernels_of(mixed)


# what a rate, a ratio or a hit rate is weighted by where every launch with it has that
WHOLE = {IPC: ACTIVE, **dict.fromkeys(waiting(), "smsp__inst_issued.sum")}


@settings(deadline=None)
@given(LAUNCHES)
def test_launches_are_merged_as_plain_sums_do(
    found: list[tuple[dict[str, float], float | None]],
) -> None:
    """Counts add up, over the share of the time that has them; all else is a weighted mean."""
    kernel = only(
        *(
            launch(metrics, seconds=seconds, number=at)
            for at, (metrics, seconds) in enumerate(found)
        )
    )
    timed = [(metrics, seconds) for metrics, seconds in found if seconds]
    weighted = timed or [(metrics, 1.0) for metrics, _ in found]
    whole_s = fsum(seconds for _, seconds in weighted)
    assert kernel.launches == len(found)
    assert kernel.seconds == (pytest.approx(whole_s) if timed else None)
    assert kernel.demand.seconds == kernel.seconds
    for metric in (
        DRAM,
        L2_HIT,
        IPC,
        ACTIVE,
        "dram__bytes.sum",
        "smsp__inst_issued.sum",
        *waiting(),
    ):
        there = [(metrics, seconds) for metrics, seconds in weighted if metric in metrics]
        if not there:
            assert metric not in kernel.metrics
            continue
        values = [metrics[metric] for metrics, _ in there]
        if metric.endswith((".sum", ".avg")):
            covered = fsum(seconds for _, seconds in there) / whole_s
            assert kernel.metrics[metric] == pytest.approx(fsum(values) / covered)
            continue
        weights = [metrics.get(WHOLE.get(metric, ""), -1.0) for metrics, _ in there]
        if min(weights) < 0 or not sum(weights):
            weights = [seconds for _, seconds in there]
        expected = fsum(map(mul, values, weights)) / fsum(weights)
        assert kernel.metrics[metric] == pytest.approx(expected)
        assert min(values) <= kernel.metrics[metric] <= max(values)
    waits = {name: kernel.metrics.get(name) for name in waiting()}
    if None not in waits.values():
        shares = {name: value or 0.0 for name, value in waits.items() if "selected" not in name}
        longer = [value for name, value in shares.items() if not REGULAR.search(name)]
        total = fsum(shares.values())
        assert kernel.demand.irregular == pytest.approx(fsum(longer) / total if total else 0.0)
