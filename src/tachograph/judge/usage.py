"""What a user, an account or everybody used: by week, lost and recovered, worst jobs."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from tachograph.catalog.codes import CODES, REPORTED
from tachograph.catalog.columns import LOST_COLUMN
from tachograph.catalog.tables import WASTE
from tachograph.judge.ledger import LEDGER_COLUMNS, WasteReport, in_ledger
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
# what of job_summaries it is made of
USAGE_COLUMNS = tuple(
    dict.fromkeys((*LEDGER_COLUMNS, *_SHOWN, "elapsed_s", "gpu_util_mean", "energy_j"))
)


@dataclass(frozen=True, slots=True)
class UsageReport:
    """What some jobs used.

    jobs: how many; gpu_hours: of all with known GPUs, those that still run included. weeks: of the
    jobs in the ledger a row per week in which they ended, oldest first: `week` (its Monday, in the
    zone), `jobs`, `gpu_hours`, `lost` (to any cause of waste), `lost_share`, `recovered`: GPU-hours
    that would have been lost at the share of all weeks before, less those that were; below zero
    where more was lost; null in the first. findings: (code, jobs, gpu_hours_lost: null where it is
    known of none) of reported ones, most hours first. worst: jobs that lost most. running: jobs
    that still run, latest first. waste: the ledger of these jobs.
    """

    jobs: int
    gpu_hours: float | None
    weeks: pl.DataFrame
    findings: pl.DataFrame
    worst: pl.DataFrame
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
    """Return the usage report of `jobs` (USAGE_COLUMNS), with their reported findings."""
    found = jobs.with_columns(lost_hours().alias(LOST_COLUMN))
    running = _first(found, pl.col("end").is_null(), by="start", count=top)
    worst = _first(found, pl.col(LOST_COLUMN) > 0, by=LOST_COLUMN, count=top)
    return UsageReport(
        jobs=jobs.height,
        gpu_hours=jobs.select(pl.col("gpu_hours").sum()).item()
        if jobs["gpu_hours"].is_not_null().any()
        else None,
        weeks=weekly_use(jobs, zone_name),
        findings=_findings(found, answers),
        worst=_with_findings(worst, answers),
        running=_with_findings(running, answers),
        waste=waste,
        zone_name=zone_name,
    )


def _first(jobs: pl.DataFrame, where: pl.Expr, *, by: str, count: int) -> pl.DataFrame:
    """The first jobs with the greatest values."""
    return (
        jobs.lazy()
        .filter(where)
        .sort(by, "job_key", descending=[True, False])
        .head(count)
        .collect()
    )


def _with_findings(jobs: pl.DataFrame, answers: pl.DataFrame) -> pl.DataFrame:
    return with_findings(
        jobs, answers.filter(pl.col("job_key").is_in(jobs.get_column("job_key").implode()))
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
    share = pl.when(pl.col("gpu_hours") > 0).then(pl.col("lost") / pl.col("gpu_hours"))
    return weeks.with_columns(lost_share=share, recovered=_recovered())


def _recovered() -> pl.Expr:
    hours_before, lost_before = (pl.col(name).cum_sum().shift() for name in ("gpu_hours", "lost"))
    before = pl.when(hours_before > 0).then(lost_before / hours_before)
    return before * pl.col("gpu_hours") - pl.col("lost")


def _findings(found: pl.DataFrame, answers: pl.DataFrame) -> pl.DataFrame:
    reported = answers.filter(REPORTED).join(found.select("job_key", LOST_COLUMN), on="job_key")
    lost = pl.col(LOST_COLUMN)
    by_code = reported.group_by("code", maintain_order=True).agg(
        jobs=pl.len().cast(pl.Int64), gpu_hours_lost=pl.when(lost.count() > 0).then(lost.sum())
    )
    place = pl.col("code").replace_strict(
        dict(zip(CODES, range(len(CODES)), strict=True)), default=len(CODES)
    )
    return by_code.sort(
        LOST_COLUMN, "jobs", place, "code", descending=[True, True, False, False], nulls_last=True
    )
