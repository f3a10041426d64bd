"""The same quantity told in other ways: by other versions of the profiler, over other times, of
other GPUs.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_launches import busy, launch

from tachograph.annexes.share import utilization
from tachograph.annexes.share.capacity import gpu_of
from tachograph.annexes.share.demand import Calibration
from tachograph.annexes.share.kernel_limits import NEAR, limits
from tachograph.annexes.share.kernels import Kernel, kernels_of
from tachograph.annexes.share.nsight.launches import Chip, Launch
from tachograph.annexes.share.nsight.reports import read_report
from tachograph.catalog.devices import DEVICES_BY_NAME

DOCS = Path(__file__).resolve().parents[2] / "docs" / "kernels.md"
HALF_THE_TIME = {"sm__cycles_active.avg": 500.0, "gpc__cycles_elapsed.max": 1000.0}
ELAPSED = "avg.pct_of_peak_sustained_elapsed"


def only(*launches: Launch) -> Kernel:
    (kernel,) = kernels_of(launches)
    return kernel


def test_a_block_reported_by_its_shape_or_by_its_threads_is_the_same() -> None:
    shape = launch({}, block=(1024, 1, 1))
    count = launch({"launch__block_size": 1024.0}, block=None, number=1)
    square = launch({}, block=(32, 32, 1), number=2)
    assert only(shape, count).launches == 2
    assert only(shape, square).variants == 2
    assert len(kernels_of([shape, launch({"launch__block_size": 512.0}, block=None)])) == 2
    odd = [launch({"launch__block_size": float("nan")}, block=None, number=at) for at in range(3)]
    assert only(*odd).launches == 3


@pytest.mark.parametrize(
    ("metric", "pipe"),
    [
        (f"sm__inst_executed_pipe_fma.{ELAPSED}", "fma"),
        (f"sm__pipe_fp64_cycles_active.{ELAPSED}", "fp64"),
        (f"sm__pipe_tensor_op_hmma_cycles_active.{ELAPSED}", "tensor"),
    ],
)
def test_a_pipeline_reported_of_the_whole_time_counts_while_a_warp_is_there(
    metric: str, pipe: str
) -> None:
    kernel = only(launch({metric: 30.0, **HALF_THE_TIME}))
    assert kernel.demand.cycles[pipe] == pytest.approx(0.6)
    assert dict(only(launch({metric: 30.0})).demand.cycles) == {}
    found = metric.replace("_elapsed", "_active")
    both = only(launch({metric: 30.0, found: 55.0, **HALF_THE_TIME}))
    assert both.demand.cycles[pipe] == pytest.approx(0.55)


RECORDED = Path(os.environ.get("TACHOGRAPH_RECORDED", "")) / "h100_day" / "profiles"
# percent of the pipelines in the raw pages: FP64, tensor, the one that both share
H100_DAY = {
    "attention-forward": (0.0, 69.64, 69.64),
    "copy": (0.0, 0.0, 0.0),
    "gemm-bf16": (0.0, 96.98, 96.98),
    "gemm-fp32": (0.0, 0.0, 0.0),
    "gemm-fp64": (0.05, 97.60, 97.65),
    "reduction": (0.0, 0.05, 0.05),
}


@pytest.mark.skipif(not RECORDED.is_dir(), reason="no recorded inputs")
@pytest.mark.parametrize("name", H100_DAY)
def test_the_pipeline_that_fp64_and_tensor_share_is_read_from_recorded_profiles(name: str) -> None:
    kernel = only(*read_report(RECORDED / f"{name}.csv").launches)
    fp64, tensor, shared = (percent / 100 for percent in H100_DAY[name])
    cycles = kernel.demand.cycles
    assert [cycles[pipe] for pipe in ("fp64", "tensor", "shared")] == pytest.approx(
        [fp64, tensor, shared]
    )
    assert cycles["shared"] == pytest.approx(fp64 + tensor)
    assert cycles["fp16"] == 0.0  # of an H100 it is part of FMA
    assert kernel.missing == ()
    # A part that is all of it stands for it, so that a kernel has no limit twice.
    assert "shared" not in {limit.resource for limit in limits(kernel).resources}


def test_fp64_and_tensor_together_are_limited_by_the_pipeline_that_they_share() -> None:
    load = {
        "sm__inst_executed_pipe_fp64.avg.pct_of_peak_sustained_active": 40.0,
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": 45.0,
        "sm__pipe_shared_cycles_active.avg.pct_of_peak_sustained_active": 85.0,
    }
    kernel = only(launch(load))
    assert kernel.demand.cycles["shared"] == pytest.approx(0.85)
    assert limits(kernel).limited_by == "shared"
    elapsed = {
        name.replace("sustained_active", "sustained_elapsed"): value / 2
        for name, value in load.items()
    }
    halved = only(launch({**elapsed, **HALF_THE_TIME}))
    assert halved.demand.cycles["shared"] == pytest.approx(0.85)


@given(st.floats(0, 100), st.floats(0, 100), st.booleans())
def test_the_second_count_of_tensor_instructions_replaces_the_first(
    old: float, new: float, cycles: bool
) -> None:
    """Newer versions call the first count deprecated; other counts still compete."""
    name = "sm__pipe_tensor{}_cycles_active{}" if cycles else "sm__inst_executed_pipe_tensor{}{}"
    end = "avg.pct_of_peak_sustained_active"
    first, second = (f"{name.format('', version)}.{end}" for version in ("", "_v2"))
    part = f"{name.format('_op_imma', '')}.{end}"

    def tensor(**loads: float) -> float:
        return only(launch(loads)).demand.cycles["tensor"]

    assert tensor(**{first: old}) == pytest.approx(old / 100)
    assert tensor(**{second: new}) == pytest.approx(new / 100)
    assert tensor(**{first: old, second: new}) == pytest.approx(new / 100)
    assert tensor(**{first: old, second: new, part: 50.0}) == pytest.approx(max(new, 50.0) / 100)


@pytest.mark.parametrize(
    ("capability", "own"),
    [(None, True), ("7.0", True), ("7.5", True), ("8.0", True), ("8.6", False), ("9.0", False)],
)
def test_fp16_has_a_pipeline_of_its_own_up_to_ga100(capability: str | None, own: bool) -> None:
    metrics = busy(1.0, 50.0, fma=30.0, fp16=80.0)
    kernel = only(launch(metrics, chip=Chip("x", capability)))
    assert kernel.demand.cycles["fp16"] == (0.8 if own else 0.0)
    assert limits(kernel).limited_by == ("fp16" if own else "latency")
    unmeasured = only(launch(busy(1.0, 50.0, lsu=30.0), chip=Chip("x", capability)))
    assert "fp16" not in unmeasured.demand.cycles  # as FMA, which would have it


# (bus in bit, clock of memory in kHz) as drivers report them
MEMORIES = {
    "V100 SXM2 32GB": (4096, 877_000),
    "A100 SXM 40GB": (5120, 1_215_000),
    "A100 SXM 80GB": (5120, 1_593_000),
    "H100 SXM 80GB": (5120, 2_619_000),
    "H100 NVL 94GB": (6016, 2_619_000),
    "H200 SXM 141GB": (6144, 3_201_000),
}


@pytest.mark.parametrize("model", MEMORIES)
def test_bus_and_clock_give_the_published_bandwidth(model: str) -> None:
    bus, clock = MEMORIES[model]
    chip = Chip(
        "x", None, {"global_memory_bus_width": float(bus), "memory_clock_rate": float(clock)}
    )
    # of the H200 NVIDIA rounds 4.92 TB/s down to 4.8
    off = 0.025 if model.startswith("H200") else 0.01
    assert gpu_of(chip).dram_bytes_per_s == pytest.approx(
        DEVICES_BY_NAME[model].hbm_bytes_per_s, rel=off
    )


def test_the_page_shows_the_thresholds_that_are_used() -> None:
    page = DOCS.read_text(encoding="utf-8")
    rows = {
        cells[0]: cells[2:4]
        for line in page.splitlines()
        if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 4
    }
    scales = {
        "L2, L1": utilization.HITS,
        "DRAM": utilization.DRAM,
        "issue": utilization.CYCLES,
        "a pipeline": utilization.CYCLES,
    }
    for name, scale in scales.items():
        assert [int(re.findall(r"(\d+) %", cell)[0]) for cell in rows[name]] == [
            100 * part for part in scale
        ]
    assert rows["block slots"] == ["its blocks take all places", "half of them"]
    assert utilization.SLOTS == (1.0, 0.5)
    (near,) = re.findall(r"is the fullest resource, if (\d+) % of it", page)
    assert int(near) == 100 * NEAR
    assert f"Hits below {100 * utilization.TRAFFIC:.0f} % of a cache's throughput" in page
    assert f"{100 * utilization.IDLE[0]:.0f} % of the time of the busiest" in " ".join(page.split())
    assert Calibration().measured_on == "NVIDIA H100 NVL"
    assert "0.9" in page
    assert Calibration().achievable_share == 0.9
