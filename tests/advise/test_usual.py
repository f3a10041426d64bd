"""Whether a job is worse than earlier runs: the change, the run it began with, false alarms."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from madelake import fill, job, utc
from tachograph.api.job_report import read_job
from tachograph.catalog.config import Configuration
from tachograph.cli import main
from tachograph.judge.advice.usual import _QUANTITIES, change_begin, unlike_usual
from tachograph.lake.delta import Lake
from tachograph.report.job_text import job_lines
from tachograph.report.lines import to_text

START = utc(1, 12)
TIME, USE = _QUANTITIES["elapsed_s"], _QUANTITIES["gpu_util_mean"]
USUAL: dict[str, Any] = {
    "state": "COMPLETED",
    "nodes": 1,
    "timelimit_s": 86400.0,
    "gpu_model": "H100",
    "attribution": "explicit",
    "coverage": 1.0,
    "elapsed_s": 3600.0,
    "gpu_util_mean": 0.8,
    "power_w_mean": 300.0,
    "spatial_imbalance": 0.1,
    "gpu_hours_cold_start": 0.0,
}


def sentence(*changes: dict[str, Any], earlier: int = 5, of: int = -1) -> str | None:
    """Return what is said of the last run (or of run `of`) after usual ones and changed ones."""
    rows = [
        {"job_key": f"c:{n:03}:1", "display_id": str(n), "start": START + timedelta(days=n)}
        | USUAL
        | change
        for n, change in enumerate([{}] * earlier + list(changes))
    ]
    found = unlike_usual(pl.DataFrame(rows, infer_schema_length=None), str(rows[of]["job_key"]))
    return None if found is None else found.sentence


def test_change_and_the_run_it_began_with() -> None:
    slow = {"elapsed_s": 5400.0}
    expected = "Run time 1 h 30 min, usually 1 h (5 runs before). Since job 5."
    assert sentence(slow) == expected
    assert sentence(slow, slow, {"elapsed_s": 5000.0}) == expected.replace("1 h 30", "1 h 23")
    assert sentence(slow, slow, {}) is None  # over
    assert sentence(slow, of=4) is None  # a run before it
    both = sentence(slow | {"power_w_mean": 150.0})
    assert both == (
        "Run time 1 h 30 min, usually 1 h; power of a GPU 150 W, usually 300 W (5 runs "
        "before). Since job 5."
    )


@pytest.mark.parametrize(
    ("change", "worse"),
    [
        ({"elapsed_s": 4500.0}, False),  # a quarter more, which is the least that counts
        ({"elapsed_s": 4501.0}, True),
        ({"elapsed_s": 1800.0}, False),  # faster
        ({"gpu_util_mean": 0.71}, False),
        ({"gpu_util_mean": 0.69}, True),
        ({"gpu_util_mean": 1.0}, False),
        ({"power_w_mean": 241.0}, False),
        ({"power_w_mean": 239.0}, True),
        ({"spatial_imbalance": 0.26}, True),
        ({"gpu_hours_cold_start": 0.6}, True),
        ({"elapsed_s": 5400.0, "state": "TIMEOUT"}, False),
        ({"elapsed_s": 5400.0, "timelimit_s": 90000.0}, False),  # another request
        ({"elapsed_s": 5400.0, "gpu_model": "A100"}, False),
        ({"elapsed_s": 5400.0, "nodes": 2}, False),
        ({"gpu_util_mean": 0.2, "coverage": 0.4}, False),  # not measured
        ({"gpu_util_mean": 0.2, "attribution": "ambiguous"}, False),
        ({"gpu_util_mean": None}, False),
    ],
)
def test_what_counts_as_worse(change: dict[str, Any], worse: bool) -> None:
    assert (sentence(change) is not None) is worse


def test_five_earlier_runs_are_needed() -> None:
    slow = {"elapsed_s": 36000.0}
    assert sentence(slow, earlier=4) is None
    assert sentence(slow, earlier=5) is not None


def test_a_second_mode_that_occurred_before_is_usual() -> None:
    runs = [100.0, 100.0, 100.0, 400.0, 100.0, 100.0, 100.0]
    assert change_begin([*runs, 400.0], TIME) is None
    assert change_begin([*runs, 800.0], TIME) == 7


@pytest.mark.parametrize(
    ("noise", "count", "most"), [(0.05, 6, 0.0), (0.1, 6, 0.01), (0.1, 11, 0.003), (0.3, 21, 0.005)]
)
def test_ordinary_noise_is_no_change(noise: float, count: int, most: float) -> None:
    """Log-normal run times and normal utilisation, 2,000 groups of jobs each."""
    drawn = random.Random(11)
    times = [[3600.0 * drawn.lognormvariate(0.0, noise) for _ in range(count)] for _ in range(2000)]
    uses = [[-drawn.gauss(0.5, noise / 2) for _ in range(count)] for _ in range(2000)]
    for groups, quantity in ((times, TIME), (uses, USE)):
        alarms = sum(change_begin(group, quantity) is not None for group in groups)
        assert alarms <= most * len(groups)


def test_doubled_run_times_are_found() -> None:
    drawn = random.Random(5)
    found = 0
    for _ in range(200):
        usual = [drawn.lognormvariate(0.0, 0.05) for _ in range(10)]
        begin = change_begin([*usual, 2 * drawn.lognormvariate(0.0, 0.05)], TIME)
        found += begin is not None
    assert found == 0  # seconds: less than the minute that counts
    for _ in range(200):
        usual = [3600 * drawn.lognormvariate(0.0, 0.05) for _ in range(10)]
        found += change_begin([*usual, 7200 * drawn.lognormvariate(0.0, 0.05)], TIME) == 10
    assert found >= 195


def test_report_of_a_job_names_it(tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    lake = Lake.create(str(folder))
    rows = []
    for number in range(7):
        elapsed = 3600.0 if number < 6 else 9000.0
        start = START + timedelta(days=number)
        about = {"user": "anna", "name": "train", "gpus": 1, "nodes": 1, "state": "COMPLETED"}
        end = start + timedelta(seconds=elapsed)
        rows.append(job(str(number), start, end, elapsed_s=elapsed, **about))
    fill(lake, {"jobs": rows}, chunk="jobs")
    as_of = ("--as-of", "2026-05-30T00:00:00Z", "--quiet")
    assert main(["analyze", "--lake", str(folder), *as_of]) == 0
    reports = [read_job(lake, name, now=START, configuration=Configuration()) for name in "56"]
    assert [[finding.code for finding in one.findings] for one in reports] == [
        ["ambiguous_attribution"],
        ["ambiguous_attribution", "unlike_usual"],
    ]
    written = " ".join(to_text(job_lines(reports[1], width=100)).split())
    assert "Run time 2 h 30 min, usually 1 h (6 runs before). Since job 6." in written
