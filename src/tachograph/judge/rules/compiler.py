"""Resolves what the names and calls of a rule mean, and finds mistakes before any job."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from tachograph.judge.rules.documents import RuleError
from tachograph.judge.rules.expression import Node, walk
from tachograph.judge.rules.model import (
    PatternRule,
    ProblemList,
    RuleLevel,
    RuleMetric,
    TextPiece,
)

_RANK_NAMES: Mapping[str, RuleLevel | None] = {
    "Process": None,
    "Rank": None,
    "GPU": "gpu",
    "Node": "node",
}
_MANY = range(1, 100)
# {function: numbers of arguments that it takes}. Those of a list alone are `columns.REDUCTIONS`.
FUNCTIONS: Mapping[str, Collection[int]] = {
    "max": _MANY,
    "min": _MANY,
    "sum": (1,),
    "mean": (1,),
    "median": (1,),
    "lower_quartile": (1,),
    "upper_quartile": (1,),
    "cardinality": (1,),
    "any": (1,),
    "all": (1,),
    "SelectMetric": (2,),
    "GatherFromAllRanks": (1,),
    "for_each": (2,),
    "make_tuple": (2,),
    "if": (2, 3),
    "abs": (1,),
    "and": _MANY,
    "or": _MANY,
    "not": (1,),
}
# Of values above 0 these are above 0 themselves, so that dividing by them is safe.
_KEEP_SIGN = ("min", "mean", "median", "lower_quartile", "upper_quartile")


@dataclass(frozen=True, slots=True)
class RuleProgram:
    """A rule that was checked, ready to be evaluated.

    The kinds of its nodes say what is read: a constant, term, parameter, metric (of the job or, by
    its level, of ranks), or labels (of ranks); or what is done: operation, not, sign, part, if,
    abs, gather (a list of all ranks), or reduce (one value of a list). needs: the metrics it reads,
    in order of their first use.
    """

    rule: PatternRule
    needs: tuple[str, ...]
    terms: Mapping[str, Node]
    template: tuple[TextPiece, ...]
    output_metric: tuple[TextPiece, ...]


@dataclass(slots=True)
class RuleCompiler:
    """Compiles one rule. Raises RuleError for its first mistake, and notes warnings.

    text: of the expression of the moment. guarded: names that a condition around looks at, so that
    a division by them is intended.
    """

    rule: PatternRule
    metrics: Mapping[str, RuleMetric]
    parameters: Mapping[str, float]
    problems: ProblemList
    terms: dict[str, Node] = field(default_factory=dict)
    positive: dict[str, bool] = field(default_factory=dict)  # of terms: certainly above 0
    used: set[str] = field(default_factory=set)
    needs: dict[str, None] = field(default_factory=dict)
    guarded: frozenset[str] = frozenset()
    text: str = ""

    def program(self) -> RuleProgram:
        """Return the program."""
        rule = self.rule
        level = None if rule.level == "job" else rule.level
        for term in rule.terms:
            self.problems.term, self.text = term.name, term.text
            node = self.resolve(term.node, level)
            self.terms[term.name] = node
            self.positive[term.name] = self.is_positive(node)
        self.used.add(rule.output)
        self.problems.term = ""
        texts = []
        for text in (rule.template, rule.output_metric):
            self.text = text.text
            texts.append(tuple(self.pieces(text.pieces, level)))
        return RuleProgram(rule, tuple(self.needs), self.terms, texts[0], texts[1])

    def pieces(self, pieces: Iterable[TextPiece], level: RuleLevel | None) -> Iterator[TextPiece]:
        """Yield the pieces of a text with their expressions resolved."""
        for piece in pieces:
            node = None if piece.node is None else self.resolve(piece.node, level)
            inner = None if piece.inner is None else tuple(self.pieces(piece.inner, level))
            yield replace(piece, node=node, inner=inner)

    def check_uses(self) -> None:
        """Warn of unused terms and parameters; raise RuleError for parameters without a value."""
        tag = self.rule.written_tag
        for name in self.rule.parameters:
            if name in self.terms:
                message = f"{name} is a parameter and a term; the term counts"
                self.problems.warn(message, tag)
            elif name not in self.used:
                self.problems.warn(f"parameter {name} is used nowhere", tag)
            elif name not in self.parameters:
                raise RuleError(f"parameter {name} has no value", tag)
            elif not abs(self.parameters[name]) <= 1e300:
                raise RuleError(f"parameter {name} needs a finite number", tag)
        for term in self.rule.terms:
            if term.name not in self.used:
                self.problems.term = term.name
                self.problems.warn(f"{term.name} is used nowhere", term.text, 0)
        self.problems.term = ""

    def error(self, at: int, message: str) -> RuleError:
        """Return an error at a character of the expression of the moment."""
        return RuleError(message, self.text, at)

    def resolve(self, node: Node, level: RuleLevel | None) -> Node:
        """Return an expression with its names and calls resolved.

        level: the ranks that `SelectMetric` reads here, one value each; None: it may not stand
        here.
        """
        if node.kind == "name":
            return self.name(node, level)
        if node.kind == "call":
            return self.call(node, level)
        if node.kind == "part" and node.word not in ("first", "second"):
            message = f"a tuple has .first and .second, and no .{node.word[:40]}"
            raise self.error(node.at, message)
        parts = tuple([self.resolve(part, level) for part in node.parts])
        if "/" in node.marks:
            self.check_divisors(node, parts)
        return replace(node, parts=parts)

    def name(self, node: Node, level: RuleLevel | None) -> Node:
        """Return the meaning of a name: term, parameter, metric, or names of the ranks."""
        name = node.word
        self.used.add(name)
        if name in self.terms:
            return replace(node, kind="term")
        if any(term.name == name for term in self.rule.terms):
            raise self.error(
                node.at, f"{name} is used before it is defined: no term may use itself"
            )
        if name == "RANK":
            if level is None:
                raise self.error(node.at, "RANK is known inside for_each only")
            return replace(node, kind="labels", level=level)
        metric = self.metric(name)
        if name in self.rule.parameters:
            return replace(node, kind="parameter")
        if name in self.parameters and metric is None:
            raise self.error(node.at, f"parameter {name} is not listed under parameter")
        if metric is None:
            known = (*self.terms, *self.rule.parameters, *self.rule.metrics, *self.metrics)
            raise self.error(node.at, f"unknown name {name}{_proposal(name, known)}")
        if metric.level != "job":
            message = f"{name} is a metric of each {metric.level}: SelectMetric({name}, OverAll)"
            raise self.error(node.at, message)
        return self.reading(node, metric)

    def reading(self, node: Node, metric: RuleMetric) -> Node:
        """Return the node that reads a metric."""
        self.needs[metric.name] = None
        return replace(
            node, kind="metric", word=metric.name, value=metric.text, level=metric.level, parts=()
        )

    def metric(self, name: str) -> RuleMetric | None:
        """Return the metric that a name of the rule means."""
        return self.metrics.get(self.rule.metrics.get(name, name))

    def call(self, node: Node, level: RuleLevel | None) -> Node:
        """Return what a function does."""
        name, arguments = node.word, node.parts
        if name not in FUNCTIONS:
            raise self.error(node.at, f"unknown function {name[:40]}{_proposal(name, FUNCTIONS)}")
        wrong_mark = "," if name == "if" else ";"
        if wrong_mark in node.marks:
            right = "semicolons" if name == "if" else "commas"
            raise self.error(node.at, f"{right} stand between the arguments of {name}")
        if len(arguments) not in FUNCTIONS[name]:
            raise self.error(
                node.at, f"{name} takes other arguments; see its line in the reference"
            )
        if name == "SelectMetric":
            return self.select(node, level)
        if name in ("GatherFromAllRanks", "for_each"):
            return self.gather(node)
        guarded = self.guarded
        first = self.resolve(arguments[0], level)
        if name == "if":
            self.guarded |= {inner.word for inner, _ in walk(arguments[0]) if inner.kind == "name"}
        parts = (first, *[self.resolve(argument, level) for argument in arguments[1:]])
        self.guarded = guarded
        if name in ("and", "or", "make_tuple") or (name in ("max", "min") and len(parts) > 1):
            marks = (name,) * (len(parts) - 1)
            return replace(node, kind="operation", marks=marks, parts=parts)
        kind = name if name in ("if", "abs") else "reduce"
        return replace(node, kind=kind, parts=parts)

    def select(self, node: Node, level: RuleLevel | None) -> Node:
        """Return what `SelectMetric(metric, OverAll)` reads."""
        selected, period = node.parts
        name = selected.word
        if period.word != "OverAll":
            raise self.error(period.at, "the second of SelectMetric is OverAll: the whole job")
        if selected.kind != "name":
            raise self.error(selected.at, "the first of SelectMetric is the name of a metric")
        metric = self.metric(name)
        if metric is None:
            known = (*self.rule.metrics, *self.metrics)
            raise self.error(selected.at, f"unknown metric {name}{_proposal(name, known)}")
        if metric.level != "job" and level is None:
            message = "SelectMetric stands inside for_each or GatherFromAllRanks in a rule of jobs"
            raise self.error(selected.at, message)
        if metric.level not in ("job", level):
            message = f"{name} is a metric of each {metric.level}, not of each {level}"
            raise self.error(selected.at, message)
        return self.reading(node, metric)

    def gather(self, node: Node) -> Node:
        """Return the list of `GatherFromAllRanks(x)` or `for_each(Process, x)`."""
        inner = node.parts[-1]
        level = None
        if node.word == "for_each":
            ranks = node.parts[0]
            if ranks.word not in _RANK_NAMES:
                message = f"the first of for_each is {', '.join(_RANK_NAMES)}"
                raise self.error(ranks.at, message)
            level = _RANK_NAMES[ranks.word]
        level = level or self.level_of(inner) or self.usual_level()
        return replace(node, kind="gather", level=level, parts=(self.resolve(inner, level),))

    def usual_level(self) -> RuleLevel:
        """Return the level of ranks if an expression leaves it open: that of the first metric."""
        if self.rule.level != "job":
            return self.rule.level
        levels = (self.level_of(term.node) for term in self.rule.terms)
        return next((level for level in levels if level), "gpu")

    def level_of(self, node: Node) -> RuleLevel | None:
        """Return what the first metric of ranks in an expression is of."""
        for inner, _ in walk(node):
            if inner.word == "SelectMetric" and inner.parts:
                metric = self.metric(inner.parts[0].word)
                if metric is not None and metric.level != "job":
                    return metric.level
        return None

    def check_divisors(self, node: Node, parts: tuple[Node, ...]) -> None:
        """Raise RuleError for a division by 0; warn of possible zero divisors without a
        condition.
        """
        operands = zip(node.marks, node.parts[1:], parts[1:], strict=True)
        for symbol, written, divisor in operands:
            if symbol != "/":
                continue
            if divisor.value == 0 and divisor.kind == "constant":
                raise self.error(divisor.at, "a division by zero")
            if not self.is_positive(divisor) and written.word not in self.guarded:
                name = written.word if written.kind == "name" else "this"
                message = f"{name} may be zero; where it is, the result is unknown"
                self.problems.warn(message, self.text, written.at)

    def is_positive(self, node: Node) -> bool:
        """Return whether a value, or each value of a list, is certainly above 0."""
        if node.kind == "constant":
            return isinstance(node.value, float) and node.value > 0
        if node.kind == "term":
            return self.positive[node.word]
        if node.kind == "parameter":
            return self.parameters.get(node.word, 0.0) > 0
        if node.kind == "metric":
            return self.metrics[node.word].positive
        if "max" in node.marks:
            return any(map(self.is_positive, node.parts))
        parts = node.parts[1:] if node.kind == "if" else node.parts
        keeps = {"*", "/", "+", "min"}.issuperset(node.marks)
        if node.kind == "reduce":
            keeps = node.word in ("max", *_KEEP_SIGN)
        keeps &= node.kind in ("operation", "reduce", "if", "gather", "abs")
        return keeps and all(map(self.is_positive, parts))


def _proposal(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?` where a known name is near."""
    near = difflib.get_close_matches(name[:64], known, 1)
    return f"; did you mean {near[0]}?" if near else ""
