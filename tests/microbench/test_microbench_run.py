"""The runner, on a simulated GPU: what is run in which order, what comes out, what happens when something fails."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import pytest

from microbench.device import LaunchError
from microbench.experiments import Experiment, chosen, experiments
from microbench.fits import (
    Bench,
    ExperimentResult,
    ExperimentRun,
    calibrate,
    ended,
    fit_curve,
    value_of,
)
from microbench.measure import AloneRun, PairedRun, loaded, time_limit, together, tune
from microbench.run import BenchPlan, bench
from microbench.simulated_device import (
    BANDWIDTH,
    CLOCK_HZ,
    CURVATURE,
    L1_COST,
    L1_LAW,
    L2_BANDWIDTH,
    L2_COST,
    L2_LAW,
    SimulatedGpu,
    utilisation,
)
from microbench.workloads import BenchWorkload, over
from tachograph.sharing.demand import H100_NVL, Calibration, Demand, Estimate, GpuCapacity, Sharing
from tachograph.sharing.estimate import estimate

QUICK = BenchPlan(runs=3, target_s=0.02)


def predict(demands: tuple[Demand, Demand], gpu: GpuCapacity, sharing: Sharing, calibration: Calibration) -> Estimate:
    return estimate(demands, gpu=gpu, sharing=sharing, calibration=calibration)


def run(device: SimulatedGpu, *names: str, plan: BenchPlan = QUICK) -> Bench:
    return bench(device, chosen(experiments(device.gpu), names), plan=plan, predictor=predict)


def measured(found: Bench) -> dict[str, float]:
    return {one.experiment.name: one.measured.median for one in found.results if one.measured is not None}


def test_every_launch_takes_the_time_that_was_requested_for() -> None:
    device = SimulatedGpu()
    for workload in (
        BenchWorkload(kernel="fmul_4", blocks=132, threads=128),
        BenchWorkload(kernel="sleep", blocks=1, threads=32),
    ):
        with loaded(device, [workload]) as (one,):
            assert tune(device, one, 0.05).seconds == pytest.approx(0.05, rel=0.05)
    assert device.sizes == {}


def test_one_round_is_the_least_even_if_it_takes_longer_than_requested() -> None:
    device = SimulatedGpu()
    with loaded(device, [over("copy_1", 4 << 30, 33)]) as (one,):
        found = tune(device, one, 0.001)
    assert found.rounds == 1
    assert found.seconds == pytest.approx(8 * (1 << 30) / (BANDWIDTH * utilisation(33)), rel=0.01)


def test_pairs_are_of_equal_length_though_rounds_of_a_copy_are_coarse() -> None:
    for one in run(SimulatedGpu(), "issue").results:
        if one.experiment.second is not None:
            assert one.alone[0].seconds == pytest.approx(one.alone[1].seconds, rel=0.06), one.experiment.name


def test_nothing_runs_together_before_all_was_foretold() -> None:
    device, requested = SimulatedGpu(), []

    def watch(demands: tuple[Demand, Demand], gpu: GpuCapacity, sharing: Sharing, calibration: Calibration) -> Estimate:
        requested.append(len(device.launched))
        assert not any(launch.endswith("1") for launch in device.launched), "a launch of the second stream came before"
        return predict(demands, gpu, sharing, calibration)

    wanted = chosen(experiments(device.gpu), ["fp64", "blocks"])
    found = bench(device, wanted, plan=QUICK, predictor=watch)
    assert len(requested) == 2 * len(wanted)  # with the published calibration and with its own
    assert all(one.expected is not None and one.calibrated is not None for one in found.results)
    assert any(launch.endswith("1") for launch in device.launched[max(requested) :])


def test_the_order_of_modes_turns_from_run_to_run() -> None:
    device = SimulatedGpu()
    wanted = [replace(one, second=BenchWorkload(kernel="dmul_1", blocks=132, threads=128))
              for one in chosen(experiments(device.gpu), ["issue-1"])]  # fmt: skip
    bench(device, wanted, plan=BenchPlan(runs=4, target_s=0.02), predictor=predict)
    tail = device.launched[-4 * 6 :]
    alone_first, alone_second, turn, both = (
        ["fmul_1 0"],
        ["dmul_1 0"],
        ["fmul_1 0", "dmul_1 0"],
        ["fmul_1 0", "dmul_1 1"],
    )
    modes = [alone_first, alone_second, turn, both]
    turned = [mode for n in range(4) for mode in (*modes[n:], *modes[:n])]
    assert tail == [launch for mode in turned for launch in mode]


def test_ten_runs_give_medians_and_the_spread_of_single_runs() -> None:
    found = run(SimulatedGpu(noise=0.02), "fp64-1", plan=BenchPlan(runs=10, target_s=0.02)).results[0]
    assert len(found.runs) == 10
    value = found.measured
    assert value is not None
    turns = median(one.in_turn for one in found.runs if one.in_turn is not None)
    ends = [median(getattr(one.together, name) for one in found.runs) for name in ("first_s", "second_s")]
    assert value.median == pytest.approx(turns / max(ends))
    assert value.low < value.median < value.high


def test_slowdowns_are_those_of_the_simulated_gpu() -> None:
    rates = {("fmul_4", "copy_1"): 1.0, ("copy_1", "fmul_4"): 0.5, ("dmul_3", "dmul_3"): 0.68}
    found = measured(run(SimulatedGpu(noise=0.0, beside=rates), "pitfall-roofline", "fp64-3", "blocks", "bandwidth"))
    # the copy has done half when the other ends, and goes on alone
    assert found["pitfall-roofline"] == pytest.approx(1.5, rel=0.03)
    assert found["fp64-3"] == pytest.approx(2 * 0.68, rel=0.01)
    assert found["blocks-1x"] == pytest.approx(2.0, rel=0.01)
    assert found["blocks-2x"] == pytest.approx(1.0, rel=0.01)
    for quarter, blocks in ((25, 33), (50, 66), (75, 99), (100, 132)):
        wanted = 2 * utilisation(blocks) / utilisation(2 * blocks)
        assert found[f"bandwidth-{quarter}"] == pytest.approx(wanted, rel=0.01)


def test_launches_of_unequal_length_are_measured_from_begin_to_end() -> None:
    device = SimulatedGpu(noise=0.0, beside={("dmul_1", "fmul_1"): 0.5, ("fmul_1", "dmul_1"): 0.5})
    workloads = [BenchWorkload(kernel=name, blocks=132, threads=128) for name in ("dmul_1", "fmul_1")]
    with loaded(device, workloads) as (first, second):
        short, long = tune(device, first, 0.01), tune(device, second, 0.03)
        found = together(device, (first, short.rounds), (second, long.rounds), limit_s=9)
    assert found.first_s == pytest.approx(0.02, rel=0.05)
    assert found.second_s == pytest.approx(0.04, rel=0.05)
    assert ended((0.01, 0.03), (2.0, 2.0), 1.0) == pytest.approx((0.02, 0.04))


def test_values_do_not_depend_on_the_order_of_runs() -> None:
    dice = random.Random(3)
    runs = [ExperimentRun((dice.random() + 1, dice.random() + 1), dice.random() + 2, PairedRun(dice.random() + 1, 2.0))
            for _ in range(9)]  # fmt: skip
    for compared in ("gain", "first", "second", "both"):
        assert value_of(runs, compared) == value_of(runs[::-1], compared)
    slow = value_of(runs, "first")
    assert slow is not None
    assert slow.median == median(one.together.first_s for one in runs) / median(one.alone[0] for one in runs)
    assert value_of([ExperimentRun((1.0, 1.0), None, PairedRun(1.0, 1.0))], "gain") is None


def test_a_failing_launch_stops_its_experiment_only() -> None:
    found = run(SimulatedGpu(fails=frozenset({"dmul_2"})), "fp64")
    problems = {one.experiment.name: one.problem for one in found.results}
    assert problems["fp64-2"] is not None
    assert "CUDA_ERROR_INVALID_VALUE" in problems["fp64-2"]
    assert [name for name, problem in problems.items() if problem is None] == [
        "fp64-1", "fp64-3", "fp64-4", "fp64-beside",
    ]  # fmt: skip
    assert not found.stuck


def test_arrays_shrink_until_they_fit() -> None:
    device = SimulatedGpu(memory=5_000_000_000)
    found = {one.experiment.name: one for one in run(device, "bandwidth", "l2").results}
    assert found["bandwidth-100"].problem is None
    assert found["bandwidth-100"].experiment.bytes_needed <= device.memory
    assert found["bandwidth-100"].experiment.first.floats == (4 << 30) // 4 // 4
    assert device.sizes == {}


def test_too_little_memory_is_reported() -> None:
    found = run(SimulatedGpu(memory=30_000_000), "l2-80", "fp64-1")
    assert [one.problem is None for one in found.results] == [False, True]
    assert "GB are needed" in str(found.results[0].problem)


def test_a_kernel_that_never_ends_ends_the_run_and_frees_nothing() -> None:
    device = SimulatedGpu(endless=frozenset({"dmul_3"}))
    found = run(device, "fp64", "pitfall-occupancy")
    assert found.stuck
    problems = [one.problem for one in found.results]
    assert "did not end within" in str(problems[2])
    assert all("did not end" in str(problem) for problem in problems)
    assert all(not one.runs for one in found.results)
    assert not any(launch.endswith("1") for launch in device.launched)


def test_waiting_is_bounded() -> None:
    assert time_limit(0.05) < 15
    assert 20 < time_limit(1.0) < 120


def test_demands_come_from_the_clock_of_the_sm() -> None:
    """Instructions that the kernels declare over the cycles of the simulated GPU, computed here by hand."""
    seen: dict[str, Demand] = {}

    def keep(demands: tuple[Demand, Demand], gpu: GpuCapacity, sharing: Sharing, calibration: Calibration) -> Estimate:
        seen.update({demand.name: demand for demand in demands})
        return predict(demands, gpu, sharing, calibration)

    device = SimulatedGpu(noise=0.0)
    wanted = chosen(experiments(device.gpu), ["fp64", "issue", "bandwidth"])
    bench(device, wanted, plan=QUICK, predictor=keep)
    # one warp on each of four schedulers; 64 dmuls take max(8, 2 chains) cycles each
    for chains in range(1, 5):
        demand = seen[f"dmul_{chains} 132x128"]
        cycles = 64 * max(8.0, 2.0 * chains)
        assert demand.cycles["fp64"] == pytest.approx(min(1.0, 64 * chains / cycles * 4 / 2), rel=0.01)
        assert demand.cycles["issue"] == pytest.approx((64 * chains + 6) / cycles, rel=0.01)
        assert demand.cycles["tensor"] == 0.0
        assert (demand.irregular, demand.warps) == (0.0, 1.0)
    copying = seen["copy_1 132x1024, 4.29 GB"]
    assert copying.dram_of == "achievable"
    assert copying.dram == pytest.approx(utilisation(132), rel=0.01)
    assert copying.l2_hit == 0.0
    assert copying.warps == 8.0


def test_demands_do_not_depend_on_which_warp_an_sm_favours() -> None:
    """The first warp may end long before its launch: it tells how fast the clock was, and the launch how long."""
    cycles = [
        one.alone[0].cycles
        for favoured in (1.0, 0.06)
        for one in run(SimulatedGpu(noise=0.0, favoured=favoured), "issue-all").results
    ]
    assert cycles[0] == pytest.approx(0.02 * CLOCK_HZ, rel=0.05)
    assert cycles[1] == pytest.approx(cycles[0], rel=1e-4)


def test_a_launch_alone_counts_as_the_median_of_many() -> None:
    device = SimulatedGpu(noise=0.05)
    wanted = chosen(experiments(device.gpu), ["issue-all"])
    seen: list[float] = []
    plain = device.seconds
    device.seconds = lambda begin, end: seen.append(plain(begin, end)) or seen[-1]  # type: ignore[method-assign, func-returns-value]
    found = bench(device, wanted, plan=BenchPlan(runs=9, target_s=0.02), predictor=predict).results[0]
    assert found.alone[0].seconds == median(seen[-9:])


def test_both_launches_are_waiting_before_the_first_begins() -> None:
    """Else the second comes as late as the host is slow; and an end that is waited for may stand before it."""
    device, put = SimulatedGpu(noise=0.0), []
    for name in ("launch", "mark", "follow"):
        plain = getattr(device, name)

        def watched(*words: Any, _name: str = name, _plain: Any = plain, **more: Any) -> Any:
            put.append((_name, words[0] if _name == "launch" else ""))
            return _plain(*words, **more)

        setattr(device, name, watched)
    workloads = [BenchWorkload(kernel=name, blocks=132, threads=128) for name in ("dmul_1", "fmul_1")]
    with loaded(device, workloads) as (first, second):
        together(device, (first, 10), (second, 10), limit_s=9)
    assert put == [
        ("launch", "sleep"), ("mark", ""), ("follow", ""), ("launch", "dmul_1"), ("launch", "fmul_1"),
        ("mark", ""), ("mark", ""),
    ]  # fmt: skip


@pytest.mark.parametrize("curvature", [0.0, 0.1, 0.571, 2.5])
def test_a_known_curve_comes_back(curvature: float) -> None:
    slope = 0.68 * (1 + curvature * 0.68**2) / 132
    points = [(blocks, utilisation(blocks, curvature, slope)) for blocks in (33, 66, 99, 132)]
    found = fit_curve(points)
    assert found is not None
    assert found.curvature == pytest.approx(curvature, abs=2e-4)
    assert found.slope == pytest.approx(slope, rel=1e-3)
    assert found.residual < 1e-4


def test_a_curve_with_noise_comes_back_nearly_and_shows_its_residual() -> None:
    dice = random.Random(11)
    points = [(b, utilisation(b, 0.6, 0.0072) * (1 + dice.uniform(-0.01, 0.01))) for b in (20, 40, 60, 80, 100, 120)]
    found = fit_curve(points)
    assert found is not None
    assert found.curvature == pytest.approx(0.6, abs=0.25)
    assert 0.001 < found.residual < 0.02


@pytest.mark.parametrize("points", [[], [(33, 0.2), (66, 0.4)], [(33, 1.0), (66, 1.0), (99, 0.99), (132, 0.5)]])
def test_no_curve_through_too_few_points_below_saturation(points: list[tuple[float, float]]) -> None:
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


def test_what_was_not_measured_keeps_the_published_value_and_shows_so() -> None:
    device = SimulatedGpu()
    found = calibrate(run(device, "l1"), lanes=device.lanes).calibration
    measured = [name for name, entry in found.items() if entry.provenance == "measured"]
    assert measured == ["l1_miss_cost", "l1_knee", "l1_cliff"]
    for name, entry in found.items():
        if name not in measured:
            assert entry.value == getattr(Calibration(), name)
            assert entry.note


def test_pairs_do_not_change_the_calibration() -> None:
    plain, slow = (
        calibrate(run(device, "bandwidth"), lanes=device.lanes)
        for device in (SimulatedGpu(noise=0.0), SimulatedGpu(noise=0.0, beside={("copy_1", "copy_1"): 0.1}))
    )
    assert plain.calibration == slow.calibration
    assert [row.measured for row in plain.experiments] != [row.measured for row in slow.experiments]


def test_the_estimator_foretells_the_simulated_bandwidth() -> None:
    """The fake's law of DRAM is the estimator's: predictions made from launches alone must meet what pairs do."""
    for one in run(SimulatedGpu(noise=0.0), "bandwidth").results:
        if one.experiment.second is not None:
            assert one.calibrated is not None
            assert one.measured is not None
            assert one.calibrated.value == pytest.approx(one.measured.median, rel=0.06), one.experiment.name


class _Pairs:
    """Two processes of which each has what `slower` says times its time alone on all SMs."""

    def __init__(self, slower: float) -> None:
        self.slower = slower
        self.asked: list[str] = []

    def measure(
        self, experiment: Experiment, plan: BenchPlan
    ) -> tuple[tuple[AloneRun, AloneRun], tuple[ExperimentRun, ...]]:
        self.asked.append(experiment.name)
        if experiment.name == "l2-15":
            raise LaunchError("a process under MPS ended")
        alone = AloneRun(1000, self.slower * plan.target_s, 1)
        times = (alone.seconds, alone.seconds)
        return (alone, alone), tuple(ExperimentRun(times, None, PairedRun(*times)) for _ in range(plan.runs))


def test_under_mps_all_with_shares_run_once_more() -> None:
    device, pairs = SimulatedGpu(noise=0.0), _Pairs(16.0)
    wanted = chosen(experiments(device.gpu), ["pitfall-occupancy", "bandwidth-25", "fp64-1", "l2-15"])
    found = bench(device, wanted, plan=QUICK, predictor=predict, processes=pairs)
    assert pairs.asked == ["bandwidth-25", "l2-15", "pitfall-occupancy"]
    under = {one.experiment.name: one for one in found.results if one.mode == "mps"}
    assert under["l2-15"].problem == "a process under MPS ended"
    small = under["pitfall-occupancy"]
    assert small.published == 15.8
    assert small.expected is not None
    # 132 blocks on 8 SMs with room for 16 on each: one wave of 16 on an SM, and one of the 4 that are left
    issue = (64 * 4 + 6) / (64 * 4.08 * (1 + 6 / 64 / 4 * 0.5))
    assert small.expected.value == pytest.approx(16 * issue + 1, rel=0.01)
    # compared with the same rounds on the whole GPU, not with its share alone
    alone = device.alone("fmul_4", 132, 128, (0, 0, 1000, 0))
    assert small.runs[0].alone == pytest.approx((alone, alone))
    assert small.measured is not None
    assert small.measured.median == pytest.approx(16.0 * QUICK.target_s / alone)


def test_problems_of_one_way_do_not_touch_the_other() -> None:
    results: Sequence[ExperimentResult] = bench(
        SimulatedGpu(), chosen(experiments(H100_NVL), ["l2-15"]), plan=QUICK, predictor=predict, processes=_Pairs(1.0)
    ).results
    assert [(one.mode, one.problem is None) for one in results] == [("streams", True), ("mps", False)]
