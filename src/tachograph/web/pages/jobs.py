"""The list of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tachograph.report.jobs import DEFAULT_SORT
from tachograph.web.parameters import JobChoiceParameters, Limit, Word
from tachograph.web.snapshot import View


class JobsParameters(JobChoiceParameters, frozen=True, kw_only=True):
    """Filters, order, columns (separated by commas), and the page."""

    sort: Word = DEFAULT_SORT
    columns: Word = ""
    limit: Limit = 50
    after: Word = ""


PARAMETERS = JobsParameters


def content(view: View, parameters: JobsParameters) -> Mapping[str, Any]:
    """Return the page of the list."""
    page = view.jobs.page(
        parameters.job_filter(now=view.now, zone_name=view.zone_name),
        columns=tuple(filter(None, parameters.columns.split(","))),
        sort=parameters.sort,
        limit=parameters.limit,
        after=parameters.after,
        zone_name=view.zone_name,
    )
    return {"page": page, "table": page.table, "parameters": parameters, "zone_name": view.zone_name}
