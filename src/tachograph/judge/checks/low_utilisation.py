"""The GPUs worked, but little."""

from __future__ import annotations

from tachograph.catalog.units import text
from tachograph.judge.activity import ACTIVITY_NAMES, activity_mean
from tachograph.judge.check import ANY_ACTIVITY, Check, CheckedJob, Found, threshold
from tachograph.judge.checks.idle_job import WITHOUT_WORK_ADVICE

ROOM = 0.5  # a memory peak below this leaves room for larger batches


def decide(job: CheckedJob) -> Found:
    """Return what the GPUs did."""
    counter = job.counter
    mean = job.measured(f"{counter}_mean")
    zero = job.number("zero_util_fraction")
    of_engine = counter != "gpu_util"
    what = ACTIVITY_NAMES[counter].capitalize() if of_engine else "GPU utilisation"
    nothing = job.number(f"{counter}_max") == 0
    if nothing:
        sentence = f"{what} was 0 % in every sample{job.so_far}"
        coverage = job.number("coverage")
        if coverage is not None and coverage < 1:
            sentence += ", though not all of its GPU time was measured"
    else:
        sentence = f"{what} was {text(mean, 'fraction')} on average{job.so_far}"
        if zero:
            sentence += f"; in {text(zero, 'fraction')} of the samples a GPU did nothing at all"
    peak = job.number("hbm_peak_fraction")
    if peak is not None and peak < ROOM:
        sentence += f"; the memory peak was {text(peak, 'fraction')}"
    return Found(
        f"{sentence}.",
        job.evidence(
            "gpu_util_mean",
            "gpu_hours",
            "hbm_peak_fraction",
            activity_mean=mean if of_engine else None,
            idle_fraction=zero,
        ),
        advice=WITHOUT_WORK_ADVICE if nothing else None,
    )


CHECK = Check(
    "low_utilisation",
    family="low use",
    severity="hint",
    title="The GPUs were rarely busy",
    causes=("idle",),
    brief="The GPUs were busy {gpu_util_mean} of the time",
    advice=(
        "Find out what the GPUs wait for, with a profiler on a short run: input, the CPU, "
        "communication, or many small "
        "kernels. Where memory has room, use larger batches or problems. If nothing helps, "
        "and there are several GPUs, try fewer."
    ),
    needs=(ANY_ACTIVITY,),
    decide=decide,
    condition=activity_mean() < threshold("low_util"),
)
