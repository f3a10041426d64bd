"""Kernels as JSON and CSV: the numbers of the text, unrounded; null or empty: unknown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import polars as pl

from tachograph.annexes.share.demand import Matrix
from tachograph.annexes.share.kernel_facts import GpuPart, KernelFact, KernelsReport, KernelView
from tachograph.annexes.share.kernels_sentences import limits_sentence
from tachograph.catalog.spreadsheets import table_csv
from tachograph.report.json_values import json_values

# Fields of a Kernel that are not printed as they are.
_NOT_PRINTED = (
    "short",
    "chip",
    "gpu",
    "demand",
    "shape",
    "metrics",
    "readings",
    "stalls",
    "missing",
)
_NUMBERS = ("slowdown", "low", "high", "gain")  # of a pair
_COLUMNS = ("number", "label", "name", "launches", "seconds", "share")
_LEVELS = {"sensitive_to": "high", "sensitive_some": "some", "sensitive_unknown": "unknown"}


def kernels_json(report: KernelsReport) -> dict[str, Any]:
    """Return the report as JSON values: fractions 0..1, seconds, byte/s, scores 0..100."""
    values = json_values(report, without=("parts", "together", "explained"))
    values["gpus"] = list(map(_part, report.parts))
    values["explained"] = None if report.explained is None else report.explained.number
    values["together"] = None
    if report.together is not None:
        values["together"] = together = json_values(report.together.estimate)
        for kernel, member in zip(report.together.members, together["members"], strict=True):
            member |= {"number": kernel.number, "label": kernel.label}
    return values


def kernels_csv(report: KernelsReport, *, raw: bool = False) -> str:
    """Return CSV of the kernels that run together, else of pairs, else of kernels.

    Texts are harmless to spreadsheets and terminals unless `raw`.
    """
    values = kernels_json(report)
    kernels, pairs = [], []
    for part in values["gpus"]:
        gpu = {"gpu": part["gpu"]["name"]}
        kernels += [gpu | _row(kernel) for kernel in part["kernels"]]
        pairs += [gpu | pair for pair in part["pairs"] or ()]
    together = values["together"]
    rows = pairs or kernels if together is None else together["members"]
    return table_csv(pl.DataFrame(rows, infer_schema_length=None), raw=raw)


def _part(part: GpuPart) -> dict[str, Any]:
    return {
        **json_values(part, without=("kernels", "pairs", "not_collected")),
        "kernels": list(map(_kernel, part.kernels)),
        "pairs": None if part.pairs is None else list(_pairs(part.kernels, part.pairs)),
        "not_collected": [
            {"metric": lack.metric, "meaning": lack.meaning, "of": numbers}
            for lack, numbers in part.not_collected.items()
        ],
    }


def _pairs(kernels: Sequence[KernelView], pairs: Matrix) -> Iterator[dict[str, Any]]:
    """Yield each kernel beside each, by row."""
    for (i, row), (j, column) in product(enumerate(kernels), repeat=2):
        yield {
            "row": row.number,
            "row_name": row.label,
            "column": column.number,
            "column_name": column.label,
            **{name: float(getattr(pairs, name)[i, j]) for name in _NUMBERS},
            "binding": pairs.bound_by(i, j),
            "safe": bool(pairs.safe[i, j]),
        }


def _kernel(view: KernelView) -> dict[str, Any]:
    kernel, limits = view.kernel, view.limits
    facts = view.facts.values()
    return {
        "number": view.number,
        "label": view.label,
        "share": view.share,
        **json_values(kernel, without=_NOT_PRINTED),
        "not_collected": json_values(kernel.missing),
        **json_values(kernel.shape, without=("footprint",)),
        "demand": json_values(kernel.demand, without=("name",)),
        "uses": _values(view.facts),
        "read_from": {fact.name: fact.metric for fact in facts if fact.value is not None},
        "scores": _values(view.scores),
        "score_notes": {fact.name: fact.note for fact in view.scores.values() if fact.note},
        "limited_by": limits.limited_by,
        "limits": {"words": limits_sentence(limits), **json_values(limits, without=("limiting",))},
        "sensitivities": json_values(view.sensitivities),
        "pitfalls": json_values(view.pitfalls),
    }


def _values(facts: Mapping[str, KernelFact]) -> dict[str, float | None]:
    return {fact.name: fact.value for fact in facts.values()}


def _row(kernel: Mapping[str, Any]) -> dict[str, Any]:
    """One table row of a kernel."""
    row: dict[str, Any] = {name: kernel[name] for name in _COLUMNS}
    row |= kernel["uses"] | kernel["scores"]
    row["limited_by"] = kernel["limited_by"]
    for column, level in _LEVELS.items():
        judged = kernel["sensitivities"]
        row[column] = " ".join(
            sensitivity["resource"] for sensitivity in judged if sensitivity["level"] == level
        )
    return row
