"""The errors of the estimator against published numbers, as rows, sentences and JSON."""

from __future__ import annotations

from collections.abc import Sequence

from tachograph.sharing.accuracy import (
    LEFT_OUT,
    MATTERS,
    RULES,
    SEEN,
    CheckedEstimate,
    EstimatorAccuracy,
    TableErrors,
    errors,
)


def headline(accuracy: EstimatorAccuracy) -> str:
    """Return what all errors come to, in a line."""
    published, *_, never, every = accuracy.tables
    return (
        f"mean error {errors(published.rows).mean:.1%} on {len(published.rows)} published numbers, "
        f"{errors(never.rows).mean:.1%} on {len(never.rows)} that no constant saw; {every.coverage:.0%} of all "
        f"{len(every.rows)} at or under the upper value; "
        f"{every.wrongly_safe} pairs slowed {MATTERS:g}x or more called safe"
    )


def summary_rows(accuracy: EstimatorAccuracy) -> list[list[str]]:
    """Return a row of cells for each table: whether fitted, numbers, errors, those of rules, coverage, wrongly safe."""
    return [
        [
            one.table,
            "some" if one.fitted else "none",
            str(len(one.rows)),
            f"{errors(one.rows).mean:.1%}",
            f"{errors(one.rows).worst:.1%}",
            *(f"{errors(one.rows, left_out=what).mean:.1%}" for what in LEFT_OUT),
            *(f"{one.rule(name):.1%}" for name in RULES),
            f"{one.coverage:.0%}",
            str(one.wrongly_safe),
        ]
        for one in accuracy.tables
    ]


SUMMARY_HEADINGS = (
    "table", "fitted", ">numbers", ">mean error", ">worst", *(f">{what} left out" for what in LEFT_OUT),
    *(f">{name}" for name in RULES), ">under upper", ">wrongly safe",
)  # fmt: skip


def table_rows(judged: Sequence[CheckedEstimate]) -> list[list[str]]:
    """Return a row of cells each: table, case, kind, measured, predicted, errors, slowdown, bound, whether safe."""
    return [
        [
            one.published.table,
            one.published.name,
            one.published.read,
            f"{one.published.measured:.3f}",
            f"{one.predicted:.3f}",
            _percent(one.error),
            *(_percent(one.error_without(what)) for what in LEFT_OUT),
            f"{one.published.slowdown:.2f}",
            f"{one.upper:.2f}{'' if one.covered else ' !'}",
            "safe" if one.safe else "",
        ]
        for one in judged
    ]


ROW_HEADINGS = (
    "table", "case", "number", ">measured", ">predicted", ">error", *(f">{what} left out" for what in LEFT_OUT),
    ">slowdown", ">upper", "",
)  # fmt: skip


def constants() -> list[str]:
    """Return what each constant was fitted to, a line each."""
    return [f"{name}: {seen}" for name, seen in SEEN.items()]


def accuracy_json(accuracy: EstimatorAccuracy) -> dict[str, object]:
    """Return all errors as a document: relative errors, 0.01 for one percent."""
    return {
        "dram_curvature": round(accuracy.curvature, 3),
        "constants": dict(SEEN),
        "tables": [_table(one) for one in accuracy.tables],
        "published": _part(accuracy.twenty),
        "held_out": _part(accuracy.held_out),
    }


def _table(one: TableErrors) -> dict[str, object]:
    return {
        "table": one.table,
        "fitted": one.fitted,
        "numbers": len(one.rows),
        **_errors(one.rows),
        "rules": {name: one.rule(name) for name in RULES},
        "coverage": one.coverage,
        "wrongly_safe": one.wrongly_safe,
    }


def _errors(judged: Sequence[CheckedEstimate]) -> dict[str, object]:
    found = errors(judged)
    return {
        "mean_absolute_error": found.mean,
        "worst_absolute_error": found.worst,
        **{
            f"{what.lower()}_left_out": {"mean_absolute_error": without.mean, "worst_absolute_error": without.worst}
            for what in LEFT_OUT
            for without in [errors(judged, left_out=what)]
        },
    }


def _part(judged: Sequence[CheckedEstimate]) -> dict[str, object]:
    return {
        **_errors(judged),
        "rows": [
            {
                "table": one.published.table,
                "case": one.published.name,
                "read": one.published.read,
                "gpu": one.published.gpu.name,
                "measured": one.published.measured,
                "predicted": one.predicted,
                "error": one.error,
                **{f"error_{what.lower()}_left_out": one.error_without(what) for what in LEFT_OUT},
                "slowdown": one.published.slowdown,
                "upper": one.upper,
                "covered": one.covered,
                "safe": one.safe,
                "rules": dict(one.rules),
                "note": one.published.note or None,
            }
            for one in judged
        ],
    }


def _percent(error: float) -> str:
    rounded = round(100 * error, 1)
    return f"{rounded:+.1f} %" if rounded else "0.0 %"
