"""All GPUs of the job did nothing."""

from __future__ import annotations

from tachograph.catalog.units import plural, text
from tachograph.judge.activity import ACTIVITY_NAMES, activity_mean
from tachograph.judge.check import ANY_ACTIVITY, Check, CheckedJob, Found, threshold

HELD_MIB = 2048.0  # more than a context and libraries take: a program has loaded something
WITHOUT_WORK_ADVICE = (
    "Check that the program was built for GPUs and found them (for PyTorch: "
    "torch.cuda.is_available()); if it needs none, request CPU nodes."
)
WAITING_ADVICE = (
    "The GPUs hold a loaded program that waits, as a served model or an open notebook does. "
    "Let several share a GPU "
    "(MPS, MIG slices, a server that loads many models), or release it after a time without "
    "requests (scale to zero)."
)


def decide(job: CheckedJob) -> Found:
    """Return how little the GPUs did, and whether they held memory."""
    counter = job.counter
    mean, peak = job.measured(f"{counter}_mean"), job.number(f"{counter}_max")
    seen = job.number("gpus_seen") or job.number("gpus") or 1
    if peak == 0:
        what = (
            f"{ACTIVITY_NAMES[counter].capitalize()} of {plural(seen, 'GPU')} was 0 % in "
            f"every sample{job.so_far}"
        )
    else:
        level = f"{text(mean, 'fraction')} on average (at most {text(peak, 'fraction')})"
        what = (
            f"{ACTIVITY_NAMES[counter].capitalize()} of {plural(seen, 'GPU')} was "
            f"{level}{job.so_far}"
        )
    used = job.number("hbm_used_mib_max")
    waiting = used is not None and used >= HELD_MIB
    held = f" They held up to {text(used, 'MiB')} of memory each." if waiting else ""
    return Found(
        f"{what}.{held}",
        job.evidence(
            "gpu_hours",
            "hbm_used_mib_max",
            activity_mean=mean,
            activity_max=peak,
            gpus_seen=seen,
        ),
        advice=WAITING_ADVICE if waiting else None,
    )


CHECK = Check(
    "idle_job",
    family="idle job",
    severity="problem",
    title="The GPUs were not used",
    causes=("never_used", "hung", "cold_start", "idle"),
    brief="The GPUs were idle; {gpu_hours_idle} unused",
    advice=WITHOUT_WORK_ADVICE,
    needs=(ANY_ACTIVITY,),
    decide=decide,
    condition=activity_mean() < threshold("idle_util"),
)
