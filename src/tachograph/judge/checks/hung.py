"""Work on all GPUs stopped at some time and never came back."""

from __future__ import annotations

from tachograph.catalog.units import text
from tachograph.judge.activity import ENOUGH_MINUTES
from tachograph.judge.check import ANY_ACTIVITY, Check, CheckedJob, Found, Unmeasured


def decide(job: CheckedJob) -> Found | None:
    """Return that no GPU worked in the last `idle_minutes` or more, though they had worked before."""
    activity = job.activity(idle_s=60 * job.thresholds.idle_minutes)
    if activity is None:
        return None
    begin, end = activity.last_busy + 1, activity.last + 1
    if end - begin < job.thresholds.idle_minutes or activity.measured_share(begin, end) < ENOUGH_MINUTES:
        return None
    stopped_s = begin * 60.0
    elapsed = job.number("elapsed_s")
    idle_s = min(end * 60.0, elapsed or end * 60.0) - stopped_s
    return Found(
        f"The GPUs stopped working {text(stopped_s, 's')} after the start; the job went on for "
        f"{text(idle_s, 's')} without using them{job.so_far}.",
        job.evidence(
            "elapsed_s",
            stopped_after_s=stopped_s,
            idle_s=idle_s,
            gpu_hours_idle=job.gpu_hours(idle_s),
            stopped_at_unix_s=job.unix_s(stopped_s),
        ),
        begin=job.time(stopped_s),
        end=job.time(stopped_s + idle_s),
    )


ADVICE = (
    "Look at the output of that time: a crashed or waiting process, a deadlock, a full disk, or work on the CPU that "
    "could run in a job of its own. A time limit inside the program ends a hang earlier."
)

CHECK = Check(
    "hung",
    family="hang",
    severity="hint",
    title="GPU work stopped and did not come back",
    brief="GPU work stopped after {stopped_after_s}; {gpu_hours_idle} lost",
    advice=ADVICE,
    evidence=("elapsed_s", "stopped_after_s", "idle_s", "gpu_hours_idle", "stopped_at_unix_s"),
    needs=(ANY_ACTIVITY,),
    hidden=Unmeasured("end"),
    decide=decide,
)
