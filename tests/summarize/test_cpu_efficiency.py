"""CPU efficiency of jobs: CPU time over what their CPUs had, null where one of both is unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from madelake import job, make_lake, summarized, utc

START = utc(2, 10)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"cpus": 8, "cpu_time_s": 7200.0}, 7200 / (8 * 3600)),
        ({"cpus": 8, "cpu_time_s": 7200.0, "elapsed_s": 1800.0}, 7200 / (8 * 1800)),  # suspended for half of the time
        ({"cpus": 1, "cpu_time_s": 5400.0}, 1.5),  # not confined to its CPU
        ({"cpus": 8, "cpu_time_s": None}, None),
        ({"cpus": None, "cpu_time_s": 7200.0}, None),
        ({"cpus": 0, "cpu_time_s": 7200.0}, None),
        ({"cpus": 8, "cpu_time_s": 7200.0, "elapsed_s": 0.0}, None),
    ],
)
def test_cpu_time_over_what_the_cpus_had(tmp_path: Path, given: dict[str, Any], expected: float | None) -> None:
    row = job("1", START, utc(2, 11), node_list="n1", gpus=1, mem_requested_mib=8192.0, max_rss_mib=500.0) | given
    held = {"job_id": "1", "node": "n1", "gpu": 0, "provenance": "explicit"}
    lake = make_lake(tmp_path, jobs=[row], allocations=[held])
    (summary,) = summarized(lake)[1].values()
    assert summary["cpu_efficiency"] == (None if expected is None else pytest.approx(expected))
    assert {name: summary[name] for name in ("cpus", "cpu_time_s")} == {
        name: given[name] for name in ("cpus", "cpu_time_s")
    }
    assert (summary["mem_requested_mib"], summary["max_rss_mib"]) == (8192.0, 500.0)


def test_a_running_job_has_none(tmp_path: Path) -> None:
    row = job("1", START, None, node_list="n1", gpus=1, cpus=8, cpu_time_s=60.0)
    held = {"job_id": "1", "node": "n1", "gpu": 0, "provenance": "explicit"}
    (summary,) = summarized(make_lake(tmp_path, jobs=[row], allocations=[held]))[1].values()
    assert summary["cpu_efficiency"] is None
