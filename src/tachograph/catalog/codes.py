"""Codes of findings: one per check of a job. Rules of the language have theirs in their files.

The order is that of reports and, within a family of checks, from the most specific on: of the
findings of one family the first that holds is reported and covers the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import polars as pl

from tachograph.catalog.columns import must_exist
from tachograph.catalog.errors import NotFoundError

# each is a module of judge.checks that holds the CHECK of this code
CODES: tuple[str, ...] = (
    *("idle_job", "one_gpu_of_many", "gpus_never_used"),
    *("job_hang", "busy_waiting", "cold_start", "stall", "bursty"),
    *("idle_nodes", "imbalanced_gpus", "load_imbalance_waste"),
    "low_utilisation",
    *("xid_error", "row_remap_failure", "remapped_rows", "remapped_rows_correctable"),
    *("gpu_memory_fault", "throttled", "gpu_overheated", "pcie_replays"),
    *("nvlink_errors", "ecc_corrected"),
    *("memory_bound", "no_tensor_use"),
    *("low_memory", "memory_nearly_full", "stranded_gpus"),
    *("ambiguous_attribution", "no_samples", "low_coverage", "short_job", "time_precision"),
    "stable",
)
# checks that are also decided from host characteristics
HOST_CODES = ("job_hang_host", "cold_start_host", "stall_host", "idle_nodes_host", "stable_host")
VERDICTS = ("yes", "no", "unknown")
FACTS = ("score_gpu", "score_gpumem", "workload", "health")
# findings whose intervals are causes of waste, unless their confidence is low: {code: cause}
CAUSE_OF_CLASS: Mapping[str, str] = MappingProxyType(
    {"job_hang": "hung", "busy_waiting": "hung", "stall": "hung", "cold_start": "cold_start"}
)
# codes and names of rules of versions before -> the check that decides the same
RENAMED: Mapping[str, str] = MappingProxyType(
    {
        "heat_throttling": "throttled",
        "hung": "job_hang",
        "idle_gpus": "load_imbalance_waste",
        "large_memory_tier": "low_memory",
        "late_start": "cold_start",
        "load_imbalance_two_sided": "load_imbalance_spread",
        "low_gpu_use": "low_utilisation",
        "no_tensor_cores": "no_tensor_use",
        "one_gpu_busy": "one_gpu_of_many",
        "short_run": "short_job",
        "stalled": "stall",
        "unused_gpus": "gpus_never_used",
    }
)
_KNOWN = (*CODES, *HOST_CODES, *FACTS)

# rows of reported findings: they hold, are not facts, and nothing more specific covers
# them; those of lakes that knew no verdicts hold
REPORTED = (
    (pl.col("verdict").fill_null("yes") == "yes")
    & (pl.col("severity") != "fact")
    & pl.col("covered_by").is_null()
)


# findings whose confidence is not low: by the published definition, or by the only one
SURE = pl.col("confidence").ne_missing("low")


def known_codes() -> tuple[str, ...]:
    """Return codes of findings that do not come from rules, in the order of reports.

    >>> {"job_hang", "score_gpu"} <= set(known_codes())
    True
    """
    return _KNOWN


def check_codes(codes: Iterable[str], stored: Iterable[str]) -> None:
    """Check that all `codes` are known or `stored` (codes of rules are in their files).

    Errors: NotFoundError naming the unknown one and those close to it, or the code that has its
    place.
    """
    requested, allowed = tuple(codes), {*_KNOWN, *stored}
    for code in requested:
        if code not in allowed and code in RENAMED:
            raise NotFoundError(f"no finding {code!r}", do=f"its name is now {RENAMED[code]}")
    if not allowed.issuperset(requested):
        must_exist(requested, sorted(allowed), what="finding", page="docs/job-report.md")
