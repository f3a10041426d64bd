"""What is proposed for the next job rests on all jobs of its name and size, not on the shortest."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from madelake import fill, job, utc
from tachograph.api.job_report import read_job
from tachograph.catalog.config import Configuration
from tachograph.cli import main
from tachograph.judge.finding import Finding
from tachograph.lake.delta import Lake
from tachograph.report.next_time import next_time

T = utc(23, 12)
DAY = 86400.0


@pytest.mark.parametrize(
    ("others", "line"),
    [
        ((), "#SBATCH --time=01:15:00"),
        (({"elapsed": 7200},), "#SBATCH --time=02:30:00"),
        (({"elapsed": 7200, "user": "bob"},), "#SBATCH --time=01:15:00"),
        (({"elapsed": 7200, "name": "other"},), "#SBATCH --time=01:15:00"),
        (({"elapsed": 7200, "gpus": 2},), "#SBATCH --time=01:15:00"),
        (({"elapsed": 7200, "state": "FAILED"},), "#SBATCH --time=01:15:00"),
        (({"elapsed": DAY, "state": "TIMEOUT"},), ""),
    ],
)
def test_time_is_of_the_longest_run(tmp_path: Path, others: tuple[dict[str, Any], ...], line: str) -> None:
    lake = Lake.create(str(tmp_path / "lake"))
    rows = []
    for number, other in enumerate(({"elapsed": 3600}, *others)):
        given: dict[str, Any] = {"user": "anna", "name": "train", "gpus": 1, "state": "COMPLETED", "timelimit_s": DAY}
        given |= other
        elapsed = float(given.pop("elapsed"))
        start = T + timedelta(days=number)
        rows.append(job(str(number), start, start + timedelta(seconds=elapsed), elapsed_s=elapsed, **given))
    fill(lake, {"jobs": rows}, chunk="jobs")
    assert main(["analyze", "--lake", str(tmp_path / "lake"), "--as-of", "2026-05-30T00:00:00Z", "--quiet"]) == 0
    report = read_job(lake, "0", now=T, configuration=Configuration())
    assert (report.next_time.line if report.next_time else "") == line


@pytest.mark.parametrize(
    ("seen", "held_mib", "proposed"),
    [(4.0, 300.0, True), (3.0, 300.0, False), (4.0, 16_000.0, False), (4.0, None, False)],
)
def test_no_gpus_only_where_none_worked_or_held_memory(seen: float, held_mib: float | None, proposed: bool) -> None:
    idle = Finding("idle_job", "problem", "", "", evidence={"gpus_seen": seen})
    made = next_time({"gpus": 4, "hbm_used_mib_max": held_mib}, [idle])
    assert (made is not None) is proposed
    assert made is None or (made.line, made.why.startswith("No GPU of 4 worked: request none, if ")) == ("", True)
