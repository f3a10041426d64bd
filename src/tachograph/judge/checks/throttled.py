"""Clocks were lowered, for heat or for power."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tachograph.catalog.config import Thresholds
from tachograph.catalog.units import text
from tachograph.judge.checks.evidence import evidence_of, number
from tachograph.judge.finding import Finding

OFTEN = 0.1  # share of samples from which it is worth a word
HEAT, HARDWARE, POWER = 0x20 | 0x40, 0x8, 0x4 | 0x80  # bits of DCGM_FI_DEV_CLOCK_THROTTLE_REASONS


def throttled(
    summary: Mapping[str, Any], gpus: pl.DataFrame, minutes: pl.DataFrame, thresholds: Thresholds
) -> Finding | None:
    """Return the finding that clocks were lowered for heat (problem) or at the power limit (note) in many samples."""
    share, bits = number(summary, "throttle_reasons_mean"), number(summary, "throttle_reasons_max")
    if share is None or bits is None or share < OFTEN:
        return None
    seen = int(bits)
    reasons = [
        name
        for mask, name in ((HEAT, "heat"), (HARDWARE, "a hardware slowdown"), (POWER, "the power limit"))
        if seen & mask
    ]
    if not reasons:
        return None
    hot = bool(seen & (HEAT | HARDWARE))
    temperature = number(summary, "gpu_temp_c_max")
    degrees = "" if temperature is None or not hot else f" The highest temperature was {text(temperature, 'C')}."
    return Finding(
        "throttled",
        "problem" if hot else "note",
        f"Clocks were lowered because of {' and '.join(reasons)}",
        f"In {text(share, 'fraction')} of the samples clocks were lowered; "
        f"reasons seen: {', '.join(reasons)}.{degrees}",
        "Tell the support staff of your site: cooling or power supply of the node may need attention. "
        "Your program is not the cause."
        if hot
        else None,
        evidence_of(summary, "gpu_temp_c_max" if hot else "power_w_mean", "power_w_mean", throttled_fraction=share),
    )
