"""A run that later data name otherwise is one job still: its old summary does not stay beside the new one."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from madelake import fill, held, job, make_lake, summarized, utc
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_findings, read_gpus, read_summaries

START = utc(23, 12)


def samples(begin: datetime = START, minutes: int = 20) -> list[dict[str, Any]]:
    times = [begin + timedelta(seconds=30 * i) for i in range(2 * minutes)]
    return [{"t": t, "node": "n1", "gpu": gpu, "gpu_util": 0.0} for gpu in range(2) for t in times]


def ids(lake: Lake) -> list[tuple[str, str | None]]:
    rows = read_summaries(lake).sort("start", "job_id")
    return list(rows.select("job_id", "user").iter_rows())


@pytest.mark.slow
def test_accounting_behind_a_map(tmp_path: Path) -> None:
    """A map alone made the job of it; the accounting adds when it was submitted, which is part of its key."""
    end = START + timedelta(minutes=20)
    lake = make_lake(tmp_path, gpu_samples=samples(), allocations=held("7", "n1", [0, 1], START, end))
    summarized(lake)
    assert ids(lake) == [("7", None)]
    row = job("7", START, end, submit=START - timedelta(hours=1), user="anna", gpus=2)
    fill(lake, {"jobs": [row]}, chunk="accounting")
    summarized(lake)
    assert ids(lake) == [("7", "anna")]
    keys = set(read_summaries(lake).get_column("job_key"))
    assert set(read_gpus(lake, read_summaries(lake)).get_column("job_key")) == keys
    assert set(read_findings(lake, read_summaries(lake)).get_column("job_key")) <= keys


@pytest.mark.slow
def test_seconds_behind_minutes(tmp_path: Path) -> None:
    """An export to the minute came first."""
    end = START + timedelta(minutes=20)
    coarse = job("7", START, end, gpus=2, time_precision_s=60.0)
    lake = make_lake(tmp_path, gpu_samples=samples(), jobs=[coarse], allocations=held("7", "n1"))
    summarized(lake)
    fine = job("7", START + timedelta(seconds=9), end, submit=START + timedelta(seconds=3), gpus=2, user="anna")
    fill(lake, {"jobs": [fine | {"time_precision_s": 0.0}]}, chunk="fine")
    summarized(lake)
    assert ids(lake) == [("7", "anna")]


def test_job_that_turns_out_to_have_had_no_gpus(tmp_path: Path) -> None:
    end = START + timedelta(minutes=20)
    first = job("7", START, end, gpus=None)
    other = job("8", START + timedelta(hours=1), None, gpus=2)
    lake = make_lake(
        tmp_path, gpu_samples=samples(), jobs=[first, other], allocations=held("7", "n1") + held("8", "n1")
    )
    summarized(lake)
    assert [job_id for job_id, _ in ids(lake)] == ["7", "8"]
    fill(lake, {"jobs": [first | {"gpus": 0}]}, chunk="corrected")
    summarized(lake)
    assert [job_id for job_id, _ in ids(lake)] == ["8"]


@pytest.mark.slow
def test_other_jobs_keep_their_summaries(tmp_path: Path) -> None:
    """Summaries of jobs that are as they were are neither computed nor lost."""
    end = START + timedelta(minutes=5)
    later = START + timedelta(minutes=10)
    maps = held("7", "n1", [0, 1], START, end) + held("8", "n1", [0, 1], later, later + timedelta(minutes=5))
    lake = make_lake(tmp_path, gpu_samples=samples(), allocations=maps)
    summarized(lake)
    before = dict(read_summaries(lake).select("job_id", "seq").iter_rows())
    fill(lake, {"jobs": [job("7", START, end, submit=START - timedelta(hours=1), gpus=2)]}, chunk="accounting")
    report, _ = summarized(lake)
    after = dict(read_summaries(lake).select("job_id", "seq").iter_rows())
    assert report.jobs == 1
    assert after["8"] == before["8"]
    assert after["7"] > before["7"]
