"""Figure 1: number, run time and GPU utilisation of jobs by size."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tachograph.annexes.lab.figures import style
from tachograph.annexes.lab.figures.numbers import (
    Fact,
    FigureNumbers,
    Study,
    count_jobs,
    counted,
    not_recorded,
    percent,
)
from tachograph.annexes.lab.figures.statistics import box_caption, boxes, round_up
from tachograph.catalog.units import plural, text

Bin: TypeAlias = tuple[int, int]

# Times the jobs of the smallest bin with jobs: from here on the axis of jobs is logarithmic.
WIDE = 10
MANY_SIZES = 8  # number of sizes from which their labels are vertical
LEAST_JOBS = 10  # of a size, to be named for its utilisation
_STEPS = (1.0, 2.0, 5.0, 10.0)


def size_bins(largest: int) -> list[Bin]:
    """Return bins of GPUs per job, both ends included, up to the one that holds `largest`.

    >>> size_bins(6), size_bins(1)
    ([(1, 2), (3, 4), (5, 8)], [(1, 2)])
    """
    bins = [(1, 2)]
    while bins[-1][1] < largest:
        bins.append((bins[-1][1] + 1, bins[-1][1] * 2))
    return bins


def compute(study: Study) -> FigureNumbers:
    """Return jobs, run time and mean utilisation by number of GPUs.

    sizes: one row per (low, high) GPUs: jobs, their share of those of known size. duration (hours),
    utilisation: boxes per size of the jobs in which it is known. Jobs whose number of GPUs is not
    known have no size.
    """
    sized = study.jobs.filter(pl.col("gpus") > 0)
    if not sized.height:
        why = not_recorded(["gpus"]) if study.jobs.height else "no jobs"
        return study.nothing(("sizes", "duration", "utilisation"), why)
    gpus = sized.get_column("gpus").to_list()
    bins = size_bins(max(gpus))
    labels = [f"{size_bin[0]} to {size_bin[1]}" for size_bin in bins]
    names = pl.Enum(labels)
    bin_of_job = np.searchsorted([high for _, high in bins], gpus)
    jobs = sized.select(
        "gpu_util_mean",
        hours=pl.when(pl.col("elapsed_s") > 0).then(pl.col("elapsed_s") / 3600),
        size=pl.Series([labels[bin_number] for bin_number in bin_of_job.tolist()], dtype=names),
    )
    counts = np.bincount(bin_of_job, minlength=len(bins)).tolist()
    sizes = pl.DataFrame(
        {
            "size": pl.Series(labels, dtype=names),
            "low": [low for low, _ in bins],
            "high": [high for _, high in bins],
            "jobs": counts,
            "share": [number / sized.height for number in counts],
        }
    )
    facts: dict[str, Fact] = {
        "jobs": sized.height,
        "whiskers": study.options.whiskers,
        "jobs_of_unknown_size": study.jobs.height - sized.height,
        "largest_gpus": max(gpus),
        "common_size": labels[int(np.argmax(counts))],
        **counted("common", max(counts), sized.height),
    }
    tables, missing = {"sizes": sizes}, {}
    for part, column, source in (
        ("duration", "hours", "elapsed_s"),
        ("utilisation", "gpu_util_mean", "gpu_util_mean"),
    ):
        measured = jobs.get_column(column).drop_nulls()
        if measured.len():
            tables[part] = boxes(jobs, "size", column, whiskers=study.options.whiskers)
            facts |= {
                f"{part}_jobs": measured.len(),
                f"{part}_median": float(np.median(measured.to_numpy())),
            }
        else:
            missing[part] = not_recorded([source])
    return FigureNumbers(
        tables, facts | _extremes(tables.get("utilisation")), study.jobs.height, missing
    )


def draw(numbers: FigureNumbers) -> Figure:
    """Return bars of jobs per size, and box plots of run time and utilisation."""
    with style.style():
        figure, (sizes_axes, middle, right) = style.new_figure(
            style.PAGE_IN, 2.8, 1, 3, width_ratios=(1.1, 1, 1)
        )
        _draw_sizes(sizes_axes, numbers)
        for part, axes in (("duration", middle), ("utilisation", right)):
            if part in numbers:
                table = numbers.tables[part]
                style.draw_boxes(axes, table, table.get_column("size").to_physical().to_list())
                axes.grid(axis="y")
                style.set_title(axes, f"n = {numbers.facts[f'{part}_jobs']:,} jobs")
            else:
                style.not_drawn(axes, numbers.missing[part])
        if "duration" in numbers:
            _hours_axis(middle, numbers.tables["duration"])
        if "utilisation" in numbers:
            right.set_ylabel("mean GPU utilisation")
            style.percent_axis(right)
        for axes in (sizes_axes, *(axes for axes in (middle, right) if axes.axison)):
            _size_axis(axes, numbers.tables["sizes"])
        if "duration" in numbers or "utilisation" in numbers:
            figure.supxlabel(box_caption(numbers.facts["whiskers"]), fontsize=6, color=style.FAINT)
    return figure


def sentences(numbers: FigureNumbers) -> tuple[str, ...]:
    """Return the most common size, the usual run time, the sizes of extreme utilisation."""
    facts = numbers.facts
    if not facts.get("jobs"):
        return ()
    largest = plural(numbers.number("largest_gpus") or 0, "GPU")
    common = f"{facts['common_jobs']:,} of {facts['jobs']:,} ({percent(facts['common_share'])})"
    phrases = [
        f"Commonest are jobs with {facts['common_size']} GPUs: {common}; the largest has {largest}."
    ]
    if facts.get("duration_jobs"):
        median = text((numbers.number("duration_median") or 0.0) * 3600, "s")
        phrases.append(f"The median run time of {count_jobs(facts['duration_jobs'])} is {median}.")
    if facts.get("utilisation_jobs"):
        median = text(numbers.number("utilisation_median"), "fraction")
        phrases.append(
            f"The median of the mean utilisation of {count_jobs(facts['utilisation_jobs'])} is "
            f"{median}."
        )
    if facts.get("best_size"):
        phrases.append(
            f"By size, the median utilisation is highest for {_quoted(numbers, 'best')} and "
            "lowest for "
            f"{_quoted(numbers, 'worst')}, among sizes with at least {count_jobs(LEAST_JOBS)}."
        )
    return tuple(phrases)


def _extremes(utilisation: pl.DataFrame | None) -> dict[str, Fact]:
    """Sizes with the highest and lowest median utilisation, if two differ."""
    if utilisation is None:
        return {}
    often = utilisation.filter(pl.col("jobs") >= LEAST_JOBS).sort("median", maintain_order=True)
    if often.height < 2 or often.item(0, "median") == often.item(-1, "median"):
        return {}
    facts: dict[str, Fact] = {}
    for name, row in (("worst", 0), ("best", -1)):
        for column in ("size", "jobs", "median"):
            facts[f"{name}_{column}"] = often.item(row, column)
    return facts


def _quoted(numbers: FigureNumbers, name: str) -> str:
    median = text(numbers.number(f"{name}_median"), "fraction")
    return (
        f"{numbers.facts[f'{name}_size']} GPUs ({median}, "
        f"{count_jobs(numbers.facts[f'{name}_jobs'])})"
    )


def _draw_sizes(axes: Axes, numbers: FigureNumbers) -> None:
    """Draw the bars, on a logarithmic axis if their heights differ much."""
    counts = numbers.tables["sizes"].get_column("jobs").to_list()
    crowded = len(counts) >= MANY_SIZES
    least = min(number for number in counts if number)
    axes.bar(range(len(counts)), counts, 0.7, color=style.ACCENT)
    if max(counts) >= WIDE * least:
        bottom = least / 3
        if least < 5:
            bottom = 0.5 if least == 1 else 1
        style.log_axis(axes, "y", bottom, max(counts) * 2)
        axes.set_ylabel("jobs (logarithmic)")
    else:
        axes.set_ylim(0, max(counts) * (1.25 if crowded else 1.12))
        style.count_axis(axes)
        axes.set_ylabel("jobs")
    axes.grid(axis="y")
    for index, number in enumerate(counts):
        if number:
            axes.annotate(
                f"{number:,}",
                (index, number),
                (0, 1.5),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=6.5,
                rotation=90 if crowded else 0,
            )
    style.set_title(axes, f"n = {numbers.facts['jobs']:,} jobs")


def _size_axis(axes: Axes, sizes: pl.DataFrame) -> None:
    labels = [f"{low}–{high}" for low, high in sizes.select("low", "high").rows()]
    how: dict[str, Any] = {}
    if len(labels) > 4:
        how = {"rotation": 45, "rotation_mode": "anchor", "ha": "right"}
    if len(labels) >= MANY_SIZES:
        how |= {"rotation": 90, "va": "center"}
    axes.set_xticks(range(len(labels)), labels, **how)
    axes.set_xlim(-0.6, len(labels) - 0.4)
    axes.set_xlabel("GPUs of the job")


def _hours_axis(axes: Axes, table: pl.DataFrame) -> None:
    """Set a logarithmic axis from the lowest to the highest value."""
    shown = table.select("low", "high", "mean").to_numpy()
    low, high = 1 / round_up(1 / shown.min() * 1.1, _STEPS), round_up(shown.max() * 1.1, _STEPS)
    style.log_axis(axes, "y", low, high)
    axes.set_ylabel("run time (h)")
