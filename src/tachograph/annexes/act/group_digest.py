"""Weekly digest for account managers and staff: users, problems, trend, unhealthy GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any, ClassVar, Literal

import polars as pl

from tachograph.annexes.act.digest import LEAST_GPU_HOURS, week_name
from tachograph.catalog.columns import LOST_COLUMN
from tachograph.catalog.units import gpu_hours_text, plural, text
from tachograph.judge.health import CRIT, XID_CRITICAL, xid_meaning
from tachograph.judge.ledger import in_ledger
from tachograph.judge.usage import weekly_use
from tachograph.lake.filters import lost_hours

TOP = 5  # users and problems that are listed
MOST_SICK = 20  # GPUs that are listed
SICK_COLUMNS = ("job_key", "node", "gpu", "mig", "health", "xid_event_max")

Audience = Literal["managers", "staff"]


@dataclass(frozen=True, slots=True)
class WorstUser:
    """A user's jobs of the week. user: None if the accounting names none."""

    user: str | None
    jobs: int
    gpu_hours: float
    lost: float


@dataclass(frozen=True, slots=True)
class WeekProblem:
    """A problem: the week's jobs with it, their total loss; is_new: absent in earlier weeks."""

    code: str
    title: str
    jobs: int
    lost: float
    is_new: bool


@dataclass(frozen=True, slots=True)
class GroupDigest:
    """A week of the jobs that a person may see.

    name: the manager, or "staff"; accounts: of the manager, none: all. jobs, gpu_hours, lost: of
    jobs with known hours that ended in it; share: of the hours, lost; share_before: in the weeks
    before, None without any.
    """

    template: ClassVar[str] = "group_digest"
    audience: Audience
    name: str
    accounts: tuple[str, ...]
    week: date
    jobs: int
    gpu_hours: float
    lost: float
    share: float | None
    share_before: float | None
    users: tuple[WorstUser, ...]
    problems: tuple[WeekProblem, ...]
    sick: tuple[str, ...] = ()
    capacity: str = ""  # what became of all GPUs in the week; "" where that is not known

    @property
    def is_worth_sending(self) -> bool:
        """Whether hours were lost, or a GPU is unhealthy."""
        return self.lost >= LEAST_GPU_HOURS or bool(self.sick)

    @property
    def subject(self) -> str:
        """The subject of the mail."""
        whose = ", ".join(self.accounts[:3]) if self.accounts else "all accounts"
        return f"GPU jobs of {whose}, {week_name(self.week)}: {gpu_hours_text(self.lost)} lost"

    @property
    def trend(self) -> str:
        """Sentence comparing the lost share with earlier weeks; "" if one is unknown."""
        if self.share is None or self.share_before is None:
            return ""
        now, before = text(self.share, "fraction"), text(self.share_before, "fraction")
        return f"{now} of the GPU-hours were lost; {before} in the weeks before."


def group_digest(
    jobs: pl.DataFrame,
    findings: pl.DataFrame,
    gpus: pl.DataFrame,
    *,
    audience: Audience,
    name: str,
    accounts: Iterable[str] = (),
    week: date,
    zone_name: str = "UTC",
    capacity: str = "",
) -> GroupDigest | None:
    """Return the digest of `jobs` (USAGE_COLUMNS) ended up to `week`; None if none ended in it.

    findings: job_key, code, title, severity of reported ones of all these jobs. gpus: SICK_COLUMNS
    of the week's jobs.
    """
    weeks = weekly_use(jobs, zone_name)
    this, before = weeks.filter(pl.col("week") == week), weeks.filter(pl.col("week") < week)
    if this.is_empty():
        return None
    row = this.row(0, named=True)
    monday = pl.col("end").dt.convert_time_zone(zone_name).dt.truncate("1w").dt.date()
    ledger_jobs = jobs.filter(in_ledger()).with_columns(
        lost_hours().fill_null(0.0).alias(LOST_COLUMN), week=monday
    )
    of_week = ledger_jobs.filter(pl.col("week") == week)
    by_user = of_week.group_by("user").agg(
        jobs=pl.len(), gpu_hours=pl.col("gpu_hours").sum(), lost=pl.sum(LOST_COLUMN)
    )
    worst = (
        by_user.filter(pl.col("lost") > 0).sort("lost", "user", descending=[True, False]).head(TOP)
    )
    hours, lost = (float(before.get_column(name).sum()) for name in ("gpu_hours", "lost"))
    return GroupDigest(
        audience=audience,
        name=name,
        accounts=tuple(sorted(accounts)),
        week=week,
        jobs=of_week.height,
        gpu_hours=row["gpu_hours"],
        lost=row["lost"],
        share=row["lost_share"],
        share_before=lost / hours if hours else None,
        users=tuple(WorstUser(**user) for user in worst.iter_rows(named=True)),
        problems=_problems(ledger_jobs, findings, week),
        sick=_sick(gpus),
        capacity=capacity,
    )


def _problems(jobs: pl.DataFrame, findings: pl.DataFrame, week: date) -> tuple[WeekProblem, ...]:
    """Problems whose jobs lost most, and all new ones."""
    problems = findings.filter(pl.col("severity") == "problem").unique(
        ["job_key", "code"], keep="first"
    )
    of_jobs = problems.join(jobs.select("job_key", "week", LOST_COLUMN), on="job_key")
    earlier = of_jobs.filter(pl.col("week") < week).get_column("code").unique()
    compared = jobs.filter(pl.col("week") < week).height > 0
    by_code = (
        of_jobs.filter(pl.col("week") == week)
        .group_by("code")
        .agg(pl.col("title").first(), jobs=pl.len(), lost=pl.sum(LOST_COLUMN))
        .with_columns(is_new=~pl.col("code").is_in(earlier.implode()) & compared)
        .sort("lost", "jobs", "code", descending=[True, True, False])
        .with_row_index("place")
        .filter((pl.col("place") < TOP) | pl.col("is_new"))
        .drop("place")
    )
    return tuple(WeekProblem(**row) for row in by_code.iter_rows(named=True))


def _sick(gpus: pl.DataFrame) -> tuple[str, ...]:
    """A sentence for each GPU that was critical in a job of the week, or had a critical XID."""
    critical = pl.col("xid_event_max").cast(pl.Int64).is_in(sorted(XID_CRITICAL))
    state = (pl.col("health") == CRIT).fill_null(value=False)
    unhealthy = gpus.filter(critical.fill_null(value=False) | state)
    by_gpu = unhealthy.group_by("node", "gpu").agg(
        jobs=pl.col("job_key").n_unique(),
        xid=pl.col("xid_event_max").filter(critical).max(),
        critical=state.any(),
    )
    lines = []
    for row in by_gpu.sort("node", "gpu").iter_rows(named=True):
        reasons = ["memory errors"] if row["critical"] else []
        if row["xid"] is not None:
            reasons.append(f"XID {int(row['xid'])}, {xid_meaning(int(row['xid']))}")
        lines.append(
            f"{row['node']} GPU {row['gpu']}: {'; '.join(reasons)} (in "
            f"{plural(row['jobs'], 'job')})"
        )
    more = (
        [f"and {plural(len(lines) - MOST_SICK, 'further GPU')}"] if len(lines) > MOST_SICK else []
    )
    return (*lines[:MOST_SICK], *more)


def group_digest_json(digest: GroupDigest) -> dict[str, Any]:
    """Return the digest as JSON."""
    return {
        **asdict(digest),
        "week": week_name(digest.week),
        "trend": digest.trend,
        "subject": digest.subject,
    }
