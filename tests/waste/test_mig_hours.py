"""Hours of MIG slices: their share of those of the GPU."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from madelake import fill, held, job
from tachograph.api.open_lake import OpenLake
from tachograph.catalog.config import Configuration
from tachograph.catalog.mig import mig_share
from tachograph.judge.job_judge import JobJudge
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries
from tachograph.pipeline.run import analyze

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTES = 21


def analyzed(folder: Path, **of_device: object) -> OpenLake:
    """Two jobs of 21 minutes on two slices of one H100, the second idle."""
    lake = Lake.create(str(folder / "lake"))
    end = START + timedelta(minutes=MINUTES)
    samples = [
        {"t": START + timedelta(minutes=minute), "node": "n", "gpu": 0, "mig": mig} | values
        for minute in range(MINUTES)
        for mig, values in ((7, {"gr_engine_active": 0.9}), (8, {"gr_engine_active": 0.0}))
    ]
    model = {"node": "n", "gpu": 0, "model": "NVIDIA H100 80GB HBM3"} | of_device
    devices = [model | {"mig": mig} for mig in (7, 8)]
    jobs = [job(name, START, end, gpus=1) for name in ("10", "11")]
    maps = [*held("10", "n", [0], mig=7), *held("11", "n", [0], mig=8)]
    rows = {"gpu_samples": samples, "devices": devices, "jobs": jobs, "allocations": maps}
    fill(lake, rows, chunk="rows")
    analyze(lake, Configuration(), judge=JobJudge, now=end)
    return OpenLake(lake, Configuration(), end)


@pytest.mark.parametrize(
    ("profile", "model", "share"),
    [
        ("4g.24gb", "NVIDIA A30", 1.0),
        ("2g.12gb", None, 0.5),
        ("1g.6gb", "NVIDIA A30", 0.25),
        ("4g.40gb", "NVIDIA A100-SXM4-80GB", 4 / 7),
        ("7g.80gb", None, 1.0),
        ("1c.3g.20gb", None, 1 / 7),
        ("2c.4g.24gb", None, 0.5),
        ("2g.48gb", None, 0.5),
        ("4g.96gb+gfx", None, 1.0),
        ("nvidia_rtx_pro_6000_blackwell_1g.24gb", None, 0.25),
        ("1g.24gb", "NVIDIA H100 NVL", 1 / 7),
        ("1g.24gb", None, None),  # a quarter of one model, a seventh of others
        ("1g.12gb", "NVIDIA RTX PRO 5000 Blackwell", None),
    ],
)
def test_the_share_of_a_profile(profile: str, model: str | None, share: float | None) -> None:
    assert mig_share(profile, model) == share


@pytest.mark.parametrize(
    ("of_device", "share", "sentence"),
    [
        ({"mig_profile": "1g.10gb"}, 1 / 7, "1 × MIG slice of H100 SXM 80GB, counted as 0.14 GPU"),
        ({"mig_profile": "3g.40gb"}, 3 / 7, "counted as 0.43 GPU each"),
        ({"hbm_mib": 20480.0}, 1 / 4, "20.0 GiB each, counted as 0.25 GPU each"),
        ({}, 1.0, "counted as whole GPUs: their share is not known"),
    ],
)
def test_a_slice_has_its_share_of_the_hours(
    of_device: dict[str, object], share: float, sentence: str, tmp_path: Path
) -> None:
    opened = analyzed(tmp_path, **of_device)
    hours = share * MINUTES / 60
    jobs = read_summaries(opened.lake).sort("job_id")
    assert jobs["gpu_hours"].to_list() == pytest.approx([hours, hours])
    assert jobs["gpu_hours_never_used"].to_list() == pytest.approx([0.0, hours])
    assert jobs["gpus"].to_list() == [1, 1]
    causes = opened.waste().report.causes
    assert causes["gpu_hours"].sum() == pytest.approx(2 * hours)
    assert causes.filter(cause="never_used")["gpu_hours"].item() == pytest.approx(hours)
    assert sentence in " ".join(repr(opened.job("10")).split())


def test_the_type_of_the_allocation_names_the_slice_of_a_job_without_samples(
    tmp_path: Path,
) -> None:
    lake = Lake.create(str(tmp_path / "lake"))
    end = START + timedelta(hours=7)
    types = {"1": "nvidia_h100_1g.10gb", "2": "h100", "3": None, "4": "a30_1g.6gb"}
    jobs = [job(name, START, end, gpus=2) | {"gpu_type": kind} for name, kind in types.items()]
    fill(lake, {"jobs": jobs}, chunk="jobs")
    analyze(lake, Configuration(), judge=JobJudge, now=end)
    hours = read_summaries(lake).sort("job_id").select(pl.col("gpu_hours")).to_series()
    assert hours.to_list() == pytest.approx([2.0, 14.0, 14.0, 3.5])
