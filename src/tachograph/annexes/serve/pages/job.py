"""The page of one job, a tab at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from tachograph.annexes.serve.snapshot import View
from tachograph.api.parameters import JobParameters
from tachograph.catalog.doors import annex_function
from tachograph.lake.labels import read_labels
from tachograph.report.job_page import job_values

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow


MOST_POINTS = 100_000  # minutes of GPUs up to which a browser gets all of a counter
# {tab: its heading}, in their order
TABS: Mapping[str, str] = {
    "summary": "Summary",
    "gpus": "GPUs",
    "steps": "Steps",
    "checks": "Checks",
    "all": "All, to print",
}
# {tab that old addresses name: the tab that has its content}
_FORMER_TABS = {"timeline": "summary", "roofline": "summary", "imbalance": "gpus"}


class JobPageParameters(JobParameters, frozen=True, kw_only=True):
    """Run, tab, and whether to list each of many GPUs."""

    tab: Annotated[
        Literal["summary", "gpus", "steps", "checks", "all", "timeline", "roofline", "imbalance"],
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
    profiles = view.configuration.interference.profiles
    return {
        **values,
        "labels": labels.rows_by_key("code", named=True, unique=True),
        "title": f"Job {report.job}",
        "tab": _FORMER_TABS.get(parameters.tab, parameters.tab),
        "tabs": TABS,
        "profiled": bool(report.kernels.reports or (profiles and _given(report.summary, profiles))),
        "parameters": parameters,
        "by_minute": _minutes(report.summary) <= MOST_POINTS,
    }


def _given(row: JobSummaryRow, profiles: Mapping[str, str]) -> tuple[str, ...]:
    """Reports that the configuration names for the group of a job."""
    reports: tuple[str, ...] = annex_function("reports_given")(row, profiles)
    return reports


def _minutes(row: JobSummaryRow) -> float:
    """Return how many minutes of GPUs a job has."""
    return (row["elapsed_s"] or 0.0) / 60 * (row["gpus"] or 1)
