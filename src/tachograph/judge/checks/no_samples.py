"""Nothing was recorded for the job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tachograph.catalog.config import Thresholds
from tachograph.catalog.units import text
from tachograph.judge.activity import evidence_of, number
from tachograph.judge.check import Check, Found


def decide(
    summary: Mapping[str, Any], gpus: pl.DataFrame, minutes: pl.DataFrame, thresholds: Thresholds
) -> Found | None:
    """Return that the job has no GPU samples; None where it is not known whether it has."""
    samples = number(summary, "samples")
    if samples is None or samples > 0:
        return None
    elapsed = number(summary, "elapsed_s")
    ran = "" if elapsed is None else f" The job ran for {text(elapsed, 's')}."
    return Found(
        f"There is no sample of its GPUs in the time of the job.{ran}",
        evidence_of(summary, "elapsed_s", "gpus", samples=samples),
    )


CHECK = Check(
    "no_samples",
    family="data quality",
    severity="note",
    title="No GPU telemetry was recorded",
    advice="Have the telemetry of its nodes checked, and whether the recordings of that time were ingested.",
    evidence=("elapsed_s", "gpus", "samples"),
    of_samples=False,
    decide=decide,
)
