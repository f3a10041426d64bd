"""Jobs and rules to try the language with: a job is what is written down, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import tachograph.judge.rules
from tachograph.catalog.arrays import Flags, Longs
from tachograph.judge.rules.compiler import RuleProgram
from tachograph.judge.rules.model import (
    PatternRule,
    RuleLevel,
    RuleMetric,
    RuleOutcome,
    RuleProblem,
)
from tachograph.judge.rules.patterns import load_patterns
from tachograph.judge.rules.program import SingleJob, compile_rule, evaluate

CATALOGUE = Path(tachograph.judge.rules.__file__).parent / "catalogue"
METRICS: Mapping[str, RuleMetric] = {
    metric.name: metric
    for metric in (
        RuleMetric("work", "gpu", "s"),
        RuleMetric("gpu_util", "gpu", "fraction"),
        RuleMetric("model", "gpu", text=True),
        RuleMetric("load", "node"),
        RuleMetric("numberOfProcesses", "job", "count", positive=True),
        RuleMetric("jobWallTime", "job", "s", positive=True),
        RuleMetric("idle", "job", "fraction"),
        RuleMetric("state", "job", text=True),
    )
}
PARAMETERS: Mapping[str, float] = {
    "load_imbalance_ratio_threshold": 0.2,
    "load_imbalance_waste_threshold": 36_000.0,
    "tolerance_wasted_work": 600.0,
    "threshold": 0.5,
}

Measured = Sequence[float | str | None] | None


@dataclass(frozen=True)
class Job:
    """A job with GPUs n1/0, n1/1, ...; and nodes n1, n2, ..."""

    ranks: Mapping[str, Measured] = field(default_factory=dict)
    job: Mapping[str, float | str | None] = field(default_factory=dict)

    def labels(self, kind: RuleLevel) -> Sequence[str]:
        of_kind = [
            values
            for name, values in self.ranks.items()
            if METRICS[name].level == kind and values is not None
        ]
        count = len(of_kind[0]) if of_kind else 0
        return [f"n1/{place}" if kind == "gpu" else f"n{place + 1}" for place in range(count)]

    def of_ranks(self, metric: str) -> Measured:
        return self.ranks.get(metric)

    def of_job(self, metric: str) -> float | str | None:
        return self.job.get(metric)


@dataclass(frozen=True)
class JobsTogether:
    """Several jobs, their ranks one job behind the other."""

    jobs: Sequence[Job]

    @property
    def count(self) -> int:
        return len(self.jobs)

    def rank_counts(self, level: RuleLevel) -> Longs:
        return np.array([len(job.labels(level)) for job in self.jobs])

    def labels(self, level: RuleLevel) -> Sequence[str]:
        return [label for job in self.jobs for label in job.labels(level)]

    def values(self, metric: str, level: RuleLevel, *, is_text: bool) -> tuple[Flags, Any]:
        parts = [SingleJob(job).values(metric, level, is_text=is_text) for job in self.jobs]
        known, values = zip(*parts, strict=True)
        return np.concatenate(known), np.concatenate(values)


def busy(*work: float | None, walltime: float | None = 36_000.0) -> Job:
    """A job whose GPUs were busy for so many seconds."""
    return Job({"work": work}, {"numberOfProcesses": float(len(work)), "jobWallTime": walltime})


def written(terms: Mapping[str, str], *, output: str = "", **more: object) -> str:
    """A rule as it stands in a file."""
    document = {
        "name": "Tried",
        "tag": "tried",
        "parameter": [],
        "rule_terms": [{name: expression} for name, expression in terms.items()],
        "output": output or list(terms)[-1],
        **more,
    }
    return json.dumps(document)


def problems(text: str, parameters: Mapping[str, float] = PARAMETERS) -> list[RuleProblem]:
    """All that is wrong in a file."""
    loaded = load_patterns(text, "tried.json")
    found = [*loaded.problems]
    for rule in loaded.rules:
        found += compile_rule(rule, METRICS, parameters)[1]
    return found


def errors(text: str) -> list[str]:
    return [str(problem) for problem in problems(text) if problem.severity == "error"]


def rule_of(text: str) -> PatternRule:
    loaded = load_patterns(text, "tried.json")
    assert [str(problem) for problem in loaded.problems if problem.severity == "error"] == []
    return loaded.rules[0]


def program_of(rule: PatternRule, parameters: Mapping[str, float] = PARAMETERS) -> RuleProgram:
    program, found = compile_rule(rule, METRICS, parameters)
    assert program is not None, found
    return program


def outcome(text: str, job: Job, parameters: Mapping[str, float] = PARAMETERS) -> RuleOutcome:
    return evaluate(program_of(rule_of(text), parameters), job, parameters)


def value(expression: str, job: Job | None = None, *, level: str = "job") -> object:
    """What an expression comes to."""
    text = written({"x": expression, "output": "true"}, level=level, output_metric="{x}")
    assert errors(text) == []
    return outcome(text, job or Job()).values["x"]
