"""Lists of visible jobs: filtered, sorted, a page at a time."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import polars as pl

from tachograph.catalog.errors import UsageError
from tachograph.lake.filters import JobFilter, filter_jobs
from tachograph.report.jobs import DEFAULT_SORT, JobsTable, build_jobs_table

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

    def matching(self, wanted: JobFilter, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Return the jobs that a filter selects, with `columns`; None: all of job_summaries. Errors: as filter_jobs."""
        found = filter_jobs(self._summaries, self._answers, wanted)
        return found if columns is None else found.select(columns)

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
        start = 0 if not after else _place_after(ordered.frame, _cursor_key(after))
        frame = ordered.frame.slice(start, limit)
        more = start + limit < ordered.frame.height
        return JobsPage(replace(ordered, frame=frame), encode_cursor(frame.item(-1, _KEY)) if more else "")


def _place_after(ordered: pl.DataFrame, key: str) -> int:
    place = ordered.get_column(_KEY).index_of(key)
    return 0 if place is None else place + 1


def encode_cursor(*values: Any) -> str:
    """Return the cursor of values.

    >>> _cursor_key(encode_cursor("sim:1:2"))
    'sim:1:2'
    """
    return base64.urlsafe_b64encode(msgspec.json.encode(values)).decode().rstrip("=")


def _cursor_key(cursor: str) -> str:
    try:
        (key,) = msgspec.json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=tuple[str])
    except (ValueError, binascii.Error):
        raise UsageError("invalid cursor", do="take it from the answer before, or leave it out") from None
    return key
