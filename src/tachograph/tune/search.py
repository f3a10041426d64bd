"""A search for the settings with the fewest wrong verdicts under a bound on false alarms: one value at a time.

From the built-in settings on, each theta, level and `busy` in turn is tried at multiples of its built-in value, and
each characteristic in and out of the set that votes on a class. What is better by `Standing` is kept; the search ends
when a round changes nothing. No chance is involved: the same labels give the same settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import msgspec

from tachograph.config import Classes
from tachograph.tune.score import Answers, Score, Truths, score

FACTORS = (0.1, 0.2, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0, 10.0)
ROUNDS = 6
THRESHOLDS = ("theta", "level", "busy")
Move = Callable[[Classes], Iterator[Classes]]
Answering = Callable[[Classes], Mapping[str, Answers]]  # settings -> {class: verdict of each labelled job}


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

    def settings(self, base: Classes) -> Classes:
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

    def changes(self, settings: Classes) -> int:
        """Return how many settings are not the built-in ones."""
        values = sum(
            int(getattr(settings, key)[name] != built_in)
            for key in THRESHOLDS
            for name, built_in in getattr(self, key).items()
        )
        sets = sum(len(set(settings.characteristics[code]) ^ set(names)) for code, (names, _) in self.sets.items())
        return values + sets


def _longer(now: Classes, *, minutes: float) -> Iterator[Classes]:
    yield msgspec.structs.replace(now, hang_minutes=minutes)


def _values(now: Classes, *, key: str, name: str, built_in: float) -> Iterator[Classes]:
    for factor in FACTORS:
        value = float(f"{built_in * factor:.3g}")
        if value != getattr(now, key)[name]:
            yield msgspec.structs.replace(now, **{key: {**getattr(now, key), name: value}})


def _toggled(now: Classes, *, code: str, name: str, every: Sequence[str]) -> Iterator[Classes]:
    there = set(now.characteristics[code]) ^ {name}
    if there:
        names = tuple(each for each in every if each in there)
        yield msgspec.structs.replace(now, characteristics={**now.characteristics, code: names})


def search(
    start: Classes,
    space: Space,
    answering: Answering,
    truths: Mapping[str, tuple[Truths, Truths]],
    *,
    max_false_positives: float,
    progress: Callable[[int, int], None] | None = None,
) -> Classes:
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
    settings: Classes,
    space: Space,
    answering: Answering,
    truths: Mapping[str, tuple[Truths, Truths]],
    max_false_positives: float,
) -> Standing:
    """Return how good settings are."""
    answers = answering(settings)
    scores = [score(answers[code][counts], truth[counts]) for code, (counts, truth) in truths.items()]
    return Standing(
        sum(max(0, each.false_positives - allowed(each, max_false_positives)) for each in scores),
        sum(each.jobs - each.correct for each in scores) + space.changes(settings),
        sum(each.false_positives for each in scores),
    )


def allowed(score: Score, max_false_positives: float) -> int:
    """Return how many false alarms a share of the negatives is, rounded down.

    >>> allowed(Score(0, 3, 247, 0), 0.01)
    2
    """
    return int(max_false_positives * score.negatives + 1e-9)
