"""Rules checked, prepared as programs, and evaluated over one job.

    loaded = load_patterns(text, "load_imbalance.json")
    program, problems = compile_rule(rule, metrics, parameters)  # once per rule
    outcome = evaluate(program, job, {"load_imbalance_ratio_threshold": 0.2})

`metrics`: {name: RuleMetric} that the jobs offer. `job`: a `Ranks`. Nothing here reads files,
clocks or settings.

A value is a number (always a float), a truth, a text, a pair, or a list of these; None is unknown,
and stays unknown. What works on single values works on lists value by value, so no list is longer
than the ranks of a job. Numbers are finite: any other result is unknown, and a reason is noted. So
is a value of the wrong type: rules are tried out on a job where everything is known before they are
used.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tachograph.catalog.units import printable, text
from tachograph.judge.rules.compiler import RuleCompiler, RuleProgram
from tachograph.judge.rules.documents import RuleError
from tachograph.judge.rules.expression import Node
from tachograph.judge.rules.model import (
    PatternRule,
    ProblemList,
    Ranks,
    RuleLevel,
    RuleMetric,
    RuleOutcome,
    RulePair,
    RuleProblem,
    TextPiece,
)

LARGEST = sys.float_info.max
LONGEST_SHOWN = 4_000  # characters of the text for the user; what is longer is cut
_SHOWN_VALUES = 20  # of a list that a text names
_MOST_REASONS = 20
_LOGICAL = (bool, type(None))


def compile_rule(
    rule: PatternRule, metrics: Mapping[str, RuleMetric], parameters: Mapping[str, float]
) -> tuple[RuleProgram | None, tuple[RuleProblem, ...]]:
    """Return the program of a rule, and its problems: its first error (then None), and warnings.

    `parameters`: those with values. Unknown names, terms that use themselves, parameters, divisions
    by what may be zero, unused terms. A rule without such errors is tried out on a job of which
    everything is known: there a value of the wrong type is an error.
    """
    problems = ProblemList(rule.file)
    compiler = RuleCompiler(rule, metrics, parameters, problems)
    program = None
    try:
        program = compiler.program()
        compiler.check_uses()
        _Trial(program, _KnownRanks(metrics), parameters, compiler=compiler).run()
    except RuleError as error:
        problems.add_error(error)
        program = None
    ordered = sorted(problems.problems, key=lambda problem: (problem.line, problem.column))
    return program, tuple(ordered)


def evaluate(program: RuleProgram, job: Ranks, parameters: Mapping[str, float]) -> RuleOutcome:
    """Return the outcome; it never raises, for any rule and any job."""
    return _Evaluation(program, job, parameters).outcome()


class RankValues(list[Any]):
    """One value per rank; a plain list is one value, of all ranks together."""


@dataclass(slots=True)
class _Evaluation:
    """One evaluation: the job, and what was computed.

    values: of terms. missing, reasons: in order, without values. term: the one of the moment.
    """

    program: RuleProgram
    job: Ranks
    parameters: Mapping[str, float]
    values: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, None] = field(default_factory=dict)
    reasons: dict[str, None] = field(default_factory=dict)
    term: str = ""

    def outcome(self) -> RuleOutcome:
        """Evaluate all terms, and the texts where the rule alerts."""
        for name, node in self.program.terms.items():
            self.term = name
            self.values[name] = self.value(node)
        self.term = ""
        answer = self.values[self.program.rule.output]
        alert = _alert(answer)
        if alert:
            return self.alerted(answer)
        if alert is None:
            unknown, reasons = tuple(self.missing), tuple(self.reasons)
            return RuleOutcome(None, self.values, unknown=unknown, reasons=reasons)
        return RuleOutcome(False, self.values)

    def alerted(self, answer: Any) -> RuleOutcome:
        """Return the outcome of a rule that alerts, with its texts."""
        alerting = None
        if isinstance(answer, RankValues):
            alerting = [index for index, value in enumerate(answer) if value is True]
        shown: dict[str, Any] = {}
        text = self.text(self.program.template, alerting, shown)
        pieces = self.program.output_metric
        named: dict[str, Any] = {}
        metric = self.text(pieces, alerting, named)
        is_value_alone = all(piece.node is not None and not piece.inner for piece in pieces)
        if not is_value_alone:
            text = " ".join(filter(None, (text, metric)))
        if alerting is None:
            ranks = [value for values in named.values() for value in _as_list(values)]
        else:
            labels = self.labels(self.program.rule.level)
            ranks = [labels[index] for index in alerting]
        return RuleOutcome(
            True,
            self.values,
            shown | named,
            tuple(dict.fromkeys(name for name in ranks if isinstance(name, str))),
            text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}...",
        )

    def text(
        self, pieces: Sequence[TextPiece], alerting: list[int] | None, shown: dict[str, Any]
    ) -> str:
        """Return a text with its values filled in, which `shown` takes by their source.

        alerting: indices of the ranks that alert; None in a rule of jobs.
        """
        phrases: list[str] = []
        after_condition = False
        for piece in pieces:
            if sum(map(len, phrases)) > LONGEST_SHOWN:
                break  # what follows would be cut anyway
            if piece.node is None:
                phrases.append(piece.text)
                after_condition = False
                continue
            value = self.value(piece.node)
            if alerting is not None and isinstance(value, RankValues):
                value = [value[index] for index in alerting]
            if piece.inner is None:
                shown.setdefault(piece.text, value)
                phrases.append(_shown(value, piece.unit))
                after_condition = False
            elif any(item is True for item in _as_list(value)):
                phrases += [
                    "; " if after_condition else "",
                    self.text(piece.inner, alerting, shown),
                ]
                after_condition = True
        return "".join(phrases)

    def remark(self, reason: str) -> None:
        """Note why a value is unknown."""
        if len(self.reasons) < _MOST_REASONS:
            self.reasons[reason] = None

    def unknown(self, reason: str) -> Any:
        """Return the unknown value, and note why it is unknown in this term."""
        self.remark(f"{reason} in {self.term}" if self.term else reason)

    def wrong(self, node: Node, message: str) -> Any:
        """Return the unknown value where one of the wrong type was given."""
        return self.unknown(message)

    def compare_choices(self, node: Node, condition: Any, then: Any, otherwise: Any) -> None:
        """Do nothing: whether both values of an `if` can be used alike is decided by a trial."""

    def finite(self, result: Any) -> Any:
        """Return a result; the unknown value for a number that is too large."""
        if type(result) is float and not -LARGEST <= result <= LARGEST:
            return self.unknown("a number too large")
        return result

    def labels(self, level: RuleLevel) -> list[str]:
        """Return the names of the ranks, each cut to a length that can be shown."""
        return [str(name)[:200] for name in self.job.labels(level)]

    def value(self, node: Node) -> Any:
        """Return the value of an expression."""
        return _EVALUATED[node.kind](self, node)

    def read_parameter(self, node: Node) -> Any:
        value = known_number(self.parameters.get(node.word))
        return self.unknown(f"no value of parameter {node.word}") if value is None else value

    def read_metric(self, node: Node) -> Any:
        """Return a metric of the job, or a value for each rank; unknown where there is no rank."""
        name, known = node.word, known_text if node.value else known_number
        if node.level == "job":
            value = known(self.job.of_job(name))
            if value is None:
                self.missing[name] = None
            return value
        values, count = self.job.of_ranks(name), len(self.job.labels(node.level))
        if values is None or len(values) != count:
            values = [None] * count
        result = RankValues(map(known, values))
        if None in result or not count:
            self.missing[name] = None
        return result or None

    def read_labels(self, node: Node) -> Any:
        return RankValues(self.labels(node.level)) or None

    def each(self, node: Node, work: Callable[..., Any], *operands: Any) -> Any:
        """Return what comes of values; of lists, value by value."""
        lists = [operand for operand in operands if isinstance(operand, list)]
        if not lists:
            return work(*operands)
        if len(set(map(type, lists))) > 1:
            message = "a whole list stands beside the value of one rank; use SelectMetric for both"
            return self.wrong(node, message)
        if len(set(map(len, lists))) > 1:
            return self.wrong(node, "these lists do not have the same length")
        count = len(lists[0])
        columns = [
            operand if isinstance(operand, list) else [operand] * count for operand in operands
        ]
        return type(lists[0])([work(*row) for row in zip(*columns, strict=True)])

    def operation(self, node: Node) -> Any:
        """Return what operators make of values, from left to right."""
        result = self.value(node.parts[0])
        for symbol, part in zip(node.marks, node.parts[1:], strict=True):
            result = self.operate(node, symbol, result, self.value(part), divisor=part)
        return result

    def unary(self, node: Node) -> Any:
        """Return a number with a sign or without, a negation, or a part of a pair."""
        symbol = f"{node.word} before" if node.kind == "sign" else node.word
        return self.operate(node, symbol, self.value(node.parts[0]))

    def operate(self, node: Node, symbol: str, *operands: Any, divisor: Node | None = None) -> Any:
        """Return what an operator makes of values; of lists, value by value."""
        types, work = _OPERATORS[symbol]

        def single(*values: Any) -> Any:
            for value in values:
                if type(value) not in types:
                    return self.mistyped(node, symbol, types, values)
            try:
                result = work(*values)
            except TypeError:
                return self.mistyped(node, symbol, types, values)
            except ZeroDivisionError:
                name = "a divisor" if divisor is None else self.divisor_name(divisor)
                self.remark(f"{name} is 0, so {self.term or 'the result'} cannot be computed")
                return None
            return self.finite(result)

        for operand in operands:
            if isinstance(operand, list):
                return self.each(node, single, *operands)
        return single(*operands)

    def mistyped(self, node: Node, word: str, types: frozenset[type], values: Sequence[Any]) -> Any:
        """Return the unknown value: that is wrong unless a value is unknown."""
        if None in values:
            return None
        return self.wrong(node, f"{word} needs {_NEEDED.get(types, 'values of one type')}")

    def choose(self, node: Node) -> Any:
        """Return `if(condition; then; otherwise)`, elementwise for a list as condition.

        Without `otherwise`: the list of values for which the condition holds.
        """
        holds, *values = map(self.value, node.parts)

        def single(held: Any, then: Any, otherwise: Any) -> Any:
            if type(held) is bool:
                return then if held else otherwise
            return self.mistyped(node, "if", _TRUTH, [held])

        if len(values) == 2:
            self.compare_choices(node, holds, *values)
            if isinstance(holds, list):
                return self.each(node, single, holds, *values)
            return single(holds, *values)
        (then,) = values
        if isinstance(holds, RankValues) or isinstance(then, RankValues):
            message = "for one rank, if needs a third value: if(condition; value; otherwise)"
            return self.wrong(node, message)
        if not isinstance(holds, list):
            holds = [holds] * (len(then) if isinstance(then, list) else 1)
        if then is None or None in holds:
            return None
        if any(type(held) is not bool for held in holds):
            return self.mistyped(node, "if", _TRUTH, holds)
        pairs = self.each(node, lambda held, value: (held, value), holds, then)
        return None if pairs is None else [value for held, value in pairs if held]

    def gather(self, node: Node) -> Any:
        """Return a list of a value for each rank, also where it is the same for all."""
        value = self.value(node.parts[0])
        if isinstance(value, RankValues):
            return list(value)
        if isinstance(value, list):
            message = "this would be a list of lists; inside for_each use SelectMetric"
            return self.wrong(node.parts[0], message)
        count = len(self.job.labels(node.level))
        if not count:
            self.unknown(f"no {node.level} is known")
        return [value] * count or None

    def reduce(self, node: Node) -> Any:
        """Return one value of a list. A number is unknown where one of the values is."""
        name, values = node.word, self.value(node.parts[0])
        if values is None:
            return None
        if type(values) is not list:
            return self.wrong(node, f"{name} needs a list; GatherFromAllRanks(x) is one")
        types, work = _REDUCTIONS[name]
        if not set(map(type, values)) <= types:
            return self.mistyped(node, name, types, values)
        if not values and types is _NUMBER and name != "sum":
            return self.unknown("a statistic of no values")
        return self.finite(work(values))

    def divisor_name(self, node: Node) -> str:
        """Return the name of a divisor, such as `the median work of its GPUs`, a term or metric."""
        statistic = self.defined(node)
        if statistic.kind == "reduce" and _REDUCTIONS[statistic.word][0] is _NUMBER:
            gathered = self.defined(statistic.parts[0])
            selected = gathered.parts[0] if gathered.kind == "gather" else gathered
            if selected.kind == "metric" and selected.level != "job":
                ranks = "GPUs" if selected.level == "gpu" else "nodes"
                words = _IN_WORDS.get(statistic.word, statistic.word)
                return f"the {words} {selected.word} of its {ranks}"
        return node.word if node.kind in ("term", "parameter", "metric") else "a divisor"

    def defined(self, node: Node) -> Node:
        """Return what the name of a term stands for; any other expression itself."""
        return self.program.terms[node.word] if node.kind == "term" else node


_EVALUATED: Mapping[str, Callable[[_Evaluation, Node], Any]] = {
    "constant": lambda evaluation, node: node.value,
    "term": lambda evaluation, node: evaluation.values[node.word],
    "parameter": _Evaluation.read_parameter,
    "metric": _Evaluation.read_metric,
    "labels": _Evaluation.read_labels,
    "operation": _Evaluation.operation,
    "sign": _Evaluation.unary,
    "not": _Evaluation.unary,
    "part": _Evaluation.unary,
    "abs": _Evaluation.unary,
    "if": _Evaluation.choose,
    "gather": _Evaluation.gather,
    "reduce": _Evaluation.reduce,
}


def quantile(values: Sequence[float], share: float) -> float:
    """Return the quantile of the values, linearly interpolated (type 7, as in numpy).

    >>> [quantile([4.0, 1.0, 2.0, 3.0], share) for share in (0.25, 0.5, 0.75)]
    [1.75, 2.5, 3.25]
    """
    ordered = sorted(values)
    position = (len(ordered) - 1) * share
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] * (1 - (position - below)) + ordered[above] * (position - below)


def _same(x: Any, y: Any) -> bool | None:
    if type(x) is not type(y):
        raise TypeError
    return None if x is None else bool(x == y)


def _negated(value: bool | None) -> bool | None:
    return None if value is None else not value


def _logic(decisive: bool, values: Sequence[bool | None]) -> bool | None:
    """Return what one value decides; unknown where none does and some are unknown.

    >>> _logic(True, [False, None]), _logic(True, [True, None]), _logic(True, [])
    (None, True, False)
    """
    if decisive in values:
        return decisive
    return None if None in values else not decisive


_NUMBER = frozenset({float})
_TRUTH: frozenset[type] = frozenset({bool, type(None)})
_PAIR: frozenset[type] = frozenset({RulePair})
_SINGLE: frozenset[type] = _NUMBER | _TRUTH | {str}
_NEEDED = {_NUMBER: "numbers", _TRUTH: "true or false", _PAIR: "a tuple"}
# {operator or function: (types of its values, what it makes of them)}
_OPERATORS: Mapping[str, tuple[frozenset[type], Callable[..., Any]]] = {
    "+": (_NUMBER, operator.add),
    "-": (_NUMBER, operator.sub),
    "*": (_NUMBER, operator.mul),
    "/": (_NUMBER, operator.truediv),
    "max": (_NUMBER, max),
    "min": (_NUMBER, min),
    "<": (_NUMBER, operator.lt),
    "<=": (_NUMBER, operator.le),
    ">": (_NUMBER, operator.gt),
    ">=": (_NUMBER, operator.ge),
    "==": (_SINGLE, _same),
    "!=": (_SINGLE, lambda x, y: _negated(_same(x, y))),
    "and": (_TRUTH, lambda *values: _logic(False, values)),
    "or": (_TRUTH, lambda *values: _logic(True, values)),
    "not": (_TRUTH, _negated),
    "+ before": (_NUMBER, operator.pos),
    "- before": (_NUMBER, operator.neg),
    "abs": (_NUMBER, abs),
    "make_tuple": (_SINGLE, RulePair),
    "first": (_PAIR, operator.itemgetter(0)),
    "second": (_PAIR, operator.itemgetter(1)),
}
# {function: (types of the values of a list, what it makes of that)}
_REDUCTIONS: Mapping[str, tuple[frozenset[type], Callable[[list[Any]], Any]]] = {
    "max": (_NUMBER, max),
    "min": (_NUMBER, min),
    "sum": (_NUMBER, lambda values: sum(values, 0.0)),
    "mean": (_NUMBER, lambda values: sum(values) / len(values)),
    "median": (_NUMBER, lambda values: quantile(values, 0.5)),
    "lower_quartile": (_NUMBER, lambda values: quantile(values, 0.25)),
    "upper_quartile": (_NUMBER, lambda values: quantile(values, 0.75)),
    "any": (_TRUTH, lambda values: _logic(True, values)),
    "all": (_TRUTH, lambda values: _logic(False, values)),
    "cardinality": (_SINGLE | {RulePair}, lambda values: float(len(values))),
}
# Of divisors, for reasons.
_IN_WORDS = {
    "max": "largest",
    "min": "smallest",
    "sum": "summed",
    "lower_quartile": "lower quartile of",
    "upper_quartile": "upper quartile of",
}


def known_number(value: object) -> float | None:
    """Return a number that can be computed with, of what a job holds; None for anything else.

    >>> known_number(3), known_number(True), known_number(float("nan")), known_number("3")
    (3.0, 1.0, None, None)
    """
    if not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if -LARGEST <= number <= LARGEST else None


def known_text(value: object) -> str | None:
    """Return a text of a job, cut to a length that can be shown; None for anything else."""
    return value[:200] if isinstance(value, str) else None


def _alert(answer: Any) -> bool | None:
    """Return the alert: of ranks, whether one of them alerts."""
    if not isinstance(answer, list):
        return answer if isinstance(answer, bool) else None
    if any(value is True for value in answer):
        return True
    return False if answer and all(value is False for value in answer) else None


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _shown(value: Any, unit: str) -> str:
    """Return a value as text."""
    if isinstance(value, list):
        phrases = [_shown(item, unit) for item in value[:_SHOWN_VALUES]]
        if len(value) > len(phrases):
            phrases.append(f"and {len(value) - len(phrases)} more")
        return ", ".join(phrases) or "none"
    if isinstance(value, RulePair):
        return f"{_shown(value.first, '')}: {_shown(value.second, '')}"
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return printable(value)
    if unit.startswith("B"):
        return text(value, unit)
    if unit == "%":
        return text(value, "fraction").removesuffix(" %")
    return f"{value / 3600 if unit == 'h' else value:.4g}"


@dataclass(slots=True)
class _Trial(_Evaluation):
    """An evaluation in which a value of the wrong type is a RuleError."""

    compiler: RuleCompiler = field(kw_only=True)

    def wrong(self, node: Node, message: str) -> Any:
        raise self.compiler.error(node.at, message)

    def compare_choices(self, node: Node, condition: Any, then: Any, otherwise: Any) -> None:
        """Raise RuleError where one of both values of an `if` cannot stand for the other.

        A value for each rank may be the same for all, so it can stand beside a single one.
        """
        values = [*_as_list(then), *_as_list(otherwise)]
        pairs = [value for value in values if isinstance(value, RulePair)]
        for alike in (values, *zip(*pairs, strict=True)):
            if len({type(value) for value in alike if value is not None}) > 1:
                self.wrong(node, "if needs values of one type")
        if isinstance(condition, list) or then is None or otherwise is None:
            return
        if (type(then) is list) != (type(otherwise) is list):
            self.wrong(node, "if needs two lists or two single values")

    def run(self) -> None:
        """Evaluate all terms and texts, also what stands behind conditions that do not hold."""
        rule, problems = self.program.rule, self.compiler.problems
        for term, node in zip(rule.terms, self.program.terms.values(), strict=True):
            self.term = problems.term = term.name
            self.compiler.text = term.text
            answer = self.values[term.name] = self.value(node)
            if term.name != rule.output:
                continue
            if isinstance(answer, list) and (rule.level == "job" or type(answer) is list):
                message = f"the output {rule.output} is not true or false; use any(...) or all(...)"
                raise self.compiler.error(0, message)
            self.check_truth(answer, 0, f"the output {rule.output}")
        self.term = problems.term = ""
        self.compiler.text = rule.template.text
        self.try_pieces(self.program.template)
        self.compiler.text = rule.output_metric.text
        self.try_pieces(self.program.output_metric)

    def try_pieces(self, pieces: Sequence[TextPiece]) -> None:
        """Evaluate every piece of a text."""
        for piece in pieces:
            if piece.node is None:
                continue
            value = self.value(piece.node)
            if piece.inner is not None:
                self.check_truth(value, piece.node.at, f"the condition {piece.text[:40]}")
                self.try_pieces(piece.inner)

    def check_truth(self, value: Any, at: int, name: str) -> None:
        if any(type(item) not in _LOGICAL for item in _as_list(value)):
            raise self.compiler.error(at, f"{name} is not true or false")


@dataclass(frozen=True, slots=True)
class _KnownRanks:
    """A job with all metrics known, and different numbers of GPUs and nodes."""

    metrics: Mapping[str, RuleMetric]

    def labels(self, kind: RuleLevel) -> Sequence[str]:
        return [f"{kind} {index}" for index in range(2 if kind == "gpu" else 3)]

    def of_ranks(self, metric: str) -> Sequence[float | str]:
        return [self.of_job(metric) for _ in self.labels(self.metrics[metric].level)]

    def of_job(self, metric: str) -> float | str:
        return "text" if self.metrics[metric].text else 1.0
