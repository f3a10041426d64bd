"""Many samples of the job are missing."""

from __future__ import annotations

from tachograph.catalog.units import plural, text
from tachograph.judge.check import Check, CheckedJob, Found


def decide(job: CheckedJob) -> Found | None:
    """Return Found if coverage is below `low_coverage`, or GPUs of the job have no samples."""
    coverage, samples = job.number("coverage"), job.number("samples")
    held, seen = job.number("gpus"), job.number("gpus_seen")
    if not samples:
        return None
    unsampled = held - seen if held is not None and seen is not None and seen < held else 0
    few = coverage is not None and coverage < job.thresholds.low_coverage
    if not few and not unsampled:
        return None
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
)
