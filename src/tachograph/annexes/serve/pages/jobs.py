"""The list of jobs: filters, order, columns, and the same rows as a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import polars as pl

from tachograph.annexes.serve.check_pages import CHECK_TITLES
from tachograph.annexes.serve.jobs import JobListParameters
from tachograph.annexes.serve.pages.user import jobs_not_analyzed
from tachograph.annexes.serve.snapshot import View
from tachograph.api.parameters import Limit, Word
from tachograph.catalog.columns import COLUMN_UNITS, FINDINGS_COLUMN, LOST_COLUMN
from tachograph.catalog.tables import JOB_SUMMARIES
from tachograph.lake.filters import JOB_STATES
from tachograph.report.jobs import DEFAULT_COLUMNS, KNOWN

# Names, though of digits.
_LEFT = frozenset({"display_id", "job_id", "array_job_id", "het_job_id", "job_key"})
_MOST = 10_000  # rows of a file, as the REST API has it
# what fits a page; `columns` names others
SHOWN_COLUMNS = (
    *(
        "display_id",
        "name",
        "user",
        "state",
        "start",
        "gpus",
        "elapsed_s",
        "gpu_util_mean",
        "spatial_imbalance",
    ),
    *("hbm_peak_fraction", "limiter", LOST_COLUMN, FINDINGS_COLUMN),
)
# columns that are offered by name, beside those that are shown
_OFFERED = (
    *DEFAULT_COLUMNS,
    *(
        "account",
        "qos",
        "cluster",
        "submit",
        "end",
        "nodes",
        "gpu_model",
        "gpu_hours",
        "gpu_hours_lost",
        "attribution",
    ),
    *(
        "coverage",
        "sm_active_mean",
        "tensor_active_mean",
        "dram_active_mean",
        "power_w_mean",
        "cpu_efficiency",
    ),
)


class JobsParameters(JobListParameters, frozen=True, kw_only=True):
    """Filters, order, columns, and the page."""

    columns: Annotated[
        tuple[Word, ...], msgspec.Meta(description="Columns, separated by commas.")
    ] = ()
    limit: Limit = 50
    after: Word = ""


PARAMETERS = JobsParameters


def content(view: View, parameters: JobsParameters) -> Mapping[str, Any]:
    """Return the page of the list. Errors: those of ResidentJobs.page."""
    page = view.jobs.on_node(parameters.node, view.opened.lake).page(
        parameters.job_filter(now=view.now, zone_name=view.zone_name),
        columns=_columns(parameters),
        sort=parameters.sort,
        limit=parameters.limit,
        after=parameters.after,
        zone_name=view.zone_name,
    )
    shown = page.table.columns
    return {
        "page": page,
        "table": page.table,
        "parameters": parameters,
        "numeric": _numeric(shown),
        "order": _order(shown, parameters.sort),
        "offered": tuple(name for name in dict.fromkeys((*shown, *_OFFERED)) if name in KNOWN),
        "states": JOB_STATES,
        "findings": {code: code for code in parameters.finding} | CHECK_TITLES,
        "visible": len(view.jobs),
        "most": min(_MOST, page.table.matching),
        "waiting": _waiting(view, parameters),
    }


def _waiting(view: View, parameters: JobsParameters) -> pl.DataFrame | None:
    """Jobs not analyzed yet, for page one of all jobs or of one user; None otherwise."""
    of_user = parameters.user[0] if len(parameters.user) == 1 else None
    filters = parameters.as_query("user" if of_user else "", "sort", "columns", "limit", "verdict")
    return None if filters else jobs_not_analyzed(view, user=of_user)


def _columns(parameters: JobsParameters) -> tuple[str, ...]:
    """Chosen columns, else those that fit, with the sort column."""
    columns = tuple(
        dict.fromkeys(name for written in parameters.columns for name in written.split(",") if name)
    )
    by = parameters.sort.removeprefix("-")
    return columns or (
        SHOWN_COLUMNS if by in SHOWN_COLUMNS else (*SHOWN_COLUMNS[:-1], by, FINDINGS_COLUMN)
    )


def _numeric(columns: Sequence[str]) -> frozenset[str]:
    """The columns of numbers, which stand to the right."""
    types = JOB_SUMMARIES.schema
    return frozenset(
        name
        for name in columns
        if name not in _LEFT
        and (types[name].is_numeric() if name in types else name in COLUMN_UNITS)
    )


def _order(columns: Sequence[str], sort: str) -> dict[str, tuple[str, str]]:
    """{column: (the order it has now, for aria-sort; the order that its heading requests)}."""
    by, falling = sort.removeprefix("-"), sort.startswith("-")
    now = {by: "descending" if falling else "ascending"}
    return {
        name: (now.get(name, ""), name if name == by and falling else f"-{name}")
        for name in columns
    }
