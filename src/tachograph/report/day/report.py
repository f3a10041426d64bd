"""What advice about sharing GPUs is worth: simulated days under every policy, and how much days differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from tachograph.config import Interference
from tachograph.interference.day.jobs import day_of
from tachograph.interference.day.known import Profiles, known_of
from tachograph.interference.day.policies import POLICIES, permitted
from tachograph.interference.day.simulation import play, true_speeds
from tachograph.interference.day.tally import Tally, tally
from tachograph.interference.demand import H100_NVL


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
class DayReport:
    """All policies on the same days."""

    gpus: int
    jobs: int
    load: float
    seeds: tuple[int, ...]
    profiles: Profiles
    max_slowdown: float
    results: tuple[Result, ...]


def build_day_report(
    *,
    gpus: int,
    jobs: int,
    load: float,
    seeds: Sequence[int],
    policies: Sequence[str],
    profiles: Profiles,
    settings: Interference,
) -> DayReport:
    """Return what the policies come to on the days of these seeds; the same for the same numbers."""
    chosen = [policy for policy in POLICIES if policy.code in policies]
    tallies: dict[str, list[Tally]] = {policy.code: [] for policy in POLICIES}
    for seed in seeds:
        day = day_of(seed, jobs=jobs, gpus=gpus, load=load)
        speed = true_speeds(day, seed)
        known = known_of(day, speed, seed=seed, profiles=profiles, settings=settings)
        for policy in {POLICIES[0].code: POLICIES[0], **{one.code: one for one in chosen}}.values():
            permits = permitted(policy, known, hbm_bytes=H100_NVL.hbm_bytes or 0.0)
            tallies[policy.code].append(tally(day, play(day, permits, speed, gpus=gpus)))
    alone = tallies[POLICIES[0].code]
    results = (
        Result(policy.code, policy.sentence, tuple(tallies[policy.code]), _spread(tallies[policy.code], alone))
        for policy in chosen
    )
    return DayReport(gpus, jobs, load, tuple(seeds), profiles, settings.max_slowdown, tuple(results))


def _spread(days: Sequence[Tally], alone: Sequence[Tally]) -> dict[str, Spread]:
    numbers = {field.name: [float(getattr(day, field.name)) for day in days] for field in fields(Tally)}
    numbers["makespan_ratio"] = [one.makespan_h / day.makespan_h for one, day in zip(alone, days, strict=True)]
    return {name: Spread(float(np.median(values)), min(values), max(values)) for name, values in numbers.items()}
