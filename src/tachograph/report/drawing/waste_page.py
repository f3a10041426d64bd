"""Plots of the ledger's page as inline SVG; None without data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from tachograph.report.drawing.inline_svg import (
    ACCENT,
    FAINT,
    GRID,
    INK,
    WARNING,
    new_figure,
    to_svg,
)
from tachograph.report.drawing.names import drawn_name

Floats = npt.NDArray[np.float64]
NAMED = 5  # users that are named in the curve


def by_cause(names: Sequence[str], hours: Floats, recoverable: Floats) -> str | None:
    """Return GPU-hours of each cause, and which part of them is recoverable."""
    if not hours.size or not np.any(hours > 0):
        return None
    figure, axes = new_figure(0.75 + 0.28 * hours.size)
    rows = np.arange(hours.size)
    axes.barh(rows, hours, height=0.62, color=FAINT, alpha=0.35, label="lost")
    axes.barh(rows, recoverable, height=0.62, color=WARNING, label="of these recoverable")
    axes.set_yticks(rows, list(names))
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, float(hours.max()) * 1.05)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlabel("GPU-hours")
    axes.spines["left"].set_visible(False)
    figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=8)
    return to_svg(
        figure, name="causes", label="GPU-hours lost by cause, and the recoverable part of them"
    )


def by_user(names: Sequence[str], lost: Floats) -> str | None:
    """Return the cumulative share of lost GPU-hours by user, most first."""
    if lost.size < 2 or not np.any(lost > 0):
        return None
    figure, axes = new_figure(2.3)
    order = np.argsort(-lost, kind="stable")
    share = np.concatenate([[0.0], np.cumsum(lost[order]) / lost.sum()])
    axes.plot(np.arange(share.size), share, drawstyle="default", color=ACCENT, linewidth=1.4)
    axes.fill_between(np.arange(share.size), share, color=ACCENT, alpha=0.15, linewidth=0)
    _name_first(axes, [names[place] for place in order[:NAMED]], share)
    axes.set_xlim(0, lost.size)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.set_xlabel("users, most lost first")
    axes.set_ylabel("of the lost GPU-hours")
    return to_svg(figure, name="users", label="Lost GPU-hours of users, added up, most first")


def _name_first(axes: Axes, names: Sequence[str], share: Floats) -> None:
    for place, name in enumerate(names, 1):
        axes.plot([place], [share[place]], "o", color=INK, markersize=3)
        at = (place, share[place])
        axes.annotate(
            drawn_name(name), at, xytext=(6, -3), textcoords="offset points", va="top", fontsize=8
        )
