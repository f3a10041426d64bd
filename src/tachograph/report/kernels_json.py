"""Kernels as JSON, and as CSV: the same numbers as the text, not rounded; null, or an empty cell, where not known."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tachograph.catalog.units import printable
from tachograph.report.kernels_sentences import limited_words, roofline_words
from tachograph.sharing.demand import Demand, GpuCapacity
from tachograph.sharing.kernel_facts import (
    GpuPart,
    KernelFact,
    KernelPair,
    KernelsReport,
    KernelView,
    SetEstimate,
    pairs_of,
)
from tachograph.sharing.mixes import MixOutcome as Mixed
from tachograph.sharing.roofline import KernelLimits, RooflinePlacement
from tachograph.sharing.utilization import Pitfall


def kernels_json(report: KernelsReport) -> dict[str, Any]:
    """Return the content of the report as JSON values: fractions 0..1, seconds, byte/s, scores 0..100."""
    return {
        "files": [asdict(file) for file in report.files],
        "problems": list(report.problems),
        "sharing": asdict(report.sharing),
        "gpus": [_part(part) for part in report.parts],
        "explained": None if report.explained is None else report.explained.number,
        "beside": list(report.beside),
        "together": None if report.together is None else _together(report.together),
    }


def kernels_csv(report: KernelsReport) -> str:
    """Return the requested part as CSV: the set that runs together, else the pairs, else the kernels."""
    if report.together is not None:
        return _csv(_together(report.together)["members"])
    pairs = [_pair(part, pair) for part in report.parts for pair in pairs_of(part)]
    return _csv(pairs or [_flat(part, view) for part in report.parts for view in part.kernels])


def _part(part: GpuPart) -> dict[str, Any]:
    return {
        "gpu": _gpu(part.gpu),
        "calibration": asdict(part.calibration),
        "left_out": part.left_out,
        "kernels": [_kernel(view) for view in part.kernels],
        "disturbs_most": None if part.disturbers is None else [asdict(one) for one in part.disturbers],
        "columns": [{"number": view.number, "label": view.label, "name": view.kernel.name} for view in part.columns],
        "pairs": None if part.pairs is None else [_pair(part, pair) for pair in pairs_of(part)],
        "mixed": None if part.mixed is None else _mixed(part.mixed),
        "not_collected": [asdict(lack) for lack in part.lacking],
        "collect_with": part.command,
    }


def _mixed(mixed: Mixed) -> dict[str, Any]:
    """All kernels beside all of the other report: this side, then the other."""
    return {
        "slowdown": mixed.slowdown,
        "other_slowdown": mixed.other_slowdown,
        "binding": mixed.bindings[0],
        "other_binding": mixed.bindings[1],
        "worst": mixed.worst,
        "safe": mixed.safe,
    }


def _gpu(gpu: GpuCapacity) -> dict[str, Any]:
    known = {name: getattr(gpu, name) for name in gpu.__slots__ if name != "told_by"}
    return {**known, "told_by": dict(gpu.told_by)}


def _kernel(view: KernelView) -> dict[str, Any]:
    kernel, judged = view.kernel, view.judged
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
        "reports": list(kernel.reports),
        "ranges": list(kernel.ranges),
        "uses": _values(view.facts),
        "read_from": {fact.name: fact.metric for fact in view.facts.values() if fact.value is not None},
        "scores": _values(view.scores),
        "score_notes": {fact.name: fact.note for fact in view.scores.values() if fact.note},
        "limited_by": judged.limited_by,
        "limits": _limits(judged.limits),
        "disturbed": [asdict(fear) for fear in judged.fears],
        "pitfalls": [_pitfall(pitfall) for pitfall in judged.pitfalls],
        "roofline": _roofline(judged.placement),
        "demand": _demand(kernel.demand),
        "not_collected": [asdict(missing) for missing in kernel.missing],
        "problems": list(kernel.problems),
    }


def _limits(found: KernelLimits) -> dict[str, Any]:
    return {
        "words": limited_words(found),
        "bound": found.bound,
        "resources": [asdict(limit) for limit in found.resources],
        "stall": None if found.stall is None else asdict(found.stall),
    }


def _pitfall(pitfall: Pitfall) -> dict[str, Any]:
    return {"name": pitfall.name, "why": pitfall.why, "numbers": dict(pitfall.numbers)}


def _roofline(place: RooflinePlacement) -> dict[str, Any]:
    known = {name: getattr(place, name) for name in place.__slots__ if name not in ("achieved", "roofs")}
    roofs = [asdict(roof) for roof in place.roofs]
    return {"words": roofline_words(place), **known, "achieved": dict(place.achieved), "roofs": roofs}


def _demand(demand: Demand) -> dict[str, Any]:
    known = {name: getattr(demand, name) for name in demand.__slots__ if name not in ("name", "cycles", "footprint")}
    footprint = None if demand.footprint is None else asdict(demand.footprint)
    return {"cycles": dict(demand.cycles), **known, "footprint": footprint}


def _values(facts: Mapping[str, KernelFact]) -> dict[str, float | None]:
    return {fact.name: fact.value for fact in facts.values()}


def _pair(part: GpuPart, pair: KernelPair) -> dict[str, Any]:
    return {
        "gpu": part.gpu.name,
        "row": pair.row.number,
        "row_name": pair.row.label,
        "column": pair.column.number,
        "column_name": pair.column.label,
        "slowdown": pair.slowdown,
        "gain": pair.gain,
        "binding": pair.binding,
        "safe": pair.safe,
    }


def _together(together: SetEstimate) -> dict[str, Any]:
    found = together.estimate
    return {
        "members": [
            {"number": view.number, "label": view.label, **asdict(outcome)}
            for view, outcome in zip(together.members, found.members, strict=True)
        ],
        "sums": dict(found.sums),
        "gain": found.gain,
        "worst_gain": found.worst_gain,
        "safe": found.safe,
        "unknown": list(found.unknown),
    }


def _flat(part: GpuPart, view: KernelView) -> dict[str, Any]:
    """One row of a table."""
    placed = view.judged.placement
    return {
        "gpu": part.gpu.name,
        "number": view.number,
        "label": view.label,
        "name": printable(view.kernel.name),  # a name must steer no terminal and split no row
        "launches": view.kernel.launches,
        "seconds": view.kernel.seconds,
        "share": view.share,
        **_values(view.facts),
        "flop_per_s": sum(placed.achieved.values()) if placed.achieved else None,
        "roofline_side": placed.side,
        **_values(view.scores),
        "limited_by": view.judged.limited_by,
        "disturbed_by": " ".join(fear.resource for fear in view.judged.fears if fear.level == "high"),
        "disturbed_some": " ".join(fear.resource for fear in view.judged.fears if fear.level == "some"),
        "disturbed_unknown": " ".join(fear.resource for fear in view.judged.fears if fear.level == "unknown"),
    }


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return buffer.getvalue()


def _cell(value: object) -> object:
    """As polars writes it elsewhere: true and false in small letters."""
    return str(value).lower() if isinstance(value, bool) else value
