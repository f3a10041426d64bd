"""Exactly one GPU of several worked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tachograph.catalog.config import Thresholds
from tachograph.catalog.units import text
from tachograph.judge.activity import evidence_of, gpu_activity, gpu_labels, idlest_gpu, number, so_far
from tachograph.judge.check import ANY_ACTIVITY, Check, Found


def decide(
    summary: Mapping[str, Any], gpus: pl.DataFrame, minutes: pl.DataFrame, thresholds: Thresholds
) -> Found | None:
    """Return that one GPU worked and all others stayed below `idle_util`."""
    lowest = idlest_gpu(summary, gpus)
    if lowest is None or lowest >= thresholds.idle_util:
        return None
    measured = gpu_activity(summary, gpus)
    if measured is None or measured.height < 2:
        return None
    idle = measured.filter(pl.col("activity_mean") < thresholds.idle_util)
    if idle.height != measured.height - 1:
        return None
    busy = measured.head(1)
    mean = float(busy["activity_mean"][0])
    held = number(summary, "gpus") or measured.height
    hours = number(summary, "gpu_hours")
    lost = None if hours is None else hours * idle.height / held
    cost = "" if lost is None else f" The others used {text(lost, 'h')} of GPU time."
    return Found(
        f"{gpu_labels(busy, of=measured)} was at {text(mean, 'fraction')} on average, "
        f"the other {idle.height} stayed "
        f"under {text(thresholds.idle_util, 'fraction')}{so_far(summary)}.{cost}",
        evidence_of(
            summary,
            "gpus",
            busiest_gpu_mean=mean,
            gpus_unused=idle.height,
            gpus_seen=measured.height,
            gpu_hours_idle=lost,
        ),
    )


CHECK = Check(
    "one_gpu_of_many",
    family="idle GPUs",
    severity="problem",
    title="Only one of several GPUs was used",
    advice=(
        "Request one GPU. If the program can use several, start one process per GPU "
        "(srun with --gpus-per-task, torchrun --nproc-per-node)."
    ),
    evidence=("gpus", "busiest_gpu_mean", "gpus_unused", "gpus_seen", "gpu_hours_idle"),
    needs=(ANY_ACTIVITY,),
    decide=decide,
)
