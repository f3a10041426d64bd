"""Sums of many jobs: the ledger and the use of one slice of the jobs after the other, added up.

`judge` copies rows several times, and findings of all jobs are many times their summaries. So of a
million jobs only a slice is copied at a time. Of few jobs there is one slice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType

import polars as pl

from tachograph.catalog.columns import LOST_COLUMN
from tachograph.catalog.config import WasteOptions
from tachograph.catalog.tables import WASTE
from tachograph.judge.capacity import CapacityReport
from tachograph.judge.ledger import (
    ALL_CAUSES,
    LOST_SHARE,
    WASTE_LEFT_OUT,
    WasteReport,
    build_waste_report,
)
from tachograph.judge.usage import UsageReport, build_usage, most_lost_first, weekly_use
from tachograph.lake.filters import lost_hours
from tachograph.lake.query import MANY_JOBS

# What `weekly_use` reads: of all jobs at once these columns are copied, and no others.
_OF_WEEKS = (
    *("end", "state", "attribution", "samples", "shards", "mps", "gpu_hours", "gpu_hours_in_use"),
    *("gpu_util_mean", "gr_engine_active_mean", "sm_active_mean"),
    *(f"gpu_hours_{cause}" for cause in WASTE),
)


def sum_waste(
    jobs: pl.DataFrame,
    intervals: pl.DataFrame,
    settings: WasteOptions,
    *,
    freed: Mapping[str, float] = MappingProxyType({}),
    by: str = "cause",
    top: int | None = None,
    jobs_of: str | None = None,
    zone_name: str = "UTC",
    since: datetime | None = None,
    until: datetime | None = None,
    capacity: CapacityReport | None = None,
    slice_jobs: int = MANY_JOBS,
) -> WasteReport:
    """Return what `build_waste_report` does, from at most `slice_jobs` jobs at a time.

    Errors: those of `build_waste_report`.
    """

    def of_jobs(rows: pl.DataFrame, limit: int | None) -> WasteReport:
        return build_waste_report(
            rows,
            intervals,
            settings,
            freed=freed,
            by=by,
            top=limit,
            jobs_of=jobs_of,
            zone_name=zone_name,
            since=since,
            until=until,
            capacity=capacity,
        )

    if jobs.height <= slice_jobs:
        return of_jobs(jobs, top)
    empty = of_jobs(jobs.clear(), top)  # also where an option is wrong
    parts = []
    for rows in jobs.iter_slices(slice_jobs):
        part = of_jobs(rows, None)  # the first groups of all may be others than those of a slice
        first = (
            part.concerned if part.concerned is None or top is None else part.concerned.head(top)
        )
        parts.append(replace(part, concerned=first))
    return _added_ledgers(empty, parts, top)


def sum_usage(
    jobs: pl.DataFrame,
    intervals: pl.DataFrame,
    settings: WasteOptions,
    read_reported: Callable[[pl.DataFrame], pl.DataFrame],
    *,
    freed: Mapping[str, float] = MappingProxyType({}),
    top: int = 10,
    zone_name: str = "UTC",
    slice_jobs: int = MANY_JOBS,
) -> UsageReport:
    """Return what `build_usage` does, from at most `slice_jobs` jobs at a time.

    jobs: USAGE_COLUMNS. read_reported: returns the reported findings of some of them.
    """
    parts = []
    ledgers = []
    for rows in jobs.iter_slices(slice_jobs):
        ledger = build_waste_report(
            rows,
            intervals,
            settings,
            freed=freed,
            jobs_of=ALL_CAUSES,
            top=top,
            zone_name=zone_name,
        )
        ledgers.append(ledger)
        findings = read_reported(rows)
        parts.append(build_usage(rows, findings, ledger, top=top, zone_name=zone_name))
    if len(parts) == 1:
        return parts[0]
    waste = _added_ledgers(ledgers[0], ledgers, top)
    return _added_usage(parts, waste, jobs, top)


def _known_sums(rows: pl.DataFrame, key: str) -> pl.DataFrame:
    """Add up numbers by key, in order of the first; null where a number is known of none."""
    numbers = [pl.col(name) for name, dtype in rows.schema.items() if dtype.is_numeric()]
    sums = [pl.when(number.is_not_null().any()).then(number.sum()) for number in numbers]
    return rows.group_by(key, maintain_order=True).agg(sums).select(rows.columns)


def _added_ledgers(base: WasteReport, parts: Sequence[WasteReport], top: int | None) -> WasteReport:
    """Return the ledger of all jobs from those of slices; `base` has what all have in common."""
    causes = _known_sums(pl.concat([part.causes for part in parts]), "cause")
    total = pl.col("gpu_hours").sum()
    share = pl.when(total > 0).then(pl.col("gpu_hours") / total)
    left_out = _known_sums(pl.concat([part.left_out for part in parts]), "reason")
    reasons = pl.DataFrame({"reason": list(WASTE_LEFT_OUT)})
    groups = None
    if base.groups is not None:
        of_parts = [part.groups for part in parts if part.groups is not None]
        groups = _first_groups(_added_groups(of_parts, base.by), base.by, top)
    concerned = None
    if base.jobs_of is not None:
        rows = pl.concat([part.concerned for part in parts if part.concerned is not None])
        concerned = _first_concerned(rows, base, top)
    return replace(
        base,
        jobs=sum(part.jobs for part in parts),
        gpu_hours=sum(part.gpu_hours for part in parts),
        first=min((part.first for part in parts if part.first is not None), default=None),
        last=max((part.last for part in parts if part.last is not None), default=None),
        causes=causes.with_columns(share=share),
        left_out=reasons.join(left_out, on="reason", maintain_order="left"),
        users=_added_groups([part.users for part in parts], "user"),
        groups=groups,
        concerned=concerned,
        concerned_jobs=sum(part.concerned_jobs for part in parts),
        unpriced_jobs=sum(part.unpriced_jobs for part in parts),
    )


def _added_groups(parts: Sequence[pl.DataFrame], by: str) -> pl.DataFrame:
    """Return one row per group, most lost first."""
    sums = _known_sums(pl.concat(parts), by).with_columns(lost_share=LOST_SHARE)
    return sums.sort("lost", by, descending=[True, False])


def _first_groups(groups: pl.DataFrame, by: str, top: int | None) -> pl.DataFrame:
    """Return the first groups, the others summed in one row with their number in `others`."""
    if top is None or groups.height <= top:
        return groups
    rest = groups.slice(top).with_columns(pl.lit(None, dtype=pl.String).alias(by))
    others = pl.lit(rest.height, dtype=groups.schema["others"])
    summed = _known_sums(rest, by).with_columns(lost_share=LOST_SHARE, others=others)
    return pl.concat([groups.head(top), summed])


def _first_concerned(rows: pl.DataFrame, base: WasteReport, top: int | None) -> pl.DataFrame:
    """Return the jobs of the requested cause in their order, at most `top`."""
    amounts = [base.concerned_hours]
    if base.jobs_of == ALL_CAUSES:
        amounts.insert(0, "recoverable")
    descending = [*(True for _ in amounts), False]
    ordered = rows.sort(*amounts, "job_key", descending=descending, nulls_last=True)
    return ordered if top is None else ordered.head(top)


def _added_usage(
    parts: Sequence[UsageReport], waste: WasteReport, jobs: pl.DataFrame, top: int
) -> UsageReport:
    """Return the use of all jobs from that of slices. waste: their ledger."""
    assert waste.concerned is not None
    zone_name = waste.zone_name
    worst = pl.concat([part.worst for part in parts])
    running = pl.concat([part.running for part in parts])
    gains = waste.concerned.filter(pl.col("recoverable") > 0).select("job_key")
    queue = pl.concat([part.queue for part in parts])
    days = pl.concat([part.days for part in parts]).group_by("day", maintain_order=True)
    known_hours = [part.gpu_hours for part in parts if part.gpu_hours is not None]
    return UsageReport(
        jobs=jobs.height,
        gpu_hours=sum(known_hours) if known_hours else None,
        weeks=weekly_use(jobs.select(_OF_WEEKS), zone_name),
        days=days.agg(pl.all().sum()).sort("day", nulls_last=True),
        findings=_added_findings([part.findings for part in parts], jobs),
        worst=worst.sort(LOST_COLUMN, "job_key", descending=[True, False]).head(top),
        queue=gains.join(queue, on="job_key", maintain_order="left"),
        running=running.sort("start", "job_key", descending=[True, False]).head(top),
        waste=replace(waste, jobs_of=None, concerned=None, concerned_jobs=0),
        zone_name=zone_name,
    )


def _added_findings(parts: Sequence[pl.DataFrame], jobs: pl.DataFrame) -> pl.DataFrame:
    """Return one row per code; the job that lost most is the first of those of the slices."""
    rows = pl.concat(parts)
    named = jobs.lazy().filter(pl.col("job_key").is_in(rows["job_key"].implode()))
    lost = named.select("job_key", lost_of_job=lost_hours()).collect()
    first = pl.col("job_key", "display_id").sort_by(
        "lost_of_job", "job_key", descending=[True, False], nulls_last=True
    )
    hours = pl.col(LOST_COLUMN)
    by_code = (
        rows.join(lost, on="job_key", maintain_order="left")
        .group_by("code", maintain_order=True)
        .agg(
            first.first(),
            pl.col("jobs").sum(),
            pl.when(hours.is_not_null().any()).then(hours.sum()),
        )
    )
    return most_lost_first(by_code)
