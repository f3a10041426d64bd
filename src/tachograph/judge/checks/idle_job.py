"""All GPUs of the job did nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tachograph.catalog.config import Thresholds
from tachograph.catalog.units import plural, text
from tachograph.judge.activity import ACTIVITY_NAMES, activity_counter, evidence_of, number, so_far
from tachograph.judge.check import ANY_ACTIVITY, Check, Found


def decide(
    summary: Mapping[str, Any], gpus: pl.DataFrame, minutes: pl.DataFrame, thresholds: Thresholds
) -> Found | None:
    """Return that mean activity over all GPUs is below `idle_util`; None where it was not measured."""
    counter = activity_counter(summary)
    if counter is None:
        return None
    mean, peak = number(summary, f"{counter}_mean"), number(summary, f"{counter}_max")
    if mean is None or mean >= thresholds.idle_util:
        return None
    seen = number(summary, "gpus_seen") or number(summary, "gpus") or 1
    hours = number(summary, "gpu_hours")
    if peak == 0:
        what = (
            f"{ACTIVITY_NAMES[counter].capitalize()} of {plural(seen, 'GPU')} was 0 % in every sample{so_far(summary)}"
        )
    else:
        level = f"{text(mean, 'fraction')} on average (at most {text(peak, 'fraction')})"
        what = f"{ACTIVITY_NAMES[counter].capitalize()} of {plural(seen, 'GPU')} was {level}{so_far(summary)}"
    return Found(
        f"{what}: {text(hours, 'h')} of GPU time passed without work." if hours is not None else f"{what}.",
        evidence_of(summary, "gpu_hours", activity_mean=mean, activity_max=peak, gpus_seen=seen, gpu_hours_idle=hours),
    )


CHECK = Check(
    "idle_job",
    family="idle GPUs",
    severity="problem",
    title="The GPUs were not used",
    advice=(
        "Check that the program was built for GPUs and found them (for PyTorch: torch.cuda.is_available()); "
        "if it needs none, ask for CPU nodes."
    ),
    evidence=("gpu_hours", "activity_mean", "activity_max", "gpus_seen", "gpu_hours_idle"),
    needs=(ANY_ACTIVITY,),
    decide=decide,
)
