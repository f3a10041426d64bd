"""It is not known which GPUs the job held."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tachograph.catalog.config import Thresholds
from tachograph.judge.activity import evidence_of
from tachograph.judge.check import Check, Found


def decide(
    summary: Mapping[str, Any], gpus: pl.DataFrame, minutes: pl.DataFrame, thresholds: Thresholds
) -> Found | None:
    """Return that the GPUs of the job are unknown."""
    if summary.get("attribution") != "ambiguous":
        return None
    return Found(
        "Nothing recorded tells which GPUs of its nodes were its own, or that it had the nodes to itself; "
        "the nodes' average is not the job's, so no GPU numbers are given.",
        evidence_of(summary, "gpus", "elapsed_s"),
    )


CHECK = Check(
    "ambiguous_attribution",
    family="data quality",
    severity="note",
    title="Which GPUs belonged to the job is not known",
    advice=(
        "Staff: let the Slurm prolog write a map of job to GPUs, or record `scontrol show job -d` while jobs run; "
        "both can be ingested. Where a partition or QOS gives whole nodes, name it in [slurm] exclusive."
    ),
    evidence=("gpus", "elapsed_s"),
    of_samples=False,
    decide=decide,
)
