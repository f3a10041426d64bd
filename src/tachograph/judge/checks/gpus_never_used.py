"""Some GPUs of the job did nothing."""

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
    """Return that some GPUs stayed below `idle_util` while others worked."""
    lowest = idlest_gpu(summary, gpus)
    if lowest is None or lowest >= thresholds.idle_util:
        return None
    measured = gpu_activity(summary, gpus)
    if measured is None or measured.height < 2:
        return None
    idle = measured.filter(pl.col("activity_mean") < thresholds.idle_util).sort("node", "gpu", "mig")
    if not 0 < idle.height < measured.height:
        return None
    held = number(summary, "gpus") or measured.height
    hours = number(summary, "gpu_hours")
    lost = None if hours is None else hours * idle.height / held
    busy = measured.height - idle.height
    they = "It" if idle.height == 1 else "They"
    cost = "" if lost is None else f" {they} used {text(lost, 'h')} of GPU time."
    return Found(
        f"{idle.height} of {measured.height} GPUs ({gpu_labels(idle, of=measured)}) stayed under "
        f"{text(thresholds.idle_util, 'fraction')} on average"
        f"{so_far(summary)} while {busy} {'GPU' if busy == 1 else 'GPUs'} worked.{cost}",
        evidence_of(summary, "gpus", gpus_unused=idle.height, gpus_seen=measured.height, gpu_hours_idle=lost),
    )


CHECK = Check(
    "gpus_never_used",
    family="idle GPUs",
    severity="problem",
    title="Some GPUs were not used",
    advice=(
        "Request as many GPUs as the program uses, or start one process per GPU (srun with --gpus-per-task, "
        "torchrun --nproc-per-node)."
    ),
    evidence=("gpus", "gpus_unused", "gpus_seen", "gpu_hours_idle"),
    needs=(ANY_ACTIVITY,),
    decide=decide,
)
