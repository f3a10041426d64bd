"""The names of everything that is looked for: those of the program, and those that a lake holds (rules of its site)."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from tachograph.catalog.columns import must_exist
from tachograph.judge.checks import summaries
from tachograph.judge.classes import verdicts

_OTHERS = ("score_gpu", "score_gpumem", "workload", "health")

VERDICTS = ("yes", "no", "insufficient")
# rows of findings that are reported: they hold and are no mere facts; those of lakes that knew no verdicts hold
REPORTED = (pl.col("verdict").fill_null("yes") == "yes") & (pl.col("severity") != "fact")


def known_codes() -> tuple[str, ...]:
    """Return codes of findings that the program knows without its rules, those of advice first.

    >>> {"hung", "job_hang", "score_gpu"} <= set(known_codes())
    True
    """
    return tuple(dict.fromkeys((*summaries.SUMMARY_CODES, *verdicts.CLASS_CODES, *_OTHERS)))


def rule_codes() -> tuple[str, ...]:
    """Return codes of the rules that are shipped. They are read and checked for it, which takes a while."""
    from tachograph.catalog.config import RuleOptions
    from tachograph.judge.rules.ruleset import read_rules

    return tuple(entry.code for entry in read_rules(RuleOptions()).entries)


def check_codes(codes: Iterable[str], stored: Iterable[str]) -> None:
    """Check that the program knows all `codes`, or that they are among the `stored` ones.

    Errors: NotFoundError naming the unknown one and those close to it.
    """
    wanted, known = tuple(codes), {*known_codes(), *stored}
    if not known.issuperset(wanted):
        must_exist(wanted, [*known_codes(), *rule_codes(), *sorted(known)], what="finding", page="docs/job-report.md")
