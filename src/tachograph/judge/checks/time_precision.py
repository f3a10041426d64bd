"""The recorded times of the job are coarse."""

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
    """Return that start and end were recorded to a minute or coarser."""
    precision = number(summary, "time_precision_s")
    if precision is None or precision < 60:
        return None
    return Found(
        f"They were recorded with a precision of {text(precision, 's')}: samples at the edges may belong to "
        "the job before or after.",
        evidence_of(summary, "time_precision_s", "elapsed_s"),
    )


CHECK = Check(
    "time_precision",
    family="time precision",
    severity="note",
    title="Start and end are recorded to the minute or coarser",
    advice="Staff: export the accounting with seconds (SLURM_TIME_FORMAT=standard).",
    evidence=("time_precision_s", "elapsed_s"),
    of_samples=False,
    decide=decide,
)
