"""GPU memory was nearly full."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tachograph.catalog.config import Thresholds
from tachograph.catalog.units import text
from tachograph.judge.activity import evidence_of, number, so_far
from tachograph.judge.check import Check, Found


def decide(
    summary: Mapping[str, Any], gpus: pl.DataFrame, minutes: pl.DataFrame, thresholds: Thresholds
) -> Found | None:
    """Return that the memory peak is above `high_hbm_fraction` of the capacity."""
    peak = number(summary, "hbm_peak_fraction")
    if peak is None or peak <= thresholds.high_hbm_fraction:
        return None
    used, capacity = number(summary, "hbm_used_mib_max"), number(summary, "hbm_mib")
    amount = "" if used is None or capacity is None else f": {text(used, 'MiB')} of {text(capacity, 'MiB')}"
    return Found(
        f"At the peak{so_far(summary)} {text(peak, 'fraction')} of the memory of a GPU was in use{amount}.",
        evidence_of(summary, "hbm_peak_fraction", "hbm_used_mib_max", "hbm_mib"),
    )


CHECK = Check(
    "memory_nearly_full",
    family="memory",
    severity="note",
    title="GPU memory was nearly full",
    advice=(
        "A slightly larger input may not fit: try one before a long run. Some frameworks (JAX, TensorFlow) reserve "
        "nearly all memory in advance; then this says nothing about the need."
    ),
    evidence=("hbm_peak_fraction", "hbm_used_mib_max", "hbm_mib"),
    needs=("hbm_used_mib",),
    decide=decide,
)
