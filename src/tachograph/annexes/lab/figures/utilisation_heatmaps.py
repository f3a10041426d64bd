"""Figure 10: mean utilisation by pipe and memory activity, per job type."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from tachograph.annexes.lab.figures import style
from tachograph.annexes.lab.figures.arithmetic_intensity import PIPE_NAMES
from tachograph.annexes.lab.figures.numbers import Fact, FigureNumbers, Study
from tachograph.annexes.lab.figures.statistics import Floats, rank_correlation, round_up
from tachograph.catalog.tables import PIPES
from tachograph.catalog.units import plural, text

BINS = 10
TYPES = ("compute", "memory")
_NICE = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)


def compute(study: Study) -> FigureNumbers:
    """Return mean utilisation in 10 x 10 bins of pipe activity and memory activity.

    cells: one row per (type, pipe_low, pipe_high, dram_low, dram_high): jobs and util_mean, null in
    empty bins. Bins run from 0 to a round number not below the largest activity, the same for both
    types; the last one holds its end. Jobs of no type, or that lack one of the three means, are
    left out. Correlations are those of ranks (Spearman).
    """
    column = f"{PIPES[study.options.pipe]}_mean"
    if why := study.why_not(["gpu_util_mean", column, "dram_active_mean", study.bound]):
        return study.nothing(["cells"], why)
    jobs = study.jobs.select(
        util="gpu_util_mean", pipe=column, dram="dram_active_mean", type=study.bound
    ).drop_nulls()
    if not jobs.height:
        return study.nothing(["cells"], "no job has all of a type, utilisation and activity")
    edges = {axis: _edges(jobs.get_column(axis)) for axis in ("pipe", "dram")}
    facts: dict[str, Fact] = {
        "pipe": PIPE_NAMES[study.options.pipe],
        "jobs": jobs.height,
        "jobs_left_out": study.jobs.height - jobs.height,
    }
    cells = []
    for kind in TYPES:
        part = jobs.filter(pl.col("type") == kind)
        cells.append(_cells(part, edges).select(pl.lit(kind).alias("type"), pl.all()))
        facts |= {
            f"{kind}_jobs": part.height,
            f"{kind}_util_median": float(np.median(part.get_column("util")))
            if part.height
            else None,
            f"{kind}_rho_pipe": rank_correlation(part, "util", "pipe"),
            f"{kind}_rho_dram": rank_correlation(part, "util", "dram"),
        }
    return FigureNumbers({"cells": pl.concat(cells)}, facts, study.jobs.height)


def draw(numbers: FigureNumbers) -> Figure:
    """Return one map per job type with the number of jobs per bin; empty bins stay blank."""
    with style.style():
        figure, panels = style.new_figure(style.PAGE_IN, 3.2, 1, 2, sharex=True, sharey=True)
        meshes = [_draw_type(axes, numbers, kind) for axes, kind in zip(panels, TYPES, strict=True)]
        panels[0].set_ylabel("DRAM activity (mean)")
        bar = figure.colorbar(meshes[0], ax=panels, pad=0.02, aspect=28)
        bar.set_label("mean GPU utilisation")
        style.percent_axis(bar.ax, limits=False)
        figure.supxlabel(
            (
                "Numbers: jobs of the bin; empty: no jobs. Dashed: pipe and memory are equally "
                "active, the ridge point."
            ),
            fontsize=6.5,
            color=style.FAINT,
        )
    return figure


def sentences(numbers: FigureNumbers) -> tuple[str, ...]:
    """Return how utilisation correlates with both activities, and how high it is, per job type."""
    medians, correlations = [], []
    for kind in TYPES:
        jobs = numbers.number(f"{kind}_jobs")
        if not jobs:
            continue
        among = f"in {plural(jobs, f'{kind}-bound job')}"
        medians.append(f"{text(numbers.number(f'{kind}_util_median'), 'fraction')} {among}")
        correlated = []
        for axis, named in (("pipe", numbers.facts["pipe"]), ("dram", "DRAM")):
            rho = numbers.number(f"{kind}_rho_{axis}")
            if rho is not None:
                correlated.append(f"{text(round(rho, 2) + 0.0, 'ratio')} with {named} activity")
        if correlated:
            correlations.append(f"{' and '.join(correlated)} {among}")
    message = (
        [f"Utilisation has a rank correlation of {', of '.join(correlations)}."]
        if correlations
        else []
    )
    if medians:
        message.append(f"The median utilisation is {', '.join(medians)}.")
    return tuple(message)


def _edges(activity: pl.Series) -> Floats:
    """Borders of the bins: from 0 to a round number that is not below any activity."""
    greatest = float(np.max(activity.to_numpy()))
    top = round_up(greatest, _NICE) if greatest > 0 else 1.0
    return np.linspace(0, top, BINS + 1).round(12)


def _cells(jobs: pl.DataFrame, edges: Mapping[str, Floats]) -> pl.DataFrame:
    """Jobs and mean utilisation in every bin of both axes, empty ones too."""
    bins_of_axes = {
        axis: np.clip(
            np.searchsorted(borders, jobs.get_column(axis).to_numpy(), side="right") - 1,
            0,
            BINS - 1,
        )
        for axis, borders in edges.items()
    }
    counted = (
        jobs.select(
            "util", **{axis: pl.Series(bins, dtype=pl.Int64) for axis, bins in bins_of_axes.items()}
        )
        .group_by("pipe", "dram")
        .agg(jobs=pl.len().cast(pl.Int64), util_mean=pl.col("util").mean())
    )
    grid = {}
    for axis, borders in edges.items():
        ends = {f"{axis}_low": borders[:-1], f"{axis}_high": borders[1:]}
        grid[axis] = pl.DataFrame({axis: np.arange(BINS), **ends})
    return (
        grid["pipe"]
        .join(grid["dram"], how="cross")
        .join(counted, on=["pipe", "dram"], how="left", maintain_order="left")
        .select(
            "pipe_low",
            "pipe_high",
            "dram_low",
            "dram_high",
            pl.col("jobs").fill_null(0),
            "util_mean",
        )
    )


def _draw_type(axes: Axes, numbers: FigureNumbers, kind: str) -> QuadMesh:
    cells = numbers.tables["cells"].filter(pl.col("type") == kind).sort("dram_low", "pipe_low")
    pipe, dram = (
        np.append(0.0, np.unique(cells.get_column(f"{axis}_high").to_numpy()))
        for axis in ("pipe", "dram")
    )
    means = cells.get_column("util_mean").to_numpy().reshape(BINS, BINS)
    axes.set_facecolor(style.STRIPE)
    mesh = axes.pcolormesh(
        pipe,
        dram,
        np.ma.masked_invalid(means),
        cmap=style.SEQUENTIAL,
        vmin=0,
        vmax=1,
        edgecolors="white",
        linewidth=0.4,
    )
    colours = colormaps[style.SEQUENTIAL]
    for low, high, below, above, jobs, mean in (
        cells.drop("type").filter(pl.col("jobs") > 0).iter_rows()
    ):
        dark = np.dot(colours(mean)[:3], (0.299, 0.587, 0.114)) < 0.5
        colour = style.ON_DARK if dark else style.ON_LIGHT
        middle = ((low + high) / 2, (below + above) / 2)
        style.write_cell(axes, *middle, style.short_count(jobs), colour)
    axes.axline((0, 0), slope=1, color=style.INK, linestyle="--", linewidth=0.8, alpha=0.6)
    axes.set_xlim(0, pipe[-1])
    axes.set_ylim(0, dram[-1])
    for axis, edges in ((axes.xaxis, pipe), (axes.yaxis, dram)):
        axis.set_ticks(edges[::2])
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:.4g} %"))
    axes.set_xlabel(f"{numbers.facts['pipe']} activity (mean)")
    style.set_title(axes, f"{plural(numbers.number(f'{kind}_jobs') or 0, f'{kind}-bound job')}")
    return mesh
