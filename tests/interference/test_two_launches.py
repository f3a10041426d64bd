"""Two very different launches of one kernel: 9 ms on all SMs, 1 ms on a tenth of them, added up
by hand.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from published_launches import launch

from tachograph.annexes.share.kernel_facts import facts_of
from tachograph.annexes.share.kernels import Kernel, kernels_of
from tachograph.annexes.share.nsight.launches import Launch
from tachograph.annexes.share.utilization import distribution, pitfalls

WHILE = "avg.pct_of_peak_sustained_active"
CLOCK = 1.7e9
LONG, SHORT = 15.3e6, 0.17e6  # cycles in which the mean SM had a warp, of 15.3e6 and 1.7e6


def made(
    ms: float,
    rates: tuple[float, float, float, float],
    cycles: tuple[float, float, float],
    **more: float,
) -> Launch:
    """Rates: IPC, percent of occupancy, FMA, DRAM. Cycles: active, of the mean, the least, the
    most busy SM.
    """
    ipc, occupancy, fma, dram = rates
    metrics = {
        "sm__inst_issued.avg.per_cycle_active": ipc,
        f"sm__warps_active.{WHILE}": occupancy,
        f"sm__inst_executed_pipe_fma.{WHILE}": fma,
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": dram,
        **dict(
            zip((f"sm__cycles_active.{of}" for of in ("avg", "min", "max")), cycles, strict=True)
        ),
        "sm__cycles_elapsed.max": ms * 1e-3 * CLOCK,
        "smsp__cycles_elapsed.avg.per_second": CLOCK,
        "dram__bytes.sum.per_second": more["traffic"],
    }
    return launch(
        metrics, seconds=ms * 1e-3, grid=(int(more["blocks"]), 1, 1), number=int(more["blocks"])
    )


BIG = made(9.0, (3.0, 50.0, 60.0, 40.0), (LONG, 15.0e6, LONG), traffic=1.6e12, blocks=2640)
SMALL = made(1.0, (0.4, 3.0, 2.0, 1.0), (SHORT, 0.0, 1.7e6), traffic=4e10, blocks=13)


def only(*launches: Launch) -> Kernel:
    (kernel,) = kernels_of(launches)
    return kernel


def test_a_small_grid_is_kept_apart() -> None:
    assert [kernel.grid for kernel in kernels_of([SMALL, BIG])] == [(2640, 1, 1), (13, 1, 1)]


def test_both_together() -> None:
    """Of as many blocks each: another input, which leaves most SMs idle."""
    kernel = only(replace(SMALL, grid=(1320, 2, 1)), BIG)
    spread, active = distribution(kernel), LONG + SHORT
    used = {name: fact.value for name, fact in facts_of(kernel).items()}
    assert kernel.seconds == pytest.approx(10e-3)
    # per cycle with a warp: weighted by those cycles
    assert used["ipc"] == pytest.approx((3.0 * LONG + 0.4 * SHORT) / active)
    assert used["occupancy"] == pytest.approx((0.5 * LONG + 0.03 * SHORT) / active)
    assert used["pipe_fma"] == pytest.approx((0.6 * LONG + 0.02 * SHORT) / active)
    # per time: weighted by it
    assert used["dram"] == pytest.approx(0.9 * 0.40 + 0.1 * 0.01)
    assert used["sm_share"] == pytest.approx(active / 17e6)
    assert spread is not None
    assert spread.idle == pytest.approx(1 - active / (LONG + 1.7e6))
    assert used["dram_bytes_per_s"] == pytest.approx((1.6e12 * 9e-3 + 4e10 * 1e-3) / 10e-3)
    assert kernel.grid == (2640, 1, 1)
    assert kernel.variants == 2


def test_nvidia_smi_misleads_of_the_one_on_few_sms_alone() -> None:
    (misled,) = pitfalls(only(SMALL))
    assert misled.name == "nvidia_smi"
    assert dict(misled.numbers) == {"nvidia_smi": 1.0, "sm_share": pytest.approx(0.1),
                                    "sms_reached_share": pytest.approx(13 / 132)}  # fmt: skip
    assert "nvidia_smi" not in {pitfall.name for pitfall in pitfalls(only(BIG))}
