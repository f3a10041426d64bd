"""The page of one job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tachograph.web.parameters import JobParameters
from tachograph.web.snapshot import View

PARAMETERS = JobParameters


def content(view: View, parameters: JobParameters) -> Mapping[str, Any]:
    """Return the report. Errors: NotFoundError for a job that is not there, or not visible."""
    report = view.opened.job(parameters.key, cluster=parameters.cluster, run=parameters.run).report
    return {"report": report, "row": report.summary}
