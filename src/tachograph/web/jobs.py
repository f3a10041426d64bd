"""Lists of visible jobs: filtered, sorted, a page at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import polars as pl

from tachograph.catalog.codes import REPORTED
from tachograph.lake.filters import JobFilter, answers_to, filter_jobs
from tachograph.report.jobs import DEFAULT_SORT, JobsTable, build_jobs_table
from tachograph.web.cursors import decode_cursor, encode_cursor

_KEY = "job_key"


@dataclass(frozen=True, slots=True)
class JobsPage:
    """A page of a list: its jobs, how many match in all, and the cursor of the next page; "" for the last one."""

    table: JobsTable
    cursor: str


class VisibleJobs:
    """The jobs that one viewer sees, of one version of a lake.

    summaries: their rows of job_summaries; answers: rows of findings with any verdict, of these jobs at least.
    """

    def __init__(self, summaries: pl.DataFrame, answers: pl.DataFrame) -> None:
        self._summaries = summaries
        self._answers = answers

    def __len__(self) -> int:
        """How many jobs are visible."""
        return self._summaries.height

    @property
    def newest(self) -> datetime | None:
        """Until when any of them was analyzed: None without jobs."""
        last: datetime | None = self.matching(JobFilter(), ["as_of"]).select(pl.col("as_of").max()).item()
        return last

    def matching(self, wanted: JobFilter, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Return the jobs that a filter selects, with `columns`; None: all of job_summaries. Errors: as filter_jobs."""
        found = filter_jobs(self._summaries, self._answers, wanted)
        return found if columns is None else found.select(columns)

    def rows_of(self, job_keys: pl.Series) -> pl.DataFrame:
        """Return the rows of job_summaries of visible jobs among these."""
        return self._summaries.join(job_keys.unique().to_frame("job_key"), on="job_key", how="semi")

    def answers(self, wanted: JobFilter) -> pl.DataFrame:
        """Return the reported findings of the jobs that a filter selects, or those for which it selects them.

        They have the columns SHORT_FINDING, and are in order of job_key and code. Errors: as filter_jobs.
        """
        of_jobs = self._answers.join(self.matching(wanted, ["job_key"]), on="job_key", how="semi")
        if wanted.findings:
            of_jobs = of_jobs.join(answers_to(self._answers, wanted), on=["job_key", "code"], how="semi")
        else:
            of_jobs = of_jobs.filter(REPORTED)
        return of_jobs.sort("job_key", "code")

    def verdict_counts(self, wanted: JobFilter) -> pl.DataFrame:
        """Return (code, verdict, jobs, reported) of the jobs that a filter selects: a row per code and verdict."""
        of_jobs = self._answers.join(self.matching(wanted, ["job_key"]), on="job_key", how="semi")
        counts = of_jobs.group_by("code", "verdict").agg(jobs=pl.len(), reported=REPORTED.sum())
        return counts.sort("code", "verdict")

    def page(
        self,
        wanted: JobFilter,
        *,
        columns: Sequence[str] = (),
        sort: str = DEFAULT_SORT,
        limit: int = 50,
        after: str = "",
        zone_name: str = "UTC",
    ) -> JobsPage:
        """Return `limit` jobs in order of `sort`, those after the cursor `after` of the page before.

        Errors: UsageError for what is no cursor; those of filter_jobs and build_jobs_table.
        """
        found = self.matching(wanted)
        ordered = build_jobs_table(found, self._answers, columns=columns, sort=sort, zone_name=zone_name, wanted=wanted)
        start = 0 if not after else _place_after(ordered.frame, decode_cursor(after)[0])
        frame = ordered.frame.slice(start, limit)
        more = start + limit < ordered.frame.height
        return JobsPage(replace(ordered, frame=frame), encode_cursor(frame.item(-1, _KEY)) if more else "")


def _place_after(ordered: pl.DataFrame, key: Any) -> int:
    place = ordered.get_column(_KEY).index_of(key)
    return 0 if place is None else place + 1
