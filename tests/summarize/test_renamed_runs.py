"""A run that later data name otherwise is one job still: its old summary does not stay beside
the new one.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from madelake import fill, held, job, make_lake, summarized, utc
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries

START = utc(23, 12)


def samples(begin: datetime = START, minutes: int = 20) -> list[dict[str, Any]]:
    times = [begin + timedelta(seconds=30 * i) for i in range(2 * minutes)]
    return [{"t": t, "node": "n1", "gpu": gpu, "gpu_util": 0.0} for gpu in range(2) for t in times]


def ids(lake: Lake) -> list[tuple[str, str | None]]:
    rows = read_summaries(lake).sort("start", "job_id")
    return list(rows.select("job_id", "user").iter_rows())


@pytest.mark.slow
def test_seconds_behind_minutes(tmp_path: Path) -> None:
    """An export to the minute came first."""
    end = START + timedelta(minutes=20)
    coarse = job("7", START, end, gpus=2, time_precision_s=60.0)
    lake = make_lake(tmp_path, gpu_samples=samples(), jobs=[coarse], allocations=held("7", "n1"))
    summarized(lake)
    fine = job(
        "7",
        START + timedelta(seconds=9),
        end,
        submit=START + timedelta(seconds=3),
        gpus=2,
        user="anna",
    )
    fill(lake, {"jobs": [fine | {"time_precision_s": 0.0}]}, chunk="fine")
    summarized(lake)
    assert ids(lake) == [("7", "anna")]
