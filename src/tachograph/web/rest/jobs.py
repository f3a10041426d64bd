"""`GET /jobs`: rows of job_summaries with their findings."""

from __future__ import annotations

from tachograph.web.answers import TableAnswer
from tachograph.web.pages.jobs import JobsParameters
from tachograph.web.snapshot import View

PARAMETERS = JobsParameters


def answer(view: View, parameters: JobsParameters) -> TableAnswer:
    """Return a page of jobs, with all columns of job_summaries and those of findings."""
    page = view.jobs.page(
        parameters.job_filter(now=view.now, zone_name=view.zone_name),
        sort=parameters.sort,
        limit=parameters.limit,
        after=parameters.after,
        zone_name=view.zone_name,
    )
    return TableAnswer(page.table.frame, page.cursor, page.table.matching)
