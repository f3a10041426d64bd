"""The state of the service: collector, sources, gaps of nodes, tables, the version that is
served.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import polars as pl

from tachograph.annexes.serve.snapshot import View
from tachograph.api.pages import Pending, Progress
from tachograph.api.parameters import Parameters
from tachograph.catalog.tables import ALL_TABLES
from tachograph.collect.status import configured_overview
from tachograph.collect.status_text import (
    SOURCE_HEADINGS,
    source_row,
    status_headline,
    status_remarks,
)
from tachograph.lake.describe import describe_nodes, describe_rejects, describe_tables

_SEARCHED = timedelta(days=14)  # before the newest sample: there gaps are searched
_WORST = 20  # nodes with gaps


class StatusParameters(Parameters, frozen=True, kw_only=True):
    """`nodes`: all, in place of those with the longest gaps."""

    nodes: bool = False


PARAMETERS = StatusParameters


def content(view: View, parameters: StatusParameters) -> Mapping[str, Any]:
    """Return all of it; gaps of nodes are searched in the background."""
    lake, configuration = view.opened.lake, view.configuration
    found = configured_overview(lake.location, configuration, now=view.now)
    found = found if view.viewer.sees_server else found.without_places()
    nodes = view.made(_gaps)
    pending = isinstance(nodes, Pending)
    worst = (
        None
        if isinstance(nodes, Pending)
        else nodes.sort("silence_s", "node", descending=[True, False])
    )
    return {
        "found": found,
        "headline": status_headline(found, view.zone_name),
        "headings": SOURCE_HEADINGS,
        "sources": [source_row(source, view.now, view.zone_name) for source in found.sources],
        "conditions": {source.name: source.condition(view.now) for source in found.sources},
        "remarks": list(status_remarks(found, view.zone_name)),
        "tables": describe_tables(lake, ALL_TABLES),
        "rejects": describe_rejects(lake),
        "pending": nodes if pending else None,
        "nodes": None if worst is None else worst if parameters.nodes else worst.head(_WORST),
        "all_nodes": 0 if worst is None else worst.height,
        "searched_days": _SEARCHED.days,
        "zone_name": view.zone_name,
        "version_of": view.version,
        "image_problem": (view.image_problem if view.viewer.sees_server else "see its log")
        if view.image_problem
        else "",
        "jobs": len(view.jobs),
        "now": view.now,
    }


def _gaps(view: View, progress: Progress) -> pl.DataFrame:
    return describe_nodes(view.opened.lake, progress, within=_SEARCHED)
