"""What stands under a figure: how many jobs it draws, and why others are missing."""

from __future__ import annotations

import polars as pl
import pytest

from tachograph.annexes.lab.figures.numbers import Fact, FigureNumbers
from tachograph.annexes.lab.figures.registry import FIGURES, find_figure
from tachograph.annexes.lab.figures.study import MadeFigure
from tachograph.annexes.lab.study import caption

ROWS = pl.DataFrame({"jobs": [1]})


@pytest.mark.parametrize(
    ("name", "facts", "sentence"),
    [
        (
            "temporal_imbalance_by_type",
            {"jobs": 10, "shown_jobs": 7},
            (
                "From 7 of the 10 jobs of the study. Left out: 3 jobs without utilisation, or without "
                "pipes and type."
            ),
        ),
        (
            "spatial_imbalance",
            {"jobs": 9},
            (
                "From 9 of the 10 jobs of the study. Left out: 1 job with one GPU, or without "
                "utilisation."
            ),
        ),
        ("energy", {"jobs": 10}, "From all 10 jobs of the study."),
        ("energy", {"jobs": 0}, "From none of the 10 jobs of the study."),
        (
            "correlation",
            {"jobs": 10, "least_jobs": 6, "most_jobs": 10},
            (
                "From all 10 jobs of the study. Each pair of counters: from the jobs with both, 6 or "
                "more."
            ),
        ),
    ],
)
def test_it_counts_what_is_drawn(name: str, facts: dict[str, Fact], sentence: str) -> None:
    entry = find_figure(name)
    written = caption(MadeFigure(entry, FigureNumbers({"part": ROWS}, facts, 10), ()))
    assert written == f"Figure {entry.number}. {entry.title}. {sentence}"


def test_each_figure_says_which_jobs_it_cannot_show() -> None:
    assert all(entry.left_out for entry in FIGURES)
