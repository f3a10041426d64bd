"""What a user, an account or everybody used: by week, lost and recovered, worst jobs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from tachograph.catalog.codes import CODES, REPORTED
from tachograph.catalog.columns import LOST_COLUMN, midnight
from tachograph.catalog.tables import WASTE
from tachograph.judge.ledger import (
    LEDGER_COLUMNS,
    LOST_SHARE,
    WASTE_BUCKETS,
    WasteReport,
    in_ledger,
)
from tachograph.lake.filters import lost_hours, with_findings

_SHOWN = (
    "job_key",
    "job_id",
    "display_id",
    "name",
    "user",
    "account",
    "partition",
    "state",
    "start",
    "gpus",
)
# of findings that are else equal
CODE_ORDER = pl.col("code").replace_strict(
    dict(zip(CODES, range(len(CODES)), strict=True)), default=len(CODES)
)
# what of job_summaries it is made of
USAGE_COLUMNS = tuple(
    dict.fromkeys((*LEDGER_COLUMNS, *_SHOWN, "elapsed_s", "gpu_util_mean", "energy_j"))
)

# what a day's GPU-hours are divided into: those of the ledger, and those of jobs that are not in it
DAY_PARTS = (*WASTE_BUCKETS, "left_out")
_NO_HOURS = pl.DataFrame(schema=dict.fromkeys(DAY_PARTS, pl.Float64))


@dataclass(frozen=True, slots=True)
class UsageReport:
    """What some jobs used.

    jobs: how many; gpu_hours: of all with known GPUs, those that still run included. weeks: of the
    jobs in the ledger a row per week in which they ended, oldest first: `week` (its Monday, in the
    zone), `jobs`, `gpu_hours`, `lost` (to any cause of waste), `lost_share`, `recovered`: GPU-hours
    that would have been lost at the share of all weeks before, less those that were; below zero
    where more was lost; null in the first. days: see `daily_use`. findings: (code, jobs,
    gpu_hours_lost: null where it is known of none, job_key and display_id of the job that lost
    most) of reported ones, most hours first. worst: jobs that lost most. queue: jobs by
    `recoverable` GPU-hours, most first, with the `cause` of most of them. running: jobs that still
    run, latest first. waste: the ledger of these jobs.
    """

    jobs: int
    gpu_hours: float | None
    weeks: pl.DataFrame
    days: pl.DataFrame
    findings: pl.DataFrame
    worst: pl.DataFrame
    queue: pl.DataFrame
    running: pl.DataFrame
    waste: WasteReport
    zone_name: str = "UTC"

    @property
    def recovered(self) -> float | None:
        """GPU-hours recovered in all weeks; None where there is only one."""
        known = self.weeks.get_column("recovered").drop_nulls()
        return None if known.is_empty() else float(known.sum())


def build_usage(
    jobs: pl.DataFrame,
    answers: pl.DataFrame,
    waste: WasteReport,
    *,
    top: int = 10,
    zone_name: str = "UTC",
) -> UsageReport:
    """Return the usage report of `jobs` (USAGE_COLUMNS), with their reported findings.

    `waste`: their ledger, with the jobs of all causes.
    """
    found = jobs.with_columns(lost_hours().alias(LOST_COLUMN))
    running = _first(found, pl.col("end").is_null(), by="start", count=top)
    worst = _first(found, pl.col(LOST_COLUMN) > 0, by=LOST_COLUMN, count=top)
    assert waste.concerned is not None
    gains = waste.concerned.filter(pl.col("recoverable") > 0)
    queue = gains.head(top).select("job_key", "recoverable", "cause")
    keys = pl.concat([rows["job_key"] for rows in (running, worst, queue)]).unique()
    listed = found.filter(pl.col("job_key").is_in(keys.implode()))
    listed = with_findings(listed, answers.filter(pl.col("job_key").is_in(keys.implode())))
    running, worst, queue = (
        rows.join(listed, on="job_key", maintain_order="left") for rows in (running, worst, queue)
    )
    return UsageReport(
        jobs=jobs.height,
        gpu_hours=jobs.select(pl.col("gpu_hours").sum()).item()
        if jobs["gpu_hours"].is_not_null().any()
        else None,
        weeks=weekly_use(jobs, zone_name),
        days=daily_use(jobs, zone_name),
        findings=_findings(found, answers),
        worst=worst,
        queue=queue,
        running=running,
        waste=replace(waste, jobs_of=None, concerned=None, concerned_jobs=0),
        zone_name=zone_name,
    )


def _first(jobs: pl.DataFrame, where: pl.Expr, *, by: str, count: int) -> pl.DataFrame:
    """The keys of the first jobs with the greatest values."""
    return (
        jobs.lazy()
        .filter(where)
        .sort(by, "job_key", descending=[True, False])
        .head(count)
        .select("job_key")
        .collect()
    )


def weekly_use(jobs: pl.DataFrame, zone_name: str) -> pl.DataFrame:
    """Return `weeks` of UsageReport: one row per week of the jobs' ends, oldest first."""
    ended = pl.col("end").dt.convert_time_zone(zone_name).dt.truncate("1w").dt.date()
    weeks = (  # eagerly: the streaming engine adds numbers up in another order each time
        jobs.filter(in_ledger())
        .group_by(ended.alias("week"), maintain_order=True)
        .agg(
            jobs=pl.len().cast(pl.Int64),
            gpu_hours=pl.col("gpu_hours").sum(),
            lost=pl.sum_horizontal(pl.col(f"gpu_hours_{cause}").sum() for cause in WASTE),
        )
        .sort("week")
    )
    return weeks.with_columns(lost_share=LOST_SHARE, recovered=_recovered())


def daily_use(jobs: pl.DataFrame, zone_name: str) -> pl.DataFrame:
    """Return GPU-hours by day and use: one row per day of the zone with hours, oldest first.

    Columns: `day`, and one of DAY_PARTS each; `left_out` are the known hours of jobs that are not
    in the ledger. The hours of a job are spread evenly from its start to its end. `day` is null for
    hours of jobs whose start is not known.
    """
    booked = {part: pl.col(f"gpu_hours_{part}") for part in WASTE_BUCKETS}
    begin = pl.col("start").dt.convert_time_zone(zone_name)
    end = pl.coalesce("end", "as_of", "start").dt.convert_time_zone(zone_name)
    in_or_out = jobs.with_columns(
        begin=begin, end=pl.max_horizontal(begin, end), counted=in_ledger()
    ).partition_by("counted", as_dict=True)
    parts = [
        rows.select("begin", "end", **(booked if counted else {"left_out": pl.col("gpu_hours")}))
        for (counted,), rows in in_or_out.items()
    ]
    hours = pl.concat([_NO_HOURS, *parts], how="diagonal_relaxed").filter(
        pl.any_horizontal(pl.col(part) > 0 for part in DAY_PARTS)
    )
    first, last = (pl.col(name).dt.date() for name in ("begin", "end"))
    by_day = hours.with_columns(day=pl.date_ranges(first, last)).explode("day")
    days = by_day.select(pl.col("day").unique()).with_columns(
        midnight=midnight(pl.col("day"), zone_name),
        next_midnight=midnight(pl.col("day") + pl.duration(days=1), zone_name),
    )
    on_day = pl.min_horizontal("end", "next_midnight") - pl.max_horizontal("begin", "midnight")
    length = pl.col("end") - pl.col("begin")
    share = pl.when(length > pl.duration()).then(on_day / length).otherwise(1.0)
    return (  # eagerly, as above
        by_day.join(days, on="day", how="left", maintain_order="left")
        .with_columns(pl.col(DAY_PARTS).fill_null(0.0) * share)
        .group_by("day", maintain_order=True)
        .agg(pl.col(DAY_PARTS).sum())
        .sort("day", nulls_last=True)
    )


def _recovered() -> pl.Expr:
    hours_before, lost_before = (pl.col(name).cum_sum().shift() for name in ("gpu_hours", "lost"))
    before = pl.when(hours_before > 0).then(lost_before / hours_before)
    return before * pl.col("gpu_hours") - pl.col("lost")


def most_lost_first(by_code: pl.DataFrame) -> pl.DataFrame:
    """Return rows of a report's `findings` by GPU-hours lost, then jobs, then order of codes."""
    return by_code.sort(
        LOST_COLUMN,
        "jobs",
        CODE_ORDER,
        "code",
        descending=[True, True, False, False],
        nulls_last=True,
    )


def _findings(found: pl.DataFrame, answers: pl.DataFrame) -> pl.DataFrame:
    jobs = found.select("job_key", "display_id", LOST_COLUMN)
    reported = answers.filter(REPORTED).join(jobs, on="job_key")
    lost = pl.col(LOST_COLUMN)
    names = pl.col("job_key", "display_id")
    by_code = reported.group_by("code", maintain_order=True).agg(
        names.sort_by(LOST_COLUMN, "job_key", descending=[True, False], nulls_last=True).first(),
        jobs=pl.len().cast(pl.Int64),
        gpu_hours_lost=pl.when(lost.count() > 0).then(lost.sum()),
    )
    return most_lost_first(by_code)
