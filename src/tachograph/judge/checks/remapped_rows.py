"""Memory rows were remapped after uncorrectable errors during the job."""

from __future__ import annotations

import polars as pl

from tachograph.catalog.units import plural
from tachograph.judge.check import Check, CheckedJob, Found

COLUMNS = ("remapped_rows_uncorrectable", "remapped_rows_correctable")


def decide(job: CheckedJob) -> Found:
    """Return how many rows of all GPUs were remapped."""
    hard, soft = (job.gpu_total(f"{name}_max") for name in COLUMNS)
    return Found(
        (
            f"{plural(hard, 'row')} after uncorrectable and {plural(soft, 'row')} after "
            "correctable errors."
        ),
        job.evidence(remapped_rows_uncorrectable=hard, remapped_rows_correctable=soft),
    )


CHECK = Check(
    "remapped_rows",
    family="GPU memory faults",
    severity="problem",
    title="Faulty GPU memory was replaced by spare rows during the job",
    advice=(
        "Check the results of this job, and report it to the support staff of your site: the "
        "GPU needs a reset, "
        "and watching."
    ),
    needs=("remapped_rows_uncorrectable",),
    decide=decide,
    gpu_condition=pl.col(f"{COLUMNS[0]}_max") > 0,
)
