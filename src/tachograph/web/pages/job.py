"""The page of one job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tachograph.web.parameters import Parameters, Word
from tachograph.web.snapshot import View


class JobParameters(Parameters, frozen=True, kw_only=True):
    """The job: its id as people write it, its raw id or its job_key; cluster and run where they are needed."""

    key: Word
    cluster: Word | None = None
    run: int | None = None


PARAMETERS = JobParameters


def content(view: View, parameters: JobParameters) -> Mapping[str, Any]:
    """Return the report. Errors: NotFoundError for a job that is not there, or not visible."""
    report = view.opened.job(parameters.key, cluster=parameters.cluster, run=parameters.run).report
    return {"report": report, "row": report.summary}
