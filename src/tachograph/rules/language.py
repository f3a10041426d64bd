"""The rule language: load a file of patterns, check its rules, and evaluate them over jobs.

    loaded = load_patterns(text, "load_imbalance.json")
    problems = loaded.problems + check(rule, metrics, parameters)
    program = prepare(rule, metrics)          # once per rule
    outcome = evaluate(program, job, {"load_imbalance_ratio_threshold": 0.2})

`metrics`: {name: Metric} of those that the jobs offer. `job`: a `Ranks`. Nothing here reads files, clocks, settings.
"""

from __future__ import annotations

from tachograph.rules.checker import Program, check, prepare
from tachograph.rules.evaluator import evaluate
from tachograph.rules.model import (
    BUDGET,
    Budget,
    Kind,
    Level,
    Loaded,
    Metric,
    Outcome,
    Pair,
    Pattern,
    Ranks,
    Rule,
    RuleProblem,
    Term,
    Text,
    Value,
)
from tachograph.rules.patterns import load_patterns

__all__ = [
    "BUDGET",
    "Budget",
    "Kind",
    "Level",
    "Loaded",
    "Metric",
    "Outcome",
    "Pair",
    "Pattern",
    "Program",
    "Ranks",
    "Rule",
    "RuleProblem",
    "Term",
    "Text",
    "Value",
    "check",
    "evaluate",
    "load_patterns",
    "prepare",
]
