"""It is not known which GPUs the job held."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tachograph.advice.finding import Finding
from tachograph.advice.reading import evidence_of
from tachograph.config import Thresholds


def ambiguous_attribution(
    summary: Mapping[str, Any], gpus: pl.DataFrame, minutes: pl.DataFrame, thresholds: Thresholds
) -> Finding | None:
    """Return the note that the job shared its nodes and nothing tells which GPUs were its own."""
    if summary.get("attribution") != "ambiguous":
        return None
    return Finding(
        "ambiguous_attribution",
        "note",
        "Which GPUs belonged to the job is not known",
        "The job shared its nodes with others, and nothing recorded tells which GPUs were its own; "
        "their average is not the job's, so no GPU numbers are given.",
        "Staff: let the Slurm prolog write a map of job to GPUs, or record `scontrol show job -d` while jobs run; "
        "both can be ingested.",
        evidence_of(summary, "gpus", "elapsed_s"),
    )
