"""What a finding is, and what a rule that looks for one is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Protocol

import polars as pl

from tachograph.config import Thresholds

Severity = Literal["problem", "hint", "note"]
SEVERITIES: tuple[Severity, ...] = ("problem", "hint", "note")  # most urgent first

# what the evidence of findings holds: {name: (label, unit as units.text knows it, or "time" for seconds since 1970)}
EVIDENCE: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "activity_mean": ("Mean activity", "fraction"),
        "activity_max": ("Highest activity", "fraction"),
        "busiest_gpu_mean": ("Busiest GPU, mean", "fraction"),
        "idlest_gpu_mean": ("Least busy GPU, mean", "fraction"),
        "compute_fraction": ("Compute-bound samples", "fraction"),
        "coverage": ("Samples present", "fraction"),
        "dram_active_mean": ("Memory traffic (DRAM active), mean", "fraction"),
        "elapsed_s": ("Run time", "s"),
        "fp16_active_mean": ("FP16 pipe active, mean", "fraction"),
        "fp32_active_mean": ("FP32 pipe active, mean", "fraction"),
        "gpu_hours": ("GPU-hours", "h"),
        "gpu_hours_idle": ("GPU-hours without work", "h"),
        "gpu_temp_c_max": ("Highest temperature", "C"),
        "gpu_util_mean": ("GPU utilisation, mean", "fraction"),
        "gpus": ("GPUs allocated", "count"),
        "gpus_seen": ("GPUs with samples", "count"),
        "gpus_unused": ("GPUs without work", "count"),
        "gpus_affected": ("GPUs affected", "count"),
        "hbm_mib": ("Memory of one GPU", "MiB"),
        "hbm_peak_fraction": ("Peak of memory used", "fraction"),
        "hbm_used_mib_max": ("Peak of memory used", "MiB"),
        "idle_fraction": ("Share of the time without work", "fraction"),
        "idle_periods": ("Periods without work", "count"),
        "idle_s": ("Time without work", "s"),
        "longest_idle_s": ("Longest period without work", "s"),
        "memory_fraction": ("Memory-bound samples", "fraction"),
        "power_before_w": ("Power before, mean", "W"),
        "power_then_w": ("Power then, mean", "W"),
        "power_w_mean": ("Power, mean", "W"),
        "remapped_rows_correctable": ("Rows remapped, correctable errors", "count"),
        "remapped_rows_uncorrectable": ("Rows remapped, uncorrectable errors", "count"),
        "samples": ("Samples", "count"),
        "spatial_imbalance": ("Imbalance across GPUs", "ratio"),
        "temporal_imbalance": ("Imbalance over time", "ratio"),
        "started_after_s": ("First work after", "s"),
        "stopped_after_s": ("Work stopped after", "s"),
        "stopped_at_unix_s": ("Work stopped at", "time"),
        "tensor_active_max": ("Tensor cores active, highest", "fraction"),
        "throttled_fraction": ("Samples with lowered clocks", "fraction"),
        "time_precision_s": ("Precision of recorded times", "s"),
        "xid_events": ("XID events", "count"),
        "xid_event_max": ("Largest XID code", "code"),
    }
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth knowing about a job.

    `sentence` says what was seen with its numbers; `advice` what to do (None: nothing to do);
    `evidence` holds the numbers behind it, names and units as in EVIDENCE.
    """

    code: str
    severity: Severity
    title: str
    sentence: str
    advice: str | None = None
    evidence: Mapping[str, float] = field(default_factory=dict)


class Judge(Protocol):
    """Looks for one thing in one job.

    `summary` is its row of job_summaries, `gpus` its rows of job_gpus, `minutes` one row for each of its
    minutes, the GPUs put together (`reading.timelines_of`).
    Returns None where it is not so, and where a counter it needs was not measured.
    """

    def __call__(
        self, summary: Mapping[str, Any], gpus: pl.DataFrame, minutes: pl.DataFrame, thresholds: Thresholds
    ) -> Finding | None:
        """Return the finding, or None."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of the registry. What it finds makes the findings in `supersedes` not worth saying."""

    code: str
    judge: Judge
    supersedes: tuple[str, ...] = ()
