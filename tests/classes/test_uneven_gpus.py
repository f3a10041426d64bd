"""GPUs of one job that report different counters: what was not measured of one may be work."""

from __future__ import annotations

import polars as pl
import pytest
from made_jobs import RESTING, WORKING, Levels, gpu_minutes, phases, verdicts

from jobframes import gpus
from tachograph.judge.finding import Finding

PROFILING = ("sm_active", "tensor_active", "dram_active", "pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s",
             "nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s", "fp32_active")  # fmt: skip
BUSY = WORKING | {"gpu_util": 0.97}


def judged(
    *of_gpus: list[Levels | None], lacking: dict[int, tuple[str, ...]], held: int | None = None
) -> Finding:
    """The verdict on job_hang of GPUs that lack counters."""
    made = [
        gpu_minutes(levels, without=lacking.get(gpu, ())).with_columns(gpu=pl.lit(gpu, pl.Int16))
        for gpu, levels in enumerate(of_gpus)
    ]
    measured = [
        {"samples": 6}
        | {f"{name}_mean": 0.5 for name in WORKING if name not in lacking.get(gpu, ())}
        for gpu in range(len(of_gpus))
    ]
    unmeasured = [{"samples": 0}] * ((held or len(measured)) - len(measured))
    return verdicts(pl.concat(made), of_gpus=gpus(*measured, *unmeasured))["job_hang"]


HANGS = phases((60, WORKING), (90, RESTING))


@pytest.mark.parametrize("more", [(), ("power_w",)])
def test_one_that_is_busy_and_tells_little_may_be_at_work(more: tuple[str, ...]) -> None:
    works = phases((60, WORKING), (90, BUSY))
    assert judged(HANGS, works, lacking={1: (*PROFILING, *more)}).verdict == "unknown"


def test_one_at_rest_that_tells_little_is_at_rest() -> None:
    assert judged(HANGS, HANGS, lacking={1: PROFILING}).verdict == "yes"


def test_one_that_never_told_anything_may_be_at_work() -> None:
    assert judged(HANGS, lacking={}).verdict == "yes"
    assert judged(HANGS, lacking={}, held=2).verdict == "unknown"


def test_work_is_seen_whoever_is_silent() -> None:
    assert judged(phases((150, WORKING)), lacking={}, held=2).verdict == "no"


def test_the_work_of_one_slice_of_many_is_no_rest() -> None:
    little = RESTING | {
        "gr_engine_active": 0.95,
        "sm_active": 0.3,
        "dram_active": 0.05,
        "power_w": 80.0,
    }
    slices = [HANGS] * 6 + [phases((60, WORKING), (90, little))]
    rows = [
        gpu_minutes(levels, without=("gpu_util",)).with_columns(
            gpu=pl.lit(gpu, pl.Int16),
            gr_engine_active=pl.Series([None if each is None else each.get("gr_engine_active", each["gpu_util"])
                                        for each in levels], dtype=pl.Float32),
        )
        for gpu, levels in enumerate(slices)
    ]  # fmt: skip
    assert verdicts(pl.concat(rows))["job_hang"].verdict == "no"
    assert verdicts(pl.concat(rows[:6]))["job_hang"].verdict == "yes"


def test_slices_that_wait_busily_have_no_utilisation_to_tell() -> None:
    waits = gpu_minutes(phases((60, WORKING), (90, RESTING | {"gpu_util": 1.0})))
    rows = waits.with_columns(gr_engine_active="gpu_util", gpu_util=pl.lit(None, pl.Float32))
    sentence = verdicts(rows)["job_hang"].sentence
    assert "seemingly busy" in sentence
    assert "–" not in sentence


def test_a_gpu_that_tells_another_counter_is_seen_at_work() -> None:
    """One reports utilisation and is idle; the other reports the activity of its engine only,
    and works.
    """
    idle = gpu_minutes(phases((90, RESTING), (60, WORKING)))
    works = idle.with_columns(
        *(pl.lit(None, pl.Float32).alias(name) for name in WORKING),
        gpu=pl.lit(1, pl.Int16),
        gr_engine_active=pl.lit(0.75, pl.Float32),
    )
    assert verdicts(idle)["cold_start"].verdict == "yes"
    assert verdicts(pl.concat([idle, works]))["cold_start"].verdict != "yes"


def test_a_short_job_that_tells_little_is_not_said_to_be_unsteady() -> None:
    rows = gpu_minutes(phases((5, WORKING), (5, RESTING)), without=("power_w", *PROFILING))
    assert verdicts(rows)["stable"].verdict == "unknown"
    rows = gpu_minutes(phases((30, WORKING), (30, RESTING)), without=("power_w", *PROFILING))
    assert verdicts(rows)["stable"].verdict == "no"
