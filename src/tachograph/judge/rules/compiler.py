"""Compiles a rule into a program, and finds what is wrong with it."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType
from typing import Any

from tachograph.judge.rules import values
from tachograph.judge.rules.expression import Node, walk
from tachograph.judge.rules.model import (
    PatternRule,
    ProblemSeverity,
    RuleLevel,
    RuleMetric,
    RulePair,
    RuleProblem,
    RuleTerm,
    RuleText,
    TextPiece,
)
from tachograph.judge.rules.values import REDUCTIONS, EvaluationState, RankValues, Run

_MOST_PROPOSALS = 5  # proposals for misspelt names take time
_RANK_NAMES: Mapping[str, RuleLevel | None] = MappingProxyType(
    {"Process": None, "Rank": None, "GPU": "gpu", "Node": "node"}
)
# Statistics in words. Of positive values they are positive themselves, so that dividing by them is
# safe.
_STATISTICS: Mapping[str, str] = MappingProxyType(
    {
        "max": "largest",
        "min": "smallest",
        "sum": "summed",
        "mean": "mean",
        "median": "median",
        "lower_quartile": "lower quartile of",
        "upper_quartile": "upper quartile of",
    }
)
# Functions besides REDUCTIONS: {name: numbers of arguments that they take}.
_ARGUMENTS: Mapping[str, Collection[int]] = MappingProxyType(
    {
        "SelectMetric": (2,),
        "GatherFromAllRanks": (1,),
        "for_each": (2,),
        "make_tuple": (2,),
        "if": (2, 3),
        "abs": (1,),
    }
)
FUNCTIONS = (*REDUCTIONS, *_ARGUMENTS, "and", "or", "not")  # the grammar knows the last three


@dataclass(frozen=True, slots=True)
class PreparedPiece:
    """A piece of a text and what computes it."""

    source: TextPiece
    run: Run | None = None
    inner: tuple[PreparedPiece, ...] = ()


@dataclass(frozen=True, slots=True)
class RuleProgram:
    """A rule that was checked, ready to be evaluated. needs: the metrics it reads, in order of
    their first use.
    """

    rule: PatternRule
    needs: tuple[str, ...]
    terms: tuple[tuple[str, Run], ...]
    template: tuple[PreparedPiece, ...]
    output_metric: tuple[PreparedPiece, ...]


class _UnresolvedError(Exception):
    """An expression, or a part of it, cannot be computed; the problem was noted."""


def _cannot_run(state: EvaluationState) -> Any:
    """Stands for an expression with an error, whose program is never evaluated."""


@dataclass(slots=True)
class RuleCompiler:
    """Compiles one rule and notes its problems. term, text, start: where the expression of the
    moment stands.
    """

    rule: PatternRule
    metrics: Mapping[str, RuleMetric]
    parameters: Mapping[str, float]
    problems: list[RuleProblem] = field(default_factory=list)
    # {term defined so far: it is certainly above 0}.
    positive: dict[str, bool] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    needs: dict[str, None] = field(default_factory=dict)
    proposals: int = 0
    term: str = ""
    text: RuleTerm | RuleText | None = None
    start: int = 0

    def program(self) -> RuleProgram:
        """Return the program, right if no problem is an error."""
        cycle = self.cycle()
        terms = []
        for term in self.rule.terms:
            self.term, self.text, self.start = term.name, term, 0
            if term.name in cycle:
                self.problem(0, f"a cycle: {' -> '.join(cycle)}")
            terms.append((term.name, self.compiled(term.node)))
            self.positive[term.name] = self.is_positive(term.node)
        self.used.add(self.rule.output)
        self.term = ""
        template = tuple(self.pieces(self.rule.template, self.rule.template.pieces))
        output_metric = tuple(self.pieces(self.rule.output_metric, self.rule.output_metric.pieces))
        return RuleProgram(self.rule, tuple(self.needs), tuple(terms), template, output_metric)

    def problem(self, at: int, message: str, severity: ProblemSeverity = "error") -> None:
        """Note a problem at a character of the expression of the moment."""
        assert self.text is not None
        item = self.text.item
        column = item.column_of(self.start + at)
        self.problems.append(
            RuleProblem(self.rule.file, item.line, column, self.term, message, severity)
        )

    def rule_problem(self, message: str, severity: ProblemSeverity = "error") -> None:
        """Note a problem of the whole rule."""
        item = self.rule.item
        self.problems.append(
            RuleProblem(self.rule.file, item.line, item.column, "", message, severity)
        )

    def unresolved(self, at: int, message: str) -> _UnresolvedError:
        """Note an error and return the exception that ends the compilation of its expression."""
        self.problem(at, message)
        return _UnresolvedError(message)

    def cycle(self) -> list[str]:
        """Return the names of terms that use each other in a circle, the first of them also at
        the end.
        """
        names = {term.name for term in self.rule.terms}
        uses = {term.name: names & set(_references(term.node)) for term in self.rule.terms}
        try:
            TopologicalSorter(uses).prepare()
        except CycleError as error:
            circle: list[str] = error.args[1][::-1]
            return circle if len(circle) < 8 else [*circle[:4], "...", circle[-1]]
        return []

    def pieces(self, text: RuleText, pieces: Iterable[TextPiece]) -> Iterator[PreparedPiece]:
        """Yield the pieces of a text with what computes them."""
        for piece in pieces:
            if piece.node is None:
                yield PreparedPiece(piece)
                continue
            self.text, self.start = text, piece.start
            run = self.compiled(piece.node)
            yield PreparedPiece(piece, run, tuple(self.pieces(text, piece.inner or ())))

    def compiled(self, node: Node) -> Run:
        """Return what computes an expression."""
        level = self.rule.level
        try:
            return self.compile(node, None if level == "job" else level, frozenset())
        except _UnresolvedError:
            return _cannot_run

    def compile(self, node: Node, level: RuleLevel | None, guarded: frozenset[str]) -> Run:
        """Return what computes an expression, or raise after its first error was noted.

        level: the ranks that `SelectMetric` reads here, one value each; None: it may not stand
        here. guarded: names that a condition around looks at, so that a division by them is
        intended.
        """
        if node.kind == "name":
            return self.name(node, level)
        if node.kind == "call":
            return self.call(node, level, guarded)
        if node.kind in ("number", "text", "truth"):
            constant = _constant(node)
            return lambda state: constant
        if node.kind == "chain":
            self.check_divisors(node, guarded)
        first, *others = [self.compile(part, level, guarded) for part in node.parts]
        if node.kind in ("sign", "not", "part"):
            return self.unary(node, first)
        return values.fold(first, [*zip(self.operations(node), others, strict=True)])

    def operations(self, node: Node) -> Iterator[values.Operation]:
        """Yield the operation before each operand but the first."""
        for index, operand in enumerate(node.parts[1:]):
            if node.kind == "compare":
                yield values.comparison(node.word, node.at)
            elif node.kind == "chain":
                symbol = (node.word + node.marks)[index]
                yield values.arithmetic(
                    symbol, node.at, self.divisor_name(operand) if symbol == "/" else ""
                )
            else:
                yield values.logic(node.kind, node.at)

    def unary(self, node: Node, inner: Run) -> Run:
        """Return what computes a sign, a negation, or a part of a tuple."""
        if node.kind == "not":
            return values.lift(inner, bool, operator.not_, node.at, "not needs true or false")
        if node.kind == "sign":
            sign = operator.neg if node.word == "-" else operator.pos
            return values.lift(inner, float, sign, node.at, f"{node.word} needs a number")
        if node.word not in ("first", "second"):
            raise self.unresolved(
                node.at, f"a tuple has .first and .second, and no .{node.word[:40]}"
            )
        part = operator.itemgetter(0 if node.word == "first" else 1)
        return values.lift(inner, RulePair, part, node.at, f".{node.word} needs a tuple")

    def name(self, node: Node, level: RuleLevel | None) -> Run:
        """Return what reads a term, a parameter, a metric of the job, or the names of the ranks."""
        name = node.word
        self.used.add(name)
        if name in self.positive:
            return lambda state: state.values[name]
        if any(term.name == name for term in self.rule.terms):
            raise self.unresolved(node.at, f"{name} is used before it is defined, in a later term")
        if name == "RANK":
            if level is None:
                raise self.unresolved(node.at, "RANK is known inside for_each only")
            return values.select_labels(level)
        metric = self.metric(name)
        if name in self.rule.parameters:
            return values.select_parameter(name)
        if name in self.parameters and metric is None:
            raise self.unresolved(node.at, f"parameter {name} is not listed under parameter")
        if metric is None:
            known = (*self.positive, *self.rule.parameters, *self.rule.metrics, *self.metrics)
            raise self.unresolved(node.at, f"unknown name {name}{self.proposal(name, known)}")
        if metric.kind != "job":
            message = f"{name} is a metric of each {metric.kind}: SelectMetric({name}, OverAll)"
            raise self.unresolved(node.at, message)
        self.needs[metric.name] = None
        return values.select_job(metric.name, text=metric.text)

    def call(self, node: Node, level: RuleLevel | None, guarded: frozenset[str]) -> Run:
        """Return what computes a function."""
        name, arguments = node.word, node.parts
        if name not in FUNCTIONS:
            raise self.unresolved(
                node.at, f"unknown function {name[:40]}{self.proposal(name, FUNCTIONS)}"
            )
        wrong_mark = "," if name == "if" else ";"
        if wrong_mark in node.marks:
            right = "semicolons" if name == "if" else "commas"
            raise self.unresolved(node.at, f"{right} stand between the arguments of {name}")
        of_values = name in ("max", "min") and len(arguments) > 1
        if not of_values and len(arguments) not in _ARGUMENTS.get(name, (1,)):
            raise self.unresolved(
                node.at, f"{name} takes other arguments; see its line in the reference"
            )
        if name == "SelectMetric":
            return self.select(arguments[0], arguments[1], level)
        if name in ("GatherFromAllRanks", "for_each"):
            return self.gather(node, guarded)
        first, *others = [self.compile(argument, level, guarded) for argument in arguments[:1]]
        inside = guarded | set(_names(arguments[0])) if name == "if" else guarded
        others = [self.compile(argument, level, inside) for argument in arguments[1:]]
        if name == "if":
            if len(others) == 1:
                return values.keep(first, others[0], node.at)
            return values.choose(first, others[0], others[1], node.at)
        if name == "abs":
            return values.lift(first, float, abs, node.at, "abs needs a number")
        if name == "make_tuple":
            return values.fold(first, [(values.pair(node.at), others[0])])
        if of_values:
            return values.fold(
                first, [(values.arithmetic(name, node.at), other) for other in others]
            )
        return values.reduce_list(name, first, node.at)

    def select(self, selected: Node, period: Node, level: RuleLevel | None) -> Run:
        """Return what reads `SelectMetric(metric, OverAll)`."""
        if period.kind != "name" or period.word != "OverAll":
            raise self.unresolved(period.at, "the second of SelectMetric is OverAll: the whole job")
        if selected.kind != "name":
            raise self.unresolved(selected.at, "the first of SelectMetric is the name of a metric")
        name = selected.word
        self.used.add(name)
        metric = self.metric(name)
        if metric is None:
            known = (*self.rule.metrics, *self.metrics)
            raise self.unresolved(selected.at, f"unknown metric {name}{self.proposal(name, known)}")
        self.needs[metric.name] = None
        if metric.kind == "job":
            return values.select_job(metric.name, text=metric.text)
        if level is None:
            message = "SelectMetric stands inside for_each or GatherFromAllRanks in a rule of jobs"
            raise self.unresolved(selected.at, message)
        if metric.kind != level:
            raise self.unresolved(
                selected.at, f"{name} is a metric of each {metric.kind}, not of each {level}"
            )
        return values.select_ranks(metric.name, metric.kind, text=metric.text)

    def gather(self, node: Node, guarded: frozenset[str]) -> Run:
        """Return what computes `GatherFromAllRanks(x)` or `for_each(Process, x)`."""
        inner = node.parts[-1]
        level = None
        if node.word == "for_each":
            ranks = node.parts[0]
            if ranks.kind != "name" or ranks.word not in _RANK_NAMES:
                raise self.unresolved(
                    ranks.at, f"the first of for_each is {', '.join(_RANK_NAMES)}"
                )
            level = _RANK_NAMES[ranks.word]
        level = level or self.level_of(inner) or self.usual_level()
        return values.gather(level, self.compile(inner, level, guarded), inner.at)

    def metric(self, name: str) -> RuleMetric | None:
        """Return the metric that a name of the rule means."""
        return self.metrics.get(self.rule.metrics.get(name, name))

    def usual_level(self) -> RuleLevel:
        """Return what ranks are where an expression leaves it open: what the first metric of the
        rule is of.
        """
        if self.rule.level != "job":
            return self.rule.level
        levels = (self.level_of(term.node) for term in self.rule.terms)
        return next((level for level in levels if level), "gpu")

    def level_of(self, node: Node) -> RuleLevel | None:
        """Return what the first metric of ranks in an expression is of."""
        for inner, _ in walk(node):
            if inner.kind == "call" and inner.word == "SelectMetric" and inner.parts:
                metric = self.metric(inner.parts[0].word)
                if metric is not None and metric.kind != "job":
                    return metric.kind
        return None

    def proposal(self, name: str, known: Collection[str]) -> str:
        """Return `; did you mean ...?` where a known name is near."""
        self.proposals += 1
        near = (
            difflib.get_close_matches(name[:64], known, 1)
            if self.proposals <= _MOST_PROPOSALS
            else []
        )
        return f"; did you mean {near[0]}?" if near else ""

    def check_divisors(self, node: Node, guarded: frozenset[str]) -> None:
        """Report a division by 0; warn where a divisor may be zero and no condition around looks
        at it.
        """
        for symbol, operand in zip(node.word + node.marks, node.parts[1:], strict=True):
            if symbol != "/":
                continue
            if operand.kind == "number" and operand.number == 0:
                self.problem(operand.at, "a division by zero")
            elif not self.is_positive(operand) and operand.word not in guarded:
                name = operand.word if operand.kind == "name" else "this"
                self.problem(
                    operand.at, f"{name} may be zero; where it is, the result is unknown", "warning"
                )

    def is_positive(self, node: Node) -> bool:
        """Return whether a value, or each value of a list, is certainly above 0."""
        if node.kind == "number":
            return node.number > 0
        if node.kind == "name":
            return self.is_positive_name(node.word)
        if node.kind == "chain":
            return "-" not in node.word + node.marks and all(map(self.is_positive, node.parts))
        if node.kind != "call" or not node.parts:
            return False
        if node.word == "SelectMetric":
            return self.is_positive_name(node.parts[0].word)
        if node.word in ("GatherFromAllRanks", "for_each"):
            return self.is_positive(node.parts[-1])
        if node.word == "if":
            return all(map(self.is_positive, node.parts[1:]))
        if node.word == "max":
            return any(map(self.is_positive, node.parts))
        return (
            node.word in _STATISTICS
            and node.word != "sum"
            and all(map(self.is_positive, node.parts))
        )

    def is_positive_name(self, name: str) -> bool:
        """Return whether a term, a parameter or a metric is certainly above 0."""
        if name in self.positive:
            return self.positive[name]
        if name in self.rule.parameters:
            return self.parameters.get(name, 0.0) > 0
        metric = self.metric(name)
        return metric is not None and metric.positive

    def divisor_name(self, node: Node) -> str:
        """Return what a divisor is: `the median work of its GPUs`, the name of a term or metric,
        or `a divisor`.
        """
        statistic = self.defined(node)
        if statistic.kind == "call" and statistic.word in _STATISTICS and len(statistic.parts) == 1:
            gathered = self.defined(statistic.parts[0])
            selected = (
                gathered.parts[0]
                if gathered.word == "GatherFromAllRanks" and gathered.parts
                else gathered
            )
            metric = (
                self.metric(selected.parts[0].word) if selected.word == "SelectMetric" else None
            )
            if metric is not None and metric.kind != "job":
                ranks = "GPUs" if metric.kind == "gpu" else "nodes"
                return f"the {_STATISTICS[statistic.word]} {metric.name} of its {ranks}"
        return node.word if node.kind == "name" else "a divisor"

    def defined(self, node: Node) -> Node:
        """Return what the name of a term stands for; any other expression itself."""
        terms = {term.name: term.node for term in self.rule.terms}
        return terms.get(node.word, node) if node.kind == "name" else node

    def check_parameters(self) -> None:
        """Report parameters without a value; warn of parameters and terms that nothing uses."""
        for name in self.rule.parameters:
            if name not in self.used:
                self.rule_problem(f"parameter {name} is used nowhere", "warning")
            elif name not in self.parameters:
                self.rule_problem(f"parameter {name} has no value")
            elif not abs(self.parameters[name]) <= 1e300:
                self.rule_problem(f"parameter {name} needs a finite number")
            if name in self.positive:
                self.rule_problem(f"{name} is a parameter and a term; the term counts", "warning")
        for term in self.rule.terms:
            if term.name not in self.used:
                self.term, self.text, self.start = term.name, term, 0
                self.problem(0, f"{term.name} is used nowhere", "warning")

    def try_out(self, program: RuleProgram) -> None:
        """Report values of the wrong type, found on a job of which everything is known."""
        state = EvaluationState(_KnownRanks(self.metrics), self.parameters)
        for term, (name, run) in zip(self.rule.terms, program.terms, strict=True):
            state.term = name
            self.term, self.text, self.start = name, term, 0
            state.values[name] = run(state)
            self.take_mistakes(state)
            if name == self.rule.output:
                self.check_output(state.values[name])
        state.term = self.term = ""
        self.try_text(state, self.rule.template, program.template)
        self.try_text(state, self.rule.output_metric, program.output_metric)

    def take_mistakes(self, state: EvaluationState) -> None:
        """Note the mistakes of the expression of the moment."""
        for at, message in state.mistakes:
            self.problem(at, message)
        state.mistakes.clear()

    def check_output(self, answer: Any) -> None:
        """Report an output that is not true or false."""
        ranks = self.rule.level != "job" and isinstance(answer, RankValues)
        if any(type(item) not in (bool, type(None)) for item in (answer if ranks else [answer])):
            hint = "; use any(...) or all(...)" if isinstance(answer, list) else ""
            self.problem(0, f"the output {self.rule.output} is not true or false{hint}")

    def try_text(
        self, state: EvaluationState, text: RuleText, pieces: Iterable[PreparedPiece]
    ) -> None:
        """Evaluate every piece of a text, also behind conditions that do not hold."""
        for piece in pieces:
            if piece.run is None:
                continue
            self.text, self.start = text, piece.source.start
            value = piece.run(state)
            self.take_mistakes(state)
            answers = value if isinstance(value, list) else [value]
            if piece.source.inner is not None and any(
                type(item) not in (bool, type(None)) for item in answers
            ):
                self.problem(0, f"the condition {piece.source.text[:40]} is not true or false")
            self.try_text(state, text, piece.inner)


@dataclass(frozen=True, slots=True)
class _KnownRanks:
    """A job of which every metric is known. GPUs and nodes differ in number, so that lists of
    both do not fit.
    """

    metrics: Mapping[str, RuleMetric]

    def labels(self, kind: RuleLevel) -> Sequence[str]:
        return [f"{kind} {index}" for index in range(2 if kind == "gpu" else 3)]

    def of_ranks(self, metric: str) -> Sequence[float | str]:
        return [self.of_job(metric) for _ in self.labels(self.metrics[metric].kind)]

    def of_job(self, metric: str) -> float | str:
        return "text" if self.metrics[metric].text else 1.0


def _constant(node: Node) -> float | bool | str:
    if node.kind == "number":
        return node.number
    return node.word == "true" if node.kind == "truth" else node.word


def _names(node: Node) -> Iterator[str]:
    return (inner.word for inner, _ in walk(node) if inner.kind == "name")


def _references(node: Node) -> Iterator[str]:
    """Yield the names in an expression that may be terms: not those of metrics that are
    selected.
    """
    skipped: set[int] = set()
    for inner, _ in walk(node):
        if inner.kind == "call" and inner.word in ("SelectMetric", "for_each"):
            named = inner.parts if inner.word == "SelectMetric" else inner.parts[:1]
            skipped.update(map(id, named))
        if inner.kind == "name" and id(inner) not in skipped:
            yield inner.word
