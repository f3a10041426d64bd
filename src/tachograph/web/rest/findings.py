"""`GET /findings`: findings of all visible jobs, filtered."""

from __future__ import annotations

from tachograph.catalog.tables import FINDINGS
from tachograph.web.answers import TableAnswer
from tachograph.web.paging import Paging
from tachograph.web.parameters import JobChoiceParameters
from tachograph.web.rest.job_findings import FINDINGS_SHAPE, findings_page
from tachograph.web.snapshot import View

PARAMETERS = JobChoiceParameters
RETURNS = FINDINGS_SHAPE


def answer(view: View, parameters: JobChoiceParameters, paging: Paging) -> TableAnswer:
    """Return a part of the findings of the chosen jobs, in order of job_key; with `finding`: of these codes alone.

    Only the part is read from the table, after it was chosen among the short rows that are kept in memory.
    """
    wanted = parameters.job_filter(now=view.now, zone_name=view.zone_name)
    page = view.jobs.answers(wanted, limit=paging.limit, after=paging.after)
    rows = view.opened.findings(view.jobs.rows(job_keys=page.rows.get_column("job_key")), verdict=None)
    found = page.rows.select(FINDINGS.key).join(rows, on=FINDINGS.key, how="inner", maintain_order="left")
    return findings_page(TableAnswer(found.select(rows.columns), page.cursor, page.matching))
