"""Scores and intervals against plain recomputation."""

from __future__ import annotations

import math
import random

import polars as pl
import pytest

from tachograph.annexes.lab.accuracy import VerdictScore, class_scores, wilson
from tachograph.judge.finding import VERDICTS


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
    rows = [
        (f"{number}", rng.choice(["stall", "cold_start"]), rng.random() < 0.3, rng.choice(VERDICTS))
        for number in range(900)
    ]
    table = pl.DataFrame(rows, schema=["job_key", "code", "truth", "verdict"], orient="row")
    unjudged = table.filter(pl.col("job_key") != "0")
    found = class_scores(table.drop("verdict"), unjudged.drop("truth"))
    assert found.keys() == {"stall", "cold_start"}
    for name, score in found.items():
        pairs = [
            (holds, verdict) for key, code, holds, verdict in rows if code == name and key != "0"
        ]
        assert score == VerdictScore(
            true_positives=pairs.count((True, "yes")),
            false_positives=pairs.count((False, "yes")),
            true_negatives=pairs.count((False, "no")),
            false_negatives=pairs.count((True, "no")),
            unknown_positives=pairs.count((True, "unknown")),
            unknown_negatives=pairs.count((False, "unknown")),
        )
        right = pairs.count((True, "yes")) + pairs.count((False, "no"))
        decided = sum(verdict != "unknown" for _, verdict in pairs)
        positives = sum(holds for holds, _ in pairs)
        assert (score.accuracy, score.decided) == (right / decided, decided)
        assert (score.jobs, score.positives) == (len(pairs), positives)
        assert score.false_positive_rate == pairs.count((False, "yes")) / (len(pairs) - positives)
    unknown = VerdictScore(0, 0, 0, 0, 1)
    assert (unknown.accuracy, unknown.interval, unknown.unknown) == (None, None, 1)
