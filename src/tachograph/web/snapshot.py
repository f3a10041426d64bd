"""What a server keeps of a lake in memory: the summaries of one version, and who sees which of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

import polars as pl

from tachograph.api.open_lake import OpenLake
from tachograph.catalog.config import Configuration
from tachograph.catalog.tables import ANALYSES, FINDINGS, JOB_SUMMARIES
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_answers, read_consistently, read_summaries
from tachograph.live.discovery import SourceRequest
from tachograph.web.background import Background, Pending, Progress
from tachograph.web.fleet import FleetWatch
from tachograph.web.jobs import VisibleJobs
from tachograph.web.parameters import Parameters
from tachograph.web.scope import ScopedLake
from tachograph.web.sums import SumsLake, without_names
from tachograph.web.viewer import Viewer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LakeVersion:
    """One version of the computed tables: commits of each. As text it is the ETag of what is made of it alone."""

    summaries: int
    findings: int
    analyses: int

    def __str__(self) -> str:
        """`summaries-findings-analyses`."""
        return f"{self.summaries}-{self.findings}-{self.analyses}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Summaries and verdicts of all jobs, of one version."""

    version: LakeVersion
    summaries: pl.DataFrame
    answers: pl.DataFrame
    read: datetime


@dataclass(frozen=True, slots=True)
class View:
    """What one viewer sees of one version of a lake: all that a page or an endpoint is made of.

    opened: the lake as notebooks have it, without what is not visible; jobs: lists and sums of visible jobs.
    background: makes what takes seconds. fleet: all GPUs live, of which `fleet_report` shows what is visible.
    """

    viewer: Viewer
    version: LakeVersion
    opened: OpenLake
    jobs: VisibleJobs
    background: Background
    fleet: FleetWatch

    @property
    def configuration(self) -> Configuration:
        """How the service is configured."""
        return self.opened.configuration

    @property
    def now(self) -> datetime:
        """When the request came, UTC."""
        return self.opened.now

    @property
    def zone_name(self) -> str:
        """The zone of shown times."""
        return self.configuration.site.time_zone

    def made(
        self, what: str, make: Callable[[Progress], T], parameters: Parameters | None = None, *more: Hashable
    ) -> T | Pending:
        """Return a report of this version and viewer that takes seconds, or Pending while it is made.

        `parameters`, `more`: its settings; times such as 7d are counted back from the hour. Errors: those of
        `Background.get`.
        """
        hour = self.now.replace(minute=0, second=0, microsecond=0)
        moments = "" if parameters is None else parameters.moments(now=hour, zone_name=self.zone_name)
        key = (what, str(self.version), self.viewer.scope, parameters, moments, *more)
        return self.background.get(key, make)


class ServedLake:
    """A lake that is served: its newest version, read anew when the lake has another."""

    def __init__(
        self,
        lake: Lake,
        configuration: Configuration,
        *,
        watched: SourceRequest | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.lake = lake
        self.configuration = configuration
        self.background = Background()
        self.fleet = FleetWatch(configuration, lake.location, watched)
        self._clock = clock
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._nameless: tuple[LakeVersion, pl.DataFrame] | None = None

    def refresh(self) -> bool:
        """Read the newest version where it is another; return whether it was.

        Errors: LakeError where nothing was analyzed yet, or the lake cannot be read; what was read before stays.
        """
        with self._lock:
            version = self._version()
            if self._snapshot is not None and self._snapshot.version == version:
                return False
            self._snapshot = read_consistently(self.lake, lambda: self._read(version))
            return True

    @property
    def is_ready(self) -> bool:
        """Whether a version was read."""
        return self._snapshot is not None

    @property
    def snapshot(self) -> Snapshot:
        """The newest version that was read; the first is read now.

        Errors: those of `refresh`.
        """
        if self._snapshot is None:
            self.refresh()
        if self._snapshot is None:
            raise AssertionError("a refresh reads or raises")
        return self._snapshot

    def view(self, viewer: Viewer) -> View:
        """Return what `viewer` sees of the newest version. Errors: those of `refresh`."""
        snapshot = self.snapshot
        visible = snapshot.summaries if viewer.sees_all else snapshot.summaries.filter(viewer.visible())
        lake = SumsLake(self.lake, self._sums(snapshot)) if viewer.sums_only else ScopedLake(self.lake, viewer, visible)
        opened = OpenLake(lake, self.configuration, self._clock())
        jobs = VisibleJobs(visible, snapshot.answers)
        return View(viewer, snapshot.version, opened, jobs, self.background, self.fleet)

    def _sums(self, snapshot: Snapshot) -> pl.DataFrame:
        """All jobs without names, made once for a version."""
        if self._nameless is None or self._nameless[0] != snapshot.version:
            made = without_names(snapshot.summaries, self.configuration.serve.smallest_group)
            self._nameless = (snapshot.version, made)
        return self._nameless[1]

    def _version(self) -> LakeVersion:
        return LakeVersion(*(self.lake.version(table) for table in (JOB_SUMMARIES, FINDINGS, ANALYSES)))

    def _read(self, version: LakeVersion) -> Snapshot:
        summaries = read_summaries(self.lake)
        return Snapshot(version, summaries, read_answers(self.lake, summaries, every=True), self._clock())
