"""CPU efficiency of jobs: CPU time over what their CPUs had, null where one of both is unknown."""

from __future__ import annotations

from typing import Any

import pytest

from in_memory import outcome
from madelake import held, job, utc

START = utc(2, 10)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"cpus": 8, "cpu_time_s": 7200.0}, 7200 / (8 * 3600)),
        # Suspended for half of the time.
        ({"cpus": 8, "cpu_time_s": 7200.0, "elapsed_s": 1800.0}, 7200 / (8 * 1800)),
        ({"cpus": 1, "cpu_time_s": 5400.0}, 1.5),  # not confined to its CPU
        ({"cpus": 8, "cpu_time_s": None}, None),
        ({"cpus": None, "cpu_time_s": 7200.0}, None),
        ({"cpus": 0, "cpu_time_s": 7200.0}, None),
        ({"cpus": 8, "cpu_time_s": 7200.0, "elapsed_s": 0.0}, None),
        ({"cpus": 8, "cpu_time_s": 60.0, "end": None, "elapsed_s": None, "state": "RUNNING"}, None),
    ],
)
def test_cpu_time_over_what_the_cpus_had(given: dict[str, Any], expected: float | None) -> None:
    row = (
        job(
            "1",
            START,
            utc(2, 11),
            node_list="n1",
            gpus=1,
            mem_requested_mib=8192.0,
            max_rss_mib=500.0,
        )
        | given
    )
    summary = outcome([], [row], held("1", "n1", (0,)), now=utc(2, 12)).jobs["1"]
    assert summary["cpu_efficiency"] == (None if expected is None else pytest.approx(expected))
    assert (summary["cpus"], summary["cpu_time_s"]) == (given["cpus"], given["cpu_time_s"])
    assert (summary["mem_requested_mib"], summary["max_rss_mib"]) == (8192.0, 500.0)
