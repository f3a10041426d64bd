"""Nothing was recorded for the job."""

from __future__ import annotations

import polars as pl

from tachograph.catalog.units import text
from tachograph.judge.check import Check, CheckedJob, Found
from tachograph.judge.checks.ambiguous_attribution import SAME_NAME, names_sentence


def decide(job: CheckedJob) -> Found:
    """Return that there is no sample, and why."""
    samples = job.measured("samples")
    elapsed = job.number("elapsed_s")
    ran = "" if elapsed is None else f" The job ran for {text(elapsed, 's')}."
    evidence = job.evidence("elapsed_s", "gpus", samples=samples)
    other_name = names_sentence(job.summary)
    if other_name:
        return Found(f"{other_name} No sample is its own.{ran}", evidence, advice=SAME_NAME)
    return Found(f"There is no sample of its GPUs in the time of the job.{ran}", evidence)


CHECK = Check(
    "no_samples",
    family="telemetry",
    severity="hint",
    title="No GPU telemetry was recorded",
    advice=(
        "Have the telemetry of its nodes checked, and whether the recordings of that time "
        "were ingested."
    ),
    of_samples=False,
    decide=decide,
    condition=pl.col("samples") <= 0,
)
