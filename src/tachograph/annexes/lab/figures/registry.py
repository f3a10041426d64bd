"""Figures of a study in order; a new one needs one file, and one line here.

A figure's module has `compute`, `draw` and `sentences` (tachograph.annexes.lab.figures.numbers.StudyFigure) and
is imported when it is used. Questions and figures 1 to 11 are those of IPDPS 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from tachograph.catalog.doors import find_entry
from tachograph.catalog.errors import NotFoundError
from tachograph.catalog.suggestions import did_you_mean

if TYPE_CHECKING:
    from tachograph.annexes.lab.figures.numbers import StudyFigure

QUESTIONS: Mapping[str, str] = MappingProxyType(
    {
        "RQ1": "Do jobs differ in how they use the FP16, FP32, FP64 and tensor pipes?",
        "RQ2": "How much of the memory do jobs use that requested GPUs with a large one?",
        "RQ3": (
            "How many jobs are compute-bound, how many memory-bound, and how much energy do they use?"
        ),
        "RQ4": "How evenly do jobs use their GPUs?",
        "RQ5": "How steadily do jobs use their GPUs over time?",
        "RQ6": "What correlates with utilisation?",
    }
)

FORMATS = ("pdf", "svg", "png")


@dataclass(frozen=True, slots=True)
class FigureEntry:
    """One figure: number, name (that of its module), title, the question it belongs to.

    left_out: which jobs of the study it cannot show, to be read after "Left out: 7 jobs".
    Figures of installed packages name their module, and are drawn if selected by name.
    """

    number: int
    name: str
    title: str
    question: str | None
    module: str = ""
    left_out: str = ""

    @property
    def stem(self) -> str:
        """Stem of its file names."""
        return f"{self.number:02}_{self.name}"


FIGURES: tuple[FigureEntry, ...] = (
    FigureEntry(
        1,
        "job_overview",
        "Jobs by size, duration and utilisation",
        None,
        left_out="of unknown size",
    ),
    FigureEntry(
        2,
        "pipe_combinations",
        "Combinations of pipes in use",
        "RQ1",
        left_out="without the activity of all pipes",
    ),
    FigureEntry(
        3,
        "hbm_peak",
        "Peak memory of jobs with large-memory GPUs",
        "RQ2",
        left_out="of smaller GPUs, or without a known peak",
    ),
    FigureEntry(
        4,
        "arithmetic_intensity",
        "Arithmetic intensity against the rooflines",
        "RQ3",
        left_out="without activity of pipes and memory, or on several GPU models",
    ),
    FigureEntry(
        5,
        "energy",
        "Energy against GPU-hours by job type",
        "RQ3",
        left_out="without GPU-hours, or without the energy of all GPUs",
    ),
    FigureEntry(
        6,
        "spatial_imbalance",
        "Spatial imbalance by utilisation",
        "RQ4",
        left_out="with one GPU, or without utilisation",
    ),
    FigureEntry(
        7,
        "temporal_imbalance",
        "Temporal imbalance by utilisation",
        "RQ5",
        left_out="without utilisation",
    ),
    FigureEntry(
        8,
        "spatial_imbalance_by_type",
        "Spatial imbalance by pipes and job type",
        "RQ4",
        left_out="with one GPU, without utilisation, or without pipes and type",
    ),
    FigureEntry(
        9,
        "temporal_imbalance_by_type",
        "Temporal imbalance by pipes and job type",
        "RQ5",
        left_out="without utilisation, or without pipes and type",
    ),
    FigureEntry(
        10,
        "utilisation_heatmaps",
        "Utilisation by arithmetic and memory activity",
        "RQ6",
        left_out="without utilisation, activity of pipe and memory, or a type",
    ),
    FigureEntry(
        11,
        "correlation",
        "Correlation of counters with utilisation",
        "RQ6",
        left_out="without utilisation",
    ),
    FigureEntry(
        12,
        "bounds",
        "What limits jobs: the published type and the limiter",
        "RQ3",
        left_out="without a type or a limiter",
    ),
    FigureEntry(
        13,
        "window_lengths",
        "Spatial imbalance by length of windows",
        "RQ4",
        left_out="with one GPU, or without utilisation over each length",
    ),
)

# drawn if it is named: it belongs to no question
NAMED_FIGURES: tuple[FigureEntry, ...] = (
    FigureEntry(
        14,
        "workload_profiles",
        "Activity by workload class",
        None,
        left_out="without a workload class",
    ),
)


def figure_formats() -> tuple[str, ...]:
    """Return the formats of files of figures."""
    return FORMATS


def figure_names() -> list[str]:
    """Return the names of the project's own figures."""
    return [entry.name for entry in (*FIGURES, *NAMED_FIGURES)]


def find_figure(name: str) -> FigureEntry:
    """Return the figure called `name`, or of that number.

    Errors: NotFoundError naming the closest one, or all.
    """
    for entry in (*FIGURES, *NAMED_FIGURES):
        if name in (entry.name, str(entry.number), f"{entry.number:02}", entry.stem):
            return entry
    added = find_entry("figures", FigureEntry, name, ())
    if added is not None:
        return added
    names = figure_names()
    raise NotFoundError(
        f"no figure {name!r}", do=did_you_mean(name, names, otherwise=f"use {', '.join(names)}")
    )


def load_figure(entry: FigureEntry) -> StudyFigure:
    """Return the module of a figure, imported now."""
    return cast(
        "StudyFigure",
        import_module(entry.module or f".{entry.name}", "tachograph.annexes.lab.figures"),
    )
