"""Studies side by side: the same numbers of several lakes or months, one column per study.

A row per number, a column per study.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from tachograph.annexes.lab.figures.study import MadeFigure, StudyReport
from tachograph.catalog.units import text

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


def _number(figure: MadeFigure | None, fact: str) -> float | None:
    return None if figure is None else figure.numbers.number(fact)


@dataclass(frozen=True, slots=True)
class StudyComparison:
    """Studies of the same figures and settings, each with the label of its lake or month."""

    labels: tuple[str, ...]
    reports: tuple[StudyReport, ...]

    def figures(self, name: str) -> list[MadeFigure | None]:
        """Return the figure of that name of each study; None where it was not chosen."""
        figures = []
        for report in self.reports:
            by_name = {figure.entry.name: figure for figure in report.figures}
            figures.append(by_name.get(name))
        return figures

    def numbers(self) -> list[tuple[str, list[str]]]:
        """Return (label, texts per study) of the printed numbers that at least one study has."""
        datasets = [report.dataset for report in self.reports]
        rows = []
        for label, name, unit in DATASET_NUMBERS:
            rows.append((label, [text(getattr(dataset, name), unit) for dataset in datasets]))
        for figure, fact, what, unit in NUMBERS:
            values = [_number(made_figure, fact) for made_figure in self.figures(figure)]
            if any(value is not None for value in values):
                rows.append((what, [text(value, unit) for value in values]))
        return rows

    def facts(self) -> pl.DataFrame:
        """Return all facts as text: (figure, fact, a column per study); null if missing."""
        rows: dict[tuple[str, str], list[str | None]] = {}
        for index, report in enumerate(self.reports):
            for name, facts in report.facts().items():
                for fact, value in facts.items():
                    texts = rows.setdefault((name, fact), [None] * len(self.reports))
                    texts[index] = None if value is None else str(value)
        columns: dict[str, list[str | None]] = {
            "figure": [name for name, _ in rows],
            "fact": [fact for _, fact in rows],
        }
        for index, label in enumerate(self.labels):
            columns[label] = [texts[index] for texts in rows.values()]
        return pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String()))
