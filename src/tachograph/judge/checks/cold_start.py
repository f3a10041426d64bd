"""cold_start: nothing happened for a long time after the start, then the job worked.

With high confidence by the published definition, an hour without change: Matveev, Setyaev, Voevodin
(2025); from GPU telemetry: ours. With low confidence where no GPU worked in the first
`idle_minutes`, and without counters of work where utilisation was full at little power.
"""

from __future__ import annotations

from tachograph.catalog.units import text
from tachograph.judge.activity import ENOUGH_MINUTES, so_far
from tachograph.judge.check import ANY_ACTIVITY, CheckedJob, Found, class_check, may_idle, threshold
from tachograph.judge.classes.characteristics import FIRST_WORK
from tachograph.judge.classes.hang import HangCase, HangPlace, hang_class, signs, worked_at
from tachograph.judge.classes.kernel import BEGIN


def decide(job: CheckedJob) -> Found | None:
    """Return Found if no GPU worked in the first `idle_minutes` or more."""
    activity = job.activity
    if activity is None:
        return None
    first = activity.first_busy
    if first < job.thresholds.idle_minutes or activity.measured_share(0, first) < ENOUGH_MINUTES:
        return None
    idle_s = first * 60.0
    elapsed = job.number("elapsed_s")
    share = "" if not elapsed else f", {text(min(1.0, idle_s / elapsed), 'fraction')} of the run"
    return job.stop(f"No GPU worked in the first {text(idle_s, 's')}{share}.", 0.0, idle_s)


def _found(case: HangCase) -> str:
    share = text(min(1.0, case.end / case.minutes), "fraction")
    what = "stayed flat" if case.form.host else "idle"
    first = text(case.end * 60, "s")
    if case.by_level:
        message = f"for the first {first}, {share} of the run{so_far(case.row)}: {signs(case)}"
        return f"{'Probably no' if case.likely else 'No'} work {message}."
    return (
        f"No work for the first {first}, {share} of the run{so_far(case.row)} "
        f"({case.tally} {what})."
    )


def _none(case: HangCase) -> str:
    worked = worked_at(case)
    if case.form.host:
        return f"No: {case.tally} stayed flat for the first {case.long} and not afterwards."
    if worked is None:
        return f"No: the GPUs did no work{so_far(case.row) or ' at all'}, so none started late."
    if worked[0] == 0:
        return "No: a GPU was in use from the start."
    if worked[0] < case.form.limits.hang:
        idle = (
            f"GPU activity stayed under {text(FIRST_WORK, 'fraction')} for the first "
            f"{text(worked[0] * 60, 's')}"
        )
        return f"No: {idle}; a cold start is {case.long} or more."
    return f"No: {case.tally} were idle for the first {case.long} and not afterwards."


COLD_START = hang_class(
    HangPlace(BEGIN, "a cold start", _found, _none),
    "cold_start",
    "hint",
    "No work for a long time after the start",
    host=(
        "l1_misses_per_s",
        "llc_misses_per_s",
        "cpu_user",
        "network_rx_bytes_per_s",
        "network_tx_packets_per_s",
    ),
)

CHECK = class_check(
    COLD_START,
    family="startup",
    advice=(
        "Do what needs no GPU (downloads, unpacking, compiling, reading input) in a CPU job "
        "before, keep containers "
        "and environments on fast storage, and cache what each start computes again."
    ),
    causes=("cold_start",),
    brief="No work for the first {interval_s}; {gpu_hours_idle} lost",
    needs=(ANY_ACTIVITY,),
    decide=decide,
    condition=may_idle(60 * threshold("idle_minutes")),
)
