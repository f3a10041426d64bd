"""A job that runs is judged to its last sample, unless that is old."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from madelake import held, job, make_lake, summarized, utc
from tachograph.catalog.tables import FINDINGS

START = utc(2)
WORK = {"gpu_util": 0.95, "tensor_active": 0.4, "dram_active": 0.4, "power_w": 310.0}
REST = {"gpu_util": 0.0, "tensor_active": 0.0, "dram_active": 0.0, "power_w": 60.0}
WORKS, MINUTES = 60, 130


@pytest.mark.parametrize(
    ("late_min", "verdict"), [(0, "yes"), (3, "yes"), (14, "yes"), (15, "unknown")]
)
def test_a_hang_is_told_while_the_job_runs(tmp_path: Path, late_min: int, verdict: str) -> None:
    """An hour of work, 70 minutes without: told while the newest sample, of 20 s before, is not old."""
    rows = [
        {
            "t": START + timedelta(minutes=minute, seconds=second),
            "node": "n1",
            "gpu": gpu,
            **(WORK if minute < WORKS else REST),
        }
        for minute in range(MINUTES)
        for second in (10, 40)
        for gpu in range(2)
    ]
    lake = make_lake(
        tmp_path / "lake",
        gpu_samples=rows,
        jobs=[job("1", START, None, gpus=2)],
        allocations=held("1", "n1", range(2), START),
        devices=[
            {"node": "n1", "gpu": gpu, "model": "NVIDIA A100-SXM4-40GB", "t": START}
            for gpu in range(2)
        ],
    )
    summarized(lake, now=START + timedelta(minutes=MINUTES + late_min))
    found = lake.scan(FINDINGS).select("code", "verdict").collect()
    assert found.filter(code="job_hang")["verdict"].to_list() == [verdict]
