"""How accurate the job classes are on jobs whose truth is known, in the layout in which accuracies were published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import polars as pl

from tachograph.classes import CODES
from tachograph.classes.form import HOST_SUFFIX
from tachograph.classes.kernel import NO, UNDECIDED, YES
from tachograph.tune.score import Score, score

# simulated jobs on which the built-in thresholds were looked at; accuracies are told of other ones
CHOSEN_ON = 1
# what hosts count varies more than what GPUs do; nothing is planted that would tell whether it is steady
WITHOUT_TRUTH = ("stable_host",)
_CODE_OF = {"yes": YES, "no": NO, "insufficient": UNDECIDED}


@dataclass(frozen=True, slots=True)
class Published:
    """What was published of a class: accuracy, labelled jobs, false positives."""

    accuracy: float
    jobs: int
    false_positives: int


# of host characteristics, thresholds by hand: Matveev, Setyaev, Voevodin (Num. Meth. Prog. 26(4), 2025)
PUBLISHED: Mapping[str, Published] = MappingProxyType(
    {
        "job_hang": Published(0.955, 333, 2),
        "cold_start": Published(0.982, 333, 1),
        "stall": Published(0.928, 333, 6),
        "stable": Published(0.97, 101, 0),
    }
)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """One class: how its verdicts compare with the truth; `too_near`: jobs whose design lies at the bound."""

    code: str
    score: Score
    too_near: int

    @property
    def published(self) -> Published | None:
        """What was published of the class."""
        return PUBLISHED.get(self.code.removesuffix(HOST_SUFFIX))


def with_keys(truth: pl.DataFrame, jobs: pl.DataFrame) -> pl.DataFrame:
    """Return the truth of simulated jobs with the `job_key` they have in a lake; those that are there."""
    submit = pl.from_epoch("submit_s", time_unit="s").cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    keys = jobs.select("job_key", "display_id", submit=pl.col("submit").cast(pl.Datetime("us", "UTC")))
    return truth.with_columns(submit=submit).join(keys, on=["display_id", "submit"], how="inner").drop("submit")


def truth_of(truth: pl.DataFrame, code: str) -> pl.DataFrame:
    """Return columns job_key and `truth` of one class; null is too near to call.

    A class in the form of hosts has the truth of the class where it has none of its own.
    """
    if code in WITHOUT_TRUTH:
        return truth.select("job_key", truth=pl.lit(None, dtype=pl.Boolean))
    column = code if code in truth.columns else code.removesuffix(HOST_SUFFIX)
    return truth.select("job_key", truth=pl.col(column))


def accuracies(truth: pl.DataFrame, verdicts: pl.DataFrame, codes: Iterable[str] = CODES) -> tuple[Accuracy, ...]:
    """Return the accuracy of each class that was judged.

    `truth`: one row per job (`with_keys`), of jobs of which it is known which GPUs they held: nothing can be told of
    others. `verdicts`: rows of findings. Jobs that a class was not asked of (idle_nodes of one node) do not count.
    """
    found = []
    for code in codes:
        mine = verdicts.filter((pl.col("code") == code) & (pl.col("kind") == "class")).select("job_key", "verdict")
        rows = truth_of(truth, code).join(mine, on="job_key", how="inner")
        called = rows.filter(pl.col("truth").is_not_null())
        if called.is_empty():
            continue
        answers = called.get_column("verdict").replace_strict(_CODE_OF, return_dtype=pl.Int8).to_numpy()
        of_class = np.asarray(called.get_column("truth").to_numpy(), np.bool_)
        found.append(Accuracy(code, score(answers, of_class), rows.height - called.height))
    return tuple(found)


def labels_of(truth: pl.DataFrame, codes: Iterable[str] = CODES) -> dict[str, dict[str, bool]]:
    """Return labels for tuning, {class: {job_key: holds}}, from the truth of simulated jobs."""
    return {
        code: dict(truth_of(truth, code).filter(pl.col("truth").is_not_null()).sort("job_key").iter_rows())
        for code in codes
        if code not in WITHOUT_TRUTH
    }
