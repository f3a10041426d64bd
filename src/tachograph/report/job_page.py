"""The report of one job as one self-contained HTML page: no reference to anything outside.

Its one script shows values under a pointer or a cursor; nothing needs it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
from jinja2 import Environment
from markupsafe import Markup

from tachograph.catalog.columns import local_time
from tachograph.catalog.units import capitalized, gpu_hours_text, text
from tachograph.catalog.version import __version__
from tachograph.figures import job_page
from tachograph.figures.timeline import Mark, Series
from tachograph.judge.activity import number
from tachograph.judge.steps import StepUse
from tachograph.report.findings import check_text, checks_text, evidence_texts
from tachograph.report.job import GpuUse, JobReport
from tachograph.report.job_over_time import floats, hover_json, over_time
from tachograph.report.job_text import allocation_text
from tachograph.report.pages import environment
from tachograph.report.steps import (
    SHOWN_STEPS,
    STEP_TEXTS,
    gap_sentence,
    shown_gaps,
    step_table,
    steps_headline,
    steps_note,
)

MANY_GPUS = 16  # up to here the page has a row for each GPU


def job_html(report: JobReport) -> str:
    """Return the page."""
    many = len(report.gpus) > MANY_GPUS
    least, most = report.extremes
    steps = report.steps
    step_titles, step_rows = step_table(steps, report.zone_name)
    return (
        _environment()
        .get_template("job.html.j2")
        .render(
            report=report,
            row=report.summary,
            allocation=allocation_text(report),
            tables=[("least busy", least), ("most busy", most)] if many and least else [("", report.gpus)],
            many=many,
            plots=job_plots(report),
            hover=json.dumps(hover_json(report), allow_nan=False).replace("<", "\\u003c"),
            step_columns=step_titles,
            step_texts=[place for place, title in enumerate(step_titles) if title in STEP_TEXTS],
            step_rows=step_rows,
            step_gaps=[gap_sentence(gap, steps, report.zone_name) for gap in shown_gaps(steps)],
            version=__version__,
        )
    )


def job_plots(report: JobReport) -> dict[str, Markup | None]:
    """Return the plots {time, steps, work, roofline, memory}: SVG, or None where nothing is to show."""
    pipes = {
        pipe.name: (pipe.compute_fraction, pipe.memory_fraction)
        for pipe in report.pipes
        if pipe.active_mean and pipe.compute_fraction is not None and pipe.memory_fraction is not None
    }
    svgs = {
        "time": job_page.over_time(over_time(report), marks=report.marks),
        "steps": _step_plot(report),
        "work": job_page.work(dict(report.work)),
        "roofline": job_page.roofline(pipes),
        "memory": job_page.memory(
            _column(report.gpus, "hbm_used_mib_max"),
            _column(report.gpus, "hbm_mib"),
            [gpu.label for gpu in report.gpus],
        ),
    }
    return {name: None if svg is None else Markup(svg) for name, svg in svgs.items()}


def _step_plot(report: JobReport) -> str | None:
    steps, length_s = report.steps, number(report.summary, "elapsed_s")
    if length_s is None or steps.start is None:
        return None
    bars = [
        job_page.StepBar(str(step.row["step"]), max(0.0, step.begin_s), min(length_s, step.end_s), _level(step))
        for step in steps.largest(SHOWN_STEPS)
        if step.begin_s is not None and step.end_s is not None
    ]
    waits = [(gap, (gap.begin - steps.start).total_seconds()) for gap in steps.waited]
    return job_page.steps(bars, length_s, marks=[Mark("idle", begin, begin + gap.elapsed_s) for gap, begin in waits])


def _level(step: StepUse) -> float | None:
    """Its mean over its whole bar; None for a batch script, whose numbers are of the time between its srun steps."""
    return step.activity_mean if step.by_srun else None


def _column(gpus: Sequence[GpuUse], name: str) -> npt.NDArray[np.float64]:
    return floats(tuple(number(gpu.row, name) for gpu in gpus))


def spark_points(series: Series, *, width: float = 160, height: float = 22) -> list[str]:
    """Return the `points` of SVG polylines through a series of 0..1, one per stretch without a gap.

    >>> spark_points((0.0, 1.0, None, 0.5, 0.5), width=50, height=10)
    ['5.0,10.0 15.0,0.0', '35.0,5.0 45.0,5.0']
    """
    step = width / max(1, len(series))
    stretches: list[list[str]] = [[]]
    for place, value in enumerate(series):
        if value is None:
            stretches.append([])
        else:
            stretches[-1].append(f"{(place + 0.5) * step:.1f},{height * (1 - min(1.0, max(0.0, value))):.1f}")
    return [" ".join(points) for points in stretches if points]


@cache
def _environment() -> Environment:
    made = environment()
    made.filters["quantity"] = text
    made.filters["gpu_hours"] = gpu_hours_text
    made.filters["local_time"] = local_time
    made.filters["capitalize_first"] = capitalized
    made.globals.update(
        check_text=check_text, checks_text=checks_text, evidence_texts=evidence_texts,
        steps_headline=steps_headline, steps_note=steps_note,
        spark_points=spark_points, number=number,
    )  # fmt: skip
    return made
