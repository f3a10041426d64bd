"""The GPUs waited a long time before the first work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tachograph.catalog.config import Thresholds
from tachograph.catalog.units import text
from tachograph.judge.activity import (
    ENOUGH_MINUTES,
    activity_of_idle,
    evidence_of,
    gpu_hours,
    moment,
    number,
)
from tachograph.judge.check import ANY_ACTIVITY, Check, Found, Unmeasured


def decide(
    summary: Mapping[str, Any], gpus: pl.DataFrame, minutes: pl.DataFrame, thresholds: Thresholds
) -> Found | None:
    """Return that no GPU worked in the first `idle_minutes` or more."""
    activity = activity_of_idle(summary, minutes, thresholds)
    if activity is None:
        return None
    first = activity.first_busy
    if first < thresholds.idle_minutes or activity.measured_share(0, first) < ENOUGH_MINUTES:
        return None
    idle_s = first * 60.0
    elapsed = number(summary, "elapsed_s")
    share = "" if not elapsed else f", {text(min(1.0, idle_s / elapsed), 'fraction')} of the run"
    return Found(
        f"No GPU worked in the first {text(idle_s, 's')}{share}.",
        evidence_of(summary, "elapsed_s", started_after_s=idle_s, gpu_hours_idle=gpu_hours(summary, idle_s)),
        begin=moment(summary, 0.0),
        end=moment(summary, idle_s),
    )


ADVICE = (
    "Do what needs no GPU (downloads, unpacking, compiling, reading input) in a CPU job before, "
    "keep containers and environments on fast storage, and cache what each start computes again."
)

CHECK = Check(
    "late_start",
    family="startup",
    severity="hint",
    title="The GPUs waited a long time for their first work",
    advice=ADVICE,
    evidence=("elapsed_s", "started_after_s", "gpu_hours_idle"),
    needs=(ANY_ACTIVITY,),
    hidden=Unmeasured("begin"),
    decide=decide,
)
