"""Jobs side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec

from tachograph.annexes.serve.snapshot import View
from tachograph.api.parameters import Parameters, Word
from tachograph.catalog.errors import UsageError
from tachograph.lake.filters import JobCondition, JobFilter
from tachograph.report.job_comparison import MOST_JOBS, compare_jobs

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow


_ALIKE = 8  # jobs that are offered for comparison


class CompareParameters(Parameters, frozen=True, kw_only=True):
    """The jobs, in the order in which they are shown."""

    job: Annotated[
        tuple[Word, ...], msgspec.Meta(description="Jobs: ids or job_keys; two to four.")
    ] = ()


PARAMETERS = CompareParameters


def content(view: View, parameters: CompareParameters) -> Mapping[str, Any]:
    """Return the comparison, and jobs of the same name by the first one's user.

    Errors: UsageError for more than four; NotFoundError for a job that is not there, or not
    visible.
    """
    requested = tuple(dict.fromkeys(parameters.job))
    if len(requested) > MOST_JOBS:
        raise UsageError(f"{len(requested)} jobs to compare", do=f"choose two to {MOST_JOBS}")
    reports = [view.job(job).report for job in requested]
    return {
        "comparison": compare_jobs(reports) if len(reports) > 1 else None,
        "reports": reports,
        "most": MOST_JOBS,
        "alike": _alike(view, reports[0].summary) if len(reports) == 1 else [],
    }


def _alike(view: View, row: JobSummaryRow) -> list[JobSummaryRow]:
    """The latest other jobs of this name and user."""
    if row["user"] is None or not row["name"]:
        return []
    alike = JobFilter(users=(row["user"],), where=(JobCondition("name", "=", row["name"]),))
    page = view.jobs.page(alike, limit=_ALIKE + 1, zone_name=view.zone_name)
    rows = cast("list[JobSummaryRow]", page.table.frame.to_dicts())
    return [other for other in rows if other["job_key"] != row["job_key"]][:_ALIKE]
