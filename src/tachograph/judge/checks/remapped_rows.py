"""Memory rows were remapped after uncorrectable errors during the job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tachograph.catalog.config import Thresholds
from tachograph.catalog.units import plural
from tachograph.judge.activity import evidence_of
from tachograph.judge.check import Check, Found

COLUMNS = ("remapped_rows_uncorrectable", "remapped_rows_correctable")


def decide(
    summary: Mapping[str, Any], gpus: pl.DataFrame, minutes: pl.DataFrame, thresholds: Thresholds
) -> Found | None:
    """Return that rows were remapped after uncorrectable errors while the job ran (sums over its GPUs)."""
    hard, soft = (float(gpus[f"{name}_max"].sum() or 0) for name in COLUMNS)
    if hard <= 0:
        return None
    return Found(
        f"{plural(hard, 'row')} after uncorrectable and {plural(soft, 'row')} after correctable errors.",
        evidence_of({}, remapped_rows_uncorrectable=hard, remapped_rows_correctable=soft),
    )


CHECK = Check(
    "remapped_rows",
    family="GPU memory faults",
    severity="problem",
    title="Faulty GPU memory was replaced by spare rows during the job",
    advice=(
        "Check the results of this job, and report it to the support staff of your site: the GPU needs a reset, "
        "and watching."
    ),
    evidence=("remapped_rows_uncorrectable", "remapped_rows_correctable"),
    needs=("remapped_rows_uncorrectable",),
    decide=decide,
)
