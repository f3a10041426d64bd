"""At the end the GPUs looked busy and did no work: they waited for each other.

Source: a hung collective operation shows utilisation near 100 % with arithmetic and memory traffic near zero
and power near idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from tachograph.catalog.config import Thresholds
from tachograph.catalog.units import text
from tachograph.judge.activity import ENOUGH_MINUTES, evidence_of, moment, number, so_far
from tachograph.judge.check import Check, Found, Unmeasured

LOOKS_BUSY = 0.9  # utilisation of at least one GPU (a crashed process leaves its own at 0)
NO_WORK = 0.01  # arithmetic and memory traffic of every GPU stay below
WORK_BEFORE = 0.05  # memory traffic or arithmetic in some minute before


def decide(
    summary: Mapping[str, Any], gpus: pl.DataFrame, minutes: pl.DataFrame, thresholds: Thresholds
) -> Found | None:
    """Return that for the last `idle_minutes` or more GPUs looked busy and none did work.

    Needs gpu_util, tensor_active and dram_active per minute; None without.
    """
    if (number(summary, "gpu_util_max") or 0) < LOOKS_BUSY or minutes.is_empty():
        return None
    busy, work = minutes["busy"].to_numpy(), minutes["work"].to_numpy()  # null has become NaN
    at_work = (busy < LOOKS_BUSY) | (work >= NO_WORK)
    if not (at_work & (work >= WORK_BEFORE)).any():
        return None
    minute = minutes["minute"].to_numpy()
    measured = ~np.isnan(busy)
    begin, last = int(minute[at_work][-1]) + 1, int(minute[measured][-1])
    waiting = measured & (minute >= begin)
    if np.count_nonzero(waiting) < max(thresholds.idle_minutes, ENOUGH_MINUTES * (last + 1 - begin), 1):
        return None
    power, before = (_mean_power(minutes.filter(pl.Series(part))) for part in (waiting, at_work))
    return _finding(summary, begin * 60.0, idle_s=(last + 1 - begin) * 60.0, power=power, before=before)


def _mean_power(series: pl.DataFrame) -> float | None:
    return number(series.select(pl.col("power_w").mean()).row(0, named=True), "power_w")


def _finding(
    summary: Mapping[str, Any], stopped_s: float, *, idle_s: float, power: float | None, before: float | None
) -> Found:
    watts = ""
    if power is not None and before is not None:
        watts = f", at {text(power, 'W')} per GPU instead of {text(before, 'W')}"
    held, start = number(summary, "gpus") or number(summary, "gpus_seen"), summary.get("start")
    return Found(
        f"From {text(stopped_s, 's')} after the start, for {text(idle_s, 's')}{so_far(summary)}, GPUs showed "
        f"{text(LOOKS_BUSY, 'fraction')} utilisation or more with next to no arithmetic and memory traffic{watts}.",
        evidence_of(
            {},
            stopped_after_s=stopped_s,
            idle_s=idle_s,
            stopped_at_unix_s=None if start is None else start.timestamp() + stopped_s,
            power_then_w=power,
            power_before_w=before,
            gpu_hours_idle=None if held is None else idle_s * held / 3600,
        ),
        begin=moment(summary, stopped_s),
        end=moment(summary, stopped_s + idle_s),
    )


CHECK = Check(
    "busy_waiting",
    family="hang",
    severity="problem",
    title="The GPUs looked busy but did no work",
    advice=(
        "This is what a hung collective operation (NCCL) looks like: one process has stopped or left and the others "
        "wait. Look at the output of that time; set a timeout for collective operations."
    ),
    evidence=("stopped_after_s", "idle_s", "stopped_at_unix_s", "power_then_w", "power_before_w", "gpu_hours_idle"),
    needs=("gpu_util", "tensor_active", "dram_active"),
    hidden=Unmeasured("end"),
    decide=decide,
)
