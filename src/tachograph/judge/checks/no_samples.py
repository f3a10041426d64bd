"""Nothing was recorded for the job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tachograph.catalog.config import Thresholds
from tachograph.catalog.units import text
from tachograph.judge.checks.evidence import evidence_of, number
from tachograph.judge.finding import Finding


def no_samples(
    summary: Mapping[str, Any], gpus: pl.DataFrame, minutes: pl.DataFrame, thresholds: Thresholds
) -> Finding | None:
    """Return the note that the job has no GPU samples; None where it is not known whether it has."""
    samples = number(summary, "samples")
    if samples is None or samples > 0:
        return None
    elapsed = number(summary, "elapsed_s")
    ran = "" if elapsed is None else f" The job ran for {text(elapsed, 's')}."
    return Finding(
        "no_samples",
        "note",
        "No GPU telemetry was recorded",
        f"There is no sample of its GPUs in the time of the job.{ran}",
        "Have the telemetry of its nodes checked, and whether the recordings of that time were ingested.",
        evidence_of(summary, "elapsed_s", "gpus", samples=samples),
    )
