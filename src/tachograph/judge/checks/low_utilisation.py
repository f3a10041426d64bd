"""The GPUs worked, but little."""

from __future__ import annotations

from tachograph.catalog.units import text
from tachograph.judge.activity import ACTIVITY_NAMES, activity_counter
from tachograph.judge.check import ANY_ACTIVITY, Check, CheckedJob, Found

ROOM = 0.5  # a memory peak below this leaves room for larger batches


def decide(job: CheckedJob) -> Found | None:
    """Return Found if mean activity is between `idle_util` and `low_util`; None: not measured."""
    counter = activity_counter(job.summary)
    if counter is None:
        return None
    mean = job.number(f"{counter}_mean")
    if mean is None or not job.thresholds.idle_util <= mean < job.thresholds.low_util:
        return None
    zero, hours = job.number("zero_util_fraction"), job.number("gpu_hours")
    lost = None if zero is None or hours is None else zero * hours
    of_engine = counter != "gpu_util"
    what = ACTIVITY_NAMES[counter].capitalize() if of_engine else "GPU utilisation"
    sentence = f"{what} was {text(mean, 'fraction')} on average{job.so_far}"
    if zero:
        sentence += f"; in {text(zero, 'fraction')} of the samples a GPU did nothing at all"
    peak = job.number("hbm_peak_fraction")
    if peak is not None and peak < ROOM:
        sentence += f"; the memory peak was {text(peak, 'fraction')}"
    return Found(
        f"{sentence}.",
        job.evidence(
            *("gpu_util_mean", "gpu_hours", "hbm_peak_fraction"),
            activity_mean=mean if of_engine else None,
            gpu_hours_idle=lost,
            idle_fraction=zero,
        ),
    )


CHECK = Check(
    "low_utilisation",
    family="low use",
    severity="hint",
    title="The GPUs were busy for a small part of the time",
    brief="The GPUs were busy {gpu_util_mean} of the time",
    advice=(
        "Find out what the GPUs wait for, with a profiler on a short run: input, the CPU, "
        "communication, or many small "
        "kernels. Where memory has room, use larger batches or problems. If nothing helps, "
        "and there are several GPUs, try fewer."
    ),
    needs=(ANY_ACTIVITY,),
    decide=decide,
)
