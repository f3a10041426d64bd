"""The page of a user: use by week, lost and recovered hours, worst jobs, advice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tachograph.annexes.serve.snapshot import View
from tachograph.api.choices import JobChoice
from tachograph.api.pages import Pending, Progress
from tachograph.api.parameters import UsageParameters
from tachograph.catalog.errors import NotFoundError
from tachograph.judge.usage import UsageReport
from tachograph.report.usage_plots import USE_LABELS, usage_headline, use_plot

PARAMETERS = UsageParameters


def content(view: View, parameters: UsageParameters) -> Mapping[str, Any]:
    """Return the report of the user's visible jobs, and those not analyzed yet.

    Errors: NotFoundError without jobs.
    """
    waiting = jobs_not_analyzed(view, user=parameters.name)
    try:
        shown = usage_values(view, parameters.choice("user"))
    except NotFoundError:
        if waiting.is_empty():
            raise
        shown = {"pending": None, "usage": None}
    about = {"name": parameters.name, "parameters": parameters, "zone_name": view.zone_name}
    sees_all = view.viewer.sees_all or parameters.name == view.viewer.name
    return {**shown, **about, "waiting": waiting, "coordinated_only": not sees_all}


def jobs_not_analyzed(view: View, *, user: str | None = None) -> pl.DataFrame:
    """Return visible jobs without results, newest first; user: only theirs."""
    rows = view.not_analyzed()
    return rows if user is None else rows.filter(pl.col("user") == user)


def usage_values(view: View, which: JobChoice) -> dict[str, Any]:
    """Return `usage` of visible jobs, None while it is `pending`. Errors: NotFoundError where
    there are none.
    """
    usage = view.summed(which, _usage, which)
    if isinstance(usage, Pending):
        return {"pending": usage, "usage": None}
    return {
        "pending": None,
        "usage": usage,
        "headline": usage_headline(usage),
        "plot": use_plot(usage),
        "use_labels": USE_LABELS,
    }


def _usage(view: View, _: Progress, which: JobChoice) -> UsageReport:
    return view.opened.usage(**which)
