"""Remapping a memory row has failed: the GPU should be replaced."""

from __future__ import annotations

import polars as pl

from tachograph.judge.check import Check, CheckedJob, Found

FAILED = pl.col("row_remap_failure_max") > 0  # of a GPU, or of any of a job


def decide(job: CheckedJob) -> Found:
    """Return which GPUs."""
    touched = job.gpus_that(FAILED)
    where = job.labels(touched) if touched else "A GPU"
    return Found(
        f"{where}: remapping a faulty memory row has failed.",
        job.evidence(gpus_affected=float(max(1, len(touched)))),
    )


CHECK = Check(
    "row_remap_failure",
    family="GPU memory faults",
    severity="problem",
    title="A GPU has run out of spare memory rows",
    advice=(
        "Report it to the support staff of your site: the GPU should be taken out of service. "
        "Check the "
        "results of this job."
    ),
    needs=("row_remap_failure",),
    decide=decide,
    condition=FAILED,
)
