"""Studies side by side as text, JSON, CSV and a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tachograph.annexes.lab.figures.comparison import StudyComparison
from tachograph.annexes.lab.figures.registry import QUESTIONS
from tachograph.annexes.lab.study import NOT_ANSWERED, first_sentences, json_text, study_json
from tachograph.annexes.lab.study_files import WrittenStudy, csv_of, move, writable
from tachograph.catalog.columns import local_time
from tachograph.catalog.version import __version__
from tachograph.report.json_values import json_values
from tachograph.report.pages import environment

STEM = "compare"


def comparison_json(comparison: StudyComparison) -> dict[str, Any]:
    """Return {studies: {label: its study.json}, facts: [{figure, fact, one value per label}]}."""
    studies = dict(zip(comparison.labels, map(study_json, comparison.reports), strict=True))
    return json_values({"studies": studies, "facts": comparison.facts().to_dicts()})


def comparison_rows(comparison: StudyComparison) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the headings and the rows of the numbers that are printed, one column per study."""
    return ("number", *comparison.labels), [
        (what, *values) for what, values in comparison.numbers()
    ]


def comparison_html(comparison: StudyComparison) -> str:
    """Return the page."""
    answers = []
    for name, question in QUESTIONS.items():
        if any(report.of_question(name) for report in comparison.reports):
            texts = [_answer(report, name) for report in comparison.reports]
            answers.append((name, question, texts))
    first = comparison.reports[0]
    return (
        environment(__package__)
        .get_template("compare.html.j2")
        .render(
            labels=comparison.labels,
            spans=[report.span for report in comparison.reports],
            rows=comparison.numbers(),
            answers=answers,
            version=__version__,
            made=local_time(first.now, first.zone_name),
            zone_name=first.zone_name,
        )
    )


def _answer(report: Any, name: str) -> tuple[str, str]:
    """Short answer of one study, and its consequence."""
    said = first_sentences(report.of_question(name)) or [NOT_ANSWERED]
    return " ".join(said), report.consequences().get(name, "")


def write_comparison(comparison: StudyComparison, folder: Path) -> WrittenStudy:
    """Write compare.html, compare.json and compare.csv (all facts) into a folder.

    Errors: those of `write_study`.
    """
    with writable(folder) as aside:
        (aside / f"{STEM}.csv").write_text(csv_of(comparison.facts()), encoding="utf-8")
        (aside / f"{STEM}.json").write_text(
            json_text(comparison_json(comparison)), encoding="utf-8"
        )
        (aside / f"{STEM}.html").write_text(comparison_html(comparison), encoding="utf-8")
        files = sorted(file.name for file in aside.iterdir())
        move(aside, folder, files)
    return WrittenStudy(folder, tuple(files))
