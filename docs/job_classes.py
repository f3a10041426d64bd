"""Draws the pictures of job-classes.md: two typical simulated jobs that hung, with the interval
that was found.

`python docs/job_classes.py LAKE` takes the jobs from an analyzed lake of `tachograph demo`; the
pictures go to docs/images/. The first job is taken whose GPUs were idle, and the first one whose
GPUs were busy-waiting.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tachograph.annexes.lab.figures.style import FAINT, INK, new_figure, style
from tachograph.catalog.config import ClassOptions
from tachograph.judge.classes.series import board_power_w
from tachograph.judge.job_classes import judge_classes
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_minutes, read_summaries
from tachograph.pipeline.minutes import read_stored
from tachograph.pipeline.timelines import timelines_of

IMAGES = Path(__file__).resolve().parent / "images"
LINES = (
    ("power", "#d55e00"),
    ("utilisation", "#0072b2"),
    ("SM activity", "#009e73"),
    ("memory traffic", "#cc79a7"),
)
SHADE = "#e9e2d0"
SIZE = (6.4, 2.3)


def main(arguments: Sequence[str]) -> int:
    """Draw every picture; return 0."""
    lake = Lake.open(arguments[0])
    jobs = read_summaries(lake).filter(
        pl.col("attribution") != "ambiguous", pl.col("elapsed_s") < 8 * 3600.0
    )
    found = judge_classes(jobs, *read_stored(lake, jobs, idle_util=0.01), ClassOptions()).filter(
        pl.col("verdict") == "yes"
    )
    for name, words in (("job_hang", "were idle"), ("job_hang_waiting", "busy-waiting")):
        hung = found.filter(
            pl.col("code") == "job_hang", pl.col("sentence").str.contains(words, literal=True)
        )
        _over_time(lake, jobs, hung.sort("job_id").row(0, named=True), name)
    return 0


def _of(jobs: pl.DataFrame, finding: dict[str, Any]) -> pl.DataFrame:
    return jobs.filter(pl.col("job_key") == finding["job_key"])


def _over_time(lake: Lake, jobs: pl.DataFrame, finding: dict[str, Any], name: str) -> None:
    """Characteristics of a job over time, the interval shaded."""
    mine = _of(jobs, finding)
    job = mine.row(0, named=True)
    line = timelines_of(read_minutes(lake, mine), idle_util=0.01)
    minute = line["minute"].to_numpy()
    board = board_power_w(job["gpu_model"]) or float(str(line["mean_power_w"].max()))
    values = (line["mean_power_w"].to_numpy() / board, *(line[f"mean_{c}"].to_numpy() for c in
              ("gpu_util", "sm_active", "dram_active")))  # fmt: skip
    with style():
        figure, (axes,) = new_figure(*SIZE)
        if finding["begin"] is not None:
            edges = [
                (finding[edge] - job["start"]).total_seconds() / 60 for edge in ("begin", "end")
            ]
            axes.axvspan(edges[0], edges[1], color=SHADE, linewidth=0)
        for (label, colour), value in zip(LINES, values, strict=True):
            axes.plot(minute, value, color=colour, label=label)
        _finish(figure, axes, name)


def _finish(figure: Figure, axes: Axes, name: str) -> None:
    axes.set_ylim(-0.03, 1.06)
    axes.set_yticks(
        np.arange(0, 1.01, 0.25), [f"{share:.0%}" for share in np.arange(0, 1.01, 0.25)]
    )
    axes.margins(x=0)
    axes.set_xlabel("minutes since the start", color=INK)
    axes.grid(axis="y")
    axes.tick_params(colors=FAINT)
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False
    )
    target = IMAGES / f"class-{name.replace('_', '-')}.png"
    figure.savefig(target, dpi=110, metadata={"Software": None})
    sys.stdout.write(f"{target.name}: {target.stat().st_size // 1024} KiB\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
