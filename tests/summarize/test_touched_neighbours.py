"""What new accounting of one job changes for the jobs beside it on a node."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from madelake import NOW, fill, held, job, make_lake, summarized, utc
from tachograph.catalog.config import Configuration
from tachograph.judge.job_judge import JobJudge
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries
from tachograph.pipeline.run import analyze

START = utc(23, 12)
END = START + timedelta(minutes=10)
SECOND = END + timedelta(seconds=1)


def samples() -> list[dict[str, Any]]:
    times = [START + timedelta(seconds=10 * i) for i in range(180)]
    return [
        {"t": t, "node": node, "gpu": gpu, "gpu_util": 0.5} for node in ("n1", "n2") for gpu in (0, 1) for t in times
    ]


def three_jobs(folder: Path, first: dict[str, Any]) -> Lake:
    """Job 1 as given and job 2 behind it on n1, job 3 on n2."""
    jobs = [
        first,
        job("2", SECOND, SECOND + timedelta(minutes=10), gpus=2, exclusive=True),
        job("3", START, END, gpus=2),
    ]
    allocations = [*held("1", "n1"), *held("2", "n1"), *held("3", "n2")]
    return make_lake(folder, gpu_samples=samples(), jobs=jobs, allocations=allocations)


def everything(lake: Lake) -> list[tuple[Any, ...]]:
    return read_summaries(lake).drop("seq").sort("job_key").rows()


def check_against_full(lake: Lake, untouched: dict[str, int]) -> None:
    """Nothing is left of what was; job 3 was not looked at again."""
    found = everything(lake)
    seqs = dict(read_summaries(lake).select("job_id", "seq").iter_rows())
    assert seqs["3"] == untouched["3"]
    analyze(lake, Configuration(), judge=JobJudge, now=NOW, full=True)
    assert everything(lake) == found


def test_end_of_a_job_that_seemed_to_run_on(tmp_path: Path) -> None:
    """As long as the end of job 1 is not told, both claim n1 and neither has it; then each has its own time."""
    lake = three_jobs(tmp_path, job("1", START, None, gpus=2, exclusive=True))
    _, jobs = summarized(lake)
    # 61 samples up to the second in which job 2 begins, 59 from its end on
    assert (jobs["1"]["samples"], jobs["2"]["samples"]) == (2 * (61 + 59), 0)
    before = dict(read_summaries(lake).select("job_id", "seq").iter_rows())
    fill(lake, {"jobs": [job("1", START, END, gpus=2, exclusive=True)]}, chunk="end")
    _, jobs = summarized(lake)
    assert (jobs["1"]["samples"], jobs["2"]["samples"], jobs["2"]["coverage"]) == (2 * 60, 2 * 60, 1.0)
    check_against_full(lake, before)


@pytest.mark.slow
def test_job_that_had_no_gpus_after_all(tmp_path: Path) -> None:
    """What it had claimed is free again."""
    lake = three_jobs(tmp_path, job("1", SECOND, SECOND + timedelta(minutes=10), gpus=2, exclusive=True))
    _, jobs = summarized(lake)
    assert jobs["2"]["samples"] == 0
    before = dict(read_summaries(lake).select("job_id", "seq").iter_rows())
    fill(lake, {"jobs": [job("1", SECOND, SECOND + timedelta(minutes=10), gpus=0, exclusive=False)]}, chunk="corrected")
    _, jobs = summarized(lake)
    assert "1" not in jobs
    assert jobs["2"]["samples"] == 2 * 60
    check_against_full(lake, before)
