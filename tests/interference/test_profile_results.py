"""Utilization side by side, limits, susceptibility and pitfalls of kernels, against the
published ones.
"""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published_launches import COPY, DMUL, FMUL, MM, busy, launch, sleep

from tachograph.annexes.share import kernel_metrics
from tachograph.annexes.share.capacity import computed_fit
from tachograph.annexes.share.demand import Footprint
from tachograph.annexes.share.kernel_facts import facts_of
from tachograph.annexes.share.kernel_limits import limits
from tachograph.annexes.share.kernels import Kernel, kernels_of
from tachograph.annexes.share.kernels_sentences import limits_sentence
from tachograph.annexes.share.nsight.launches import Chip, Launch
from tachograph.annexes.share.utilization import Sensitivity, pitfalls, sensitivities


def only(profiled: Launch) -> Kernel:
    (kernel,) = kernels_of([profiled])
    return kernel


def facts(kernel: Kernel) -> dict[str, float | None]:
    return {name: fact.value for name, fact in facts_of(kernel).items()}


def level(kernel: Kernel, resource: str) -> str:
    return of(kernel, resource).level


def of(kernel: Kernel, resource: str) -> Sensitivity:
    return next(item for item in sensitivities(kernel) if item.resource == resource)


# utilization


@settings(deadline=None)
@given(st.integers(1, 1024), st.integers(1, 255), st.integers(0, 200_000))
def test_blocks_that_fit_are_as_many_as_an_sm_can_hold(
    threads: int, registers: int, shared: int
) -> None:
    gpu = only(COPY).gpu
    warps, of_warp = ceil(threads / 32), 256 * ceil(registers / 8)

    def hold(blocks: int) -> bool:
        room = blocks * warps <= 64 and blocks * shared <= 233472
        return room and blocks * warps <= 4 * (16384 // of_warp)

    most = max(blocks for blocks in range(33) if hold(blocks))
    assert (computed_fit(Footprint(1, threads, registers, float(shared)), gpu) or 0) == most


def test_the_profiler_shows_how_many_blocks_fit_when_it_names_all_limits() -> None:
    fits = {"blocks": 32.0, "registers": 7.0, "shared_mem": 9.0, "warps": 16.0}
    metrics = {f"launch__occupancy_limit_{what}": value for what, value in fits.items()}
    footprint = only(launch(metrics)).demand.footprint
    assert footprint is not None
    assert footprint.blocks_per_sm == 7
    del metrics["launch__occupancy_limit_registers"]
    footprint = only(launch(metrics)).demand.footprint
    assert footprint is not None
    assert footprint.blocks_per_sm is None


# limits


def test_a_grid_smaller_than_the_gpu_is_what_limits() -> None:
    """Whatever else was not measured: most SMs have no block. Nsight Compute calls it Small
    Grid, too.
    """
    one = {**busy(0.4, 20.0, dram=5.0), "launch__grid_size": 1.0, "launch__block_size": 128.0}
    for metrics in (
        one,
        {name: value for name, value in one.items() if name != kernel_metrics.DRAM},
    ):
        found = limits(only(launch(metrics)))
        assert (found.bound, found.small_grid) == ("small_grid", (1, 132))
        assert limits_sentence(found).startswith(
            "Small grid: 1 block for 132 SMs, 99 % of the SMs have none."
        )
    full = limits(only(launch({**one, **busy(3.9, 20.0, dram=5.0)})))
    assert (full.bound, full.small_grid) == ("throughput", (1, 132))  # of the SM that it has
    assert limits_sentence(full).endswith("99 % of the SMs have none.")
    assert limits(only(launch({**one, "launch__grid_size": 132.0}))).small_grid is None


# susceptibility


def test_susceptibility_of_published_kernels() -> None:
    copy = only(COPY)
    assert (level(copy, "dram"), level(copy, "issue")) == ("high", "some")
    assert [level(only(FMUL[ipc]), "issue") for ipc in (1.08, 2.06, 2.9, 3.45)] == [
        "some",
        "high",
        "high",
        "high",
    ]
    assert [level(only(metrics), "fp64") for metrics in DMUL.values()] == [
        "some",
        "some",
        "high",
        "high",
    ]
    assert (level(only(MM), "fma"), level(only(MM), "issue"), level(only(MM), "dram")) == (
        "high",
        "high",
        "low",
    )
    assert (level(only(sleep(132)), "blocks"), level(only(sleep(264)), "blocks")) == (
        "some",
        "high",
    )


def test_what_was_not_collected_is_unknown_and_names_its_options() -> None:
    for item in sensitivities(only(launch({}, chip=Chip()))):
        assert (item.level, item.value) == ("unknown", None)
        assert item.missing.startswith(("--set full", "--page raw"))
        assert item.metrics


# pitfalls


def names(metrics: Launch) -> list[str]:
    return [pitfall.name for pitfall in pitfalls(only(metrics))]


def test_kernels_with_many_resident_warps_or_little_to_do_have_no_pitfall() -> None:
    assert names(launch(busy(3.0, 80.0, fma=60.0))) == []
    assert names(FMUL[1.08]) == []


def test_a_kernel_on_few_sms_is_limited_by_its_grid_whatever_nvidia_smi_shows() -> None:
    half = {"sm__cycles_active.avg": 50.0, "sm__cycles_elapsed.max": 500.0}
    kernel = only(launch({**busy(1.0, 5.0), **half}, grid=(13, 1, 1)))
    assert facts(kernel)["gpu_util"] == 1.0
    assert facts(kernel)["sm_share"] == pytest.approx(0.1)
    assert limits(kernel).limited_by == "small_grid"
    assert "90 % of the SMs have none" in limits_sentence(limits(kernel))
