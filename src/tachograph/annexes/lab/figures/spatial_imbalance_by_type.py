"""Figure 8: how unevenly jobs use their GPUs, by the pipes they use and by job type."""

from __future__ import annotations

from matplotlib.figure import Figure

from tachograph.annexes.lab.figures.imbalance_by_type import (
    compute_by_type,
    draw_by_type,
    sentences_by_type,
)
from tachograph.annexes.lab.figures.numbers import FigureNumbers, Study


def compute(study: Study) -> FigureNumbers:
    """Return the distribution of spatial imbalance in each group; jobs with one GPU have none."""
    return compute_by_type(study, "spatial_imbalance")


def draw(numbers: FigureNumbers) -> Figure:
    """Return the drawing of the numbers."""
    return draw_by_type(numbers, "spatial imbalance (0: even)")


def sentences(numbers: FigureNumbers) -> tuple[str, ...]:
    """Return which groups are the most and the least uneven."""
    return sentences_by_type(numbers, "spatial imbalance")
