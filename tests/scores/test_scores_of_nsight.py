"""Scores from raw metrics of Nsight Compute, against values computed by hand."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tachograph.annexes.share import nsight_scores

KERNEL = {
    "sm__warps_active.avg": 24_000.0,  # cumulative: 24 a cycle
    "sm__cycles_active.avg": 1_000.0,
    "gpc__cycles_elapsed.max": 1_250.0,
    "dram__cycles_active.avg": 600.0,
    "dram__cycles_elapsed.avg": 2_000.0,
    "sm__inst_executed.avg.per_cycle_elapsed": 1.5,
    "smsp__thread_inst_executed_per_inst_executed.ratio": 24.0,
}
STALLS = dict(
    zip(nsight_scores.MEMORY_STALLS, (0.5, 1.0, 2.0, 30.0, 0.25, 4.0, 8.0, 0.25), strict=True)
)
PERCENT = {
    f"smsp__warp_issue_stalled_{name}_per_warp_active.pct": value for name, value in STALLS.items()
}
FULL = {
    f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio": value / 10
    for name, value in STALLS.items()
} | {"smsp__average_warp_latency_per_inst_issued.ratio": 10.0}


def without(metrics: Mapping[str, float], part: str) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if part not in name}


def test_in_practice() -> None:
    assert nsight_scores.practice_gpu(KERNEL).value == pytest.approx(70.0)  # 1 - 24/64 x 0.8
    assert nsight_scores.practice_gpu(KERNEL, max_warps=48).value == pytest.approx(60.0)
    # All 16 and more: active 80 %.
    assert nsight_scores.practice_gpu(KERNEL, max_warps=16).value == pytest.approx(20.0)
    assert nsight_scores.practice_gpumem(KERNEL).value == pytest.approx(37.5)  # 600 / 1600
    assert nsight_scores.practice_gpumem_normalized(KERNEL).value == pytest.approx(100 * 0.3 / 1.1)


def test_in_theory() -> None:
    assert nsight_scores.theory_gpu(KERNEL).value == pytest.approx(71.875)  # 1 - 1.5 x 0.75 / 4
    assert nsight_scores.theory_gpu(KERNEL, max_ipc=2).value == pytest.approx(43.75)
    assert nsight_scores.theory_gpumem(PERCENT).value == pytest.approx(46.0)


def test_a_full_report_gives_the_same() -> None:
    assert nsight_scores.theory_gpumem(FULL).value == pytest.approx(46.0)
    assert nsight_scores.theory_gpumem(FULL | without(PERCENT, "drain")).value == pytest.approx(
        46.0
    )


def test_a_chip_without_imc_miss() -> None:
    assert nsight_scores.theory_gpumem(without(PERCENT, "imc_miss")).value == pytest.approx(45.0)
    assert nsight_scores.theory_gpumem(without(FULL, "imc_miss")).value == pytest.approx(45.0)


def test_the_name_of_the_paper_is_not_taken() -> None:
    wrong = {name.replace("warp_issue", "warps_issue"): value for name, value in PERCENT.items()}
    found = nsight_scores.theory_gpumem(wrong)
    assert found.value is None
    assert "smsp__warp_issue_stalled_drain_per_warp_active.pct" in found.needs


@pytest.mark.parametrize(
    ("score", "names"),
    [
        (
            nsight_scores.practice_gpu,
            ("sm__warps_active.avg", "sm__cycles_active.avg", "gpc__cycles_elapsed.max"),
        ),
        (nsight_scores.practice_gpumem, ("dram__cycles_active.avg", "sm__cycles_active.avg")),
        (
            nsight_scores.practice_gpumem_normalized,
            ("dram__cycles_elapsed.avg", "gpc__cycles_elapsed.max"),
        ),
        (nsight_scores.theory_gpu, tuple(KERNEL)[-2:]),
    ],
)
def test_what_is_missing_is_named(score: object, names: tuple[str, ...]) -> None:
    assert callable(score)
    for name in names:
        found = score({key: value for key, value in KERNEL.items() if key != name})
        assert (found.value, found.needs) == (None, (name,))
        assert score(KERNEL | {name: float("nan")}).needs == (name,)


def test_a_full_report_without_latency_needs_it() -> None:
    assert nsight_scores.theory_gpumem(without(FULL, "latency")).needs == (nsight_scores.LATENCY,)


def test_nothing_ran() -> None:
    assert nsight_scores.practice_gpu(KERNEL | {"sm__cycles_active.avg": 0.0}).value == 100.0
    assert nsight_scores.practice_gpu(
        KERNEL | {"gpc__cycles_elapsed.max": 0.0}
    ) == nsight_scores.CycleScore(None)
    assert nsight_scores.practice_gpumem(dict.fromkeys(KERNEL, 0.0)) == nsight_scores.CycleScore(
        None
    )
    assert nsight_scores.practice_gpumem_normalized(
        dict.fromkeys(KERNEL, 0.0)
    ) == nsight_scores.CycleScore(None)
    assert nsight_scores.theory_gpumem(
        FULL | {nsight_scores.LATENCY: 0.0}
    ) == nsight_scores.CycleScore(None)


def test_results_are_clamped() -> None:
    assert nsight_scores.theory_gpu(KERNEL | {nsight_scores.IPC: 8.0}).value == 0.0
    assert nsight_scores.theory_gpumem(dict.fromkeys(PERCENT, 50.0)).value == 100.0
