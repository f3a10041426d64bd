"""The fleet page: held idle and unhealthy GPUs, groups, heat map, table of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import polars as pl

from tachograph.annexes.watch.live.fleet_report import GROUPINGS, MAPS, FleetChoice
from tachograph.annexes.watch.served_fleet import LiveState, fleet_of, fleet_report
from tachograph.api.pages import PageView, Pending, Progress
from tachograph.api.parameters import Parameters, Word
from tachograph.catalog.columns import local_time
from tachograph.catalog.tables import DEVICES
from tachograph.catalog.units import EPOCH, plural, text
from tachograph.lake.places import in_accounting, read_same_clusters
from tachograph.lake.query import read_latest


class NowParameters(Parameters, frozen=True, kw_only=True):
    """`by`: groups; `heat`: map; `filter`: as on the screen, `sm<20 class=idle`; `sort`."""

    by: Word = "node"
    heat: Word = "class"
    filter: Word = ""
    sort: Word = "gpu"

    @property
    def choice(self) -> FleetChoice:
        """The same for a report."""
        return FleetChoice(self.by, self.heat, self.filter, self.sort)


PARAMETERS = NowParameters


def content(view: PageView, parameters: NowParameters) -> Mapping[str, Any]:
    """Return the visible part of the newest view. Errors: UsageError: grouping or filter."""
    parameters.choice.check()
    fleet = fleet_of(view)
    state = fleet.state()
    values = fleet.page(
        (view.viewer.scope, parameters), state.number, lambda: _values(view, parameters, state)
    )
    about = {"parameters": parameters, "groupings": GROUPINGS, "maps": MAPS}
    return {**values, **about, "jobs": _jobs_sentence(view)}


def _values(view: PageView, parameters: NowParameters, state: LiveState) -> dict[str, Any]:
    running = view.running()
    report = fleet_report(state, parameters.choice, view.viewer, running)
    time = age = about = ""
    if report is not None:
        measured = EPOCH + timedelta(seconds=report.t)
        time = local_time(measured, view.zone_name)
        age = _age(view, measured.timestamp())
    problem = None
    if not state.of_lake:
        if state.view is not None and view.viewer.sees_server:
            about = state.view.about.sentence
        if state.problem is not None:
            problem = "the source of live values fails"
            if view.viewer.sees_server:
                problem = state.problem.sentence
    return {
        "report": report,
        "of_lake": state.of_lake,
        "about": about,
        "problem": problem,
        "time": time,
        "age": age,
        "own_only": not view.viewer.sees_all,
        "known": {
            "node": _nodes(view),
            "job": _names(running.select("name", "cluster")),
            "user": {user: (user, None) for user in running["user"].drop_nulls()},
        },
    }


def _recorded_nodes(view: PageView, _: Progress) -> Mapping[str, tuple[str, str | None]]:
    lake = view.opened.lake
    devices = in_accounting(read_latest(lake, DEVICES), read_same_clusters(lake))
    return _names(devices.select("node", "cluster"))


def _count_running(view: PageView, _: Progress) -> tuple[int, int]:
    """Return how many visible jobs run, and how many of these hang."""
    running = view.opened.jobs(state="RUNNING")
    hung = view.opened.jobs(state="RUNNING", finding="job_hang")
    return running.height, hung.height


def _jobs_sentence(view: PageView) -> str:
    """Return how many jobs run and hang as of the last analysis; "" while they are counted."""
    counts = view.made(_count_running)
    if isinstance(counts, Pending):
        return ""
    running, hung = counts
    return f"{plural(running, 'job')} running, {hung:,} of them found hung by the last analysis."


def _nodes(view: PageView) -> Mapping[str, tuple[str, str | None]]:
    """Nodes that have a page."""
    nodes = view.made(_recorded_nodes)
    return {} if isinstance(nodes, Pending) else nodes


def _names(rows: pl.DataFrame) -> Mapping[str, tuple[str, str | None]]:
    """Return {name as shown, with and without cluster: (name, cluster)}."""
    names: dict[str, tuple[str, str | None]] = {}
    for name, cluster in rows.iter_rows():
        names[name] = name, None
        if cluster is not None:
            names[f"{cluster}/{name}"] = name, cluster
    return names


def _age(view: PageView, measured: float) -> str:
    """When it was measured, and how long ago, in whole minutes."""
    when = local_time(EPOCH + timedelta(seconds=measured), view.zone_name)
    if view.now != view.clock:
        return f"as of {when}: the data of the lake end there"
    seconds = max(0.0, view.now.timestamp() - measured)
    return f"as of {when}, {text(60.0 * (seconds // 60), 's')} ago"
