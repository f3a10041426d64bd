"""The report of one job as an object for programs: contract names on top, null where nothing was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from tachograph.figures.timeline import JobTimeline
from tachograph.judge.finding import Finding
from tachograph.report.job import JobReport

INTERNAL = frozenset({"seq"})  # bookkeeping of the lake, of no meaning outside


def job_json(report: JobReport) -> dict[str, Any]:
    """Return the summary's columns and, beside them, `findings`, `verdicts`, `evidence`, `per_gpu` and `timeline`.

    `gpus` is the summary's number of GPUs; their rows are `per_gpu`.
    `findings`: what holds and is worth knowing; `verdicts`: everything that was looked for.
    `evidence` is {code: {name: number}} of `findings`; times are ISO 8601 in UTC; NaN does not occur.
    """
    return {
        **row_json(report.summary),
        "node_list": report.node_list,
        "headline": report.headline,
        "findings": [finding_json(finding) for finding in report.findings],
        "verdicts": [finding_json(finding) for finding in report.verdicts],
        "evidence": {finding.code: dict(finding.evidence) for finding in report.findings},
        "per_gpu": [row_json(gpu.row) for gpu in report.gpus],
        "timeline": _timeline_json(report.timeline),
        "caveats": list(report.caveats),
        "other_runs": [other["job_key"] for other in report.other_runs],
    }


def finding_json(finding: Finding) -> dict[str, Any]:
    """Return a finding without its evidence; `begin` and `end` are null where it is about the whole job."""
    return {
        "code": finding.code,
        "kind": finding.kind,
        "verdict": finding.verdict,
        "severity": finding.severity,
        "title": finding.title,
        "sentence": finding.sentence,
        "advice": finding.advice,
        "begin": None if finding.begin is None else finding.begin.isoformat(),
        "end": None if finding.end is None else finding.end.isoformat(),
        "checks": [asdict(check) for check in finding.checks],
        "needs": list(finding.needs),
    }


def row_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a computed table as JSON values.

    >>> row_json({"gpu_util_mean": float("nan"), "seq": 3, "pipes": ["fp64"]})
    {'gpu_util_mean': None, 'pipes': ['fp64']}
    """
    return {name: _json_value(value) for name, value in row.items() if name not in INTERNAL}


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _timeline_json(timeline: JobTimeline) -> dict[str, Any]:
    return {
        "bin_s": timeline.bin_s,
        "bins": timeline.bins,
        "counter": timeline.counter,
        "gpus": [
            {"node": node, "gpu": gpu, "mig": mig, "values": list(values)}
            for (node, gpu, mig), values in sorted(
                timeline.per_gpu.items(), key=lambda item: (item[0][:2], item[0][2] or 0)
            )
        ],
        "means": {name: list(values) for name, values in timeline.means.items()},
    }
