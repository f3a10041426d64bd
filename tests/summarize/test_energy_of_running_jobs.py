"""Energy of a job that still runs is that of the time with samples, however long its accounting
says it goes on.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from in_memory import outcome
from madelake import held, job, utc

START = utc(23, 10)
WATTS, EVERY_S, SAMPLES = 300.0, 10.0, 61  # 600 s from the first sample to the last


def measured_s(row: dict[str, Any]) -> float:
    return EVERY_S * float(row["samples"] - 1)


def summarized(
    counter: str, *, first_s: float = 0.0, end_s: float | None, now_s: float
) -> dict[str, Any]:
    rows = [
        {
            "t": START + timedelta(seconds=first_s + EVERY_S * place),
            "node": "n1",
            "gpu": 0,
            counter: WATTS if counter == "power_w" else WATTS * EVERY_S * place,
        }
        for place in range(SAMPLES)
    ]
    end = None if end_s is None else START + timedelta(seconds=end_s)
    jobs = [job("1", START, end, gpus=1)]
    return outcome(rows, jobs, held("1", "n1", [0]), now=START + timedelta(seconds=now_s)).jobs["1"]


@pytest.mark.parametrize("counter", ["power_w", "energy_j"])
@pytest.mark.parametrize(
    ("first_s", "now_s", "span_s"),
    [
        (0.0, 600.0, 600.0),  # nothing is missing
        (0.0, 650.0, 650.0),  # a few intervals late
        (0.0, 30 * 86400.0, 660.0),  # samples stopped a month ago: three intervals at either end
        (86400.0, 30 * 86400.0, 660.0),  # they also began a day late
    ],
)
def test_a_running_job_has_the_energy_that_was_measured(
    counter: str, first_s: float, now_s: float, span_s: float
) -> None:
    row = summarized(counter, first_s=first_s, end_s=None, now_s=now_s)
    assert row["state"] == "RUNNING"
    assert row["energy_j_estimated"] == pytest.approx(WATTS * span_s, rel=1e-9)
    assert row["energy_j"] == pytest.approx(WATTS * measured_s(row), rel=1e-9)
    assert row["power_w_mean"] == pytest.approx(WATTS, rel=1e-9)
    assert row["gpu_hours"] == pytest.approx(now_s / 3600)


@pytest.mark.parametrize("counter", ["power_w", "energy_j"])
def test_of_a_finished_job_it_is_scaled_to_the_whole_run(counter: str) -> None:
    row = summarized(counter, end_s=86400.0, now_s=2 * 86400.0)
    assert row["energy_j_estimated"] == pytest.approx(WATTS * 86400, rel=1e-9)
    assert row["energy_j"] == pytest.approx(WATTS * measured_s(row), rel=1e-9)
    assert row["power_w_mean"] == pytest.approx(WATTS, rel=1e-9)


def test_power_of_a_job_is_that_of_the_gpus_whose_power_is_known() -> None:
    times = [START + timedelta(seconds=EVERY_S * place) for place in range(SAMPLES)]
    known = [{"t": t, "node": "n1", "gpu": 0, "gpu_util": 0.5, "power_w": WATTS} for t in times]
    unknown = [{"t": t, "node": "n1", "gpu": 1, "gpu_util": 0.5} for t in times]
    jobs = [job("1", START, times[-1], gpus=2)]
    row = outcome(known + unknown, jobs, held("1", "n1", [0, 1]), now=times[-1]).jobs["1"]
    assert (row["energy_gpus"], row["gpus_seen"]) == (1, 2)
    assert row["power_w_mean"] == pytest.approx(WATTS, rel=1e-9)
