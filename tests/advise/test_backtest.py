"""The backtest: what it counts, its goal on a simulated cluster, and its speed."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from advice_cases import GIB, NOW, OPTIONS, SITE, USUAL, run
from hypothesis import given
from hypothesis import strategies as st

from advice_backtest import designed
from own_time import own_seconds
from tachograph.api.advice import read_past_jobs, read_site
from tachograph.catalog import config
from tachograph.cli import main
from tachograph.judge.advice.advise import advise
from tachograph.judge.advice.backtest import BacktestReport, replay
from tachograph.judge.advice.past_jobs import History, PastJob
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter
from tachograph.report.backtest import backtest_json, backtest_lines
from tachograph.report.lines import to_text


def backtest(jobs: list[PastJob]) -> BacktestReport:
    return replay(jobs, SITE, OPTIONS)


def chain(*changes: dict[str, Any]) -> list[PastJob]:
    """Return runs one after the other, the last one with the last changes."""
    count = len(changes)
    return [
        run(2 * (count - number), key=f"c{number}", **one) for number, one in enumerate(changes)
    ]


@pytest.mark.parametrize(
    ("last", "broken"),
    [
        ({}, {}),
        ({"gpus_used": 3}, {"gpus": 1}),
        ({"gpus_used": None}, {}),
        ({"elapsed_s": 5000.0}, {"time": 1}),
        ({"elapsed_s": 5000.0, "state": "TIMEOUT", "problems": ("job_hang",)}, {}),
        ({"mem_peak_mib": 31 * GIB}, {"host_memory": 1}),
        ({"hbm_peak_mib": 60 * GIB}, {"gpu_memory": 1}),
    ],
)
def test_what_would_have_failed(last: dict[str, Any], broken: dict[str, int]) -> None:
    usual = {"gpus_used": 2}
    report = backtest(chain(*[usual] * 4, {**usual, **last}))
    assert dict(report.total.broken) == broken
    assert report.total.broken_jobs == len(broken)
    assert report.total.undecided["gpus"] == (last.get("gpus_used", 0) is None)
    if "gpus_used" not in last and "state" not in last:
        assert report.total.saved == pytest.approx(2.0 * (2 - bool(broken)))


def test_only_jobs_that_had_ended_count() -> None:
    together = [run(1, key=f"t{number}", submit=NOW - 9e4) for number in range(9)]
    assert backtest(together).total.grouped == 0
    before = [replace(job, end=job.submit) for job in together]
    assert backtest(before).total.grouped == 6, "three had ended at the submit of the fourth"


def plain_counts(jobs: list[PastJob]) -> tuple[int, int]:
    """Jobs that are advised, and would have failed, computed for each job anew from all that had
    ended before it.
    """
    order = sorted(jobs, key=lambda job: (job.submit, job.key))
    advised = failed = 0
    for place, job in enumerate(order):
        past = [other for other in order[:place] if other.end <= job.submit]
        made = advise(job.request, History.of(past, OPTIONS), job.submit, SITE, OPTIONS)
        followed = {line.topic: line.value or 0.0 for line in made.lines if line.followed}
        needs = {
            "gpus": job.gpus_used,
            "gpu_memory": job.hbm_peak_mib,
            "time": 0.0 if "job_hang" in job.problems else job.elapsed_s,
            "host_memory": job.mem_peak_mib,
        }
        asked = {"time": job.timelimit_s, "host_memory": job.mem_mib}
        broke = [
            topic
            for topic, value in followed.items()
            if (needs[topic] or 0.0) > value and value < (asked.get(topic) or float("inf"))
        ]
        advised += bool(followed)
        failed += bool(broke)
    return advised, failed


@given(st.integers(0, 10**6), st.randoms())
def test_one_pass_counts_as_replaying_each_job_alone(seed: int, rng: random.Random) -> None:
    source = random.Random(seed)
    jobs = []
    for number in range(source.randint(0, 40)):
        elapsed = 3600 * source.lognormvariate(0, 0.1)
        submit = NOW - 1e6 + source.randint(0, 200) * 3600
        jobs.append(
            replace(
                run(
                    0,
                    user=source.choice(["ann", "bob"]),
                    gpus_used=source.choice([2, 2, 2, 2, 4, None]),
                ),
                key=f"j{number}",
                submit=float(submit),
                end=submit + elapsed,
                elapsed_s=elapsed,
                problems=source.choice([(), (), ("job_hang",)]),
                hbm_peak_mib=source.choice([20 * GIB] * 5 + [60 * GIB]),
            )
        )
    report = backtest(jobs)
    assert (report.total.advised, report.total.broken_jobs) == plain_counts(jobs)
    assert backtest(rng.sample(jobs, len(jobs))) == report
    assert sum(sums.jobs for sums in report.by_user.values()) == len(jobs)
    json.dumps(backtest_json(report), allow_nan=False)
    assert to_text(backtest_lines(report, width=80))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Lake]:
    """Return the folder and the lake of a small cluster whose users repeat their jobs."""
    folder = tmp_path_factory.mktemp("repeated")
    lake = str(folder / "lake")
    size = (
        "--nodes",
        "8",
        "--days",
        "10",
        "--interval",
        "120",
        "--job-groups",
        "25",
        "--seed",
        "5",
        "--no-defects",
    )
    assert main(["lab", "simulate", str(folder / "cluster"), *size, "--lake", lake, "--quiet"]) == 0
    configured = ("--config", str(folder / "cluster" / "tachograph.toml"))
    assert (
        main(["analyze", "--lake", lake, *configured, "--as-of", "2025-03-20T00:00Z", "--quiet"])
        == 0
    )
    return folder, Lake.open(lake)


def test_advice_on_a_simulated_cluster_against_its_truth(cluster: tuple[Path, Lake]) -> None:
    """What jobs needed is what the cluster did, and most recoverable hours are named beforehand.

    Hours of GPUs that nobody gets back, those of nodes given whole, are not among them: these were
    the easiest to name.
    """
    folder, lake = cluster
    configuration = config.load(str(folder / "cluster" / "tachograph.toml"))
    site = read_site(lake, configuration)
    jobs = read_past_jobs(lake, configuration, JobFilter(), site)
    report = replay(jobs, site, OPTIONS)
    assert report.total.jobs > 300
    assert report.total.advised > 0.3 * report.total.jobs
    assert report.total.broken_jobs <= 2
    assert report.total.named_share is not None
    assert report.total.named_share >= 0.78
    truth = pl.read_parquet(folder / "cluster" / "truth" / "jobs.parquet")
    planted = {(row["display_id"], row["submit"]): row for row in truth.iter_rows(named=True)}
    agree = 0
    for job in jobs:
        row = planted[job.label, datetime.fromtimestamp(job.submit, UTC)]
        assert job.elapsed_s == (row["end"] - row["start"]).total_seconds()
        assert job.gpus == row["gpus"]
        if job.gpus_used is not None and (job.elapsed_s or 0.0) >= 900:
            works = {"one_gpu_of_many": 1, "half_used": (row["gpus"] + 1) // 2}.get(
                row["kind"], row["gpus"]
            )
            agree += job.gpus_used == works or row["kind"] == "idle"
            assert job.gpus_used >= works or row["kind"] == "idle"
    assert agree > 200


@pytest.mark.slow
def test_goal_half_a_percent_of_advised_jobs_fail() -> None:
    total = [replay(designed(seed), SITE, OPTIONS).total for seed in (1, 2)]
    advised, broken = sum(sums.advised for sums in total), sum(sums.broken_jobs for sums in total)
    assert advised > 4000
    assert 0 < broken <= 0.005 * advised, (
        "runs that differ from those before are planted, so some fail"
    )


def test_a_job_takes_a_fraction_of_a_millisecond() -> None:
    rng, jobs = random.Random(1), []
    for number in range(4000):
        elapsed = 3600 * rng.lognormvariate(0, 0.1)
        name = f"train_{number % 7}" if number % 3 else "md"
        jobs.append(
            replace(
                USUAL,
                key=f"k{number}",
                user=f"u{number % 40}",
                name=name,
                submit=number * 60.0,
                end=number * 60.0 + elapsed,
                elapsed_s=elapsed,
            )
        )
    limit = 10 * 0.0006 * len(jobs)
    assert own_seconds(lambda: backtest(jobs), enough=limit) < limit


def test_sentences_say_nothing_of_what_no_job_had() -> None:
    idle = {"recoverable": (2.0, None, None, None, None), "problems": ("gpus_never_used",)}
    texts = {
        name: to_text(backtest_lines(backtest(jobs), width=80))
        for name, jobs in {"clean": chain({}, {}), "idle": chain(*[idle] * 5)}.items()
    }
    for part in ("were recoverable", "Advice named a cause"):
        assert part not in texts["clean"]
        assert part in texts["idle"]
    assert "large memory, " not in texts["clean"]


def test_hours_named_of_all_and_those_that_no_past_job_shows() -> None:
    """By hand: five runs one after the other, 4 GPU-hours each; causes: never_used, hung, ...,
    by `recoverable`.
    """
    idle, hung = (2.0, None, None, None, None), (None, 4.0, None, None, None)
    tiny = (None, None, None, None, 0.01)
    jobs = chain(
        {"recoverable": idle, "problems": ("gpus_never_used",)},
        {"recoverable": idle, "problems": ("gpus_never_used",)},
        {"recoverable": hung, "problems": ("job_hang",)},
        {"recoverable": (2.0, 4.0, None, None, None), "problems": ("job_hang",)},
        {"recoverable": tiny},
    )
    total = backtest(jobs).total
    assert total.recoverable == pytest.approx(2 + 2 + 4 + 6 + 0.01)
    assert total.named_all == pytest.approx(2 + 6), (
        "the second is named by one run, the fourth by three"
    )
    assert total.known == pytest.approx(2 + 6), (
        "the first run of all, the first hang: nothing shows them"
    )
    assert total.minor == pytest.approx(0.01)
    assert total.named_all_share == pytest.approx(8 / 14.01)
    assert total.worth_known_share == pytest.approx(8 / 14)
    assert (total.warned, total.warned_right) == (4, 2)
    assert total.with_history == pytest.approx(6.01), "as before: jobs with three past jobs or more"
    assert backtest_json(backtest(jobs))["total"]["named_of_all"] == pytest.approx(8)
