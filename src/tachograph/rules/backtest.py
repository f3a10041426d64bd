"""Back-tests: what a changed rule would say of jobs that were judged before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from tachograph.rules.judge import judge
from tachograph.rules.ruleset import RuleSet

_OF_VERDICT = ("verdict", "sentence")


@dataclass(frozen=True, slots=True)
class Agreement:
    """Verdicts against what people said of the same jobs. undecided: neither yes nor no for want of data."""

    right_yes: int = 0
    wrong_yes: int = 0
    right_no: int = 0
    wrong_no: int = 0
    undecided: int = 0

    @property
    def accuracy(self) -> float | None:
        """Share of the decided jobs of which the verdict is right; None: none is decided."""
        decided = self.right_yes + self.wrong_yes + self.right_no + self.wrong_no
        return (self.right_yes + self.right_no) / decided if decided else None


def compare(
    jobs: pl.DataFrame, gpus: pl.DataFrame, node_minutes: pl.DataFrame, before: RuleSet, after: RuleSet
) -> pl.DataFrame:
    """Return what rules say before and after a change: one row per (job_key, code) of rules that are in both.

    Columns: job_key, code, gpu_hours (null: not known), before, after (verdicts), sentence_before, sentence_after.
    """
    old, new = (judge(jobs, gpus, node_minutes, ruleset) for ruleset in (before, after))
    keys = ["job_key", "code"]
    both = old.select(*keys, *(pl.col(name).alias(f"{name}_before") for name in _OF_VERDICT)).join(
        new.select(*keys, *(pl.col(name).alias(f"{name}_after") for name in _OF_VERDICT)),
        on=keys,
        maintain_order="left",
    )
    hours = jobs.select("job_key", "gpu_hours")
    return both.join(hours, on="job_key", how="left", maintain_order="left").select(
        *keys, "gpu_hours", before="verdict_before", after="verdict_after",
        sentence_before="sentence_before", sentence_after="sentence_after",
    )  # fmt: skip


def changes(compared: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of jobs whose verdict changes, those with most GPU-hours first."""
    return compared.filter(pl.col("before") != pl.col("after")).sort(
        "code", "gpu_hours", "job_key", descending=[False, True, False], nulls_last=True
    )


def counts(compared: pl.DataFrame) -> pl.DataFrame:
    """Return (code, before, after, jobs, gpu_hours): how many jobs have which verdicts, and the GPU-hours they held."""
    grouped = compared.group_by("code", "before", "after", maintain_order=True)
    return grouped.agg(jobs=pl.len(), gpu_hours=pl.col("gpu_hours").sum()).sort("code", "before", "after")


def agreement(verdicts: Mapping[str, str], labels: Mapping[str, bool]) -> Agreement:
    """Return how verdicts, {job_key: verdict}, agree with labels, {job_key: whether it is so}; others do not count.

    >>> agreement({"a": "yes", "b": "no", "c": "insufficient", "d": "yes"}, {"a": True, "b": True, "c": False})
    Agreement(right_yes=1, wrong_yes=0, right_no=0, wrong_no=1, undecided=1)
    """
    pairs = [(verdicts[key], said) for key, said in labels.items() if key in verdicts]
    return Agreement(
        right_yes=pairs.count(("yes", True)),
        wrong_yes=pairs.count(("yes", False)),
        right_no=pairs.count(("no", False)),
        wrong_no=pairs.count(("no", True)),
        undecided=sum(verdict == "insufficient" for verdict, _ in pairs),
    )
