"""Figure 7: how unsteadily jobs use their GPUs over time, by band of utilisation."""

from __future__ import annotations

from matplotlib.figure import Figure

from tachograph.annexes.lab.figures.imbalance_bands import (
    EVEN,
    compute_bands,
    draw_bands,
    even_in_bands,
    half_of,
    uneven_jobs,
)
from tachograph.annexes.lab.figures.numbers import FigureNumbers, Study


def compute(study: Study) -> FigureNumbers:
    """Return the distribution of temporal imbalance by band; a job has that of its worst GPU."""
    return compute_bands(study, "temporal_imbalance")


def draw(numbers: FigureNumbers) -> Figure:
    """Return the drawing of the numbers."""
    return draw_bands(numbers, "temporal imbalance (0: steady)")


def sentences(numbers: FigureNumbers) -> tuple[str, ...]:
    """Return how many jobs are steady in each band."""
    facts = numbers.facts
    if not facts.get("jobs"):
        return ()
    return (
        half_of(numbers, "that used a GPU", "temporal imbalance"),
        (
            f"Use is steady over time (temporal imbalance under {EVEN:.2f}) in "
            f"{even_in_bands(numbers)}."
        ),
        uneven_jobs(numbers, "temporal imbalance"),
    )
