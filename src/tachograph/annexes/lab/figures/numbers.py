"""Interface of a study's figures: jobs and options in, numbers and a drawing out.

A figure is a module with `compute(study) -> Numbers`, `draw(numbers) -> Figure` and
`sentences(numbers)`; the registry lists them. Only `compute` reads jobs: drawings and sentences use
the numbers, which are written beside the figure. A part without measured counters is not computed;
`missing` names them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Protocol, TypeAlias

import polars as pl
from matplotlib.figure import Figure

from tachograph.catalog.units import plural

Fact: TypeAlias = float | int | str | None


@dataclass(frozen=True, slots=True)
class StudyOptions:
    """Options of a study. pipe: its roofline decides the bound; window_s: window of SI.

    whiskers: where those of boxes end (`statistics.WHISKERS`).
    """

    pipe: str = "fp64"  # fp64, fp32, fp16, tensor
    window_s: int = 60  # 60, 300, 900, 1800
    whiskers: str = "tukey"  # tukey, percentile


@dataclass(frozen=True, slots=True)
class Study:
    """Jobs of a study after filters: rows of job_summaries, one per run.

    windows: (job_key, window_s, spatial_imbalance), one row per job and length of windows; None
    where not read.
    """

    jobs: pl.DataFrame
    options: StudyOptions = field(default_factory=StudyOptions)
    windows: pl.DataFrame | None = None

    @property
    def bound(self) -> str:
        """Column of the job type, compute-bound or memory-bound, by the selected pipe."""
        return "bound" if self.options.pipe == "fp64" else f"bound_{self.options.pipe}"

    def measured(self, columns: Iterable[str]) -> bool:
        """Whether some job has a value in each of the columns."""
        return all(self.jobs.get_column(name).null_count() < self.jobs.height for name in columns)

    def why_not(self, columns: Iterable[str]) -> str | None:
        """Return why a part that needs these columns is missing; None if some job has each."""
        if not self.jobs.height:
            return "no jobs"
        lacking = [name for name in columns if not self.measured([name])]
        return not_recorded(lacking) if lacking else None

    def nothing(
        self, parts: Iterable[str], why: str, facts: Mapping[str, Fact] | None = None
    ) -> FigureNumbers:
        """Return the numbers of a figure of which no part is drawn."""
        return FigureNumbers({}, facts or {}, self.jobs.height, dict.fromkeys(parts, why))


@dataclass(frozen=True, slots=True)
class FigureNumbers:
    """Everything that a figure shows and its sentences quote.

    tables: {part: rows} as drawn. facts: single numbers for sentences; a share's name states its
    denominator; `shown_jobs` counts those that some part draws, where `jobs` counts more. missing:
    {part: why it is not drawn}. jobs: number of jobs of the study.
    """

    tables: Mapping[str, pl.DataFrame]
    facts: Mapping[str, Fact]
    jobs: int
    missing: Mapping[str, str] = field(default_factory=dict)

    def __contains__(self, part: str) -> bool:
        """Whether there is something to draw in this part."""
        return part in self.tables and self.tables[part].height > 0

    def _repr_html_(self) -> str:
        """Return the tables for a notebook, then facts, then missing parts with reasons."""
        tables = "".join(
            f"<h4>{escape(part)}</h4>{rows._repr_html_()}" for part, rows in self.tables.items()
        )
        notes = [f"{name}: {value}" for name, value in self.facts.items()]
        notes += [f"{part}: not drawn; {why}" for part, why in self.missing.items()]
        listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
        return f"<div>{tables}<ul>{listed}</ul></div>"

    def number(self, fact: str) -> float | None:
        """A numeric fact; None if unknown."""
        value = self.facts.get(fact)
        return float(value) if isinstance(value, int | float) else None


class StudyFigure(Protocol):
    """Interface of a figure's module."""

    def compute(self, study: Study) -> FigureNumbers:
        """Return the numbers of the figure. Pure."""
        ...

    def draw(self, numbers: FigureNumbers) -> Figure:
        """Return the drawing of the numbers, without computing any; called if a part has rows."""
        ...

    def sentences(self, numbers: FigureNumbers) -> tuple[str, ...]:
        """Return the figure in sentences, every number from `numbers.facts`; may be empty."""
        ...


def not_recorded(columns: Sequence[str]) -> str:
    """Return why a part is missing.

    >>> not_recorded(["fp64_active_mean", "bound"])
    'not measured: fp64_active (mean), bound'
    """
    named = [re.sub("_mean$", " (mean)", name) for name in columns]
    return f"not measured: {', '.join(named)}"


def share(part: int, whole: int) -> float | None:
    """Return a part of a whole as a fraction; None if the whole is 0.

    >>> share(1, 4), share(0, 0)
    (0.25, None)
    """
    return part / whole if whole else None


def counted(name: str, part: int, whole: int) -> dict[str, Fact]:
    """Return facts on some of the jobs: their number and share.

    >>> counted("even", 1, 4)
    {'even_jobs': 1, 'even_share': 0.25}
    """
    return {f"{name}_jobs": part, f"{name}_share": share(part, whole)}


def percent(fraction: Fact) -> str:
    """Return a share as text, rounded, but never to 0 or 100 unless it is exact.

    >>> percent(0.1234), percent(0.0004), percent(0.9999), percent(1.0), percent(None)
    ('12.3 %', '< 0.1 %', '> 99.9 %', '100 %', 'unknown')
    """
    if not isinstance(fraction, int | float):
        return "unknown"
    if fraction in (0, 1):
        return f"{fraction * 100:.0f} %"
    if 0 < fraction < 0.001:
        return "< 0.1 %"
    if 0.999 < fraction < 1:
        return "> 99.9 %"
    return f"{fraction * 100:.1f} %"


def count_jobs(jobs: Fact) -> str:
    """Return a number of jobs as text.

    >>> count_jobs(1), count_jobs(2500)
    ('1 job', '2,500 jobs')
    """
    number = int(jobs) if isinstance(jobs, int | float) else 0
    return plural(number, "job")
