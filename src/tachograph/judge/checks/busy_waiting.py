"""At the end the GPUs looked busy and did no work: they waited for each other.

Source: a hung collective operation shows utilisation near 100 % with arithmetic and memory traffic
near zero and power near idle.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from tachograph.catalog.units import text
from tachograph.judge.activity import ENOUGH_MINUTES, number
from tachograph.judge.check import Check, CheckedJob, Found

LOOKS_BUSY = 0.9  # utilisation of at least one GPU (a crashed process leaves its own at 0)
NO_WORK = 0.01  # arithmetic and memory traffic of every GPU stay below
WORK_BEFORE = 0.05  # memory traffic or arithmetic in some minute before


def decide(job: CheckedJob) -> Found | None:
    """Return Found if GPUs looked busy without work for the last `idle_minutes` or more.

    Needs gpu_util, tensor_active and dram_active per minute; None without.
    """
    if (job.number("gpu_util_max") or 0) < LOOKS_BUSY or not job.of_minutes.height:
        return None
    busy, work, minute = (job.of_minutes.array(name) for name in ("busy", "work", "minute"))
    at_work = (busy < LOOKS_BUSY) | (work >= NO_WORK)
    if not (at_work & (work >= WORK_BEFORE)).any():
        return None
    measured = ~np.isnan(busy)
    begin, last = int(minute[at_work][-1]) + 1, int(minute[measured][-1])
    waiting = measured & (minute >= begin)
    if np.count_nonzero(waiting) < max(
        job.thresholds.idle_minutes, ENOUGH_MINUTES * (last + 1 - begin), 1
    ):
        return None
    power, before = (
        _mean_power(job.minutes.filter(pl.Series(part))) for part in (waiting, at_work)
    )
    return _finding(job, begin * 60.0, idle_s=(last + 1 - begin) * 60.0, power=power, before=before)


def _mean_power(series: pl.DataFrame) -> float | None:
    return number(series.select(pl.col("power_w").mean()).row(0, named=True), "power_w")


def _finding(
    job: CheckedJob, stopped_s: float, *, idle_s: float, power: float | None, before: float | None
) -> Found:
    watts = ""
    if power is not None and before is not None:
        watts = f", at {text(power, 'W')} per GPU instead of {text(before, 'W')}"
    return Found(
        f"From {text(stopped_s, 's')} after the start, for {text(idle_s, 's')}{job.so_far}, "
        "GPUs showed "
        f"{text(LOOKS_BUSY, 'fraction')} utilisation or more with next to no arithmetic and "
        f"memory traffic{watts}.",
        job.evidence(
            stopped_after_s=stopped_s,
            idle_s=idle_s,
            power_then_w=power,
            power_before_w=before,
        ),
        begin=job.time(stopped_s),
        end=job.time(stopped_s + idle_s),
    )


CHECK = Check(
    "busy_waiting",
    family="hang",
    severity="problem",
    title="The GPUs looked busy but did no work",
    causes=("hung",),
    brief="The GPUs looked busy but did no work after {stopped_after_s}; {gpu_hours_idle} lost",
    advice=(
        "This is what a hung collective operation (NCCL) looks like: one process has stopped "
        "or left and the others "
        "wait. Look at the output of that time; set a timeout for collective operations."
    ),
    needs=("gpu_util", "tensor_active", "dram_active"),
    decide=decide,
)
