"""The checks of one job, for tests: as the judge decides and settles them, without classes,
rules and scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from jobframes import frame
from tachograph.catalog.codes import known_codes
from tachograph.catalog.config import Thresholds
from tachograph.catalog.tables import JOB_NODE_MINUTES, JOB_SUMMARIES
from tachograph.judge.checks import CHECKS
from tachograph.judge.completions import (
    Completed,
    Questions,
    refuted,
    unmeasured,
    until_last_sample,
)
from tachograph.judge.families import settled, verdicts
from tachograph.judge.finding import Finding, read_findings
from tachograph.judge.judge import judge_summaries, summary_verdicts
from tachograph.pipeline.summaries import JobTables
from tachograph.pipeline.timelines import timelines_of


def verdicts_of(
    summary: Mapping[str, Any], gpus: pl.DataFrame, minutes: pl.DataFrame, thresholds: Thresholds
) -> tuple[Finding, ...]:
    """Return what every check that sees one job at a time says of it, most urgent first."""
    jobs = frame(JOB_SUMMARIES, [dict(summary)])
    key = pl.lit(summary["job_key"]).alias("job_key")
    timelines = timelines_of(minutes.with_columns(key), idle_util=thresholds.idle_util)
    tables = JobTables(jobs, gpus.with_columns(key), timelines, frame(JOB_NODE_MINUTES, []))
    ended = until_last_sample(tables)
    gaps = unmeasured(ended.jobs, timelines, ended.gpus)

    def again(whole: Completed, questions: Questions) -> pl.DataFrame:
        return verdicts(summary_verdicts(whole, thresholds, questions), CHECKS)

    own = judge_summaries(jobs, tables.gpus, timelines, thresholds)
    uncertain = refuted(ended, gaps, verdicts(own, CHECKS), again, idle_util=thresholds.idle_util)
    found = settled(own, uncertain, CHECKS, gaps)
    return read_findings(found, known_codes())


def findings_of(
    summary: Mapping[str, Any], gpus: pl.DataFrame, minutes: pl.DataFrame, thresholds: Thresholds
) -> tuple[Finding, ...]:
    """Return what is reported of one job, most urgent first."""
    return tuple(
        finding for finding in verdicts_of(summary, gpus, minutes, thresholds) if finding.reported
    )
