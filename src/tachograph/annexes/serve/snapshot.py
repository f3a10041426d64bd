"""The server's in-memory version of a lake: summaries, and who may see which."""

from __future__ import annotations

import contextlib
import copyreg
import dataclasses
import pickle
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import polars as pl
from msgspec.structs import replace

from tachograph.annexes.serve.background import Background, CachedResults, SharedObjects
from tachograph.annexes.serve.images import JobImages
from tachograph.annexes.serve.jobs import ResidentJobs
from tachograph.annexes.serve.resident import (
    NO_JOBS,
    extended,
    new_rows,
    release_pages,
    resident_file_mib,
)
from tachograph.annexes.serve.scope import ViewerLake
from tachograph.annexes.serve.sums import without_names
from tachograph.annexes.serve.workers import Ending, Workers, silent
from tachograph.api.choices import JobChoice, job_filter
from tachograph.api.open_lake import JobPage, OpenLake
from tachograph.api.pages import Pending, Progress
from tachograph.api.parameters import JobChoiceParameters, Parameters
from tachograph.api.viewer import Role, Viewer
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import LakeError
from tachograph.catalog.tables import (
    ALLOCATIONS,
    ANALYSES,
    COMPUTED,
    FINDINGS,
    JOB_SUMMARIES,
    JOBS,
    PROFILES,
    LakeTable,
)
from tachograph.judge.ledger import LEDGER_COLUMNS
from tachograph.lake.data_files import DataFile
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JOB_NAMES
from tachograph.lake.query import (
    MANY_JOBS,
    lake_now,
    read_consistently,
    read_jobs_not_analyzed,
)
from tachograph.report.job import JobReport

T = TypeVar("T")
A = ParamSpec("A")
C = TypeVar("C", bound=JobChoiceParameters)
_MOST_SCOPES = 64
_MOST_REPORTS = 256  # kept for other tabs and visits: 100 users, a job and a sum each
_MOST_FILE_MIB = 700  # of pages of files that stay resident
_ALL = Viewer("", Role.SUPPORT)
RECENT = timedelta(days=30)
RETRY_S = 2  # when to come again while jobs are read


def _read_only(values: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(values)


# Reports of workers hold some.
copyreg.pickle(MappingProxyType, lambda values: (_read_only, (dict(values),)))


class LakeMoment(Lake):
    """A lake at one version with all jobs; its files stay while it is served.

    served: text of the version of computed tables and profiles, an ETag.
    """

    def __init__(
        self,
        lake: Lake,
        served: str,
        summaries: Sequence[DataFile],
        findings: Sequence[DataFile],
        jobs: ResidentJobs,
    ) -> None:
        super().__init__(lake.location)
        of_tables = {JOB_SUMMARIES: summaries, FINDINGS: findings}
        self._files = {
            table.name: list(of_tables[table]) if table in of_tables else lake.files(table)
            for table in (*COMPUTED.values(), ALLOCATIONS, PROFILES)
        }
        self._versions = {table.name: lake.version(table) for table in (JOB_SUMMARIES, ANALYSES)}
        self.served = served
        self.jobs = jobs
        self.reports = CachedResults[Any](_MOST_REPORTS)  # of jobs and sums shown lately
        self._scopes = CachedResults[ResidentJobs](_MOST_SCOPES)
        # Version of `jobs`, rows not analyzed.
        self._waiting: tuple[int, pl.DataFrame] | None = None

    def version(self, table: LakeTable) -> int:
        """Return the version of a table; summaries and analyses keep theirs."""
        version = self._versions.get(table.name)
        return super().version(table) if version is None else version

    def _all_files(self, table: LakeTable) -> Sequence[DataFile]:
        """Return a table's files; for a computed one, those of the served version."""
        files = self._files.get(table.name)
        return super()._all_files(table) if files is None else files

    def visible(self, viewer: Viewer) -> ResidentJobs:
        """Return the jobs that a viewer sees."""
        return self._scopes.get(viewer.scope, partial(self.jobs.visible_to, viewer))

    def not_analyzed(self, viewer: Viewer) -> pl.DataFrame:
        """Return visible accounting rows of jobs without results yet, newest first."""
        version, waiting = self.version(JOBS), self._waiting
        if waiting is None or waiting[0] != version:
            lake = ViewerLake(self, _ALL, self.jobs, JOB_SUMMARIES.empty)
            rows = read_jobs_not_analyzed(lake)
            waiting = self._waiting = (version, rows)
        return waiting[1].filter(viewer.visible())


@dataclass(frozen=True, slots=True)
class View:
    """A viewer's view of one lake version, the input of pages and endpoints.

    clock: when the request came, UTC. opened: the lake as in notebooks, restricted to visible jobs;
    jobs: lists and sums of visible jobs. not_analyzed: accounting rows of visible jobs without
    results yet. reports: of recently shown jobs and sums. image_problem: why no image of the jobs
    can be written, so that they are held in memory, or "". background: runs slow work by `made_by`,
    the method `written` of the served lake.
    """

    viewer: Viewer
    version: str
    clock: datetime
    opened: OpenLake
    jobs: ResidentJobs
    not_analyzed: Callable[[], pl.DataFrame]
    reports: CachedResults[Any]
    background: Background
    made_by: Callable[..., bytes]
    shared_objects: SharedObjects
    image_problem: str = ""

    @property
    def configuration(self) -> Configuration:
        """Configuration of the service."""
        return self.opened.configuration

    @property
    def now(self) -> datetime:
        """The time from which pages look back: the clock's, or that of a lake that ended."""
        return self.opened.now

    @property
    def zone_name(self) -> str:
        """The zone of shown times."""
        return self.configuration.site.time_zone

    @property
    def _hour(self) -> datetime:
        return self.now.replace(minute=0, second=0, microsecond=0)

    def job(self, job: str, *, cluster: str | None = None, run: int | None = None) -> JobPage:
        """Return the report of a visible job, cached per version. Errors: those of OpenLake."""

        def read() -> JobReport:
            return self.opened.job(job, cluster=cluster, run=run).report

        report = self.once((job, cluster, run), read)
        return JobPage(dataclasses.replace(report, now=self.now))

    def once(self, about: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` returns, kept for other requests of viewers of the same jobs."""
        result: T = self.reports.get((self.viewer.scope, about), make)
        return result

    def made(
        self,
        function: Callable[Concatenate[View, Progress, A], T],
        *arguments: A.args,
        **named: A.kwargs,
    ) -> T | Pending:
        """Return the result of a function of this view, computed once by a worker; or Pending.

        Times such as 7d in parameters are counted back from the hour. Errors: those of the function
        and of `Background.get`.
        """
        moments = [
            argument.moments(now=self._hour, zone_name=self.zone_name)
            for argument in arguments
            if isinstance(argument, Parameters)
        ]
        about = (function.__module__, function.__qualname__, arguments, named, moments)
        content = self.background.get(
            (repr(about), str(self.version), self.viewer.scope),
            partial(self.made_by, _of_view, self.viewer, function, arguments, named),
            owner=self.viewer.name,
        )
        return content if isinstance(content, Pending) else cast("T", pickle.loads(content))

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """Return the object of the server that is called `name`, see PageView."""
        return self.shared_objects.get(name, make)

    def running(self) -> pl.DataFrame:
        """Return `running_jobs` of the visible jobs; none while they are loading."""
        jobs = self.made(_running_jobs)
        return running_jobs(self.opened.jobs().clear()) if isinstance(jobs, Pending) else jobs

    def of_recent(self, parameters: C) -> C:
        """Return the job filter; without a time and with many jobs, the newest 30 days.

        For reports that take memory and time for every job. Errors: those of `job_filter`.
        """
        selection = parameters.job_filter(now=self.now, zone_name=self.zone_name)
        newest = self.jobs.newest
        if (
            selection.since
            or selection.until
            or newest is None
            or self.jobs.count(selection) <= MANY_JOBS
        ):
            return parameters
        return replace(parameters, since=f"{newest - RECENT:%Y-%m-%d}")

    def summed(
        self,
        which: JobChoice,
        function: Callable[Concatenate[View, Progress, A], T],
        *arguments: A.args,
        **named: A.kwargs,
    ) -> T | Pending:
        """Return sums over the jobs of `which`: at once for thousands, else by `made`.

        Either is computed once per version; times such as 7d are counted back from the hour.

        Errors: those of `made` and `job_filter`.
        """
        selection = job_filter(which, now=self._hour, zone_name=self.zone_name)
        if not self.viewer.sums_only and self.jobs.count(selection) <= MANY_JOBS:
            about = (function.__qualname__, repr((arguments, named)), repr(selection))
            return self.once(about, partial(function, self, silent, *arguments, **named))
        return self.made(function, *arguments, **named)


def running_jobs(jobs: pl.DataFrame, everyone: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return running jobs under each name of live sources: cluster, name, user, account, partition.

    `jobs`: visible rows of job_summaries; `everyone`: those of all users, which decide in `several`
    whether another cluster has a job of the name.
    """
    named = _named_jobs(jobs, "user", "account", "partition")
    others = named if everyone is None else _named_jobs(everyone)
    clusters = others.group_by("name").agg(pl.col("cluster").n_unique().alias("clusters"))
    several = clusters.filter(pl.col("clusters") > 1)["name"]
    return named.with_columns(several=pl.col("name").is_in(several.implode()))


def _named_jobs(jobs: pl.DataFrame, *columns: str) -> pl.DataFrame:
    mine = jobs.filter(pl.col("end").is_null())
    named = [
        mine.select(pl.col(name).alias("name"), "cluster", *columns)
        for name in ("job_id", "display_id")
    ]
    return (
        pl.concat(named)
        .drop_nulls("name")
        .unique(["cluster", "name"], keep="first", maintain_order=True)
    )


def _running_jobs(view: View, _: Progress) -> pl.DataFrame:
    columns = ("job_id", "display_id", "cluster", "end")
    everyone = view.opened.lake.of_all_jobs.latest(
        JOB_SUMMARIES, columns, where=pl.col("end").is_null()
    )
    return running_jobs(view.opened.jobs(), everyone)


def _of_view(
    served: ServedLake,
    progress: Progress,
    viewer: Viewer,
    function: Callable[..., T],
    arguments: tuple[Any, ...],
    named: dict[str, Any],
) -> T:
    """Result of a function on a viewer's view, called in the worker."""
    return function(served.view(viewer), progress, *arguments, **named)


class NotReadyError(LakeError):
    """The jobs of a large lake are being read: an answer is there in a moment."""


class ServedLake:
    """A lake that is served: its newest version, read anew when the lake has another.

    cache: folder for data of a large lake that survive restarts; None: a temporary one. most_rows:
    number of jobs with rows in memory; above it, rows are in files of the cache. workers: compute
    large answers; None: this process.
    """

    def __init__(
        self,
        lake: Lake,
        configuration: Configuration,
        *,
        cache: Path | None = None,
        workers: Workers | None = None,
        most_rows: int = 50_000,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.lake = lake
        self.configuration = configuration
        self.background = Background()
        self._workers = workers
        self.shared_objects = SharedObjects()
        self.images = JobImages(lake, cache)
        self._most_rows = most_rows
        self._clock = clock
        self._lock = threading.Lock()
        self._snapshot: LakeMoment | None = None
        self._nameless: tuple[str, pl.DataFrame] | None = None
        self._image: ResidentJobs | None = None
        self._forgotten: int | None = None
        self._problem: LakeError | None = None

    def refresh(self) -> bool:
        """Read the newest version if it changed; return whether it did.

        Errors: LakeError before the first analysis, or if the lake cannot be read; the previous
        version stays. NotReadyError while an image of many jobs is written.
        """
        with self._lock:
            try:
                changed = self._refresh()
            except LakeError as problem:
                # The one before is served.
                if self._snapshot is None or not isinstance(problem, NotReadyError):
                    self._problem = problem
                raise
            self._problem = None
            return changed

    def _refresh(self) -> bool:
        if self._snapshot is None and self.images.is_writing:
            raise self._not_ready()
        version = self._version()
        image = self.images.finished
        if self._snapshot is not None and self._snapshot.served == version and image is self._image:
            return False
        if self.lake.version(JOB_SUMMARIES) < 0 and self.lake.version(ANALYSES) < 0:
            Lake.open(self.lake.location)
            raise LakeError(
                "nothing was analyzed yet", where=self.lake.location, do="run `tachograph analyze`"
            )
        newer = image if image is not self._image else None
        self._snapshot = read_consistently(self.lake, lambda: self._read(version, newer))
        self._image = image
        return True

    @property
    def is_ready(self) -> bool:
        """Whether a version was read."""
        return self._snapshot is not None

    @property
    def snapshot(self) -> LakeMoment:
        """Newest version read; the first is read now if that takes only seconds.

        Errors: those of `refresh`, also where the lake cannot be read any more.
        """
        if self._snapshot is None:
            if self.images.is_writing or not self._lock.acquire(timeout=RETRY_S):
                raise self._not_ready()
            self._lock.release()
            self.refresh()
        if self._problem is not None:
            raise self._problem
        if self._snapshot is None:
            raise AssertionError("a refresh reads or raises")
        return self._snapshot

    def wait(self, limit_s: float) -> None:
        """Wait until the jobs of a large lake are read, at most so long; then read the newest.

        For programs that do not ask again by themselves. Errors: none, `view` raises them.
        """
        with contextlib.suppress(LakeError):
            self.refresh()
            return
        self.images.join(limit_s)
        with contextlib.suppress(LakeError):
            self.refresh()

    def view(self, viewer: Viewer) -> View:
        """Return the newest view of `viewer`. Errors: those of `snapshot`."""
        if resident_file_mib() > _MOST_FILE_MIB:
            release_pages()
        snapshot = self.snapshot
        visible = snapshot.visible(viewer)
        lake = ViewerLake(snapshot, viewer, visible, partial(self._sums, snapshot))
        clock = self._clock()
        opened = OpenLake(lake, self.configuration, lake_now(self.lake, clock))
        waiting = partial(snapshot.not_analyzed, viewer)
        return View(
            viewer,
            snapshot.served,
            clock,
            opened,
            visible,
            waiting,
            snapshot.reports,
            self.background,
            self.written,
            self.shared_objects,
            self.images.problem,
        )

    def written(
        self, function: Callable[..., Any], *task: Any, ending: Ending | None = None
    ) -> bytes:
        """Return the pickle of `function(served, progress, ...)`; the last of `task` is progress.

        A worker computes it, if there is one. With an `ending`, a request waits for it, and only
        briefly for a free worker. Errors: those of the function; WorkerError.
        """
        *arguments, progress = task
        if self._workers is None:
            return pickle.dumps(function(self, progress, *arguments))
        return self._workers.run((function, *arguments), progress, ending)

    def warm(self) -> None:
        """Prepare the first large answer."""
        if self._workers is not None:
            self._workers.warm()

    def close(self) -> None:
        """Stop reports, workers, the writer of an image, and shared objects."""
        self.background.close()
        self.images.close()
        self.shared_objects.close()
        if self._workers is not None:
            self._workers.close()

    def _begun(self) -> LakeError:
        """Begin to write an image; return why it has no rows: in progress, or failed."""
        problem = self.images.problem
        self.images.write()
        if problem:
            return LakeError(
                f"the jobs cannot be read: {problem}", where=self.lake.location, do="see its log"
            )
        return self._not_ready()

    def _not_ready(self) -> NotReadyError:
        return NotReadyError(
            f"the jobs are being read: {self.images.progress:.0%}",
            where=self.lake.location,
            do="ask again in a few seconds",
        )

    def _sums(self, snapshot: LakeMoment) -> pl.DataFrame:
        """All jobs without names, made once for a version."""
        if self._nameless is None or self._nameless[0] != snapshot.served:
            columns = list(dict.fromkeys((*JOB_NAMES, *LEDGER_COLUMNS, "seq")))
            smallest = self.configuration.serve.smallest_group
            rows = without_names(snapshot.jobs.rows(columns), smallest)
            self._nameless = (snapshot.served, rows)
        return self._nameless[1]

    def _version(self) -> str:
        """`table-summaries-findings-analyses-profiles`.

        The table is the id of that of summaries, which another lake in the same place does not
        have.
        """
        delta = self.lake.delta(JOB_SUMMARIES)
        table = "" if delta is None else str(delta.metadata().id)[:8]
        versions = map(self.lake.version, (JOB_SUMMARIES, FINDINGS, ANALYSES, PROFILES))
        return "-".join([table, *map(str, versions)])

    def _read(self, version: str, image: ResidentJobs | None) -> LakeMoment:
        files, findings = self.lake.files(JOB_SUMMARIES), self.lake.files(FINDINGS)
        are_few = sum(file.rows for file in files) <= self._most_rows
        forgotten = self.images.forgotten
        if forgotten != self._forgotten:  # rows changed and have the same `seq`
            self.images.remove_forgotten()
        before = image
        if before is None and self._snapshot is not None:
            before = self._snapshot.jobs
        if self._forgotten not in (None, forgotten):
            before = None
        self._forgotten = forgotten
        if before is None:
            before = NO_JOBS if are_few else self.images.open()
        # Of a disk that is full, or only read: then memory must do.
        failed = bool(self.images.problem)
        if before is NO_JOBS and not are_few and not failed:
            raise self._begun()
        fresh = new_rows(self.lake, files, before)
        held = before.added + fresh.height
        if held > self._most_rows:
            problem = self._begun()
            if held > 4 * self._most_rows and not failed:
                raise problem
        jobs = extended(self.lake, before, files, findings, fresh)
        return LakeMoment(self.lake, version, files, findings, jobs)
