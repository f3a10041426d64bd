"""Back-tests: which jobs change verdict, how many, how many GPU-hours, recomputed in plain
Python.
"""

from __future__ import annotations

import random
from dataclasses import replace

import polars as pl
import pytest
from ruled_jobs import SHIPPED, Job, Row, together

from tachograph.judge.rules.ruleset import RuleSet
from tachograph.judge.rules.verdicts import changes, compare, counts


def population(seed: int, count: int) -> list[Job]:
    dice = random.Random(seed)
    jobs = []
    for number in range(count):
        mean = None if dice.random() < 0.1 else dice.random()
        rows: list[Row] = [
            {"gpu_util_mean": 0.9, "gpu_util_max": 1.0, "sm_active_mean": mean}
        ] * dice.randint(1, 4)
        jobs.append(
            Job({"elapsed_s": dice.choice([300.0, 3600.0, 36000.0])}, rows, key=f"c:{number}:1")
        )
    return jobs


def plain_verdict(job: Job, low: float) -> str:
    mean = job.gpus[0]["sm_active_mean"]
    if job.given["elapsed_s"] < 600.0:
        return "no"
    return "unknown" if mean is None else "yes" if 0.02 <= mean < low else "no"


def with_low(value: float) -> RuleSet:
    return replace(
        SHIPPED,
        entries=(SHIPPED.called("small_kernels")[0].with_values({"low_sm_activity": value}),),
    )


@pytest.mark.parametrize(("old", "new"), [(0.3, 0.5), (0.5, 0.3), (0.3, 0.3)])
def test_changes_and_counts_are_those_of_plain_loops(old: float, new: float) -> None:
    jobs = population(11, 150)
    compared = compare(*together(jobs), with_low(old), with_low(new))
    expected = {job.key: (plain_verdict(job, old), plain_verdict(job, new)) for job in jobs}
    assert {
        row["job_key"]: (row["before"], row["after"]) for row in compared.iter_rows(named=True)
    } == expected
    hours = {job.key: len(job.gpus) * job.given["elapsed_s"] / 3600 for job in jobs}
    changed = changes(compared)
    assert set(changed["job_key"]) == {
        key for key, (before, after) in expected.items() if before != after
    }
    assert changed["gpu_hours"].to_list() == sorted(changed["gpu_hours"], reverse=True)
    assert (changed.height == 0) == (old == new)
    for row in counts(compared).iter_rows(named=True):
        mine = [key for key, pair in expected.items() if pair == (row["before"], row["after"])]
        assert row["jobs"] == len(mine)
        assert row["gpu_hours"] == pytest.approx(sum(hours[key] for key in mine))
    assert counts(compared)["jobs"].sum() == len(jobs)


def test_the_sentences_say_why() -> None:
    job = Job(gpus=[{"gpu_util_mean": 0.9, "gpu_util_max": 1.0, "sm_active_mean": 0.4}])
    row = compare(*together([job]), with_low(0.3), with_low(0.5)).row(0, named=True)
    assert row["sentence_before"] == "Not triggered: sm_active_mean 40 % is not below 30 %."
    assert (
        row["sentence_after"]
        == "A kernel ran 90 % of the time, but the SMs were active only 40 % of it."
    )


def test_only_rules_that_are_in_both_are_compared() -> None:
    tables = together([Job(gpus=[{}])])
    both = SHIPPED.only(["hot_gpu", "small_kernels"])
    assert compare(*tables, both, SHIPPED.only(["hot_gpu"]))["code"].to_list() == ["hot_gpu"]


def test_no_job_at_all() -> None:
    jobs, gpus, nodes = (frame.clear() for frame in together([Job(gpus=[{}])]))
    compared = compare(jobs, gpus, nodes, with_low(0.3), with_low(0.5))
    assert compared.is_empty()
    assert isinstance(changes(compared), pl.DataFrame)
