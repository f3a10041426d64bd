"""Scores and intervals against plain recomputation."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from tachograph.annexes.lab.accuracy import VerdictScore, score_verdicts, wilson
from tachograph.judge.classes.kernel import NO, UNDECIDED, YES


@pytest.mark.parametrize(
    ("successes", "trials"), [(0, 10), (1, 7), (50, 100), (318, 333), (327, 333), (101, 101)]
)
def test_wilson_ends_are_where_the_normal_test_just_rejects(successes: int, trials: int) -> None:
    """An end p solves (share - p)^2 = z^2 p (1 - p) / n: the definition, solved here by
    bisection.
    """
    share, z = successes / trials, 1.959963984540054

    def rejected(p: float) -> float:
        return (share - p) ** 2 - z * z * p * (1 - p) / trials

    low, high = wilson(successes, trials)
    for end, inner, outer in ((low, share, 0.0), (high, share, 1.0)):
        if successes == (0 if outer == 0 else trials):
            assert end == outer
            continue
        a, b = inner, outer
        for _ in range(200):
            middle = (a + b) / 2
            a, b = (a, middle) if rejected(middle) > 0 else (middle, b)
        assert math.isclose(end, a, abs_tol=1e-12)


def test_confusion_is_counted_job_by_job() -> None:
    rng = random.Random(3)
    answers = [rng.choice([YES, NO, UNDECIDED]) for _ in range(500)]
    truth = [rng.random() < 0.3 for _ in range(500)]
    pairs = list(zip(answers, truth, strict=True))
    found = score_verdicts(np.array(answers, np.int8), np.array(truth))
    assert found == VerdictScore(
        true_positives=pairs.count((YES, True)),
        false_positives=pairs.count((YES, False)),
        true_negatives=pairs.count((NO, False)),
        false_negatives=pairs.count((NO, True)),
        undecided_positives=pairs.count((UNDECIDED, True)),
        undecided_negatives=pairs.count((UNDECIDED, False)),
    )
    right = sum((answer == YES) == holds for answer, holds in pairs if answer != UNDECIDED)
    decided = sum(answer != UNDECIDED for answer in answers)
    assert found.accuracy == right / decided
    assert (found.jobs, found.positives, found.negatives) == (500, sum(truth), 500 - sum(truth))
    assert found.false_positive_rate == pairs.count((YES, False)) / (500 - sum(truth))


def test_nothing_decided_has_no_accuracy() -> None:
    found = score_verdicts(np.array([UNDECIDED], np.int8), np.array([True]))
    assert (found.accuracy, found.interval, found.unknown) == (None, None, 1)
