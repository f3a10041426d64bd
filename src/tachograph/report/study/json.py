"""The study as JSON values: study.json, and the numbers beside each figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from tachograph import __version__
from tachograph.figures.registry import QUESTIONS
from tachograph.figures.study import Fact
from tachograph.report.study.dataset import Dataset
from tachograph.report.study.report import MadeFigure, Settings, StudyReport


def study_json(report: StudyReport, files: Sequence[str] = ()) -> dict[str, Any]:
    """Return everything a study says: dataset, settings, {figure: facts, missing, sentences}, {question: answers}.

    `files`: what was written beside it. Times are ISO 8601 in UTC, fractions 0..1, missing values null.
    """
    return {
        "title": report.title,
        "site": report.site,
        "made": report.now.isoformat(),
        "tachograph": __version__,
        "settings": _settings(report.settings),
        "dataset": _dataset(report.dataset),
        "figures": {figure.entry.name: figure_json(figure) for figure in report.figures},
        "questions": {
            name: {"question": QUESTIONS[name], "answers": list(said)} for name, said in report.answers().items()
        },
        "files": list(files),
    }


def figure_json(figure: MadeFigure) -> dict[str, Any]:
    """Return the numbers of one figure, without its tables, which are CSV files."""
    entry, numbers = figure.entry, figure.numbers
    return {
        "number": entry.number,
        "name": entry.name,
        "title": entry.title,
        "question": entry.question,
        "drawn": figure.drawn,
        "jobs": numbers.jobs,
        "facts": {name: _fact(value) for name, value in numbers.facts.items()},
        "missing": dict(numbers.missing),
        "sentences": list(figure.sentences),
        "tables": {part: f"{entry.stem}.{part}.csv" for part in numbers.tables},
    }


def json_text(value: Mapping[str, Any]) -> str:
    """Return indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def _fact(value: Fact) -> Fact:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _settings(settings: Settings) -> dict[str, Any]:
    return {
        "variant": settings.variant,
        "pipe": settings.options.pipe,
        "window_s": settings.options.window_s,
        "chosen_by": dict(settings.choices),
        "no_filter": list(settings.no_filter),
        "filters": msgspec.to_builtins(settings.filters),
        "analysis": msgspec.to_builtins(settings.analysis),
    }


def _dataset(dataset: Dataset) -> dict[str, Any]:
    values = asdict(dataset)
    values["coverage_low_share"] = dataset.coverage_low_share
    values["never_measured"] = list(dataset.never_measured)
    recorded: dict[str, Any] = values["recorded"]
    for holder in (values, recorded):
        for name in ("first", "last"):
            holder[name] = holder[name].isoformat() if holder[name] else None
    return values
