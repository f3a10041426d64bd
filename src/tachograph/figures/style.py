"""How the figures of a study look: sizes, colours that survive colour blindness and grey print, drawn statistics."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, PercentFormatter

COLUMN_IN, PAGE_IN = 3.5, 7.16  # widths of one and of two columns of a paper
PAD_IN = 0.06  # around everything: text is a little wider in one format than in another
INK, FAINT, GRID = "#222222", "#767676", "#d9d9d9"
# Okabe and Ito, "Color Universal Design" (2008): chosen so that their greys differ as well
COMPUTE, MEMORY, NEITHER = "#0072b2", "#e69f00", "#bbbbbb"
ACCENT, SECOND = "#0072b2", "#d55e00"
BOUND_COLOURS: Mapping[str, str] = {"compute": COMPUTE, "memory": MEMORY}
HATCHES: Mapping[str, str] = {"compute": "", "memory": "////"}
SEQUENTIAL = "cividis"  # for values from low to high; readable by everybody and in grey
DIVERGING = "PuOr"  # for values on both sides of zero
FORMATS = ("pdf", "svg", "png")
DPI = 200


def style() -> AbstractContextManager[None]:
    """Return the settings in which figures are made and saved: fonts embedded as outlines or TrueType, thin lines."""
    return mpl.rc_context(
        {
            "pdf.fonttype": 42,
            "svg.fonttype": "path",
            "svg.hashsalt": "tachograph",
            "font.family": "DejaVu Sans",
            "font.size": 8.0,
            "axes.titlesize": 8.5,
            "axes.labelsize": 8.0,
            "xtick.labelsize": 7.5,
            "ytick.labelsize": 7.5,
            "legend.fontsize": 7.5,
            "legend.frameon": False,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.linewidth": 0.7,
            "axes.edgecolor": INK,
            "axes.axisbelow": True,
            "grid.color": GRID,
            "grid.linewidth": 0.5,
            "lines.linewidth": 1.2,
            "hatch.linewidth": 0.5,
            "text.color": INK,
            "axes.labelcolor": INK,
            "xtick.color": INK,
            "ytick.color": INK,
        }
    )


def new_figure(
    width_in: float, height_in: float, rows: int = 1, columns: int = 1, **how: Any
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure and its axes, row by row. `how` goes to `Figure.subplots`."""
    figure = Figure(figsize=(width_in, height_in), layout=ConstrainedLayoutEngine(w_pad=PAD_IN, h_pad=PAD_IN))
    FigureCanvasAgg(figure)
    made = figure.subplots(rows, columns, squeeze=False, **how)
    return figure, list(made.flat)


def save(figure: Figure, folder: Path, stem: str, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write the figure once per format; return the files. The same figure gives the same bytes."""
    files = []
    with style():
        figure.set_dpi(DPI)  # at few dots letters are set wider apart or closer than in print
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # it is laid out now: once, not once per format
        for suffix in formats:
            file = folder / f"{stem}.{suffix}"
            nothing = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(suffix)
            figure.savefig(file, format=suffix, dpi=DPI, metadata=nothing)
            files.append(file)
    return files


def percent_axis(axes: Axes, which: str = "y", *, limits: bool = True) -> None:
    """Show fractions 0..1 as percent on one axis, from 0 to 100 % with `limits`."""
    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_formatter(PercentFormatter(1.0, symbol=" %", decimals=0))
    if limits:
        (axes.set_ylim if which == "y" else axes.set_xlim)(0, 1)


def thousands_axis(axes: Axes, which: str = "y") -> None:
    """Show counts with separators on one axis."""
    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def not_drawn(axes: Axes, why: str) -> None:
    """Write in the place of a part why it is missing, in lines that fit into it."""
    axes.set_axis_off()
    lines = textwrap.fill(f"not drawn: {why}", 26, break_on_hyphens=False)
    axes.text(0.5, 0.5, lines, ha="center", va="center", color=FAINT, transform=axes.transAxes)


def draw_boxes(
    axes: Axes,
    table: pl.DataFrame,
    positions: Sequence[float],
    *,
    width: float = 0.6,
    colour: str = ACCENT,
    hatch: str = "",
    vertical: bool = True,
) -> None:
    """Draw rows of `statistics.boxes` at some positions."""
    stats = [
        {
            "med": row["median"],
            "mean": row["mean"],
            "q1": row["q1"],
            "q3": row["q3"],
            "whislo": row["low"],
            "whishi": row["high"],
            "fliers": [],
        }
        for row in table.iter_rows(named=True)
    ]
    drawn = axes.bxp(
        stats,
        positions=list(positions),
        widths=width,
        orientation="vertical" if vertical else "horizontal",
        showfliers=False,
        showmeans=True,
        patch_artist=True,
        manage_ticks=False,
        medianprops={"color": INK, "linewidth": 1.2},
        meanprops={"marker": "o", "markersize": 3, "markerfacecolor": "white", "markeredgecolor": INK},
        whiskerprops={"color": INK, "linewidth": 0.8},
        capprops={"color": INK, "linewidth": 0.8},
        boxprops={"edgecolor": INK, "linewidth": 0.8},
    )
    for box in drawn["boxes"]:
        box.set(facecolor=colour, alpha=0.75, hatch=hatch)


def draw_violin(
    axes: Axes, density: pl.DataFrame, position: float, *, width: float = 0.8, colour: str = ACCENT
) -> None:
    """Draw one group's rows of `statistics.densities` as an upright violin."""
    if not density.height:
        return
    value, height = (density.get_column(name).to_numpy() for name in ("value", "density"))
    half = height / np.max(height) * width / 2
    axes.fill_betweenx(value, position - half, position + half, color=colour, alpha=0.45, linewidth=0)
    axes.plot(position - half, value, color=colour, linewidth=0.7)
    axes.plot(position + half, value, color=colour, linewidth=0.7)
