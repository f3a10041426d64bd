"""Figure 1: how many jobs there are of each size, how long they run, how well they use their GPUs."""

from __future__ import annotations

from math import ceil, floor, log10
from typing import TypeAlias

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from tachograph.catalog.units import plural, text
from tachograph.figures import style
from tachograph.figures.numbers import Fact, FigureNumbers, Study, count_jobs, not_recorded, percent, share
from tachograph.figures.statistics import BOX_CAPTION, boxes

Bin: TypeAlias = tuple[int, int]

DWARFED = 4  # times as many jobs as in the next bin: the axis is broken
MANY_SIZES = 8  # sizes: from here on what is written at them is upright
LEAST_JOBS = 10  # of a size, to be named for its utilisation
_STEPS = (1.0, 2.0, 5.0, 10.0)
_FINE = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


def size_bins(largest: int) -> list[Bin]:
    """Return bins of GPUs per job, both ends included, up to the one that holds `largest`.

    >>> size_bins(6), size_bins(1)
    ([(1, 2), (3, 4), (5, 8)], [(1, 2)])
    """
    bins = [(1, 2)]
    while bins[-1][1] < largest:
        bins.append((bins[-1][1] + 1, bins[-1][1] * 2))
    return bins


def axis_break(counts: list[int]) -> Bin | None:
    """Return where the axis of counts is broken: from, to. None where the tallest bar does not dwarf the others.

    >>> axis_break([64183, 5021, 300]), axis_break([10, 8]), axis_break([10])
    ((8000, 59000), None, None)
    """
    second, tallest = [0, 0, *sorted(counts)][-2:]
    if not second or tallest < DWARFED * second:
        return None
    digit = 10.0 ** max(0, floor(log10(tallest)) - 1)
    return ceil(_round_up(second * 1.25, _FINE)), floor(tallest * 0.92 / digit) * int(digit)


def compute(study: Study) -> FigureNumbers:
    """Return jobs, run time and mean utilisation by number of GPUs.

    sizes: one row per (low, high) GPUs: jobs, their share of those of known size. duration (hours), utilisation:
    boxes per size of the jobs in which it is known. Jobs whose number of GPUs is not known have no size.
    """
    sized = study.jobs.filter(pl.col("gpus") > 0)
    if not sized.height:
        why = not_recorded(["gpus"]) if study.jobs.height else "no jobs"
        return FigureNumbers({}, {}, study.jobs.height, dict.fromkeys(("sizes", "duration", "utilisation"), why))
    counted = sized.get_column("gpus").to_list()
    bins = size_bins(max(counted))
    labels = [_words(one) for one in bins]
    names = pl.Enum(labels)
    place = np.searchsorted([high for _, high in bins], counted)
    jobs = sized.select(
        "gpu_util_mean",
        hours=pl.when(pl.col("elapsed_s") > 0).then(pl.col("elapsed_s") / 3600),
        size=pl.Series([labels[one] for one in place.tolist()], dtype=names),
    )
    counts = np.bincount(place, minlength=len(bins)).tolist()
    sizes = pl.DataFrame(
        {
            "size": pl.Series(labels, dtype=names),
            "low": [low for low, _ in bins],
            "high": [high for _, high in bins],
            "jobs": counts,
            "share": [number / sized.height for number in counts],
        }
    )
    broken = axis_break(counts)
    facts: dict[str, Fact] = {
        "jobs": sized.height,
        "jobs_of_unknown_size": study.jobs.height - sized.height,
        "largest_gpus": max(counted),
        "common_size": labels[int(np.argmax(counts))],
        "common_jobs": max(counts),
        "common_share": share(max(counts), sized.height),
        "break_from": broken[0] if broken else None,
        "break_to": broken[1] if broken else None,
    }
    tables, missing = {"sizes": sizes}, {}
    for part, column, source in (("duration", "hours", "elapsed_s"), ("utilisation", "gpu_util_mean", "gpu_util_mean")):
        known = jobs.get_column(column).drop_nulls()
        if known.len():
            tables[part] = boxes(jobs, "size", column)
            facts |= {f"{part}_jobs": known.len(), f"{part}_median": float(np.median(known.to_numpy()))}
        else:
            missing[part] = not_recorded([source])
    return FigureNumbers(tables, facts | _extremes(tables.get("utilisation")), study.jobs.height, missing)


def draw(numbers: FigureNumbers) -> Figure:
    """Return bars of jobs per size beside the boxes of their run times and utilisation."""
    with style.style():
        figure, (left, middle, right) = style.new_figure(style.PAGE_IN, 2.8, 1, 3, width_ratios=(1.1, 1, 1))
        lowest = _draw_sizes(figure, left, numbers)
        for part, axes in (("duration", middle), ("utilisation", right)):
            if part in numbers:
                table = numbers.tables[part]
                style.draw_boxes(axes, table, table.get_column("size").to_physical().to_list())
                axes.grid(axis="y")
                axes.set_title(f"n = {numbers.facts[f'{part}_jobs']:,} jobs")
            else:
                style.not_drawn(axes, numbers.missing[part])
        if "duration" in numbers:
            _hours_axis(middle, numbers.tables["duration"])
        if "utilisation" in numbers:
            right.set_ylabel("mean GPU utilisation")
            style.percent_axis(right)
        for axes in (lowest, *(axes for axes in (middle, right) if axes.axison)):
            _size_axis(axes, numbers.tables["sizes"])
        if "duration" in numbers or "utilisation" in numbers:
            figure.supxlabel(BOX_CAPTION, fontsize=6, color=style.FAINT)
    return figure


def sentences(numbers: FigureNumbers) -> tuple[str, ...]:
    """Return the commonest size, the usual run time, and the sizes that use their GPUs most and least."""
    facts = numbers.facts
    if not facts.get("jobs"):
        return ()
    largest = plural(numbers.number("largest_gpus") or 0, "GPU")
    common = f"{facts['common_jobs']:,} of {facts['jobs']:,} ({percent(facts['common_share'])})"
    phrases = [f"Commonest are jobs with {facts['common_size']} GPUs: {common}; the largest has {largest}."]
    if facts.get("duration_jobs"):
        median = text((numbers.number("duration_median") or 0.0) * 3600, "s")
        phrases.append(f"The median run time of {count_jobs(facts['duration_jobs'])} is {median}.")
    if facts.get("utilisation_jobs"):
        median = text(numbers.number("utilisation_median"), "fraction")
        phrases.append(f"The median of the mean utilisation of {count_jobs(facts['utilisation_jobs'])} is {median}.")
    if facts.get("best_size"):
        phrases.append(
            f"By size, the median utilisation is highest for {_quoted(numbers, 'best')} and lowest for "
            f"{_quoted(numbers, 'worst')}, among sizes with at least {count_jobs(LEAST_JOBS)}."
        )
    return tuple(phrases)


def _words(size: Bin) -> str:
    return f"{size[0]} to {size[1]}"


def _round_up(value: float, steps: tuple[float, ...]) -> float:
    """Smallest step times a power of ten that is not below a positive value."""
    power = 10.0 ** floor(log10(value))
    return next((power * step for step in steps if power * step >= value * (1 - 1e-9)), power * 10)


def _extremes(utilisation: pl.DataFrame | None) -> dict[str, Fact]:
    """Sizes of highest and lowest median utilisation, where there are two to compare that differ."""
    if utilisation is None:
        return {}
    often = utilisation.filter(pl.col("jobs") >= LEAST_JOBS).sort("median", maintain_order=True)
    if often.height < 2 or often.item(0, "median") == often.item(-1, "median"):
        return {}
    return {
        f"{name}_{fact}": often.item(row, column)
        for name, row in (("worst", 0), ("best", -1))
        for fact, column in (("size", "size"), ("jobs", "jobs"), ("median", "median"))
    }


def _quoted(numbers: FigureNumbers, name: str) -> str:
    median = text(numbers.number(f"{name}_median"), "fraction")
    return f"{numbers.facts[f'{name}_size']} GPUs ({median}, {count_jobs(numbers.facts[f'{name}_jobs'])})"


def _draw_sizes(figure: Figure, axes: Axes, numbers: FigureNumbers) -> Axes:
    """Draw the bars, in two pieces where the axis is broken; return the axes at the bottom."""
    counts = numbers.tables["sizes"].get_column("jobs").to_list()
    start, end = numbers.number("break_from"), numbers.number("break_to")
    many = len(counts) >= MANY_SIZES
    pieces = [axes]
    if start and end:
        place = axes.get_subplotspec()
        assert place is not None
        axes.remove()
        grid = place.subgridspec(2, 1, height_ratios=(1, 3), hspace=0.06)
        pieces = [figure.add_subplot(grid[1]), figure.add_subplot(grid[0])]
        pieces[0].set_ylim(0, start)
        pieces[1].set_ylim(end, end + (max(counts) - end) * 1.9)
        _mark_break(*pieces)
    else:
        axes.set_ylim(0, max(counts) * (1.25 if many else 1.12))
    for piece in pieces:
        piece.bar(range(len(counts)), counts, 0.7, color=style.ACCENT)
        piece.grid(axis="y")
        style.thousands_axis(piece)
        low, high = piece.get_ylim()
        for place_x, number in enumerate(counts):
            if low <= number < high:
                piece.annotate(
                    f"{number:,}",
                    (place_x, number),
                    (0, 1.5),
                    textcoords="offset points",
                    ha="center",
                    va="bottom",
                    fontsize=6.5,
                    rotation=90 if many and piece is pieces[0] else 0,
                )
    pieces[0].yaxis.set_major_locator(MaxNLocator(5, integer=True))
    pieces[0].set_ylabel("jobs")
    pieces[-1].set_title(f"n = {numbers.facts['jobs']:,} jobs")
    return pieces[0]


def _mark_break(below: Axes, above: Axes) -> None:
    above.sharex(below)
    above.spines["bottom"].set_visible(False)
    above.tick_params(axis="x", bottom=False, labelbottom=False)
    above.yaxis.set_major_locator(MaxNLocator(1, integer=True, min_n_ticks=1))
    for axes, height in ((below, 1), (above, 0)):
        axes.plot(
            [0],
            [height],
            marker=[(-1, -0.6), (1, 0.6)],
            markersize=6,
            linestyle="none",
            color=style.INK,
            transform=axes.transAxes,
            clip_on=False,
        )


def _size_axis(axes: Axes, sizes: pl.DataFrame) -> None:
    labels = [f"{low}–{high}" for low, high in sizes.select("low", "high").rows()]
    axes.set_xticks(range(len(labels)), labels)
    if len(labels) > 4:
        angle = 45 if len(labels) < MANY_SIZES else 90
        across = {"va": "center", "ha": "right"} if angle == 90 else {"ha": "right"}
        for label in axes.get_xticklabels():
            label.set(rotation=angle, rotation_mode="anchor", **across)
    axes.set_xlim(-0.6, len(labels) - 0.4)
    axes.set_xlabel("GPUs of the job")


def _hours_axis(axes: Axes, table: pl.DataFrame) -> None:
    """Logarithmic, from the lowest to the highest of what is drawn."""
    drawn = table.select("low", "high", "mean").to_numpy()
    low, high = 1 / _round_up(1 / drawn.min() * 1.1, _STEPS), _round_up(drawn.max() * 1.1, _STEPS)
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1.0,) if high / low >= 100 else (1.0, 2.0, 5.0), numticks=20))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("run time (h)")
