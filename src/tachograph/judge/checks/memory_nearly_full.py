"""GPU memory was nearly full."""

from __future__ import annotations

import polars as pl

from tachograph.catalog.units import text
from tachograph.judge.check import Check, CheckedJob, Found, threshold


def decide(job: CheckedJob) -> Found:
    """Return how much was used."""
    peak = job.measured("hbm_peak_fraction")
    used, capacity = job.number("hbm_used_mib_max"), job.number("hbm_mib")
    amount = (
        ""
        if used is None or capacity is None
        else f": {text(used, 'MiB')} of {text(capacity, 'MiB')}"
    )
    return Found(
        (
            f"At the peak{job.so_far} {text(peak, 'fraction')} of the memory of a GPU was in "
            f"use{amount}."
        ),
        job.evidence("hbm_peak_fraction", "hbm_used_mib_max", "hbm_mib"),
    )


CHECK = Check(
    "memory_nearly_full",
    family="memory",
    severity="hint",
    title="GPU memory was nearly full",
    brief="GPU memory was nearly full: {hbm_peak_fraction} at the peak",
    advice=(
        "A slightly larger input may not fit: try one before a long run. Some frameworks (JAX, "
        "TensorFlow) reserve "
        "nearly all memory in advance; then this says nothing about the need."
    ),
    needs=("hbm_used_mib",),
    decide=decide,
    condition=pl.col("hbm_peak_fraction") > threshold("high_hbm_fraction"),
)
