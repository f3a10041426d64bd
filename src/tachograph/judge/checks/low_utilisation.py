"""The GPUs worked, but little."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tachograph.catalog.config import Thresholds
from tachograph.catalog.units import text
from tachograph.judge.checks.evidence import evidence_of, number, so_far
from tachograph.judge.finding import Finding

ROOM = 0.5  # a memory peak below this leaves room for larger batches


def low_utilisation(
    summary: Mapping[str, Any], gpus: pl.DataFrame, minutes: pl.DataFrame, thresholds: Thresholds
) -> Finding | None:
    """Return the finding that mean GPU utilisation is between `idle_util` and `low_util`."""
    mean = number(summary, "gpu_util_mean")
    if mean is None or not thresholds.idle_util <= mean < thresholds.low_util:
        return None
    zero, hours = number(summary, "zero_util_fraction"), number(summary, "gpu_hours")
    lost = None if zero is None or hours is None else zero * hours
    waits = "" if zero is None else f"; in {text(zero, 'fraction')} of the samples a GPU did nothing at all"
    peak = number(summary, "hbm_peak_fraction")
    room = peak is not None and peak < ROOM
    larger = f" Memory has room for larger batches or problems (peak {text(peak, 'fraction')})." if room else ""
    return Finding(
        "low_utilisation",
        "hint",
        "The GPUs were busy for a small part of the time",
        f"GPU utilisation was {text(mean, 'fraction')} on average{so_far(summary)}{waits}.",
        f"Find out what the GPUs wait for, with a profiler on a short run: input, the CPU, communication, or many "
        f"small kernels.{larger} If nothing helps, fewer GPUs do the same work.",
        evidence_of(
            summary, "gpu_util_mean", "gpu_hours", "hbm_peak_fraction", gpu_hours_idle=lost, idle_fraction=zero
        ),
    )
