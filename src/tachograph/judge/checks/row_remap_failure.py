"""Remapping a memory row has failed: the GPU should be replaced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tachograph.catalog.config import Thresholds
from tachograph.judge.activity import evidence_of, gpu_labels, number
from tachograph.judge.check import Check, Found


def decide(
    summary: Mapping[str, Any], gpus: pl.DataFrame, minutes: pl.DataFrame, thresholds: Thresholds
) -> Found | None:
    """Return that a GPU had its flag for a failed row remapping set."""
    if not number(summary, "row_remap_failure_max"):
        return None
    touched = gpus.filter(pl.col("row_remap_failure_max") > 0).sort("node", "gpu", "mig")
    where = gpu_labels(touched, of=gpus) if touched.height else "A GPU"
    return Found(
        f"{where}: remapping a faulty memory row has failed.",
        evidence_of(summary, gpus_affected=float(max(1, touched.height))),
    )


CHECK = Check(
    "row_remap_failure",
    family="GPU memory faults",
    severity="problem",
    title="A GPU has run out of spare memory rows",
    advice=(
        "Report it to the support staff of your site: the GPU should be taken out of service. Check the "
        "results of this job."
    ),
    evidence=("gpus_affected",),
    needs=("row_remap_failure",),
    decide=decide,
)
