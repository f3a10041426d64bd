"""The report on co-location, and the errors of the estimator, for programs: JSON and CSV."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl

from tachograph.sharing.accuracy import CheckedEstimate, ErrorSummary, EstimatorAccuracy, errors
from tachograph.sharing.colocation import ColocateReport
from tachograph.sharing.demand import Demand
from tachograph.sharing.job_groups import LEFT_OUT, GroupProfile, JobGroup
from tachograph.sharing.mixes import MixOutcome
from tachograph.sharing.proposals import GroupMatrix, SharingProposal

_COLUMNS = {
    "one": pl.String,
    "other": pl.String,
    "gpu_model": pl.String,
    "gpus": pl.Int64,
    "way": pl.String,
    "safe": pl.Boolean,
    "taken": pl.Boolean,
    "slowdown": pl.Float64,
    "other_slowdown": pl.Float64,
    "careful": pl.Float64,
    "other_careful": pl.Float64,
    "worst": pl.Float64,
    "other_worst": pl.Float64,
    "binding": pl.String,
    "overlap_h": pl.Float64,
    "saved_h": pl.Float64,
    "runs": pl.Int64,
    "other_runs": pl.Int64,
    "same_user": pl.Boolean,
    "why": pl.String,
    "unknown": pl.String,
    "issue": pl.String,
    "other_issue": pl.String,
    "worst_kernels": pl.String,
    "profile": pl.String,
    "other_profile": pl.String,
}
_OF_MATRIX = {
    "one": pl.String,
    "other": pl.String,
    "gpu_model": pl.String,
    "gpus": pl.Int64,
    "slowdown": pl.Float64,
    "careful": pl.Float64,
    "binding": pl.String,
    "memory_holds": pl.Boolean,
    "issue": pl.String,
    "other_issue": pl.String,
}


def colocate_json(report: ColocateReport, *, top: int | None = None) -> dict[str, Any]:
    """Return the content of the report as JSON values: GPU-hours; shares and slowdowns; null where not known.

    `top`: at most so many pairs of each list; sums are of all.
    """
    calibration = report.calibration
    return {
        "jobs": report.jobs,
        "gpu_hours": report.gpu_hours,
        "first": None if report.first is None else report.first.isoformat(),
        "last": None if report.last is None else report.last.isoformat(),
        "kinds": report.kinds,
        "saved_h": report.saved_h,
        "proposals": [proposal_json(proposal) for proposal in report.proposals[:top]],
        "refused": [proposal_json(proposal) for proposal in report.refused[:top]],
        "chosen": [proposal_json(proposal) for proposal in report.chosen],
        "left_out": [
            {"reason": reason, "words": LEFT_OUT[reason], "jobs": jobs, "gpu_hours": hours}
            for reason, jobs, hours in report.left_out
        ],
        "short_of": dict(report.short),
        "missing_counters": list(report.missing),
        "not_compared": report.cut,
        "achievable_share": dict(report.achievable),
        "profiled": [kind_json(kind) for kind in report.profiled],
        "profiles_refused": list(report.refused_profiles),
        "matrices": None if report.matrices is None else [_matrix(one) for one in report.matrices],
        "calibration": {"measured_on": calibration.measured_on, "source": calibration.source},
    }


def proposal_json(proposal: SharingProposal) -> dict[str, Any]:
    """Return a pair: both job groups, the sharing mode, slowdowns of both, in their order.

    slowdowns: by what was measured; careful: with what was not measured; worst: always at the same time."""
    advice = proposal.advice
    return {
        "one": kind_json(proposal.one),
        "other": kind_json(proposal.other),
        "same_user": proposal.same_user,
        "taken": proposal.taken,
        "packed": proposal.packed,
        "overlap_h": proposal.overlap_h,
        "saved_h": proposal.saved_h,
        "way": advice.way,
        "safe": advice.safe,
        "shares": None if advice.shares is None else list(advice.shares),
        "profiles": None if advice.profiles is None else list(advice.profiles),
        "slowdowns": list(advice.slowdowns),
        "careful": list(advice.careful),
        "worst": list(advice.worst),
        "binding": advice.binding,
        "why": list(advice.why),
        "unknown": list(advice.unknown),
        "cautions": list(advice.cautions),
        "over_runs": None if proposal.runs is None else _runs(proposal.runs),
        "over_kernels": None if proposal.kernels is None else _kernels(proposal.kernels),
    }


def kind_json(kind: JobGroup) -> dict[str, Any]:
    """Return a job group, with the mean demand of its runs, and the run of highest demand."""
    return {
        "label": kind.label,
        "user": kind.user,
        "name": kind.name,
        "array": kind.array,
        "gpu_model": kind.device.name,
        "gpus": kind.gpus,
        "runs": kind.runs,
        "jobs": list(kind.jobs),
        "gpu_hours": kind.gpu_hours,
        "busy": kind.busy,
        "spread": kind.spread,
        "spread_of": kind.spread_of,
        "mean": _demand(kind.mix.mean),
        "highest": _demand(kind.mix.highest),
        "issue": kind.issue,
        "profile": None if kind.profile is None else _profile(kind.profile),
    }


def _profile(profile: GroupProfile) -> dict[str, Any]:
    return {
        "reports": list(profile.reports),
        "kernels": profile.kernels,
        "launches": profile.launches,
        "seconds": profile.seconds,
        "apart": list(profile.apart),
        "mean": _demand(profile.mix.mean),
        "members": [{"share": share, "kernel": one.name, **_demand(one)} for share, one in profile.mix.members],
    }


def colocate_csv(report: ColocateReport, *, top: int | None = None) -> str:
    """Return the pairs as CSV, one line each: proposed, explained, on request rejected ones; or the matrix."""
    if report.matrices is not None:
        cells = [row for one in report.matrices for row in _cells(one)]
        return pl.DataFrame(cells, schema=_OF_MATRIX, orient="row").write_csv()
    rows = [_row(proposal) for proposal in (*report.proposals[:top], *report.chosen, *report.refused[:top])]
    return pl.DataFrame(rows, schema=_COLUMNS, orient="row").write_csv()


def _row(proposal: SharingProposal) -> tuple[Any, ...]:
    advice, one, other = proposal.advice, proposal.one, proposal.other
    slowdown, other_slowdown = _two(advice.slowdowns)
    careful, other_careful = _two(advice.careful)
    worst, other_worst = _two(advice.worst)
    return (
        *(one.label, other.label, one.device.name, one.gpus, advice.way, advice.safe, proposal.taken),
        *(slowdown, other_slowdown, careful, other_careful, worst, other_worst, advice.binding),
        *(proposal.overlap_h, proposal.saved_h),
        *(one.runs, other.runs, proposal.same_user, " ".join(advice.why), " ".join(advice.unknown)),
        *(one.issue, other.issue, _worst_kernels(proposal.kernels), _reports(one), _reports(other)),
    )


def _worst_kernels(found: MixOutcome | None) -> str | None:
    return None if found is None or found.worst is None else f"{found.worst[1]} beside {found.worst[2]}"


def _reports(kind: JobGroup) -> str | None:
    return None if kind.profile is None else " ".join(kind.profile.reports)


def _cells(of_all: GroupMatrix) -> Iterator[tuple[Any, ...]]:
    """A row for each cell of a matrix."""
    for i, one in enumerate(of_all.kinds):
        for j, other in enumerate(of_all.kinds):
            yield (
                *(one.label, other.label, one.device.name, one.gpus),
                *(_known(of_all.slowdown[i, j]), _known(of_all.careful[i, j]), _binding(of_all, i, j)),
                *(not of_all.full[i, j], one.issue, other.issue),
            )


def _matrix(of_all: GroupMatrix) -> dict[str, Any]:
    places = range(len(of_all.kinds))
    return {
        "gpu_model": of_all.kinds[0].device.name,
        "gpus": of_all.kinds[0].gpus,
        "kinds": [kind.label for kind in of_all.kinds],
        "issue": [kind.issue for kind in of_all.kinds],
        "slowdown": [[_known(value) for value in row] for row in of_all.slowdown.tolist()],
        "careful": [[_known(value) for value in row] for row in of_all.careful.tolist()],
        "binding": [[_binding(of_all, i, j) for j in places] for i in places],
        "memory_holds": (~of_all.full).tolist(),
    }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _binding(of_all: GroupMatrix, i: int, j: int) -> str | None:
    place = int(of_all.binding[i, j])
    return of_all.resources[place] if place < len(of_all.resources) else None


def _two(numbers: Sequence[float | None]) -> tuple[float | None, float | None]:
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (None, None)


def _demand(demand: Demand) -> dict[str, Any]:
    return {
        "cycles": dict(demand.cycles),
        "dram_of_peak": demand.dram,
        "sm_share": demand.sm_share,
        "warps": demand.warps,
        "hbm_bytes": demand.hbm_bytes,
    }


def _kernels(found: MixOutcome) -> dict[str, Any]:
    """Slowdowns while both are busy, and of each side its kernel that is worst off, beside which one."""
    worst = [
        None if one is None else dict(zip(("slowdown", "kernel", "beside"), one, strict=True)) for one in found.worst_of
    ]
    return {
        "slowdown": found.slowdown,
        "other_slowdown": found.other_slowdown,
        "worst": worst[0],
        "other_worst": worst[1],
    }


def _runs(found: MixOutcome) -> dict[str, Any]:
    worst = found.worst
    return {
        "slowdown": found.slowdown,
        "other_slowdown": found.other_slowdown,
        "worst": None if worst is None or not math.isfinite(worst[0]) else worst[0],
    }


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
                "told": one.published.told or None,
            }
            for one in judged
        ],
    }


def _percent(error: float) -> str:
    rounded = round(100 * error, 1)
    return f"{rounded:+.1f} %" if rounded else "0.0 %"


def _summary(found: ErrorSummary) -> str:
    return f"mean error {found.mean:.1%}, worst {found.worst:.1%} ({found.worst_of})"
