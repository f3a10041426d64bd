"""`GET /jobs`: rows of job_summaries with their findings."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tachograph.catalog.tables import JOB_SUMMARIES
from tachograph.report.jobs import DEFAULT_SORT, KNOWN
from tachograph.web.answers import TableAnswer
from tachograph.web.paging import Paging
from tachograph.web.parameters import JobChoiceParameters, Word
from tachograph.web.shapes import OF_FINDINGS, table_shape
from tachograph.web.snapshot import View

SortColumn = Annotated[Word, msgspec.Meta(description="A column; `-` before it: descending.")]


class SortedJobsParameters(JobChoiceParameters, frozen=True, kw_only=True):
    """Which jobs, and their order."""

    sort: SortColumn = DEFAULT_SORT


PARAMETERS = SortedJobsParameters
RETURNS = table_shape(JOB_SUMMARIES, *OF_FINDINGS)


def answer(view: View, parameters: SortedJobsParameters, paging: Paging) -> TableAnswer:
    """Return a part of the list of jobs, as `tachograph jobs --json` prints it."""
    page = view.jobs.page(
        parameters.job_filter(now=view.now, zone_name=view.zone_name),
        columns=paging.names if set(KNOWN).issuperset(paging.names) else (),
        sort=parameters.sort,
        limit=paging.limit,
        after=paging.after,
        zone_name=view.zone_name,
    )
    return TableAnswer(page.table.frame, page.cursor, page.table.matching)
