"""Findings: result of a check of a job, and the numbers behind it. One type for every check.

The lake keeps them in the table `findings`: those that hold, those that do not, and those that are
unknown for lack of data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from math import isfinite
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import msgspec
import polars as pl

from tachograph.catalog.tables import FINDINGS
from tachograph.catalog.units import factor as unit_factor
from tachograph.catalog.units import is_convertible, text

if TYPE_CHECKING:
    from tachograph.catalog.rows import FindingRow, JobSummaryRow


Severity = Literal["problem", "hint", "fact"]
# most urgent first; a fact needs no fix
SEVERITIES: tuple[Severity, ...] = ("problem", "hint", "fact")
FindingConfidence = Literal["high", "low"]
Verdict = Literal["yes", "no", "unknown"]
VERDICTS: tuple[Verdict, ...] = ("yes", "no", "unknown")
FindingKind = Literal["check", "score", "workload", "health"]
Relation = Literal["<", "<=", ">", ">="]

RELATIONS: Mapping[Relation, Callable[[float, float], bool]] = {
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}
# Units that are not written as they are named: {unit: (factor, what is written)}.
_PRECISE = {"fraction": (100.0, " %"), "C": (1.0, " °C"), "count": (1.0, ""), "ratio": (1.0, "")}

# what the evidence of findings holds: {name: (label, unit as in units.text)}
EVIDENCE: Mapping[str, tuple[str, str]] = {
    "activity_mean": ("Mean activity", "fraction"),
    "activity_max": ("Highest activity", "fraction"),
    "busiest_gpu_mean": ("Busiest GPU, mean", "fraction"),
    "idlest_gpu_mean": ("Least busy GPU, mean", "fraction"),
    "compute_fraction": ("Compute-bound samples", "fraction"),
    "coverage": ("Samples present", "fraction"),
    "culprit_before_others_s": ("Likely culprit stopped before the others by", "s"),
    "culprit_gpu": ("Likely culprit, index of the GPU", "code"),
    "culprit_gpu_util": ("GPU utilisation of the likely culprit then, mean", "fraction"),
    "culprit_power_w": ("Power of the likely culprit then, mean", "W"),
    "culprit_stopped_after_s": ("Likely culprit stopped after", "s"),
    "dram_at_work": ("DRAM activity while at work", "fraction"),
    "dram_active_mean": ("Memory traffic (DRAM active), mean", "fraction"),
    "elapsed_s": ("Run time", "s"),
    "fp16_active_mean": ("FP16 pipe active, mean", "fraction"),
    "fp32_active_mean": ("FP32 pipe active, mean", "fraction"),
    "gpu_hours": ("GPU-hours", "h"),
    "gpu_hours_stranded": ("GPU-hours not usable by others, at most", "h"),
    "gpus_stranded": ("GPUs not usable by others, at most", "count"),
    "gpu_hours_idle": ("GPU-hours without work", "h"),
    "gpu_temp_c_max": ("Highest temperature", "C"),
    "runs_before": ("Earlier runs compared with", "count"),
    "gpus_waiting": ("GPUs idle with memory held", "count"),
    "gpu_util_mean": ("GPU utilisation, mean", "fraction"),
    "gpus": ("GPUs allocated", "count"),
    "gpus_seen": ("GPUs with samples", "count"),
    "gpus_unused": ("GPUs without work", "count"),
    "gpus_affected": ("GPUs affected", "count"),
    "ecc_dbe": ("Uncorrectable ECC errors", "count"),
    "ecc_sbe": ("Corrected ECC errors", "count"),
    "nvlink_errors": ("NVLink or XGMI errors", "count"),
    "hbm_mib": ("Memory of one GPU", "MiB"),
    "hbm_peak_fraction": ("Peak of memory used", "fraction"),
    "hbm_used_mib_max": ("Peak of memory used", "MiB"),
    "idle_fraction": ("Share of the time without work", "fraction"),
    "idle_periods": ("Periods without work", "count"),
    "idle_s": ("Time without work", "s"),
    "longest_idle_s": ("Longest period without work", "s"),
    "mem_temp_c_max": ("Highest temperature of the memory", "C"),
    "main_pipe_at_work": ("Activity of the most active pipe while at work", "fraction"),
    "memory_fraction": ("Memory-bound samples", "fraction"),
    "others_gpu_util": ("GPU utilisation of the others then, median", "fraction"),
    "others_power_w": ("Power of the others then, median", "W"),
    "pcie_replays": ("PCIe replays", "count"),
    "power_before_w": ("Power before, mean", "W"),
    "power_then_w": ("Power then, mean", "W"),
    "power_w_mean": ("Power, mean", "W"),
    "remapped_rows_correctable": ("Rows remapped, correctable errors", "count"),
    "remapped_rows_uncorrectable": ("Rows remapped, uncorrectable errors", "count"),
    "row_remap_failure": ("Remapping a memory row failed", "count"),
    "samples": ("Samples", "count"),
    "mem_clock_mhz_mean": ("Memory clock, mean", "MHz"),
    "score_gpu": ("GPU score, 0 is best, 100 worst", ""),
    "score_gpumem": ("GPU memory score, 0 is best, 100 worst", ""),
    "sm_active_mean": ("SMs active, mean", "fraction"),
    "sm_clock_mhz_mean": ("SM clock, mean", "MHz"),
    "sm_occupancy_mean": ("Warps resident, of those that fit", "fraction"),
    "spatial_imbalance": ("Imbalance across GPUs", "ratio"),
    "temporal_imbalance": ("Imbalance over time", "ratio"),
    "stopped_after_s": ("Work stopped after", "s"),
    "tensor_active_max": ("Tensor cores active, highest", "fraction"),
    "throttled_fraction": ("Samples with lowered clocks", "fraction"),
    "time_precision_s": ("Precision of recorded times", "s"),
    "workload_idle": ("GPU time: idle", "fraction"),
    "workload_tensor_heavy": ("GPU time: tensor-heavy compute", "fraction"),
    "workload_tensor": ("GPU time: tensor compute", "fraction"),
    "workload_fp64": ("GPU time: FP64 / HPC compute", "fraction"),
    "workload_io": ("GPU time: I/O or data-loading", "fraction"),
    "workload_memory_bound": ("GPU time: memory-bound", "fraction"),
    "workload_compute_heavy": ("GPU time: compute-heavy", "fraction"),
    "workload_compute_active": ("GPU time: compute-active", "fraction"),
    "workload_memory_active": ("GPU time: memory-active", "fraction"),
    "workload_busy_low_sm": ("GPU time: busy, low SM use", "fraction"),
    "workload_low": ("GPU time: low utilization", "fraction"),
    "workload_mixed": ("GPU time: mixed / moderate", "fraction"),
    "workload_unknown": ("GPU time: unknown", "fraction"),
    "xid_events": ("XID events", "count"),
    "xid_event_max": ("Largest XID code", "code"),
    "gpu_util_then": ("GPU utilisation then, mean", "fraction"),
    "interval_begin_s": ("Interval begins after", "s"),
    "interval_s": ("Length of the interval", "s"),
    "nodes": ("Nodes allocated", "count"),
    "power_fraction_then": ("Power then, of the highest", "fraction"),
    "power_fraction_otherwise": ("Power otherwise, of the highest", "fraction"),
    "units": ("Nodes or GPUs compared", "count"),
    "units_affected": ("Nodes or GPUs at half or less", "count"),
    "voted": ("Characteristics that voted", "count"),
    "voted_yes": ("Characteristics that agree", "count"),
}


FINDING_SCHEMA: Mapping[str, pl.DataType] = FINDINGS.row_schema


class CheckedValue(msgspec.Struct, frozen=True, gc=False):
    """One value against its threshold: `name` `relation` `threshold`, in `unit`.

    value None: not measured. holds None: undetermined. name: a counter or a characteristic made of
    some.
    """

    name: str
    value: float | None
    relation: Relation
    threshold: float
    unit: str
    holds: bool | None


def relation_holds(value: float, relation: Relation, threshold: float) -> bool:
    """Return whether a value is as a relation says."""
    return RELATIONS[relation](value, threshold)


# many values are compared with few thresholds
threshold_text = lru_cache(maxsize=256)(text)


def apart(value: float, threshold: float, unit: str) -> str:
    """Return a value as text, with as many digits as it takes to differ from its threshold.

    >>> apart(0.9487, 0.95, "fraction"), apart(0.95, 0.95, "fraction"), apart(84.7, 85.0, "C")
    ('94.9 %', '95 %', '84.7 °C')
    >>> apart(4.9996e9, 5e9, "B/s")
    '4.9996 GB/s'
    """
    shown = text(value, unit)
    if value == threshold or shown != threshold_text(threshold, unit):
        return shown
    scaled = threshold_text(threshold, unit).partition(" ")[2]  # the unit with its prefix: GB/s
    factor, suffix = _PRECISE.get(unit, (1.0, f" {unit}"))
    if unit not in _PRECISE and is_convertible(scaled, unit):
        factor, suffix = 1 / unit_factor(scaled, unit), f" {scaled}"
    for digits in range(3, 17):
        precise = f"{factor * value:,.{digits}g}"
        if precise != f"{factor * threshold:,.{digits}g}":
            return f"{precise}{suffix}".rstrip()
    return shown


class Finding(msgspec.Struct, frozen=True):
    """Result of one check of a job.

    `verdict`: unknown where what it `needs` was not measured, or not for long enough. `confidence`:
    of a check with two definitions that holds, high by the published one, low by the other alone.
    `sentence`: what was seen, with its numbers, also where the verdict is no; `advice`: what to do
    (None: nothing). `evidence` holds the numbers behind it, names and units as in EVIDENCE;
    `checks` the values against thresholds. `begin`, `end`: the interval it is about (UTC; None: the
    whole job). `needs`: counters that are missing. `covered_by`: code of the more specific finding
    of its family that is reported instead (None: it is reported).
    """

    code: str
    severity: Severity
    title: str
    sentence: str
    advice: str | None = None
    evidence: Mapping[str, float] = msgspec.field(default_factory=dict)
    kind: FindingKind = "check"
    verdict: Verdict = "yes"
    begin: datetime | None = None
    end: datetime | None = None
    checks: tuple[CheckedValue, ...] = ()
    needs: tuple[str, ...] = ()
    covered_by: str | None = None
    confidence: FindingConfidence | None = None

    @property
    def reported(self) -> bool:
        """Return whether it holds, is not a fact, and is not covered by a more specific finding."""
        return self.verdict == "yes" and self.severity != "fact" and self.covered_by is None


class JudgedRows(NamedTuple):
    """Rows of job_summaries and job_gpus with judged columns, and findings without `seq`."""

    jobs: pl.DataFrame
    gpus: pl.DataFrame
    findings: pl.DataFrame


def findings_frame(found: Iterable[tuple[JobSummaryRow, Sequence[Finding]]]) -> pl.DataFrame:
    """Return (summary row, findings) pairs as a frame: FINDINGS without `seq`."""
    rows = [
        (
            *(summary["job_key"], summary["job_id"]),
            *(finding.code, finding.kind, finding.verdict, finding.confidence, finding.severity),
            *(finding.title, finding.sentence, finding.advice, finding.begin, finding.end),
            *(_numbers(finding), _encode(finding.checks).decode()),
            *(",".join(finding.needs) or None, finding.covered_by),
        )
        for summary, findings in found
        for finding in findings
    ]
    # A frame of rows takes several times as long as one of columns.
    columns = dict(zip(FINDING_SCHEMA, zip(*rows, strict=True), strict=True)) if rows else {}
    return findings_of_columns(columns)


def findings_of_columns(columns: Mapping[str, Sequence[Any]]) -> pl.DataFrame:
    """Return a frame, FINDINGS without `seq`, of its columns; those left out are null.

    `needs` is text: names of counters with commas between them, None where nothing is missing.
    """
    rows = len(next(iter(columns.values()), ()))
    series = []
    for name, dtype in FINDING_SCHEMA.items():
        read = pl.String() if name == "needs" else dtype
        values = columns.get(name)
        if values is None:
            series.append(pl.Series(name, [None], read).new_from_index(0, rows))
        else:
            series.append(pl.Series(name, values, read))
    # A column of Python lists would take as long as all others.
    return pl.DataFrame(series).with_columns(pl.col("needs").str.split(",").fill_null([]))


def verdicts_frame(verdicts: Sequence[tuple[str, str, str]]) -> pl.DataFrame:
    """Return verdicts as a frame: job_key, code, verdict."""
    schema = dict.fromkeys(("job_key", "code", "verdict"), pl.String())
    columns = zip(schema, zip(*verdicts, strict=True), strict=True) if verdicts else ()
    return pl.DataFrame(dict(columns), schema)


_encode = msgspec.json.Encoder(enc_hook=float).encode  # numbers of NumPy become plain ones


def _numbers(finding: Finding) -> str:
    """Return the evidence as JSON. Errors: ValueError for NaN; unknown numbers are left out."""
    if not finding.evidence:
        return "{}"
    wrong = [name for name, value in finding.evidence.items() if not isfinite(value)]
    if wrong:
        raise ValueError(f"evidence of {finding.code} is not a number: {', '.join(wrong)}")
    return _encode(dict(finding.evidence)).decode()


def read_findings(frame: pl.DataFrame, order: Sequence[str] = ()) -> tuple[Finding, ...]:
    """Return a job's rows of a findings frame, most urgent first, then in `order` of codes."""
    places = {code: place for place, code in enumerate(order)}
    found = [_finding(row) for row in cast("Iterator[FindingRow]", frame.iter_rows(named=True))]
    return tuple(
        sorted(
            found,
            key=lambda f: (SEVERITIES.index(f.severity), places.get(f.code, len(places)), f.code),
        )
    )


def _finding(row: FindingRow) -> Finding:
    return Finding(
        row["code"],
        cast("Severity", row["severity"]),
        row["title"],
        row["sentence"],
        row["advice"],
        json.loads(row["evidence"]),
        cast("FindingKind", row["kind"]),
        cast("Verdict", row["verdict"]),
        row["begin"],
        row["end"],
        tuple(CheckedValue(**check) for check in json.loads(row["checks"])),
        tuple(row["needs"]),
        row["covered_by"],
        cast("FindingConfidence | None", row["confidence"]),
    )
