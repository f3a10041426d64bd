"""Job report as one HTML page without external references.

Its scripts draw what the job did over time; without them and in print there is an SVG of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import msgspec
from jinja2 import Environment
from markupsafe import Markup

from tachograph.catalog.doors import annex_function
from tachograph.catalog.version import __version__
from tachograph.report.findings import check_text, checks_text, evidence_texts, severity_text
from tachograph.report.job import JobReport
from tachograph.report.job_plots import (
    memory_charts,
    recording_charts,
    roofline_charts,
    roofline_sentence,
    step_charts,
    work_charts,
)
from tachograph.report.job_text import allocation_text
from tachograph.report.pages import environment
from tachograph.report.recording import Mark, Recording, finding_marks, recording, wait_marks
from tachograph.report.steps import (
    STEP_TEXTS,
    gap_sentence,
    shown_gaps,
    step_table,
    steps_headline,
    steps_note,
)
from tachograph.report.svg import svg
from tachograph.report.timeline import Series

MANY_GPUS = 16  # up to here the page has a row for each GPU


def job_html(report: JobReport) -> str:
    """Return the page."""
    values = {**job_values(report), "version": __version__}
    return _environment().get_template("job.html.j2").render(values)


def job_values(report: JobReport) -> dict[str, Any]:
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
        "plots": JobPlots(report),
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

    @cached_property
    def _recording(self) -> Recording:
        return recording(self.report)

    @cached_property
    def marks(self) -> tuple[Mark, ...]:
        """Intervals of findings that are marked over time."""
        return finding_marks(self.report)

    @cached_property
    def time(self) -> Markup | None:
        """All that the GPUs did over time."""
        charts = recording_charts(self._recording)
        return svg(charts, label="What the GPUs did over time", marks=self.marks)

    @cached_property
    def steps(self) -> Markup | None:
        """Steps over time."""
        label = "Steps over time, by their mean utilisation"
        waits = tuple(wait_marks(self.report))
        return svg(step_charts(self.report), label=label, marks=waits)

    @cached_property
    def work(self) -> Markup | None:
        """Shares of workload classes."""
        charts = work_charts(dict(self.report.work))
        return svg(charts, label="Shares of GPU time by workload class")

    @cached_property
    def roofline(self) -> Markup | None:
        """Arithmetic intensity and activity over time, by pipe."""
        label = "Activity of pipes against arithmetic intensity, under the roofline"
        return svg(roofline_charts(self.report), label=label)

    @cached_property
    def roofline_words(self) -> str:
        """What the points of the roofline mean."""
        return roofline_sentence(self.report)

    @cached_property
    def memory(self) -> Markup | None:
        """Peaks of memory."""
        label = "Peak of memory used of each GPU against its capacity"
        return svg(memory_charts(self.report), label=label)


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
