"""A lake as one viewer sees it: rows of jobs that are not visible are never read.

Pages and endpoints have no other lake. So what decides about a row is the query, not the page that
shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import date

import polars as pl

from tachograph.annexes.serve.jobs import ResidentJobs
from tachograph.annexes.serve.sums import nameless
from tachograph.api.viewer import Viewer
from tachograph.catalog.errors import NotFoundError
from tachograph.catalog.tables import FINDINGS, JOB_SUMMARIES, JOBS, LakeTable
from tachograph.lake.data_files import DataFile
from tachograph.lake.delta import Lake
from tachograph.pipeline.attribution import HANDOVER

_SAME_CLUSTER = (pl.col("cluster") == pl.col("run_cluster")).fill_null(value=True)
# Facts of hardware and of the service, without names of people.
_OF_NO_JOB = frozenset({"devices", "analyses", "node_states"})


class ViewerLake(Lake):
    """The tables of a lake as `viewer` may see them, at a version whose visible jobs are `jobs`.

    Rows of samples, which name no job, are read only by those who see every job. Viewers of sums
    alone read summaries and findings of all jobs, without names. read_nameless: returns these
    summaries. It is called when they are read: of many jobs that is done by a worker, and the
    server itself needs none of them.
    """

    def __init__(
        self,
        lake: Lake,
        viewer: Viewer,
        jobs: ResidentJobs,
        read_nameless: Callable[[], pl.DataFrame],
    ) -> None:
        super().__init__(lake.location)
        self._lake = lake
        self._viewer = viewer
        self._jobs = jobs
        self._read_nameless = read_nameless

    @property
    def name(self) -> str:
        """Location of the lake; "" for viewers who may not see it."""
        return self._lake.name if self._viewer.sees_server else ""

    @property
    def of_all_jobs(self) -> Lake:
        """The lake with the jobs of all users: what a partition gives is the same for each."""
        return self if self._viewer.sums_only else self._lake

    def one_moment(self) -> AbstractContextManager[None]:
        """Read within the block what one version of each table holds."""
        return self._lake.one_moment()

    def version(self, table: LakeTable) -> int:
        """Return the version of a table that is served."""
        return self._lake.version(table)

    def files(self, table: LakeTable, days: Iterable[date] | None = None) -> list[DataFile]:
        """Return the files of a table at that version."""
        files = self._lake.files(table, days)
        if self._viewer.sums_only:  # keys of rows without names are others than those of the files
            return [replace(file, keys=None) for file in files]
        return files

    def latest(
        self,
        table: LakeTable,
        columns: Sequence[str] | None = None,
        keys: Iterable[str] | None = None,
        where: pl.Expr | None = None,
    ) -> pl.DataFrame:
        """Return the visible rows of a table, one per key."""
        if table is not JOB_SUMMARIES:
            return super().latest(table, columns, keys, where)
        names = tuple(table.schema) if columns is None else columns
        if self._viewer.sums_only:
            rows = self._read_nameless()
            if keys is not None:
                rows = rows.filter(pl.col("job_key").is_in(list(keys)))
            if columns is None:
                names = rows.columns
        elif where is None:
            return self._jobs.rows(columns, keys)
        else:
            rows = self._jobs.rows(tuple({*names, *where.meta.root_names()}), keys)
        return (rows if where is None else rows.filter(where)).select(names)

    def read_files(
        self, table: LakeTable, files: Sequence[DataFile], columns: Sequence[str] | None = None
    ) -> pl.LazyFrame:
        """Return the visible rows of some files, not read yet.

        Errors: NotFoundError for a table whose rows name no job, where not every job is visible;
        for viewers of sums alone of every table but the findings.
        """
        rows = self._visible(super().read_files(table, files), table)
        return rows if columns is None else rows.select(*columns)

    def read_named(self, table: LakeTable, job_ids: Sequence[str]) -> pl.LazyFrame:
        """Return the visible rows of jobs given by id. Errors: those of `read_files`."""
        return self._visible(self._lake.read_named(table, job_ids), table, job_ids)

    def kept_answers(
        self,
        job_keys: pl.Series,
        codes: Sequence[str] | None = (),
        *,
        reported: bool = False,
        only: Sequence[str] | None = None,
    ) -> pl.DataFrame | None:
        """Return short rows of findings of visible jobs among these; None: read them."""
        if self._viewer.sums_only:
            return None
        return self._jobs.kept_answers(job_keys, codes, reported=reported, only=only)

    def _visible(
        self, rows: pl.LazyFrame, table: LakeTable, job_ids: Sequence[str] | None = None
    ) -> pl.LazyFrame:
        if self._viewer.sums_only:
            if table is FINDINGS:
                return nameless(rows, table)
            raise NotFoundError(
                f"rows of {table.name} are of single jobs", do="log in to see your own"
            )
        if self._viewer.sees_all or table.name in _OF_NO_JOB:
            return rows
        # An id is given again once a scheduler starts over: its other job is another user's.
        if table is JOBS:
            return rows.filter(self._viewer.visible())
        if "job_key" in table.schema:
            return rows.join(self._jobs.names.lazy().select("job_key"), on="job_key", how="semi")
        if not {"job_id", "start"} <= table.schema.keys():
            raise NotFoundError(
                f"rows of {table.name} are of all jobs",
                do="a role that sees all jobs may read them",
            )
        return self._of_visible_runs(rows, job_ids)

    def _of_visible_runs(self, rows: pl.LazyFrame, job_ids: Sequence[str] | None) -> pl.LazyFrame:
        """Return rows that name a job by id, and start during a visible run of it.

        What may be of a run of another user with that id is left out: a row during it; one without
        a start, wherever there is such a run. `job_ids`: all that the rows name, where that is
        known.
        """
        runs = self._jobs.rows(("cluster", "job_id", "start", "end", "as_of")).lazy()
        runs = runs if job_ids is None else runs.filter(pl.col("job_id").is_in(list(job_ids)))
        until = pl.coalesce("end", "as_of")
        mine = runs.select("job_id", run_cluster="cluster", run_start="start", run_end=until)
        ids = mine.select("job_id").unique()
        numbered = rows.with_row_index("row").join(ids, on="job_id", how="semi")
        begun = pl.coalesce("start", pl.col("end").dt.offset_by("-1us"), "run_start")
        during = (begun >= pl.col("run_start") - HANDOVER) & (begun < pl.col("run_end"))
        visible = numbered.join(mine, on="job_id").filter(_SAME_CLUSTER, during)
        named = self._lake.scan(JOBS) if job_ids is None else self._lake.read_named(JOBS, job_ids)
        recorded = named.join(ids, on="job_id", how="semi").sort("seq")
        latest = recorded.group_by(*JOBS.key).agg(
            pl.col("user", "account", "start", "end").drop_nulls().last()
        )
        others = latest.filter(~self._viewer.visible(), pl.col("start").is_not_null()).select(
            "job_id", run_cluster="cluster", other_start="start", other_end="end"
        )
        ends = pl.min_horizontal(pl.coalesce("end", "run_end"), "run_end")
        at_other_times = (pl.col("start") >= pl.col("other_end")) | (ends <= pl.col("other_start"))
        doubtful = (
            visible.drop("run_cluster")
            .join(others, on="job_id")
            .filter(
                _SAME_CLUSTER, ~at_other_times.fill_null(value=False) | pl.col("start").is_null()
            )
        )
        certain = visible.select("row").unique().join(doubtful.select("row"), on="row", how="anti")
        return numbered.join(certain, on="row", how="semi").drop("row")
