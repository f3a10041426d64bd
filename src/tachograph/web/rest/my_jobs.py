"""`GET /me/jobs`: the jobs of who asks, in few columns, for lists on other pages."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import msgspec
import polars as pl

from tachograph.catalog.table_columns import TableColumn
from tachograph.catalog.tables import JOB_SUMMARIES
from tachograph.lake.filters import JobFilter
from tachograph.web.answers import TableAnswer
from tachograph.web.paging import Paging
from tachograph.web.parameters import Parameters, Word
from tachograph.web.shapes import OF_FINDINGS, TableShape
from tachograph.web.snapshot import View

_COLUMNS = (
    *("job_key", "job_id", "display_id", "cluster", "name", "account", "partition", "state", "start", "end"),
    *("elapsed_s", "gpus", "gpu_util_mean", "hbm_peak_fraction", "coverage"),
)
_PAGE = TableColumn("page", pl.String(), "", "Address of its page, below that of the service.", None)


class MyJobsParameters(Parameters, frozen=True, kw_only=True):
    """Those of some states alone."""

    state: Annotated[
        tuple[Word, ...], msgspec.Meta(description="Base state, such as RUNNING or COMPLETED; any of them.")
    ] = ()


PARAMETERS = MyJobsParameters
RETURNS = TableShape((*(column for column in JOB_SUMMARIES.columns if column.name in _COLUMNS), *OF_FINDINGS, _PAGE))


def answer(view: View, parameters: MyJobsParameters, paging: Paging) -> TableAnswer:
    """Return a part of the jobs, the latest first."""
    page = view.jobs.page(
        JobFilter(users=(view.viewer.name,), states=parameters.state),
        columns=_COLUMNS,
        limit=paging.limit,
        after=paging.after,
    )
    names = [column.name for column in RETURNS.columns if column.name != _PAGE.name]
    links = [f"job/{quote(key, safe='')}" for key in page.table.frame.get_column("job_key")]
    rows = page.table.frame.select(names).with_columns(pl.Series(_PAGE.name, links, dtype=pl.String))
    return TableAnswer(rows, page.cursor, page.table.matching)
