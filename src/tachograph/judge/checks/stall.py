"""stall: the job stood still for a long time between two times of work.

Source: Matveev, Setyaev, Voevodin (2025); from GPU telemetry: ours.
"""

from __future__ import annotations

from tachograph.catalog.units import text
from tachograph.judge.check import class_check
from tachograph.judge.checks.stalled import ADVICE
from tachograph.judge.classes.hang import HANG_EVIDENCE, HangCase, HangPlace, hang_class, worked_at
from tachograph.judge.classes.kernel import MIDDLE


def _found(case: HangCase) -> str:
    who, what = ("The nodes", "stayed flat") if case.form.host else ("The GPUs", "idle")
    begin, length = text(case.begin * 60, "s"), case.lasted
    message = f"{who} stood still from {begin} after the start, for {length}, with work before and after"
    return f"{message} ({case.tally} {what})."


def _none(case: HangCase) -> str:
    if case.form.host:
        return f"No: {case.tally} stayed flat for {case.long} between work."
    if worked_at(case) is None:
        return "No: its GPUs did no work, so none stood still in between."
    longest = int(case.form.idle_times.longest[case.place])
    if longest < case.form.limits.hang:
        return f"No: its GPUs were idle for {text(longest * 60, 's')} at most; a stall is {case.long} or more."
    return f"No: {case.tally} were idle for {case.long} with work before and after."


STALL = hang_class(
    HangPlace(MIDDLE, "a stall", _found, _none),
    "stall",
    "hint",
    "The job stood still for a long time between work",
    host=(
        *("l1_misses_per_s", "llc_misses_per_s", "network_rx_bytes_per_s", "network_tx_packets_per_s"),
        *("fs_read_operations_per_s", "fs_write_bytes_per_s"),
    ),
)

CHECK = class_check(
    STALL,
    family="input",
    advice=ADVICE,
    brief="Stood still for {interval_s}; {gpu_hours_idle} lost",
    evidence=HANG_EVIDENCE,
)
