"""stall: the job stood still for a long time between two times of work.

With high confidence by the published definition, an hour without change: Matveev, Setyaev, Voevodin
(2025); from GPU telemetry: ours. With low confidence where no GPU worked for `idle_minutes`, and
without counters of work where power fell for an hour and utilisation did not.
"""

from __future__ import annotations

from tachograph.catalog.units import text
from tachograph.judge.activity import idle_periods
from tachograph.judge.check import ANY_ACTIVITY, CheckedJob, Found, class_check, may_idle, threshold
from tachograph.judge.classes.hang import HangCase, HangPlace, hang_class, signs, worked_at
from tachograph.judge.classes.kernel import MIDDLE


def decide(job: CheckedJob) -> Found | None:
    """Return Found if no GPU worked for `idle_minutes` or more between work: the longest period."""
    activity = job.activity
    if activity is None:
        return None
    long = [period for period in idle_periods(activity) if period[1] >= job.thresholds.idle_minutes]
    if not long:
        return None
    begin, length = max(long, key=lambda period: period[1])
    total_s = 60.0 * sum(minutes for _, minutes in long)
    times = "once" if len(long) == 1 else f"{len(long)} times"
    return job.stop(
        f"Between periods of work the GPUs stood still {times}, the longest for "
        f"{text(length * 60, 's')} from "
        f"{text(begin * 60, 's')} after the start; {text(total_s, 's')} in all.",
        begin * 60.0,
        length * 60.0,
    )


def _found(case: HangCase) -> str:
    who, what = ("The nodes", "stayed flat") if case.form.host else ("The GPUs", "idle")
    begin, length = text(case.begin * 60, "s"), case.lasted
    probably = "probably " if case.likely else ""
    message = (
        f"{who} {probably}stood still from {begin} after the start, for {length}, "
        "with work before and after"
    )
    if case.by_level:
        return f"{message}: {signs(case)}."
    return f"{message} ({case.tally} {what})."


def _none(case: HangCase) -> str:
    if case.form.host:
        return f"No: {case.tally} stayed flat for {case.long} between work."
    if worked_at(case) is None:
        return "No: its GPUs did no work, so none stood still in between."
    longest = int(case.form.idle_times.longest[case.place])
    if longest < case.form.limits.hang:
        idle = f"idle for at most {text(longest * 60, 's')}" if longest else "never idle"
        return f"No: between work its GPUs were {idle}; a stall is {case.long} or more."
    return f"No: {case.tally} were idle for {case.long} with work before and after."


STALL = hang_class(
    HangPlace(MIDDLE, "a stall", _found, _none),
    "stall",
    "hint",
    "Work stood still for a long time",
    host=(
        "l1_misses_per_s",
        "llc_misses_per_s",
        "network_rx_bytes_per_s",
        "network_tx_packets_per_s",
        "fs_read_operations_per_s",
        "fs_write_bytes_per_s",
    ),
)

CHECK = class_check(
    STALL,
    family="input",
    advice=(
        "Look at the output of that time: checkpoints or input on slow storage, waiting for "
        "another process or a "
        "service, or a phase on the CPU that could run in a job of its own."
    ),
    causes=("hung",),
    brief="Work stood still for up to {interval_s}; {gpu_hours_idle} lost",
    needs=(ANY_ACTIVITY,),
    decide=decide,
    condition=may_idle(60 * threshold("idle_minutes")),
)
