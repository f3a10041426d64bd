"""Checks: each detects one problem, or one fact, in a job. One code, title, severity, advice text, family and file.

A check is decided in one of three ways, which is a detail of it: by a function that sees one job at a time, by a class
over minute series of many jobs at a time (`judge.classes`), or by a rule of the language (`judge.rules`). All are held
in one ordered tuple, `judge.checks.CHECKS`, rules of the catalogue and of the site behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol

import polars as pl

from tachograph.catalog.config import Thresholds
from tachograph.judge.finding import Severity
from tachograph.pipeline.timelines import ACTIVITY

if TYPE_CHECKING:
    from tachograph.judge.classes.inputs import JobClass

ANY_ACTIVITY = "|".join(ACTIVITY)  # of `needs`: any of these counters suffices
HALF = 0.5  # of a run: what is judged by means of the whole run may differ in a half that was not measured

# family -> the wider family around it: what is found in the narrower one explains what is found in the wider one
FAMILIES: Mapping[str, str | None] = MappingProxyType(
    {
        "idle GPUs": "imbalance",
        "imbalance": "low use",
        "hang": "input",
        "startup": "input",
        "input": "low use",
        "low use": None,
    }
)


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """How much time without measurements can hide what a check detects.

    where: the stretch that counts lies at the begin, the end, or between samples; it hides as many minutes as
    `thresholds.idle_minutes`, or more. None: the `share` of the run that was not measured counts.
    """

    where: Literal["begin", "end", "within"] | None = None
    share: float = HALF


_OF_THE_RUN = Unmeasured()


@dataclass(frozen=True, slots=True)
class Found:
    """A check that holds for one job: what was seen, with its numbers; begin, end: None is the whole job."""

    sentence: str
    evidence: Mapping[str, float] = field(default_factory=dict)
    begin: datetime | None = None
    end: datetime | None = None


class Decide(Protocol):
    """Decides a check for one job.

    `summary` is its row of job_summaries, `gpus` its rows of job_gpus, `minutes` one row for each of its
    minutes, the GPUs put together (`pipeline.timelines.timelines_of`).
    Returns None where it does not hold, and where a counter it needs was not measured.
    """

    def __call__(
        self, summary: Mapping[str, Any], gpus: pl.DataFrame, minutes: pl.DataFrame, thresholds: Thresholds
    ) -> Found | None:
        """Return what was found, or None."""


@dataclass(frozen=True, slots=True)
class Check:
    """One entry of CHECKS, of which the order is that of reports and, within a family, from the most specific on.

    family: of those that hold in a family, and in the wider ones around it, the most specific is reported and covers
    the others. evidence: names of EVIDENCE that it gives. needs: counters without which nothing is denied, of
    alternatives (`a|b`) one. of_samples: False for what accounting alone decides. hidden: what it takes not to
    deny it; None: it decides that itself.
    deciders: further classes and rules, by their names, which decide the same; it holds where one of them does.
    """

    code: str
    family: str
    severity: Severity
    title: str
    advice: str | None = None
    evidence: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    of_samples: bool = True
    hidden: Unmeasured | None = _OF_THE_RUN
    decide: Decide | None = None
    job_class: JobClass | None = None
    deciders: tuple[str, ...] = ()

    @property
    def codes(self) -> tuple[str, ...]:
        """Its codes: a class that is also judged from host characteristics has a second one."""
        if self.job_class is None or self.job_class.code != self.code:
            return (self.code,)
        return self.job_class.codes


def class_check(
    job_class: JobClass,
    *,
    family: str,
    advice: str | None,
    evidence: tuple[str, ...],
    hidden: Unmeasured | None = None,
) -> Check:
    """Return the check that a class decides, with its code, severity and title."""
    return Check(
        job_class.code,
        family=family,
        severity=job_class.severity,
        title=job_class.title,
        advice=advice,
        evidence=evidence,
        hidden=hidden,
        job_class=job_class,
    )


def families_around(family: str) -> tuple[str, ...]:
    """Return a family and the wider ones around it, the narrowest first.

    >>> families_around("hang"), families_around("kernels")
    (('hang', 'input', 'low use'), ('kernels',))
    """
    found = [family]
    while (wider := FAMILIES.get(found[-1])) is not None:
        found.append(wider)
    return tuple(found)
