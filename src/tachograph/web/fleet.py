"""The fleet live: one monitor for all viewers, running while somebody looks; what each may see of it.

It begins with the first viewer, and ends some time after the last. Where a collector of the lake runs, it shows what
that has polled, and polls nothing itself. Where no live source is found, it is the newest minutes of the lake.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from time import monotonic, time
from typing import Any

import polars as pl

from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import BREAK, NotFoundError, TachographError
from tachograph.catalog.units import plural
from tachograph.judge.finding import Finding
from tachograph.judge.workload.settings import settings_of
from tachograph.live.discovery import OPENERS, SourceRequest, choose_source
from tachograph.live.feed import FeedFailure, ViewFeed
from tachograph.live.fleet_report import FleetChoice, FleetReport, build_fleet_report, part_of
from tachograph.live.job_classes import LiveJobClasses
from tachograph.live.monitor import Monitor
from tachograph.live.selection import SelectedSource
from tachograph.live.snapshot import GpuAllocation, GpuId, SourceProblem
from tachograph.live.view import History, View
from tachograph.service.collect.collected_source import COLLECT, open_collected
from tachograph.web.viewer import Viewer

LEAST_INTERVAL_S = 2.0  # between two polls
LAKE_INTERVAL_S = 60.0  # between two looks at the newest minutes of a lake
LINGER_S = 60.0  # without a viewer, before it ends
FIRST_S = 4.0  # a page waits so long for the first view
RETRY_S = 15.0  # after a source was not found

Opener = Callable[[SourceRequest], SelectedSource]


@dataclass(frozen=True, slots=True)
class LiveState:
    """The newest poll: its number, counted up; the view, None before the first; what is wrong; findings by job.

    of_lake: the view is the newest of the lake, not live.
    """

    number: int = 0
    view: View | None = None
    problem: SourceProblem | None = None
    findings: Mapping[str, Sequence[Finding]] = field(default_factory=dict)
    of_lake: bool = False


class FleetWatch:
    """The monitor of one server. wanted: the source that was requested, None: as `watch --all` chooses it."""

    def __init__(
        self,
        configuration: Configuration,
        lake: str,
        wanted: SourceRequest | None = None,
        *,
        opener: Opener | None = None,
        collected: Callable[[], SelectedSource | None] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        interval_s = max(LEAST_INTERVAL_S, configuration.watch.interval_s)
        self.wanted = replace(wanted or SourceRequest(everything=True), interval_s=interval_s)
        self.interval_s = interval_s
        self._requested = wanted is not None
        self._configuration, self._lake, self._clock = configuration, lake, clock
        self._opener = opener or (lambda request: choose_source(configuration, request))
        self._collected = collected or (lambda: open_collected(configuration, lake))
        self._of_fleet = wanted is None and configuration.watch.source in ("", *OPENERS.beyond)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._state = LiveState(int(time()))  # a number that no earlier process gave, for pages that are still open
        self._last_used = clock()
        self._viewers: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._closed = False
        self.boards = FleetBoards()

    @property
    def viewers(self) -> int:
        """How many streams look."""
        return len(self._viewers)

    @property
    def is_running(self) -> bool:
        """Whether the monitor runs."""
        return self._thread is not None

    def state(self, *, wait_s: float = FIRST_S) -> LiveState:
        """Return the newest state, and keep the monitor running for a while; wait for the first at most `wait_s`."""
        with self._changed:
            self._last_used = self._clock()
            self._start()
            if self._state.view is None and self._state.problem is None:
                self._changed.wait_for(lambda: self._state.view is not None or self._state.problem is not None, wait_s)
            return self._state

    @contextlib.contextmanager
    def viewer(self) -> Iterator[asyncio.Event]:
        """Count a viewer for the time of the block; the event is set at each new state, in the loop of the caller."""
        event = asyncio.Event()
        with self._lock:
            self._viewers[event] = asyncio.get_running_loop()
            self._start()
        try:
            yield event
        finally:
            with self._lock:
                self._viewers.pop(event, None)
                self._last_used = self._clock()

    def close(self) -> None:
        """End the monitor and all streams now."""
        self._wake.set()
        with self._lock:
            self._closed = True
            self._notify()

    @property
    def is_closed(self) -> bool:
        """Whether no further state comes."""
        return self._closed

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
                    self._deliver(LiveState(problem=SourceProblem(what, problem.where or "", problem.do or "")))
                    self._wake.wait(RETRY_S)
                    continue
                with contextlib.closing(source):
                    self._poll(source, of_lake, remark)
        finally:
            with self._lock:
                self._thread = None

    def _open(self) -> tuple[SelectedSource, bool, SourceProblem | None]:
        """The source, whether it is the lake, why it is."""
        collected = self._collected() if self._of_fleet else None
        if collected is not None:
            return collected, False, None
        try:
            return self._opener(self.wanted), False, None
        except NotFoundError as nothing:
            if self._requested:
                raise
            source = self._opener(SourceRequest(recording=self._lake))
            return source, True, SourceProblem(nothing.what.split(BREAK)[0].partition(";")[0])

    def _poll(self, source: SelectedSource, of_lake: bool, remark: SourceProblem | None) -> None:
        """Deliver views of a source until nobody looks, or it ended.

        Of the lake: until it may be older than the lake is. Where no collector ran: until one does.
        """
        settings = settings_of(self._configuration.workload)
        classes = LiveJobClasses(self._configuration)
        feed = ViewFeed(
            source,
            lambda: Monitor(source.about, settings=settings, history=History(2)),
            interval_s=self.interval_s,
            deliver=lambda _: None,
        )
        due, opened = self._clock(), self._clock()
        checked = opened if self._of_fleet and source.about.name != COLLECT else inf
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
                if self._collected() is not None:
                    return
            due = max(due + self.interval_s, self._clock())
            self._wake.wait(due - self._clock())

    def _deliver(self, state: LiveState) -> None:
        with self._changed:
            self._state = replace(state, number=self._state.number + 1)
            self._changed.notify_all()
            self._notify()

    def _notify(self) -> None:
        for event, loop in self._viewers.items():
            with contextlib.suppress(RuntimeError):  # its loop has ended
                loop.call_soon_threadsafe(event.set)

    def _is_unused(self) -> bool:
        with self._lock:
            return self._closed or (not self._viewers and self._clock() - self._last_used > LINGER_S)


def running_jobs(jobs: pl.DataFrame) -> pl.DataFrame:
    """Return the jobs that have not ended, by each name that live sources use: name, user, account, partition.

    `jobs`: rows of job_summaries, those that are visible.
    """
    mine = jobs.filter(pl.col("end").is_null())
    columns = [pl.col(name) for name in ("user", "account", "partition")]
    named = [mine.select(pl.col(name).alias("name"), *columns) for name in ("job_id", "display_id")]
    return pl.concat(named).drop_nulls("name").unique("name", keep="first", maintain_order=True)


def visible_allocations(
    allocations: Mapping[GpuId, GpuAllocation], viewer: Viewer, running: pl.DataFrame
) -> dict[GpuId, GpuAllocation]:
    """Return the GPUs that a viewer may see, with those of their jobs and users that are visible.

    `running`: `running_jobs` of the visible jobs. Of a GPU that several users share, others are not named. A job
    without a user is visible only as one of `running`.
    """
    users: dict[str, str | None] = dict(running.select("name", "user").iter_rows())
    accounts: dict[str, str | None] = dict(running.select("name", "account").iter_rows())
    different = list(dict.fromkeys(allocations.values()))
    pairs = [
        (place, user, job)
        for place, one in enumerate(different)
        for user in (one.user.split(",") if one.user else [None])
        for job in (one.jobs or (None,))
    ]
    # without a user the job's own counts; an account only of a job that is this user's
    known = [(place, user, job, users.get(job or "")) for place, user, job in pairs]
    frame = pl.DataFrame(
        [
            (place, user or of_job, job, accounts.get(job or "") if user in (None, of_job) else None)
            for place, user, job, of_job in known
        ],
        schema={"place": pl.Int64(), "user": pl.String(), "job": pl.String(), "account": pl.String()},
        orient="row",
    )
    seen: dict[int, GpuAllocation] = {}
    visible = frame.filter(viewer.visible())
    for (place,), rows in visible.partition_by("place", as_dict=True, maintain_order=True).items():
        one = different[int(place)]
        alone = len(one.jobs) <= 1 and "," not in (one.user or "")
        jobs = [job for job in one.jobs if alone or job in users]
        named = ",".join(dict.fromkeys(user for user in rows["user"] if user is not None))
        seen[int(place)] = GpuAllocation(",".join(jobs) or None, named or None, one.since if alone else None)
    places = {one: place for place, one in enumerate(different)}
    return {gpu: seen[places[one]] for gpu, one in allocations.items() if places[one] in seen}


def visible_view(state: LiveState, viewer: Viewer, running: pl.DataFrame) -> View | None:
    """Return what of the newest view a viewer sees; None before the first. `running`: as in visible_allocations."""
    if state.view is None or viewer.sees_all:
        return state.view
    return part_of(state.view, visible_allocations(state.view.snapshot.allocations, viewer, running))


def fleet_report(state: LiveState, choice: FleetChoice, viewer: Viewer, running: pl.DataFrame) -> FleetReport | None:
    """Return what a viewer sees of the newest view; None before the first. Errors: UsageError for the choice."""
    choice.check()
    part = visible_view(state, viewer, running)
    if part is None:
        return None
    whole = None if viewer.sees_all else state.view
    partitions = dict(running.select("name", "partition").drop_nulls().iter_rows())
    report = build_fleet_report(part, choice, whole=whole, partitions=partitions, findings=state.findings)
    if viewer.sees_server or not report.sentences:
        return report
    return replace(report, sentences=(f"{plural(len(report.sentences), 'problem')} of the live source",))


@dataclass(slots=True)
class FleetBoard:
    """The texts of one view of the fleet, and in which poll each changed last: so any later one is a small difference.

    Sections are tables, whose rows may change (then the section is new), and cells.
    """

    number: int = 0
    values: Mapping[str, Any] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    _cells: dict[str, tuple[str, int]] = field(default_factory=dict)
    _sections: dict[str, tuple[object, int]] = field(default_factory=dict)

    def step(self, values: Mapping[str, Any], number: int) -> None:
        """Take over what a page shows of poll `number`: the report, what is known of the source."""
        self.values, self.number = values, number
        report: FleetReport | None = values["report"]
        cells = dict(board_cells(report)) | {"age": str(values["time"])} if report is not None else {}
        about = [values[name] for name in ("problem", "of_lake", "about", "own_only")]
        sections: dict[str, object] = {"state": (about, report is None, values["age"] if values["of_lake"] else "")}
        if report is not None:
            sections |= dict(_structure(report))
        before = self._sections
        self._sections = {
            name: old if (old := before.get(name)) is not None and old[0] == rows else (rows, number)
            for name, rows in sections.items()
        }
        known = self._cells
        self._cells = {
            key: old if (old := known.get(key)) is not None and old[0] == value else (value, number)
            for key, value in cells.items()
        }

    def since(self, number: int) -> tuple[list[str], dict[str, str]]:
        """Return which sections are new since poll `number`, and the cells of the others that changed."""
        new = [name for name, (_, then) in self._sections.items() if then > number]
        fresh = tuple(f"{name}-" for name in new)
        changed = {key: value for key, (value, then) in self._cells.items() if then > number}
        return new, {key: value for key, value in changed.items() if not key.startswith(fresh)} if fresh else changed


BOARDS = 64  # kept: of viewers and choices


@dataclass(slots=True)
class FleetBoards:
    """The boards of one server: streams that show the same share one."""

    most: int = BOARDS
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _boards: OrderedDict[Hashable, FleetBoard] = field(default_factory=OrderedDict)

    def of(self, key: Hashable) -> FleetBoard:
        """Return the board of a key; the one that was used longest ago makes room."""
        with self._lock:
            board = self._boards.setdefault(key, FleetBoard())
            self._boards.move_to_end(key)
            while len(self._boards) > self.most:
                self._boards.popitem(last=False)
            return board


def board_cells(report: FleetReport) -> Iterator[tuple[str, str]]:
    """Yield (id of an element, its text)."""
    yield "headline", report.headline
    for table in report.tables:
        for row, cells in enumerate(table.cells):
            for column, value in enumerate(cells):
                yield f"{table.name}-{row}-{column}", value
    for place, value in enumerate(report.heat):
        yield f"heat-{place}", value


def _structure(report: FleetReport) -> Iterator[tuple[str, object]]:
    for table in report.tables:
        links = [[cells[column] for column in table.links] for cells in table.cells]
        yield table.name, (table.headings, table.keys, links, table.more)
    yield "heat", report.places
    yield "notes", (report.sentences, report.others, report.counts)
