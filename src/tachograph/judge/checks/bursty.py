"""The GPUs worked in bursts with waiting between them."""

from __future__ import annotations

import polars as pl

from tachograph.catalog.units import text
from tachograph.judge.activity import idle_periods
from tachograph.judge.check import ANY_ACTIVITY, Check, CheckedJob, Found, may_idle, threshold

PERIODS = 3  # periods of waiting that make a pattern
IDLE_SHARE = 0.1  # of the minutes between first and last work


def decide(job: CheckedJob) -> Found | None:
    """Return Found if work alternates with idling."""
    imbalance, activity = job.measured("temporal_imbalance"), job.activity
    if activity is None:
        return None
    periods = idle_periods(activity)
    idle = sum(length for _, length in periods)
    share = idle / max(1, activity.last_busy - activity.first_busy + 1)
    if len(periods) < PERIODS or share < IDLE_SHARE:
        return None
    longest = max(length for _, length in periods)
    return Found(
        f"Work stopped on all GPUs {len(periods)} times for two minutes or more (longest "
        f"{text(longest * 60, 's')}), {text(share, 'fraction')} of the time between first and "
        "last work; "
        f"imbalance over time is {text(imbalance, 'ratio')}.",
        job.evidence(
            "temporal_imbalance",
            "gpu_util_mean",
            idle_periods=len(periods),
            longest_idle_s=longest * 60.0,
            idle_s=idle * 60.0,
            idle_fraction=share,
        ),
    )


CHECK = Check(
    "bursty",
    family="input",
    severity="hint",
    title="The GPUs worked in bursts",
    causes=("idle",),
    brief="The GPUs worked in bursts, idle for {idle_s} in between; {gpu_hours_idle} unused",
    advice=(
        "Let reading, preprocessing and checkpoints overlap with GPU work: more loader "
        "processes, prefetching, "
        "asynchronous checkpoints, input on fast storage."
    ),
    needs=(ANY_ACTIVITY,),
    decide=decide,
    condition=(pl.col("temporal_imbalance") >= threshold("temporal_imbalance"))
    & may_idle(60.0 * PERIODS * 2),
)
