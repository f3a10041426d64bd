"""Rules checked, prepared as programs, and evaluated over one job.

    loaded = load_patterns(text, "load_imbalance.json")
    problems = loaded.problems + check(rule, metrics, parameters)
    program = prepare(rule, metrics)          # once per rule
    outcome = evaluate(program, job, {"load_imbalance_ratio_threshold": 0.2})

`metrics`: {name: RuleMetric} that the jobs offer. `job`: a `Ranks`. Nothing here reads files,
clocks or settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tachograph.catalog.errors import InputError
from tachograph.catalog.units import printable
from tachograph.judge.rules.compiler import PreparedPiece, RuleCompiler, RuleProgram
from tachograph.judge.rules.model import (
    BUDGET,
    Budget,
    PatternRule,
    Ranks,
    RuleMetric,
    RuleOutcome,
    RulePair,
    RuleProblem,
)
from tachograph.judge.rules.values import EvaluationState, RankValues

_MOST_PROBLEMS = 50


def check(
    rule: PatternRule, metrics: Mapping[str, RuleMetric], parameters: Mapping[str, float]
) -> tuple[RuleProblem, ...]:
    """Return what is wrong with a rule, errors and warnings, in the order of the file.
    `parameters`: those with values.

    Names, cycles, parameters, divisions by what may be zero, unused terms. A rule without such
    errors is tried out on a job of which everything is known: there a value of the wrong type is an
    error.
    """
    return compile_rule(rule, metrics, parameters)[1]


def compile_rule(
    rule: PatternRule, metrics: Mapping[str, RuleMetric], parameters: Mapping[str, float]
) -> tuple[RuleProgram, tuple[RuleProblem, ...]]:
    """Return the program of a rule and its problems, as `check` does: with an error, the program
    must not run.
    """
    compiler = RuleCompiler(rule, metrics, parameters)
    program = compiler.program()
    compiler.check_parameters()
    if not any(problem.severity == "error" for problem in compiler.problems):
        compiler.try_out(program)
    problems = sorted(compiler.problems, key=lambda problem: (problem.line, problem.column))
    return program, tuple(problems[:_MOST_PROBLEMS])


def prepare(rule: PatternRule, metrics: Mapping[str, RuleMetric]) -> RuleProgram:
    """Return the program of a rule whose parameters are not known yet.

    Raises InputError with file, line and column where `check` finds an unknown name or a cycle.
    """
    compiler = RuleCompiler(rule, metrics, {})
    program = compiler.program()
    for problem in compiler.problems:
        if problem.severity == "error":
            where = f"{problem.file}:{problem.line}:{problem.column}"
            raise InputError(
                f"rule {rule.id}: {problem.message}", where=where, do="fix the rule, or disable it"
            )
    return program


def evaluate(
    program: RuleProgram, job: Ranks, parameters: Mapping[str, float], budget: Budget = BUDGET
) -> RuleOutcome:
    """Return the outcome; it never raises, for any rule and any job."""
    state = EvaluationState(job, parameters)
    for name, run in program.terms:
        state.term = name
        state.values[name] = run(state)
    state.term = ""
    answer = state.values[program.rule.output]
    alert = _alert(answer)
    if alert:
        return _alerted(program, state, answer, budget)
    return RuleOutcome(
        alert,
        state.values,
        unknown=tuple(state.missing) if alert is None else (),
        reasons=tuple(state.reasons) if alert is None else (),
    )


def _alert(answer: Any) -> bool | None:
    """Return the alert: of ranks, whether one of them alerts."""
    if not isinstance(answer, list):
        return answer if isinstance(answer, bool) else None
    if any(value is True for value in answer):
        return True
    return False if answer and all(value is False for value in answer) else None


def _alerted(
    program: RuleProgram, state: EvaluationState, answer: Any, budget: Budget
) -> RuleOutcome:
    """Return the outcome of a rule that alerts, with its texts."""
    alerting = None
    if isinstance(answer, RankValues):
        alerting = [index for index, value in enumerate(answer) if value is True]
    writer = _TextWriter(state, alerting, budget)
    text = writer.text(program.template)
    template_values, writer.values = writer.values, {}
    metric = writer.text(program.output_metric)
    # It is more than a value.
    if any(piece.run is None or piece.inner for piece in program.output_metric):
        text = f"{text} {metric}" if text and metric else text or metric
    if alerting is None:
        ranks = [value for values_of in writer.values.values() for value in _as_list(values_of)]
    else:
        names = state.job.labels(program.rule.level)
        ranks = [str(names[index])[:200] for index in alerting]
    return RuleOutcome(
        True,
        state.values,
        template_values | writer.values,
        tuple(dict.fromkeys(name for name in ranks if isinstance(name, str))),
        text if len(text) <= budget.text else f"{text[: budget.text - 3]}...",
    )


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


@dataclass(slots=True)
class _TextWriter:
    """Writes texts for the user. alerting: indices of the ranks that alert; None in a rule of jobs.

    values: those in the texts, by their source.
    """

    state: EvaluationState
    alerting: list[int] | None
    budget: Budget
    values: dict[str, Any] = field(default_factory=dict)

    def text(self, pieces: Sequence[PreparedPiece]) -> str:
        """Return a text with its values filled in."""
        phrases: list[str] = []
        after_condition = False
        for piece in pieces:
            if sum(map(len, phrases)) > self.budget.text:
                break  # what follows would be cut anyway
            if piece.run is None:
                phrases.append(piece.source.text)
                after_condition = False
                continue
            value = piece.run(self.state)
            if self.alerting is not None and isinstance(value, RankValues):
                value = [value[index] for index in self.alerting]
            if piece.source.inner is None:
                self.values.setdefault(piece.source.text, value)
                phrases.append(self.value(value, piece.source.unit))
                after_condition = False
            elif any(item is True for item in _as_list(value)):
                phrases += ["; " if after_condition else "", self.text(piece.inner)]
                after_condition = True
        return "".join(phrases)

    def value(self, value: Any, unit: str) -> str:
        """Return a value as text."""
        if isinstance(value, list):
            shown = [self.value(item, unit) for item in value[: self.budget.shown]]
            if len(value) > len(shown):
                shown.append(f"and {len(value) - len(shown)} more")
            return ", ".join(shown) or "none"
        if isinstance(value, RulePair):
            return f"{self.value(value.first, '')}: {self.value(value.second, '')}"
        if value is None:
            return "unknown"
        if isinstance(value, bool):
            return "yes" if value else "no"
        return printable(value) if isinstance(value, str) else _number(value, unit)


def _number(value: float, unit: str) -> str:
    if unit == "%":
        return f"{100 * value:.3g}" if abs(value) < 9.995 else f"{100 * value:.4g}"
    return f"{value / 3600 if unit == 'h' else value:.4g}"
