"""Verdicts of classes on completed jobs, of which no finding is made."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pytest
from made_jobs import (
    BUSY_HOST,
    QUIET_HOST,
    RESTING,
    WAITING,
    WORKING,
    Levels,
    gpu_minutes,
    node_minutes,
    phases,
)

from jobframes import frame, gpus, summary
from tachograph.catalog.config import ClassOptions
from tachograph.catalog.tables import JOB_NODE_MINUTES, JOB_SUMMARIES
from tachograph.judge.classes.inputs import JobClass
from tachograph.judge.completions import Completed
from tachograph.judge.job_classes import CLASS_CODES, class_verdicts, judge_classes
from tachograph.pipeline.summaries import JobTables
from tachograph.pipeline.timelines import timelines_of

Phases = Sequence[tuple[int, Levels | None]]
WITHOUT_COUNTERS = ("sm_active", "tensor_active", "dram_active", "fp32_active")
JOBS: dict[str, tuple[Phases, Sequence[str], str]] = {
    "hang": (((70, WORKING), (80, RESTING)), (), "COMPLETED"),
    "spinning": (((120, WORKING), (80, WAITING)), WITHOUT_COUNTERS, "FAILED"),
    "came back": (((120, WORKING), (80, WAITING)), WITHOUT_COUNTERS, "COMPLETED"),
    "cold": (((80, RESTING), (70, WORKING)), (), "COMPLETED"),
    "stall": (((50, WORKING), (80, RESTING), (50, WORKING)), (), "COMPLETED"),
    "gap": (((50, WORKING), (80, None), (50, WORKING)), (), "COMPLETED"),
    "short": (((30, WORKING),), (), "COMPLETED"),
    "steady": (((90, WORKING | {"power_w": 281.0}),), (), "COMPLETED"),
}


def tables_of(jobs: dict[str, tuple[Phases, Sequence[str], str]]) -> JobTables:
    rows, of_minutes, of_nodes = [], [], []
    for key, (parts, without, state) in jobs.items():
        levels = phases(*parts, wobble=0.0 if key == "steady" else 0.2)
        of_job = pl.lit(key).alias("job_key")
        of_minutes.append(gpu_minutes(levels, without=without).with_columns(of_job))
        host = [BUSY_HOST if level is WORKING else QUIET_HOST for level in levels]
        of_nodes.append(node_minutes(host).with_columns(of_job))
        elapsed_s = 60.0 * len(levels)
        facts = {"samples": 10, "state": state, "gpu_model": "A100 SXM 40GB"}
        rows.append(summary(job_key=key, elapsed_s=elapsed_s, **facts))
    rows.append(summary(job_key="ambiguous", attribution="ambiguous", elapsed_s=900.0))
    of_gpus = gpus(
        {"job_key": "hang", "gpu_util_mean": 0.9}, {"job_key": "hang", "gpu_util_mean": 0.1}
    )
    timelines = timelines_of(pl.concat(of_minutes), idle_util=0.01)
    node_rows = pl.concat(of_nodes).select(*JOB_NODE_MINUTES.schema)
    return JobTables(frame(JOB_SUMMARIES, rows), of_gpus, timelines, node_rows)


def test_verdicts_without_findings_are_those_of_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = tables_of(JOBS)
    found = judge_classes(
        tables.jobs, tables.gpus, tables.timelines, tables.node_minutes, ClassOptions()
    ).filter(pl.col("job_key") != "ambiguous")
    assert set(found["verdict"]) == {"yes", "no", "unknown"}

    def not_needed(*_: object, **__: object) -> None:
        raise AssertionError("a finding was made")

    monkeypatch.setattr(JobClass, "finding", not_needed)
    keys = tables.jobs.select("job_key", job="job_key")
    whole = Completed(tables, keys, {"copy of cold": "cold"})
    questions = [*CLASS_CODES, "load_imbalance_waste"]  # which idle_gpus decides, too
    verdicts = class_verdicts(whole, ClassOptions(), questions)
    columns = ["job_key", "code", "verdict"]
    others = verdicts.filter(~pl.col("job_key").is_in(["ambiguous", "copy of cold"]))
    assert sorted(others.rows()) == sorted(found.select(columns).rows())
    copied = verdicts.filter(job_key="copy of cold", code="cold_start")
    assert copied["verdict"].to_list() == ["yes"]
