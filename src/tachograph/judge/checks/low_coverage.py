"""Many samples of the job are missing."""

from __future__ import annotations

import polars as pl

from tachograph.catalog.units import plural, text
from tachograph.judge.check import Check, CheckedJob, Found, threshold

_FEW = pl.col("coverage") < threshold("low_coverage")
_SOME_UNSAMPLED = pl.col("gpus_seen") < pl.col("gpus")


def decide(job: CheckedJob) -> Found:
    """Return which samples are missing."""
    coverage = job.number("coverage")
    parts = []
    if job.holds(_FEW):
        parts.append(f"{text(coverage, 'fraction')} of the expected samples are present")
    if job.holds(_SOME_UNSAMPLED):
        held = job.measured("gpus")
        unsampled = held - job.measured("gpus_seen")
        parts.append(
            f"{unsampled:,.0f} of {plural(held, 'GPU')} {'has' if unsampled == 1 else 'have'} "
            "none at all"
        )
    return Found(
        f"{'; '.join(parts)}. What happened in the gaps is not known.",
        job.evidence("coverage", "samples", "gpus", "gpus_seen"),
    )


CHECK = Check(
    "low_coverage",
    family="data quality",
    severity="hint",
    title="Samples are missing",
    advice=(
        "Read means and peaks with care. If it happens often, have the telemetry of these "
        "nodes checked."
    ),
    of_samples=False,
    decide=decide,
    condition=(pl.col("samples") != 0) & (_FEW | _SOME_UNSAMPLED),
)
