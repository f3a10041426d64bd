"""What advice about sharing GPUs is worth: simulated days under every policy, and how much days differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime

import numpy as np

from tachograph.config import Interference
from tachograph.interference.day.drawn import Drawn, distances, draw
from tachograph.interference.day.jobs import Application, Day, cycle_of, day_of
from tachograph.interference.day.known import Profiles, known_of
from tachograph.interference.day.policies import POLICIES, permitted
from tachograph.interference.day.simulation import PAIR, crowd_of, play, true_speeds
from tachograph.interference.day.tally import Tally, tally
from tachograph.interference.demand import H100_NVL
from tachograph.report.day.recorded import FARTHEST, NOT_PLAYED, Recorded
from tachograph.units import MI


@dataclass(frozen=True, slots=True)
class Spread:
    """One number over all days."""

    median: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Result:
    """One policy. days: its tallies in the order of seeds. spread: {field of Tally, or makespan_ratio: over the days}.

    makespan_ratio: makespan of exclusive use over that of the policy, of the same day.
    """

    policy: str
    sentence: str
    days: tuple[Tally, ...]
    spread: dict[str, Spread]


@dataclass(frozen=True, slots=True)
class Played:
    """Whose jobs were played again, and how far the drawn mixes are from them.

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
    results: tuple[Result, ...]
    played: Played | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How days are played: by which policies, knowing what, with how many jobs on a GPU at the most."""

    seeds: Sequence[int]
    policies: Sequence[str]
    profiles: Profiles
    settings: Interference
    per_gpu: int = PAIR
    tell: Callable[[str, int, int], None] = lambda doing, done, total: None


def build_day_report(how: How, *, gpus: int, jobs: int, load: float) -> DayReport:
    """Return what the policies come to on made-up days; the same for the same numbers."""
    days = [day_of(seed, jobs=jobs, gpus=gpus, load=load) for seed in how.seeds]
    return _report(how, days, gpus=gpus, hbm_bytes=H100_NVL.hbm_bytes or 0.0, load=load)


def build_recorded_report(how: How, jobs: Recorded) -> DayReport:
    """Return what the policies come to with the jobs of a lake, a draw of what they run per seed.

    Errors: UsageError where no drawn mix comes near any job.
    """
    drawn: list[Drawn] = []
    for seed in how.seeds:
        how.tell("draw what the jobs run", len(drawn), len(how.seeds))
        drawn.append(draw(jobs.kind_means, np.random.default_rng((seed, 4)), counters=jobs.counters))
    off = np.stack([distances(jobs.means, one.means[jobs.kind]) for one in drawn])
    far = off.max(axis=0) > FARTHEST
    jobs = jobs.without(far)
    days = [_day(jobs, one, seed) for one, seed in zip(drawn, how.seeds, strict=True)]
    played = Played(
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


def _day(jobs: Recorded, drawn: Drawn, seed: int) -> Day:
    """The recorded jobs, each running the mix that was drawn for its kind; kinds without a job are left out."""
    random = np.random.default_rng((seed, 5))
    cycles = [cycle_of(random) for _ in jobs.names]
    kept, kind = np.unique(jobs.kind, return_inverse=True)
    applications = (
        Application(jobs.names[one], drawn.phases(one), jobs.hbm_bytes[one], cycles[one], jobs.means_of_kind(one))
        for one in kept.tolist()
    )
    return Day(tuple(applications), kind.astype(np.int64), jobs.arrives_s, jobs.alone_s, jobs.wants)


def _report(how: How, days: Sequence[Day], *, gpus: int, hbm_bytes: float, load: float) -> DayReport:
    chosen = [policy for policy in POLICIES if policy.code in how.policies]
    needed = {POLICIES[0].code: POLICIES[0], **{one.code: one for one in chosen}}
    tallies: dict[str, list[Tally]] = {code: [] for code in needed}
    for done, (seed, day) in enumerate(zip(how.seeds, days, strict=True)):
        how.tell("play", done, len(days))
        speed = true_speeds(day, seed)
        known = known_of(day, speed, seed=seed, profiles=how.profiles, settings=how.settings)
        crowd = None
        if how.per_gpu > PAIR:
            crowd = crowd_of(day, seed, most=how.per_gpu, room_bytes=how.settings.safe_hbm * hbm_bytes)
        for policy in needed.values():
            permits = permitted(policy, known, hbm_bytes=hbm_bytes)
            tallies[policy.code].append(tally(day, play(day, permits, speed, gpus=gpus, crowd=crowd)))
    alone = tallies[POLICIES[0].code]
    results = (
        Result(policy.code, policy.sentence, tuple(tallies[policy.code]), _spread(tallies[policy.code], alone))
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


def _spread(days: Sequence[Tally], alone: Sequence[Tally]) -> dict[str, Spread]:
    numbers = {field.name: [float(getattr(day, field.name)) for day in days] for field in fields(Tally)}
    numbers["makespan_ratio"] = [one.makespan_h / day.makespan_h for one, day in zip(alone, days, strict=True)]
    return {name: Spread(float(np.median(values)), min(values), max(values)) for name, values in numbers.items()}
