"""Memory rows were remapped after correctable errors during the job: results are right."""

from __future__ import annotations

import polars as pl

from tachograph.catalog.units import plural
from tachograph.judge.check import Check, CheckedJob, Found
from tachograph.judge.checks.remapped_rows import COLUMNS


def decide(job: CheckedJob) -> Found | None:
    """Return Found if no rows were remapped after uncorrectable errors."""
    hard, soft = (job.gpu_total(f"{name}_max") for name in COLUMNS)
    if hard > 0:
        return None
    return Found(
        f"{plural(soft, 'row')} after correctable errors, none after uncorrectable ones.",
        job.evidence(remapped_rows_correctable=soft),
    )


CHECK = Check(
    "remapped_rows_correctable",
    family="GPU memory faults",
    severity="fact",
    title="Weak GPU memory was replaced by spare rows during the job",
    needs=("remapped_rows_correctable",),
    decide=decide,
    gpu_condition=pl.col(f"{COLUMNS[1]}_max") > 0,
)
