"""Many samples of the job are missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tachograph.catalog.config import Thresholds
from tachograph.catalog.units import plural, text
from tachograph.judge.activity import evidence_of, number
from tachograph.judge.check import Check, Found


def decide(
    summary: Mapping[str, Any], gpus: pl.DataFrame, minutes: pl.DataFrame, thresholds: Thresholds
) -> Found | None:
    """Return that coverage is below `low_coverage`, or that GPUs of the job have no samples at all."""
    coverage, samples = number(summary, "coverage"), number(summary, "samples")
    held, seen = number(summary, "gpus"), number(summary, "gpus_seen")
    if not samples:
        return None
    silent = held - seen if held is not None and seen is not None and seen < held else 0
    few = coverage is not None and coverage < thresholds.low_coverage
    if not few and not silent:
        return None
    parts = [f"{text(coverage, 'fraction')} of the expected samples are present"] if few else []
    if silent and held is not None:
        parts.append(f"{silent:,.0f} of {plural(held, 'GPU')} {'has' if silent == 1 else 'have'} none at all")
    return Found(
        f"{'; '.join(parts)}. What happened in the gaps is not known.",
        evidence_of(summary, "coverage", "samples", "gpus", "gpus_seen"),
    )


CHECK = Check(
    "low_coverage",
    family="data quality",
    severity="note",
    title="Samples are missing",
    advice="Read means and peaks with care. If it happens often, have the telemetry of these nodes checked.",
    evidence=("coverage", "samples", "gpus", "gpus_seen"),
    of_samples=False,
    decide=decide,
)
