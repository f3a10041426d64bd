"""The recorded times of the job are coarse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tachograph.catalog.config import Thresholds
from tachograph.catalog.units import text
from tachograph.judge.checks.evidence import evidence_of, number
from tachograph.judge.finding import Finding


def time_precision(
    summary: Mapping[str, Any], gpus: pl.DataFrame, minutes: pl.DataFrame, thresholds: Thresholds
) -> Finding | None:
    """Return the note that start and end were recorded to a minute or coarser."""
    precision = number(summary, "time_precision_s")
    if precision is None or precision < 60:
        return None
    return Finding(
        "time_precision",
        "note",
        "Start and end are known to the minute only" if precision == 60 else "Start and end are known coarsely",
        f"They were recorded with a precision of {text(precision, 's')}: samples at the edges may belong to "
        "the job before or after.",
        "Staff: export the accounting with seconds (SLURM_TIME_FORMAT=standard).",
        evidence_of(summary, "time_precision_s", "elapsed_s"),
    )
