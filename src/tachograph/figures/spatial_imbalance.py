"""Figure 6: how unevenly jobs use their GPUs, by band of utilisation."""

from __future__ import annotations

from matplotlib.figure import Figure

from tachograph.figures.imbalance_bands import BAND_NAMES, EVEN, compute_bands, draw_bands
from tachograph.figures.study import Numbers, Study, count_jobs, percent
from tachograph.units import text


def compute(study: Study) -> Numbers:
    """Return the distribution of spatial imbalance in each band; jobs with one GPU have none."""
    return compute_bands(study, "spatial_imbalance")


def draw(numbers: Numbers) -> Figure:
    """Return the drawing of the numbers."""
    return draw_bands(numbers, "spatial imbalance (0: even)")


def sentences(numbers: Numbers) -> tuple[str, ...]:
    """Return how many jobs are even in each band."""
    facts = numbers.facts
    if not facts.get("jobs"):
        return ()
    bands = [
        f"{percent(facts[f'{band}_even_share'])} of the {count_jobs(facts[f'{band}_jobs'])} with utilisation {named}"
        for band, named in BAND_NAMES.items()
        if facts[f"{band}_jobs"]
    ]
    half = text(numbers.number("median"), "ratio")
    return (
        f"Of {count_jobs(facts['jobs'])} with more than one GPU, half have a spatial imbalance of at most {half}.",
        f"Work is spread evenly (spatial imbalance under {EVEN:.2f}) in {'; '.join(bands)}.",
    )
