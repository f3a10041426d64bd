"""Style of the study's figures: sizes, colours for colour blindness and grey print, plots."""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from io import BytesIO
from typing import Any

import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import (
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullLocator,
    PercentFormatter,
)
from matplotlib.transforms import Bbox

from tachograph.annexes.lab.figures.registry import FORMATS
from tachograph.annexes.lab.figures.statistics import Floats
from tachograph.catalog.units import printable

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
ON_DARK, ON_LIGHT = "#fefefe", "#212121"  # text on a coloured cell, on dark and on light pages
STRIPE = "#f3f3f3"
# what follows the page's own colours where a figure is part of one; all others are the same on a
# dark page
PAGE_COLOURS: Mapping[str, str] = {
    INK: "var(--ink)",
    "#000000": "var(--ink)",
    FAINT: "var(--faint)",
    GRID: "var(--line)",
    "#ffffff": "var(--paper)",
    STRIPE: "var(--soft)",
    "#00204d": "var(--darkest)",
}
# Settings of Matplotlib are of the process: held by a thread that draws beside others.
DRAWING = threading.RLock()
DPI = 200
# Without the time of drawing, so that the same figure gives the same bytes. Higher levels take
# longer, and save 6 % of a PNG.
_SAVED_WITH: Mapping[str, Mapping[str, Any]] = {
    "pdf": {"metadata": {"CreationDate": None}},
    "svg": {"metadata": {"Date": None}},
    "png": {"pil_kwargs": {"compress_level": 1}},
}
NO_NAME = "(no name)"
_MOST = 40  # characters
_FONT = "DejaVu Sans"  # font of all figures; missing glyphs would become boxes, with a warning
GOLDEN = (5**0.5 - 1) / 2  # its multiples spread dots evenly, however many there are


def style() -> AbstractContextManager[None]:
    """Return Matplotlib settings of all figures: embedded fonts, thin lines."""
    return mpl.rc_context(
        {
            "pdf.fonttype": 42,
            "svg.fonttype": "path",
            "svg.hashsalt": "tachograph",
            "text.parse_math": False,  # names of users have dollar signs
            "font.family": _FONT,
            "font.enable_last_resort": False,  # `drawn_name` leaves only letters that it has
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
    """Return an empty figure and its axes, row by row. `how`: for `Figure.subplots`."""
    figure = Figure(
        figsize=(width_in, height_in), layout=_MeasuredLayout(w_pad=PAD_IN, h_pad=PAD_IN)
    )
    FigureCanvasAgg(figure)
    how = {"subplot_kw": {"axes_class": _MeasuredAxes}} | how
    grid = figure.subplots(rows, columns, squeeze=False, **how)
    for axes in grid.flat:
        axes.spines[:].set_in_layout(False)  # they lie on the border: measuring them takes time
    return figure, list(grid.flat)


class _MeasuredAxes(Axes):
    """Axes that constrained layout measures once, though it makes two passes.

    The second one is for labels that change with the size of the axes.
    """

    around: Floats | None = None  # pixels to the ends of labels: (left, bottom), (right, top)

    def get_tightbbox(self, renderer: Any = None, **how: Any) -> Bbox | None:
        """Return the box around the axes and their labels in pixels; None of invisible axes."""
        inside = self.bbox.get_points()
        if self.around is None or not how.get("for_layout_only"):
            box = super().get_tightbbox(renderer, **how)
            if box is None:
                return None
            self.around = box.get_points() - inside
        return Bbox(inside + self.around)


class _MeasuredLayout(ConstrainedLayoutEngine):
    """Constrained layout that measures axes anew each time it is executed."""

    def execute(self, fig: Figure) -> None:
        """Move and size the axes of the figure so that their labels fit in."""
        for axes in fig.axes:
            if isinstance(axes, _MeasuredAxes):
                axes.around = None
        super().execute(fig)


def render(figure: Figure, formats: Sequence[str] = FORMATS) -> dict[str, bytes]:
    """Return the drawing in each format. The same figure gives the same bytes."""
    drawings = {}
    with style():
        figure.set_dpi(DPI)  # at few dots letters are set wider apart or closer than in print
        if layout := figure.get_layout_engine():
            layout.execute(figure)
            # None, for any engine has each format drawn once more without output.
            figure.set_layout_engine(None)
        for suffix in formats:
            content = BytesIO()
            figure.savefig(content, format=suffix, dpi=DPI, **_SAVED_WITH[suffix])
            drawings[suffix] = content.getvalue()
    return drawings


def percent_axis(axes: Axes, which: str = "y", *, limits: bool = True) -> None:
    """Show fractions 0..1 as percent on one axis, from 0 to 100 % with `limits`."""
    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_formatter(PercentFormatter(1.0, symbol=" %", decimals=0))
    if limits:
        (axes.set_ylim if which == "y" else axes.set_xlim)(0, 1)


def count_axis(axes: Axes, ticks: int = 5) -> None:
    """Show counts on the vertical axis: at most so many whole numbers, thousands separated."""
    axes.yaxis.set_major_locator(MaxNLocator(ticks, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def log_axis(axes: Axes, which: str, low: float, high: float) -> None:
    """Make an axis logarithmic from `low` to `high`, with ticks at 0.03, 0.1, 0.3, 1, 3 and so on.

    Over more than five decades only these have a tick; within one decade there are more.
    """
    axis = axes.yaxis if which == "y" else axes.xaxis
    # First: a scale cannot be set around nothing.
    (axes.set_ylim if which == "y" else axes.set_xlim)(low, high)
    (axes.set_yscale if which == "y" else axes.set_xscale)("log")
    decades = np.log10(high / low)
    steps: tuple[float, ...] = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
    if decades > 5:
        steps = (1.0,)
    elif decades > 1:
        steps = (1.0, 3.0)
    axis.set_major_locator(LogLocator(10, subs=steps, numticks=20))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: log_label(value)))


def log_label(value: float) -> str:
    """Return a tick of a logarithmic axis as text.

    >>> [log_label(value) for value in (0.003, 0.3, 10**0.5, 30, 1.5, 30_000)]
    ['0.003', '0.3', '3', '30', '1.5', '30,000']
    """
    digits = f"{value:.1g}" if not 1 < value < 2 else f"{value:.2g}"
    return f"{float(digits):,.10g}"


def short_count(jobs: int) -> str:
    """Return a number of jobs in few characters, for cells and rows of numbers.

    >>> short_count(7), short_count(999), short_count(1234), short_count(64183)
    ('7', '999', '1.2k', '64k')
    """
    if jobs < 1000:
        return f"{jobs}"
    if jobs < 10_000:
        return f"{jobs / 1000:.2g}k"
    return f"{jobs / 1000:.0f}k"


def not_drawn(axes: Axes, why: str) -> None:
    """Write the reason for a missing part in its place, wrapped."""
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
) -> None:
    """Draw rows of `statistics.boxes` at some positions.

    Not by `Axes.bxp`, which makes seven artists per box.
    """
    low, q1, median, q3, high, mean = (
        table.get_column(name).to_numpy() for name in ("low", "q1", "median", "q3", "high", "mean")
    )
    at, half = np.asarray(positions), width / 2
    boxes = axes.bar(
        at,
        q3 - q1,
        width,
        q1,
        color=colour,
        hatch=hatch,
        alpha=0.75,
        edgecolor=INK,
        linewidth=0.8,
    )
    for box in boxes:
        box.sticky_edges.y.clear()  # else no margin is left below the lowest box
    thin: Mapping[str, Any] = {"color": INK, "linewidth": 0.8}
    axes.vlines(at, low, q1, **thin)
    axes.vlines(at, q3, high, **thin)
    for end in (low, high):
        axes.hlines(end, at - half / 2, at + half / 2, **thin)
    axes.hlines(median, at - half, at + half, color=INK, linewidth=1.2)
    axes.plot(at, mean, "o", color="white", markeredgecolor=INK, markersize=3)


def set_title(axes: Axes, title: str, **how: Any) -> None:
    """Set the title of axes without labels at the top, which are then not measured for it."""
    axes.set_title(title, y=1.0, **how)


def draw_share(
    axes: Axes, row: float, start: float, part: float, *, colour: str, hatch: str, height: float
) -> None:
    """Draw one part of a horizontal bar of shares."""
    axes.barh(
        row,
        part,
        height,
        left=start,
        alpha=0.75,
        linewidth=0.8,
        color=colour,
        hatch=hatch,
        edgecolor=INK,
    )


def write_share(axes: Axes, row: float, middle: float, written: str) -> None:
    """Write a share into its part of a bar."""
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85}
    axes.text(middle, row, written, ha="center", va="center", fontsize=6.5, bbox=box)


def write_cell(axes: Axes, x: float, y: float, written: str, colour: str) -> None:
    """Write into the middle of a cell of a map."""
    label = axes.text(x, y, written, ha="center", va="center", fontsize=5.8, zorder=4, color=colour)
    label.set_in_layout(False)  # it is inside the axes: needs no room, and measuring it takes time


def draw_strips(
    axes: Axes,
    curves: pl.DataFrame,
    rows: pl.DataFrame,
    *,
    colours: Mapping[str, str] | None = None,
) -> None:
    """Draw one row of dots per group, top down: jobs at their value, a bar between the quartiles.

    rows: (group, jobs, median, q1, q3), all null in a group without jobs. curves: (group, value),
    rows of `statistics.cumulative`: of a group with more jobs, evenly spaced ranks. Dots are spread
    over the height of a row.
    """
    for line, row in enumerate(rows.iter_rows(named=True)):
        if not row["jobs"]:
            axes.text(
                0.5,
                line,
                "no jobs",
                ha="center",
                va="center",
                color=FAINT,
                transform=axes.get_yaxis_transform(),
            )
            continue
        values = curves.filter(pl.col("group") == row["group"]).get_column("value").to_numpy()
        spread = (np.arange(1, len(values) + 1) * GOLDEN) % 1 - 0.5
        colour = (colours or {}).get(row["group"], FAINT)
        axes.plot(
            values,
            line - 0.08 + 0.5 * spread,
            "o",
            color=colour,
            markersize=2.4,
            alpha=0.6,
            markeredgewidth=0,
        )
        below = line + 0.32
        axes.plot(
            [row["q1"], row["q3"]], [below, below], color=INK, linewidth=2.2, solid_capstyle="butt"
        )
        axes.plot(
            row["median"], below, "o", color="white", markeredgecolor=INK, markersize=3.6, zorder=3
        )
    axes.set_ylim(rows.height - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")


def draw_ecdf(
    axes: Axes,
    curves: pl.DataFrame,
    looks: Mapping[str, tuple[str, str, str]],
    *,
    top: float,
    title: str = "",
) -> None:
    """Draw the cumulative share of jobs by group, 0 to `top`.

    looks: {group: (label, colour, dashes)}.

    curves: (group, value, share), rows of `statistics.cumulative`.
    """
    for group, (label, colour, dashes) in looks.items():
        curve = curves.filter(pl.col("group") == group)
        if curve.height:
            values = np.concatenate([[0.0], curve.get_column("value").to_numpy(), [top]])
            shares = np.concatenate([[0.0], curve.get_column("share").to_numpy(), [1.0]])
            axes.step(
                values, shares, dashes, where="post", color=colour, linewidth=1.5, label=label
            )
    axes.set_xlim(0, top)
    percent_axis(axes)
    axes.set_ylim(0, 1.02)
    axes.grid(axis="y")
    axes.legend(
        title=title or None,
        alignment="left",
        loc="lower right",
        handlelength=2.6,
        borderaxespad=0.3,
    )


def mark_limits(axes: Axes, limits: Sequence[float]) -> None:
    """Draw vertical lines at the limits inside the axis, with their values at the top."""
    for limit in limits:
        if limit < axes.get_xlim()[1]:
            axes.axvline(limit, color=FAINT, linewidth=0.7, linestyle=":")
            axes.annotate(
                f"{limit:.2f}",
                (limit, 1),
                (0, 1.5),
                axes.get_xaxis_transform(),
                "offset points",
                color=FAINT,
                fontsize=7,
                ha="center",
                va="bottom",
            )


def drawn_name(name: str | None) -> str:
    r"""Return a name as a label: at most 40 characters, only letters that the font has.

    Others are written out, as controls are. A leading underscore gets a blank before it: Matplotlib
    leaves labels that begin with one out of legends.

    >>> drawn_name("_qz"), drawn_name(" "), drawn_name("训练\x1b"), drawn_name("a" * 50)[-2:]
    (' _qz', '(no name)', '\\u8bad\\u7ec3\\x1b', 'a…')
    """
    shown = "".join(
        letter if ord(letter) in _drawable() else letter.encode("unicode_escape").decode()
        for letter in printable(name or "", most=400)
    )
    if not shown.strip():
        return NO_NAME
    cut = shown if len(shown) <= _MOST else f"{shown[: _MOST - 1]}…"
    return f" {cut}" if cut.startswith("_") else cut


@cache
def _drawable() -> frozenset[int]:
    return frozenset(get_font(findfont(FontProperties(family=[_FONT]))).get_charmap())
