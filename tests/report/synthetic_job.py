"""A synthetic job of n GPUs with all its tables, from plain arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import polars as pl

from jobframes import START, gpus, minutes, summary
from one_job import findings_of
from tachograph.catalog.config import Thresholds
from tachograph.catalog.rows import JobSummaryRow
from tachograph.judge.finding import CheckedValue, Finding
from tachograph.report.job import JobReport, build_job_report

NOW = START + timedelta(days=1)


def judged(stop: int = 60, end: int = 120) -> tuple[Finding, ...]:
    """Return checks of every kind and result; two hold between the same minutes, one before."""
    stopped, ended = START + timedelta(minutes=stop), START + timedelta(minutes=end)
    flat = (
        CheckedValue("sm_active", 0.0, "<", 0.01, "fraction", holds=True),
        CheckedValue("power_w", 82.0, "<", 90.0, "W", holds=True),
        CheckedValue("dram_active", 0.4, "<", 0.01, "fraction", holds=False),
        CheckedValue("pcie", None, "<", 1e6, "B/s", holds=None),
    )
    return (
        Finding("job_hang", "problem", "The job hung", "Nothing moved for an hour.", "Check its output.",
                {"idle_s": 3600.0}, "check", "yes", stopped, ended, flat),
        Finding("cold_start", "hint", "It began late", "Nothing moved for 10 minutes.", "Prepare elsewhere.", {},
                "check", "yes", None, START + timedelta(minutes=10), flat[:1]),
        Finding("stable", "fact", "It was steady", "Power stayed within 5 %."),
        Finding("stall", "hint", "It paused", "Work never paused for 60 min.", verdict="no",
                checks=(CheckedValue("longest_pause", 240.0, ">=", 3600.0, "s", holds=False),)),
        Finding("idle_nodes", "hint", "Idle nodes", "The job had one node.", verdict="unknown"),
        Finding("network_bound", "hint", "Waits for the network", "The network was not measured.",
                verdict="unknown", needs=("network_rx_bytes_per_s", "nvlink_tx_bytes_per_s")),
        Finding("idle_while_held", "problem", "Held idle", "Half of its time was idle.", "End it.", {}, "check", "yes",
                stopped, ended, flat[:1]),
        Finding("score_gpu", "hint", "GPU score", "Occupancy is not known.", kind="score", verdict="unknown",
                needs=("sm_occupancy",)),
        Finding("score_gpumem", "hint", "Memory score", "61 of 100.", kind="score", verdict="no",
                checks=(CheckedValue("score_gpumem", 61.0, ">=", 70.0, "percent", holds=False),)),
        Finding("gpu_hot", "problem", "Hot GPU", "83 °C at most.", kind="health", verdict="no"),
    )  # fmt: skip


def synthetic_report(
    count: int = 4,
    *,
    length: int = 120,
    busy: int = 60,
    verdicts: Sequence[Finding] = (),
    **given: Any,
) -> JobReport:
    """Return the report of a job: `count` GPUs, GPU i at 0.2 + 0.6 i / count for `busy` minutes,
    then at zero.
    """
    levels = [0.2 + 0.6 * gpu / count for gpu in range(count)]
    work = [1.0] * busy + [0.0] * (length - busy)
    series = [[level * on for on in work] for level in levels]
    minute_rows = minutes(
        *series,
        sm_active=[0.3 * on for on in work],
        tensor_active=[0.25 * on for on in work],
        dram_active=[0.4 * on for on in work],
        power_w=[80 + 240 * on for on in work],
        hbm_used_mib=[30720.0] * length,
    )
    share = busy / length
    gpu_rows = gpus(
        *(
            {
                "gpu_model": "NVIDIA A100-SXM4-40GB", "hbm_mib": 40960.0, "samples": length * 6,
                "gpu_util_mean": level * share, "gpu_util_max": level, "hbm_used_mib_max": 30720.0,
                "hbm_peak_fraction": 0.75, "power_w_mean": 80 + 240 * share,
                "energy_j": (80 + 240 * share) * length * 60,
                "zero_util_fraction": 1 - share, "temporal_imbalance": 1 - share, "xid_events": 0,
            }
            for level in levels
        )
    )  # fmt: skip
    row = summary(
        **{
            "elapsed_s": length * 60.0, "gpus": count, "gpus_seen": count, "name": "train <b>&", "user": "alice",
            "account": "m1", "partition": "gpu", "timelimit_s": 14400.0, "gpu_model": "NVIDIA A100-SXM4-40GB",
            "hbm_mib": 40960.0, "samples": length * 6 * count, "interval_s": 10.0, "coverage": 0.987,
            "gpu_util_mean": sum(levels) / count * share, "gpu_util_max": max(levels), "sm_active_mean": 0.3 * share,
            "tensor_active_mean": 0.25 * share, "tensor_active_max": 0.25, "fp64_active_mean": 0.0,
            "dram_active_mean": 0.4 * share, "bound": "memory", "memory_fraction": 1.0, "compute_fraction": 0.0,
            "bound_tensor": "compute", "memory_fraction_tensor": 0.375, "compute_fraction_tensor": 0.625,
            "spatial_imbalance": 0.346, "temporal_imbalance": 1 - share, "hbm_used_mib_max": 30720.0,
            "hbm_used_mib_mean": 30720.0, "hbm_peak_fraction": 0.75, "pipes": ["tensor"],
            "energy_j": (80 + 240 * share) * length * 60 * count, "power_w_mean": 80 + 240 * share,
            "energy_source": "power", "zero_util_fraction": 1 - share, "gpus_never_used": 0,
        }
        | given
    )  # fmt: skip
    return report_of(row, gpu_rows, minute_rows, verdicts)


def report_of(
    row: JobSummaryRow,
    gpu_rows: pl.DataFrame,
    minute_rows: pl.DataFrame,
    verdicts: Sequence[Finding] = (),
) -> JobReport:
    """Return the report of a job from its tables: with `verdicts`, and what else is found in the
    tables.
    """
    codes = {verdict.code for verdict in verdicts}
    computed = findings_of(row, gpu_rows, minute_rows, Thresholds())
    findings = (*(finding for finding in computed if finding.code not in codes), *verdicts)
    return build_job_report(
        row, gpu_rows, minute_rows, findings, NOW, zone_name="America/Los_Angeles"
    )
