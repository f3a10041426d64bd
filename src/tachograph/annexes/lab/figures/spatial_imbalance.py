"""Figure 6: how unevenly jobs use their GPUs, by band of utilisation."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
from matplotlib.figure import Figure

from tachograph.annexes.lab.figures.imbalance_bands import (
    EVEN,
    compute_bands,
    draw_bands,
    even_in_bands,
    half_of,
    uneven_jobs,
)
from tachograph.annexes.lab.figures.numbers import (
    Fact,
    FigureNumbers,
    Study,
    count_jobs,
    counted,
    percent,
)


def compute(study: Study) -> FigureNumbers:
    """Return the distribution of spatial imbalance in each band; jobs with one GPU have none.

    Facts on jobs with one active GPU of several cover jobs with all GPUs measured, and some of them
    active.
    """
    numbers = compute_bands(study, "spatial_imbalance")
    if not numbers.facts:
        return numbers
    return replace(numbers, facts={**numbers.facts, **_one_of_many(study.jobs)})


def _one_of_many(jobs: pl.DataFrame) -> dict[str, Fact]:
    active = pl.col("gpus_seen") - pl.col("gpus_never_used")
    of_seen_gpus = jobs.filter(
        (pl.col("gpus") > 1) & (pl.col("gpus_seen") == pl.col("gpus")) & (active > 0)
    )
    on_one_gpu = of_seen_gpus.filter(active == 1)
    unused = float(on_one_gpu.get_column("gpu_hours_never_used").sum())
    return {
        "seen_jobs": of_seen_gpus.height,
        **counted("one_gpu", on_one_gpu.height, of_seen_gpus.height),
        "one_gpu_unused_gpu_hours": unused,
    }


def draw(numbers: FigureNumbers) -> Figure:
    """Return the drawing of the numbers."""
    return draw_bands(numbers, "spatial imbalance (0: even)")


def sentences(numbers: FigureNumbers) -> tuple[str, ...]:
    """Return how many jobs are even in each band, and how many use one GPU of several."""
    facts = numbers.facts
    if not facts.get("jobs"):
        return ()
    phrases = [
        half_of(numbers, "with more than one GPU", "spatial imbalance"),
        f"Work is spread evenly (spatial imbalance under {EVEN:.2f}) in {even_in_bands(numbers)}.",
        uneven_jobs(numbers, "spatial imbalance"),
    ]
    if facts["seen_jobs"]:
        of = f"{count_jobs(facts['seen_jobs'])} with several GPUs, all of which were recorded"
        phrases.append(f"Of {of}, {percent(facts['one_gpu_share'])} used only one.")
    return tuple(phrases)
