"""The report on co-location for programs: JSON and CSV."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tachograph.annexes.share.colocation import ColocateReport, GroupMatrix
from tachograph.annexes.share.demand import NOTHING, Demand
from tachograph.annexes.share.job_groups import LEFT_OUT, GroupProfile, JobGroup
from tachograph.annexes.share.proposals import SharingOption, SharingProposal
from tachograph.annexes.share.sharing_setup import cautions, probation, setup_steps
from tachograph.annexes.share.sharing_text import why
from tachograph.catalog.spreadsheets import table_csv
from tachograph.report.json_values import json_values

_ENDS = {"slowdowns": "slowdown", "low": "low", "high": "high"}
_PAIR_COLUMNS = (
    *("one", "other", "gpu_model", "gpus", "verdict", "mode", "part", "slices"),
    *("slowdown", "other_slowdown", "low", "other_low", "high", "other_high", "binding"),
    *("memory", "safe", "taken", "same_user", "overlap_h", "saved_h", "saved_most_h"),
    *("runs", "other_runs", "why", "profile", "other_profile"),
)
_MATRIX_COLUMNS = (
    *("one", "other", "gpu_model", "gpus", "slowdown", "low", "high", "binding"),
    *("memory_holds", "profiled", "other_profiled"),
)


def colocate_json(report: ColocateReport, *, top: int | None = None) -> dict[str, Any]:
    """Return JSON values: GPU-hours, shares, slowdowns; null where unknown.

    `top`: pairs per list; sums are over all.
    """
    lists = {
        name: [_proposal(report, proposal) for proposal in getattr(report, name)[:top]]
        for name in ("proposals", "trials", "refused", "chosen")
    }
    matrices = None if report.matrices is None else list(map(_matrix, report.matrices))
    return json_values(
        {
            **_fields(report, "jobs", "gpu_hours", "first", "last", "kinds"),
            **_fields(report, "saved_h", "saved_most_h"),
            **lists,
            "left_out": [
                {"reason": reason, "words": LEFT_OUT[reason], "jobs": jobs, "gpu_hours": hours}
                for reason, jobs, hours in report.left_out
            ],
            "missing_counters": report.missing,
            "not_compared": report.cut,
            "profiled": [_group(kind) for kind in report.profiled],
            "profiles_refused": report.refused_profiles,
            "matrices": matrices,
            "calibration": _fields(report.calibration, "measured_on", "source"),
        }
    )


def _fields(value: object, *names: str) -> dict[str, Any]:
    """Some of the fields and properties of a report object."""
    return {name: getattr(value, name) for name in names}


def _option(option: SharingOption | None) -> dict[str, Any]:
    """A sharing mode: slowdowns and their lower and upper ends, of both in the order of the pair."""
    if option is None:
        return dict.fromkeys(("mode", "slowdowns", "low", "high", "binding", "part", "slices"))
    slices = option.slices and [part.name for part in option.slices]
    return {
        **_fields(option, "mode", "slowdowns", "low", "high", "binding", "part"),
        "slices": slices,
    }


def _proposal(report: ColocateReport, proposal: SharingProposal) -> dict[str, Any]:
    """A pair: both job groups, the best sharing mode, all others, what to type."""
    settings = report.settings
    return {
        "one": _group(proposal.one),
        "other": _group(proposal.other),
        **_fields(proposal, "verdict", "safe", "taken", "same_user", "memory"),
        **_fields(proposal, "overlap_h", "saved_h", "saved_most_h"),
        **_option(proposal.best),
        "options": [_option(option) for option in proposal.options],
        "worst_kernels": proposal.worst,
        "why": list(why(report, proposal)),
        "setup": [
            {"title": step.title, "lines": step.lines.splitlines()}
            for step in setup_steps(proposal, settings)
        ],
        "probation": probation(proposal, settings),
        "cautions": cautions(proposal),
    }


def _group(kind: JobGroup) -> dict[str, Any]:
    """A job group, with the mean demand of its runs, and the run of highest demand."""
    return {
        **_fields(kind, "label", "user", "name", "array"),
        "gpu_model": kind.device.name,
        **_fields(kind, "gpus", "runs", "jobs", "gpu_hours", "busy", "spread", "spread_of"),
        "mean": _demand(kind.mix.mean),
        "highest": _demand(kind.mix.highest),
        "profile": None if kind.profile is None else _profile(kind.profile),
    }


def _profile(profile: GroupProfile) -> dict[str, Any]:
    return {
        **json_values(profile, without=("mix",)),
        "mean": _demand(profile.mix.mean),
        "members": [
            {"share": share, "kernel": kernel.name, **_demand(kernel)}
            for share, kernel in profile.mix.members
        ],
    }


def _demand(demand: Demand) -> dict[str, Any]:
    return {
        "cycles": demand.cycles,
        "dram_of_peak": demand.dram,
        **_fields(demand, "sm_share", "hbm_bytes"),
    }


def _matrix(of_all: GroupMatrix) -> dict[str, Any]:
    bounds = of_all.bounds
    names = dict(enumerate(bounds.resources)) | {NOTHING: None}
    return {
        "gpu_model": of_all.kinds[0].device.name,
        "gpus": of_all.kinds[0].gpus,
        "kinds": [kind.label for kind in of_all.kinds],
        "profiled": [kind.profile is not None for kind in of_all.kinds],
        "slowdown": bounds.slowdown.tolist(),
        "low": bounds.low.tolist(),
        "high": bounds.high.tolist(),
        "binding": [[names[index] for index in row] for row in bounds.binding.tolist()],
        "memory_holds": of_all.fits.tolist(),
    }


def colocate_csv(report: ColocateReport, *, top: int | None = None, raw: bool = False) -> str:
    """Return pairs as CSV: proposed, to try, explained, on request rejected; or the matrix.

    Texts are harmless to spreadsheets and terminals unless `raw`.
    """
    if report.matrices is not None:
        rows = [row for of_all in report.matrices for row in _cells(_matrix(of_all))]
        table = pl.DataFrame(rows, schema=_MATRIX_COLUMNS, orient="row", infer_schema_length=None)
        return table_csv(table, raw=raw)
    lists = (report.proposals[:top], report.trials[:top], report.chosen, report.refused[:top])
    rows = [_row(_proposal(report, proposal)) for pairs in lists for proposal in pairs]
    table = pl.DataFrame(rows, schema=_PAIR_COLUMNS, orient="row", infer_schema_length=None)
    return table_csv(table, raw=raw)


def _row(pair: Mapping[str, Any]) -> list[Any]:
    """Return a pair as JSON has it in the order of the columns; lists as one text."""
    values = {name: pair.get(name) for name in _PAIR_COLUMNS}
    values |= {name: pair["one"][name] for name in ("gpu_model", "gpus")}
    for prefix, group in (("", pair["one"]), ("other_", pair["other"])):
        values[f"{prefix}runs"] = group["runs"]
        values[f"{prefix}profile"] = group["profile"] and " ".join(group["profile"]["reports"])
    values["one"], values["other"] = pair["one"]["label"], pair["other"]["label"]
    for name, column in _ENDS.items():
        values[column], values[f"other_{column}"] = pair[name] or (None, None)
    for name in ("slices", "why"):
        values[name] = pair[name] and " ".join(pair[name])
    return list(values.values())


def _cells(of_all: Mapping[str, Any]) -> list[list[Any]]:
    """Return a row for each cell of a matrix."""
    rows = []
    for i, row_label in enumerate(of_all["kinds"]):
        for j, other in enumerate(of_all["kinds"]):
            cell = [of_all[name][i][j] for name in ("slowdown", "low", "high", "binding")]
            profiles = [of_all["profiled"][index] for index in (i, j)]
            where = [of_all["gpu_model"], of_all["gpus"]]
            rows.append([row_label, other, *where, *cell, of_all["memory_holds"][i][j], *profiles])
    return rows
