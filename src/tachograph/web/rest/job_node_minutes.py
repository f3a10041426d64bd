"""`GET /jobs/{key}/node_minutes`: rows of job_node_minutes of one job."""

from __future__ import annotations

from tachograph.catalog.tables import JOB_NODE_MINUTES
from tachograph.web.answers import TableAnswer
from tachograph.web.paging import Paging, page_of_minutes
from tachograph.web.parameters import JobParameters
from tachograph.web.shapes import table_shape
from tachograph.web.snapshot import View

PARAMETERS = JobParameters
RETURNS = table_shape(JOB_NODE_MINUTES)


def answer(view: View, parameters: JobParameters, paging: Paging) -> TableAnswer:
    """Return a part of the rows."""
    job = view.opened.run_of(parameters.key, cluster=parameters.cluster, run=parameters.run)
    return page_of_minutes(view.opened.lake, JOB_NODE_MINUTES, job, paging)
