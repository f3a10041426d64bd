"""Work on all GPUs stopped for a long time in the middle."""

from __future__ import annotations

from tachograph.catalog.units import text
from tachograph.judge.activity import idle_periods
from tachograph.judge.check import ANY_ACTIVITY, Check, CheckedJob, Found, Unmeasured


def decide(job: CheckedJob) -> Found | None:
    """Return that for `idle_minutes` or more, between work, no GPU worked: the longest such period."""
    activity = job.activity(idle_s=60 * job.thresholds.idle_minutes)
    if activity is None:
        return None
    long = [period for period in idle_periods(activity) if period[1] >= job.thresholds.idle_minutes]
    if not long:
        return None
    begin, length = max(long, key=lambda period: period[1])
    total_s = 60.0 * sum(minutes_ for _, minutes_ in long)
    times = "once" if len(long) == 1 else f"{len(long)} times"
    return Found(
        f"Between periods of work the GPUs stood still {times}, the longest for {text(length * 60, 's')} from "
        f"{text(begin * 60, 's')} after the start; {text(total_s, 's')} in all.",
        job.evidence(
            "elapsed_s",
            idle_periods=len(long),
            longest_idle_s=length * 60.0,
            idle_s=total_s,
            stopped_after_s=begin * 60.0,
            gpu_hours_idle=job.gpu_hours(total_s),
            stopped_at_unix_s=job.unix_s(begin * 60.0),
        ),
        begin=job.time(begin * 60.0),
        end=job.time((begin + length) * 60.0),
    )


ADVICE = (
    "Look at the output of that time: checkpoints or input on slow storage, waiting for another process "
    "or a service, or a phase on the CPU that could run in a job of its own."
)

CHECK = Check(
    "stalled",
    family="input",
    severity="hint",
    title="GPU work stood still for a long time",
    brief="GPU work stood still for {idle_s}; {gpu_hours_idle} lost",
    advice=ADVICE,
    evidence=(
        "elapsed_s",
        "idle_periods",
        "longest_idle_s",
        "idle_s",
        "stopped_after_s",
        "gpu_hours_idle",
        "stopped_at_unix_s",
    ),
    needs=(ANY_ACTIVITY,),
    hidden=Unmeasured("within"),
    decide=decide,
)
