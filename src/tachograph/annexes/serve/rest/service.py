"""Endpoints of site and service: live GPUs, a node, the collector, the viewer, the API."""

from __future__ import annotations

from typing import Annotated

import polars as pl

from tachograph.annexes.serve.search import SearchParameters, found, place
from tachograph.annexes.serve.snapshot import ServedLake, View
from tachograph.api.answers import ObjectAnswer, Paging, TableAnswer
from tachograph.api.endpoints import (
    BOOLEAN,
    COUNT,
    MOMENT,
    OBJECT,
    PAGE,
    TEXT,
    Endpoint,
    ObjectShape,
    Schema,
    TableShape,
    described,
    field_schemas,
    list_of,
    or_null,
)
from tachograph.api.parameters import Parameters, Word, says
from tachograph.api.viewer import Role
from tachograph.catalog.table_columns import TableColumn
from tachograph.catalog.version import __version__
from tachograph.collect.status import configured_overview
from tachograph.judge.node_history import NodeReport


class NodeNameParameters(Parameters, frozen=True, kw_only=True):
    """Which node."""

    name: Annotated[Word, says("Name of the node.")]
    cluster: Annotated[Word, says("Its cluster, if several have the name.")] | None = None


_NODE = {
    "node": "Its name.",
    "cluster": "The cluster that was asked for.",
    "zone_name": "The time zone of weeks and days.",
    "jobs": "A row per visible job that ran there, newest first.",
    "gpus": "A row per GPU: device, sums over all jobs.",
    "weeks": "A row per GPU and week of the jobs' starts.",
    "days": "A row per GPU and day: hours with samples of jobs, and mean utilisation in them.",
    "errors": "A row per job and GPU with errors, and the jobs that held the GPU before and after.",
}


def _node_schemas() -> Schema:
    fields = field_schemas(NodeReport)
    return {
        **{name: described(_NODE[name], schema) for name, schema in fields.items()},
        "headline": described("Jobs, GPUs, and what is wrong, in a sentence.", TEXT),
    }


def node(view: View, parameters: NodeNameParameters) -> ObjectAnswer:
    """Return the node report; as a table, its GPUs. Errors: NotFoundError: unknown node."""
    page = view.opened.node(parameters.name, cluster=parameters.cluster)
    return ObjectAnswer(page.json(), rows=page.report.gpus)


_SEARCH_SHAPE = TableShape(
    (
        TableColumn("kind", pl.String(), "", "What it is: job, array, user and so on.", None),
        TableColumn("name", pl.String(), "", "Its id or name.", None),
        PAGE,
    )
)


def search(view: View, parameters: SearchParameters, paging: Paging) -> TableAnswer:
    """Return a part of what is called so, the nearest first."""
    names = found(view, parameters.q, parameters.kind)
    nearest = names.head(paging.limit)
    pages = pl.Series(PAGE.name, [place(*row) for row in nearest.iter_rows()], dtype=pl.String)
    return TableAnswer(nearest.with_columns(pages), "", names.height)


def _status_schemas() -> Schema:
    moment = or_null(MOMENT)
    full_disk = "Mount point of the full disk, that of lake or status. Null: no disk is full."
    sources = "One object per source: condition, lag, rows, rejects, errors, skipped polls."
    return {
        "healthy": described("The collector runs, and no source is late or failing.", BOOLEAN),
        "running": described("A collector is running on the lake.", BOOLEAN),
        "hangs": described("The collector runs but writes no status.", BOOLEAN),
        "full_disk": described(full_disk, or_null(TEXT)),
        "pid": described(
            "Process id of the collector. Null: none, or visible to admins only.", or_null(COUNT)
        ),
        "host": described(
            "Host of the collector. Null: none, or visible to admins only.", or_null(TEXT)
        ),
        "lake": described("Location of the lake. Null: visible to admins only.", or_null(TEXT)),
        "started": described("Start of the collector. Null: none has run.", moment),
        "updated": described("Last status of the collector. Null: none has run.", moment),
        "stopped": described("Stop of the collector. Null: it has not stopped.", moment),
        "sources": described(sources, list_of(OBJECT)),
        "steps": described("Analysis and compaction: last success, errors.", OBJECT),
    }


def status(view: View, parameters: Parameters) -> ObjectAnswer:
    """Return the state, as `tachograph status --json` prints it."""
    overview = configured_overview(view.opened.lake.location, view.configuration, now=view.clock)
    visible = overview if view.viewer.sees_server else overview.without_places()
    return ObjectAnswer(visible.as_json())


def _me_schemas() -> Schema:
    return {
        "name": described("User name.", TEXT),
        "role": described(
            "Role: what the user may see.", {**TEXT, "enum": [role.label for role in Role]}
        ),
        "accounts": described("Accounts whose jobs a manager sees.", list_of(TEXT)),
        "via": described("How the user was identified.", TEXT),
        "jobs": described("How many jobs are visible.", COUNT),
    }


def me(view: View, parameters: Parameters) -> ObjectAnswer:
    """Return name, role, and the number of visible jobs."""
    viewer = view.viewer
    return ObjectAnswer(
        {
            "name": viewer.name,
            "role": viewer.role.label,
            "accounts": sorted(viewer.accounts),
            "via": viewer.via,
            "jobs": len(view.jobs),
        }
    )


def _health_schemas() -> Schema:
    states = {**TEXT, "enum": ["ok", "starting"]}
    return {
        "status": described("ok, or starting: no version of the lake was read yet.", states),
        "version": described("Version of the program.", TEXT),
    }


def health(served: ServedLake, parameters: Parameters) -> ObjectAnswer:
    """Return the state, with status 503 while it starts; it needs no identity and names nothing."""
    if served.is_ready:
        return ObjectAnswer({"status": "ok", "version": __version__})
    return ObjectAnswer({"status": "starting", "version": __version__}, 503)


ENDPOINTS = (
    Endpoint(
        "/nodes/{name}",
        "node",
        "Jobs of a node, use and health of its GPUs.",
        node,
        ObjectShape(_node_schemas, table=True),
        NodeNameParameters,
    ),
    Endpoint(
        "/search",
        "search",
        "Jobs, users, accounts, nodes and job names by a part of their name, the nearest first.",
        search,
        _SEARCH_SHAPE,
        SearchParameters,
    ),
    Endpoint(
        "/status",
        "status",
        "The collector and its sources.",
        status,
        ObjectShape(_status_schemas),
        least=Role.SUPPORT,
        versioned=False,
        light=True,
    ),
    Endpoint(
        "/me",
        "me",
        "Who the request is from, and what they may see.",
        me,
        ObjectShape(_me_schemas),
        versioned=False,
        light=True,
    ),
    Endpoint(
        "/health",
        "health",
        "Whether the service can answer.",
        health,
        ObjectShape(_health_schemas, also=(503,)),
        least=Role.ANONYMOUS,
        of_lake=False,
        light=True,
    ),
)
