"""Groups of similar jobs: which may share, lookup by name, profiled kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, cast

import polars as pl

from tachograph.annexes.share.advice import resource
from tachograph.annexes.share.capacity import device_of
from tachograph.annexes.share.demand import Demand
from tachograph.annexes.share.kernels import Kernel, kernels_of
from tachograph.annexes.share.mixes import COUNTER_OF_PIPE, Mix, busy_of, mix, of_means
from tachograph.annexes.share.nsight.launches import Launch
from tachograph.catalog.columns import must_exist
from tachograph.catalog.config import InterferenceOptions, Thresholds
from tachograph.catalog.counters import COUNTERS_BY_NAME as COUNTERS
from tachograph.catalog.devices import Device, match_device
from tachograph.catalog.errors import InputError, NotFoundError, TachographError, UsageError
from tachograph.catalog.units import MI, plural, printable, text

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow


_WIDEST = 24  # characters of the name of a job group in a table
LEAST_RUNS = 2  # of a job group: a job that ran once may not run again
# Largest difference between a run and the mean of its group, as a fraction of a resource. Ours.
MOST_SPREAD = 0.25
# why a job is excluded, in the order of the checks
LEFT_OUT: Mapping[str, str] = MappingProxyType(
    {
        "running": "still running",
        "ambiguous": "not known which GPUs were their own",
        "no_samples": "no samples",
        "coverage": "too few of the expected samples",
        "model": "GPUs of several models, or of one that is not in the catalogue",
        "no_counters": "counters of what they need were not measured",
        "idle": "did nothing: there is nothing to share, see `tachograph waste`",
        "uneven": "left GPUs idle: release these first, see `tachograph waste`",
        "short": "too short to decide whether they were steady",
        "unsteady": "not steady: the verdict of class `stable` is no",
        "few_runs": "too few runs",
        "spread": "runs of the same name differ too much",
        "near_limit": "near the limit of a resource when running alone",
    }
)
_ACTIVITY = ("gr_engine_active_mean", "gpu_util_mean")
_NEEDED = ("sm_active_mean", "dram_active_mean", "hbm_used_mib_max")
_LEFT_OUT = ("job_key", "job_id", "display_id", "user", "name", "gpu_hours", "reason")
_PIPES = tuple(f"{counter}_mean" for counter in COUNTER_OF_PIPE.values())
_WHO = ("job_key", "job_id", "display_id", "array_job_id", "user", "name")
_READ = (
    *_WHO,
    "gpu_model",
    "gpus",
    "gpu_hours",
    "elapsed_s",
    "hbm_mib",
    *_ACTIVITY,
    *_NEEDED,
    *_PIPES,
    "sm_occupancy_mean",
)


@dataclass(frozen=True, slots=True)
class GroupProfile:
    """Results of reports of Nsight Compute for a job group.

    mix: its kernels, weighted by their time. kernels, launches, seconds: of all. apart: sentences
    on what was left out, and on values far from the means of the lake.
    """

    reports: tuple[str, ...]
    mix: Mix
    kernels: int
    launches: int
    seconds: float
    apart: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobGroup:
    """Recurring jobs of one user and name, on the same number of GPUs of one model.

    Without a name a job is a group of its own. array: where runs of one name differ too much, tasks
    of one array are a group of their own. busy: share of the time of the busiest run in which its
    GPUs did anything. mix: its runs, as recorded. spread: largest difference between a run and the
    mean of all, and its resource. jobs: ids, newest last. hbm_mib: memory of its GPUs as reported,
    the least; else as catalogued.
    """

    user: str | None
    name: str | None
    device: Device
    gpus: int
    runs: int
    gpu_hours: float
    busy: float
    mix: Mix
    spread: float
    spread_of: str
    jobs: tuple[str, ...]
    hbm_mib: float
    array: str | None = None
    profile: GroupProfile | None = None

    @property
    def demand(self) -> Demand:
        """Its demand while busy: of its profiled kernels, else of its most demanding run."""
        return self.profile.mix.mean if self.profile else self.mix.highest

    @property
    def run_h(self) -> float:
        """Hours that a run took, on average."""
        return self.gpu_hours / (self.gpus * self.runs)

    @property
    def label(self) -> str:
        """Label user/name, with the array if any; for a job without name, its id."""
        return _label(self.user, self.name, self.array) or self.jobs[-1]

    @property
    def name_of_all(self) -> str | None:
        """The same without the array; None for a job without a name."""
        return _label(self.user, self.name, None)


@dataclass(frozen=True, slots=True)
class GroupCandidates:
    """Job groups that may share, most GPU-hours first; excluded jobs with reasons.

    left_out: one row per job: job_key, job_id, display_id, user, name, gpu_hours, reason.
    """

    kinds: tuple[JobGroup, ...]
    left_out: pl.DataFrame

    def reasons(self) -> list[tuple[str, int, float]]:
        """Return (reason, jobs, known GPU-hours) in the order of LEFT_OUT, without empty ones."""
        by_reason = self.left_out.group_by("reason").agg(pl.len(), pl.col("gpu_hours").sum())
        by = {reason: (jobs, hours) for reason, jobs, hours in by_reason.iter_rows()}
        return [(reason, *by[reason]) for reason in LEFT_OUT if reason in by]


def candidates(
    summaries: pl.DataFrame,
    verdicts: pl.DataFrame,
    *,
    settings: InterferenceOptions,
    thresholds: Thresholds,
    achievable: Mapping[str, float],
    least_runs: int = LEAST_RUNS,
) -> GroupCandidates:
    """Return the job groups among (already filtered) rows of job_summaries that could share a GPU.

    `verdicts`: rows of findings with job_key, code, verdict, those of the class `stable` among
    them. `achievable`: {model: share of the peak bandwidth of memory that can be achieved}.
    """
    steady = (
        verdicts.filter(pl.col("code") == "stable")
        .select("job_key", steady="verdict")
        .unique("job_key")
    )
    jobs = summaries.join(steady, on="job_key", how="left", maintain_order="left")
    jobs = jobs.with_columns(reason=_reason(_known_models(jobs), thresholds)).sort(
        "start", "job_key"
    )
    kinds = []
    refused: dict[str, str] = {}
    possible = jobs.filter(pl.col("reason").is_null()).select(_READ)
    for kind, rows in _kinds(cast("Iterator[JobSummaryRow]", possible.iter_rows(named=True))):
        reason = _why_not(kind, settings, achievable[kind.device.name], least_runs)
        if reason is None:
            kinds.append(kind)
        else:
            refused |= {row["job_key"]: reason for row in rows}
    of_kind = pl.col("job_key").replace_strict(refused, default=None, return_dtype=pl.String)
    jobs = jobs.with_columns(reason=pl.coalesce("reason", of_kind)).filter(
        pl.col("reason").is_not_null()
    )
    kinds.sort(key=lambda kind: (-kind.gpu_hours, kind.label, kind.device.name, kind.gpus))
    return GroupCandidates(tuple(kinds), jobs.select(_LEFT_OUT))


def short_label(kind: JobGroup) -> str:
    """Return the table label of a job group, truncated if long, starred if profiled."""
    name = printable(kind.label)
    return (name if len(name) <= _WIDEST else f"{name[: _WIDEST - 1]}…") + (
        "*" if kind.profile else ""
    )


def missing_counters(summaries: pl.DataFrame) -> list[str]:
    """Return required counters that no job has, with DCGM's names and numbers."""

    def absent(*columns: str) -> bool:
        return bool(summaries.select(pl.all_horizontal(pl.col(columns).is_null().all())).item())

    columns = [name for name in _NEEDED if absent(name)]
    columns += [name for name in _PIPES if absent(*_PIPES)]
    columns += list(_ACTIVITY[:1]) if absent(*_ACTIVITY) else []
    names = (column.removesuffix("_mean").removesuffix("_max") for column in columns)
    return [
        f"{name} (DCGM_FI_{COUNTERS[name].dcgm_name}, {COUNTERS[name].dcgm_id})" for name in names
    ]


def _known_models(summaries: pl.DataFrame) -> list[str]:
    models = summaries.get_column("gpu_model").drop_nulls().unique()
    return [model for model in models if match_device(model) is not None]


def _reason(models: Sequence[str], thresholds: Thresholds) -> pl.Expr:
    """Reason to exclude a single job; null if it is included."""
    busy = pl.coalesce(pl.col(name).fill_nan(None) for name in _ACTIVITY)
    unmeasured = pl.any_horizontal(pl.col(name).is_null() for name in _NEEDED)
    no_pipe = pl.all_horizontal(pl.col(name).is_null() for name in _PIPES)
    uneven = (pl.col("gpus_never_used") > 0) | (
        pl.col("spatial_imbalance") > thresholds.spatial_imbalance
    )
    reasons = {
        "running": pl.col("end").is_null() | (pl.col("state") == "RUNNING"),
        "ambiguous": pl.col("attribution") == "ambiguous",
        "no_samples": pl.col("samples").fill_null(0) == 0,
        "coverage": pl.col("coverage").fill_null(0.0) < thresholds.low_coverage,
        "model": ~pl.col("gpu_model").is_in(models).fill_null(value=False)
        | pl.col("gpus").is_null(),
        "no_counters": unmeasured | no_pipe | busy.is_null() | pl.col("gpu_hours").is_null(),
        "idle": busy < thresholds.idle_util,
        "uneven": uneven.fill_null(value=False),
        "short": pl.col("steady").fill_null("unknown") == "unknown",
        "unsteady": pl.col("steady") == "no",
    }
    return pl.coalesce(pl.when(holds).then(pl.lit(reason)) for reason, holds in reasons.items())


def _label(user: str | None, name: str | None, array: str | None) -> str | None:
    if not name:
        return None
    label = f"{user or '?'}/{name}"
    return f"{label}[{array}]" if array else label


def _kinds(runs: Iterable[JobSummaryRow]) -> Iterator[tuple[JobGroup, list[JobSummaryRow]]]:
    """Job groups with their runs; groups that vary too much are split by array."""
    for rows in _grouped(
        runs,
        lambda row: (
            (row["user"], row["name"]) if row["name"] else row["job_key"],
            row["gpu_model"],
            row["gpus"],
        ),
    ):
        whole = _kind(rows)
        if whole.spread <= MOST_SPREAD:
            yield whole, rows
            continue
        for part in _grouped(rows, lambda row: row["array_job_id"]):
            yield _kind(part, array=part[0]["array_job_id"]), part


def _grouped(
    rows: Iterable[JobSummaryRow], key: Callable[[JobSummaryRow], Any]
) -> list[list[JobSummaryRow]]:
    groups: dict[Any, list[JobSummaryRow]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.values())


def _kind(rows: Sequence[JobSummaryRow], *, array: str | None = None) -> JobGroup:
    first = rows[0]
    device, gpus = match_device(first["gpu_model"]), first["gpus"]
    assert device is not None  # others are left out before
    assert gpus is not None
    jobs = tuple(str(row["display_id"] or row["job_id"]) for row in rows)
    demands = [of_means(row) for row in rows]
    busy = [busy_of(row) or 0.0 for row in rows]
    hours = [row["gpu_hours"] or 0.0 for row in rows]
    label = _label(first["user"], first["name"], array) or jobs[0]
    mixed = mix(demands, hours if any(hours) else [1.0] * len(rows), name=label)
    mean_busy = math.fsum(share * run for (share, _), run in zip(mixed.members, busy, strict=True))
    spreads = {"busy": _farthest(busy, mean_busy)}
    for name in ("dram", "sm_share"):
        values = [getattr(demand, name) for demand in demands]
        spreads[name] = _farthest(values, getattr(mixed.mean, name))
    for pipe, mean in mixed.mean.cycles.items():
        spreads[pipe] = _farthest([demand.cycles.get(pipe) for demand in demands], mean)
    spread_of = max(spreads, key=lambda name: (spreads[name], name))
    return JobGroup(
        user=first["user"],
        name=first["name"] or None,
        device=device,
        gpus=gpus,
        runs=len(rows),
        gpu_hours=math.fsum(hours),
        busy=max(busy),
        mix=mixed,
        spread=spreads[spread_of],
        spread_of=spread_of,
        jobs=jobs,
        hbm_mib=min((row["hbm_mib"] for row in rows if row["hbm_mib"]), default=device.hbm_mib),
        array=array,
    )


def _farthest(values: Sequence[float | None], mean: float | None) -> float:
    """Return the largest difference between a known value and the mean."""
    if mean is None:
        return 0.0
    return max((abs(value - mean) for value in values if value is not None), default=0.0)


def _why_not(
    kind: JobGroup, settings: InterferenceOptions, achievable: float, least_runs: int
) -> str | None:
    if kind.runs < least_runs:
        return "few_runs"
    if kind.spread > MOST_SPREAD:
        return "spread"
    highest = kind.mix.highest
    if (highest.hbm_bytes or 0.0) > settings.safe_hbm * kind.hbm_mib * MI:
        return "near_limit"
    rarely = kind.busy <= settings.max_slowdown - 1  # the other can have the GPU nearly always
    bandwidth = (highest.dram or 0.0) / achievable
    pipes = max(highest.cycles.values(), default=0.0)
    full = bandwidth >= settings.safe_dram or pipes > settings.safe_cycles
    return "near_limit" if full and not rarely else None


def is_called(kind: JobGroup, name: str) -> bool:
    """Return whether `name` is a job group, with or without array, or the id of its jobs."""
    return name in (kind.label, kind.name_of_all) or name in kind.jobs


def named(groups: GroupCandidates, name: str) -> list[JobGroup]:
    """Return the job groups of `name`: user/name, or the id of a job.

    Errors: UsageError for an excluded group, with the reason; NotFoundError for an unknown one.
    """
    kinds = [kind for kind in groups.kinds if is_called(kind, name)]
    if kinds:
        return kinds
    called = pl.concat_str(pl.col("user").fill_null("?"), pl.lit("/"), pl.col("name").fill_null(""))
    mine = groups.left_out.filter(
        (called == name) | (pl.col("display_id") == name) | (pl.col("job_id") == name)
    )
    if mine.is_empty():
        labels = [kind.label for kind in groups.kinds]
        must_exist([name], labels, what="job group")
        raise NotFoundError(f"no job group {name!r}", do="write user/name, or the id of a job")
    reasons = dict.fromkeys(LEFT_OUT[reason] for reason in mine.get_column("reason"))
    raise UsageError(
        f"{name} cannot be judged: {'; '.join(reasons)}", do="name another, or see --help"
    )


MOST_KERNELS = 16  # of a profile, those of most time: the others are left out
MOST_APART = 0.15  # fraction of a resource, between a profile and the means of the lake. Ours

# launches of a file or a folder. Errors: InputError where nothing can be read of it
LaunchReader = Callable[[str], Sequence[Launch]]


@dataclass(frozen=True, slots=True)
class GivenProfile:
    """An Nsight Compute report and its job group: user/name, a job id, or a pattern.

    source: of several for one group, those of the first source count. Only at the command a missing
    job group is an error; those of a job were attached to it.
    """

    kind: str
    report: str
    source: Literal["command", "configuration", "job"] = "command"


_SOURCES = ("command", "configuration", "job")


def profiled(
    groups: GroupCandidates, profiles_given: Sequence[GivenProfile], read: LaunchReader
) -> tuple[GroupCandidates, tuple[str, ...]]:
    """Return the job groups with their profiles, and a line with the reason per unused profile.

    Several reports of a group add up. Errors: that of the first profile on the command line, if
    none of those is usable.
    """
    problems = [*_of_nothing(groups, profiles_given)]

    @cache
    def launches_of(report: str) -> Sequence[Launch]:
        try:
            return read(report)
        except InputError as problem:
            problems.append(problem)
            return ()

    kinds = []
    for kind in groups.kinds:
        profiles = _first_source([profile for profile in profiles_given if _is_of(kind, profile)])
        reports = dict.fromkeys(profile.report for profile in profiles)
        usable = [report for report in reports if launches_of(report)]
        group = kind
        try:
            if usable:
                group = replace(kind, profile=profile_of(kind, usable, launches_of))
        except TachographError as problem:
            problems.append(problem)
        kinds.append(group)
    by_command = any(profile.source == "command" for profile in profiles_given)
    if by_command and problems and not any(kind.profile for kind in kinds):
        raise problems[0]
    return replace(groups, kinds=tuple(kinds)), tuple(dict.fromkeys(map(str, problems)))


def _first_source(profiles_given: Sequence[GivenProfile]) -> list[GivenProfile]:
    """The profiles of the first source that has any."""
    for source in _SOURCES:
        profiles = [profile for profile in profiles_given if profile.source == source]
        if profiles:
            return profiles
    return []


def _is_of(kind: JobGroup, profile: GivenProfile) -> bool:
    return _is_meant(profile.kind, (kind.label, kind.name_of_all), kind.jobs)


def _is_meant(written: str, labels: Iterable[str | None], jobs: Collection[str]) -> bool:
    """Whether a job group of these labels and job ids is written, or a pattern that fits it."""
    pattern = written.replace("[", "[[]")  # of an array, no set of letters
    return written in jobs or any(label and fnmatchcase(label, pattern) for label in labels)


def reports_given(row: JobSummaryRow, profiles: Mapping[str, str]) -> tuple[str, ...]:
    """Return the reports of {job group: report} for the group of a job_summaries row.

    >>> job = {"user": "ann", "name": "qmc", "display_id": "7", "job_id": "7", "array_job_id": None}
    >>> reports_given(job, {"ann/q*": "qmc.ncu-rep", "ann/other": "other.ncu-rep", "7": "seven.ncu-rep"})
    ('qmc.ncu-rep', 'seven.ncu-rep')
    """
    user, name = row["user"], row["name"]
    labels = (_label(user, name, None), _label(user, name, row["array_job_id"]))
    jobs = (row["display_id"], row["job_id"])
    reports = [report for kind, report in profiles.items() if _is_meant(kind, labels, jobs)]
    return tuple(dict.fromkeys(reports))


def _of_nothing(
    groups: GroupCandidates, profiles: Sequence[GivenProfile]
) -> Iterator[TachographError]:
    """Why profiles of the command line match no evaluated job group."""
    for profile in profiles:
        if profile.source != "command" or any(_is_of(kind, profile) for kind in groups.kinds):
            continue
        try:
            named(groups, profile.kind)
        except TachographError as problem:
            yield type(problem)(problem.what, where=f"--profile {profile.kind}", do=problem.do)


def profile_of(kind: JobGroup, reports: Sequence[str], launches_of: LaunchReader) -> GroupProfile:
    """Return the results of reports for a job group.

    Errors: UsageError for another GPU; InputError without kernel durations or issue slots.
    """
    names = ", ".join(reports)
    kernels = kernels_of(chain.from_iterable(map(launches_of, reports)))
    here = [kernel for kernel in kernels if _ran_on(kernel, kind.device)]
    if not here:
        raise UsageError(
            (
                f"these kernels ran on {_gpus(kernels)}, not on {kind.device.name}, "
                f"{kind.device.sms} SMs"
            ),
            where=names,
            do="profile a job on the GPU it runs on",
        )
    timed = [kernel for kernel in here if kernel.seconds]
    if not timed:
        raise InputError(
            "no kernel has a duration, so its share of the job is unknown",
            where=names,
            do="collect gpu__time_duration.sum: ncu --set full does",
        )
    if not any("issue" in kernel.demand.cycles for kernel in timed):
        raise InputError(
            "the profile has no issue slots, which the estimate needs",
            where=names,
            do="collect sm__inst_issued.avg.per_cycle_active: ncu --set full does",
        )
    mixed = _mixed(kind, timed)
    return GroupProfile(
        reports=tuple(reports),
        mix=mixed,
        kernels=len(timed),
        launches=sum(kernel.launches for kernel in timed),
        seconds=math.fsum(kernel.seconds or 0.0 for kernel in timed),
        apart=(
            *_left_out(kind, len(kernels) - len(here), len(here) - len(timed)),
            *_differences(kind, timed),
        ),
    )


def _ran_on(kernel: Kernel, device: Device) -> bool:
    """Whether it ran there: by chip name, or by SMs if the catalogue lacks it (slices)."""
    catalogued = device_of(kernel.chip)
    return (
        catalogued.name == device.name if catalogued is not None else kernel.gpu.sms == device.sms
    )


def _gpus(kernels: Sequence[Kernel]) -> str:
    names: dict[str, None] = {}
    for kernel in kernels:
        sms = "" if kernel.gpu.sms is None else f", {kernel.gpu.sms} SMs"
        names[f"{kernel.gpu.name}{sms}"] = None
    return " and ".join(names)


def _mixed(kind: JobGroup, timed: Sequence[Kernel]) -> Mix:
    """Return the longest kernels as the mix of a job, weighted by the time of all launches."""
    longest = timed[:MOST_KERNELS]
    demands = [
        replace(kernel.demand, seconds=(kernel.seconds or 0.0) / kernel.launches)
        for kernel in longest
    ]
    return mix(demands, [kernel.seconds or 0.0 for kernel in longest], name=kind.label)


def _left_out(kind: JobGroup, elsewhere: int, timeless: int) -> Iterator[str]:
    """A sentence for each reason for which kernels of the reports are not counted."""
    if elsewhere:
        yield f"{kind.label}: {plural(elsewhere, 'kernel')} of another GPU left out"
    if timeless:
        yield (
            f"{kind.label}: {plural(timeless, 'kernel')} left out without a duration in the reports"
        )


def _differences(kind: JobGroup, timed: Sequence[Kernel]) -> Iterator[str]:
    """A sentence for each resource in which the kernels and the means of the lake differ much."""
    lake = kind.mix.mean
    seconds = [kernel.seconds or 0.0 for kernel in timed]
    whole = mix([kernel.demand for kernel in timed], seconds, name=kind.label).mean
    pairs = {
        "the peak memory bandwidth": (whole.dram, lake.dram),
        "the SMs": (whole.sm_share, lake.sm_share),
    }
    for pipe in COUNTER_OF_PIPE:
        pairs[f"the {resource(pipe)}"] = (whole.cycles.get(pipe), lake.cycles.get(pipe))
    for name, (of_kernels, of_lake) in pairs.items():
        if of_kernels is None or of_lake is None or abs(of_kernels - of_lake) <= MOST_APART:
            continue
        yield (
            f"{kind.label}: its kernels take {text(of_kernels, 'fraction')} of {name}, its jobs "
            f"{text(of_lake, 'fraction')}: the profile may not be of this job"
        )
