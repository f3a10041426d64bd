"""Kernels as JSON and CSV: the numbers of the text, unrounded; null or empty: unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from tachograph.annexes.share.kernel_facts import (
    GpuPart,
    KernelFact,
    KernelPair,
    KernelsReport,
    KernelView,
    PairEstimate,
    pairs_of,
)
from tachograph.annexes.share.kernels_sentences import limits_sentence
from tachograph.annexes.share.utilization import SensitivityLevel
from tachograph.catalog.spreadsheets import table_csv
from tachograph.report.json_values import json_values


def kernels_json(report: KernelsReport) -> dict[str, Any]:
    """Return the report as JSON values: fractions 0..1, seconds, byte/s, scores 0..100."""
    return json_values(
        {
            "files": report.files,
            "problems": report.problems,
            "sharing": report.sharing,
            "gpus": [_part(part) for part in report.parts],
            "explained": None if report.explained is None else report.explained.number,
            "together": None if report.together is None else _together(report.together),
        }
    )


def kernels_csv(report: KernelsReport, *, raw: bool = False) -> str:
    """Return CSV of the kernels that run together, else of pairs, else of kernels.

    Texts are harmless to spreadsheets and terminals unless `raw`.
    """
    if report.together is not None:
        return _csv(_together(report.together)["members"], raw=raw)
    pairs = []
    kernels = []
    for part in report.parts:
        pairs += [_pair(part, pair) for pair in pairs_of(part)]
        kernels += [_flat(part, view) for view in part.kernels]
    return _csv(pairs or kernels, raw=raw)


def _part(part: GpuPart) -> dict[str, Any]:
    return {
        "gpu": part.gpu,
        "calibration": part.calibration,
        "left_out": part.left_out,
        "kernels": [_kernel(view) for view in part.kernels],
        "pairs": None if part.pairs is None else [_pair(part, pair) for pair in pairs_of(part)],
        "not_collected": part.lacking,
        "collect_with": part.command,
    }


def _kernel(view: KernelView) -> dict[str, Any]:
    kernel, limits = view.kernel, view.limits
    return {
        "number": view.number,
        "label": view.label,
        "name": kernel.name,
        "launches": kernel.launches,
        "seconds": kernel.seconds,
        "share": view.share,
        "grid": kernel.grid,
        "block": kernel.block,
        "variants": kernel.variants,
        "reports": kernel.reports,
        "ranges": kernel.ranges,
        "uses": _values(view.facts),
        "read_from": {
            fact.name: fact.metric for fact in view.facts.values() if fact.value is not None
        },
        "scores": _values(view.scores),
        "score_notes": {fact.name: fact.note for fact in view.scores.values() if fact.note},
        "limited_by": limits.limited_by,
        "limits": {"words": limits_sentence(limits), **json_values(limits, without=("limiting",))},
        "sensitivities": view.sensitivities,
        "pitfalls": view.pitfalls,
        "demand": json_values(kernel.demand, without=("name",)),
        "not_collected": kernel.missing,
        "problems": kernel.problems,
    }


def _values(facts: Mapping[str, KernelFact]) -> dict[str, float | None]:
    return {fact.name: fact.value for fact in facts.values()}


def _pair(part: GpuPart, pair: KernelPair) -> dict[str, Any]:
    return {
        "gpu": part.gpu.name,
        "row": pair.row.number,
        "row_name": pair.row.label,
        "column": pair.column.number,
        "column_name": pair.column.label,
        **json_values(pair, without=("row", "column")),
    }


def _together(together: PairEstimate) -> dict[str, Any]:
    found = together.estimate
    members = [
        {"number": view.number, "label": view.label, **json_values(outcome)}
        for view, outcome in zip(together.members, found.members, strict=True)
    ]
    return {**json_values(found), "members": members}


def _flat(part: GpuPart, view: KernelView) -> dict[str, Any]:
    """One table row."""
    return {
        "gpu": part.gpu.name,
        "number": view.number,
        "label": view.label,
        "name": view.kernel.name,
        "launches": view.kernel.launches,
        "seconds": view.kernel.seconds,
        "share": view.share,
        **_values(view.facts),
        **_values(view.scores),
        "limited_by": view.limits.limited_by,
        "sensitive_to": _resources_of(view, "high"),
        "sensitive_some": _resources_of(view, "some"),
        "sensitive_unknown": _resources_of(view, "unknown"),
    }


def _resources_of(view: KernelView, level: SensitivityLevel) -> str:
    return " ".join(
        sensitivity.resource for sensitivity in view.sensitivities if sensitivity.level == level
    )


def _csv(rows: Sequence[Mapping[str, Any]], *, raw: bool) -> str:
    return table_csv(pl.DataFrame(rows, infer_schema_length=None), raw=raw)
