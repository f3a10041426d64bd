"""Why a job filter leaves no job, and what to try."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tachograph.catalog.suggestions import did_you_mean
from tachograph.catalog.units import plural, printable
from tachograph.cli.options import OpenedLake, newest_job

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from tachograph.lake.filters import JobFilter

_NO_JOBS = (
    "No jobs in the lake: `tachograph ingest` reads the accounting and samples, `tachograph "
    "analyze` summarizes them."
)
_NAMED = {"user": "users", "account": "accounts", "partition": "partitions"}


def no_match_lines(opened: OpenedLake, job_filter: JobFilter) -> list[str]:
    """Return why no job of the lake matches a filter, as lines of text.

    The first one has the number of jobs and the newest start, the others the parts of the filter
    that no job meets, with names that are close. Errors: those of `select_jobs`.
    """
    from tachograph.lake.filters import filter_parts
    from tachograph.lake.query import read_summaries

    summaries = read_summaries(opened.lake, ("start", *_NAMED))
    if summaries.is_empty():
        return [_NO_JOBS]
    newest = newest_job(summaries, zone_name=opened.configuration.site.time_zone)
    lines = [f"No matching jobs; {newest}." if newest else "No matching jobs."]
    parts = list(filter_parts(job_filter))
    if job_filter.excluded is not None:
        parts.append(_of_study(excluded=job_filter.excluded))
    unmet = [(written, part) for written, part in parts if not _count(opened, part)]
    for written, part in unmet:
        hints = "; ".join(_hints(opened, summaries, part))
        lines.append(f"No job meets: {_shown(opened, written, part)}{hints and f'; {hints}'}")
    if unmet:
        lines.append("Leave it out or widen it; `tachograph jobs` lists all jobs.")
    elif parts:
        named = "; ".join(_shown(opened, written, part) for written, part in parts)
        lines += [
            f"Some jobs meet each of these, none all of them: {named}",
            "Leave one out or widen it; `tachograph jobs` lists all jobs.",
        ]
    return lines


def _of_study(*, excluded: bool) -> tuple[str, JobFilter]:
    from tachograph.lake.filters import JobFilter

    name = "left out of studies" if excluded else "in studies"
    return name, JobFilter(excluded=excluded)


def _count(opened: OpenedLake, part: JobFilter) -> int:
    """Return the number of jobs that meet a filter."""
    from tachograph.lake.query import select_jobs

    return select_jobs(opened.lake, part, ("job_key",)).matching


def _shown(opened: OpenedLake, written: str, part: JobFilter) -> str:
    """Return a part of a filter as people read it, times with their values."""
    from tachograph.catalog.columns import local_time

    moment = part.since or part.until
    if moment is not None:
        written = f"{written} {local_time(moment, opened.configuration.site.time_zone)}"
    return printable(written)


def _hints(opened: OpenedLake, summaries: pl.DataFrame, part: JobFilter) -> Iterator[str]:
    """Yield what was probably meant by a name, and how many verdicts of a finding are unknown."""
    from dataclasses import replace

    for column, field in _NAMED.items():
        values = summaries.get_column(column).drop_nulls().unique().sort().to_list()
        for name in getattr(part, field):
            suggestion = did_you_mean(name, values, most=3)
            if suggestion:
                yield printable(suggestion)
    if part.findings and part.verdict != "unknown":
        unknown = _count(opened, replace(part, verdict="unknown"))
        if unknown:
            yield f"unknown for {plural(unknown, 'job')}, see --verdict unknown"
