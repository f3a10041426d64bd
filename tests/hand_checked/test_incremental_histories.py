"""Whatever order data came in, and however often it was analyzed between: the same as one
analysis of everything.
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from madelake import NOW, configured, fill, held, job, make_lake, utc
from tachograph.catalog.config import AnalysisOptions
from tachograph.judge.job_judge import JobJudge
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_gpus, read_summaries
from tachograph.pipeline.run import analyze

T = utc(23, 20)
NODES = ("n1", "n2")
QUICK = configured(analysis=AnalysisOptions(pipe_percentile=False))


def after(minutes: float) -> datetime:
    return T + timedelta(minutes=minutes)


def sampled(node: str, gpu: int, first: int, last: int) -> list[dict[str, Any]]:
    """One sample a minute."""
    return [
        {"t": after(at), "node": node, "gpu": gpu, "gpu_util": at % 7 / 7, "power_w": 100.0 + at}
        for at in range(first, last)
    ]


def history(dice: random.Random) -> list[dict[str, Any]]:
    """What comes into the lake, shuffled: jobs while they run and when they are over, maps,
    samples.
    """
    arrivals: list[dict[str, Any]] = []
    for job_id in "12345":
        start = after(dice.randrange(300))
        end = start + timedelta(minutes=dice.randrange(5, 180))
        nodes = dice.sample(NODES, dice.choice([1, 1, 2]))
        given = {
            "gpus": dice.choice([1, 2, 2 * len(nodes)]),
            "exclusive": dice.choice([None, None, True]),
        }
        listed = [row for node in nodes for row in held(job_id, node)]
        if dice.random() < 0.4:
            arrivals.append({"jobs": [job(job_id, start, None, **given)], "allocations": listed})
        arrivals.append({"jobs": [job(job_id, start, end, **given)], "allocations": listed})
        if dice.random() < 0.2:  # it had no GPUs after all
            arrivals.append({"jobs": [job(job_id, start, end, gpus=0)]})
        if dice.random() < 0.4:
            arrivals.append(
                {"allocations": held(job_id, dice.choice(nodes), [dice.randrange(2)], start, end)}
            )
    for node in NODES:
        for gpu in (0, 1):
            arrivals += [{"gpu_samples": sampled(node, gpu, at, at + 240)} for at in (0, 240)]
    dice.shuffle(arrivals)
    return arrivals


def computed(lake: Lake) -> tuple[pl.DataFrame, pl.DataFrame]:
    summaries = read_summaries(lake)
    gpus = read_gpus(lake, summaries).drop("seq").sort("job_key", "node", "gpu", "mig")
    return summaries.drop("seq").sort("job_key"), gpus


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))]
)
def test_any_history_ends_as_one_analysis_of_everything(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    lake = Lake.create(str(tmp_path))
    for number, arrival in enumerate(history(dice)):
        fill(lake, arrival, chunk=str(number))
        if dice.random() < 0.25:
            analyze(lake, QUICK, judge=JobJudge, now=NOW)
    analyze(lake, QUICK, judge=JobJudge, now=NOW)
    step_by_step = computed(lake)
    analyze(lake, QUICK, judge=JobJudge, now=NOW, full=True)
    at_once = computed(lake)
    for left, right in zip(step_by_step, at_once, strict=True):
        assert left.rows(named=True) == right.rows(named=True)


def test_neighbour_that_loses_its_gpus_is_done_again(tmp_path: Path) -> None:
    """Job 2 comes late and had the node exclusively all the time, as job 1 had: the GPU is no
    one's.
    """
    lake = make_lake(
        tmp_path,
        gpu_samples=sampled("n1", 0, 0, 60),
        jobs=[job("1", T, after(60), gpus=1, exclusive=True)],
        allocations=held("1", "n1"),
    )
    analyze(lake, QUICK, judge=JobJudge, now=NOW)
    assert read_summaries(lake).get_column("samples").to_list() == [60]
    late = job("2", T, after(60), gpus=1, exclusive=True)
    fill(lake, {"jobs": [late], "allocations": held("2", "n1")}, chunk="late")
    analyze(lake, QUICK, judge=JobJudge, now=NOW)
    assert read_summaries(lake).get_column("samples").fill_null(0).sum() == 0


def test_jobs_that_only_now_are_known_to_be_of_a_cluster_keep_their_summary(tmp_path: Path) -> None:
    """A cluster is named for the first time: it is that of the jobs without one, whose keys
    change.
    """
    lake = make_lake(
        tmp_path,
        gpu_samples=sampled("n1", 0, 0, 60),
        jobs=[job("1", T, after(60), gpus=1)],
        allocations=held("1", "n1"),
    )
    analyze(lake, QUICK, judge=JobJudge, now=NOW)
    fill(lake, {"jobs": [job("2", after(90), after(99), gpus=1, cluster="a")]}, chunk="late")
    analyze(lake, QUICK, judge=JobJudge, now=NOW)
    rows = read_summaries(lake).sort("job_id").select("job_id", "cluster", "samples").rows()
    assert [row[:2] for row in rows] == [("1", "a"), ("2", "a")]
    assert rows[0][2] == 60


def test_summaries_of_an_analysis_that_overtook_another_stay(tmp_path: Path) -> None:
    """While the first analysis is at work, job B comes in and a second one summarizes it."""
    lake = make_lake(
        tmp_path,
        gpu_samples=[*sampled("n1", 0, 0, 60), *sampled("n2", 0, 0, 60)],
        jobs=[job("A", T, after(60), gpus=1)],
        allocations=held("A", "n1"),
    )
    overtaken: list[str] = []

    def overtake(day: str, done: int, total: int) -> None:
        if not overtaken:
            overtaken.append(day)
            fill(
                lake,
                {"jobs": [job("B", T, after(60), gpus=1)], "allocations": held("B", "n2")},
                chunk="b",
            )
            analyze(lake, QUICK, judge=JobJudge, now=NOW)

    analyze(lake, QUICK, judge=JobJudge, now=NOW, progress=overtake)
    assert overtaken
    assert sorted(read_summaries(lake).get_column("job_id")) == ["A", "B"]
