"""The recorded times of the job are coarse."""

from __future__ import annotations

import polars as pl

from tachograph.catalog.units import text
from tachograph.judge.check import Check, CheckedJob, Found


def decide(job: CheckedJob) -> Found:
    """Return how coarse they are."""
    precision = job.measured("time_precision_s")
    return Found(
        f"They were recorded with a precision of {text(precision, 's')}: samples at the edges "
        "may belong to "
        "the job before or after.",
        job.evidence("time_precision_s", "elapsed_s"),
    )


CHECK = Check(
    "time_precision",
    family="time precision",
    severity="fact",
    title="Start and end are recorded to the minute or coarser",
    advice="Staff: export the accounting with seconds (SLURM_TIME_FORMAT=standard).",
    of_samples=False,
    decide=decide,
    condition=pl.col("time_precision_s") >= 60,
)
