"""A search for class settings on labelled jobs: split, search, scores on both sides."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tachograph.catalog.config import ClassOptions
from tachograph.catalog.errors import UsageError
from tachograph.judge.accuracy import Answers, Truths, VerdictScore, score_verdicts
from tachograph.judge.classes.characteristics import GPU, HOST, Characteristic
from tachograph.judge.classes.inputs import HOST_SUFFIX
from tachograph.judge.job_classes import CLASS_BY_CODE
from tachograph.judge.tune.population import HANG_PLACES, NOT_APPLICABLE, Population, base, candidates

TEST_SHARE = 0.3
BY = ("user", "time")


def by_user(users: Sequence[str | None]) -> NDArray[np.bool_]:
    """Return which jobs are for the test: whole users, in the order of a hash of their names, up to 30 % of the jobs.

    No user has jobs on both sides, so habits of one user are not measured with what they taught. Jobs without a user
    count as those of one user.
    Errors: UsageError where all jobs are of one user.
    """
    jobs = Counter(users)
    if len(jobs) < 2:
        raise UsageError("all labelled jobs are of one user", do="label jobs of others too, or use --split time")
    ordered = sorted(jobs, key=lambda user: hashlib.sha256(repr(user).encode()).digest())
    chosen: set[str | None] = set()
    for user in ordered:
        if sum(jobs[each] for each in chosen) + jobs[user] <= TEST_SHARE * len(users):
            chosen.add(user)
    if not chosen:  # few users: the one with the fewest jobs
        chosen.add(min(ordered, key=lambda user: jobs[user]))
    return np.array([user in chosen for user in users], np.bool_)


def by_time(starts: Sequence[datetime]) -> NDArray[np.bool_]:
    """Return which jobs are for the test: the last 30 %, those that start at one moment on one side.

    Errors: UsageError where all start at one moment.
    """
    edge = sorted(starts)[min(len(starts) - 1, int((1 - TEST_SHARE) * len(starts)))] if starts else None
    test = np.array([edge is not None and start >= edge for start in starts], np.bool_)
    if not starts or test.all():
        raise UsageError("the labelled jobs do not differ in when they started", do="label more jobs")
    return test


FACTORS = (0.1, 0.2, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0, 10.0)
ROUNDS = 6
THRESHOLDS = ("theta", "level", "busy")
Move = Callable[[ClassOptions], Iterator[ClassOptions]]
Answering = Callable[[ClassOptions], Mapping[str, Answers]]  # settings -> {class: verdict of each labelled job}


class Standing(NamedTuple):
    """How good settings are; the lower the better, the first that differs decides.

    `excess`: false alarms beyond the bound, of all classes. `cost`: labels whose verdict is not the right one, those
    that cannot be decided too, and one for each setting that is not the built-in one: a change has to save more than a
    single label. `alarms`: false alarms.
    """

    excess: int
    cost: int
    alarms: int


@dataclass(frozen=True, slots=True)
class Space:
    """What may be chosen. `theta`, `level`, `busy`: {characteristic: built-in value}; `sets`: {class: (built-in, all)}.

    `hang_minutes`: values of T to try; none: it stays.
    """

    theta: Mapping[str, float]
    level: Mapping[str, float]
    busy: Mapping[str, float]
    sets: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
    hang_minutes: Sequence[float] = ()

    def settings(self, base: ClassOptions) -> ClassOptions:
        """Return the built-in settings, written out, in place of those of `base`."""
        return msgspec.structs.replace(
            base,
            theta=dict(self.theta),
            level=dict(self.level),
            busy=dict(self.busy),
            characteristics={code: names for code, (names, _) in self.sets.items()},
        )

    def moves(self) -> list[Move]:
        """Return the moves, each from settings to what may be in their place."""
        found: list[Move] = [partial(_longer, minutes=minutes) for minutes in self.hang_minutes]
        found += [
            partial(_values, key=key, name=name, built_in=built_in)
            for key in THRESHOLDS
            for name, built_in in getattr(self, key).items()
        ]
        found += [
            partial(_toggled, code=code, name=name, every=every)
            for code, (_, every) in self.sets.items()
            for name in every
        ]
        return found

    def changes(self, settings: ClassOptions) -> int:
        """Return how many settings are not the built-in ones."""
        values = sum(
            int(getattr(settings, key)[name] != built_in)
            for key in THRESHOLDS
            for name, built_in in getattr(self, key).items()
        )
        sets = sum(len(set(settings.characteristics[code]) ^ set(names)) for code, (names, _) in self.sets.items())
        return values + sets


def class_space(codes: Sequence[str], *, hang_minutes: Sequence[float] = ()) -> Space:
    """Return what may be chosen for some classes, with the built-in values."""
    sets, used = {}, set[str]()
    for code in codes:
        job_class = CLASS_BY_CODE[code]
        built_in = job_class.host if code.endswith(HOST_SUFFIX) else job_class.gpu
        every = candidates(job_class, code)
        sets[code] = (tuple(name for name in every if name in built_in), every)
        used |= {*every} if job_class.code in HANG_PLACES else set()
    both: Mapping[str, Characteristic] = {**HOST, **GPU}
    hung = {name: both[name] for name in both if name in used}
    idle = {name for code in codes if code.startswith("idle_") for name in sets[code][1]}
    busy = {name: c.busy for name, c in both.items() if name in idle and c.busy is not None}
    return Space(
        theta={name: c.theta for name, c in hung.items()},
        level={name: c.level for name, c in hung.items() if c.level is not None and name in GPU},
        busy=busy,
        sets=MappingProxyType(sets),
        hang_minutes=hang_minutes,
    )


def _longer(now: ClassOptions, *, minutes: float) -> Iterator[ClassOptions]:
    yield msgspec.structs.replace(now, hang_minutes=minutes)


def _values(now: ClassOptions, *, key: str, name: str, built_in: float) -> Iterator[ClassOptions]:
    for factor in FACTORS:
        value = float(f"{built_in * factor:.3g}")
        if value != getattr(now, key)[name]:
            yield msgspec.structs.replace(now, **{key: {**getattr(now, key), name: value}})


def _toggled(now: ClassOptions, *, code: str, name: str, every: Sequence[str]) -> Iterator[ClassOptions]:
    there = set(now.characteristics[code]) ^ {name}
    if there:
        names = tuple(each for each in every if each in there)
        yield msgspec.structs.replace(now, characteristics={**now.characteristics, code: names})


def search(
    start: ClassOptions,
    space: Space,
    answering: Answering,
    truths: Mapping[str, tuple[Truths, Truths]],
    *,
    max_false_positives: float,
    progress: Callable[[int, int], None] | None = None,
) -> ClassOptions:
    """Return the best settings found from `start` on.

    `truths`: {class: (which labelled jobs count, whether they are of the class)}. `max_false_positives`: of the jobs
    that count and are not of the class, the share that may get a false alarm; for each class.
    """
    best = start
    at = standing(best, space, answering, truths, max_false_positives)
    for number in range(ROUNDS):
        before = best
        moves = space.moves()
        for done, move in enumerate(moves):
            if progress is not None:
                progress(number * len(moves) + done, ROUNDS * len(moves))
            for other in move(best):
                here = standing(other, space, answering, truths, max_false_positives)
                if here < at:
                    best, at = other, here
        if best == before:
            break
    return best


def standing(
    settings: ClassOptions,
    space: Space,
    answering: Answering,
    truths: Mapping[str, tuple[Truths, Truths]],
    max_false_positives: float,
) -> Standing:
    """Return how good settings are."""
    answers = answering(settings)
    scores = [score_verdicts(answers[code][counts], truth[counts]) for code, (counts, truth) in truths.items()]
    return Standing(
        sum(max(0, each.false_positives - allowed(each, max_false_positives)) for each in scores),
        sum(each.jobs - each.correct for each in scores) + space.changes(settings),
        sum(each.false_positives for each in scores),
    )


def allowed(score: VerdictScore, max_false_positives: float) -> int:
    """Return how many false alarms a share of the negatives is, rounded down.

    >>> allowed(VerdictScore(0, 3, 247, 0), 0.01)
    2
    """
    return int(max_false_positives * score.negatives + 1e-9)


LEAST = 3  # jobs of a class, and others, on the side where settings are searched: fewer teach nothing
HANG_MINUTES = (30.0, 45.0, 60.0, 90.0, 120.0)


@dataclass(frozen=True, slots=True)
class Sides:
    """Scores of one class on the jobs that settings are searched on, and on the others."""

    train: VerdictScore
    test: VerdictScore


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a search came to. `before`, `after`: {class: scores} of the built-in settings and of the new ones.

    `not_tuned`: {class: why}. `jobs`, `users`: (searched on, measured on); `users_on_both`: nonzero by time only.
    `minutes`: of all labelled jobs.
    """

    settings: ClassOptions
    built_in: ClassOptions
    before: Mapping[str, Sides]
    after: Mapping[str, Sides]
    not_tuned: Mapping[str, str]
    split: str
    max_false_positives: float
    jobs: tuple[int, int]
    users: tuple[int, int]
    users_on_both: int
    minutes: int


def tune(
    population: Population,
    labels: Mapping[str, Mapping[str, bool]],
    configured: ClassOptions,
    *,
    split: str = "user",
    max_false_positives: float = 0.01,
    tune_length: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Tuned:
    """Return the settings with the fewest wrong verdicts on labelled jobs, under a bound on false alarms.

    `labels`: {class: {job_key: holds}}. `max_false_positives`: share of the jobs that are not of a class. With
    `tune_length` T is searched, too. The scores are of the judge itself. The same input gives the same result.
    Errors: UsageError where there are too few labels for every class, or all are of one user (split by user).
    """
    if not 0 <= max_false_positives < 1:
        raise UsageError("the bound on false positives is not a share", do="write 0.01 for 1 %")
    place = {key: number for number, key in enumerate(population.job_keys)}
    test = _split(population, split)
    truths, not_tuned = _truths(population, labels, place, test)
    if not truths:
        raise UsageError(
            "too few labels: " + "; ".join(f"{code}: {why}" for code, why in sorted(not_tuned.items())),
            do=f"label at least {LEAST} jobs of a class and {LEAST} others, of several users",
        )
    codes = tuple(truths)
    room = class_space(codes, hang_minutes=HANG_MINUTES if tune_length else ())
    start = room.settings(base(configured))
    train = {
        code: _applicable(population, start, code, counts & ~test, truth) for code, (counts, truth) in truths.items()
    }
    found = search(
        start,
        room,
        lambda settings: population.answers(settings, codes),
        train,
        max_false_positives=max_false_positives,
        progress=progress,
    )
    return Tuned(
        _without_unused(found),
        start,
        _scores(population, start, truths, test),
        _scores(population, found, truths, test),
        not_tuned,
        split,
        max_false_positives,
        (int((~test).sum()), int(test.sum())),
        *_users(population, test),
        population.minutes,
    )


def _split(population: Population, split: str) -> NDArray[np.bool_]:
    if split == "user":
        return by_user(population.users)
    if split == "time":
        return by_time(population.starts)
    raise UsageError(f"no split by {split}", do="split by user or by time")


def _users(population: Population, test: NDArray[np.bool_]) -> tuple[tuple[int, int], int]:
    sides = [{user for user, there in zip(population.users, test, strict=True) if there == side} for side in (0, 1)]
    return (len(sides[0]), len(sides[1])), len(sides[0] & sides[1])


def _truths(
    population: Population,
    labels: Mapping[str, Mapping[str, bool]],
    place: Mapping[str, int],
    test: NDArray[np.bool_],
) -> tuple[dict[str, tuple[Truths, Truths]], dict[str, str]]:
    """{class: (which jobs are labelled, which of all are of it)}, and the classes with too few labels."""
    truths, too_few = dict[str, tuple[Truths, Truths]](), dict[str, str]()
    for code in sorted(labels):
        if code not in population.codes:
            too_few[code] = "nothing was recorded that decides it"
            continue
        counts, truth = (np.zeros(len(place), np.bool_) for _ in range(2))
        for key, holds in labels[code].items():
            if key in place:
                counts[place[key]], truth[place[key]] = True, holds
        yes, no = int((counts & truth & ~test).sum()), int((counts & ~truth & ~test).sum())
        if min(yes, no) < LEAST:
            too_few[code] = f"{yes} yes and {no} no to search on"
        else:
            truths[code] = counts, truth
    return {code: truths[code] for code in population.codes if code in truths}, too_few


def _applicable(
    population: Population, settings: ClassOptions, code: str, counts: Truths, truth: Truths
) -> tuple[Truths, Truths]:
    """Which jobs count: not those to which the class does not apply; and the truth of all."""
    applies = counts & (population.answers(settings, [code])[code] != NOT_APPLICABLE)
    return applies, truth


def _scores(
    population: Population, settings: ClassOptions, truths: Mapping[str, tuple[Truths, Truths]], test: NDArray[np.bool_]
) -> dict[str, Sides]:
    answers = population.verdicts(settings, tuple(truths))
    return {
        code: Sides(*(_score(answers[code], counts & side, truth) for side in (~test, test)))
        for code, (counts, truth) in truths.items()
    }


def _score(answers: Answers, counts: Truths, truth: Truths) -> VerdictScore:
    there = counts & (answers != NOT_APPLICABLE)
    return score_verdicts(answers[there], truth[there])


def _without_unused(settings: ClassOptions) -> ClassOptions:
    """The settings without thresholds of characteristics that no longer vote."""
    voting = {name for names in settings.characteristics.values() for name in names}
    kept = {
        key: {name: value for name, value in getattr(settings, key).items() if name in voting}
        for key in ("theta", "level", "busy")
    }
    return msgspec.structs.replace(settings, **kept)
