"""How imbalance is distributed among jobs of low, middle and high utilisation: shared by two figures.

Source: IPDPS 2026, figures 6 and 7: bands of mean GPU_UTIL under 30 %, from 30 to 70 %, over 70 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.ticker import MaxNLocator

from tachograph.catalog.units import text
from tachograph.figures import style
from tachograph.figures.numbers import Fact, FigureNumbers, Study, count_jobs, not_recorded, percent, share
from tachograph.figures.statistics import cumulative, histogram

LOW, HIGH = 0.30, 0.70  # of mean utilisation
EVEN = 0.30  # imbalance below which a job counts as even, or steady
BANDS = pl.Enum(["low", "mid", "high"])
BAND_NAMES: Mapping[str, str] = {"low": "under 30 %", "mid": "30 to 70 %", "high": "over 70 %"}
_COLOURS: Mapping[str, str] = {"low": "#00204d", "mid": "#7c7b78", "high": "#dcae00"}  # cividis, dark to light
_LINES: Mapping[str, str] = {"low": "-", "mid": "--", "high": "-."}
BINS = 20
_TOPS = (0.1, 0.2, 0.5, 1.0)  # ends of axes of imbalance, which is below 1


def compute_bands(study: Study, column: str) -> FigureNumbers:
    """Return of one imbalance: its histogram and cumulative distribution in each band of utilisation.

    distribution: one row per (band, low, high): jobs and their share of the band's. cumulative: (band, value, share).
    Jobs without this imbalance (one GPU, no activity) or without utilisation are in no band.
    """
    if why := why_none(study, column):
        return FigureNumbers({}, {}, study.jobs.height, {"distribution": why, "cumulative": why})
    util = pl.col("gpu_util_mean")
    band = pl.when(util < LOW).then(pl.lit("low")).when(util <= HIGH).then(pl.lit("mid")).otherwise(pl.lit("high"))
    jobs = imbalanced(study, column).select(column, band=band.cast(BANDS))
    parts = {name: jobs.filter(pl.col("band") == name).get_column(column) for name in BAND_NAMES}
    edges = np.round(np.linspace(0, axis_top(jobs.get_column(column)), BINS + 1), 6)
    distribution = [
        histogram(values, edges).select(
            pl.lit(name, dtype=pl.String).alias("band"), pl.all(), share=pl.col("jobs") / max(1, len(values))
        )
        for name, values in parts.items()
    ]
    facts: dict[str, Fact] = {"jobs": jobs.height, "median": _median(jobs.get_column(column))}
    for name, values in parts.items():
        even = int((values < EVEN).sum())
        facts[f"{name}_jobs"] = len(values)
        facts[f"{name}_median"] = _median(values)
        facts[f"{name}_even_jobs"] = even
        facts[f"{name}_even_share"] = share(even, len(values))
    tables = {"distribution": pl.concat(distribution), "cumulative": cumulative(jobs, "band", column)}
    return FigureNumbers(tables, facts, study.jobs.height)


def imbalanced(study: Study, column: str) -> pl.DataFrame:
    """Return the jobs that have this imbalance and a utilisation. Rounding takes some below 0: they are at 0."""
    return study.jobs.filter(pl.col(column).is_not_null() & pl.col("gpu_util_mean").is_not_null()).with_columns(
        pl.col(column).clip(0, 1)
    )


def why_none(study: Study, column: str) -> str | None:
    """Return why no job has this imbalance; None where some have."""
    if not study.jobs.height:
        return "no jobs"
    if not study.measured(["gpu_util_mean"]):
        return not_recorded(["gpu_util_mean"])
    if imbalanced(study, column).height:
        return None
    if column == "spatial_imbalance" and not (study.jobs.get_column("gpus").fill_null(2) > 1).any():
        return "no job has more than one GPU"
    return "no GPU was ever active"


def axis_top(values: pl.Series) -> float:
    """Return where an axis of imbalance ends, so that it holds all values.

    >>> axis_top(pl.Series([0.02, 0.13])), axis_top(pl.Series([0.0])), axis_top(pl.Series([0.75]))
    (0.2, 0.1, 1.0)
    """
    most = values.max()
    return next((top for top in _TOPS if not isinstance(most, int | float) or most <= top), 1.0)


def draw_bands(numbers: FigureNumbers, label: str) -> Figure:
    """Return a histogram for each band, one above the other, beside the cumulative distributions."""
    with style.style():
        figure, axes = style.new_figure(style.PAGE_IN, 3.0, len(BAND_NAMES), 2)
        rows, grid = axes[::2], cast("GridSpec", axes[0].get_gridspec())
        for unused in axes[1::2]:
            unused.remove()
        right = figure.add_subplot(grid[:, 1])
        table = numbers.tables["distribution"]
        top = float(table.get_column("high").to_numpy().max())
        for axis, band in zip(rows, BAND_NAMES, strict=True):
            _draw_band(axis, numbers, band)
            axis.set_xlim(0, top)
            axis.tick_params(labelbottom=axis is rows[-1])
        rows[1].set_ylabel("jobs")
        rows[-1].set_xlabel(label)
        _draw_cumulative(right, numbers, top)
        right.set_xlabel(label)
        figure.align_ylabels(rows)
    return figure


def _draw_band(axes: Axes, numbers: FigureNumbers, band: str) -> None:
    jobs, median = numbers.facts[f"{band}_jobs"], numbers.number(f"{band}_median")
    title = f"utilisation {BAND_NAMES[band]}: n = {jobs:,}"
    if median is None:
        axes.text(0.5, 0.5, "no jobs", ha="center", va="center", color=style.FAINT, transform=axes.transAxes)
        axes.set_yticks([])
    else:
        rows = numbers.tables["distribution"].filter(pl.col("band") == band)
        low, high = (rows.get_column(name).to_numpy() for name in ("low", "high"))
        axes.bar(low, rows.get_column("jobs"), high - low, align="edge", color=_COLOURS[band], ec="white", lw=0.4)
        axes.margins(y=0.3)  # room for the mark of the median above the bars
        axes.plot(median, 0.9, "v", color=style.INK, markersize=4.5, transform=axes.get_xaxis_transform())
        axes.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
        style.thousands_axis(axes)
        axes.grid(axis="y")
        title += f", median {text(median, 'ratio')}"
    axes.set_title(title, loc="left", fontsize=7.5, pad=2.5)


def _draw_cumulative(axes: Axes, numbers: FigureNumbers, top: float) -> None:
    for band, named in BAND_NAMES.items():
        curve = numbers.tables["cumulative"].filter(pl.col("band") == band)
        if curve.height:
            values = np.concatenate([[0.0], curve.get_column("value").to_numpy(), [top]])
            shares = np.concatenate([[0.0], curve.get_column("share").to_numpy(), [1.0]])
            axes.step(values, shares, _LINES[band], where="post", color=_COLOURS[band], linewidth=1.5, label=named)
    if top > EVEN:
        axes.axvline(EVEN, color=style.FAINT, linewidth=0.7)
        axes.annotate(
            f"{EVEN:.2f}", (EVEN, 0), (2, 2), textcoords="offset points", color=style.FAINT, fontsize=7, va="bottom"
        )
    axes.set_xlim(0, top)
    style.percent_axis(axes)
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("cumulative share of the band's jobs")
    axes.grid(axis="y")
    axes.legend(
        title="mean GPU utilisation",
        alignment="left",
        ncols=len(BAND_NAMES),
        loc="lower left",
        bbox_to_anchor=(-0.02, 1.0),
        columnspacing=1.2,
        handlelength=2.6,
        borderaxespad=0.1,
    )


def half_of(numbers: FigureNumbers, which: str, imbalance: str) -> str:
    """Return the sentence of the median."""
    jobs, median = numbers.facts["jobs"], text(numbers.number("median"), "ratio")
    if jobs == 1:
        return f"The only job {which} has a {imbalance} of {median}."
    return f"Of {count_jobs(jobs)} {which}, half have a {imbalance} of at most {median}."


def even_in_bands(numbers: FigureNumbers) -> str:
    """Return for each band that has jobs what share of them has an imbalance under EVEN."""
    facts = numbers.facts
    return "; ".join(
        f"{percent(facts[f'{band}_even_share'])} of the {count_jobs(facts[f'{band}_jobs'])} with utilisation {named}"
        for band, named in BAND_NAMES.items()
        if facts[f"{band}_jobs"]
    )


def _median(values: pl.Series) -> float | None:
    middle = values.median()
    return float(middle) if isinstance(middle, int | float) else None
