"""Content of an export: the chosen jobs with their tables, the result, files that appear whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

import polars as pl

from tachograph.catalog.errors import ExportError, NotFoundError, cure_unwritable
from tachograph.catalog.tables import DEVICES, JOB_SUMMARIES
from tachograph.judge.capacity import CapacityReport
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter
from tachograph.lake.places import in_accounting, read_same_clusters
from tachograph.lake.query import (
    read_answers,
    read_gpus,
    read_latest,
    read_minutes,
    read_node_minutes,
    read_verdicts,
    select_jobs,
)


class ExportedNames(Protocol):
    """Display of names in an export."""

    def shown(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return rows of any table as they are exported."""

    @property
    def mark(self) -> str:
        """Mark that differs for other display options."""


@dataclass(frozen=True, slots=True)
class ExportContent:
    """Selected rows of job_summaries by start, and related rows.

    `now`: end of the period. Large tables are read on demand. `names`: how they are shown, None: as
    they are; `originals`: then the rows of `summaries` as they are in the lake. `read_capacity`:
    what became of all installed GPUs, None where that is not known.
    """

    lake: Lake
    now: datetime
    summaries: pl.DataFrame
    names: ExportedNames | None = None
    originals: pl.DataFrame | None = None
    read_capacity: Callable[[], CapacityReport] | None = None

    def findings(self, summaries: pl.DataFrame | None = None) -> pl.DataFrame:
        """Rows of findings of the chosen jobs, or of some of them, with every verdict."""
        return self._shown(read_verdicts(self.lake, self._jobs(summaries)))

    def answers(self) -> pl.DataFrame:
        """The same in short, to be counted: columns SHORT_FINDING."""
        return self._shown(read_answers(self.lake, self._jobs(None), every=True))

    def gpus(self, summaries: pl.DataFrame | None = None) -> pl.DataFrame:
        """Rows of job_gpus of the chosen jobs, or of some of them."""
        return self._shown(read_gpus(self.lake, self._jobs(summaries)))

    def minutes(self, summaries: pl.DataFrame | None = None) -> pl.DataFrame:
        """Rows of job_minutes of the chosen jobs, or of some of them."""
        return self._shown(read_minutes(self.lake, self._jobs(summaries)))

    def node_minutes(self, summaries: pl.DataFrame | None = None) -> pl.DataFrame:
        """Rows of job_node_minutes of the chosen jobs, or of some of them; empty without hosts."""
        return self._shown(read_node_minutes(self.lake, self._jobs(summaries)))

    def capacity(self) -> pl.DataFrame:
        """Where all installed GPU-hours went, by day, partition and GPU model.

        Errors: those of `read_capacity`; NotFoundError without it.
        """
        if self.read_capacity is None:
            raise NotFoundError("this export is of jobs alone", do="run `tachograph export`")
        return self._shown(self.read_capacity().rows)

    def devices(self) -> pl.DataFrame:
        """GPUs of the lake, with the accounting's names of clusters."""
        devices = read_latest(self.lake, DEVICES)
        return self._shown(in_accounting(devices, read_same_clusters(self.lake)))

    def _jobs(self, summaries: pl.DataFrame | None) -> pl.DataFrame:
        """Rows of the lake of the chosen jobs, or of some of them."""
        chosen = self.summaries if summaries is None else summaries
        if self.originals is None:
            return chosen
        keys = self.originals.with_columns(exported=self.summaries.get_column("job_key"))
        return keys.join(chosen, left_on="exported", right_on="job_key", how="semi").drop(
            "exported"
        )

    def _shown(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows if self.names is None else self.names.shown(rows)

    @property
    def lake_id(self) -> str:
        """Identity that survives moving the lake: id of job_summaries, and display of names."""
        delta = self.lake.delta(JOB_SUMMARIES)
        made = "" if delta is None else str(delta.metadata().id)
        return made if self.names is None else f"{made}+{self.names.mark}"


def read_content(lake: Lake, wanted: JobFilter, *, now: datetime) -> ExportContent:
    """Return the jobs of the lake that are selected.

    Errors: LakeError where nothing was analyzed yet; NotFoundError for a filter that names what
    does not exist.
    """
    return ExportContent(lake, now, select_jobs(lake, wanted).jobs.sort("start", "job_key"))


@dataclass(frozen=True, slots=True)
class ExportResult:
    """Result for one table, file or address: rows (series, jobs) written, removed, unchanged.

    left_out: what the target has no place for, such as jobs that have not ended.
    """

    what: str
    where: str
    written: int
    removed: int = 0
    unchanged: int = 0
    left_out: int = 0


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """Yield a temporary file that replaces `target` when the block succeeds.

    Errors: ExportError when it cannot be written.
    """
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    with export_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield beside
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)


@contextmanager
def export_errors(where: Path | str) -> Iterator[None]:
    """Turn errors of the operating system inside the block into ExportError."""
    try:
        yield
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise ExportError(
            f"cannot be written: {reason}",
            where=str(where),
            do=cure_unwritable(problem, "name another target with --to"),
        ) from problem
