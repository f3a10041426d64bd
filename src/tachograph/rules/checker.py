"""What is wrong with a rule, found before any job, and the program of one that is right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tachograph.rules.model import Metric, Rule, RuleProblem


@dataclass(frozen=True, slots=True)
class Program:
    """A rule that was checked, ready to be evaluated. needs: the metrics it reads, in order of their first use."""

    rule: Rule
    needs: tuple[str, ...] = ()


def check(rule: Rule, metrics: Mapping[str, Metric], parameters: Mapping[str, float]) -> tuple[RuleProblem, ...]:
    """Return what is wrong with a rule, errors and warnings, in the order of the file. `parameters`: those with values.

    Unknown names and metrics, terms nobody uses, cycles, types, missing parameters, divisions by what may be zero.
    """
    raise NotImplementedError


def prepare(rule: Rule, metrics: Mapping[str, Metric]) -> Program:
    """Return the program of a rule.

    Errors: InputError naming file, line and column where `check` finds an error.
    """
    raise NotImplementedError
