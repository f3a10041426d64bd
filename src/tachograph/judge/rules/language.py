"""The rule language: load a file of patterns, check its rules, and evaluate them over jobs.

    loaded = load_patterns(text, "load_imbalance.json")
    problems = loaded.problems + check(rule, metrics, parameters)
    program = prepare(rule, metrics)          # once per rule
    outcome = evaluate(program, job, {"load_imbalance_ratio_threshold": 0.2})

`metrics`: {name: Metric} of those that the jobs offer. `job`: a `Ranks`. Nothing here reads files, clocks, settings.
"""

from __future__ import annotations

from tachograph.judge.rules.model import (
    BUDGET,
    Budget,
    LoadedPatterns,
    Pattern,
    PatternRule,
    RankKind,
    Ranks,
    RuleLevel,
    RuleMetric,
    RuleOutcome,
    RulePair,
    RuleProblem,
    RuleTerm,
    Text,
    Value,
)
from tachograph.judge.rules.patterns import load_patterns
from tachograph.judge.rules.program import RuleProgram, check, evaluate, prepare

__all__ = [
    "BUDGET",
    "Budget",
    "LoadedPatterns",
    "Pattern",
    "PatternRule",
    "RankKind",
    "Ranks",
    "RuleLevel",
    "RuleMetric",
    "RuleOutcome",
    "RulePair",
    "RuleProblem",
    "RuleProgram",
    "RuleTerm",
    "Text",
    "Value",
    "check",
    "evaluate",
    "load_patterns",
    "prepare",
]
