"""Verdicts of the job classes against ground truth, in the layout of the published accuracies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import polars as pl

from tachograph.judge.classes.inputs import HOST_SUFFIX
from tachograph.judge.job_classes import CLASS_CODES

Z95 = 1.959963984540054  # of the normal distribution: 95 % lie within


@dataclass(frozen=True, slots=True)
class VerdictScore:
    """Right and wrong verdicts on one class.

    `unknown_positives`, `unknown_negatives`: jobs of the class, and others, with an unknown
    verdict.
    """

    true_positives: int
    false_positives: int
    true_negatives: int
    false_negatives: int
    unknown_positives: int = 0
    unknown_negatives: int = 0

    @property
    def jobs(self) -> int:
        """All jobs, those without a decision too."""
        return self.decided + self.unknown

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
        return self.true_positives + self.false_negatives + self.unknown_positives

    @property
    def negatives(self) -> int:
        """Jobs that are not of the class, in truth."""
        return self.jobs - self.positives

    @property
    def unknown(self) -> int:
        """Jobs whose verdict is unknown."""
        return self.unknown_positives + self.unknown_negatives

    @property
    def accuracy(self) -> float | None:
        """Share of right verdicts among decided jobs; None if none is decided."""
        return self.correct / self.decided if self.decided else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Interval (95 %, Wilson) of the accuracy."""
        return wilson(self.correct, self.decided) if self.decided else None

    @property
    def false_positive_rate(self) -> float:
        """False alarms over jobs not of the class; 0 if there are none."""
        return self.false_positives / self.negatives if self.negatives else 0.0


# (of the class in truth, verdict) in the order of the numbers of a score
_CELLS = (
    *((True, "yes"), (False, "yes"), (False, "no"), (True, "no")),
    *((True, "unknown"), (False, "unknown")),
)


def class_scores(truth: pl.DataFrame, verdicts: pl.DataFrame) -> dict[str, VerdictScore]:
    """Return {class: right and wrong verdicts}, of the classes that were judged.

    `truth`: rows (job_key, code, truth). `verdicts`: findings of the classes (`judge_classes`).
    Jobs to which a class does not apply (idle_nodes of one node) do not count.

    >>> jobs = {"job_key": ["a", "b", "c"], "code": ["stall"] * 3}
    >>> truth = pl.DataFrame({**jobs, "truth": [True, False, False]})
    >>> verdicts = pl.DataFrame({**jobs, "verdict": ["yes", "yes", "no"]})
    >>> class_scores(truth, verdicts)["stall"].correct
    2
    """
    answers = verdicts.select("job_key", "code", "verdict")
    pairs = truth.join(answers, on=["job_key", "code"])
    counted = pairs.group_by("code", "truth", "verdict").len().rows()
    numbers = {(code, (holds, verdict)): count for code, holds, verdict, count in counted}
    judged = set(pairs.get_column("code"))
    return {
        code: VerdictScore(*(numbers.get((code, cell), 0) for cell in _CELLS))
        for code in CLASS_CODES
        if code in judged
    }


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return the interval of a share: Wilson, J. Am. Stat. Assoc. 22 (1927), of 95 %.

    >>> [round(end, 4) for end in wilson(98, 101)]
    [0.9163, 0.9898]
    """
    share, z2 = successes / trials, Z95 * Z95
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = (
        Z95
        / (1 + z2 / trials)
        * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials * trials))
    )
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return (0.0 if successes == 0 else low), (1.0 if successes == trials else high)


# simulated jobs on which the built-in thresholds were chosen; accuracies are reported for other
# ones
CHOSEN_ON = 1
# What sites record, the most first: {name: counters}; None all that are simulated.
COUNTER_SETS: Mapping[str, tuple[str, ...] | None] = MappingProxyType(
    {
        "all": None,
        "no_profiling": ("gpu_util", "mem_copy_util", "hbm_used_mib", "power_w"),
        "utilisation_power": ("gpu_util", "hbm_used_mib", "power_w"),
        "utilisation": ("gpu_util", "hbm_used_mib"),
    }
)
# what hosts count varies more than what GPUs do; no ground truth is planted for whether it is
# steady
WITHOUT_TRUTH = ("stable_host",)


@dataclass(frozen=True, slots=True)
class PublishedAccuracy:
    """Published results of a class: accuracy, labelled jobs, false positives."""

    accuracy: float
    jobs: int
    false_positives: int


# of host characteristics, thresholds by hand: Matveev, Setyaev, Voevodin (Num. Meth. Prog. 26(4),
# 2025)
PUBLISHED_ACCURACY: Mapping[str, PublishedAccuracy] = MappingProxyType(
    {
        "job_hang": PublishedAccuracy(0.955, 333, 2),
        "cold_start": PublishedAccuracy(0.982, 333, 1),
        "stall": PublishedAccuracy(0.928, 333, 6),
        "stable": PublishedAccuracy(0.97, 101, 0),
    }
)


@dataclass(frozen=True, slots=True)
class ClassAccuracy:
    """Verdicts of one class compared with the truth; `too_near`: jobs designed at the threshold."""

    code: str
    score: VerdictScore
    too_near: int

    @property
    def published(self) -> PublishedAccuracy | None:
        """Published results of the class."""
        return PUBLISHED_ACCURACY.get(self.code.removesuffix(HOST_SUFFIX))


def with_keys(truth: pl.DataFrame, jobs: pl.DataFrame) -> pl.DataFrame:
    """Return the truth of those simulated jobs that are in a lake, with their `job_key`."""
    submit = (
        pl.from_epoch("submit_s", time_unit="s").cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    )
    keys = jobs.select(
        "job_key", "display_id", submit=pl.col("submit").cast(pl.Datetime("us", "UTC"))
    )
    return (
        truth.with_columns(submit=submit)
        .join(keys, on=["display_id", "submit"], how="inner")
        .drop("submit")
    )


def truth_of(truth: pl.DataFrame, code: str) -> pl.DataFrame:
    """Return columns job_key and `truth` of one class; null is too near to call.

    A host class without its own truth has the truth of its GPU class. Null also for a class that is
    never planted.
    """
    column = code if code in truth.columns else code.removesuffix(HOST_SUFFIX)
    if code in WITHOUT_TRUTH or column not in truth.columns:
        return truth.select("job_key", truth=pl.lit(None, dtype=pl.Boolean))
    return truth.select("job_key", truth=pl.col(column))


def accuracies(truth: pl.DataFrame, verdicts: pl.DataFrame) -> tuple[ClassAccuracy, ...]:
    """Return the accuracy of each class that was judged; `verdicts`: as of `class_scores`.

    `truth`: one row per job (`with_keys`), of jobs whose GPUs are known: others are undetermined.
    """
    rows = pl.concat(truth_of(truth, code).with_columns(code=pl.lit(code)) for code in CLASS_CODES)
    open_ones = rows.filter(pl.col("truth").is_null())
    judged = open_ones.join(verdicts, on=["job_key", "code"], how="semi").get_column("code")
    too_near = Counter(judged)
    scores = class_scores(rows.drop_nulls("truth"), verdicts)
    return tuple(ClassAccuracy(code, score, too_near[code]) for code, score in scores.items())
