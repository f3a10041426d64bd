"""job_hang: the job worked, then nothing changed any more until its end.

With high confidence by the published definition, an hour without change: Matveev, Setyaev, Voevodin
(2025); from GPU telemetry: ours; a hung collective operation (NCCL) shows utilisation near 100 %
with power near idle and almost no arithmetic or memory traffic. With low confidence where no GPU
worked for `idle_minutes` at the end, and without such counters where power fell for an hour and
utilisation did not.
"""

from __future__ import annotations

from tachograph.catalog.units import text
from tachograph.judge.activity import ENOUGH_MINUTES, so_far
from tachograph.judge.check import ANY_ACTIVITY, CheckedJob, Found, class_check, may_idle, threshold
from tachograph.judge.classes.hang import HangCase, HangPlace, hang_class, signs, worked_at
from tachograph.judge.classes.kernel import END, UNUSED
from tachograph.judge.classes.series import board_power_w


def decide(job: CheckedJob) -> Found | None:
    """Return Found if no GPU worked in the last `idle_minutes` or more, after earlier work."""
    activity = job.activity
    if activity is None:
        return None
    begin, end = activity.last_busy + 1, activity.last + 1
    if (
        end - begin < job.thresholds.idle_minutes
        or activity.measured_share(begin, end) < ENOUGH_MINUTES
    ):
        return None
    stopped_s = begin * 60.0
    idle_s = job.length_s(stopped_s, end * 60.0)
    return job.stop(
        f"The GPUs stopped working {text(stopped_s, 's')} after the start; the job went on for "
        f"{text(idle_s, 's')} without using them{job.so_far}.",
        stopped_s,
        idle_s,
    )


def _found(case: HangCase) -> str:
    span = f"from {text(case.begin * 60, 's')} after the start, for {case.lasted}"
    until = so_far(case.row) or " until the end"
    if case.form.host:
        return f"Nothing changed on the nodes {span}{until}: {case.tally} stayed flat."
    if case.by_level:
        what = "were busy-waiting" if case.spinning else "were idle"
        return f"The GPUs {'probably hung' if case.likely else what} {span}{until}: {signs(case)}."
    then, before = case.mean_inside("power"), case.mean_outside("power")
    power = ""
    if then is not None and before is not None:
        power = (
            f", power {text(then, 'fraction')} of {_highest_power(case)}, "
            f"before that {text(before, 'fraction')}"
        )
    if case.spinning:
        util = case.mean_inside("gpu_util")  # MIG slices have none
        busy = "seemingly busy" if util is None else f"utilisation {text(util, 'fraction')}"
        message = (
            f"The GPUs were busy-waiting {span}{until}: {busy} with almost no "
            "arithmetic or memory traffic"
        )
        return f"{message}{power} ({case.tally} idle)."
    return f"The GPUs were idle {span}{until}{power} ({case.tally} idle)."


def _highest_power(case: HangCase) -> str:
    """What the shares of power are of, see `gpu_series`."""
    known = board_power_w(case.row.get("gpu_model")) is not None
    return "the board power" if known else "the job's highest power"


def _none(case: HangCase) -> str:
    if case.form.host:
        return f"No: {case.tally} stayed flat for {case.long} to the end after a time of work."
    if len(case.with_vote(UNUSED)) and not case.with_vote(0, 1, 2):
        return "No: its GPUs did no work, so none stopped."
    worked = worked_at(case)
    if worked is not None and case.minutes - 1 - worked[1] < case.form.limits.hang:
        left = case.minutes - 1 - worked[1]
        when = "to its end" if left <= 1 else f"until {text(left * 60, 's')} before its end"
        when = when.replace("its end", "now") if so_far(case.row) else when
        return f"No: its GPUs were in use {when}; a hang is {case.long} or more without work."
    return f"No: {case.tally} were idle for {case.long} to the end after a time of work."


JOB_HANG = hang_class(
    HangPlace(END, "a hang", _found, _none),
    "job_hang",
    "problem",
    "Work stopped and did not resume",
    host=(
        "l1_misses_per_s",
        "llc_misses_per_s",
        "network_rx_packets_per_s",
        "network_tx_bytes_per_s",
        "load_average",
    ),
)

CHECK = class_check(
    JOB_HANG,
    family="hang",
    advice=(
        "Look at the output of that time: a crashed or waiting process, a deadlock, a full "
        "disk, or work on the CPU "
        "that could run in a job of its own. A time limit inside the program ends a hang "
        "earlier. Where GPUs look busy "
        "without doing work, set a timeout for collective operations (NCCL)."
    ),
    causes=("hung",),
    brief="Work stopped after {interval_begin_s}; {gpu_hours_idle} lost",
    needs=(ANY_ACTIVITY,),
    decide=decide,
    condition=may_idle(60 * threshold("idle_minutes")),
)
