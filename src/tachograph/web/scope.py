"""A lake as one viewer sees it: rows of jobs that are not visible are never read.

Pages and endpoints have no other lake. So what decides about a row is the query, not the page that shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date

import polars as pl

from tachograph.catalog.errors import NotFoundError
from tachograph.catalog.tables import JOB_SUMMARIES, JOBS, LakeTable
from tachograph.lake.delta import DataFile, Lake
from tachograph.web.jobs import VisibleJobs
from tachograph.web.viewer import Viewer

_OF_NO_JOB = frozenset({"devices", "analyses"})  # facts of hardware and of the service, without names of people


class ScopedLake(Lake):
    """The tables of a lake without rows of jobs that `viewer` may not see.

    lake: at a version whose visible jobs are `jobs`. Rows of samples, which name no job, are read only by those who
    see every job.
    """

    def __init__(self, lake: Lake, viewer: Viewer, jobs: VisibleJobs) -> None:
        super().__init__(lake.location)
        self._lake = lake
        self._viewer = viewer
        self._jobs = jobs

    def version(self, table: LakeTable) -> int:
        """Return the version of a table that is served."""
        return self._lake.version(table)

    def files(self, table: LakeTable, days: Iterable[date] | None = None) -> list[DataFile]:
        """Return the files of a table at that version."""
        return self._lake.files(table, days)

    def latest(
        self, table: LakeTable, columns: Sequence[str] | None = None, where: pl.Expr | None = None
    ) -> pl.DataFrame:
        """Return the visible rows of a table, one per key."""
        return self._jobs.rows(columns, where) if table is JOB_SUMMARIES else super().latest(table, columns, where)

    def read_files(
        self, table: LakeTable, files: Sequence[DataFile], columns: Sequence[str] | None = None
    ) -> pl.LazyFrame:
        """Return the visible rows of some files, not read yet.

        Errors: NotFoundError for a table whose rows name no job, where not every job is visible.
        """
        rows = self._visible(super().read_files(table, files), table)
        return rows if columns is None else rows.select(*columns)

    def kept_answers(self, job_keys: pl.Series, codes: Sequence[str] | None = ()) -> pl.DataFrame | None:
        """Return short rows of findings of visible jobs among these."""
        return self._jobs.kept_answers(job_keys, codes)

    def _visible(self, rows: pl.LazyFrame, table: LakeTable) -> pl.LazyFrame:
        if self._viewer.sees_all or table.name in _OF_NO_JOB:
            return rows
        if table is JOBS:  # an id is given again once a scheduler starts over: its other job is another user's
            return rows.filter(self._viewer.visible())
        mine = self._jobs.names.lazy()
        if "job_key" in table.schema:
            return rows.join(mine.select("job_key"), on="job_key", how="semi")
        if "job_id" not in table.schema:
            raise NotFoundError(f"rows of {table.name} are of all jobs", do="a role that sees all jobs may read them")
        own = mine.select("job_id", visible_cluster="cluster").unique()
        same = pl.any_horizontal(
            pl.col("cluster").is_null(),
            pl.col("visible_cluster").is_null(),
            pl.col("cluster") == pl.col("visible_cluster"),
        )
        return rows.join(own, on="job_id").filter(same).drop("visible_cluster").unique(maintain_order=True)
