"""What is concluded from recordings of a real H100: five labelled workloads, idle seconds first."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import polars as pl
import pytest

from madelake import fill, held, job, utc
from tachograph.catalog.config import Configuration
from tachograph.catalog.rows import JobSummaryRow
from tachograph.judge.job_judge import JobJudge
from tachograph.judge.limiter import shares_of_job
from tachograph.judge.workload.arrays import COUNTERS, classify_rows
from tachograph.judge.workload.classes import WORKLOAD_CLASSES
from tachograph.judge.workload.settings import WorkloadSettings
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries
from tachograph.pipeline.run import analyze
from tachograph.report.job_sentences import limiter_sentence

pytestmark = pytest.mark.recorded

AFTER = utc(28, month=11)
MODEL = "NVIDIA H100 80GB HBM3"
# class by the default rules, and by the published ones, of most of the time at work
CLASSES = {
    "bf16": ("tensor-heavy compute", "tensor-heavy compute"),
    "device-copy": ("memory-bound", "compute-heavy"),
    "fp64-vector": ("FP64 / HPC compute", "FP64 / HPC compute"),
    "host-copy": ("I/O or data-loading", "I/O or data-loading"),
    "tiny-kernels": ("busy, low SM use", "mixed / moderate"),
}
# limiter, and how near its practical peak that came
EXPECTED = {
    "bf16": ("compute", 0.97),
    "device-copy": ("memory", 1.0),
    "fp64-vector": ("compute", 0.99),
    "host-copy": ("pcie", 0.60),
    "tiny-kernels": ("neither", None),
}


@pytest.fixture(scope="module")
def jobs(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, JobSummaryRow]:
    """Summaries by workload: each recording is one job, from its first to its last sample."""
    samples: list[dict[str, Any]] = []
    runs, allocations, devices = [], [], []
    for number, name in enumerate(EXPECTED, 1):
        rows = pl.read_parquet(recorded / "h100_day" / "samples" / f"{name}.parquet")
        samples += [row | {"node": name} for row in rows.iter_rows(named=True)]
        first, last = rows["t"].sort().to_list()[:: rows.height - 1]
        runs.append(job(str(number), first, last, gpus=1))
        allocations += held(str(number), name, (0,))
        devices.append({"node": name, "gpu": 0, "model": MODEL})
    lake = Lake.create(str(tmp_path_factory.mktemp("h100")))
    tables = {"gpu_samples": samples, "jobs": runs, "allocations": allocations, "devices": devices}
    fill(lake, tables, now=AFTER)
    analyze(lake, Configuration(), judge=JobJudge, now=AFTER)
    summaries = read_summaries(lake).sort(pl.col("job_id").cast(pl.Int64))
    return dict(zip(EXPECTED, cast("list[JobSummaryRow]", summaries.to_dicts()), strict=True))


@pytest.mark.parametrize("name", EXPECTED)
def test_the_limiter_is_what_the_workload_was_made_of(
    jobs: dict[str, JobSummaryRow], name: str
) -> None:
    limiter, share = EXPECTED[name]
    assert jobs[name]["limiter"] == limiter
    shares = shares_of_job(jobs[name])
    assert shares.get(limiter) == (share if share is None else pytest.approx(share, abs=0.005))
    sentence = limiter_sentence(jobs[name], shares)
    assert "achievable" in str(sentence) or limiter == "neither"


@pytest.mark.parametrize("name", CLASSES)
def test_the_class_is_that_of_the_label(
    jobs: dict[str, JobSummaryRow], recorded: Path, name: str
) -> None:
    rows = pl.read_parquet(recorded / "h100_day" / "samples" / f"{name}.parquet")
    at_work = rows.filter(pl.col("gpu_util") > 0)
    values = {
        counter: at_work[counter].cast(pl.Float64).fill_null(float("nan")).to_numpy()
        for counter in COUNTERS
    }
    for expected, published in zip(CLASSES[name], (False, True), strict=True):
        settings = WorkloadSettings(published=published)
        labels = classify_rows(values, at_work.height, settings).labels
        names = pl.Series([WORKLOAD_CLASSES[label] for label in labels])
        assert names.mode().to_list() == [expected]
        assert (names == expected).sum() > 0.5 * len(names)
    assert jobs[name]["workload"] == CLASSES[name][0]


def test_kernels_of_one_element_leave_open_what_set_the_speed(
    jobs: dict[str, JobSummaryRow],
) -> None:
    row = jobs["tiny-kernels"]
    assert limiter_sentence(row, shares_of_job(row)) == (
        "Neither arithmetic nor memory was near its peak for most of the time. At work, the FP32 "
        "units were active <0.01 % of the time, memory moved data 0.1 % of the time (at work in "
        "1.6 % of the run). The SMs were active 0.027 % of the time. What set the speed is "
        "unknown: profile a part of it (Nsight Systems) to know more."
    )
