"""Rules checked, prepared as programs, and evaluated over one job.

    loaded = load_patterns(text, "load_imbalance.json")
    problems = loaded.problems + check(rule, metrics, parameters)
    program = prepare(rule, metrics)          # once per rule
    outcome = evaluate(program, job, {"load_imbalance_ratio_threshold": 0.2})

`metrics`: {name: RuleMetric} that the jobs offer. `job`: a `Ranks`. Nothing here reads files, clocks or settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tachograph.catalog.errors import InputError
from tachograph.catalog.units import printable
from tachograph.judge.rules.documents import Item
from tachograph.judge.rules.expression import FunctionCall, Name, Node, walk
from tachograph.judge.rules.model import (
    BUDGET,
    Budget,
    PatternRule,
    ProblemSeverity,
    Ranks,
    RuleMetric,
    RuleOutcome,
    RulePair,
    RuleProblem,
    RuleTerm,
    Text,
    TextPiece,
)
from tachograph.judge.rules.types import Report, RuleType, Scope, Typed, typed
from tachograph.judge.rules.values import ExhaustedError, Run, State

_MOST_PROBLEMS = 50


@dataclass(frozen=True, slots=True)
class PreparedPiece:
    """A piece of a text and what computes it. of_ranks: a value for each rank, in rules below the job."""

    source: TextPiece
    run: Run | None = None
    inner: tuple[PreparedPiece, ...] = ()
    of_ranks: bool = False


@dataclass(frozen=True, slots=True)
class RuleProgram:
    """A rule that was checked, ready to be evaluated. needs: the metrics it reads, in order of their first use."""

    rule: PatternRule
    needs: tuple[str, ...] = ()
    terms: tuple[tuple[str, Run], ...] = ()
    of_ranks: frozenset[str] = frozenset()  # terms with a value for each rank, in rules below the job
    template: tuple[PreparedPiece, ...] = ()
    output_metric: tuple[PreparedPiece, ...] = ()


def check(
    rule: PatternRule, metrics: Mapping[str, RuleMetric], parameters: Mapping[str, float]
) -> tuple[RuleProblem, ...]:
    """Return what is wrong with a rule, errors and warnings, in the order of the file. `parameters`: those with values.

    Unknown names and metrics, unused terms, cycles, types, missing parameters, divisions by what may be zero.
    """
    checking = _Checking(rule, Scope(rule, metrics, parameters))
    checking.program()
    checking.parameters()
    checking.unused()
    return tuple(sorted(checking.problems, key=lambda problem: (problem.line, problem.column))[:_MOST_PROBLEMS])


def prepare(rule: PatternRule, metrics: Mapping[str, RuleMetric]) -> RuleProgram:
    """Return the program of a rule.

    Errors: InputError naming file, line and column where `check` finds an error.
    """
    checking = _Checking(rule, Scope(rule, metrics, {}))
    program = checking.program()
    for problem in checking.problems:
        if problem.severity == "error":
            place = f"{problem.file}:{problem.line}:{problem.column}"
            raise InputError(f"rule {rule.id}: {problem.message}", where=place, do="fix the rule, or disable it")
    return program


@dataclass(slots=True)
class _Checking:
    """One rule, and what was found wrong in it."""

    rule: PatternRule
    scope: Scope
    problems: list[RuleProblem] = field(default_factory=list)

    def program(self) -> RuleProgram:
        """Return the program, right if no problem is an error."""
        self.order()
        terms = tuple((term.name, self.term(term).run) for term in self.rule.terms)
        self.output()
        template, output_metric = (
            tuple(self.pieces(text, text.pieces)) for text in (self.rule.template, self.rule.output_metric)
        )
        each = frozenset(name for name, kind in self.scope.terms.items() if kind.is_each)
        return RuleProgram(self.rule, tuple(self.scope.needs), terms, each, template, output_metric)

    def problem(
        self, found: RuleTerm | Text, term: str, at: int, message: str, severity: ProblemSeverity = "error"
    ) -> None:
        """Note a problem at a character of an expression or a text."""
        column = Item(found.source, found.line, found.column, found.raw).column_of(at)
        self.problems.append(RuleProblem(self.rule.file, found.line, column, term, message, severity))

    def reporter(self, found: RuleTerm | Text, term: str, begin: int) -> Report:
        """Return what notes problems of an expression that begins there."""

        def report(at: int, message: str, severity: ProblemSeverity = "error") -> None:
            self.problem(found, term, begin + at, message, severity)

        return report

    def order(self) -> None:
        """Report terms that use later ones, or themselves: each through which others, if it is a cycle."""
        places = {term.name: place for place, term in enumerate(self.rule.terms)}
        uses = [
            {places[name.name]: name.at for name in reversed(references(term.node)) if name.name in places}
            for term in self.rule.terms
        ]
        reach = _reached(uses)
        for place, term in enumerate(self.rule.terms):
            for other, at in uses[place].items():
                if other < place:
                    continue
                name = self.rule.terms[other].name
                if reach[other] >> place & 1 or other == place:
                    self.problem(term, term.name, at, f"a cycle: {' -> '.join(self.cycle(uses, place, other))}")
                else:
                    self.problem(term, term.name, at, f"{name} is used before it is defined, in a later term")

    def cycle(self, uses: list[dict[int, int]], start: int, then: int) -> list[str]:
        """Return the names of a shortest way from a term back to itself."""
        before: dict[int, int] = {}
        waiting = [then]
        while start != then and start not in before:
            now = waiting.pop(0)
            fresh = [other for other in uses[now] if other not in before]
            before |= dict.fromkeys(fresh, now)
            waiting += fresh
        way = [start]
        while way[-1] != then:
            way.append(before[way[-1]])
        names = [self.rule.terms[place].name for place in (start, *reversed(way))]
        return names if len(names) < 8 else [*names[:4], "...", names[-1]]

    def term(self, term: RuleTerm) -> Typed:
        """Type a term; from then on its name is known."""
        names = [one.name for one in self.rule.terms]
        self.scope.later = frozenset(names[names.index(term.name) :])
        found = typed(term.node, self.scope, self.reporter(term, term.name, 0))
        self.scope.terms[term.name] = found.type
        self.scope.later = self.scope.later - {term.name}
        return found

    def output(self) -> None:
        """Report an output that is not true or false."""
        self.scope.used[self.rule.output] = None
        kind = self.scope.terms.get(self.rule.output, RuleType("any"))
        term = next((term for term in self.rule.terms if term.name == self.rule.output), None)
        if term is None or kind.base == "any":
            return
        if kind.base != "boolean":
            self.problem(term, term.name, 0, f"the output {term.name} is true or false; this is {kind}")
        elif kind.is_list:
            self.problem(term, term.name, 0, f"the output {term.name} is {kind}; use any(...) or all(...)")

    def pieces(self, text: Text, pieces: tuple[TextPiece, ...]) -> Iterator[PreparedPiece]:
        """Yield the pieces of a text with what computes them."""
        for piece in pieces:
            if piece.node is None:
                yield PreparedPiece(piece)
                continue

            report = self.reporter(text, "", 0 if piece.inner is None else piece.at)
            found = typed(piece.node, self.scope, report)
            if piece.inner is not None and (found.type.base not in ("boolean", "any") or found.type.is_list):
                report(0, f"the condition is true or false; this is {found.type}")
            if piece.unit and found.type.base not in ("number", "any"):
                self.problem(text, "", piece.at, f"{piece.text} is shown as a number; this is {found.type}")
            inner = tuple(self.pieces(text, piece.inner or ()))
            yield PreparedPiece(piece, found.run, inner, found.type.is_each)

    def parameters(self) -> None:
        """Report parameters without a value, and unused ones."""
        for name in self.rule.parameters:
            if name not in self.scope.used:
                self.rule_problem(f"parameter {name} is used nowhere", "warning")
            elif name not in self.scope.parameters:
                self.rule_problem(f"parameter {name} has no value")
            elif not abs(self.scope.parameters[name]) <= 1e300:
                self.rule_problem(f"parameter {name} is no number that can be computed with")
            if any(term.name == name for term in self.rule.terms):
                self.rule_problem(f"{name} is a parameter and a term; the term counts", "warning")

    def rule_problem(self, message: str, severity: ProblemSeverity = "error") -> None:
        self.problems.append(RuleProblem(self.rule.file, self.rule.line, self.rule.column, "", message, severity))

    def unused(self) -> None:
        """Warn of terms that neither the output nor a text leads to."""
        for term in self.rule.terms:
            if term.name not in self.scope.used:
                self.problem(term, term.name, 0, f"{term.name} is used nowhere", "warning")


def references(node: Node) -> list[Name]:
    """Return the names in an expression that may be terms: not those of metrics that are selected."""
    found: list[Name] = []
    skipped: set[int] = set()
    for inner, _ in walk(node):
        if isinstance(inner, FunctionCall) and inner.function in ("SelectMetric", "for_each"):
            last = 2 if inner.function == "SelectMetric" else 1
            skipped.update(id(argument) for argument in inner.arguments[:last])
        if isinstance(inner, Name) and id(inner) not in skipped:
            found.append(inner)
    return found


def _reached(uses: list[dict[int, int]]) -> list[int]:
    """Return for each term the bits of those that it leads to."""
    reach = [sum(1 << other for other in found) for found in uses]
    for middle in range(len(uses)):
        for place in range(len(uses)):
            if reach[place] >> middle & 1:
                reach[place] |= reach[middle]
    return reach


def evaluate(program: RuleProgram, job: Ranks, parameters: Mapping[str, float], budget: Budget = BUDGET) -> RuleOutcome:
    """Return the outcome; it never raises, for any rule and any job."""
    state = State(job, parameters, budget.steps)
    try:
        for name, run in program.terms:
            state.term = name
            state.values[name] = run(state)
        state.term = ""
        answer = state.values.get(program.rule.output)
        alert = _answer(answer)
        if alert:
            return _alerted(program, state, _held(program.rule, answer), budget)
    except ExhaustedError:
        state.reasons = {f"more than {budget.steps} steps": None, **state.reasons}
        alert = None
    return _outcome(program, state, alert, budget)


def _answer(answer: Any) -> bool | None:
    """Return the alert: of ranks, whether one of them alerts."""
    if isinstance(answer, list):
        return True if True in answer else None if None in answer or not answer else False
    return answer if isinstance(answer, bool) else None


def _held(rule: PatternRule, answer: Any) -> list[int] | None:
    """Return the places of the ranks that alert; None in a rule of jobs."""
    if rule.level == "job" or not isinstance(answer, list):
        return None
    return [place for place, one in enumerate(answer) if one is True]


def _outcome(program: RuleProgram, state: State, alert: bool | None, budget: Budget) -> RuleOutcome:
    unsure, found = alert is None, state.values
    return RuleOutcome(
        alert,
        {name: found.get(name) for name, _ in program.terms},
        unknown=tuple(state.missing) if unsure else (),
        reasons=tuple(state.reasons) if unsure else (),
        steps=budget.steps - max(state.left, 0),
    )


def _alerted(program: RuleProgram, state: State, held: list[int] | None, budget: Budget) -> RuleOutcome:
    """Return the outcome of a rule that alerts, with its texts."""
    writer = _Writer(state, held, budget)
    text = writer.text(program.template)
    of_template, writer.values = writer.values, {}
    metric = writer.text(program.output_metric)
    if any(piece.source.node is None or piece.inner for piece in program.output_metric):  # it is more than a value
        text = f"{text} {metric}" if text and metric else text or metric
    ranks = _labels(writer.ranks(program.rule)) if held is not None else _labels(_texts([*writer.values.values()]))
    return RuleOutcome(
        True,
        {name: state.values.get(name) for name, _ in program.terms},
        of_template | writer.values,
        ranks,
        text if len(text) <= budget.text else f"{text[: budget.text - 3]}...",
        steps=budget.steps - state.left,
    )


def _texts(found: Sequence[Any]) -> list[Any]:
    return [one for value in found for one in (value if isinstance(value, list) else [value])]


def _labels(found: Sequence[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one for one in found if isinstance(one, str)))


class _Writer:
    """Texts for the user. values: those in them, by their source."""

    def __init__(self, state: State, held: list[int] | None, budget: Budget) -> None:
        self.state = state
        self.held = held
        self.budget = budget
        self.values: dict[str, Any] = {}

    def ranks(self, rule: PatternRule) -> list[str]:
        """Return the names of the ranks that alert."""
        names = self.state.job.labels(rule.level)
        return [str(names[place])[:200] for place in self.held or () if place < len(names)]

    def text(self, pieces: Sequence[PreparedPiece]) -> str:
        """Return a text with its values filled in."""
        phrases: list[str] = []
        conditional = False
        for piece in pieces:
            if sum(map(len, phrases)) > self.budget.text:
                break  # what follows would be cut anyway
            if piece.run is None:
                phrases.append(piece.source.text)
                conditional = False
                continue
            value = self.of_held(piece.run(self.state), of_ranks=piece.of_ranks)
            if piece.source.inner is None:
                self.values.setdefault(piece.source.text, value)
                phrases.append(self.value(value, piece.source.unit))
                conditional = False
            elif value is True or (isinstance(value, list) and True in value):
                phrases += ["; " if conditional else "", self.text(piece.inner)]
                conditional = True
        return "".join(phrases)

    def of_held(self, value: Any, *, of_ranks: bool) -> Any:
        """Return of values of ranks those of the ranks that alert."""
        if self.held is None or not of_ranks or not isinstance(value, list):
            return value
        return [value[place] for place in self.held if place < len(value)]

    def value(self, value: Any, unit: str) -> str:
        """Return a value as text."""
        if isinstance(value, list):
            self.state.spend(self.budget.shown)
            few = [self.value(one, unit) for one in value[: self.budget.shown]]
            more = [f"and {len(value) - len(few)} more"] if len(value) > len(few) else []
            return ", ".join((*few, *more)) or "none"
        if isinstance(value, RulePair):
            return f"{self.value(value.first, '')}: {self.value(value.second, '')}"
        if value is None:
            return "unknown"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, str):
            return printable(value)
        return _number(value, unit)


def _number(value: float, unit: str) -> str:
    if unit == "%":
        return f"{100 * value:.3g}" if abs(value) < 9.995 else f"{100 * value:.4g}"
    return f"{value / 3600 if unit == 'h' else value:.4g}"
