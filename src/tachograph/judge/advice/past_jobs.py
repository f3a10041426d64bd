"""Past jobs as evidence: what each requested and used, and which are nearest to a request."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import polars as pl

from tachograph.catalog.config import AdviceOptions
from tachograph.catalog.tables import WASTE
from tachograph.judge.activity import number
from tachograph.judge.advice.request import JobRequest, name_pattern
from tachograph.judge.bounds import LEAST_COVERAGE
from tachograph.judge.checks.idle_job import HELD_MIB
from tachograph.judge.partitions import NOT_RECORDED, SitePartitions
from tachograph.pipeline.timelines import ACTIVITY

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow

    class PastJobRow(JobSummaryRow, total=False):
        """Row of job_summaries with how many GPUs were measured, and how many worked."""

        measured: int | None
        used: int | None


Level: TypeAlias = Literal["exact", "pattern", "user"]
LEVELS: tuple[Level, ...] = ("exact", "pattern", "user")
DAY_S = 86400.0
_MOST_RUNS = 50  # the latest of a group count
HANGS = frozenset({"job_hang", "busy_waiting", "stall"})
# columns of the tables that evidence is read from
SUMMARY_COLUMNS = (
    "job_key",
    "seq",
    "job_id",
    "display_id",
    "user",
    "name",
    "account",
    "partition",
    "gpus",
    "nodes",
    "state",
    "submit",
    "start",
    "end",
    "as_of",
    "elapsed_s",
    "timelimit_s",
    "mem_requested_mib",
    "cpus",
    "cpu_efficiency",
    "hbm_request",
    "hbm_used_mib_max",
    "hbm_mib",
    "gpu_model",
    "gpus_seen",
    "coverage",
    "attribution",
    "sm_active_mean",
    "energy_j_estimated",
    "power_w_mean",
    "gpu_hours",
    "qos",
    "exclusive",
    "cluster",
)
GPU_COLUMNS = ("job_key", "hbm_used_mib_max", *(f"{name}_mean" for name in ACTIVITY))


@dataclass(frozen=True, slots=True)
class PastJob:
    """One run of a job that ended. Times: seconds since 1970; None: unknown, or not measured.

    gpus_used: GPUs that worked, or held a loaded program; None where it is not certain of all.
    gpus_worked: those of them that were measured to.
    mem_mib: host memory requested of a node; mem_peak_mib: what its tasks held on one at most, as
    polled. exclusive: it asked for whole nodes; whole_nodes: it had them. recoverable: GPU-hours by
    cause, in the order of WASTE. problems: codes of reported findings; None: it was not judged.
    """

    key: str
    label: str
    user: str
    name: str
    partition: str | None
    gpus: int | None
    nodes: int | None
    state: str | None
    submit: float
    end: float
    elapsed_s: float | None = None
    timelimit_s: float | None = None
    gpus_used: int | None = None
    gpus_worked: int | None = None
    hbm_peak_mib: float | None = None
    hbm_mib: float | None = None
    gpu_model: str | None = None
    hbm_request: str | None = None
    sm_active: float | None = None
    mem_mib: float | None = None
    mem_peak_mib: float | None = None
    cpus: int | None = None
    cpu_efficiency: float | None = None
    energy_j: float | None = None
    power_w: float | None = None
    gpu_hours: float | None = None
    account: str | None = None
    qos: str | None = None
    exclusive: bool | None = None
    whole_nodes: bool | None = None
    cluster: str | None = None
    problems: tuple[str, ...] = ()
    recoverable: tuple[float | None, ...] = ()

    @property
    def hung(self) -> bool:
        """Whether it was judged hung: its run time shows when it was ended, not its work."""
        return not HANGS.isdisjoint(self.problems)

    @property
    def completed(self) -> bool:
        """It ended by itself, with success."""
        return self.state == "COMPLETED"

    @property
    def request(self) -> JobRequest:
        """What it requested: CPUs of a node that was given whole were not."""
        return JobRequest(
            user=self.user,
            name=self.name,
            partition=self.partition,
            account=self.account,
            qos=self.qos,
            gpus=self.gpus,
            nodes=self.nodes,
            cpus=None if self.whole_nodes else self.cpus,
            timelimit_s=self.timelimit_s,
            mem_mib=self.mem_mib,
            constraint=self.hbm_request and f"hbm{self.hbm_request}",
        )


def gpus_of_jobs(gpus: pl.DataFrame, idle_util: float) -> pl.DataFrame:
    """Return per job_key the GPUs with known activity, and those that worked or held a program.

    `gpus`: GPU_COLUMNS of job_gpus. A GPU is idle as in the check gpus_never_used: mean activity
    below `idle_util`.
    """
    activity = pl.coalesce(f"{name}_mean" for name in ACTIVITY)
    loaded = (pl.col("hbm_used_mib_max") >= HELD_MIB).fill_null(value=False)
    return gpus.group_by("job_key").agg(
        measured=activity.count(), used=((activity >= idle_util) | loaded).sum()
    )


def past_jobs(
    summaries: pl.DataFrame,
    gpus: pl.DataFrame,
    *,
    idle_util: float,
    gpus_needed: Mapping[str, int | None] | None = None,
    site: SitePartitions = NOT_RECORDED,
    node_memory: Mapping[str, float] | None = None,
    reported: pl.DataFrame | None = None,
) -> list[PastJob]:
    """Return the runs that ended, with a user and a name, in the order in which they ended.

    `summaries`: SUMMARY_COLUMNS of job_summaries, and `recoverable_<cause>` where they are known;
    `gpus`: GPU_COLUMNS of job_gpus; `gpus_needed`: {job_key: GPUs} where some did not work, see
    gpus_needed; `node_memory`: {job_key: peak of host memory on a node, MiB};
    `reported`: job_key and code of findings.
    """
    named = summaries.filter(
        pl.col("user").is_not_null(), pl.col("name").is_not_null(), pl.col("end").is_not_null()
    ).join(gpus_of_jobs(gpus, idle_util), on="job_key", how="left")
    codes: dict[str, tuple[str, ...]] = {}
    if reported is not None:
        grouped = reported.group_by("job_key").agg(pl.col("code").unique().sort())
        codes = {key: tuple(found) for key, found in grouped.iter_rows()}
    peaks = node_memory or {}
    found = [
        _past_job(
            row,
            peaks.get(row["job_key"]),
            codes.get(row["job_key"], ()),
            (gpus_needed or {}).get(row["job_key"]),
            site,
        )
        for row in cast("Iterator[PastJobRow]", named.iter_rows(named=True))
    ]
    return sorted(found, key=lambda job: (job.end, job.key))


def _past_job(
    row: PastJobRow,
    peak_mib: float | None,
    problems: tuple[str, ...],
    gpus_needed: int | None,
    site: SitePartitions,
) -> PastJob:
    gpus, nodes, coverage = row["gpus"], row["nodes"], number(row, "coverage")
    covered = coverage is not None and coverage >= LEAST_COVERAGE
    measured = (
        covered
        and row["attribution"] != "ambiguous"
        and gpus is not None
        and row["measured"] == gpus
    )
    requested = number(row, "mem_requested_mib")
    user, name, end = row["user"], row["name"], row["end"]
    assert user is not None  # others are left out before
    assert name is not None
    assert end is not None
    return PastJob(
        key=row["job_key"],
        label=row["display_id"] or row["job_id"],
        user=user,
        name=name,
        partition=row["partition"],
        gpus=gpus,
        nodes=nodes,
        state=row["state"],
        submit=_seconds(row["submit"] or row["start"]),
        end=_seconds(end),
        elapsed_s=number(row, "elapsed_s"),
        timelimit_s=number(row, "timelimit_s"),
        gpus_used=gpus if measured and row["used"] == gpus else gpus_needed,
        gpus_worked=row["used"],
        hbm_peak_mib=number(row, "hbm_used_mib_max") if measured else None,
        hbm_mib=number(row, "hbm_mib"),
        gpu_model=row["gpu_model"],
        hbm_request=row["hbm_request"],
        sm_active=number(row, "sm_active_mean") if measured else None,
        mem_mib=requested / nodes if requested is not None and nodes else None,
        mem_peak_mib=peak_mib,
        cpus=row["cpus"],
        cpu_efficiency=number(row, "cpu_efficiency"),
        energy_j=number(row, "energy_j_estimated"),
        power_w=number(row, "power_w_mean"),
        gpu_hours=number(row, "gpu_hours"),
        account=row["account"],
        qos=row["qos"],
        exclusive=site.requests_exclusive(row),
        whole_nodes=site.whole_nodes(row),
        cluster=row["cluster"],
        problems=problems,
        recoverable=tuple(number(row, f"recoverable_{cause}") for cause in WASTE),
    )


def _seconds(moment: datetime) -> float:
    return moment.timestamp()


@dataclass(frozen=True, slots=True)
class PastJobGroup:
    """The past jobs that are nearest to a request, latest first; none: `level` is None.

    jobs: of this level, at most as many as are configured. named: those of the name on any GPUs.
    counted: {level: how many there are}, also of levels with too few. few: where too few are of the
    name and of this number of GPUs, those that are, else those of its pattern, else of its name:
    they show what occurred, not what is needed.
    """

    level: Level | None
    jobs: tuple[PastJob, ...]
    named: tuple[PastJob, ...]
    counted: Mapping[str, int]
    few: tuple[PastJob, ...] = ()

    @property
    def since(self) -> float | None:
        """When the first of them was submitted, in seconds since 1970."""
        return min((job.submit for job in self.jobs), default=None)


class History:
    """Ended jobs, indexed for lookup. They must be added in the order in which they ended."""

    def __init__(self, options: AdviceOptions) -> None:
        self._options = options
        self._groups: dict[tuple[object, ...], deque[PastJob]] = {}

    @classmethod
    def of(cls, jobs: Iterable[PastJob], options: AdviceOptions) -> History:
        """Return the history of these jobs, in whatever order they are given."""
        history = cls(options)
        for job in sorted(jobs, key=lambda job: (job.end, job.key)):
            history.add(job)
        return history

    def add(self, job: PastJob) -> None:
        """Add a job that ended after all others."""
        pattern = name_pattern(job.name)
        for key in (
            ("exact", job.user, job.name, job.partition, job.gpus),
            ("exact", job.user, job.name, None, job.gpus),
            ("pattern", job.user, pattern, None, job.gpus),
            ("named", job.user, job.name),
            ("user", job.user),
        ):
            known = self._groups.get(key)
            if known is None:
                known = self._groups[key] = deque(maxlen=_MOST_RUNS)
            known.append(job)

    def nearest(self, request: JobRequest, now: float) -> PastJobGroup:
        """Return the most similar jobs that ended before `now`, within the configured days.

        The first level with enough runs counts: same user, name, partition and number of GPUs; same
        user, pattern of the name and number of GPUs; same user.
        """
        user, name = request.user, request.name
        if user is None:
            return PastJobGroup(None, (), (), dict.fromkeys(LEVELS, 0), ())
        pattern = None if name is None else name_pattern(name)
        keys: Mapping[Level, tuple[object, ...]] = {
            "exact": ("exact", user, name, request.partition, request.gpus),
            "pattern": ("pattern", user, pattern, None, request.gpus),
            "user": ("user", user),
        }
        recent = {level: self._recent(key, now) for level, key in keys.items()}
        least = self._options.least_runs
        level = next((level for level in LEVELS if len(recent[level]) >= least), None)
        named = self._recent(("named", user, name), now)
        return PastJobGroup(
            level,
            () if level is None else recent[level],
            named,
            {level: len(jobs) for level, jobs in recent.items()},
            () if level in ("exact", "pattern") else recent["exact"] or recent["pattern"] or named,
        )

    def _recent(self, key: tuple[object, ...], now: float) -> tuple[PastJob, ...]:
        since = now - self._options.days * DAY_S
        return tuple(job for job in reversed(self._groups.get(key, ())) if since <= job.end <= now)


def most_common(values: Sequence[float | None]) -> float | None:
    """Return the most frequent value, the largest of several; None without values.

    >>> most_common([1.0, 2.0, 2.0, None]), most_common([])
    (2.0, None)
    """
    counts = Counter(value for value in values if value is not None)
    return max(counts, key=lambda value: (counts[value], value), default=None)


def finished_since(cut: PastJob, ended: Sequence[PastJob], least_runs: int) -> bool:
    """Return whether enough later runs took longer than one that its limit ended, and completed.

    They show how long the job needs: its limit was raised.
    """
    longer = [
        job
        for job in ended
        if job.submit > cut.submit and (job.elapsed_s or 0.0) > (cut.elapsed_s or 0.0)
    ]
    return len(longer) >= least_runs
