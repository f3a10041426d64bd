"""Job report as one HTML page without external references.

Its scripts draw what the job did over time; without them and in print there is an SVG of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from jinja2 import Environment
from markupsafe import Markup

from tachograph.catalog.doors import annex_function
from tachograph.catalog.version import __version__
from tachograph.judge.activity import number
from tachograph.judge.steps import StepUse
from tachograph.report.drawing import job_page
from tachograph.report.drawing.style import DRAWING
from tachograph.report.findings import check_text, checks_text, evidence_texts, severity_text
from tachograph.report.job import GpuUse, JobReport
from tachograph.report.job_over_time import floats, over_time
from tachograph.report.job_text import allocation_text
from tachograph.report.pages import environment
from tachograph.report.recording import Mark, finding_marks, recording
from tachograph.report.steps import (
    SHOWN_STEPS,
    STEP_TEXTS,
    gap_sentence,
    shown_gaps,
    step_table,
    steps_headline,
    steps_note,
)
from tachograph.report.timeline import Series

MANY_GPUS = 16  # up to here the page has a row for each GPU


def job_html(report: JobReport) -> str:
    """Return the page."""
    values = {**job_values(report), "version": __version__}
    return _environment().get_template("job.html.j2").render(values)


class KeptDrawings(Protocol):
    """Cache of drawings."""

    def get(self, key: Hashable, draw: Callable[[], str | None]) -> str | None:
        """Return the drawing of `key`, drawn unless it is kept."""
        ...


@dataclass(frozen=True, slots=True)
class _NotKept:
    def get(self, key: Hashable, draw: Callable[[], str | None]) -> str | None:
        return draw()


def job_values(report: JobReport, drawings: KeptDrawings = _NotKept()) -> dict[str, Any]:
    """Return the values of `job_sections.html.j2`, in whichever page includes it.

    `plots` are drawn when they are shown; `labels`: {code: a row of labels}, none here.
    """
    many = len(report.gpus) > MANY_GPUS
    least, most = report.extremes
    steps = report.steps
    step_titles, step_rows = step_table(steps, report.zone_name)
    return {
        "report": report,
        "row": report.summary,
        "allocation": allocation_text(report),
        "tables": [("least busy", least), ("most busy", most)]
        if many and least
        else [("", report.gpus)],
        "many": many,
        "plots": JobPlots(report, drawings),
        "recording": recording,
        "recording_json": recording_json,
        "labels": {},
        "step_columns": step_titles,
        "step_texts": [place for place, title in enumerate(step_titles) if title in STEP_TEXTS],
        "step_rows": step_rows,
        "step_gaps": [gap_sentence(gap, steps, report.zone_name) for gap in shown_gaps(steps)],
        **_kernel_values(report),
        "check_text": check_text,
        "checks_text": checks_text,
        "severity_text": severity_text,
        "evidence_texts": evidence_texts,
        "steps_headline": steps_headline,
        "steps_note": steps_note,
        "spark_points": spark_points,
    }


def _kernel_values(report: JobReport) -> Mapping[str, Any]:
    """Values for the section on attached reports; None for most jobs."""
    if not report.kernels.reports:
        return {"kernels_sentence": lambda kernels, job: ""}
    values: Mapping[str, Any] = annex_function("kernel_values")()
    return values


def recording_json(report: JobReport) -> Markup:
    """Return the recording as JSON for a script element."""
    document = msgspec.json.encode(recording(report)).decode()
    return Markup(document.replace("<", "\\u003c"))


@dataclass(frozen=True)
class JobPlots:
    """SVG plots of a job, drawn at first use; None without data."""

    report: JobReport
    drawings: KeptDrawings = _NotKept()

    @cached_property
    def marks(self) -> tuple[Mark, ...]:
        """Intervals of findings that are marked over time."""
        return finding_marks(self.report)

    @cached_property
    def time(self) -> Markup | None:
        """All that the GPUs did over time."""
        return self._drawn(
            "time", lambda: job_page.over_time(over_time(self.report), marks=self.marks)
        )

    @cached_property
    def imbalance(self) -> Markup | None:
        """Use and imbalance of each GPU over time; None without data."""

        def draw() -> str | None:
            shown = over_time(self.report)
            if np.isnan(shown.spatial).all() and np.isnan(shown.temporal).all():
                return None
            none = np.empty(0)
            alone = replace(shown, means={}, memory_mib=none, power=(none, none, none))
            return job_page.over_time(alone, marks=self.marks, name="imbalance")

        return self._drawn("imbalance", draw)

    @cached_property
    def steps(self) -> Markup | None:
        """Steps over time."""
        return self._drawn("steps", lambda: _step_plot(self.report))

    @cached_property
    def work(self) -> Markup | None:
        """Shares of workload classes."""
        return self._drawn("work", lambda: job_page.work(dict(self.report.work)))

    @cached_property
    def roofline(self) -> Markup | None:
        """Bound of the samples, by pipe."""
        pipes = {
            pipe.name: (pipe.compute_fraction, pipe.memory_fraction)
            for pipe in self.report.pipes
            if pipe.active_mean
            and pipe.compute_fraction is not None
            and pipe.memory_fraction is not None
        }
        return self._drawn("roofline", lambda: job_page.roofline(pipes))

    @cached_property
    def memory(self) -> Markup | None:
        """Peaks of memory."""
        gpus = self.report.gpus
        peaks, capacities = _column(gpus, "hbm_used_mib_max"), _column(gpus, "hbm_mib")
        return self._drawn(
            "memory", lambda: job_page.memory(peaks, capacities, [gpu.label for gpu in gpus])
        )

    def _drawn(self, name: str, draw: Callable[[], str | None]) -> Markup | None:
        """A plot of this analysis of the job: with another one, it has another `seq`."""

        def drawn() -> str | None:
            with DRAWING:
                return draw()

        row = self.report.summary
        svg = self.drawings.get((row.get("job_key"), row.get("seq"), row.get("as_of"), name), drawn)
        return None if svg is None else Markup(svg)


def job_plots(report: JobReport) -> dict[str, Markup | None]:
    """Return the plots of the page {time, steps, work, roofline, memory}."""
    plots = JobPlots(report)
    return {name: getattr(plots, name) for name in ("time", "steps", "work", "roofline", "memory")}


def _step_plot(report: JobReport) -> str | None:
    steps, length_s = report.steps, number(report.summary, "elapsed_s")
    if length_s is None or steps.start is None:
        return None
    bars = [
        job_page.StepBar(
            str(step.row["step"]), max(0.0, step.begin_s), min(length_s, step.end_s), _level(step)
        )
        for step in steps.largest(SHOWN_STEPS)
        if step.begin_s is not None and step.end_s is not None
    ]
    waits = [(gap, (gap.begin - steps.start).total_seconds()) for gap in steps.waited]
    return job_page.steps(
        bars,
        length_s,
        marks=[Mark("wait", "idle", begin, begin + gap.elapsed_s) for gap, begin in waits],
    )


def _level(step: StepUse) -> float | None:
    """Return a step's mean over its bar; None for batch, which covers gaps between sruns."""
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
            stretches[-1].append(
                f"{(place + 0.5) * step:.1f},{height * (1 - min(1.0, max(0.0, value))):.1f}"
            )
    return [" ".join(points) for points in stretches if points]


@cache
def _environment() -> Environment:
    return environment()
