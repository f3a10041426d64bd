"""Advice: what is worth knowing about a job, each with the numbers behind it and what to do.

A finding is added by one file and one line in RULES. A rule that needs a counter nobody measured finds nothing.
What job classes tell of the same job is told once: `precedence`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tachograph.catalog.config import Thresholds
from tachograph.judge import finding
from tachograph.judge.checks.ambiguous_attribution import ambiguous_attribution
from tachograph.judge.checks.bursty import bursty
from tachograph.judge.checks.busy_waiting import busy_waiting
from tachograph.judge.checks.contract import SummaryCheck, SummaryJudge
from tachograph.judge.checks.gpus_never_used import gpus_never_used
from tachograph.judge.checks.hung import hung
from tachograph.judge.checks.idle_job import idle_job
from tachograph.judge.checks.imbalanced_gpus import imbalanced_gpus
from tachograph.judge.checks.late_start import late_start
from tachograph.judge.checks.low_coverage import low_coverage
from tachograph.judge.checks.low_memory import low_memory
from tachograph.judge.checks.low_utilisation import low_utilisation
from tachograph.judge.checks.memory_bound import main_pipe, memory_bound
from tachograph.judge.checks.memory_nearly_full import memory_nearly_full
from tachograph.judge.checks.no_samples import no_samples
from tachograph.judge.checks.no_tensor_use import no_tensor_use
from tachograph.judge.checks.one_gpu_of_many import one_gpu_of_many
from tachograph.judge.checks.precedence import settled, superseded_by
from tachograph.judge.checks.remapped_rows import remapped_rows
from tachograph.judge.checks.row_remap_failure import row_remap_failure
from tachograph.judge.checks.short_job import short_job
from tachograph.judge.checks.stalled import stalled
from tachograph.judge.checks.throttled import throttled
from tachograph.judge.checks.time_precision import time_precision
from tachograph.judge.checks.xid_error import xid_error
from tachograph.judge.finding import EVIDENCE, SEVERITIES, Finding, Severity, findings_frame
from tachograph.pipeline.timelines import timelines_of

__all__ = [
    "EVIDENCE",
    "SEVERITIES",
    "SUMMARY_CHECKS",
    "SUMMARY_CODES",
    "Finding",
    "Severity",
    "SummaryCheck",
    "SummaryJudge",
    "find_in_summary",
    "findings_frame",
    "judge_summaries",
    "main_pipe",
    "read_findings",
    "settled",
    "timelines_of",
]  # fmt: skip

_SPREAD = ("gpus_never_used", "imbalanced_gpus", "low_utilisation")
_OVER_TIME = ("hung", "late_start", "stalled", "bursty", "busy_waiting")
_KIND_OF_WORK = ("memory_bound", "no_tensor_use", "low_memory")
_OF_SAMPLES = (
    *("idle_job", "one_gpu_of_many", *_SPREAD, *_OVER_TIME, *_KIND_OF_WORK),
    *("memory_nearly_full", "throttled", "xid_error", "row_remap_failure", "remapped_rows"),
)

_LISTS = ("intensity_histogram", "pipes")  # of a summary; no rule reads them, and they are long

# in the order in which findings of one severity are told
SUMMARY_CHECKS: tuple[SummaryCheck, ...] = (
    SummaryCheck("idle_job", idle_job, supersedes=("one_gpu_of_many", *_SPREAD, *_OVER_TIME, *_KIND_OF_WORK)),
    SummaryCheck(
        "busy_waiting", busy_waiting, supersedes=("memory_bound", "no_tensor_use", "bursty", "low_utilisation")
    ),
    SummaryCheck("hung", hung, supersedes=("bursty", "low_utilisation")),
    SummaryCheck("one_gpu_of_many", one_gpu_of_many, supersedes=_SPREAD),
    SummaryCheck("gpus_never_used", gpus_never_used, supersedes=("imbalanced_gpus", "low_utilisation")),
    SummaryCheck("xid_error", xid_error),
    SummaryCheck("row_remap_failure", row_remap_failure, supersedes=("remapped_rows",)),
    SummaryCheck("remapped_rows", remapped_rows),
    SummaryCheck("throttled", throttled),
    SummaryCheck("late_start", late_start),
    SummaryCheck("stalled", stalled, supersedes=("bursty",)),
    SummaryCheck("bursty", bursty, supersedes=("low_utilisation", "memory_bound")),
    SummaryCheck("low_utilisation", low_utilisation, supersedes=("memory_bound", "no_tensor_use")),
    SummaryCheck("imbalanced_gpus", imbalanced_gpus, supersedes=("low_utilisation",)),
    SummaryCheck("memory_bound", memory_bound, supersedes=("no_tensor_use",)),
    SummaryCheck("no_tensor_use", no_tensor_use),
    SummaryCheck("low_memory", low_memory),
    SummaryCheck("memory_nearly_full", memory_nearly_full),
    SummaryCheck(
        "ambiguous_attribution", ambiguous_attribution, supersedes=(*_OF_SAMPLES, "low_coverage", "no_samples")
    ),
    SummaryCheck("no_samples", no_samples, supersedes=("low_coverage", "short_job")),
    SummaryCheck("low_coverage", low_coverage),
    SummaryCheck("short_job", short_job),
    SummaryCheck("time_precision", time_precision),
)
SUMMARY_CODES: tuple[str, ...] = tuple(rule.code for rule in SUMMARY_CHECKS)


def find_in_summary(
    summary: Mapping[str, Any], gpus: pl.DataFrame, minutes: pl.DataFrame, thresholds: Thresholds
) -> tuple[Finding, ...]:
    """Return what is worth knowing about one job: problems, then hints, then notes.

    `summary` is its row of job_summaries, `gpus` its rows of job_gpus, `minutes` its rows of job_minutes.
    What another finding supersedes is left out, so that no advice contradicts another.
    """
    return _judge(summary, gpus, timelines_of(minutes, idle_util=thresholds.idle_util), thresholds)


def _judge(
    summary: Mapping[str, Any],
    gpus: pl.DataFrame,
    timeline: pl.DataFrame,
    thresholds: Thresholds,
    told: frozenset[str] = frozenset(),
) -> tuple[Finding, ...]:
    """`told`: codes that job classes tell already; what those rules supersede stays so."""
    found = {rule: finding for rule in SUMMARY_CHECKS if (finding := rule.judge(summary, gpus, timeline, thresholds))}
    superseded = {*told, *(code for rule in found for code in rule.supersedes)}
    kept = [finding for finding in found.values() if finding.code not in superseded]
    return tuple(sorted(kept, key=lambda finding: SEVERITIES.index(finding.severity)))


def judge_summaries(
    summaries: pl.DataFrame,
    gpus: pl.DataFrame,
    timelines: pl.DataFrame,
    thresholds: Thresholds,
    classes: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Return the findings of many jobs in the schema of FINDINGS, without `seq`: one row per (job_key, code).

    `timelines`: their minutes with the GPUs put together, one row per (job_key, minute), as `timelines_of` returns.
    `classes`: findings of their job classes; what those tell is left out.
    """
    gpus_of, timeline_of = _Slices(gpus.sort("job_key", maintain_order=True)), _Slices(timelines)
    told = superseded_by(classes)
    rows = summaries.drop(_LISTS)
    return findings_frame(
        (row, _judge(row, gpus_of[key], timeline_of[key], thresholds, told.get(key, frozenset())))
        for row in rows.iter_rows(named=True)
        for key in (row["job_key"],)
    )


class _Slices:
    """Rows of each job; those of one job lie together. Cutting them out copies nothing."""

    def __init__(self, frame: pl.DataFrame) -> None:
        keys = frame.get_column("job_key").rle().struct.unnest()
        lengths = keys.get_column("len").cast(pl.Int64)
        begins = lengths.cum_sum() - lengths
        self.frame = frame
        self.places = dict(zip(keys.get_column("value"), zip(begins, lengths, strict=True), strict=True))

    def __getitem__(self, job_key: str) -> pl.DataFrame:
        begin, length = self.places.get(job_key, (0, 0))
        return self.frame.slice(begin, length)


def read_findings(frame: pl.DataFrame) -> tuple[Finding, ...]:
    """Return the rows of a findings frame (of one job) as findings, in the order in which they are told."""
    return finding.read_findings(frame, SUMMARY_CODES)
