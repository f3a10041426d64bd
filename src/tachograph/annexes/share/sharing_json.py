"""The report on co-location for programs: JSON and CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import polars as pl

from tachograph.annexes.share.colocation import ColocateReport
from tachograph.annexes.share.demand import Demand, MixCorunOutcome
from tachograph.annexes.share.job_groups import LEFT_OUT, GroupProfile, JobGroup
from tachograph.annexes.share.mixes import MixOutcome
from tachograph.annexes.share.proposals import GroupMatrix, SharingProposal
from tachograph.catalog.spreadsheets import table_csv
from tachograph.report.json_values import json_values

_COLUMNS = (
    "one",
    "other",
    "gpu_model",
    "gpus",
    "mode",
    "safe",
    "taken",
    "slowdown",
    "other_slowdown",
    "conservative",
    "other_conservative",
    "worst",
    "other_worst",
    "binding",
    "overlap_h",
    "saved_h",
    "runs",
    "other_runs",
    "same_user",
    "why",
    "unknown",
    "issue",
    "other_issue",
    "worst_kernels",
    "profile",
    "other_profile",
)
_OF_MATRIX = (
    "one",
    "other",
    "gpu_model",
    "gpus",
    "slowdown",
    "conservative",
    "binding",
    "memory_holds",
    "issue",
    "other_issue",
)


def colocate_json(report: ColocateReport, *, top: int | None = None) -> dict[str, Any]:
    """Return JSON values: GPU-hours, shares, slowdowns; null where unknown.

    `top`: pairs per list; sums are over all.
    """
    return json_values(
        {
            "jobs": report.jobs,
            "gpu_hours": report.gpu_hours,
            "first": report.first,
            "last": report.last,
            "kinds": report.kinds,
            "saved_h": report.saved_h,
            "proposals": [_proposal(proposal) for proposal in report.proposals[:top]],
            "refused": [_proposal(proposal) for proposal in report.refused[:top]],
            "chosen": [_proposal(proposal) for proposal in report.chosen],
            "left_out": [
                {"reason": reason, "words": LEFT_OUT[reason], "jobs": jobs, "gpu_hours": hours}
                for reason, jobs, hours in report.left_out
            ],
            "short_of": dict(report.short),
            "missing_counters": report.missing,
            "not_compared": report.cut,
            "achievable_share": dict(report.achievable),
            "profiled": [_group(kind) for kind in report.profiled],
            "profiles_refused": report.refused_profiles,
            "matrices": None
            if report.matrices is None
            else [_matrix(matrix) for matrix in report.matrices],
            "calibration": _fields(report.calibration, "measured_on", "source"),
        }
    )


def _fields(value: object, *names: str) -> dict[str, Any]:
    """Some of the fields and properties of a report object."""
    return {name: getattr(value, name) for name in names}


def _proposal(proposal: SharingProposal) -> dict[str, Any]:
    """A pair: both job groups, the sharing mode, slowdowns of both, in their order.

    slowdowns: by what was measured; conservative: with what was not measured; worst: always at the
    same time.
    """
    return {
        "one": _group(proposal.one),
        "other": _group(proposal.other),
        **_fields(proposal, "same_user", "taken", "overlap_h", "saved_h"),
        **json_values(proposal.advice),
        "over_runs": None if proposal.runs is None else _over_runs(proposal.runs),
        "over_kernels": None if proposal.kernels is None else _over_kernels(proposal.kernels),
    }


def _group(kind: JobGroup) -> dict[str, Any]:
    """A job group, with the mean demand of its runs, and the run of highest demand."""
    return {
        **_fields(kind, "label", "user", "name", "array"),
        "gpu_model": kind.device.name,
        **_fields(kind, "gpus", "runs", "jobs", "gpu_hours", "busy", "spread", "spread_of"),
        "mean": _demand(kind.mix.mean),
        "highest": _demand(kind.mix.highest),
        "issue": kind.issue,
        "profile": None if kind.profile is None else _profile(kind.profile),
    }


def _profile(profile: GroupProfile) -> dict[str, Any]:
    return {
        **json_values(profile, without=("mix",)),
        "mean": _demand(profile.mix.mean),
        "members": [
            {"share": share, "kernel": one.name, **_demand(one)}
            for share, one in profile.mix.members
        ],
    }


def _demand(demand: Demand) -> dict[str, Any]:
    return {
        "cycles": demand.cycles,
        "dram_of_peak": demand.dram,
        **_fields(demand, "sm_share", "warps", "hbm_bytes"),
    }


def _over_kernels(found: MixOutcome) -> dict[str, Any]:
    """Slowdowns while both are busy, and on each side the worst kernel and its partner."""
    one, other = found.members
    return {
        **_slowdowns(found),
        "worst_on_average": one.worst,
        "other_worst_on_average": other.worst,
        "worst": _worst_pair(one),
        "other_worst": _worst_pair(other),
    }


def _slowdowns(found: MixOutcome) -> dict[str, float | None]:
    return dict(zip(("slowdown", "other_slowdown"), found.slowdowns, strict=True))


def _worst_pair(member: MixCorunOutcome) -> dict[str, Any] | None:
    if member.worst_pair is None:
        return None
    return dict(zip(("slowdown", "kernel", "beside"), member.worst_pair, strict=True))


def _over_runs(found: MixOutcome) -> dict[str, Any]:
    return {**_slowdowns(found), "worst": found.worst and found.worst[0]}


def _matrix(of_all: GroupMatrix) -> dict[str, Any]:
    places = range(len(of_all.kinds))
    return {
        "gpu_model": of_all.kinds[0].device.name,
        "gpus": of_all.kinds[0].gpus,
        "kinds": [kind.label for kind in of_all.kinds],
        "issue": [kind.issue for kind in of_all.kinds],
        "slowdown": of_all.slowdown.tolist(),
        "conservative": of_all.conservative.tolist(),
        "binding": [[_binding(of_all, i, j) for j in places] for i in places],
        "memory_holds": (~of_all.full).tolist(),
    }


def colocate_csv(report: ColocateReport, *, top: int | None = None, raw: bool = False) -> str:
    """Return pairs as CSV: proposed, explained, on request rejected; or the matrix.

    Texts are harmless to spreadsheets and terminals unless `raw`.
    """
    columns: Sequence[str] = _COLUMNS
    if report.matrices is not None:
        columns, rows = _OF_MATRIX, list(chain.from_iterable(map(_cells, report.matrices)))
    else:
        pairs = (*report.proposals[:top], *report.chosen, *report.refused[:top])
        rows = list(map(_row, pairs))
    table = pl.DataFrame(rows, schema=columns, orient="row", infer_schema_length=None)
    return table_csv(table.fill_nan(None), raw=raw)


def _row(proposal: SharingProposal) -> tuple[Any, ...]:
    advice, one, other = proposal.advice, proposal.one, proposal.other
    return (
        one.label,
        other.label,
        one.device.name,
        one.gpus,
        advice.mode,
        advice.safe,
        proposal.taken,
        *(advice.slowdowns or _NOT_ESTIMATED),
        *(advice.conservative or _NOT_ESTIMATED),
        *(advice.worst or _NOT_ESTIMATED),
        advice.binding,
        proposal.overlap_h,
        proposal.saved_h,
        one.runs,
        other.runs,
        proposal.same_user,
        " ".join(advice.why),
        " ".join(advice.unknown),
        one.issue,
        other.issue,
        _worst_kernels(proposal.kernels),
        _reports(one),
        _reports(other),
    )


_NOT_ESTIMATED = (None, None)  # slowdowns of a pair that memory does not hold


def _worst_kernels(found: MixOutcome | None) -> str | None:
    return (
        None
        if found is None or found.worst is None
        else f"{found.worst[1]} beside {found.worst[2]}"
    )


def _reports(kind: JobGroup) -> str | None:
    return None if kind.profile is None else " ".join(kind.profile.reports)


def _cells(of_all: GroupMatrix) -> Iterator[tuple[Any, ...]]:
    """A row for each cell of a matrix."""
    for i, one in enumerate(of_all.kinds):
        for j, other in enumerate(of_all.kinds):
            yield (
                *(one.label, other.label, one.device.name, one.gpus),
                *(of_all.slowdown[i, j], of_all.conservative[i, j], _binding(of_all, i, j)),
                *(not of_all.full[i, j], one.issue, other.issue),
            )


def _binding(of_all: GroupMatrix, i: int, j: int) -> str | None:
    place = int(of_all.binding[i, j])
    return of_all.resources[place] if place < len(of_all.resources) else None
