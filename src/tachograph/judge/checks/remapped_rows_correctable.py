"""Memory rows were remapped after correctable errors during the job: a note, results are right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tachograph.catalog.config import Thresholds
from tachograph.catalog.units import plural
from tachograph.judge.activity import evidence_of
from tachograph.judge.check import Check, Found
from tachograph.judge.checks.remapped_rows import COLUMNS


def decide(
    summary: Mapping[str, Any], gpus: pl.DataFrame, minutes: pl.DataFrame, thresholds: Thresholds
) -> Found | None:
    """Return that rows were remapped after correctable errors alone while the job ran (sums over its GPUs)."""
    hard, soft = (float(gpus[f"{name}_max"].sum() or 0) for name in COLUMNS)
    if hard > 0 or soft <= 0:
        return None
    return Found(
        f"{plural(soft, 'row')} after correctable errors, none after uncorrectable ones.",
        evidence_of({}, remapped_rows_correctable=soft),
    )


CHECK = Check(
    "remapped_rows_correctable",
    family="GPU memory faults",
    severity="note",
    title="Weak GPU memory was replaced by spare rows during the job",
    evidence=("remapped_rows_correctable",),
    needs=("remapped_rows_correctable",),
    decide=decide,
)
