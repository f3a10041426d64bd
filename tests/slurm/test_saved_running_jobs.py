"""Running jobs of a saved accounting file end where the file ends; those of a poll run on."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import permutations
from pathlib import Path

import polars as pl
import pytest

from in_memory import with_seq
from madelake import fill, job
from tachograph.catalog.config import Configuration, SlurmOptions
from tachograph.catalog.tables import ALLOCATIONS, JOBS
from tachograph.cli import main
from tachograph.judge.job_judge import JobJudge
from tachograph.lake.conform import resolve
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries
from tachograph.pipeline.job_runs import build_runs
from tachograph.pipeline.run import analyze

START = datetime(2024, 4, 20, 12, tzinfo=UTC)
HEADER = "JobID|JobIDRaw|Cluster|User|Submit|Start|End|Elapsed|Timelimit|State|NodeList|AllocTRES"
RUNNING = "10|10|c|ana|2024-04-20T11:59:00|2024-04-20T12:00:00|Unknown|{}|1-06:00:00|RUNNING|n1|gres/gpu=2"
ENDED = (
    "11|11|c|bob|2024-04-20T11:59:00|2024-04-20T12:00:00|2024-04-20T18:30:00|06:30:00|1-06:00:00|"
    "COMPLETED|n2|gres/gpu=2"
)
WITH_PENDING = (
    "12|12|c|bob|2024-04-20T11:59:00|2024-05-20T12:00:00|Unknown|00:00:00|1-06:00:00|PENDING|"
    "None assigned|"
)


LATER = START + timedelta(days=900)


def summary(folder: Path, *, now: datetime = LATER) -> dict[str, object]:
    lake = Lake.open(str(folder / "lake"))
    analyze(lake, Configuration(), judge=JobJudge, now=now)
    return read_summaries(lake).filter(job_id="10").row(0, named=True)


def ingested(folder: Path, *lines: str) -> None:
    file = folder / "sacct.txt"
    file.write_text("\n".join([HEADER, *lines]) + "\n")
    words = ["ingest", "sacct", str(file), "--trusted", "--time-zone", "UTC"]
    assert main([*words, "--lake", str(folder / "lake")]) == 0


@pytest.mark.parametrize(
    ("elapsed", "hours"), [("06:00:00", 6.0), ("1-04:00:00", 28.0), ("00:00:00", 0.0), ("", 6.5)]
)
def test_it_ran_as_long_as_the_file_knows(elapsed: str, hours: float, tmp_path: Path) -> None:
    """Without its elapsed time it ran to the latest time of jobs that have started."""
    ingested(tmp_path, RUNNING.format(elapsed), ENDED, WITH_PENDING)
    row = summary(tmp_path)
    assert (row["state"], row["end"]) == ("RUNNING", None)
    assert (row["elapsed_s"], row["gpu_hours"]) == (hours * 3600, 2 * hours)
    assert row["as_of"] == START + timedelta(hours=hours)


def test_a_later_file_and_a_poll_extend_it(tmp_path: Path) -> None:
    ingested(tmp_path, RUNNING.format("06:00:00"))
    ingested(tmp_path, RUNNING.format("07:00:00"))
    assert summary(tmp_path)["elapsed_s"] == 7 * 3600
    polled = job("10", START, None, gpus=2) | {
        "submit": START - timedelta(minutes=1), "state": "RUNNING", "saved": False, "cluster": "c",
        "elapsed_s": None,
    }  # fmt: skip
    fill(Lake.open(str(tmp_path / "lake")), {"jobs": [polled]}, chunk="poll")
    row = summary(tmp_path, now=START + timedelta(hours=9))
    assert row["elapsed_s"] == 9 * 3600


POLL = {
    "submit": START - timedelta(minutes=1), "state": "RUNNING", "saved": False, "elapsed_s": None,
}  # fmt: skip
RECORDS: dict[str, dict[str, object]] = {
    "waiting": {**POLL, "state": "PENDING"},
    "six": {**POLL, "saved": True, "elapsed_s": 6 * 3600.0},
    "seven": {**POLL, "saved": True, "elapsed_s": 7 * 3600.0},
    "poll": POLL,
}


@pytest.mark.parametrize(("length", "hours"), [(3, 7.0), (4, 9.0)])
def test_records_of_a_run_in_any_order(length: int, hours: float) -> None:
    """The saved file that knows most counts, but the poll of a running job before each file."""
    now = START + timedelta(hours=9)
    for order in permutations(list(RECORDS)[:length]):
        of_run = job("10", START, None, gpus=2) | {"cluster": "c"}
        rows = with_seq("jobs", [of_run | RECORDS[name] for name in order]).with_columns(
            seq=pl.int_range(length, dtype=pl.Int64)
        )
        stepwise = rows.head(1)
        for number in range(1, length):  # as compactions between the commits
            both = pl.concat([stepwise, rows.slice(number, 1)])
            stepwise, _ = resolve(both, JOBS)
        for resolved in (resolve(rows, JOBS)[0], stepwise):
            runs = build_runs(resolved, ALLOCATIONS.empty(), slurm=SlurmOptions(), now=now)
            ends = runs.select("state", "until").rows()
            assert (order, ends) == (order, [("RUNNING", START + timedelta(hours=hours))])


def test_json_of_slurmdbd(tmp_path: Path) -> None:
    entry = {
        "job_id": 10, "cluster": "c", "user": "ana", "nodes": "n1",
        "time": {"submission": 1713614340, "start": 1713614400, "end": 0, "elapsed": 3600},
        "state": {"current": ["RUNNING"]},
        "tres": {"allocated": [{"type": "gres", "name": "gpu", "count": 2}]},
    }  # fmt: skip
    file = tmp_path / "sacct.json"
    file.write_text(json.dumps({"jobs": [entry], "meta": {}}))
    assert main(["ingest", "sacct", str(file), "--lake", str(tmp_path / "lake")]) == 0
    assert summary(tmp_path)["gpu_hours"] == 2.0
