"""First page: running jobs, this week, jobs with most loss, recovered GPU-hours."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal

from tachograph.annexes.serve.pages.user import jobs_not_analyzed, usage_values
from tachograph.annexes.serve.snapshot import View
from tachograph.api.choices import JobChoice
from tachograph.api.pages import Pending, Progress
from tachograph.api.parameters import Parameters
from tachograph.catalog.errors import LakeError
from tachograph.judge.capacity import CapacityReport
from tachograph.lake.filters import JobFilter
from tachograph.report.capacity import capacity_values

CAPACITY_OF = timedelta(days=7)  # adding up years would take minutes


class HomeParameters(Parameters, frozen=True, kw_only=True):
    """Jobs to show: own or all visible ones; default: own, if there are any."""

    of: Literal["mine", "all"] | None = None


PARAMETERS = HomeParameters


def content(view: View, parameters: HomeParameters) -> Mapping[str, Any]:
    """Return the report of own or all visible jobs; None without any."""
    mine: JobChoice = {"user": view.viewer.name}
    has_own = view.jobs.count(JobFilter(users=(view.viewer.name,))) > 0
    of = parameters.of or ("mine" if has_own or not len(view.jobs) else "all")
    values: dict[str, Any] = {
        "usage": None,
        "pending": None,
        "of": of,
        "zone_name": view.zone_name,
        "capacity": None,
        "visible": len(view.jobs),
    }
    if of == "mine":
        values["waiting"] = jobs_not_analyzed(view, user=view.viewer.name)
        if has_own:
            values |= usage_values(view, mine)
    else:
        values["waiting"] = jobs_not_analyzed(view)
        if len(view.jobs):
            values |= usage_values(view, {})
        if view.viewer.sees_all:
            values |= _capacity_values(view)
    return values


def _capacity_values(view: View) -> dict[str, Any]:
    """Return what became of all installed GPU-hours lately, or that it is `pending`.

    Nothing where it is not known, or not to be had: the rest of the page is worth having alone.
    """
    newest = view.jobs.newest
    which: JobChoice = {} if newest is None else {"since": f"{newest - CAPACITY_OF:%Y-%m-%d}"}
    try:
        report = view.summed(which, _capacity, which)
    except LakeError:
        return {}
    if isinstance(report, Pending):
        return {"pending": report}
    return {} if report is None else {"capacity": capacity_values(report)}


def _capacity(view: View, _: Progress, which: JobChoice) -> CapacityReport | None:
    return view.opened.capacity(view.opened.filter(which))
