"""The verdict on a job: how it ended, the known cause, its worst finding and the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tachograph.catalog.units import text
from tachograph.judge.activity import number, so_far
from tachograph.judge.checks import CHECKS, OF_RECORDING
from tachograph.judge.finding import EVIDENCE, SEVERITIES, Finding
from tachograph.report.job_sentences import HIGH, steadiness, use_sentence

LOST = "gpu_hours_idle"  # evidence: GPU-hours that a finding is about
ENOUGH = 0.9  # of the expected samples; with fewer the verdict names the share
_BRIEF = {code: check.brief for check in CHECKS if check.brief for code in check.codes}
_ENDED: Mapping[str, str] = {
    "OUT_OF_MEMORY": "Killed: out of host memory",
    "TIMEOUT": "Stopped at its time limit",
    "DEADLINE": "Stopped at its deadline",
    "NODE_FAIL": "Ended by the failure of a node",
    "BOOT_FAIL": "Ended by a node that did not boot",
    "LAUNCH_FAILED": "Its launch failed",
    "RECONFIG_FAIL": "Its reconfiguration failed",
    "PREEMPTED": "Preempted",
    "CANCELLED": "Cancelled",
    "REVOKED": "Revoked",
    "FAILED": "Failed",
}
_SIGNALS = {
    2: "interrupted",
    6: "aborted",
    7: "bus error",
    8: "arithmetic fault",
    9: "killed",
    11: "memory fault",
}
_SIGNALS |= {15: "terminated"}


def worst_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return findings by severity, then cost; otherwise in their order."""
    return tuple(
        sorted(
            findings, key=lambda one: (SEVERITIES.index(one.severity), -one.evidence.get(LOST, 0.0))
        )
    )


def verdict_sentence(
    row: Mapping[str, Any], findings: Sequence[Finding], steps: Sequence[Mapping[str, Any]] = ()
) -> str:
    """Return the verdict on a job.

    `findings`: the reported ones; `steps`: its steps, if recorded.

    >>> verdict_sentence({"gpu_util_mean": 0.84, "temporal_imbalance": 0.05, "samples": 9}, [])
    'Healthy: 84 % busy, steady.'
    """
    cause, parts = end_cause(row, steps), []
    main = next((one for one in worst_first(findings) if one.code not in OF_RECORDING), None)
    if cause:
        parts.append(cause)
    if row.get("attribution") == "ambiguous":
        unplaced = row.get("ambiguous_because") == "unplaced"
        why = "nothing records where it ran" if unplaced else "no sample can be attributed to it"
        parts.append(f"What its GPUs did is not known: {why}")
    elif not number(row, "samples"):
        parts.append("What its GPUs did is not known: there is no sample of them")
    elif main is not None:
        parts.append(brief(main, row))
    elif cause:
        parts.append(use_sentence(row).removesuffix("."))
    else:
        parts.append(_healthy(row))
    return f"{'. '.join(parts)}{_measured_share(row)}."


def brief(finding: Finding, row: Mapping[str, Any]) -> str:
    """Return a short text of a finding with its cost; its title if the check has none.

    >>> cost = {"gpus_seen": 8.0, "gpu_hours_idle": 83.1}
    >>> brief(Finding("one_gpu_of_many", "problem", "One GPU", "...", evidence=cost), {})
    '1 of 8 GPUs used; 83.1 GPU-h unused'
    """
    template = _BRIEF.get(finding.code)
    if template is None:
        return f"{finding.title}{so_far(row)}"
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


def end_cause(row: Mapping[str, Any], steps: Sequence[Mapping[str, Any]] = ()) -> str | None:
    """Return how an uncompleted job ended, with the known cause; None for others.

    >>> end_cause({"state": "OUT_OF_MEMORY", "hbm_peak_fraction": 0.37})
    'Killed: out of host memory; GPU memory peaked at 37 %'
    >>> end_cause({"state": "FAILED", "exit_code": 1}), end_cause({"state": "COMPLETED"})
    ('Failed with exit code 1', None)
    """
    state = str(row.get("state") or "")
    ended = _ENDED.get(state)
    if ended is None:
        return None
    failed = next(
        (step for step in steps if step.get("state") in ("FAILED", "OUT_OF_MEMORY")), None
    )
    code, signal = (number(row, name) for name in ("exit_code", "exit_signal"))
    if state == "FAILED" and signal:
        ended = f"Failed by signal {signal:.0f}{_in_words(signal)}"
    elif state == "FAILED" and code:
        ended = f"Failed with exit code {code:.0f}"
    if failed is not None and failed.get("step") not in ("batch", "extern"):
        named = f" ({failed['name']})" if failed.get("name") else ""
        ended += f", in step {failed['step']}{named}"
    notes = []
    if row.get("xid_events"):
        notes.append(f"the driver reported XID {number(row, 'xid_event_max') or 0:.0f}")
    peak = number(row, "hbm_peak_fraction")
    if peak is not None and (state == "OUT_OF_MEMORY" or (state == "FAILED" and peak >= HIGH)):
        notes.append(f"GPU memory peaked at {text(peak, 'fraction')}")
    return "; ".join([ended, *notes])


def _in_words(signal: float) -> str:
    words = _SIGNALS.get(int(signal))
    return f" ({words})" if words else ""


def _healthy(row: Mapping[str, Any]) -> str:
    mean, temporal = number(row, "gpu_util_mean"), number(row, "temporal_imbalance")
    if mean is None:
        return use_sentence(row).removesuffix(".")
    steady = "" if temporal is None else f", {steadiness(temporal)}"
    return f"Healthy{so_far(row)}: {text(mean, 'fraction')} busy{steady}"


def _measured_share(row: Mapping[str, Any]) -> str:
    coverage = number(row, "coverage")
    if coverage is None or coverage >= ENOUGH or not number(row, "samples"):
        return ""
    return f" (measured: {text(coverage, 'fraction')} of the expected samples)"
