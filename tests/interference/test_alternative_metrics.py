"""The same quantity told in other ways: by other versions of the profiler, over other times, of
other GPUs.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from published_launches import COPY, H100, busy, launch

from tachograph.annexes.share import utilization
from tachograph.annexes.share.capacity import gpu_of
from tachograph.annexes.share.demand import Calibration
from tachograph.annexes.share.kernel_limits import NEAR, limits
from tachograph.annexes.share.kernels import Kernel, kernels_of
from tachograph.annexes.share.nsight.launches import Chip, Launch
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
    assert dict(kernel.demand.cycles) == {pipe: pytest.approx(0.6)}
    assert dict(only(launch({metric: 30.0})).demand.cycles) == {}
    found = metric.replace("_elapsed", "_active")
    assert dict(only(launch({metric: 30.0, found: 55.0, **HALF_THE_TIME})).demand.cycles) == {
        pipe: pytest.approx(0.55)
    }


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


def test_what_can_be_achieved_is_known_of_the_gpu_that_was_measured() -> None:
    copy = {fear.resource: fear for fear in utilization.sensitivities(only(COPY))}["dram"]
    assert copy.value == pytest.approx(0.42 / 0.9)
    assert copy.why.endswith("(of what can be achieved)")
    a100 = only(
        launch(busy(0.61, 50.0, dram=42.0), chip=replace(H100, name="NVIDIA A100-SXM4-40GB"))
    )
    there = {fear.resource: fear for fear in utilization.sensitivities(a100)}["dram"]
    assert there.value == pytest.approx(0.42 / 0.9)  # as estimates count it, on any GPU
    assert there.level == "high"
    assert "not measured on this one" in there.why
    assert limits(a100).bound == "latency"
    own = Calibration(achievable_share=0.5, measured_on="NVIDIA A100-SXM4-40GB")
    assert limits(a100, calibration=own).resources[0].demand == pytest.approx(0.84)


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
