"""Settings from labelled jobs: searched on one part of them, measured on the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from tachograph.config import Classes
from tachograph.errors import UsageError
from tachograph.tune.population import NOT_ASKED, Population, base, space
from tachograph.tune.score import Answers, Score, Truths, score
from tachograph.tune.search import search
from tachograph.tune.split import by_time, by_user

LEAST = 3  # jobs of a class, and others, on the side where settings are searched: fewer teach nothing
HANG_MINUTES = (30.0, 45.0, 60.0, 90.0, 120.0)


@dataclass(frozen=True, slots=True)
class Sides:
    """Scores of one class on the jobs that settings are searched on, and on the others."""

    train: Score
    test: Score


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a search came to. `before`, `after`: {class: scores} of the built-in settings and of the new ones.

    `not_tuned`: {class: why}. `jobs`, `users`: (searched on, measured on); `users_on_both`: nonzero by time only.
    `minutes`: of all labelled jobs.
    """

    settings: Classes
    built_in: Classes
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
    configured: Classes,
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
    room = space(codes, hang_minutes=HANG_MINUTES if tune_length else ())
    start = room.settings(base(configured))
    train = {code: _asked(population, start, code, counts & ~test, truth) for code, (counts, truth) in truths.items()}
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
            too_few[code] = "nothing was recorded that it is told from"
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


def _asked(
    population: Population, settings: Classes, code: str, counts: Truths, truth: Truths
) -> tuple[Truths, Truths]:
    """Which jobs count: not those that the class is not asked of; and the truth of all."""
    asked = counts & (population.answers(settings, [code])[code] != NOT_ASKED)
    return asked, truth


def _scores(
    population: Population, settings: Classes, truths: Mapping[str, tuple[Truths, Truths]], test: NDArray[np.bool_]
) -> dict[str, Sides]:
    answers = population.verdicts(settings, tuple(truths))
    return {
        code: Sides(*(_score(answers[code], counts & side, truth) for side in (~test, test)))
        for code, (counts, truth) in truths.items()
    }


def _score(answers: Answers, counts: Truths, truth: Truths) -> Score:
    there = counts & (answers != NOT_ASKED)
    return score(answers[there], truth[there])


def _without_unused(settings: Classes) -> Classes:
    """The settings without thresholds of characteristics that no longer vote."""
    voting = {name for names in settings.characteristics.values() for name in names}
    kept = {
        key: {name: value for name, value in getattr(settings, key).items() if name in voting}
        for key in ("theta", "level", "busy")
    }
    return msgspec.structs.replace(settings, **kept)
