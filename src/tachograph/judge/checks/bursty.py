"""The GPUs worked in bursts with waiting between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tachograph.catalog.config import Thresholds
from tachograph.catalog.units import text
from tachograph.judge.activity import activity_over_time, evidence_of, idle_periods, may_hold_idle, number
from tachograph.judge.check import ANY_ACTIVITY, Check, Found, Unmeasured

PERIODS = 3  # periods of waiting that make a pattern
IDLE_SHARE = 0.1  # of the minutes between first and last work


def decide(
    summary: Mapping[str, Any], gpus: pl.DataFrame, minutes: pl.DataFrame, thresholds: Thresholds
) -> Found | None:
    """Return that temporal imbalance is at its threshold and work alternates with minutes of waiting."""
    imbalance = number(summary, "temporal_imbalance")
    if imbalance is None or imbalance < thresholds.temporal_imbalance:
        return None
    if not may_hold_idle(summary, 60.0 * PERIODS * 2):
        return None
    activity = activity_over_time(minutes, thresholds.idle_util)
    if activity is None:
        return None
    periods = idle_periods(activity)
    idle = sum(length for _, length in periods)
    share = idle / max(1, activity.last_busy - activity.first_busy + 1)
    if len(periods) < PERIODS or share < IDLE_SHARE:
        return None
    held = number(summary, "gpus") or number(summary, "gpus_seen")
    longest = max(length for _, length in periods)
    return Found(
        f"Work stopped on all GPUs {len(periods)} times for two minutes or more (longest "
        f"{text(longest * 60, 's')}), {text(share, 'fraction')} of the time between first and last work; "
        f"imbalance over time is {text(imbalance, 'ratio')}.",
        evidence_of(
            summary,
            "temporal_imbalance",
            "gpu_util_mean",
            idle_periods=len(periods),
            longest_idle_s=longest * 60.0,
            idle_s=idle * 60.0,
            idle_fraction=share,
            gpu_hours_idle=None if held is None else idle * held / 60,
        ),
    )


CHECK = Check(
    "bursty",
    family="input",
    severity="hint",
    title="The GPUs worked in bursts",
    advice=(
        "Let reading, preprocessing and checkpoints overlap with GPU work: more loader processes, prefetching, "
        "asynchronous checkpoints, input on fast storage."
    ),
    evidence=(
        "temporal_imbalance",
        "gpu_util_mean",
        "idle_periods",
        "longest_idle_s",
        "idle_s",
        "idle_fraction",
        "gpu_hours_idle",
    ),
    needs=(ANY_ACTIVITY,),
    hidden=Unmeasured(share=0.1),
    decide=decide,
)
