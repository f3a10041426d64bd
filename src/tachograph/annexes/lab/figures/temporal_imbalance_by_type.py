"""Figure 9: how unsteadily jobs use their GPUs over time, by the pipes they use and by job type."""

from __future__ import annotations

from matplotlib.figure import Figure

from tachograph.annexes.lab.figures.imbalance_by_type import (
    compute_by_type,
    draw_by_type,
    sentences_by_type,
)
from tachograph.annexes.lab.figures.numbers import FigureNumbers, Study


def compute(study: Study) -> FigureNumbers:
    """Return the distribution of temporal imbalance (of a job's least steady GPU) per group."""
    return compute_by_type(study, "temporal_imbalance")


def draw(numbers: FigureNumbers) -> Figure:
    """Return the drawing of the numbers."""
    return draw_by_type(numbers, "temporal imbalance (0: steady)")


def sentences(numbers: FigureNumbers) -> tuple[str, ...]:
    """Return which groups are the most and the least unsteady."""
    return sentences_by_type(numbers, "temporal imbalance")
