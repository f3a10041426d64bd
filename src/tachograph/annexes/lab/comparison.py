"""Studies side by side as text, JSON, CSV and a page: a row per number, a column per study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from tachograph.annexes.lab.figures.registry import QUESTIONS
from tachograph.annexes.lab.figures.study import StudyReport
from tachograph.annexes.lab.study import NOT_ANSWERED, first_sentences, json_text, study_json
from tachograph.annexes.lab.study_files import WrittenStudy, move, writable
from tachograph.catalog.columns import local_time
from tachograph.catalog.spreadsheets import table_csv
from tachograph.catalog.units import text
from tachograph.catalog.version import __version__
from tachograph.report.json_values import json_values
from tachograph.report.pages import environment

STEM = "compare"
# (what it is, field of a dataset, unit)
DATASET_NUMBERS: Sequence[tuple[str, str, str]] = (
    ("jobs studied", "jobs", "count"),
    ("GPUs", "gpus", "count"),
    ("GPU-hours", "gpu_hours", "count"),
    ("energy", "energy_j", "J"),
    ("coverage, median", "coverage_median", "fraction"),
)
MOST_STUDIES = 6  # columns that a page holds
# (figure, fact, label, unit) of the printed numbers; all others are in the files
NUMBERS: Sequence[tuple[str, str, str, str]] = (
    ("job_overview", "duration_median", "median run time", "h"),
    ("job_overview", "utilisation_median", "median utilisation", "fraction"),
    ("pipe_combinations", "fp64_share", "jobs that use FP64", "fraction"),
    ("pipe_combinations", "fp32_share", "jobs that use FP32", "fraction"),
    ("pipe_combinations", "fp16_share", "jobs that use FP16", "fraction"),
    ("pipe_combinations", "tensor_share", "jobs that use tensor", "fraction"),
    ("hbm_peak", "jobs", "large-memory jobs", "count"),
    ("hbm_peak", "under_50_share", "of them, peak under 50 %", "fraction"),
    ("hbm_peak", "at_least_90_share", "of them, peak of 90 % or more", "fraction"),
    ("bounds", "bound_memory_share", "memory-bound, as published", "fraction"),
    ("bounds", "limiter_memory_share", "limiter memory", "fraction"),
    ("bounds", "limiter_compute_share", "limiter compute", "fraction"),
    ("bounds", "limiter_neither_share", "limiter neither", "fraction"),
    ("energy", "typed_energy_kwh", "energy, jobs of known type", "kWh"),
    ("spatial_imbalance", "median", "median spatial imbalance", "ratio"),
    ("spatial_imbalance", "uneven_share", "spatial imbalance over 0.70", "fraction"),
    ("spatial_imbalance", "one_gpu_share", "used one GPU of several", "fraction"),
    ("temporal_imbalance", "median", "median temporal imbalance", "ratio"),
    ("temporal_imbalance", "uneven_share", "temporal imbalance over 0.70", "fraction"),
    ("correlation", "rho_sm_active", "rho of utilisation, SM activity", "ratio"),
    ("correlation", "rho_power_w", "rho of utilisation, power", "ratio"),
)


@dataclass(frozen=True, slots=True)
class StudyComparison:
    """Studies of the same figures and settings, each with the label of its lake or month."""

    labels: tuple[str, ...]
    reports: tuple[StudyReport, ...]

    def numbers(self) -> list[tuple[str, list[str]]]:
        """Return (label, texts per study) of the printed numbers that at least one study has."""
        rows = []
        for label, name, unit in DATASET_NUMBERS:
            values = [getattr(report.dataset, name) for report in self.reports]
            rows.append((label, [text(value, unit) for value in values]))
        numbers = [
            {figure.entry.name: figure.numbers for figure in report.figures}
            for report in self.reports
        ]
        for name, fact, label, unit in NUMBERS:
            facts = [
                of_study[name].number(fact) if name in of_study else None for of_study in numbers
            ]
            if any(value is not None for value in facts):
                rows.append((label, [text(value, unit) for value in facts]))
        return rows

    def facts(self) -> pl.DataFrame:
        """Return all facts as text: (figure, fact, a column per study); null if missing."""
        rows: dict[tuple[str, str], list[str | None]] = {}
        for index, report in enumerate(self.reports):
            for name, facts in report.facts().items():
                for fact, value in facts.items():
                    texts = rows.setdefault((name, fact), [None] * len(self.reports))
                    texts[index] = None if value is None else str(value)
        return pl.DataFrame(
            [(*names, *texts) for names, texts in rows.items()],
            schema=dict.fromkeys(("figure", "fact", *self.labels), pl.String()),
            orient="row",
        )


def comparison_json(comparison: StudyComparison) -> dict[str, Any]:
    """Return {studies: {label: its study.json}, facts: [{figure, fact, one value per label}]}."""
    studies = dict(zip(comparison.labels, map(study_json, comparison.reports), strict=True))
    return json_values({"studies": studies, "facts": comparison.facts()})


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


def _answer(report: StudyReport, name: str) -> tuple[str, str]:
    """Short answer of one study, and its consequence."""
    said = first_sentences(report.of_question(name)) or [NOT_ANSWERED]
    return " ".join(said), report.consequences().get(name, "")


def write_comparison(comparison: StudyComparison, folder: Path) -> WrittenStudy:
    """Write compare.html, compare.json and compare.csv (all facts) into a folder.

    Errors: those of `write_study`.
    """
    files = {
        "csv": table_csv(comparison.facts()),
        "html": comparison_html(comparison),
        "json": json_text(comparison_json(comparison)),
    }
    names = [f"{STEM}.{suffix}" for suffix in files]
    with writable(folder) as aside:
        for name, content in zip(names, files.values(), strict=True):
            (aside / name).write_text(content, encoding="utf-8")
        move(aside, folder, names)
    return WrittenStudy(folder, tuple(names))
