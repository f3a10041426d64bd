"""The plots of the page of kernels, as inline SVG; None without data. Kernels are labelled by number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log10, pi
from typing import cast

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.projections.polar import PolarAxes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from tachograph.catalog.arrays import Floats
from tachograph.catalog.units import text
from tachograph.figures.inline_svg import (
    ACCENT,
    COMPUTE,
    FAINT,
    GRID,
    INK,
    MEMORY,
    PAPER,
    new_dials,
    new_figure,
    to_svg,
)
from tachograph.figures.names import drawn_name
from tachograph.sharing.kernel_names import shortened_apart

MAX_DIALS = 12  # kernels that get a radar
_COLUMNS = 4
TOLD_CELLS = 16  # kernels up to which a cell of the matrix shows its number
MAX_CELLS = 60  # kernels of a matrix that is drawn
_SHOWN_SLOWDOWN = 2.0  # the colour of this and all above


@dataclass(frozen=True, slots=True)
class Placed:
    """A kernel in the roofline plot. share: fraction 0..1 of the time of all."""

    number: int
    flop_per_byte: float
    flop_per_s: float
    share: float


def radars(
    kernels: Sequence[tuple[int, str]], axes: Mapping[str, Sequence[float | None]], *, name: str = "radar"
) -> str | None:
    """Return a radar for each of the first kernels: its demand on each resource, 0 to 100 %.

    kernels: (number, name) each. axes: {resource: a fraction 0..1 per kernel, None where not measured}. What is
    missing is a gap, and its axis is named in italics.
    """
    if not kernels or len(axes) < 3:
        return None
    shown = kernels[:MAX_DIALS]
    columns = min(_COLUMNS, max(2, len(shown)))
    figure, dials = new_dials(len(shown), columns, 1.95 if columns == _COLUMNS else 2.7)
    short = shortened_apart([label for _, label in shown])
    for place, (dial, (number, _)) in enumerate(zip(dials, shown, strict=True)):
        _radar(dial, {axis: values[place] for axis, values in axes.items()}, labels=6.2 if columns == _COLUMNS else 8.0)
        title = f"{number}  {drawn_name(short[place])}"
        dial.set_title(title, fontsize=7.5 if columns == _COLUMNS else 9.0, color=INK, pad=9)
    return to_svg(figure, name=name, label="Demand of each kernel on each resource, in percent of its capacity")


def _radar(dial: Axes, values: Mapping[str, float | None], *, labels: float) -> None:
    polar = cast("PolarAxes", dial)
    polar.set_theta_zero_location("N")
    polar.set_theta_direction(-1)
    angles = [2 * pi * place / len(values) for place in range(len(values))]
    known = [
        (angle, min(1.0, value)) for angle, value in zip(angles, values.values(), strict=True) if value is not None
    ]
    if len(known) == len(values):
        dial.fill(*zip(*known, strict=True), color=ACCENT, alpha=0.22, linewidth=0)
        dial.plot(*zip(*known, known[0], strict=True), color=ACCENT, linewidth=1.2)
    else:
        _open_line(dial, angles, list(values.values()))
    if known:
        dial.plot(*zip(*known, strict=True), "o", color=ACCENT, markersize=2.2)
    dial.set_ylim(0, 1)
    dial.set_yticks((0.5, 1.0), ("", ""))
    dial.grid(color=GRID, linewidth=0.6)
    dial.spines["polar"].set(color=GRID, linewidth=0.8)
    dial.set_xticks(angles, list(values), fontsize=labels)
    dial.tick_params(axis="x", pad=-2)
    for tick, angle, value in zip(dial.get_xticklabels(), angles, values.values(), strict=True):
        side = "center" if abs(np.sin(angle)) < 0.1 else "left" if angle < pi else "right"
        tick.set(horizontalalignment=side, color=INK)
        if value is None:
            tick.set(color=FAINT, fontstyle="italic")


def _open_line(dial: Axes, angles: Sequence[float], values: Sequence[float | None]) -> None:
    """Neighbours that are both known, joined."""
    for place, value in enumerate(values):
        behind = values[(place + 1) % len(values)]
        if value is not None and behind is not None:
            ends = (angles[place], angles[place] + 2 * pi / len(values))
            dial.plot(ends, (min(1.0, value), min(1.0, behind)), color=ACCENT, linewidth=1.2)


def roofline(
    kernels: Sequence[Placed], *, bytes_per_s: float | None, peaks: Mapping[str, float], name: str = "roofline"
) -> str | None:
    """Return kernels by FLOP per byte of DRAM and FLOP/s, under the roofs; each mark as large as its share of time.

    peaks: {pipe: FLOP/s}. A kernel without FLOP or without traffic has no place.
    """
    drawn = [kernel for kernel in kernels if kernel.flop_per_byte > 0 and kernel.flop_per_s > 0]
    if not drawn:
        return None
    figure, axes = new_figure(3.6)
    left, right = _decades([kernel.flop_per_byte for kernel in drawn], bytes_per_s, peaks)
    tops = [*peaks.values(), *(kernel.flop_per_s for kernel in drawn)]
    low = min(kernel.flop_per_s for kernel in drawn)
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(10 ** np.floor(log10(low) - 0.3), max(tops) * 3))
    _roofs(axes, left, right, bytes_per_s, peaks)
    for kernel in sorted(drawn, key=lambda kernel: -kernel.share):
        size = 4 + 16 * kernel.share**0.5
        axes.plot([kernel.flop_per_byte], [kernel.flop_per_s], "o", color=ACCENT, alpha=0.7, markersize=size,
                  markeredgecolor=PAPER, markeredgewidth=0.8)  # fmt: skip
    _numbered(axes, drawn)
    axes.grid(which="major", color=GRID, linewidth=0.6)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _rate(value).replace(".00", "")))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())
        axis.set_major_locator(LogLocator(numticks=9))
    axes.set_xlabel("FLOP (floating-point operations) per byte of DRAM")
    axes.set_ylabel("FLOP/s")
    return to_svg(figure, name=name, label="Kernels under the roofs of the GPU: FLOP/s by FLOP per byte of DRAM")


def _decades(
    intensities: Sequence[float], bytes_per_s: float | None, peaks: Mapping[str, float]
) -> tuple[float, float]:
    """Whole decades that hold the kernels and the ridges."""
    ridges = [peak / bytes_per_s for peak in peaks.values()] if bytes_per_s else []
    seen = [*intensities, *ridges]
    return float(10 ** np.floor(log10(min(seen)) - 0.2)), float(10 ** np.ceil(log10(max(seen)) + 0.2))


def _roofs(axes: Axes, left: float, right: float, bytes_per_s: float | None, peaks: Mapping[str, float]) -> None:
    highest = max(peaks.values(), default=None)
    if bytes_per_s:
        end = right if highest is None else min(right, highest / bytes_per_s)
        axes.plot([left, end], [left * bytes_per_s, end * bytes_per_s], color=MEMORY, linewidth=1.5)
        bottom = axes.get_ylim()[0]
        start = max(left, bottom / bytes_per_s)
        middle = 10 ** (0.55 * log10(start) + 0.45 * log10(end)) if end > start else start
        axes.annotate(
            f"DRAM {text(bytes_per_s, 'B/s')}", (middle, middle * bytes_per_s), xytext=(5, -10),
            textcoords="offset points", color=MEMORY, fontsize=8,
        )  # fmt: skip
    for pipe, peak in peaks.items():
        start = left if not bytes_per_s else max(left, peak / bytes_per_s)
        axes.plot([start, right], [peak, peak], color=COMPUTE, linewidth=1.5)
        axes.annotate(
            f"{pipe} {_rate(peak)}", (right, peak), xytext=(-2, 3),
            textcoords="offset points", ha="right", color=COMPUTE, fontsize=8,
        )  # fmt: skip


def _numbered(axes: Axes, kernels: Sequence[Placed]) -> None:
    """Numbers beside the marks; those of overlapping marks are in one line."""
    groups: list[list[Placed]] = []
    for kernel in sorted(kernels, key=lambda kernel: kernel.number):
        near = next((group for group in groups if _near(group[0], kernel)), None)
        if near is None:
            groups.append([kernel])
        else:
            near.append(kernel)
    for group in groups:
        numbers = [str(kernel.number) for kernel in group]
        known = ", ".join(numbers if len(numbers) <= 6 else [*numbers[:5], f"+{len(numbers) - 5}"])
        outer = max(group, key=lambda kernel: kernel.flop_per_byte)
        axes.annotate(
            known, (outer.flop_per_byte, outer.flop_per_s), xytext=(3 + 7 * outer.share**0.5, -9),
            textcoords="offset points", fontsize=8, color=INK,
        )  # fmt: skip


def _rate(flop_per_s: float) -> str:
    return f"{text(flop_per_s, 'B').removesuffix('B')}FLOP/s"


def _near(one: Placed, other: Placed) -> bool:
    """Whether two marks are less than a quarter of a decade apart."""
    across = abs(log10(one.flop_per_byte / other.flop_per_byte))
    return across < 0.35 and abs(log10(one.flop_per_s / other.flop_per_s)) < 0.18


def pairs(
    rows: Sequence[tuple[int, str]], columns: Sequence[tuple[int, str]], slowdown: Floats, *, name: str = "pairs"
) -> str | None:
    """Return the slowdown of each kernel (row) while another (column) runs beside it; hatched: undetermined."""
    if not rows or not columns:
        return None
    rows, columns = rows[:MAX_CELLS], columns[:MAX_CELLS]
    shown = slowdown[: len(rows), : len(columns)]
    few = len(columns) <= TOLD_CELLS
    figure, axes = new_figure(max(1.9, 1.0 + (0.3 if few else 0.16) * len(rows)))
    colours = mpl.colormaps["cividis_r"].with_extremes(bad=(0, 0, 0, 0))
    scale = Normalize(1.0, _SHOWN_SLOWDOWN, clip=True)
    axes.patch.set(facecolor="none", edgecolor=FAINT, hatch="////", linewidth=0, alpha=0.4)
    image = axes.imshow(np.ma.masked_invalid(shown), cmap=colours, norm=scale, aspect="auto", interpolation="nearest")
    if few:
        _tell_cells(axes, shown, scale)
    _name_cells(axes, rows, columns)
    bar = figure.colorbar(image, ax=axes, pad=0.015, fraction=0.035, aspect=max(8.0, 1.6 * len(rows)))
    bar.set_ticks([1.0, 1.25, 1.5, 1.75, 2.0], labels=["1", "1.25", "1.5", "1.75", "2 and more"])
    bar.ax.tick_params(labelsize=8, length=2)
    bar.outline.set_visible(False)
    bar.set_label("slowdown, times")
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("number of the kernel that runs beside it", fontsize=8)
    return to_svg(figure, name=name, label="Slowdown of the kernel of a row while that of a column runs beside it")


def _name_cells(axes: Axes, rows: Sequence[tuple[int, str]], columns: Sequence[tuple[int, str]]) -> None:
    """Numbers above, names and numbers at the side, lines of the page's colour between the cells."""
    numbers = [str(number) for number, _ in columns]
    axes.set_xticks(range(len(columns)), numbers, fontsize=8 if len(columns) <= 30 else 5)
    short = shortened_apart([label for _, label in rows])
    names = [f"{drawn_name(label)}  {number}" for label, (number, _) in zip(short, rows, strict=True)]
    axes.set_yticks(range(len(rows)), names, fontsize=8 if len(rows) <= 30 else 6)
    axes.set_xticks(np.arange(1, len(columns)) - 0.5, minor=True)
    axes.set_yticks(np.arange(1, len(rows)) - 0.5, minor=True)
    axes.grid(which="minor", color=PAPER, linewidth=0.8)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    axes.xaxis.tick_top()


def _tell_cells(axes: Axes, slowdown: Floats, scale: Normalize) -> None:
    for (row, column), value in np.ndenumerate(slowdown):
        if np.isnan(value):
            axes.text(column, row, "?", ha="center", va="center", fontsize=8, color=INK)
        else:
            # on the light and the dark end of the scale alike, in either scheme of the page
            ink = "#ffffff" if scale(value) > 0.45 else "#111111"
            written = text(value, "times").removesuffix("x")
            axes.text(column, row, written, ha="center", va="center", fontsize=8, color=ink)
