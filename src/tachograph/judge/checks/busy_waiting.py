"""At the end the GPUs looked busy and did no work: they waited for each other.

Source: a hung collective operation shows utilisation near 100 % with arithmetic and memory traffic
near zero and power near idle. Without these counters with low confidence, by power that fell and
stayed low for an hour.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from tachograph.catalog.units import text
from tachograph.judge.activity import ENOUGH_MINUTES, number
from tachograph.judge.check import Check, CheckedJob, Found
from tachograph.judge.classes.series import board_power_w
from tachograph.judge.classes.work_level import (
    PINNED,
    WAITING,
    WORKING,
    MinuteColumns,
    low_is_usual,
    work_levels,
)

LOOKS_BUSY = 0.9  # utilisation of at least one GPU (a crashed process leaves its own at 0)
NO_WORK = 0.01  # arithmetic and memory traffic of every GPU stay below
WORK_BEFORE = 0.05  # memory traffic or arithmetic in some minute before
BY_POWER = 60.0  # minutes, where power alone shows it: copies and evaluation take less, mostly


def decide(job: CheckedJob) -> Found | None:
    """Return Found if GPUs looked busy without work for the last `idle_minutes` or more.

    Needs gpu_util, tensor_active and dram_active per minute, or gpu_util and power_w.
    """
    if not job.of_minutes.height:
        return None
    if np.isnan(job.of_minutes.array("busy")).all():
        return _by_power(job)
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
    return _finding(job, begin * 60.0, until_s=(last + 1) * 60.0, power=power, before=before)


def _by_power(job: CheckedJob) -> Found | None:
    """Return Found if power fell and stayed low at full utilisation, for BY_POWER or more."""
    if None in job.of_gpus.values("power_w_mean"):
        return None  # what a GPU did whose power is not known decides
    column = job.of_minutes.array
    minute, util = column("minute"), column("gpu_util")
    minutes = MinuteColumns(
        util=util,
        work=column("work"),
        sm=column("sm_active"),
        memory=column("mem_copy_util"),
        power_w=column("highest_power_w"),
        pcie=column("mean_pcie"),
        nvlink=column("mean_nvlink"),
    )
    board_w = np.array([board_power_w(job.summary.get("gpu_model")) or np.nan], np.float32)
    level = work_levels(minutes, np.array([0, len(util)]), board_w)
    waits = (util >= PINNED) & (level < WAITING)
    # any other minute that was measured may be work
    worked = np.flatnonzero(~waits & ~np.isnan(util))
    if not worked.size:
        return None
    begin, last = int(minute[worked[-1]]) + 1, int(minute[~np.isnan(util)][-1])
    waiting = waits & (minute >= begin)
    least = max(BY_POWER, ENOUGH_MINUTES * (last + 1 - begin))
    if np.count_nonzero(waiting) < least or low_is_usual(level, util, waiting):
        return None
    watts = column("mean_power_w")
    found = _finding(
        job,
        begin * 60.0,
        until_s=(last + 1) * 60.0,
        power=float(np.nanmean(watts[waiting])),
        before=float(np.nanmean(watts[level >= WORKING])),
        what="so little power that they probably waited for each other",
    )
    return replace(found, confidence="low")


def _mean_power(series: pl.DataFrame) -> float | None:
    return number(series.select(pl.col("power_w").mean()).row(0, named=True), "power_w")


def _finding(
    job: CheckedJob,
    stopped_s: float,
    *,
    until_s: float,
    power: float | None,
    before: float | None,
    what: str = "almost no arithmetic or memory traffic",
) -> Found:
    idle_s = job.length_s(stopped_s, until_s)
    watts = ""
    if power is not None and before is not None:
        watts = f", at {text(power, 'W')} per GPU instead of {text(before, 'W')}"
    return Found(
        f"From {text(stopped_s, 's')} after the start, for {text(idle_s, 's')}{job.so_far}, "
        "GPUs showed "
        f"{text(LOOKS_BUSY, 'fraction')} utilisation or more with {what}{watts}.",
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
    condition=pl.col("gpu_util_max") >= LOOKS_BUSY,
)
