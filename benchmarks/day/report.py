"""What policies of sharing come to: of synthetic days, and of the jobs of a lake."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from types import MappingProxyType

import numpy as np
import polars as pl

from day.gpu import ACHIEVABLE
from day.jobs import COUNTERS, Application, SampledMixes, SharedDay, cycle_of, day_of, distances, sample_mixes
from day.schedule import PAIR, POLICIES, PlayedDay, Profiles, known_of, permitted, play, set_sharing, true_speeds
from tachograph.catalog.arrays import Flags, Floats, Longs
from tachograph.catalog.config import InterferenceOptions, Thresholds
from tachograph.catalog.counters import COUNTERS_BY_NAME
from tachograph.catalog.devices import Device, match_device
from tachograph.catalog.errors import NotFoundError, UsageError
from tachograph.catalog.units import MI, plural
from tachograph.sharing.demand import H100_NVL


@dataclass(frozen=True, slots=True)
class Tally:
    """What a day came to under one policy. Slowdowns: time a job ran over its time alone.

    makespan_h: from the begin to the last end. held_gpu_hours: of GPUs while a job was on them. per_gpu_hour:
    GPU-hours of work, as alone, done in one of them; 1 is exclusive use. saved_gpu_hours: work less what was held.
    shared: share of the jobs that ever shared. turnaround_h: mean time from arrival to end. slower_10: share of jobs
    slower by > 10 %.
    """

    jobs_finished: int
    makespan_h: float
    held_gpu_hours: float
    per_gpu_hour: float
    saved_gpu_hours: float
    wait_h_mean: float
    turnaround_h: float
    shared: float
    slowdown_mean: float
    slowdown_median: float
    slowdown_p99: float
    slowdown_max: float
    slower_10: float
    slower_50: float


def tally(day: SharedDay, played: PlayedDay) -> Tally:
    """Return what a day came to."""
    slowdown = played.ran_s / day.alone_s
    held = sum((stay.end_s - stay.begin_s) * len(stay.gpus) for stay in played.stays) / 3600
    work = float(day.alone_s @ day.gpus) / 3600
    shared = {job for stay in played.stays if len(stay.jobs) > 1 for job in stay.jobs}
    return Tally(
        jobs_finished=int((played.ran_s > 0).sum()),
        makespan_h=float(played.ends_s.max()) / 3600,
        held_gpu_hours=held,
        per_gpu_hour=work / held,
        saved_gpu_hours=work - held,
        wait_h_mean=float((played.starts_s - day.arrives_s).mean()) / 3600,
        turnaround_h=float((played.ends_s - day.arrives_s).mean()) / 3600,
        shared=len(shared) / day.alone_s.size,
        slowdown_mean=float(slowdown.mean()),
        slowdown_median=float(np.median(slowdown)),
        slowdown_p99=float(np.quantile(slowdown, 0.99)),
        slowdown_max=float(slowdown.max()),
        slower_10=float((slowdown > 1.1).mean()),
        slower_50=float((slowdown > 1.5).mean()),
    )


MOST_KINDS = 1000  # every pair of kinds is looked at, in each draw
ALIKE = 0.05  # runs of one user and name are of one kind if no counter is farther from their mean
FARTHEST = 0.10  # from its job that a sampled mix may be
# why a job is not played, in the order of the checks
NOT_PLAYED: Mapping[str, str] = MappingProxyType(
    {
        "other_model": "ran on another model",
        "running": "still running",
        "times": "not known when they came, or how long they ran",
        "ambiguous": "not known which GPUs were their own",
        "no_samples": "no samples",
        "coverage": "too few of the expected samples",
        "no_counters": "counters of what they did were not measured",
        "model": "GPUs of several models, or of one that is not in the catalogue",
        "too_wide": "want more GPUs than there are",
        "far": f"no sampled mix comes within {100 * FARTHEST:g} points of their means",
    }
)
_NEEDED = ("gr_engine_active_mean", "sm_active_mean", "dram_active_mean", "hbm_used_mib_max")
_PIPES = ("fp32_active_mean", "fp64_active_mean", "tensor_active_mean")  # of which one is needed
_OF_USE = ("sm_occupancy_mean", *_PIPES)  # not compared where no job of the model has them


@dataclass(frozen=True, slots=True)
class RecordedJobs:
    """Jobs as they were recorded, in order of arrival; arrays have a row per job but those of kinds.

    Runs of one user and name that hardly differ are of one kind. gpus: of the cluster. counters: those of COUNTERS that
    were measured. means: (job, counter), of dram_active as a share of what can be achieved. kind_means: the same per
    kind. kind: the place of a job's kind. hbm_bytes: of a kind, the most of any run. left_out: {reason of NOT_PLAYED:
    (jobs, GPU-hours)}.
    """

    device: Device
    gpus: int
    first: datetime
    last: datetime
    arrives_s: Floats
    alone_s: Floats
    wants: Longs
    counters: tuple[str, ...]
    means: Floats
    kind: Longs
    kind_means: Floats
    names: tuple[str, ...]
    hbm_bytes: tuple[float, ...]
    left_out: Mapping[str, tuple[int, float]]

    @property
    def load(self) -> float:
        """GPU-hours of the jobs over those that the GPUs have from the first arrival to the last recorded end."""
        return float(self.alone_s @ self.wants) / (self.gpus * max((self.last - self.first).total_seconds(), 1.0))

    @property
    def not_measured(self) -> tuple[str, ...]:
        """Counters that no job has, and that no mix is therefore compared by."""
        return tuple(name for name in COUNTERS if name not in self.counters)

    def without(self, far: Flags) -> RecordedJobs:
        """Return the same without the jobs that no mix comes near. Errors: UsageError where none is left."""
        if not far.any():
            return self
        if far.all():
            raise UsageError(f"{plural(far.size, 'job')} cannot be played: {NOT_PLAYED['far']}", do="play others")
        jobs = {name: getattr(self, name)[~far] for name in ("arrives_s", "alone_s", "wants", "means", "kind")}
        hours = float(self.alone_s[far] @ self.wants[far]) / 3600
        return replace(self, **jobs, left_out={**self.left_out, "far": (int(far.sum()), hours)})

    def means_of_kind(self, kind: int) -> dict[str, float]:
        """Return its means as columns of job_summaries, in the world of the day: its GPU reaches ACHIEVABLE."""
        names = (f"{name}_mean" for name in self.counters)
        means = dict(zip(names, self.kind_means[kind].tolist(), strict=True))
        return means | {"dram_active_mean": means["dram_active_mean"] * ACHIEVABLE}


def recorded(
    summaries: pl.DataFrame,
    devices: pl.DataFrame,
    *,
    thresholds: Thresholds,
    achievable: float,
    model: str | None = None,
    gpus: int | None = None,
) -> RecordedJobs:
    """Return the jobs among (already filtered) rows of job_summaries that can be played again.

    model: None is the one of most GPU-hours. gpus: None is as many as `devices` has of it. achievable: share of the
    peak bandwidth of memory that can be achieved, at least.
    Errors: NotFoundError for a model that no job ran on; UsageError where no job can be played.
    """
    if summaries.is_empty():
        raise UsageError("the lake has no jobs to play, or the filters leave none", do="see `tachograph jobs`")
    rows = summaries.with_columns(device=_devices(summaries.get_column("gpu_model")))
    rows = rows.with_columns(reason=_reason(thresholds))
    device = _device(rows, model)
    cluster = _gpus_of(devices, device) if gpus is None else gpus
    wide = pl.when(pl.col("gpus") > cluster).then(pl.lit("too_wide"))
    elsewhere = pl.when(pl.col("device") != device.name).then(pl.lit("other_model"))
    rows = rows.with_columns(reason=pl.coalesce(elsewhere, "reason", wide))  # what others lack is of no interest
    played = rows.filter(pl.col("reason").is_null()).sort("submit", "start", "job_key")
    left_out = {
        reason: (jobs, hours or 0.0)
        for reason, jobs, hours in rows.filter(pl.col("reason").is_not_null())
        .group_by("reason")
        .agg(pl.len(), pl.col("gpu_hours").sum())
        .iter_rows()
    }
    if played.is_empty():
        raise _nothing(rows, left_out)
    return _recorded(played, device, cluster, achievable, left_out)


def _devices(models: pl.Series) -> pl.Expr:
    known = {name: device.name for name in models.drop_nulls().unique() if (device := match_device(name)) is not None}
    return pl.col("gpu_model").replace_strict(known, default=None, return_dtype=pl.String)


def _reason(thresholds: Thresholds) -> pl.Expr:
    reasons = {
        "running": pl.col("end").is_null() | (pl.col("state") == "RUNNING"),
        "times": pl.col("submit").is_null() | ~(pl.col("elapsed_s") > 0).fill_null(value=False),
        "ambiguous": pl.col("attribution") == "ambiguous",
        "no_samples": pl.col("samples").fill_null(0) == 0,
        "coverage": pl.col("coverage") < thresholds.low_coverage,
        "no_counters": pl.any_horizontal(
            *(_absent(name) for name in _NEEDED),
            *(_absent(name) & ~_absent(name).all().over("device") for name in _OF_USE),
            pl.all_horizontal(_absent(name) for name in _PIPES),
        ),
        "model": pl.col("device").is_null() | pl.col("gpus").is_null(),
    }
    return pl.coalesce(pl.when(holds).then(pl.lit(reason)) for reason, holds in reasons.items())


def _absent(name: str) -> pl.Expr:
    return pl.col(name).fill_nan(None).is_null()


def _device(rows: pl.DataFrame, model: str | None) -> Device:
    """The requested model, else that of most GPU-hours of those whose jobs can be played."""
    by_hours = (
        rows.filter(pl.col("device").is_not_null())
        .group_by("device")
        .agg(pl.col("reason").is_null().any(), pl.col("gpu_hours").sum())
        .sort("reason", "gpu_hours", "device", descending=[True, True, False])
    )
    names = by_hours.get_column("device").to_list()
    if model is None:
        if not names:
            raise _nothing(rows, {})
        return _known(names[0])
    wanted = match_device(model)
    if wanted is None or wanted.name not in names:
        raise NotFoundError(f"no job ran on {model}", do=f"name one of {', '.join(names)}" if names else "")
    return wanted


def _known(name: str) -> Device:
    device = match_device(name)
    assert device is not None  # its name came from the catalogue
    return device


def _gpus_of(devices: pl.DataFrame, device: Device) -> int:
    models = devices.select("node", "gpu", "model", "hbm_mib").unique(["node", "gpu"]).iter_rows()
    found = sum(
        1 for _, _, model, hbm in models if (one := match_device(model, hbm)) is not None and one.name == device.name
    )
    if not found:
        raise UsageError(f"unknown number of {device.name} in the lake", do="give --gpus")
    return found


def _nothing(rows: pl.DataFrame, left_out: Mapping[str, tuple[int, float]]) -> UsageError:
    """The error with the reason why no job can be played: what was not measured, or what each lacks."""
    absent = rows.select(_absent(name).all() for name in (*_NEEDED, *_PIPES)).row(0, named=True)
    missing = [name for name in _NEEDED if absent[name]]
    if all(absent[name] for name in _PIPES):
        missing += _PIPES
    if missing:
        listed = counters_told(name.removesuffix("_mean").removesuffix("_max") for name in missing)
        return UsageError(
            f"none of {rows.height:,} jobs can be played: no samples of {listed}", do="record these counters"
        )
    why = [f"{left_out[reason][0]:,} {words}" for reason, words in NOT_PLAYED.items() if reason in left_out]
    words = "; ".join(why or [NOT_PLAYED["model"]])
    return UsageError(f"none of {rows.height:,} jobs can be played: {words}")


def counters_told(names: Iterable[str]) -> str:
    """Return counters as those know them who record them.

    >>> counters_told(["sm_active"])
    'sm_active (DCGM_FI_PROF_SM_ACTIVE, 1002)'
    """
    return ", ".join(
        f"{name} (DCGM_FI_{COUNTERS_BY_NAME[name].dcgm_name}, {COUNTERS_BY_NAME[name].dcgm_id})" for name in names
    )


def _recorded(
    played: pl.DataFrame, device: Device, gpus: int, achievable: float, left_out: Mapping[str, tuple[int, float]]
) -> RecordedJobs:
    first, last = played.get_column("submit").min(), played.get_column("end").max()
    assert isinstance(first, datetime)
    assert isinstance(last, datetime)
    most = played.get_column("dram_active_max").max()
    reached = max(achievable, min(1.0, most if isinstance(most, float) else 0.0))
    counters = tuple(name for name in COUNTERS if not played.select(_absent(f"{name}_mean").all()).item())
    of_peak = [reached if name == "dram_active" else 1.0 for name in counters]
    means = np.minimum(played.select(f"{name}_mean" for name in counters).to_numpy() / of_peak, 1.0)
    kind = _kinds(played, means)
    kinds = int(kind.max()) + 1
    if kinds > MOST_KINDS:
        raise UsageError(
            f"{kinds:,} kinds of jobs are more than the {MOST_KINDS:,} that can be played at once",
            do="play fewer: --since, --until, --partition, --user",
        )
    memory = played.get_column("hbm_used_mib_max").to_numpy() * MI
    users, names = (played.get_column(name).fill_null("?").to_list() for name in ("user", "name"))
    begins = [int(np.flatnonzero(kind == one)[0]) for one in range(kinds)]
    return RecordedJobs(
        device=device,
        gpus=gpus,
        first=first,
        last=last,
        arrives_s=(played.get_column("submit") - first).dt.total_microseconds().to_numpy() / 1e6,
        alone_s=played.get_column("elapsed_s").to_numpy().astype(np.float64),
        wants=played.get_column("gpus").to_numpy().astype(np.int64),
        counters=counters,
        means=means,
        kind=kind,
        kind_means=np.stack([means[kind == one].mean(axis=0) for one in range(kinds)]),
        names=tuple(f"{users[at]}/{names[at]}" for at in begins),
        hbm_bytes=tuple(float(memory[kind == one].max()) for one in range(kinds)),
        left_out=left_out,
    )


def _kinds(played: pl.DataFrame, means: Floats) -> Longs:
    """Place of each job's kind: runs of one user and name that hardly differ; else each is a kind of its own."""
    runs: dict[tuple[object, ...], list[int]] = {}
    for at, (key, user, name) in enumerate(played.select("job_key", "user", "name").iter_rows()):
        runs.setdefault((user, name) if name else (key,), []).append(at)
    kind = np.zeros(played.height, np.int64)
    place = 0
    for places in runs.values():
        of = means[places]
        alike = bool((distances(of, of.mean(axis=0)[None]) <= ALIKE).all())
        for at in places:
            kind[at] = place
            place += not alike
        place += alike
    return kind


@dataclass(frozen=True, slots=True)
class SeedSpread:
    """One number over all days."""

    median: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class DayResult:
    """One policy. days: its tallies in the order of seeds. spread: {field of Tally, or makespan_ratio: over the days}.

    makespan_ratio: makespan of exclusive use over that of the policy, of the same day.
    """

    policy: str
    sentence: str
    days: tuple[Tally, ...]
    spread: dict[str, SeedSpread]


@dataclass(frozen=True, slots=True)
class PlayedPolicy:
    """Whose jobs were played again, and how far the sampled mixes are from them.

    distance_median, distance_most: largest difference of any mean of DCGM's counters from that of the mix, over jobs
    and draws; 0.01 is a point. not_compared: counters that no job has. left_out: {why jobs were not played: (jobs,
    GPU-hours)}.
    """

    model: str
    first: datetime
    last: datetime
    kinds: int
    gpu_hours: float
    distance_median: float
    distance_most: float
    not_compared: tuple[str, ...]
    left_out: dict[str, tuple[int, float]]


@dataclass(frozen=True, slots=True)
class DayReport:
    """All policies on the same days, or the recorded jobs of a lake in several draws of what they run."""

    gpus: int
    jobs: int
    load: float
    seeds: tuple[int, ...]
    profiles: Profiles
    max_slowdown: float
    per_gpu: int
    results: tuple[DayResult, ...]
    played: PlayedPolicy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How days are played: by which policies, knowing what, with how many jobs on a GPU at the most."""

    seeds: Sequence[int]
    policies: Sequence[str]
    profiles: Profiles
    settings: InterferenceOptions
    per_gpu: int = PAIR
    progress: Callable[[str, int, int], None] = lambda doing, done, total: None


def build_day_report(how: How, *, gpus: int, jobs: int, load: float) -> DayReport:
    """Return what the policies come to on made-up days; the same for the same numbers."""
    days = [day_of(seed, jobs=jobs, gpus=gpus, load=load) for seed in how.seeds]
    return _report(how, days, gpus=gpus, hbm_bytes=H100_NVL.hbm_bytes or 0.0, load=load)


def build_recorded_report(how: How, jobs: RecordedJobs) -> DayReport:
    """Return what the policies come to with the jobs of a lake, a draw of what they run per seed.

    Errors: UsageError where no sampled mix comes near any job.
    """
    sampled: list[SampledMixes] = []
    for seed in how.seeds:
        how.progress("sample what the jobs run", len(sampled), len(how.seeds))
        sampled.append(sample_mixes(jobs.kind_means, np.random.default_rng((seed, 4)), counters=jobs.counters))
    off = np.stack([distances(jobs.means, one.means[jobs.kind]) for one in sampled])
    far = off.max(axis=0) > FARTHEST
    jobs = jobs.without(far)
    days = [_day(jobs, one, seed) for one, seed in zip(sampled, how.seeds, strict=True)]
    played = PlayedPolicy(
        model=jobs.device.name,
        first=jobs.first,
        last=jobs.last,
        kinds=len(days[0].applications),
        gpu_hours=float(jobs.alone_s @ jobs.wants) / 3600,
        distance_median=float(np.median(off[:, ~far])),
        distance_most=float(off[:, ~far].max()),
        not_compared=jobs.not_measured,
        left_out={words: jobs.left_out[reason] for reason, words in NOT_PLAYED.items() if reason in jobs.left_out},
    )
    found = _report(how, days, gpus=jobs.gpus, hbm_bytes=jobs.device.hbm_mib * MI, load=jobs.load)
    return replace(found, played=played)


def _day(jobs: RecordedJobs, sampled: SampledMixes, seed: int) -> SharedDay:
    """The recorded jobs, each running the mix that was sampled for its kind; kinds without a job are left out."""
    random = np.random.default_rng((seed, 5))
    cycles = [cycle_of(random) for _ in jobs.names]
    kept, kind = np.unique(jobs.kind, return_inverse=True)
    applications = (
        Application(jobs.names[one], sampled.phases(one), jobs.hbm_bytes[one], cycles[one], jobs.means_of_kind(one))
        for one in kept.tolist()
    )
    return SharedDay(tuple(applications), kind.astype(np.int64), jobs.arrives_s, jobs.alone_s, jobs.wants)


def _report(how: How, days: Sequence[SharedDay], *, gpus: int, hbm_bytes: float, load: float) -> DayReport:
    chosen = [policy for policy in POLICIES if policy.code in how.policies]
    needed = {POLICIES[0].code: POLICIES[0], **{one.code: one for one in chosen}}
    tallies: dict[str, list[Tally]] = {code: [] for code in needed}
    for done, (seed, day) in enumerate(zip(how.seeds, days, strict=True)):
        how.progress("play", done, len(days))
        speed = true_speeds(day, seed)
        known = known_of(day, speed, seed=seed, profiles=how.profiles, settings=how.settings)
        sets = None
        if how.per_gpu > PAIR:
            sets = set_sharing(day, seed, most=how.per_gpu, room_bytes=how.settings.safe_hbm * hbm_bytes)
        for policy in needed.values():
            permits = permitted(policy, known, hbm_bytes=hbm_bytes)
            tallies[policy.code].append(tally(day, play(day, permits, speed, gpus=gpus, sets=sets)))
    alone = tallies[POLICIES[0].code]
    results = (
        DayResult(policy.code, policy.sentence, tuple(tallies[policy.code]), _spread(tallies[policy.code], alone))
        for policy in chosen
    )
    return DayReport(
        gpus=gpus,
        jobs=days[0].alone_s.size,
        load=load,
        seeds=tuple(how.seeds),
        profiles=how.profiles,
        max_slowdown=how.settings.max_slowdown,
        per_gpu=how.per_gpu,
        results=tuple(results),
    )


def _spread(days: Sequence[Tally], alone: Sequence[Tally]) -> dict[str, SeedSpread]:
    numbers = {field.name: [float(getattr(day, field.name)) for day in days] for field in fields(Tally)}
    numbers["makespan_ratio"] = [one.makespan_h / day.makespan_h for one, day in zip(alone, days, strict=True)]
    return {name: SeedSpread(float(np.median(values)), min(values), max(values)) for name, values in numbers.items()}
