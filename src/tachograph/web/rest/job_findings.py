"""`GET /jobs/{key}/findings`: what was checked in one job, and the results."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tachograph.catalog.tables import FINDINGS
from tachograph.judge.finding import CheckedValue
from tachograph.web.answers import TableAnswer
from tachograph.web.paging import Paging, page_of
from tachograph.web.parameters import JobParameters
from tachograph.web.shapes import list_of, table_shape, type_schema
from tachograph.web.snapshot import View

VerdictChoice = Annotated[
    Literal["yes", "no", "unknown", "all"],
    msgspec.Meta(description="yes: it holds and is reported; no; unknown: not enough was measured; all: any."),
]
FINDINGS_SHAPE = table_shape(
    FINDINGS,
    documents={
        "evidence": {"type": "object", "additionalProperties": {"type": "number"}},
        "checks": list_of(type_schema(CheckedValue)),
    },
)


class JobFindingsParameters(JobParameters, frozen=True, kw_only=True):
    """Which job, and which verdict."""

    verdict: VerdictChoice = "yes"


PARAMETERS = JobFindingsParameters
RETURNS = FINDINGS_SHAPE


def answer(view: View, parameters: JobFindingsParameters, paging: Paging) -> TableAnswer:
    """Return a part of the rows, in order of code."""
    job = view.opened.run_of(parameters.key, cluster=parameters.cluster, run=parameters.run)
    found = view.opened.findings(job, verdict=None if parameters.verdict == "all" else parameters.verdict)
    return findings_page(page_of(found, FINDINGS.key, paging))


def findings_page(page: TableAnswer) -> TableAnswer:
    """Return a part of findings whose numbers are objects in JSON."""
    return TableAnswer(page.rows, page.cursor, page.matching, tuple(FINDINGS_SHAPE.documents))
