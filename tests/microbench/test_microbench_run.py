"""The runner, on a simulated GPU: what is run in which order, what comes out, what happens when
something fails.
"""

from __future__ import annotations

import pytest

from microbench.experiments import chosen, experiments
from microbench.fits import (
    Bench,
    calibrate,
    fit_curve,
)
from microbench.run import BenchPlan, bench
from microbench.simulated_device import (
    BANDWIDTH,
    CURVATURE,
    L1_COST,
    L1_LAW,
    L2_BANDWIDTH,
    L2_COST,
    L2_LAW,
    SimulatedGpu,
    utilisation,
)
from tachograph.annexes.share.demand import Calibration, Demand, Estimate, GpuCapacity, Sharing
from tachograph.annexes.share.estimate import estimate

QUICK = BenchPlan(runs=3, target_s=0.02)


def predict(
    demands: tuple[Demand, Demand], gpu: GpuCapacity, sharing: Sharing, calibration: Calibration
) -> Estimate:
    return estimate(demands, gpu=gpu, sharing=sharing, calibration=calibration)


def run(device: SimulatedGpu, *names: str, plan: BenchPlan = QUICK) -> Bench:
    return bench(device, chosen(experiments(device.gpu), names), plan=plan, predictor=predict)


def measured(found: Bench) -> dict[str, float]:
    return {
        one.experiment.name: one.measured.median
        for one in found.results
        if one.measured is not None
    }


def test_nothing_runs_together_before_all_was_foretold() -> None:
    device, requested = SimulatedGpu(), []

    def watch(
        demands: tuple[Demand, Demand], gpu: GpuCapacity, sharing: Sharing, calibration: Calibration
    ) -> Estimate:
        requested.append(len(device.launched))
        assert not any(launch.endswith("1") for launch in device.launched), (
            "a launch of the second stream came before"
        )
        return predict(demands, gpu, sharing, calibration)

    wanted = chosen(experiments(device.gpu), ["fp64", "blocks"])
    found = bench(device, wanted, plan=QUICK, predictor=watch)
    assert len(requested) == 2 * len(wanted)  # with the published calibration and with its own
    assert all(one.expected is not None and one.calibrated is not None for one in found.results)
    assert any(launch.endswith("1") for launch in device.launched[max(requested) :])


def test_slowdowns_are_those_of_the_simulated_gpu() -> None:
    rates = {("fmul_4", "copy_1"): 1.0, ("copy_1", "fmul_4"): 0.5, ("dmul_3", "dmul_3"): 0.68}
    found = measured(
        run(
            SimulatedGpu(noise=0.0, beside=rates),
            "pitfall-roofline",
            "fp64-3",
            "blocks",
            "bandwidth",
        )
    )
    # the copy has done half when the other ends, and goes on alone
    assert found["pitfall-roofline"] == pytest.approx(1.5, rel=0.03)
    assert found["fp64-3"] == pytest.approx(2 * 0.68, rel=0.01)
    assert found["blocks-1x"] == pytest.approx(2.0, rel=0.01)
    assert found["blocks-2x"] == pytest.approx(1.0, rel=0.01)
    for quarter, blocks in ((25, 33), (50, 66), (75, 99), (100, 132)):
        wanted = 2 * utilisation(blocks) / utilisation(2 * blocks)
        assert found[f"bandwidth-{quarter}"] == pytest.approx(wanted, rel=0.01)


def test_a_failing_launch_stops_its_experiment_only() -> None:
    found = run(SimulatedGpu(fails=frozenset({"dmul_2"})), "fp64")
    problems = {one.experiment.name: one.problem for one in found.results}
    assert problems["fp64-2"] is not None
    assert "CUDA_ERROR_INVALID_VALUE" in problems["fp64-2"]
    assert [name for name, problem in problems.items() if problem is None] == [
        "fp64-1", "fp64-3", "fp64-4", "fp64-beside",
    ]  # fmt: skip
    assert not found.stuck


def test_a_kernel_that_never_ends_ends_the_run_and_frees_nothing() -> None:
    device = SimulatedGpu(endless=frozenset({"dmul_3"}))
    found = run(device, "fp64", "pitfall-occupancy")
    assert found.stuck
    problems = [one.problem for one in found.results]
    assert "did not end within" in str(problems[2])
    assert all("did not end" in str(problem) for problem in problems)
    assert all(not one.runs for one in found.results)
    assert not any(launch.endswith("1") for launch in device.launched)


def test_demands_come_from_the_clock_of_the_sm() -> None:
    """Instructions that the kernels declare over the cycles of the simulated GPU, computed here
    by hand.
    """
    seen: dict[str, Demand] = {}

    def keep(
        demands: tuple[Demand, Demand], gpu: GpuCapacity, sharing: Sharing, calibration: Calibration
    ) -> Estimate:
        seen.update({demand.name: demand for demand in demands})
        return predict(demands, gpu, sharing, calibration)

    device = SimulatedGpu(noise=0.0)
    wanted = chosen(experiments(device.gpu), ["fp64", "issue", "bandwidth"])
    bench(device, wanted, plan=QUICK, predictor=keep)
    # one warp on each of four schedulers; 64 dmuls take max(8, 2 chains) cycles each
    for chains in range(1, 5):
        demand = seen[f"dmul_{chains} 132x128"]
        cycles = 64 * max(8.0, 2.0 * chains)
        assert demand.cycles["fp64"] == pytest.approx(
            min(1.0, 64 * chains / cycles * 4 / 2), rel=0.01
        )
        assert demand.cycles["issue"] == pytest.approx((64 * chains + 6) / cycles, rel=0.01)
        assert demand.cycles["tensor"] == 0.0
        assert (demand.irregular, demand.launch_s) == (0.0, demand.seconds)
    copying = seen["copy_1 132x1024, 4.29 GB"]
    assert copying.dram_of == "achievable"
    assert copying.dram == pytest.approx(utilisation(132), rel=0.01)
    assert copying.l2_hit == 0.0


@pytest.mark.parametrize("curvature", [0.0, 0.1, 0.571, 2.5])
def test_a_known_curve_comes_back(curvature: float) -> None:
    slope = 0.68 * (1 + curvature * 0.68**2) / 132
    points = [(blocks, utilisation(blocks, curvature, slope)) for blocks in (33, 66, 99, 132)]
    found = fit_curve(points)
    assert found is not None
    assert found.curvature == pytest.approx(curvature, abs=2e-4)
    assert found.slope == pytest.approx(slope, rel=1e-3)
    assert found.residual < 1e-4


@pytest.mark.parametrize(
    "points", [[], [(33, 0.2), (66, 0.4)], [(33, 1.0), (66, 1.0), (99, 0.99), (132, 0.5)]]
)
def test_no_curve_through_too_few_points_below_saturation(
    points: list[tuple[float, float]],
) -> None:
    assert fit_curve(points) is None


def test_the_calibration_is_that_of_the_simulated_gpu() -> None:
    device = SimulatedGpu()
    found = calibrate(run(device, "bandwidth", "l2", "l1", "issue", "l2-read"), lanes=device.lanes)
    values = found.calibration
    assert {entry.provenance for entry in values.values()} == {"measured"}
    assert values["dram_curvature"].value == pytest.approx(CURVATURE, rel=0.1)
    assert values["dram_curvature"].residual is not None
    assert values["dram_curvature"].residual < 0.01
    assert values["achievable_share"].value == pytest.approx(BANDWIDTH / 3.938e12, rel=0.01)
    assert values["l2_miss_cost"].value == pytest.approx(L2_COST, rel=0.02)
    assert values["l1_miss_cost"].value == pytest.approx(L1_COST, rel=0.02)
    assert values["l2_bytes_per_s"].value == pytest.approx(L2_BANDWIDTH, rel=0.01)
    for cache, (knee, cliff) in (("l2", L2_LAW), ("l1", L1_LAW)):
        assert values[f"{cache}_knee"].value == pytest.approx(knee, rel=0.05)
        assert values[f"{cache}_cliff"].value == pytest.approx(cliff, rel=0.05)
        assert values[f"{cache}_knee"].residual == pytest.approx(0.0, abs=0.02)
    assert 0.9 < (values["issue_capacity"].value or 0.0) <= 1.0
    # the largest array below the knee: 0.85 of 50 MB
    assert found.knees["l2_array_bytes_alone"] == pytest.approx(0.8 * 50e6, rel=0.13)
    assert found.values.measured_on == "NVIDIA H100 NVL"
    assert found.values.source.startswith("measured:")
