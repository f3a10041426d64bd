"""Clocks were lowered by heat or a hardware slowdown; power limit: rule power_throttling.

Decided from all samples of the job, and by the rule heat_throttling from those of one GPU.
"""

from __future__ import annotations

import polars as pl

from tachograph.catalog.devices import DEVICES_BY_NAME
from tachograph.catalog.units import text
from tachograph.judge.check import Check, CheckedJob, Found

OFTEN = 0.1  # share of samples from which it is worth a word
NEAR_LIMIT = 0.9  # highest power over the board's limit from which it was reached
HEAT, HARDWARE, POWER = 0x20 | 0x40, 0x8, 0x4 | 0x80  # bits of DCGM_FI_DEV_CLOCK_THROTTLE_REASONS


def decide(job: CheckedJob) -> Found | None:
    """Return Found if some clocks were lowered by heat or a hardware slowdown."""
    share, bits = job.measured("throttle_reasons_mean"), job.measured("throttle_reasons_max")
    if not int(bits) & (HEAT | HARDWARE):
        return None
    reasons = [
        name
        for mask, name in (
            (HEAT, "heat"),
            (HARDWARE, "a hardware slowdown"),
            (POWER, _power_reason(job)),
        )
        if int(bits) & mask
    ]
    temperature = job.number("gpu_temp_c_max")
    degrees = (
        "" if temperature is None else f" The highest temperature was {text(temperature, 'C')}."
    )
    return Found(
        f"In {text(share, 'fraction')} of the samples clocks were lowered; "
        f"reasons seen: {', '.join(reasons)}.{degrees}",
        job.evidence("gpu_temp_c_max", "power_w_mean", throttled_fraction=share),
    )


def _power_reason(job: CheckedJob) -> str:
    """Name the power limit with what is known of it: far below the board's it was another one."""
    highest = job.number("power_w_max")
    device = DEVICES_BY_NAME.get(job.summary.get("gpu_model") or "")
    limit = None if device is None else device.board_power_w
    if highest is None or limit is None:
        return "a power limit"
    if highest < NEAR_LIMIT * limit:
        drawn = f"{text(highest, 'W')} of {text(limit, 'W')}"
        return f"a power limit (highest power {drawn})"
    return "the power limit"


CHECK = Check(
    "throttled",
    family="clocks",
    severity="problem",
    title="Clocks were lowered for heat or a hardware slowdown",
    brief="Clocks were lowered for heat or a hardware slowdown, {throttled_fraction} of the time",
    advice=(
        "Report it to the support staff of your site: cooling or power supply of the node may "
        "need attention. "
        "Your program is not the cause."
    ),
    needs=("throttle_reasons",),
    decide=decide,
    condition=(pl.col("throttle_reasons_mean") >= OFTEN)
    & pl.col("throttle_reasons_max").is_not_null(),
)
