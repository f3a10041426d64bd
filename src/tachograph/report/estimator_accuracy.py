"""The errors of the estimator against published numbers, as rows, sentences and JSON."""

from __future__ import annotations

from collections.abc import Sequence

from tachograph.sharing.accuracy import CheckedEstimate, ErrorSummary, EstimatorAccuracy, errors


def table_rows(judged: Sequence[CheckedEstimate]) -> list[list[str]]:
    """Return a row of cells each: table, case, kind, measured, predicted, error, error with its table left out."""
    return [
        [
            one.published.table,
            one.published.name,
            one.published.read,
            f"{one.published.measured:.3f}",
            f"{one.predicted:.3f}",
            _percent(one.error),
            _percent(one.error_left_out),
        ]
        for one in judged
    ]


def sentences(judged: Sequence[CheckedEstimate], *, whose: str, left_out: bool) -> list[str]:
    """Return what the errors come to, a line each; `left_out`: also with each table left out."""
    lines = [f"{whose}: {_summary(errors(judged))}"]
    if left_out:
        lines.append(f"  with each table left out: {_summary(errors(judged, left_out=True))}")
    return lines


def accuracy_json(accuracy: EstimatorAccuracy) -> dict[str, object]:
    """Return all errors as a document: relative errors, 0.01 for one percent."""
    return {
        "dram_curvature": round(accuracy.curvature, 3),
        "published": _part(accuracy.twenty),
        "held_out": _part(accuracy.held_out),
    }


def _part(judged: Sequence[CheckedEstimate]) -> dict[str, object]:
    return {
        "mean_absolute_error": errors(judged).mean,
        "worst_absolute_error": errors(judged).worst,
        "left_one_table_out": {
            "mean_absolute_error": errors(judged, left_out=True).mean,
            "worst_absolute_error": errors(judged, left_out=True).worst,
        },
        "rows": [
            {
                "table": one.published.table,
                "case": one.published.name,
                "read": one.published.read,
                "gpu": one.published.gpu.name,
                "measured": one.published.measured,
                "predicted": one.predicted,
                "error": one.error,
                "error_left_one_table_out": one.error_left_out,
                "note": one.published.note or None,
            }
            for one in judged
        ],
    }


def _percent(error: float) -> str:
    rounded = round(100 * error, 1)
    return f"{rounded:+.1f} %" if rounded else "0.0 %"


def _summary(found: ErrorSummary) -> str:
    return f"mean error {found.mean:.1%}, worst {found.worst:.1%} ({found.worst_of})"
