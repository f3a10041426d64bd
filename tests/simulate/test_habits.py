"""A month of repeated jobs: each planted pattern is found, by numbers of the accounting alone."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl
import pytest

from in_process import run_here
from tachograph.annexes.lab.simulate.accounting import BETWEEN

LEAST_RUNS = 3  # of a name, before advice rests on them
NODE_GPUS, NODE_GIB = 8, 480
AS_OF = ("--as-of", "2025-03-05T00:00Z")


@dataclass(frozen=True)
class Run:
    """A job's row of the accounting. Hours are GPU-hours."""

    job: str
    gpus: int
    memory_gib: int
    state: str
    submit: datetime
    end: datetime
    elapsed_s: float

    @property
    def hours(self) -> float:
        return self.gpus * self.elapsed_s / 3600


@dataclass(frozen=True)
class Habit:
    """A user whose jobs have a planted pattern."""

    user: str
    changed_in: str | None
    runs: list[Run]

    @property
    def changed(self) -> int:
        """Place of the first run of the changed job."""
        return [run.job for run in self.runs].index(str(self.changed_in))


@pytest.fixture(scope="module")
def history(demo: Path) -> Path:
    return demo / "history"


@pytest.fixture(scope="module")
def habits(history: Path) -> dict[str, Habit]:
    """{pattern: its user}"""
    runs = accounted(history)
    return {
        row["pattern"]: Habit(row["user"], row["changed_in"], runs[row["user"]])
        for row in pl.read_parquet(history / "cluster" / "truth" / "habits.parquet").to_dicts()
    }


def accounted(history: Path) -> dict[str, list[Run]]:
    """{user: runs in order of submission}, of `sacct`'s text alone."""
    text = (history / "cluster" / "accounting" / "sacct.txt").read_text(encoding="utf-8")
    names, *lines = (line.split(BETWEEN) for line in text.splitlines())
    found: dict[str, list[Run]] = defaultdict(list)
    for cells in lines:
        row = dict(zip(names, cells, strict=True))
        if not row["User"]:  # a step
            continue
        tres = dict(part.split("=") for part in row["AllocTRES"].split(","))
        submit, start, end = (
            datetime.fromisoformat(row[key]) for key in ("Submit", "Start", "End")
        )
        memory_gib, gpus = int(tres["mem"].removesuffix("G")), int(tres["gres/gpu"])
        elapsed_s = (end - start).total_seconds()
        run = Run(row["JobID"], gpus, memory_gib, row["State"], submit, end, elapsed_s)
        found[row["User"]].append(run)
    return {user: sorted(rows, key=lambda run: run.submit) for user, rows in found.items()}


def answer(folder: Path, *words: str) -> Any:
    done = run_here([*words, "--json"], folder, {})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def backtest(history: Path) -> dict[str, Any]:
    report: dict[str, Any] = answer(history, "advise", "--backtest")
    return report


def advised(history: Path, user: str, name: str, gpus: int, topic: str) -> dict[str, Any]:
    partition = "gpu" if name in ("md_long", "cfd_week", "nightly") else "shared"
    job = ("--user", user, "--name", name, "--partition", partition, "--gpus", str(gpus))
    lines = answer(history, "advise", *job, *AS_OF)["lines"]
    (line,) = [line for line in lines if line["topic"] == topic]
    found: dict[str, Any] = line
    return found


def test_one_gpu_of_eight_is_advised_and_its_hours_are_saved(
    history: Path, habits: dict[str, Habit], backtest: dict[str, Any]
) -> None:
    user, runs = habits["one_gpu_of_eight"].user, habits["one_gpu_of_eight"].runs
    assert {run.gpus for run in runs} == {8}
    assert advised(history, user, "ensemble", 8, "gpus")["value"] == 1
    later = [run for run in runs if sum(other.end <= run.submit for other in runs) >= LEAST_RUNS]
    saved = sum(run.hours * 7 / 8 for run in later)
    assert backtest["by_user"][user]["gpu_hours_saved"] == pytest.approx(saved)
    assert backtest["by_user"][user]["failed"] == 0


def test_half_the_request_is_advised_until_it_is_made_and_hours_are_recovered(
    history: Path, habits: dict[str, Habit], backtest: dict[str, Any]
) -> None:
    habit = habits["request_halved"]
    mine, changed = habit.runs, habit.changed
    assert [run.gpus for run in mine] == [4] * changed + [2] * (len(mine) - changed)
    saved = sum(run.hours / 2 for run in mine[LEAST_RUNS:changed])
    assert backtest["by_user"][habit.user]["gpu_hours_saved"] == pytest.approx(saved)
    monday = datetime.fromisoformat("2025-03-03")
    week = [run for run in mine if run.end >= monday]
    before = [run for run in mine if run.end < monday]
    share = sum(run.hours / 2 for run in before if run.gpus == 4) / sum(run.hours for run in before)
    digest = answer(history, "act", "digest", habit.user, "--as-of", "2025-03-12")
    assert digest["recovered"] == pytest.approx(share * sum(run.hours for run in week), rel=0.05)
    assert (digest["clean"], digest["change"]) == (len(week), None)


def test_a_raised_limit_ends_the_timeouts_and_later_runs_show_the_need(
    history: Path, habits: dict[str, Habit]
) -> None:
    habit = habits["limit_raised"]
    mine, changed = habit.runs, habit.changed
    states = ["TIMEOUT"] * changed + ["COMPLETED"] * (len(mine) - changed)
    assert [run.state for run in mine] == states
    line = advised(history, habit.user, "md_long", 8, "time")
    longest = max(run.elapsed_s for run in mine)
    assert 1.25 * longest <= line["value"] < 1.5 * longest
    assert line["runs"] == len(mine) - changed
    # While only two runs had completed, nothing was known.
    two_completed = f"{mine[changed + 1].end:%Y-%m-%dT%H:%M:%S}"
    job = ("--user", habit.user, "--name", "md_long", "--partition", "gpu", "--gpus", "8")
    lines = answer(history, "advise", *job, "--as-of", two_completed)["lines"]
    assert next(line for line in lines if line["topic"] == "time")["value"] is None


def test_a_week_of_timeouts_is_not_called_good(history: Path, habits: dict[str, Habit]) -> None:
    user = habits["limit_raised"].user
    digest = answer(history, "act", "digest", user, "--as-of", "2025-02-12")
    assert (digest["jobs"], digest["clean"], digest["good"]) == (3, 0, [])
    assert digest["cut_off"] == {"TIMEOUT": 3}
    mail = run_here(["act", "digest", user, "--as-of", "2025-02-12"], history, {}).stdout
    assert "3 jobs ended before the work was done: TIMEOUT 3." in mail


def test_the_first_slow_run_is_named_and_the_only_one_that_advice_would_have_ended(
    history: Path, habits: dict[str, Habit], backtest: dict[str, Any]
) -> None:
    habit = habits["slower"]
    mine, changed = habit.runs, habit.changed
    times = [run.elapsed_s for run in mine]
    assert median(times[changed:]) > 1.5 * median(times[:changed])
    report = answer(history, "job", mine[-1].job)
    assert f"Since job {habit.changed_in}." in json.dumps(report)
    (failed,) = backtest["failed"]
    assert (failed["user"], failed["topic"]) == (habit.user, "time")
    assert failed["needed"] == times[changed]
    assert max(times[:changed]) < failed["advised"] < times[changed]


def test_memory_that_strands_gpus_is_reported_of_every_run(
    history: Path, habits: dict[str, Habit]
) -> None:
    user, runs = habits["gpus_stranded"].user, habits["gpus_stranded"].runs
    found = answer(history, "jobs", "--finding", "stranded_gpus", "--limit", "100")
    rows = found["jobs"] if isinstance(found, dict) else found
    assert {row["display_id"] for row in rows} == {run.job for run in runs}
    (memory_gib,) = {run.memory_gib for run in runs}
    usable = NODE_GPUS * (1 - memory_gib / NODE_GIB)
    stranded = NODE_GPUS - 1 - int(usable)
    text = run_here(["job", runs[-1].job], history, {}).stdout
    assert f"up to {stranded}" in text
    line = advised(history, user, "index", 1, "host_memory")
    assert line["value"] < memory_gib * 1024 / 4
