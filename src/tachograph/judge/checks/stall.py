"""stall: the job stood still for a long time between two times of work.

Source: Matveev, Setyaev, Voevodin (2025); from GPU telemetry: ours.
"""

from __future__ import annotations

from collections.abc import Iterator

from tachograph.catalog.units import text
from tachograph.judge.check import Check
from tachograph.judge.checks.stalled import ADVICE
from tachograph.judge.classes.hang import HangCase, HangPlace, judge_hang, worked_at
from tachograph.judge.classes.inputs import ClassInput, JobClass
from tachograph.judge.classes.kernel import MIDDLE
from tachograph.judge.finding import Finding


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
    longest = int(case.form.rests.longest[case.place])
    if longest < case.form.limits.hang:
        return f"No: its GPUs rested for {text(longest * 60, 's')} at most; a stall is {case.long} or more."
    return f"No: {case.tally} were idle for {case.long} with work before and after."


PLACE = HangPlace(MIDDLE, "a stall", _found, _none)


def _judge(job_class: JobClass, form: ClassInput) -> Iterator[tuple[int, Finding]]:
    return judge_hang(PLACE, job_class, form)


STALL = JobClass(
    "stall",
    "hint",
    "The job stood still for a long time between work",
    _judge,
    gpu=("power", "sm_active", "tensor_active", "dram_active", "pcie", "nvlink"),
    host=(
        *("l1_misses_per_s", "llc_misses_per_s", "network_rx_bytes_per_s", "network_tx_packets_per_s"),
        *("fs_read_operations_per_s", "fs_write_bytes_per_s"),
    ),
    where=MIDDLE,
)

CHECK = Check(
    "stall",
    family="input",
    severity=STALL.severity,
    title=STALL.title,
    advice=ADVICE,
    evidence=(
        "interval_begin_s",
        "interval_s",
        "gpu_hours_idle",
        "voted_yes",
        "voted",
        "power_fraction_then",
        "power_fraction_otherwise",
        "gpu_util_then",
    ),
    hidden=None,
    job_class=STALL,
)
