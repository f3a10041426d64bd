"""Types of the expressions of rules, and what computes them: one walk returns both."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from tachograph.judge.rules import values
from tachograph.judge.rules.expression import (
    Chain,
    Compare,
    FunctionCall,
    Logic,
    Name,
    Node,
    Number,
    Truth,
    TuplePart,
    Unary,
    Words,
    walk,
)
from tachograph.judge.rules.functions import FUNCTIONS, REDUCTIONS, Base
from tachograph.judge.rules.model import PatternRule, ProblemSeverity, RuleLevel, RuleMetric
from tachograph.judge.rules.values import Run, State

_TYPE_NAMES: Mapping[Base, tuple[str, str]] = MappingProxyType(  # {base: (one, a list)}
    {
        "number": ("a number", "a list of numbers"),
        "boolean": ("true or false", "a list of true and false"),
        "text": ("a text", "a list of texts"),
        "pair": ("a tuple", "a list of tuples"),
        "any": ("something", "a list"),
    }
)


@dataclass(frozen=True, slots=True)
class RuleType:
    """What a value is.

    of: "" for a single value; for a list the ranks it is of ("gpu"), so that only lists of the same are computed with
    each other; "each gpu" for the value of one rank inside `for_each`. parts: of a pair. positive: certainly above 0.
    any: a mistake was reported already, so nothing more is reported.
    """

    base: Base
    of: str = ""
    parts: tuple[Base, Base] | None = None
    positive: bool = False

    @property
    def is_list(self) -> bool:
        """Whether it is a list to the one who writes the rule."""
        return bool(self.of) and not self.is_each

    @property
    def is_each(self) -> bool:
        """Whether it is the value of one rank."""
        return self.of.startswith("each ")

    def __str__(self) -> str:
        """As written in messages.

        >>> str(RuleType("number", "gpu")), str(RuleType("boolean"))
        ('a list of numbers', 'true or false')
        """
        return _TYPE_NAMES[self.base][self.is_list]


@dataclass(frozen=True, slots=True)
class Typed:
    """A type, and what computes the value."""

    type: RuleType
    run: Run


def nothing(state: object) -> None:
    """Compute what stands for a mistake."""


WRONG = Typed(RuleType("any"), nothing)


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
_RANKS: Mapping[str, str] = MappingProxyType({"gpu": "GPUs", "node": "nodes"})


def divisor_name(node: Node, rule: PatternRule, metrics: Mapping[str, RuleMetric]) -> str:
    """Return what a divisor is: `the median work of its GPUs`, the name of a term or metric, or `a divisor`."""
    meant = _defined(node, rule)
    return _statistic(meant, rule, metrics) or (node.name if isinstance(node, Name) else "a divisor")


def _defined(node: Node, rule: PatternRule) -> Node:
    """What a term's name stands for, one step back; else the expression itself."""
    if not isinstance(node, Name):
        return node
    return next((term.node for term in rule.terms if term.name == node.name), node)


def _statistic(node: Node, rule: PatternRule, metrics: Mapping[str, RuleMetric]) -> str:
    """Name of a statistic of a metric of all ranks; empty for anything else."""
    if not isinstance(node, FunctionCall) or len(node.arguments) != 1 or node.function not in _STATISTICS:
        return ""
    gathered = _defined(node.arguments[0], rule)
    if not isinstance(gathered, FunctionCall) or gathered.function != "GatherFromAllRanks" or not gathered.arguments:
        return ""
    selected = gathered.arguments[0]
    name = selected.arguments[0] if isinstance(selected, FunctionCall) and selected.function == "SelectMetric" else None
    metric = metrics.get(rule.metrics.get(name.name, name.name)) if isinstance(name, Name) else None
    if metric is None or metric.kind not in _RANKS:
        return ""
    return f"the {_STATISTICS[node.function]} {metric.name} of its {_RANKS[metric.kind]}"


_RANK_NAMES: Mapping[str, RuleLevel | None] = {"Process": None, "Rank": None, "GPU": "gpu", "Node": "node"}
_ARITHMETIC = {"+": values.add, "-": values.subtract, "*": values.multiply}
_MOST_PROPOSALS = 5  # proposals for misspelt names take time


class Report(Protocol):
    """Takes a problem at a character of the expression."""

    def __call__(self, at: int, message: str, severity: ProblemSeverity = "error") -> None:
        """Take it."""


@dataclass(slots=True)
class Scope:
    """What the names of a rule mean, so far. used, needs: names and metrics that were used."""

    rule: PatternRule
    metrics: Mapping[str, RuleMetric]
    parameters: Mapping[str, float]
    terms: dict[str, RuleType] = field(default_factory=dict)
    later: frozenset[str] = frozenset()  # terms that come further down
    used: dict[str, None] = field(default_factory=dict)
    needs: dict[str, None] = field(default_factory=dict)
    lists: int = 0  # lists made by `if`, to distinguish them
    proposals: int = 0
    ranks: RuleLevel | None = None  # see `kind`

    def metric(self, name: str) -> RuleMetric | None:
        """Return the metric that a name of the rule means."""
        return self.metrics.get(self.rule.metrics.get(name, name))

    def kind(self) -> RuleLevel:
        """Return what the ranks of the rule are where an expression leaves it open: what its first metric is of."""
        if self.ranks is not None:
            return self.ranks
        found = self.rule.level
        if found == "job":
            kinds = (self.kind_in(term.node) for term in self.rule.terms)
            found = next((kind for kind in kinds if kind), "gpu")
        self.ranks = found
        return found

    def kind_in(self, node: Node) -> RuleLevel | None:
        """Return what the first metric of ranks in an expression is of."""
        for inner, _ in walk(node):
            if isinstance(inner, FunctionCall) and inner.function == "SelectMetric" and inner.arguments:
                name = inner.arguments[0]
                metric = self.metric(name.name) if isinstance(name, Name) else None
                if metric is not None and metric.kind != "job":
                    return metric.kind
        return None

    def proposal(self, name: str, known: Sequence[str]) -> str:
        """Return `; did you mean ...?` where a known name is near."""
        self.proposals += 1
        near = difflib.get_close_matches(name[:64], known, 1) if self.proposals <= _MOST_PROPOSALS else []
        return f"; did you mean {near[0]}?" if near else ""


def typed(node: Node, scope: Scope, report: Report, *, guarded: frozenset[str] = frozenset()) -> Typed:
    """Return type and computation of an expression of a rule; its mistakes are reported."""
    return _Typer(scope, report, None if scope.rule.level == "job" else scope.rule.level, guarded).visit(node)


@dataclass(slots=True)
class _Typer:
    """Types one expression. each: what ranks `SelectMetric` reads here, one at a time; None: it may not stand here."""

    scope: Scope
    report: Report
    each: RuleLevel | None
    guarded: frozenset[str] = frozenset()  # names that a condition around looks at

    def wrong(self, at: int, message: str) -> Typed:
        self.report(at, message)
        return WRONG

    def visit(self, node: Node) -> Typed:
        """Return type and computation of an expression; its mistakes are reported."""
        match node:
            case Number(value=value):
                return Typed(RuleType("number", positive=value > 0), lambda state: value)
            case Words(value=text):
                return Typed(RuleType("text"), lambda state: text)
            case Truth(value=truth):
                return Typed(RuleType("boolean"), lambda state: truth)
            case Name():
                return self.name(node)
            case Chain():
                return self.chain(node)
            case Compare():
                return self.compare(node)
            case Logic():
                return self.logic(node.at, node.word, [self.visit(item) for item in node.items])
            case Unary():
                return self.unary(node)
            case TuplePart():
                return self.part(node)
            case FunctionCall():
                return self.call(node)

    def name(self, node: Name) -> Typed:
        name, scope = node.name, self.scope
        scope.used[name] = None
        if name in scope.terms:
            return Typed(scope.terms[name], lambda state: state.values[name])
        if name in scope.later:
            return WRONG  # reported by the check of the order of terms
        if name == "RANK":
            if self.each is None:
                return self.wrong(node.at, "RANK is known inside for_each only")
            return Typed(RuleType("text", f"each {self.each}"), values.labels(self.each))
        metric = scope.metric(name)
        if name in scope.rule.parameters or (name in scope.parameters and metric is None):
            if name not in scope.rule.parameters:
                return self.wrong(node.at, f"parameter {name} is not listed under parameter")
            return Typed(RuleType("number", positive=scope.parameters.get(name, 0.0) > 0), _parameter(name))
        if metric is None and name in scope.rule.metrics:
            return self.wrong(node.at, f"unknown metric {scope.rule.metrics[name]}")
        if metric is None:
            known = (*scope.terms, *scope.rule.parameters, *scope.rule.metrics, *scope.metrics)
            return self.wrong(node.at, f"unknown name {name}{scope.proposal(name, known)}")
        if metric.kind != "job":
            return self.wrong(node.at, f"{name} is a metric of each {metric.kind}: SelectMetric({name}, OverAll)")
        return self.metric_of_job(metric)

    def metric_of_job(self, metric: RuleMetric) -> Typed:
        self.scope.needs[metric.name] = None
        base: Base = "text" if metric.text else "number"
        return Typed(RuleType(base, positive=metric.positive), values.select_job(metric.name, text=metric.text))

    def needs(self, at: int, what: str, found: Typed, base: Base) -> bool:
        """Report a value that is not of that base; False where a mistake was reported before."""
        if found.type.base in (base, "any"):
            return found.type.base == base
        self.report(at, f"{what} needs {RuleType(base)}, this is {found.type}")
        return False

    def joined(self, at: int, *found: Typed) -> str | None:
        """Return what values computed with each other are of; None, and a report, where that cannot be."""
        lists = {one.type.of: one.type for one in found if one.type.of}
        if len(lists) < 2:
            return next(iter(lists), "")
        if any(one.is_each for one in lists.values()) and any(one.is_list for one in lists.values()):
            self.report(
                at, "inside for_each this is a whole list beside the value of one rank; use SelectMetric for both"
            )
        else:
            kinds = sorted(of.removeprefix("each ").partition(" ")[0] for of in lists)
            why = f"one is of {kinds[0]}s, one of {kinds[1]}s" if len(set(kinds)) > 1 else "if(...) took values out"
            self.report(at, f"these lists do not have the same length: {why}")
        return None

    def joined_as(self, at: int, what: str, items: list[Typed], base: Base) -> str | None:
        """Return what values of one base computed with each other are of; None, and a report, as `joined`."""
        return self.joined(at, *items) if all(self.needs(at, what, item, base) for item in items) else None

    def chain(self, node: Chain) -> Typed:
        items = [(node.first, self.visit(node.first))]
        items += [(operand, self.visit(operand)) for _, operand, _ in node.rest]
        well = True
        for (inner, found), operator in zip(items, ["+", *(operator for operator, _, _ in node.rest)], strict=True):
            fine = self.needs(inner.at, node.rest[0][0], found, "number")
            if operator == "/" and fine:
                self.divisor(inner, found.type)
            well &= fine
        of = self.joined(node.rest[0][2], *(found for _, found in items)) if well else None
        if of is None:
            return WRONG
        rest = [
            (self.arithmetic(sign, inner), found.run)
            for (sign, _, _), (inner, found) in zip(node.rest, items[1:], strict=True)
        ]
        positive = all(found.type.positive for _, found in items) and all(sign != "-" for sign, _, _ in node.rest)
        return Typed(RuleType("number", of, positive=positive), values.fold(items[0][1].run, rest))

    def arithmetic(self, sign: str, right: Node) -> values.Work:
        """Return what computes with two numbers; a division names what it divides by."""
        if sign == "/":
            return values.divide_by(divisor_name(right, self.scope.rule, self.scope.metrics))
        return _ARITHMETIC[sign]

    def divisor(self, node: Node, found: RuleType) -> None:
        """Warn where a divisor may be zero and no condition around looks at it."""
        if isinstance(node, Number) and node.value == 0:
            self.report(node.at, "a division by zero")
        elif not found.positive and not (isinstance(node, Name) and node.name in self.guarded):
            what = node.name if isinstance(node, Name) else "this"
            self.report(node.at, f"{what} may be zero; where it is, the result is unknown", "warning")

    def compare(self, node: Compare) -> Typed:
        left, right = self.visit(node.left), self.visit(node.right)
        if left.type.base == "any":
            return WRONG
        base = left.type.base if node.relation in ("==", "!=") and left.type.base in ("text", "boolean") else "number"
        fine = self.needs(node.left.at, node.relation, left, base) & self.needs(node.at, node.relation, right, base)
        of = self.joined(node.at, left, right) if fine else None
        if of is None:
            return WRONG
        return Typed(RuleType("boolean", of), values.fold(left.run, [(_RELATIONS[node.relation], right.run)]))

    def logic(self, at: int, word: str, items: list[Typed]) -> Typed:
        work = values.both if word == "and" else values.either
        of = self.joined_as(at, word, items, "boolean")
        if of is None:
            return WRONG
        rest = [(work, item.run) for item in items[1:]]
        return Typed(RuleType("boolean", of), values.fold(items[0].run, rest, unknown=True))

    def unary(self, node: Unary) -> Typed:
        inner = self.visit(node.inner)
        base: Base = "boolean" if node.operator == "not" else "number"
        if not self.needs(node.at, node.operator, inner, base):
            return WRONG
        if node.operator == "+":
            return inner
        return Typed(RuleType(base, inner.type.of), values.lift1(_not if base == "boolean" else _minus, inner.run))

    def part(self, node: TuplePart) -> Typed:
        inner = self.visit(node.inner)
        if node.part not in ("first", "second"):
            return self.wrong(node.at, f"a tuple has .first and .second, and no .{node.part[:40]}")
        if not self.needs(node.at, f".{node.part}", inner, "pair") or inner.type.parts is None:
            return WRONG
        place = 0 if node.part == "first" else 1
        return Typed(
            RuleType(inner.type.parts[place], inner.type.of), values.lift1(_first if not place else _second, inner.run)
        )

    def call(self, node: FunctionCall) -> Typed:
        name = node.function
        if name != "if" and ";" in node.separators:
            self.report(node.at, f"commas stand between what {name} is given; semicolons are for if")
        if name in ("and", "or"):
            if not node.arguments:
                return self.wrong(node.at, f"{name} needs values")
            return self.logic(node.at, name, [self.visit(one) for one in node.arguments])
        if name in ("max", "min") and len(node.arguments) > 1:
            return self.largest(node)
        if name in REDUCTIONS:
            return self.reduction(node)
        match name, node.arguments:
            case "SelectMetric", (metric, over):
                return self.select(metric, over)
            case "GatherFromAllRanks", (inner,):
                return self.gather(inner, None)
            case "for_each", (who, inner):
                return self.for_each(who, inner)
            case "make_tuple", (first, second):
                return self.pair(node, self.visit(first), self.visit(second))
            case "if", (condition, then, *otherwise) if len(otherwise) < 2:
                return self.condition(node, condition, then, otherwise)
            case "abs", (inner,):
                found = self.visit(inner)
                fine = self.needs(inner.at, name, found, "number")
                return Typed(RuleType("number", found.type.of), values.lift1(_abs, found.run)) if fine else WRONG
        if name in FUNCTIONS:
            return self.wrong(node.at, f"{name} is not given what it needs; see its line in the reference")
        return self.wrong(node.at, f"unknown function {name[:40]}{self.scope.proposal(name, FUNCTIONS)}")

    def reduction(self, node: FunctionCall) -> Typed:
        work = REDUCTIONS[node.function]
        if len(node.arguments) != 1:
            return self.wrong(node.at, f"{node.function} takes one list")
        found = self.visit(node.arguments[0])
        if found.type.base == "any" and not found.type.of:
            return WRONG
        if not found.type.is_list:
            hint = "; gather it from all ranks first" if found.type.is_each else ""
            return self.wrong(node.arguments[0].at, f"{node.function} needs a list, this is {found.type}{hint}")
        if work.takes != "any" and not self.needs(node.arguments[0].at, node.function, found, work.takes):
            return WRONG
        return Typed(RuleType(work.returns, positive=work.positive and found.type.positive), work.make(found.run))

    def largest(self, node: FunctionCall) -> Typed:
        """`max(a, b)`, `min(a, b)` of single values."""
        items = [self.visit(one) for one in node.arguments]
        of = self.joined_as(node.at, node.function, items, "number")
        if of is None:
            return WRONG
        above = [item.type.positive for item in items]
        work, positive = (_larger, any(above)) if node.function == "max" else (_smaller, all(above))
        rest = [(work, item.run) for item in items[1:]]
        return Typed(RuleType("number", of, positive=positive), values.fold(items[0].run, rest))

    def select(self, node: Node, over: Node) -> Typed:
        if not isinstance(over, Name) or over.name != "OverAll":
            self.report(over.at, "the second of SelectMetric is OverAll: the whole job")
        if not isinstance(node, Name):
            return self.wrong(node.at, "the first of SelectMetric is the name of a metric")
        self.scope.used[node.name] = None
        metric = self.scope.metric(node.name)
        if metric is None:
            known = (*self.scope.rule.metrics, *self.scope.metrics)
            return self.wrong(node.at, f"unknown metric {node.name}{self.scope.proposal(node.name, known)}")
        if metric.kind == "job":
            return self.metric_of_job(metric)
        self.scope.needs[metric.name] = None
        if self.each is None:
            return self.wrong(node.at, "SelectMetric stands inside for_each or GatherFromAllRanks in a rule of jobs")
        if metric.kind != self.each:
            return self.wrong(node.at, f"{node.name} is a metric of each {metric.kind}, not of each {self.each}")
        base: Base = "text" if metric.text else "number"
        run = values.select_ranks(metric.name, metric.kind, text=metric.text)
        return Typed(RuleType(base, f"each {metric.kind}", positive=metric.positive), run)

    def for_each(self, who: Node, inner: Node) -> Typed:
        if not isinstance(who, Name) or who.name not in _RANK_NAMES:
            return self.wrong(who.at, f"the first of for_each is {', '.join(_RANK_NAMES)}")
        return self.gather(inner, _RANK_NAMES[who.name])

    def gather(self, inner: Node, kind: RuleLevel | None) -> Typed:
        kind = kind or self.scope.kind_in(inner) or self.scope.kind()
        found = _Typer(self.scope, self.report, kind, self.guarded).visit(inner)
        if found.type.base == "any":
            return WRONG
        if found.type.is_list:
            return self.wrong(inner.at, "this would be a list of lists; inside for_each use SelectMetric")
        if found.type.is_each and found.type.of != f"each {kind}":
            return self.wrong(inner.at, f"this is of each {found.type.of[5:]}, not of each {kind}")
        of = found.type
        return Typed(RuleType(of.base, kind, of.parts, of.positive), values.each(kind, found.run))

    def pair(self, node: FunctionCall, first: Typed, second: Typed) -> Typed:
        for inner, found in zip(node.arguments, (first, second), strict=True):
            if found.type.base == "pair":
                return self.wrong(inner.at, "a tuple cannot hold a tuple")
        if "any" in (first.type.base, second.type.base):
            return WRONG
        of = self.joined(node.at, first, second)
        if of is None:
            return WRONG
        run = values.fold(first.run, [(values.pair, second.run)], unknown=True)
        return Typed(RuleType("pair", of, (first.type.base, second.type.base)), run)

    def condition(self, node: FunctionCall, condition: Node, then: Node, otherwise: list[Node]) -> Typed:
        if "," in node.separators:
            self.report(node.at, "semicolons stand between what if is given: if(condition; value)")
        holds = self.visit(condition)
        fine = self.needs(condition.at, "if", holds, "boolean")
        named = frozenset(inner.name for inner, _ in walk(condition) if isinstance(inner, Name))
        inside = _Typer(self.scope, self.report, self.each, self.guarded | named)
        found = [inside.visit(one) for one in (then, *otherwise)]
        of = self.joined(node.at, holds, *found) if fine else None
        if of is None or any(one.type.base == "any" for one in found):
            return WRONG
        kept = found[0].type
        if len(found) == 2:
            other = found[1].type
            if (kept.base, kept.parts) != (other.base, other.parts):
                return self.wrong(otherwise[0].at, f"both values of if are alike; these are {kept} and {other}")
            if not holds.type.of and bool(kept.of) != bool(other.of):
                return self.wrong(otherwise[0].at, f"both values of if are alike; these are {kept} and {other}")
            both = RuleType(kept.base, of, kept.parts, kept.positive and other.positive)
            return Typed(both, values.choose(holds.run, found[0].run, found[1].run))
        if of.startswith("each "):
            return self.wrong(node.at, "for one rank, if needs a third value: if(condition; value; otherwise)")
        self.scope.lists += 1
        kind = of.partition(" ")[0] or "value"
        taken = RuleType(kept.base, f"{kind} taken {self.scope.lists}", kept.parts, kept.positive)
        return Typed(taken, values.keep(holds.run, found[0].run))


def _parameter(name: str) -> Run:
    def run(state: State) -> float | None:
        value = values.known_number(state.parameters.get(name))
        if value is None:
            state.reason(f"no value of parameter {name}")
        return value

    return run


_RELATIONS: Mapping[str, Any] = {
    "<": lambda state, x, y: x < y,
    "<=": lambda state, x, y: x <= y,
    ">": lambda state, x, y: x > y,
    ">=": lambda state, x, y: x >= y,
    "==": lambda state, x, y: x == y,
    "!=": lambda state, x, y: x != y,
}


def _not(state: State, value: bool) -> bool:
    return not value


def _minus(state: State, value: float) -> float:
    return -value


def _abs(state: State, value: float) -> float:
    return abs(value)


def _first(state: State, value: tuple[Any, Any]) -> Any:
    return value[0]


def _second(state: State, value: tuple[Any, Any]) -> Any:
    return value[1]


def _larger(state: State, x: float, y: float) -> float:
    return max(x, y)


def _smaller(state: State, x: float, y: float) -> float:
    return min(x, y)
