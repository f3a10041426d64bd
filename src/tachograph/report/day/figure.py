"""Simulated days as a figure: what each policy got out of the GPUs, against the job it harmed most."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.ticker import FuncFormatter, NullLocator

from tachograph.figures.style import COLUMN_IN, DPI, FAINT, INK, new_figure, style
from tachograph.report.day.report import DayReport

# shape and colour (Okabe and Ito): no policy is told by colour alone
_MARKS = {
    "exclusive": ("s", INK),
    "roofline": ("^", "#d55e00"),
    "occupancy": ("v", "#e69f00"),
    "advice": ("o", "#0072b2"),
    "safe": ("D", "#009e73"),
    "oracle": ("x", FAINT),
}


def write_figure(report: DayReport, file: Path) -> None:
    """Write the figure, a mark per policy and day; the format is the file's suffix."""
    with style():
        figure, (axes,) = new_figure(1.4 * COLUMN_IN, 0.95 * COLUMN_IN)
        for result in report.results:
            shape, colour = _MARKS[result.policy]
            work = np.array([day.per_gpu_hour for day in result.days])
            worst = np.array([day.slowdown_max for day in result.days])
            axes.plot(work, worst, shape, color=colour, markersize=4.5, label=result.policy, alpha=0.85)
        axes.axhline(report.max_slowdown, color=FAINT, linewidth=0.8, linestyle=":", label="allowed")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
        axes.yaxis.set_minor_locator(NullLocator())
        top = max([2.0, *(day.slowdown_max for result in report.results for day in result.days)])
        axes.set_yticks([tick for tick in (1, 1.1, 1.5, 2, 3, 4, 5, 10, 20, 50, 100) if tick <= top])
        axes.set_ylim(0.97, 1.1 * top)
        axes.set_xlabel("work done per GPU-hour held, exclusive use is 1")
        axes.set_ylabel("worst slowdown of a job")
        axes.grid(axis="y")
        figure.legend(loc="outside right upper")
        undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(file.suffix)
        figure.savefig(file, dpi=DPI, metadata=undated)
