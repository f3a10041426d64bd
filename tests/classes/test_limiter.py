"""What limited the speed: each resource is weighted by itself; what was measured moves peaks."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from jobframes import frame, summary
from tachograph.catalog.devices import DEVICES_BY_NAME
from tachograph.catalog.rows import JobSummaryRow
from tachograph.catalog.tables import JOB_SUMMARIES, PIPES
from tachograph.judge.limiter import shares_of_job, with_limiter
from tachograph.report.job_sentences import limiter_sentence

ALL_PIPES = {f"{counter}_mean": 0.0 for counter in PIPES.values()}
COPY = {"dram_active_mean": 0.6, "dram_at_work": 0.85, "dram_work_fraction": 0.7}
PRODUCTS = {
    "tensor_active_mean": 0.5,
    "main_pipe": "tensor",
    "main_pipe_at_work": 0.8,
    "work_fraction": 0.6,
}
A100, H100 = "A100 SXM 40GB", "H100 SXM 80GB"


def planted(**columns: Any) -> JobSummaryRow:
    return summary(**({"samples": 100, "gpu_model": A100} | ALL_PIPES | columns))


def limiter_of(**columns: Any) -> str | None:
    jobs = frame(JOB_SUMMARIES, [planted(**columns)])
    limiter: str | None = with_limiter(jobs).item(0, "limiter")
    return limiter


@pytest.mark.parametrize(
    ("columns", "limiter"),
    [
        (COPY, "memory"),
        (COPY | {"dram_work_fraction": 0.49}, "neither"),
        (COPY | PRODUCTS, "memory"),
        (COPY | PRODUCTS | {"main_pipe_at_work": 0.96}, "compute"),  # 0.96 / 0.9 > 0.85 / 0.8
        (PRODUCTS | {"dram_active_mean": 0.1}, "compute"),
        (PRODUCTS | {"dram_active_mean": 0.1, "work_fraction": 0.49}, "neither"),
        ({"dram_active_mean": 0.1}, "neither"),
        # what was not measured may have been nearer
        (PRODUCTS, None),
        (COPY | dict.fromkeys(ALL_PIPES), None),
        ({"dram_active_mean": 0.1, "fp32_active_mean": None}, None),
        (COPY | {"attribution": "ambiguous"}, None),
        # 25 GB/s in each direction is the peak of PCIe 4
        ({"pcie_bytes_per_s_at_work": 24e9, "pcie_work_fraction": 0.6}, "pcie"),
        ({"pcie_bytes_per_s_at_work": 24e9, "pcie_work_fraction": 0.4}, None),
    ],
)
def test_the_nearest_to_its_peak_in_half_of_the_time(
    columns: dict[str, Any], limiter: str | None
) -> None:
    assert limiter_of(**columns) == limiter


@pytest.mark.parametrize(("model", "peak"), [(A100, 0.8), (H100, 0.9), ("not listed", 0.8)])
@pytest.mark.parametrize("level", [0.3, 0.6, 0.8, 0.9, 0.97])
def test_no_share_of_what_is_achievable_is_above_all_of_it(
    model: str, peak: float, level: float
) -> None:
    row = planted(gpu_model=model, limiter="memory", **(COPY | {"dram_at_work": level}))
    shares = shares_of_job(row)
    assert shares["memory"] == pytest.approx(min(1.0, level / peak))
    assert f", {min(1.0, level / peak):.0%}".replace("%", " %") in str(
        limiter_sentence(row, shares)
    )


def test_measured_peaks_are_below_the_theoretical_ones() -> None:
    device = DEVICES_BY_NAME[H100]
    bandwidth = device.practical_hbm_bytes_per_s
    assert bandwidth is not None
    assert bandwidth / device.hbm_bytes_per_s == pytest.approx(0.85, abs=0.005)
    assert device.practical_dram_active == pytest.approx(0.90)
    assert "measured" in str(device.source("practical_hbm_bytes_per_s"))


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({}, "record sm_active, nvlink_tx_bytes_per_s"),
        ({"sm_active_mean": 0.4}, "record nvlink_tx_bytes_per_s"),
        ({"gpu_model": "L40S", "sm_active_mean": 0.4}, "record pcie_tx_bytes_per_s"),
        (
            {"sm_active_mean": 0.4}
            | {
                f"{link}_{way}_bytes_per_s_mean": 1e6
                for link in ("nvlink", "pcie")
                for way in ("tx", "rx")
            },
            "profile a part of it (Nsight Systems)",
        ),
    ],
)
def test_without_a_limiter_the_speed_is_unknown(columns: dict[str, Any], expected: str) -> None:
    row = planted(limiter="neither", dram_active_mean=0.05, **columns)
    sentence = str(limiter_sentence(row, shares_of_job(row)))
    assert f"What set the speed is unknown: {expected}" in sentence


def test_rows_are_judged_alone() -> None:
    kinds: tuple[dict[str, Any], ...] = (COPY, PRODUCTS, {})
    rows = [planted(job_key=str(index), **columns) for index, columns in enumerate(kinds)]
    together = with_limiter(frame(JOB_SUMMARIES, rows))
    alone = [with_limiter(frame(JOB_SUMMARIES, [row])) for row in rows]
    assert together.equals(pl.concat(alone))
