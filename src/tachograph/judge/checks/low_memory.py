"""A GPU with large memory was requested and little of it used."""

from __future__ import annotations

import re

import polars as pl

from tachograph.catalog.units import text
from tachograph.judge.check import Check, CheckedJob, Found, threshold

_TIER = re.compile(r"(\d+)\s*g", re.IGNORECASE)
LARGE_GB = 64  # a request from here on is one for large memory


def decide(job: CheckedJob) -> Found | None:
    """Return Found if the requested memory tier is a large one."""
    peak = job.measured("hbm_peak_fraction")
    tier = _TIER.search(job.summary["hbm_request"] or "")
    if tier is None or int(tier[1]) < LARGE_GB:
        return None
    used = job.number("hbm_used_mib_max")
    amount = "" if used is None else f" ({text(used, 'MiB')})"
    return Found(
        (
            f"GPUs with {tier[1]} GB were requested; at the peak{job.so_far} "
            f"{text(peak, 'fraction')}{amount} was used."
        ),
        job.evidence("hbm_peak_fraction", "hbm_used_mib_max", "hbm_mib"),
    )


CHECK = Check(
    "low_memory",
    family="requested memory",
    severity="hint",
    title="Large GPU memory was requested and hardly used",
    brief="Large GPU memory requested, {hbm_peak_fraction} used at the peak",
    advice=(
        "Leave the memory constraint out: GPUs with less memory may be free sooner. "
        "Keep it if the next runs will be larger."
    ),
    needs=("hbm_used_mib",),
    decide=decide,
    condition=(pl.col("hbm_peak_fraction") < threshold("low_hbm_fraction"))
    & pl.col("hbm_request").is_not_null(),
)
