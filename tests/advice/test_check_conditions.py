"""Conditions of checks over columns: for which jobs `decide` is called."""

from __future__ import annotations

import math

import polars as pl
import pytest

from jobframes import frame, gpus, minutes, summary
from tachograph.catalog.config import Thresholds
from tachograph.catalog.tables import JOB_SUMMARIES
from tachograph.judge.check import Check, CheckedJob, Found, threshold
from tachograph.judge.judge import judge_summaries
from tachograph.pipeline.timelines import timelines_of

LOW = Thresholds().low_util
NO_TIMELINES = timelines_of(minutes(), idle_util=0.01)


def called(
    jobs: pl.DataFrame,
    of_gpus: pl.DataFrame,
    *,
    condition: pl.Expr | None = None,
    gpu_condition: pl.Expr | None = None,
    limits: Thresholds | None = None,
) -> set[str]:
    """Return the jobs for which a check with these conditions is called."""
    seen: set[str] = set()

    def decide(job: CheckedJob) -> Found | None:
        seen.add(job.summary["job_key"])
        return None

    check = Check(
        "cold",
        family="clocks",
        severity="hint",
        title="Cold",
        decide=decide,
        condition=condition,
        gpu_condition=gpu_condition,
    )
    found = judge_summaries(jobs, of_gpus, NO_TIMELINES, limits or Thresholds(), checks=(check,))
    assert set(found["job_key"]) == set(jobs["job_key"])
    assert set(found["verdict"]) <= {"no", "unknown"}
    return seen


def jobs_with(**utilisation: float | None) -> pl.DataFrame:
    rows = [
        summary(job_key=key, gpu_util_mean=mean, samples=10) for key, mean in utilisation.items()
    ]
    return frame(JOB_SUMMARIES, rows)


def test_a_check_is_called_for_the_jobs_of_which_its_condition_holds() -> None:
    jobs = jobs_with(low=LOW / 2, high=LOW, unknown=None, undefined=math.nan)
    is_low = pl.col("gpu_util_mean") < threshold("low_util")
    assert called(jobs, gpus(), condition=is_low) == {"low"}
    assert called(jobs, gpus(), condition=is_low, limits=Thresholds(low_util=1.0)) == {
        "low",
        "high",
    }
    assert called(jobs, gpus()) == {"low", "high", "unknown", "undefined"}


def test_a_condition_of_gpus_holds_where_it_holds_for_one_of_them() -> None:
    of_gpus = gpus(
        {"job_key": "a", "pcie_replays_max": 0},
        {"job_key": "a", "pcie_replays_max": 2},
        {"job_key": "b", "pcie_replays_max": 0},
        {"job_key": "c", "pcie_replays_max": None},
    )
    jobs = jobs_with(a=0.1, b=0.1, c=0.1, without=0.1)
    has_errors = pl.col("pcie_replays_max") > 0
    assert called(jobs, of_gpus, gpu_condition=has_errors) == {"a"}
    is_busy = pl.col("gpu_util_mean") > 0.5
    assert called(jobs, of_gpus, condition=is_busy, gpu_condition=has_errors) == set()


@pytest.mark.parametrize("name", ["no_such_column", "low_util", "spatial_imbalance"])
def test_a_column_that_does_not_exist_is_not_measured(name: str) -> None:
    """Also where a threshold has the same name."""
    jobs = jobs_with(a=0.1).drop("spatial_imbalance")
    assert called(jobs, gpus(), condition=pl.col(name) >= 0.0) == set()
    assert called(jobs, gpus(), condition=pl.col(name).is_null()) == {"a"}


def test_samples_of_ambiguous_jobs_are_not_compared() -> None:
    jobs = jobs_with(a=0.1, b=0.1).with_columns(
        attribution=pl.when(pl.col("job_key") == "a").then(pl.lit("ambiguous")).otherwise(None)
    )
    assert called(jobs, gpus(), condition=pl.col("gpu_util_mean") < 0.5) == {"b"}
