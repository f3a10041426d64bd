"""The work was spread unevenly over the GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tachograph.catalog.config import Thresholds
from tachograph.catalog.units import text
from tachograph.judge.activity import evidence_of, gpu_activity, gpu_labels, number
from tachograph.judge.check import Check, Found


def decide(
    summary: Mapping[str, Any], gpus: pl.DataFrame, minutes: pl.DataFrame, thresholds: Thresholds
) -> Found | None:
    """Return that spatial imbalance is at its threshold or above."""
    imbalance = number(summary, "spatial_imbalance")
    if imbalance is None or imbalance < thresholds.spatial_imbalance:
        return None
    measured = gpu_activity(summary, gpus)
    if measured is None or measured.height < 2:
        return None
    top, bottom = measured.head(1), measured.tail(1)
    high, low = float(top["activity_mean"][0]), float(bottom["activity_mean"][0])
    little = "; even the busiest did little" if high < thresholds.low_util else ""
    return Found(
        f"Imbalance across GPUs is {text(imbalance, 'ratio')} (0: all alike); means run from {text(low, 'fraction')} "
        f"({gpu_labels(bottom, of=measured)}) to {text(high, 'fraction')} ({gpu_labels(top, of=measured)}){little}.",
        evidence_of(summary, "spatial_imbalance", "gpus", busiest_gpu_mean=high, idlest_gpu_mean=low),
    )


CHECK = Check(
    "imbalanced_gpus",
    family="imbalance",
    severity="hint",
    title="The work was spread unevenly over the GPUs",
    advice=(
        "Check how work is divided: equal shares per process, one process per GPU, no serial part on one of them. "
        "If GPUs take turns, fewer of them do the same work. If even the busiest does little, find out what it "
        "waits for, "
        "with a profiler on a short run."
    ),
    evidence=("spatial_imbalance", "gpus", "busiest_gpu_mean", "idlest_gpu_mean"),
    needs=("gpu_util",),
    decide=decide,
)
