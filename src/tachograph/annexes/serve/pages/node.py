"""Page of one node: its jobs, GPU use and health over weeks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from tachograph.annexes.serve.snapshot import View
from tachograph.api.parameters import Parameters, Word
from tachograph.report.node import gpu_label, node_headline, xid_text
from tachograph.report.usage_plots import node_plot

_JOBS = 50
_DAYS, _WEEKS = 120, 12  # the last ones


class NodeParameters(Parameters, frozen=True, kw_only=True):
    """The node, its cluster where several have the name; `limit`: number of its jobs."""

    name: Word
    cluster: Word | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = _JOBS


PARAMETERS = NodeParameters


def content(view: View, parameters: NodeParameters) -> Mapping[str, Any]:
    """Return the report. Errors: NotFoundError for a node that is not recorded."""
    report = view.opened.node(parameters.name, cluster=parameters.cluster).report
    return {
        "report": report,
        "headline": node_headline(report),
        "jobs": report.jobs.head(parameters.limit),
        "plot": node_plot(report, most_days=_DAYS),
        "weeks": report.weeks.get_column("week").unique().sort(descending=True).to_list()[:_WEEKS],
        "all_weeks": report.weeks.get_column("week").n_unique(),
        "gpu_label": gpu_label,
        "xid_text": xid_text,
        "zone_name": view.zone_name,
        "own_only": not view.viewer.sees_all,
        "coordinates": bool(view.viewer.coordinated),
    }
