"""Many samples of the job are missing."""

from __future__ import annotations

import polars as pl

from tachograph.catalog.units import plural, text
from tachograph.judge.check import Check, CheckedJob, Found, threshold

_FEW = pl.col("coverage") < threshold("low_coverage")


def decide(job: CheckedJob) -> Found:
    """Return which samples are missing."""
    coverage, held, seen = (job.number(name) for name in ("coverage", "gpus", "gpus_seen"))
    unsampled = held - seen if held is not None and seen is not None and seen < held else 0
    few = coverage is not None and coverage < job.thresholds.low_coverage
    parts = [f"{text(coverage, 'fraction')} of the expected samples are present"] if few else []
    if unsampled and held is not None:
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
    condition=(pl.col("samples") != 0) & (_FEW | (pl.col("gpus_seen") < pl.col("gpus"))),
)
