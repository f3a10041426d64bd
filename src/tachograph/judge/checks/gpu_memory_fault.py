"""A GPU of the job has faulty memory, even if older than the job: its health is CRIT."""

from __future__ import annotations

import polars as pl

from tachograph.catalog.units import plural
from tachograph.judge.check import Check, CheckedJob, Found
from tachograph.judge.health import CRIT

FAULTY = pl.col("health") == CRIT


def decide(job: CheckedJob) -> Found:
    """Return which GPUs have faulty memory, and what shows it."""
    touched = job.gpus_that(FAULTY)
    failures = float(max(gpu["row_remap_failure_max"] or 0 for gpu in touched))
    rows = float(sum(gpu["remapped_rows_uncorrectable_last"] or 0 for gpu in touched))
    errors = float(sum(gpu["ecc_dbe_max"] or 0 for gpu in touched))
    seen = ["remapping a faulty memory row has failed"] if failures > 0 else []
    if rows > 0:
        seen.append(
            f"{plural(rows, 'memory row')} remapped after uncorrectable errors, up to the end "
            "of the job"
        )
    if errors > 0:
        seen.append(f"{plural(errors, 'uncorrectable ECC error')} during the job")
    evidence = {
        "ecc_dbe": errors,
        "row_remap_failure": failures,
        "remapped_rows_uncorrectable": rows,
        "gpus_affected": float(len(touched)),
    }
    return Found(f"{job.labels(touched)}: {', '.join(seen)}.", evidence)


CHECK = Check(
    "gpu_memory_fault",
    family="GPU memory faults",
    severity="problem",
    title="A GPU has faulty memory",
    advice="Report it to the support staff of your site: the GPU should be taken out of "
    "service. Check the results of "
    "this job.",
    needs=("remapped_rows_uncorrectable", "row_remap_failure"),
    decide=decide,
    gpu_condition=FAULTY,
)
