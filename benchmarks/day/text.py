"""The report on the simulated day: text, JSON, figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from matplotlib.ticker import FuncFormatter, NullLocator

from day.report import DayReport, PlayedPolicy, SeedSpread, counters_told
from day.schedule import PAIR
from tachograph.catalog.units import plural
from tachograph.figures.style import COLUMN_IN, DPI, FAINT, INK, new_figure, style
from tachograph.sharing.advice import times

Row = tuple[str, ...]
_SEES = {
    "measured": "profiles of kernels, each number with an error of 3 %",
    "dcgm": "means of DCGM's counters",
    "dcgm-careful": "means of DCGM's counters, half of the issue slots counted as demand",
}
_COUNTED = {  # what columns count, by the field
    "per_gpu_hour": "Work per GPU-hour: GPU-hours that the jobs take alone over those they held.",
    "saved_gpu_hours": "GPU-hours saved: those that the jobs take alone, less those they held.",
    "makespan_ratio": "Makespan ratio: time to the last end, of exclusive use over that of the policy.",
}
_GAP = 3  # between columns
# what is left out first where there is little room; `--json` has all
_LEAST_WANTED = ("makespan_ratio", "turnaround_h", "slowdown_median", "slower_50", "saved_gpu_hours", "slowdown_mean")


def _hours(value: float) -> str:
    return f"{value:.1f} h"


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %" if value >= 0.0995 or not value else f"{100 * value:.1f} %"


def _whole(value: float) -> str:
    return f"{value:,.0f}" if round(value) else "0"


Column = tuple[str, str, Callable[[float], str]]
WORK: tuple[Column, ...] = (
    ("shared", "jobs that shared", _percent),
    ("per_gpu_hour", "work per GPU-hour", times),
    ("saved_gpu_hours", "GPU-hours saved", _whole),
    ("makespan_ratio", "makespan ratio", times),
    ("wait_h_mean", "mean wait", _hours),
    ("turnaround_h", "arrival to end", _hours),
)
SLOWDOWNS: tuple[Column, ...] = (
    ("slowdown_mean", "mean", times),
    ("slowdown_median", "median", times),
    ("slowdown_p99", "p99", times),
    ("slowdown_max", "worst", times),
    ("slower_10", "slower by > 10 %", _percent),
    ("slower_50", "by > 50 %", _percent),
)


def heading(report: DayReport) -> str:
    """Return what was played, in sentences."""
    what = _recorded(report, report.played) if report.played else _made_up(report)
    most = {2: "two", 3: "three", 4: "four"}[report.per_gpu]
    pairs = "" if report.per_gpu == PAIR else ", if each pair of them may"
    return (
        f"{what}At most {most} jobs share a GPU{pairs}. Advice sees {_SEES[report.profiles]}. Allowed is a "
        f"slowdown of {times(report.max_slowdown)}.\n"
        "What happens is decided by simulated warps, not by the estimator. Median of the "
        f"{'draws' if report.played else 'days'} (least-most).\n"
        "`--json` has every number, also those for which a line has no room.\n"
    )


def _made_up(report: DayReport) -> str:
    return (
        f"{plural(len(report.seeds), 'simulated day')} of {plural(report.jobs, 'job')} on "
        f"{plural(report.gpus, 'GPU')}, {_seeds(report)}; jobs need {_work(report)} GPU-hours a day, "
        f"{report.load:g} times what the GPUs have.\n"
    )


def _work(report: DayReport) -> str:
    """GPU-hours that the jobs take alone: with whom the GPUs were shared does not change it."""
    works = [day.held_gpu_hours + day.saved_gpu_hours for day in report.results[0].days]
    return _cell(SeedSpread(median(works), min(works), max(works)), _whole)


def _recorded(report: DayReport, played: PlayedPolicy) -> str:
    left_out = "".join(
        f"  {plural(jobs, 'job')}, {hours:,.0f} GPU-hours: {why}\n" for why, (jobs, hours) in played.left_out.items()
    )
    return (
        f"{plural(report.jobs, 'job')} of {plural(played.kinds, 'kind')}, {_whole(played.gpu_hours)} GPU-hours in all, "
        f"that ran on {played.model}, "
        f"{played.first:%Y-%m-%d} to {played.last:%Y-%m-%d}, played again on {plural(report.gpus, 'GPU')}; they need "
        f"{report.load:.2g} times what the GPUs have.\n"
        "Arrivals, lengths alone, GPUs of a job, memory and means of DCGM are the lake's. Which kernels run is sampled "
        f"{plural(len(report.seeds), 'time')}, {_seeds(report)}:\n"
        f"means of samples are {_points(played.distance_median)} off (median of the jobs; worst "
        f"{_points(played.distance_most)}).\n"
        f"{_not_compared(played)}"
        f"{f'Not played:{chr(10)}{left_out}' if left_out else ''}"
    )


def _not_compared(played: PlayedPolicy) -> str:
    if not played.not_compared:
        return ""
    return f"Not compared, as no job has them: {counters_told(played.not_compared)}.\n"


def _seeds(report: DayReport) -> str:
    if len(report.seeds) == 1:
        return f"seed {report.seeds[0]}"
    return f"seeds {report.seeds[0]} to {report.seeds[-1]}"


def _points(distance: float) -> str:
    return f"{100 * distance:.1f} points"


def table(report: DayReport, columns: Sequence[Column], *, width: int | None = None) -> tuple[Row, list[Row]]:
    """Return headings and rows of text, a row per policy; `width`: of columns as many as fit into a line."""
    kept = list(columns)
    while True:
        rows = [
            (result.policy, *(_cell(result.spread[name], form) for name, _, form in kept)) for result in report.results
        ]
        titles = ("policy", *(title for _, title, _ in kept))
        wide = sum(max(map(len, cells)) + _GAP for cells in zip(titles, *rows, strict=True))
        spare = [column for column in kept if column[0] in _LEAST_WANTED]
        if width is None or wide <= width or not spare:
            return titles, rows
        kept.remove(min(spare, key=lambda column: _LEAST_WANTED.index(column[0])))


def _cell(spread: SeedSpread, form: Callable[[float], str]) -> str:
    median, least, most = form(spread.median), form(spread.least), form(spread.most)
    between = " to " if spread.least < 0 else "-"
    return median if least == most else f"{median} ({_bare(least)}{between}{_bare(most)})"


def _bare(number: str) -> str:
    return number.rstrip("x").removesuffix(" h").removesuffix(" %")


def legend(report: DayReport, titles: Sequence[str]) -> str:
    """Return what the policies are, a line each, and what is counted in the columns of such titles."""
    shown = {name for name, title, _ in (*WORK, *SLOWDOWNS) if title in titles}
    policies = "".join(f"{result.policy}: {result.sentence}\n" for result in report.results)
    return f"{policies}\n" + "".join(f"{line}\n" for name, line in _COUNTED.items() if name in shown)


def day_json(report: DayReport) -> dict[str, Any]:
    """Return the report as JSON holds it: every number of every day, and the spread of each."""
    return asdict(report)


# shape and colour (Okabe and Ito): no policy is distinguished by colour alone
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
