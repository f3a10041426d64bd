"""`GET /jobs/{key}`: the report of one job."""

from __future__ import annotations

from tachograph.web.answers import ObjectAnswer
from tachograph.web.pages.job import JobParameters
from tachograph.web.snapshot import View

PARAMETERS = JobParameters


def answer(view: View, parameters: JobParameters) -> ObjectAnswer:
    """Return the report, as `tachograph job ID --json` prints it."""
    return ObjectAnswer(view.opened.job(parameters.key, cluster=parameters.cluster, run=parameters.run).json())
