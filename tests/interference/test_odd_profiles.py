"""Profiles with values no kernel has: nothing raises, fractions stay fractions, nothing comes
from nothing.
"""

from __future__ import annotations

from math import isfinite

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published_launches import H100, busy, launch, waiting

from tachograph.annexes.share import kernel_metrics
from tachograph.annexes.share.kernel_facts import facts_of
from tachograph.annexes.share.kernel_limits import limits
from tachograph.annexes.share.kernels import Kernel, kernels_of
from tachograph.annexes.share.nsight.launches import Chip
from tachograph.annexes.share.utilization import idle_sms, pitfalls, sensitivities

ODD = st.sampled_from(
    [0.0, -1.0, 1e-300, 0.5, 42.0, 100.0, 100.4, 1e9, 1e300, 1.7e308, float("nan"), float("inf")]
)
NAMES = sorted(
    {
        *busy(1.0, 1.0, fma=1.0, fp64=1.0, tensor=1.0, lsu=1.0),
        *waiting(),
        *(
            kernel_metrics.SM_ACTIVE,
            kernel_metrics.SM_ACTIVE_MIN,
            kernel_metrics.SM_ACTIVE_MAX,
            *kernel_metrics.ELAPSED,
            kernel_metrics.THREADS,
        ),
        *(
            kernel_metrics.L1_HIT,
            kernel_metrics.L2_HIT,
            kernel_metrics.L1_BUSY,
            kernel_metrics.L2_BUSY,
            kernel_metrics.DRAM_BYTES,
        ),
        *(
            "launch__grid_size",
            "launch__block_size",
            "launch__sm_count",
            "launch__waves_per_multiprocessor",
        ),
        *(
            f"launch__occupancy_limit_{what}"
            for what in ("blocks", "registers", "shared_mem", "warps")
        ),
        *(
            "sm__pipe_shared_cycles_active.avg.pct_of_peak_sustained_active",
            "sm__pipe_tensor_cycles_active_v2.avg.pct_of_peak_sustained_active",
            "gpu__time_duration.sum",
        ),
        "gpc__cycles_elapsed.avg.per_second",
    }
)
CHIPS = st.sampled_from(
    [H100, Chip(), Chip("NVIDIA A100-SXM4-40GB", "8.0"), Chip("x", "9.0", {"total_memory": -1.0})]
)
PROFILES = st.tuples(st.dictionaries(st.sampled_from(NAMES), ODD), CHIPS)


def of(metrics: dict[str, float], chip: Chip) -> Kernel:
    (kernel,) = kernels_of([launch(metrics, chip=chip, seconds=None, number=at) for at in range(2)])
    return kernel


def is_fraction(value: float | None) -> bool:
    return value is None or 0.0 <= value <= 1.0


@settings(deadline=None)
@given(PROFILES)
def test_no_profile_breaks_anything(profile: tuple[dict[str, float], Chip]) -> None:
    kernel = of(*profile)
    demand = kernel.demand
    assert all(is_fraction(value) for value in demand.cycles.values())
    for value in (demand.dram, demand.l1_hit, demand.l2_hit, demand.irregular, demand.sm_share):
        assert is_fraction(value)
    facts = facts_of(kernel)
    for name in ("occupancy", "occupancy_possible", "slots_taken", "tail"):
        assert is_fraction(facts[name].value)
    ipc = facts["ipc"].value
    assert ipc is None or 0.0 <= ipc <= 4.0
    assert is_fraction(idle_sms(kernel))
    assert all(
        is_fraction(limit.demand) and is_fraction(limit.head_room)
        for limit in limits(kernel).resources
    )
    for item in sensitivities(kernel):
        assert is_fraction(item.value)
        assert (item.level == "unknown") == (item.value is None)
    assert all(
        isfinite(value) for pitfall in pitfalls(kernel) for value in pitfall.numbers.values()
    )
    assert {lack.options for lack in kernel.missing} <= {"--set full", "--page raw"}


@pytest.mark.parametrize("duration", [1.7e308, float("inf"), float("nan")])
def test_a_time_beyond_all_counting_is_unknown(duration: float) -> None:
    kernel = of({kernel_metrics.DURATION: duration, kernel_metrics.L2_HIT: 42.0}, H100)
    assert kernel.seconds is None
    assert kernel.metrics[kernel_metrics.L2_HIT] == 42.0
