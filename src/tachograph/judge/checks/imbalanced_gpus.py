"""The work was spread unevenly over the GPUs."""

from __future__ import annotations

import polars as pl

from tachograph.catalog.units import text
from tachograph.judge.activity import gpu_activity, gpu_labels
from tachograph.judge.check import Check, CheckedJob, Found, threshold


def decide(job: CheckedJob) -> Found | None:
    """Return Found if the activity of two GPUs or more was measured."""
    imbalance = job.measured("spatial_imbalance")
    measured = gpu_activity(job.summary, job.of_gpus.values)
    if measured is None:
        return None
    top, bottom = measured[:1], measured[-1:]
    high, low = float(top[0]["activity_mean"]), float(bottom[0]["activity_mean"])
    little = "; even the busiest did little" if high < job.thresholds.low_util else ""
    return Found(
        f"Imbalance across GPUs is {text(imbalance, 'ratio')} (0: all alike); means run from "
        f"{text(low, 'fraction')} "
        f"({gpu_labels(bottom, of=measured)}) to {text(high, 'fraction')} "
        f"({gpu_labels(top, of=measured)}){little}.",
        job.evidence("spatial_imbalance", "gpus", busiest_gpu_mean=high, idlest_gpu_mean=low),
    )


CHECK = Check(
    "imbalanced_gpus",
    family="imbalance",
    severity="hint",
    title="The work was spread unevenly over the GPUs",
    causes=("imbalance",),
    brief="Uneven work: GPUs between {idlest_gpu_mean} and {busiest_gpu_mean}",
    advice=(
        "Check how work is divided: equal shares per process, one process per GPU, no serial "
        "part on one of them. "
        "If GPUs take turns, fewer of them do the same work. If even the busiest does little, "
        "find out what it "
        "waits for, "
        "with a profiler on a short run."
    ),
    needs=("gpu_util",),
    decide=decide,
    condition=pl.col("spatial_imbalance") >= threshold("spatial_imbalance"),
)
