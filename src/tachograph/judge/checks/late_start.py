"""The GPUs waited a long time before the first work."""

from __future__ import annotations

from tachograph.catalog.units import text
from tachograph.judge.activity import ENOUGH_MINUTES
from tachograph.judge.check import ANY_ACTIVITY, Check, CheckedJob, Found, Unmeasured


def decide(job: CheckedJob) -> Found | None:
    """Return that no GPU worked in the first `idle_minutes` or more."""
    activity = job.activity(idle_s=60 * job.thresholds.idle_minutes)
    if activity is None:
        return None
    first = activity.first_busy
    if first < job.thresholds.idle_minutes or activity.measured_share(0, first) < ENOUGH_MINUTES:
        return None
    idle_s = first * 60.0
    elapsed = job.number("elapsed_s")
    share = "" if not elapsed else f", {text(min(1.0, idle_s / elapsed), 'fraction')} of the run"
    return Found(
        f"No GPU worked in the first {text(idle_s, 's')}{share}.",
        job.evidence("elapsed_s", started_after_s=idle_s, gpu_hours_idle=job.gpu_hours(idle_s)),
        begin=job.time(0.0),
        end=job.time(idle_s),
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
    brief="No GPU work for the first {started_after_s}; {gpu_hours_idle} lost",
    advice=ADVICE,
    evidence=("elapsed_s", "started_after_s", "gpu_hours_idle"),
    needs=(ANY_ACTIVITY,),
    hidden=Unmeasured("begin"),
    decide=decide,
)
