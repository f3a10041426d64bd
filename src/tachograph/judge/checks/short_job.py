"""The job was too short for meaningful numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tachograph.catalog.config import Thresholds
from tachograph.catalog.units import text
from tachograph.judge.activity import evidence_of, number
from tachograph.judge.check import Check, Found

SHORT_S = 180.0  # source: IPDPS 2026, section 3, leaves out shorter jobs


def decide(
    summary: Mapping[str, Any], gpus: pl.DataFrame, minutes: pl.DataFrame, thresholds: Thresholds
) -> Found | None:
    """Return that the job ran for less than three minutes; not for one that still runs."""
    elapsed, samples = number(summary, "elapsed_s"), number(summary, "samples")
    if elapsed is None or elapsed >= SHORT_S or summary.get("state") == "RUNNING":
        return None
    counted = "" if samples is None else f" and has {text(samples, 'count')} samples"
    return Found(
        f"It ran for {text(elapsed, 's')}{counted}: means over so little time say little.",
        evidence_of(summary, "elapsed_s", "samples"),
    )


CHECK = Check(
    "short_job",
    family="run time",
    severity="note",
    title="The job was short",
    advice=None,
    evidence=("elapsed_s", "samples"),
    of_samples=False,
    decide=decide,
)
