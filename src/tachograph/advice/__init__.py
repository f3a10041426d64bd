"""Advice: what is worth knowing about a job, each with the numbers behind it and what to do.

A finding is added by one file and one line in RULES. A rule that needs a counter nobody measured finds nothing.
What job classes tell of the same job is told once: `precedence`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tachograph import finding
from tachograph.advice.ambiguous_attribution import ambiguous_attribution
from tachograph.advice.bursty import bursty
from tachograph.advice.busy_waiting import busy_waiting
from tachograph.advice.gpus_never_used import gpus_never_used
from tachograph.advice.hung import hung
from tachograph.advice.idle_job import idle_job
from tachograph.advice.imbalanced_gpus import imbalanced_gpus
from tachograph.advice.late_start import late_start
from tachograph.advice.low_coverage import low_coverage
from tachograph.advice.low_memory import low_memory
from tachograph.advice.low_utilisation import low_utilisation
from tachograph.advice.memory_bound import main_pipe, memory_bound
from tachograph.advice.memory_nearly_full import memory_nearly_full
from tachograph.advice.no_samples import no_samples
from tachograph.advice.no_tensor_use import no_tensor_use
from tachograph.advice.one_gpu_of_many import one_gpu_of_many
from tachograph.advice.precedence import settled, superseded_by
from tachograph.advice.remapped_rows import remapped_rows
from tachograph.advice.row_remap_failure import row_remap_failure
from tachograph.advice.rule import Judge, Rule
from tachograph.advice.short_job import short_job
from tachograph.advice.stalled import stalled
from tachograph.advice.throttled import throttled
from tachograph.advice.time_precision import time_precision
from tachograph.advice.xid_error import xid_error
from tachograph.config import Thresholds
from tachograph.finding import EVIDENCE, SEVERITIES, Finding, Severity, findings_frame
from tachograph.reduce.timelines import timelines_of

__all__ = [
    "CODES", "EVIDENCE", "RULES", "SEVERITIES", "Finding", "Judge", "Rule", "Severity",
    "find", "find_all", "findings_frame", "main_pipe", "read_findings", "settled", "timelines_of",
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
RULES: tuple[Rule, ...] = (
    Rule("idle_job", idle_job, supersedes=("one_gpu_of_many", *_SPREAD, *_OVER_TIME, *_KIND_OF_WORK)),
    Rule("busy_waiting", busy_waiting, supersedes=("memory_bound", "no_tensor_use", "bursty", "low_utilisation")),
    Rule("hung", hung, supersedes=("bursty", "low_utilisation")),
    Rule("one_gpu_of_many", one_gpu_of_many, supersedes=_SPREAD),
    Rule("gpus_never_used", gpus_never_used, supersedes=("imbalanced_gpus", "low_utilisation")),
    Rule("xid_error", xid_error),
    Rule("row_remap_failure", row_remap_failure, supersedes=("remapped_rows",)),
    Rule("remapped_rows", remapped_rows),
    Rule("throttled", throttled),
    Rule("late_start", late_start),
    Rule("stalled", stalled, supersedes=("bursty",)),
    Rule("bursty", bursty, supersedes=("low_utilisation", "memory_bound")),
    Rule("low_utilisation", low_utilisation, supersedes=("memory_bound", "no_tensor_use")),
    Rule("imbalanced_gpus", imbalanced_gpus, supersedes=("low_utilisation",)),
    Rule("memory_bound", memory_bound, supersedes=("no_tensor_use",)),
    Rule("no_tensor_use", no_tensor_use),
    Rule("low_memory", low_memory),
    Rule("memory_nearly_full", memory_nearly_full),
    Rule("ambiguous_attribution", ambiguous_attribution, supersedes=(*_OF_SAMPLES, "low_coverage", "no_samples")),
    Rule("no_samples", no_samples, supersedes=("low_coverage", "short_job")),
    Rule("low_coverage", low_coverage),
    Rule("short_job", short_job),
    Rule("time_precision", time_precision),
)
CODES: tuple[str, ...] = tuple(rule.code for rule in RULES)


def find(
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
    found = {rule: finding for rule in RULES if (finding := rule.judge(summary, gpus, timeline, thresholds))}
    superseded = {*told, *(code for rule in found for code in rule.supersedes)}
    kept = [finding for finding in found.values() if finding.code not in superseded]
    return tuple(sorted(kept, key=lambda finding: SEVERITIES.index(finding.severity)))


def find_all(
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
    return finding.read_findings(frame, CODES)
