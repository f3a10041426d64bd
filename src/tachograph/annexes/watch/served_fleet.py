"""Live fleet: one monitor for all viewers, running while someone watches.

It begins with the first viewer, and ends some time after the last. Where a collector of the lake
runs, it shows what that has polled, and polls nothing itself. Where no live source is found, it is
the newest minutes of the lake.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from time import monotonic
from typing import Any

import polars as pl

from tachograph.annexes.watch.live.collected_source import COLLECT, open_collected
from tachograph.annexes.watch.live.discovery import SourceRequest, choose_source
from tachograph.annexes.watch.live.feed import FeedFailure, ViewFeed
from tachograph.annexes.watch.live.fleet_report import (
    FleetChoice,
    FleetReport,
    build_fleet_report,
    part_of,
)
from tachograph.annexes.watch.live.job_classes import LiveJobClasses
from tachograph.annexes.watch.live.monitor import Monitor
from tachograph.annexes.watch.live.render import json_rows
from tachograph.annexes.watch.live.selection import SelectedSource
from tachograph.annexes.watch.live.snapshot import GpuAllocation, GpuId, SourceProblem
from tachograph.annexes.watch.live.view import FleetView, GpuHistory
from tachograph.api.pages import PageView
from tachograph.api.viewer import Viewer
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import BREAK, NotFoundError, TachographError
from tachograph.catalog.tables import ANALYSES
from tachograph.catalog.units import plural
from tachograph.judge.finding import Finding
from tachograph.judge.workload.settings import settings_of
from tachograph.lake.delta import Lake
from tachograph.lake.places import ClusterNames

LEAST_INTERVAL_S = 2.0  # between two polls
LAKE_INTERVAL_S = 60.0  # between two looks at the newest minutes of a lake
LINGER_S = 60.0  # without a request for its values, before it ends
FIRST_S = 4.0  # a page waits so long for the first view
RETRY_S = 15.0  # after a source was not found
_MOST_PAGES = 64  # kept: of viewers and choices

Opener = Callable[[SourceRequest], SelectedSource]
CollectedOpener = Callable[[ClusterNames], SelectedSource | None]


@dataclass(frozen=True, slots=True)
class LiveState:
    """The newest poll: its number, the view (None before the first), problem, findings by job.

    of_lake: the view is the newest of the lake, not live.
    """

    number: int = 0
    view: FleetView | None = None
    problem: SourceProblem | None = None
    findings: Mapping[str, Sequence[Finding]] = field(default_factory=dict)
    of_lake: bool = False


class FleetWatch:
    """The monitor of a server. source_request: requested source, None: as `watch --all`.

    names: of clusters, as the lake knows them now: GPUs are called by those of the accounting, so
    that they are found among its jobs.
    """

    def __init__(
        self,
        configuration: Configuration,
        lake: str,
        source_request: SourceRequest | None = None,
        *,
        opener: Opener | None = None,
        collected: CollectedOpener | None = None,
        names: Callable[[], ClusterNames] = ClusterNames,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        interval_s = max(LEAST_INTERVAL_S, configuration.watch.interval_s)
        self.request = replace(
            source_request or SourceRequest(everything=True), interval_s=interval_s
        )
        self.interval_s = interval_s
        self._requested = source_request is not None
        self._configuration, self._lake, self._clock = configuration, lake, clock
        self._opener = opener or (lambda request: choose_source(configuration, request))
        self._collected = collected or (
            lambda clusters: open_collected(configuration, lake, clusters)
        )
        self._read_names, self._names = names, ClusterNames()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._state = LiveState()
        self._last_used = clock()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._closed = False
        self._pages: dict[Hashable, tuple[int, dict[str, Any]]] = {}
        self._pages_lock = threading.Lock()

    @property
    def is_running(self) -> bool:
        """Whether the monitor runs."""
        return self._thread is not None

    def state(self, *, wait_s: float = FIRST_S) -> LiveState:
        """Return the newest state, keep the monitor running, wait at most `wait_s` for the
        first.
        """
        with self._changed:
            self._last_used = self._clock()
            self._start()
            if self._state.view is None and self._state.problem is None:
                self._changed.wait_for(
                    lambda: self._state.view is not None or self._state.problem is not None, wait_s
                )
            return self._state

    def close(self) -> None:
        """End the monitor now."""
        self._wake.set()
        with self._lock:
            self._closed = True

    def page(
        self, key: Hashable, number: int, make: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """Return page `key` of poll `number`, computed once for all viewers."""
        with self._pages_lock:
            cached = self._pages.get(key)
        if cached is not None and cached[0] >= number:
            return cached[1]
        values = make()
        with self._pages_lock:
            self._pages.pop(key, None)
            self._pages[key] = (number, values)
            while len(self._pages) > _MOST_PAGES:
                del self._pages[next(iter(self._pages))]
        return values

    def _start(self) -> None:
        if self._thread is None and not self._closed:
            self._state = LiveState(self._state.number)
            self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        """Poll until nobody looks; then forget everything."""
        try:
            while not self._is_unused():
                try:
                    source, of_lake, remark = self._open()
                except TachographError as problem:
                    what = problem.what.split(BREAK)[0]
                    self._deliver(
                        LiveState(
                            problem=SourceProblem(what, problem.where or "", problem.do or "")
                        )
                    )
                    self._wake.wait(RETRY_S)
                    continue
                with contextlib.closing(source):
                    self._poll(source, of_lake, remark)
        finally:
            with self._lock:
                self._thread = None

    def _open(self) -> tuple[SelectedSource, bool, SourceProblem | None]:
        """The source, whether it is the lake, why it is."""
        self._names = self._read_names()
        collected = self._collected(self._names) if not self._requested else None
        if collected is not None:
            return collected, False, None
        try:
            return self._opener(replace(self.request, names=self._names)), False, None
        except NotFoundError as nothing:
            if self._requested:
                raise
            source = self._opener(SourceRequest(recording=self._lake))
            return source, True, SourceProblem(nothing.what.split(BREAK)[0].partition(";")[0])

    def _poll(self, source: SelectedSource, of_lake: bool, remark: SourceProblem | None) -> None:
        """Deliver views of a source until nobody looks, or it ended.

        Of the lake: until it may be older than the lake is. Where no collector ran: until one does.
        Always until the lake knows other names of clusters.
        """
        settings = settings_of(self._configuration.workload)
        classes = LiveJobClasses(self._configuration)
        feed = ViewFeed(
            source,
            lambda: Monitor(source.about, settings=settings, history=GpuHistory(2)),
            interval_s=self.interval_s,
            deliver=lambda _: None,
        )
        due = opened = checked = self._clock()
        may_collect = not self._requested and source.about.name != COLLECT
        while not self._is_unused():
            came = feed.once()
            if isinstance(came, FeedFailure):
                self._deliver(replace(self._state, problem=came.problem))
            else:
                self._deliver(LiveState(0, came, remark, classes.step(came), of_lake))
                if any(problem.fatal for problem in came.snapshot.problems):
                    self._wake.wait(RETRY_S)
                    return
            if of_lake:
                while not self._is_unused() and self._clock() - opened < LAKE_INTERVAL_S:
                    self._wake.wait(1.0)
                return
            if self._clock() - checked > RETRY_S:
                checked = self._clock()
                if self._has_new_names():
                    return
                if may_collect and self._collected(self._names) is not None:
                    return
            due = max(due + self.interval_s, self._clock())
            self._wake.wait(due - self._clock())

    def _has_new_names(self) -> bool:
        """Whether the lake knows other names of clusters than those in use."""
        try:
            return self._read_names() != self._names
        except TachographError:  # a lake that cannot be read now: what was known counts
            return False

    def _deliver(self, state: LiveState) -> None:
        with self._changed:
            self._state = replace(state, number=self._state.number + 1)
            self._changed.notify_all()

    def _is_unused(self) -> bool:
        with self._lock:
            return self._closed or self._clock() - self._last_used > LINGER_S


def visible_allocations(
    allocations: Mapping[GpuId, GpuAllocation], viewer: Viewer, running: pl.DataFrame
) -> dict[GpuId, GpuAllocation]:
    """Return the GPUs a viewer may see, with visible jobs and users only.

    `running`: as PageView has it. Of a GPU that several users share, others are not
    named. A job without a user is visible only as one of `running`.
    """
    users = of_running(running, "user")
    accounts = of_running(running, "account")
    different = list(dict.fromkeys((gpu.cluster, held) for gpu, held in allocations.items()))
    holders: list[tuple[int, str | None, str | None, str | None]] = []
    for index, (cluster, allocation) in enumerate(different):
        names: Sequence[str | None] = allocation.user.split(",") if allocation.user else [None]
        for user, job in product(names, allocation.jobs or (None,)):
            # without a user the job's own counts; an account only of a job that is this user's
            name = cluster, job or ""
            job_user = users.get(name)
            account = accounts.get(name) if user in (None, job_user) else None
            holders.append((index, user or job_user, job, account))
    frame = pl.DataFrame(
        holders,
        schema={
            "index": pl.Int64(),
            "user": pl.String(),
            "job": pl.String(),
            "account": pl.String(),
        },
        orient="row",
    )
    visible: dict[tuple[str | None, GpuAllocation], GpuAllocation] = {}
    visible_rows = frame.filter(viewer.visible())
    by_index = visible_rows.partition_by("index", as_dict=True, maintain_order=True)
    for (index,), rows in by_index.items():
        cluster, allocation = different[index]
        alone = len(allocation.jobs) <= 1 and "," not in (allocation.user or "")
        jobs = [job for job in allocation.jobs if alone or (cluster, job) in users]
        visible_users = ",".join(rows["user"].drop_nulls().unique(maintain_order=True))
        visible[cluster, allocation] = GpuAllocation(
            ",".join(jobs) or None, visible_users or None, allocation.since if alone else None
        )
    return {
        gpu: visible[gpu.cluster, held]
        for gpu, held in allocations.items()
        if (gpu.cluster, held) in visible
    }


def of_running(running: pl.DataFrame, column: str) -> dict[tuple[str | None, str], Any]:
    """Return {(cluster, name): value} of running jobs.

    A GPU names no cluster where the source knows one: where several clusters have a job of its
    name, it may be of any.
    """
    values: dict[tuple[str | None, str], Any] = {}
    columns = running.select("cluster", "name", column, "several")
    for cluster, name, value, several in columns.iter_rows():
        if cluster is not None:
            values[cluster, name] = value
        if not several:
            values[None, name] = value
    return values


def visible_view(state: LiveState, viewer: Viewer, running: pl.DataFrame) -> FleetView | None:
    """Return the part of the newest view that a viewer may see; None before the first.

    `running`: as in visible_allocations.
    """
    if state.view is None or viewer.sees_all:
        return state.view
    return part_of(
        state.view, visible_allocations(state.view.snapshot.allocations, viewer, running)
    )


@lru_cache(maxsize=1)
def _analyzed_names(location: str, analyses: int) -> ClusterNames:
    """Return the names of clusters in a lake; `analyses`: version of that table, read once each."""
    return ClusterNames.of(Lake.open(location))


def fleet_of(view: PageView) -> FleetWatch:
    """Return the monitor of the server, which all its viewers share."""
    location = view.opened.lake.location

    def names() -> ClusterNames:
        return _analyzed_names(location, Lake.open(location).version(ANALYSES))

    def watch() -> FleetWatch:
        return FleetWatch(view.configuration, location, names=names)

    return view.shared("fleet", watch)


def live_rows(view: PageView) -> list[dict[str, Any]]:
    """Return a row per visible GPU as `tachograph watch --once --json`; none before a poll."""
    visible = visible_view(fleet_of(view).state(), view.viewer, view.running())
    return [] if visible is None else json_rows(visible)


def fleet_report(
    state: LiveState, choice: FleetChoice, viewer: Viewer, running: pl.DataFrame
) -> FleetReport | None:
    """Return a viewer's part of the newest view; None before it. Errors: UsageError."""
    choice.check()
    part = visible_view(state, viewer, running)
    if part is None:
        return None
    whole = None if viewer.sees_all else state.view
    partitions = {
        job if cluster is None else f"{cluster}/{job}": partition
        for (cluster, job), partition in of_running(running, "partition").items()
        if partition is not None
    }
    report = build_fleet_report(
        part, choice, whole=whole, partitions=partitions, findings=state.findings
    )
    if viewer.sees_server or not report.sentences:
        return report
    return replace(
        report, sentences=(f"{plural(len(report.sentences), 'problem')} of the live source",)
    )
