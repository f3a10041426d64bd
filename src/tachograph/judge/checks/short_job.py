"""The job was too short for meaningful numbers."""

from __future__ import annotations

import polars as pl

from tachograph.catalog.units import text
from tachograph.judge.check import Check, CheckedJob, Found

SHORT_S = 180.0  # source: IPDPS 2026, section 3, leaves out shorter jobs


def decide(job: CheckedJob) -> Found:
    """Return how long it ran."""
    elapsed, samples = job.measured("elapsed_s"), job.number("samples")
    counted = "" if samples is None else f" and has {text(samples, 'count')} samples"
    return Found(
        f"It ran for {text(elapsed, 's')}{counted}: means over so little time are unreliable.",
        job.evidence("elapsed_s", "samples"),
    )


CHECK = Check(
    "short_job",
    family="run time",
    severity="fact",
    title="The job was short",
    advice=None,
    of_samples=False,
    decide=decide,
    condition=(pl.col("elapsed_s") < SHORT_S) & pl.col("state").ne_missing("RUNNING"),
)
