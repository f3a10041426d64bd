"""Scores: verdicts of one class against what is true."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tachograph.classes.kernel import NO, YES

Z95 = 1.959963984540054  # of the normal distribution: 95 % lie within
Answers = NDArray[np.int8]  # of jobs: kernel.YES, NO; anything else: cannot be decided
Truths = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Score:
    """How many verdicts on one class are right and wrong.

    `undecided_positives`, `undecided_negatives`: jobs of the class, and others, of which the verdict is insufficient.
    """

    true_positives: int
    false_positives: int
    true_negatives: int
    false_negatives: int
    undecided_positives: int = 0
    undecided_negatives: int = 0

    @property
    def jobs(self) -> int:
        """All jobs, those without a decision too."""
        return self.decided + self.insufficient

    @property
    def decided(self) -> int:
        """Jobs with a verdict of yes or no."""
        return self.correct + self.false_positives + self.false_negatives

    @property
    def correct(self) -> int:
        """Verdicts that are right."""
        return self.true_positives + self.true_negatives

    @property
    def positives(self) -> int:
        """Jobs of the class, in truth."""
        return self.true_positives + self.false_negatives + self.undecided_positives

    @property
    def negatives(self) -> int:
        """Jobs that are not of the class, in truth."""
        return self.jobs - self.positives

    @property
    def insufficient(self) -> int:
        """Jobs of which it cannot be decided."""
        return self.undecided_positives + self.undecided_negatives

    @property
    def accuracy(self) -> float | None:
        """Share of the decided jobs whose verdict is right; None where none is decided."""
        return self.correct / self.decided if self.decided else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Interval (95 %, Wilson) of the accuracy."""
        return wilson(self.correct, self.decided) if self.decided else None

    @property
    def false_positive_rate(self) -> float:
        """False alarms over jobs that are not of the class; 0 where there are none of them."""
        return self.false_positives / self.negatives if self.negatives else 0.0


def score(answers: Answers, truth: Truths) -> Score:
    """Return how the answers compare with the truth, job by job.

    >>> score(np.array([1, 1, 0, 2], np.int8), np.array([True, False, False, True]))
    Score(true_positives=1, false_positives=1, true_negatives=1, false_negatives=0, undecided_positives=1,
          undecided_negatives=0)
    """
    yes, no = answers == YES, answers == NO
    open_ = ~(yes | no)
    pairs = (yes & truth, yes & ~truth, no & ~truth, no & truth, open_ & truth, open_ & ~truth)
    return Score(*(int(np.count_nonzero(pair)) for pair in pairs))


def wilson(successes: int, trials: int, z: float = Z95) -> tuple[float, float]:
    """Return the interval of a share: Wilson, J. Am. Stat. Assoc. 22 (1927); 95 % by default.

    >>> [round(end, 4) for end in wilson(98, 101)]
    [0.9163, 0.9898]
    """
    share, z2 = successes / trials, z * z
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = z / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials * trials))
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return (0.0 if successes == 0 else low), (1.0 if successes == trials else high)
