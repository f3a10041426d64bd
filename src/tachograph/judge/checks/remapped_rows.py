"""Memory rows were remapped during the job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tachograph.catalog.config import Thresholds
from tachograph.catalog.units import plural
from tachograph.judge.checks.evidence import evidence_of
from tachograph.judge.finding import Finding

_COLUMNS = ("remapped_rows_uncorrectable", "remapped_rows_correctable")


def remapped_rows(
    summary: Mapping[str, Any], gpus: pl.DataFrame, minutes: pl.DataFrame, thresholds: Thresholds
) -> Finding | None:
    """Return the finding that memory rows were remapped while the job ran (sums over its GPUs)."""
    hard, soft = (float(gpus[f"{name}_max"].sum() or 0) for name in _COLUMNS)
    if hard + soft <= 0:
        return None
    return Finding(
        "remapped_rows",
        "problem" if hard else "note",
        "Faulty GPU memory was replaced by spare rows during the job",
        f"{plural(hard, 'row')} after uncorrectable and {plural(soft, 'row')} after correctable errors.",
        "Check the results of this job, and tell the support staff of your site: the GPU needs a reset, and watching."
        if hard
        else None,
        evidence_of({}, remapped_rows_uncorrectable=hard, remapped_rows_correctable=soft),
    )
