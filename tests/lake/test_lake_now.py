"""A lake whose data end more than a day ago is looked at from there."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from madelake import Rows, fill, held, job
from tachograph.cli import main
from tachograph.lake.delta import Lake
from tachograph.lake.query import lake_now

END = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY, SECOND, HOUR = timedelta(days=1), timedelta(seconds=1), timedelta(hours=1)

SAMPLE = {"gpu_samples": [{"t": END, "node": "n", "gpu": 0, "gpu_util": 0.5}]}
HOST = {"node_samples": [{"t": END, "node": "n"}]}
ENDED = {"jobs": [job("7", END - HOUR, END, gpus=1)]}
PENDING = {"state": "PENDING", "start": END + 9 * DAY, "end": None, "elapsed_s": None}
WAITING = {"jobs": [*ENDED["jobs"], job("8", END, END, gpus=1) | PENDING]}
RUNNING = {"state": "RUNNING", "end": None, "elapsed_s": 3600.0}
RAN = {"jobs": [job("7", END - HOUR, END, gpus=1) | RUNNING]}
MAP = {"allocations": held("7", "n", [0], END - HOUR, END)}
OLD_SAMPLE = {"gpu_samples": [{"t": END - 9 * DAY, "node": "n", "gpu": 0, "gpu_util": 0.5}]}


@pytest.mark.parametrize("rows", [SAMPLE, HOST, ENDED, WAITING, RAN, MAP, OLD_SAMPLE | ENDED])
def test_the_latest_sample_or_time_of_a_job(rows: dict[str, Rows], tmp_path: Path) -> None:
    lake = Lake.create(str(tmp_path / "lake"))
    assert lake_now(lake, END) == END
    fill(lake, rows, chunk="rows")
    for clock in (END - HOUR, END, END + DAY):
        assert lake_now(lake, clock) == clock
    assert lake_now(lake, END + DAY + SECOND) == END
    assert lake_now(lake, END + 700 * DAY) == END
    later = END + 100 * DAY
    fill(lake, {"jobs": [job("9", later - HOUR, later, gpus=1)]}, chunk="later")
    assert lake_now(lake, END + 200 * DAY) == later


def test_relative_times_count_from_the_end_and_it_is_remarked_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    location = str(tmp_path / "lake")
    first = job("6", END - DAY, END - DAY + HOUR, gpus=1)
    last = job("7", END - HOUR, END, gpus=1)
    fill(Lake.create(location), {"jobs": [first, last]}, chunk="jobs")
    assert main(["analyze", "--lake", location]) == 0
    capsys.readouterr()
    words = ["jobs", "--columns", "job_id", "--csv", "--lake", location, "--time-zone", "UTC"]
    for since, jobs, remarks in (
        ("2h", ["7"], 1),
        ("2d", ["7", "6"], 1),
        ("2026-02-01", ["7", "6"], 0),
    ):
        assert main([*words, "--since", since]) == 0
        printed = capsys.readouterr()
        assert printed.out.split()[1:] == jobs
        assert printed.err.count("the data of this lake end at 2026-03-01 12:00:00") == remarks


@pytest.mark.parametrize(
    ("words", "week"), [((), "2026-W09"), (("--as-of", "2026-03-01T13:00"), "2026-W08")]
)
def test_the_digest_is_of_the_week_in_which_the_data_end(
    words: tuple[str, ...], week: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    location = str(tmp_path / "lake")
    weeks = [job("7", END - HOUR, END, gpus=1)]
    fill(Lake.create(location), {"jobs": weeks}, chunk="jobs")
    assert main(["analyze", "--lake", location]) == 0
    capsys.readouterr()
    assert main(["act", "digest", *words, "--lake", location, "--time-zone", "UTC"]) == 0
    printed = capsys.readouterr()
    assert f"{week}: 0 digests of" in printed.out
    assert ("the data of this lake end" in printed.err) is (not words)


def test_a_damaged_lake_has_the_clocks_time(tmp_path: Path) -> None:
    """So that the commands that repair it can be run."""
    lake = Lake.create(str(tmp_path / "lake"))
    fill(lake, ENDED, chunk="jobs")
    for file in (tmp_path / "lake" / "jobs").rglob("*.parquet"):
        file.unlink()
    assert lake_now(Lake.open(str(tmp_path / "lake")), END + 9 * DAY) == END + 9 * DAY
