"""The verdict on a job: how it ended and why, what cost most, or how well it used its GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tachograph.catalog.config import WasteOptions
from tachograph.catalog.tables import WASTE
from tachograph.catalog.units import capitalized, text
from tachograph.judge.activity import activity_counter, number, so_far
from tachograph.judge.checks import check_of, is_of_recording
from tachograph.judge.finding import EVIDENCE, SEVERITIES, Finding
from tachograph.judge.limiter import NEITHER
from tachograph.judge.waste import causes_of
from tachograph.report.job_end import end_cause
from tachograph.report.job_sentences import ENOUGH, steadiness, use_sentence

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow, StepSummaryRow


LOST = "gpu_hours_idle"  # evidence: GPU-hours that a finding is about
_NEAR_PEAK = {
    "compute": "arithmetic set the speed",
    "memory": "memory traffic set the speed",
    "nvlink": "NVLink traffic set the speed",
    "pcie": "PCIe traffic set the speed",
}
_RECOVERABLE_IMBALANCE = WasteOptions().imbalance_share
# of its GPU-hours: a job that lost more is not called healthy
_MOST_LOST = 0.1
# causes that the ledger books without a finding
_LOSSES = {
    "never_used": "GPUs idle in every sample held {lost}",
    "idle": "{lost} passed without work",
}
_FAULTY = ("CRIT", "WARN", "HOT")


def hours_behind(finding: Finding, row: JobSummaryRow) -> float:
    """Return the GPU-hours that the ledger of the job counts for the causes of a finding.

    Those of a finding of low confidence are counted as idle: its interval is not certain. Of an
    imbalance a part can be recovered. 0: none, or not known.

    >>> row = {"gpu_hours_idle": 3.0, "gpu_hours_imbalance": 0.5}
    >>> hours_behind(Finding("low_utilisation", "hint", "", ""), row)
    3.0
    >>> hours_behind(Finding("imbalanced_gpus", "hint", "", ""), row)
    0.25
    """
    check = check_of(finding.code)
    causes = () if check is None else causes_of(check, finding.code, finding.confidence)
    hours = {cause: number(row, f"gpu_hours_{cause}") or 0.0 for cause in causes}
    if "imbalance" in hours:
        hours["imbalance"] *= _RECOVERABLE_IMBALANCE
    return sum(hours.values())


def worst_first(findings: Sequence[Finding], row: JobSummaryRow) -> tuple[Finding, ...]:
    """Return findings of a job by the GPU-hours behind them, then severity; else in their order."""

    def rank(finding: Finding) -> tuple[float, int]:
        return -hours_behind(finding, row), SEVERITIES.index(finding.severity)

    return tuple(sorted(findings, key=rank))


def headline_finding(findings: Sequence[Finding], row: JobSummaryRow) -> Finding | None:
    """Return the finding that a job is headed with, None without any.

    `findings`: its verdicts. One that another covers counts where more hours are behind it: uneven
    work does not explain what all GPUs waited for. Facts are no headline.
    """
    holding = [
        finding
        for finding in findings
        if finding.verdict == "yes" and finding.severity != "fact" and not _is_of_recording(finding)
    ]
    ordered = sorted(holding, key=lambda finding: finding.covered_by is not None)
    return next(iter(worst_first(ordered, row)), None)


def _is_of_recording(finding: Finding) -> bool:
    check = check_of(finding.code)
    return check is not None and is_of_recording(check)


def verdict_sentence(
    row: JobSummaryRow,
    findings: Sequence[Finding],
    steps: Sequence[StepSummaryRow] = (),
    held_mib: float | None = None,
) -> str:
    """Return the verdict on a job.

    `findings`: its verdicts; `steps`: its steps, if recorded; `held_mib`: see `end_cause`.

    >>> row = {"gpu_util_mean": 0.84, "temporal_imbalance": 0.05, "samples": 9, "limiter": "memory"}
    >>> row |= {"coverage": 1.0, "gpus": 1, "gpu_hours": 2.0, "gpu_hours_idle": 0.1}
    >>> verdict_sentence(row, [])
    'Healthy: 84 % busy, steady; memory traffic set the speed.'
    >>> verdict_sentence(row | {"limiter": "neither", "sm_active_mean": 0.22}, [])
    'The GPU was busy 84 % of the time, SMs active 22 %; neither arithmetic nor memory was near its peak.'
    """
    cause, parts = end_cause(row, steps, held_mib), []
    main = headline_finding(findings, row)
    if cause:
        parts.append(cause)
    if row.get("attribution") == "ambiguous":
        unplaced = row.get("ambiguous_because") == "unplaced"
        why = "nothing records where it ran" if unplaced else "no sample can be attributed to it"
        parts.append(f"What its GPUs did is unknown: {why}")
    elif not number(row, "samples"):
        other_name = row.get("telemetry_cluster") is not None
        why = "no sample can be attributed to it" if other_name else "there is no sample of them"
        parts.append(f"What its GPUs did is unknown: {why}")
    elif main is not None:
        parts.append(_loss_of_no_finding(main, row) or capitalized(brief(main, row)))
    elif cause is None and is_healthy(row, findings):
        parts.append(_healthy(row))
    else:
        parts.append(_use(row))
    return f"{'. '.join(parts)}{_measured_share(row)}."


def is_healthy(row: JobSummaryRow, findings: Sequence[Finding]) -> bool:
    """Return whether all that it takes to call a job healthy is known, and nothing contradicts it.

    Something was near its peak, most GPU-hours were in use, enough was measured, no GPU was at
    fault, and no check of a problem is unknown.
    """
    held, lost = number(row, "gpu_hours"), _lost_hours(row)
    coverage = number(row, "coverage")
    if row.get("limiter") not in _NEAR_PEAK or number(row, "gpu_util_mean") is None:
        return False
    if held is None or lost is None or lost > _MOST_LOST * held:
        return False
    if coverage is None or coverage < ENOUGH or row.get("health") in _FAULTY:
        return False
    return not any(
        finding.severity == "problem" and finding.verdict == "unknown" for finding in findings
    )


def brief(finding: Finding, row: JobSummaryRow) -> str:
    """Return a short text of a finding, with its hours where known; else the title of its check.

    >>> cost = {"gpus_seen": 8.0, "gpu_hours_idle": 83.1}
    >>> brief(Finding("one_gpu_of_many", "problem", "One GPU", "...", evidence=cost), {})
    '1 of 8 GPUs used; 83.1 GPU-h unused'
    >>> cost = {"gpus_seen": 8.0}
    >>> brief(Finding("one_gpu_of_many", "problem", "One GPU", "...", evidence=cost), {})
    '1 of 8 GPUs used'
    """
    check = check_of(finding.code)
    if check is None or not check.brief:
        return f"{finding.title}{so_far(row)}"
    template = check.brief
    if LOST not in finding.evidence:
        template = template.partition(";")[0]
    values = {name: _short(name, value) for name, value in finding.evidence.items()}
    try:
        return f"{template.format_map(values)}{so_far(row)}"
    except KeyError:  # an unknown signal number
        return f"{finding.title}{so_far(row)}"


def _short(name: str, value: float) -> str:
    unit = EVIDENCE[name][1] if name in EVIDENCE else ""
    return (
        f"{text(value, 'h').removesuffix(' h')} GPU-h"
        if name.startswith("gpu_hours")
        else text(value, unit)
    )


def _healthy(row: JobSummaryRow) -> str:
    temporal = number(row, "temporal_imbalance")
    steady = "" if temporal is None else f", {steadiness(temporal)}"
    busy = text(number(row, "gpu_util_mean"), "fraction")
    return f"Healthy{so_far(row)}: {busy} busy{steady}; {_NEAR_PEAK[str(row['limiter'])]}"


def _use(row: JobSummaryRow) -> str:
    """How busy the GPUs were, and what tells how well they were used; no judgement."""
    sentence = use_sentence(row).removesuffix(".") + so_far(row)
    if activity_counter(row) is None:
        return sentence
    sm_active = number(row, "sm_active_mean")
    if activity_counter(row) == "gpu_util" and sm_active is not None:
        sentence += f", SMs active {text(sm_active, 'fraction')}"
    held, lost = number(row, "gpu_hours"), _lost_hours(row)
    if held and lost is not None and lost > _MOST_LOST * held:
        sentence += f"; {text(lost, 'h')} of {text(held, 'h')} of GPU time without work"
    limiter = row.get("limiter")
    if limiter == NEITHER:
        return f"{sentence}; neither arithmetic nor memory was near its peak"
    return f"{sentence}; {_NEAR_PEAK.get(str(limiter), 'what limited the speed is unknown')}"


def _loss_of_no_finding(main: Finding, row: JobSummaryRow) -> str | None:
    """Return what GPUs without work cost where that is more than what is behind any finding.

    Whether they did no work in the rest of the run, too, may not be known: that they did none in
    the time that was measured is, and the ledger counts it. A problem is never replaced: a fault
    of a GPU costs no hours of its own, and is what the user has to know first.
    """
    if main.severity == "problem":
        return None
    hours = {cause: number(row, f"gpu_hours_{cause}") or 0.0 for cause in _LOSSES}
    cause = max(hours, key=lambda name: hours[name])
    held = number(row, "gpu_hours") or 0.0
    if hours[cause] <= max(hours_behind(main, row), _MOST_LOST * held):
        return None
    lost = f"{text(hours[cause], 'h')} of {text(held, 'h')} of GPU time"
    sentence = _LOSSES[cause].format(lost=lost) + so_far(row)
    unmeasured = number(row, "gpu_hours_unmeasured")
    if cause == "never_used" and unmeasured and text(unmeasured, "h") != "0 h":
        # why it is not the problem of a job whose GPUs were not used
        sentence += f"; they may have worked in the {text(unmeasured, 'h')} that were not measured"
    return sentence


def _lost_hours(row: JobSummaryRow) -> float | None:
    """GPU-hours lost to all causes of the ledger; None if unknown."""
    hours = [number(row, f"gpu_hours_{cause}") for cause in WASTE]
    known = [value for value in hours if value is not None]
    return sum(known) if known else None


def _measured_share(row: JobSummaryRow) -> str:
    coverage = number(row, "coverage")
    if coverage is None or coverage >= ENOUGH or not number(row, "samples"):
        return ""
    return f" (measured: {text(coverage, 'fraction')} of the expected samples)"
