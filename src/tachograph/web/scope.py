"""A lake as one viewer sees it: rows of jobs that are not visible are never read.

Pages and endpoints have no other lake. So what decides about a row is the query, not the page that shows it.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tachograph.catalog.errors import NotFoundError
from tachograph.catalog.tables import JOB_SUMMARIES, LakeTable
from tachograph.lake.delta import DataFile, Lake
from tachograph.web.viewer import Viewer

_OF_NO_JOB = frozenset({"devices", "analyses"})  # facts of hardware and of the service, without names of people


class ScopedLake(Lake):
    """The tables of a lake without rows of jobs that `viewer` may not see.

    summaries: the rows of job_summaries that are visible. Rows of samples, which name no job, are read only by those
    who see every job.
    """

    def __init__(self, lake: Lake, viewer: Viewer, summaries: pl.DataFrame) -> None:
        super().__init__(lake.location)
        self._viewer = viewer
        self._summaries = summaries

    def latest(
        self, table: LakeTable, columns: Sequence[str] | None = None, where: pl.Expr | None = None
    ) -> pl.DataFrame:
        """Return the visible rows of a table, one per key."""
        if table is not JOB_SUMMARIES:
            return super().latest(table, columns, where)
        rows = self._summaries if where is None else self._summaries.filter(where)
        return rows if columns is None else rows.select(columns)

    def read_files(
        self, table: LakeTable, files: Sequence[DataFile], columns: Sequence[str] | None = None
    ) -> pl.LazyFrame:
        """Return the visible rows of some files, not read yet.

        Errors: NotFoundError for a table whose rows name no job, where not every job is visible.
        """
        rows = self._visible(super().read_files(table, files), table)
        return rows if columns is None else rows.select(*columns)

    def _visible(self, rows: pl.LazyFrame, table: LakeTable) -> pl.LazyFrame:
        if self._viewer.sees_all or table.name in _OF_NO_JOB:
            return rows
        mine = self._summaries.lazy()
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
