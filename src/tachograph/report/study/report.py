"""The study of a system: the data it is made of, the figures with their numbers, the answers to six questions.

Everything a renderer needs, as values; a figure is drawn when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import polars as pl
from matplotlib.figure import Figure

from tachograph.config import Analysis, Filters
from tachograph.figures.registry import FIGURES, QUESTIONS, Entry, find, load
from tachograph.figures.study import Fact, Numbers, Options, Study
from tachograph.report.columns import local_time
from tachograph.report.study.dataset import Dataset

Tell = Callable[[str, int, int], None]
VARIANTS: Mapping[str, str] = {
    "paper": "metrics as the paper defines them, where the configuration says nothing else",
    "notebooks": (
        "metrics as the public notebooks of the paper compute them: idle windows and GPUs count as even and steady, "
        "GPUs are those with samples, energy is not scaled to the run time, pipes are used above a fixed threshold"
    ),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """How the study was made. `choices`: (what, as given) by which the reader chose jobs; `no_filter`: filters off."""

    options: Options
    variant: str
    analysis: Analysis
    filters: Filters
    choices: tuple[tuple[str, str], ...] = ()
    no_filter: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MadeFigure:
    """One figure of a study: its entry in the registry, its numbers, what it says in words."""

    entry: Entry
    numbers: Numbers
    sentences: tuple[str, ...]

    @property
    def drawn(self) -> bool:
        """Whether some part of it can be drawn."""
        return any(part in self.numbers for part in self.numbers.tables)

    @property
    def missing(self) -> tuple[str, ...]:
        """Each part that is not drawn, and why; a reason that several share is given once."""
        reasons: dict[str, list[str]] = {}
        for part, why in self.numbers.missing.items():
            reasons.setdefault(why, []).append(part.replace("_", " "))
        return tuple(f"{', '.join(parts)}: {why}" for why, parts in reasons.items())

    @property
    def status(self) -> str:
        """Drawn, drawn in part, or not, and why."""
        if not self.drawn:
            return "; ".join(["not drawn", *dict.fromkeys(self.numbers.missing.values())])
        return "; ".join(["drawn", *(f"without {one}" for one in self.missing)])

    def draw(self) -> Figure:
        """Return the drawing."""
        return load(self.entry).draw(self.numbers)


@dataclass(frozen=True, slots=True)
class StudyReport:
    """The study of a system. `figures` are those asked for, in the order of the registry."""

    site: str
    now: datetime
    zone_name: str
    dataset: Dataset
    settings: Settings
    figures: tuple[MadeFigure, ...]

    @property
    def title(self) -> str:
        """What stands above it."""
        return f"How GPUs are used: {self.site}" if self.site else "How GPUs are used"

    @property
    def span(self) -> str:
        """From when to when jobs ran, in the site's zone."""
        first, last = (local_time(moment, self.zone_name)[:10] for moment in (self.dataset.first, self.dataset.last))
        return first if first == last else f"{first} to {last}"

    def of_question(self, question: str | None) -> tuple[MadeFigure, ...]:
        """Return the figures that help to answer a question; those that answer none for None."""
        return tuple(figure for figure in self.figures if figure.entry.question == question)

    def answers(self) -> dict[str, tuple[str, ...]]:
        """Return {RQ1: sentences, ...} for the questions of which a figure was asked for; empty: not answered."""
        return {
            name: tuple(sentence for figure in self.of_question(name) for sentence in figure.sentences)
            for name in QUESTIONS
            if self.of_question(name)
        }

    def facts(self) -> dict[str, Mapping[str, Fact]]:
        """Return {figure: its single numbers}."""
        return {figure.entry.name: figure.numbers.facts for figure in self.figures}


def chosen_figures(names: str | Sequence[str]) -> tuple[Entry, ...]:
    """Return the figures of these names (or numbers) in their order; all of them for none.

    Errors: NotFoundError for a name that is none.
    """
    asked = {find(name) for name in ([names] if isinstance(names, str) else names)}
    return tuple(entry for entry in FIGURES if not asked or entry in asked)


def make_figure(entry: Entry, study: Study) -> MadeFigure:
    """Return a figure with its numbers."""
    module = load(entry)
    numbers = module.compute(study)
    return MadeFigure(entry, numbers, tuple(module.sentences(numbers)))


def build_study(
    jobs: pl.DataFrame,
    dataset: Dataset,
    settings: Settings,
    *,
    site: str = "",
    now: datetime,
    zone_name: str = "UTC",
    figures: Sequence[Entry] = FIGURES,
    tell: Tell | None = None,
) -> StudyReport:
    """Return the study of some jobs: rows of job_summaries, as the settings define the metrics."""
    study = Study(jobs, settings.options)
    made = []
    for place, entry in enumerate(figures):
        if tell:
            tell(f"compute {entry.name}", place, len(figures))
        made.append(make_figure(entry, study))
    return StudyReport(site, now, zone_name, dataset, settings, tuple(made))
