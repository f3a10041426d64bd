"""The page of one job, a tab at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from tachograph.annexes.serve.snapshot import View
from tachograph.api.parameters import JobParameters
from tachograph.catalog.counters import COUNTERS_BY_NAME
from tachograph.catalog.doors import annex_function
from tachograph.lake.labels import read_labels
from tachograph.report.job_page import job_values

MOST_POINTS = 100_000  # minutes of GPUs up to which a browser gets all of a counter
# {tab: its heading}, in their order
TABS: Mapping[str, str] = {
    "summary": "Summary",
    "timeline": "Timeline",
    "gpus": "GPUs",
    "steps": "Steps",
    "roofline": "Roofline",
    "imbalance": "Imbalance",
    "checks": "Checks",
    "all": "All, to print",
}


class JobPageParameters(JobParameters, frozen=True, kw_only=True):
    """Run, tab, and whether to list each of many GPUs."""

    tab: Annotated[
        Literal["summary", "timeline", "gpus", "steps", "roofline", "imbalance", "checks", "all"],
        msgspec.Meta(description="Which part of the page."),
    ] = "summary"
    every: (
        Annotated[Literal["gpu"], msgspec.Meta(description="List every GPU of a large job.")] | None
    ) = None


PARAMETERS = JobPageParameters


def content(view: View, parameters: JobPageParameters) -> Mapping[str, Any]:
    """Return the report. Errors: NotFoundError for a job that is not there, or not visible."""
    report = view.job(parameters.key, cluster=parameters.cluster, run=parameters.run).report
    key = report.summary["job_key"]
    labels = read_labels(view.opened.lake).filter(job_key=key)
    values = job_values(report)
    if parameters.every == "gpu":
        values["tables"] = [("", report.gpus)]
    given = view.configuration.interference.profiles
    on_timeline = parameters.tab in ("timeline", "all")
    return {
        **values,
        "labels": labels.rows_by_key("code", named=True, unique=True),
        "title": f"Job {report.job}",
        "tab": parameters.tab,
        "tabs": TABS,
        "profiled": bool(report.kernels.reports or (given and _given(report.summary, given))),
        "parameters": parameters,
        "counters": _counters(report.timeline.means, report.summary) if on_timeline else [],
    }


def _given(row: Mapping[str, Any], profiles: Mapping[str, str]) -> tuple[str, ...]:
    """Reports that the configuration names for the group of a job."""
    reports: tuple[str, ...] = annex_function("reports_given")(row, profiles)
    return reports


def _counters(measured: Mapping[str, Any], row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return counters that the browser may draw by minute; empty if too many."""
    minutes = (row["elapsed_s"] or 0.0) / 60 * (row["gpus"] or 1)
    if minutes > MOST_POINTS:
        return []
    return [(name, COUNTERS_BY_NAME[name].unit) for name in sorted(measured)]
