"""State of the service: collector, sources, gaps of nodes, tables, served version."""

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
    """`nodes`: all, instead of those with the longest gaps."""

    nodes: bool = False


PARAMETERS = StatusParameters


def content(view: View, parameters: StatusParameters) -> Mapping[str, Any]:
    """Return the state; gaps of nodes are searched in the background."""
    lake, configuration = view.opened.lake, view.configuration
    overview = configured_overview(lake.location, configuration, now=view.clock)
    image_problem = view.image_problem
    if not view.viewer.sees_server:
        overview = overview.without_places()
        image_problem = image_problem and "see its log"
    gaps = view.made(_gaps)
    pending = nodes = None
    all_nodes = 0
    if isinstance(gaps, Pending):
        pending = gaps
    else:
        worst_first = gaps.sort("silence_s", "node", descending=[True, False])
        nodes = worst_first if parameters.nodes else worst_first.head(_WORST)
        all_nodes = gaps.height
    return {
        "found": overview,
        "headline": status_headline(overview, view.zone_name),
        "headings": SOURCE_HEADINGS,
        "sources": [source_row(source, view.clock, view.zone_name) for source in overview.sources],
        "conditions": {source.name: source.condition(view.clock) for source in overview.sources},
        "remarks": list(status_remarks(overview, view.zone_name)),
        "tables": describe_tables(lake, ALL_TABLES),
        "rejects": describe_rejects(lake),
        "pending": pending,
        "nodes": nodes,
        "all_nodes": all_nodes,
        "searched_days": _SEARCHED.days,
        "zone_name": view.zone_name,
        "version_of": view.version,
        "image_problem": image_problem,
        "jobs": len(view.jobs),
        "now": view.clock,
    }


def _gaps(view: View, progress: Progress) -> pl.DataFrame:
    return describe_nodes(view.opened.lake, progress, within=_SEARCHED)
