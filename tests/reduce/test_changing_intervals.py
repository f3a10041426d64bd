"""Means and coverage of jobs whose GPUs were sampled at several intervals, by time."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from madelake import held, job, make_lake, summarized, utc
from tachograph.lake.query import read_minutes, read_summaries
from tachograph.pipeline.sampling import Sampling

HOUR = timedelta(hours=1)


def samples(
    start: datetime, end: datetime, every_s: float, **values: float
) -> list[dict[str, Any]]:
    """Return samples of one GPU at a constant interval."""
    count = math.ceil((end - start).total_seconds() / every_s)
    times = [start + timedelta(seconds=every_s * number) for number in range(count)]
    return [{"node": "n1", "gpu": 0, "t": t, **values} for t in times]


BUSY = {"gpu_util": 0.9, "fp64_active": 0.5, "dram_active": 0.1, "throttle_reasons": 0x20}
IDLE = {"gpu_util": 0.0, "fp64_active": 0.0, "dram_active": 0.4, "throttle_reasons": 0}


def test_each_job_has_the_interval_of_its_own_time(tmp_path: Path) -> None:
    """Two jobs on a GPU whose interval changed between them; each is sampled completely."""
    moment = utc(3, 12)
    rows = samples(moment - HOUR, moment, 10, **BUSY) + samples(moment, moment + HOUR, 60, **IDLE)
    later = moment + timedelta(minutes=1)  # no second in which the GPU is handed over
    times = {"1": (moment - HOUR, moment), "2": (later, moment + HOUR)}
    lake = make_lake(
        tmp_path,
        gpu_samples=rows,
        jobs=[job(name, *span, gpus=1) for name, span in times.items()],
        allocations=[row for name in times for row in held(name, "n1", (0,))],
    )
    _, jobs = summarized(lake)
    assert [jobs[name]["coverage"] for name in times] == [1.0, 1.0]
    assert [jobs[name]["interval_s"] for name in times] == [10.0, 60.0]
    assert [jobs[name]["gpu_util_mean"] for name in times] == pytest.approx([0.9, 0.0])


def test_the_minute_of_a_change_is_by_time(tmp_path: Path) -> None:
    """Twenty seconds of a minute are busy and sampled each second, the others idle, every 10 s."""
    start = utc(3, 8)
    burst = start + timedelta(minutes=10, seconds=20)
    until = burst + timedelta(seconds=20)
    rows = [
        *samples(start, burst, 10, gpu_util=0.0),
        *samples(burst, until, 1, gpu_util=0.9),
        *samples(until, start + HOUR, 10, gpu_util=0.0),
    ]
    lake = make_lake(
        tmp_path,
        gpu_samples=rows,
        jobs=[job("1", start, start + HOUR, gpus=1)],
        allocations=held("1", "n1", (0,)),
    )
    _, jobs = summarized(lake)
    minutes = read_minutes(lake, read_summaries(lake)).sort("minute")
    assert minutes["minute"].to_list() == list(range(60))
    assert minutes.filter(minute=10)["gpu_util"].item() == pytest.approx(0.3, rel=1e-6)
    assert minutes.filter(minute=10)["samples"].item() == 24
    assert jobs["1"]["gpu_util_mean"] == pytest.approx(0.9 * 20 / 3600, rel=1e-6)
    assert jobs["1"]["coverage"] == 1.0


@pytest.mark.parametrize("lost", ["every third", "twenty minutes", "few after midnight"])
def test_lost_samples_are_no_other_interval(lost: str, tmp_path: Path) -> None:
    """Means are over samples, bit by bit, as published, where the interval is one."""
    moment = utc(4)
    rows = samples(moment - HOUR, moment + HOUR, 10)
    for number, row in enumerate(rows):
        row["gpu_util"] = (number * 7919 % 1000) / 1000
    kept = {
        "every third": [row for number, row in enumerate(rows) if number % 3],
        "twenty minutes": rows[:100] + rows[220:],
        "few after midnight": rows[:361] + rows[391:392] + rows[440:441],
    }[lost]
    lake = make_lake(
        tmp_path,
        gpu_samples=kept,
        jobs=[job("1", moment - HOUR, moment + HOUR, gpus=1)],
        allocations=held("1", "n1", (0,)),
    )
    _, jobs = summarized(lake)
    single = np.array([row["gpu_util"] for row in kept], np.float32).astype(float)
    assert jobs["1"]["gpu_util_mean"] == pytest.approx(single.sum() / len(single), rel=1e-14)


@pytest.mark.parametrize("lost", [0.1, 0.2, 0.3])
def test_samples_lost_at_random_are_no_other_interval(lost: float) -> None:
    distances_s = 10 * np.random.default_rng(3).geometric(1 - lost, 500_000)
    t = np.cumsum(distances_s) * 1_000_000
    assert Sampling.of(t, np.array([0, len(t)])).pieces == {}
