"""The study of a system: settings, figures with their numbers, answers to the questions.

Everything a renderer needs, as values; a figure is drawn on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain

import polars as pl
from matplotlib.figure import Figure

from tachograph.annexes.lab.figures.consequences import consequence
from tachograph.annexes.lab.figures.dataset import Dataset
from tachograph.annexes.lab.figures.numbers import Fact, FigureNumbers, Study, StudyOptions
from tachograph.annexes.lab.figures.registry import (
    FIGURES,
    QUESTIONS,
    FigureEntry,
    find_figure,
    load_figure,
)
from tachograph.catalog.columns import local_time
from tachograph.catalog.config import AnalysisOptions, StudyFilters
from tachograph.pipeline.summaries import as_in_notebooks, used_pipes

Progress = Callable[[str, int, int], None]
VARIANTS: Mapping[str, str] = {
    "paper": "metrics as the paper defines them, unless configured otherwise",
    "notebooks": (
        "metrics as the public notebooks of the paper compute them: idle windows and GPUs "
        "count as even and steady, "
        "GPUs are those with samples, energy is not scaled to the run time, pipes are used "
        "above a fixed threshold"
    ),
}


@dataclass(frozen=True, slots=True)
class StudySettings:
    """Settings of a study. `choices`: (option, value) of the job filter; `no_filter`: filters
    off.
    """

    options: StudyOptions
    variant: str
    analysis: AnalysisOptions
    filters: StudyFilters
    choices: tuple[tuple[str, str], ...] = ()
    no_filter: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MadeFigure:
    """One computed figure: registry entry, numbers, sentences."""

    entry: FigureEntry
    numbers: FigureNumbers
    sentences: tuple[str, ...]

    @property
    def drawn(self) -> bool:
        """Whether any part can be drawn."""
        return any(part in self.numbers for part in self.numbers.tables)

    @property
    def shown_jobs(self) -> int:
        """Number of studied jobs with the values that the figure needs."""
        shown = self.numbers.number("shown_jobs")
        if shown is None:
            shown = self.numbers.number("jobs")
        return int(shown or 0) if self.drawn else 0

    @property
    def missing(self) -> tuple[str, ...]:
        """Parts that are not drawn, with reasons; shared reasons once."""
        reasons: dict[str, list[str]] = {}
        for part, why in self.numbers.missing.items():
            reasons.setdefault(why, []).append(part.replace("_", " "))
        return tuple(f"{', '.join(parts)}: {why}" for why, parts in reasons.items())

    @property
    def status(self) -> str:
        """Drawn, drawn in part, or not, and why."""
        if not self.drawn:
            return "; ".join(["not drawn", *dict.fromkeys(self.numbers.missing.values())])
        return "; ".join(["drawn", *(f"without {counter}" for counter in self.missing)])

    def draw(self) -> Figure:
        """Return the drawing."""
        return load_figure(self.entry).draw(self.numbers)


@dataclass(frozen=True, slots=True)
class StudyReport:
    """The study of a system. `figures` are the chosen ones, in the order of the registry."""

    site: str
    now: datetime
    zone_name: str
    dataset: Dataset
    settings: StudySettings
    figures: tuple[MadeFigure, ...]

    @property
    def title(self) -> str:
        """Heading of the study."""
        return f"How GPUs are used: {self.site}" if self.site else "How GPUs are used"

    @property
    def span(self) -> str:
        """From when to when jobs ran, in the site's zone."""
        first, last = (
            local_time(moment, self.zone_name)[:10]
            for moment in (self.dataset.first, self.dataset.last)
        )
        return first if first == last else f"{first} to {last}"

    def of_question(self, question: str | None) -> tuple[MadeFigure, ...]:
        """Return the figures of a question; None: those of no question."""
        return tuple(figure for figure in self.figures if figure.entry.question == question)

    def answers(self) -> dict[str, tuple[str, ...]]:
        """Return {RQ1: sentences, ...} for the questions of the chosen figures; empty: not
        answered.
        """
        answers: dict[str, tuple[str, ...]] = {}
        for name in QUESTIONS:
            figures = self.of_question(name)
            if figures:
                sentences = (figure.sentences for figure in figures)
                answers[name] = tuple(chain.from_iterable(sentences))
        return answers

    def consequences(self) -> dict[str, str]:
        """Return {RQ1: consequence, ...} for the answers that have one."""
        numbers = {figure.entry.name: figure.numbers for figure in self.figures}
        sentences = {name: consequence(name, numbers) for name in self.answers()}
        return {name: sentence for name, sentence in sentences.items() if sentence}

    def facts(self) -> dict[str, Mapping[str, Fact]]:
        """Return {figure: its single numbers}."""
        return {figure.entry.name: figure.numbers.facts for figure in self.figures}


def chosen_figures(names: str | Sequence[str]) -> tuple[FigureEntry, ...]:
    """Return the figures of these names or numbers in order; all by default.

    Errors: NotFoundError for an unknown name.
    """
    entries = {find_figure(name) for name in ([names] if isinstance(names, str) else names)}
    return tuple(sorted(entries, key=lambda entry: entry.number)) if entries else FIGURES


def make_figure(entry: FigureEntry, study: Study) -> MadeFigure:
    """Return a figure with its numbers."""
    module = load_figure(entry)
    numbers = module.compute(study)
    return MadeFigure(entry, numbers, tuple(module.sentences(numbers)))


def build_study(
    study: Study,
    dataset: Dataset,
    settings: StudySettings,
    *,
    site: str = "",
    now: datetime,
    zone_name: str = "UTC",
    figures: Sequence[FigureEntry] = FIGURES,
    progress: Progress | None = None,
) -> StudyReport:
    """Return the study of some jobs, whose metrics are as the settings define them."""
    results = []
    for number, entry in enumerate(figures):
        if progress:
            progress(f"compute {entry.name}", number, len(figures))
        results.append(make_figure(entry, study))
    return StudyReport(site, now, zone_name, dataset, settings, tuple(results))


def as_defined(
    jobs: pl.DataFrame, settings: StudySettings, windows: pl.DataFrame | None = None
) -> pl.DataFrame:
    """Return rows of job_summaries with metrics as the settings define them.

    `windows`: one row per job_key with the columns that depend on the window (`spatial_imbalance`
    of summarize.windows_of_minutes), where it is not the one that the jobs were summarized with.
    `pipes` are judged anew in either variant: the percentile is that of the jobs of the study.
    """
    if windows is not None:
        jobs = jobs.update(windows, on="job_key", how="left", include_nulls=True)
    if settings.variant == "notebooks":
        return as_in_notebooks(jobs, settings.analysis)
    return used_pipes(jobs, jobs, analysis=settings.analysis)
