"""Rules checked, prepared as programs, and evaluated over many jobs at once.

    loaded = load_patterns(text, "load_imbalance.json")
    program, problems = compile_rule(rule, metrics, parameters)  # once per rule
    evaluation = RuleEvaluation(program, jobs, {"load_imbalance_ratio_threshold": 0.2})
    evaluation.alerts, evaluation.outcome(0)

`metrics`: {name: RuleMetric} that the jobs offer. `jobs`: a `JobMetrics`. Nothing here reads files,
clocks or settings.

A value is a number (always a float), a truth, a text, a pair, or a list of these; None is unknown,
and stays unknown. What works on single values works on lists value by value, so no list is longer
than the ranks of a job. Numbers are finite: any other result is unknown, and a reason is noted. So
is a value of the wrong type: rules are tried out on a job where everything is known before they are
used. Each operation works on the column of all jobs' values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from tachograph.catalog.arrays import Flags, Longs
from tachograph.catalog.units import printable, text
from tachograph.judge.rules.columns import (
    LIST,
    LOGICAL,
    NEEDED,
    NUMBER,
    OPERATORS,
    RANKS,
    REDUCTIONS,
    SCALAR,
    SINGLE,
    TRUTH,
    ColumnShape,
    RankValues,
    RuleColumn,
    align,
    chosen,
    constant_column,
    pair_column,
    single_shape,
    unknown_column,
)
from tachograph.judge.rules.compiler import RuleCompiler, RuleProgram
from tachograph.judge.rules.documents import RuleError
from tachograph.judge.rules.expression import Node
from tachograph.judge.rules.model import (
    LONGEST_TEXT,
    JobMetrics,
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
        _Trial(program, SingleJob(_KnownRanks(metrics)), parameters, compiler=compiler).run()
    except RuleError as error:
        problems.add_error(error)
        program = None
    ordered = sorted(problems.problems, key=lambda problem: (problem.line, problem.column))
    return program, tuple(ordered)


def evaluate(program: RuleProgram, job: Ranks, parameters: Mapping[str, float]) -> RuleOutcome:
    """Return the outcome of one job; it never raises, for any rule and any job."""
    return RuleEvaluation(program, SingleJob(job), parameters).outcome(0)


@dataclass(slots=True)
class _TermColumns:
    """The columns of expressions, computed for all jobs.

    terms: by name. missing, reasons: in order, with the jobs of which a value is unknown for that.
    term: the one of the moment.
    """

    program: RuleProgram
    jobs: JobMetrics
    parameters: Mapping[str, float]
    terms: dict[str, RuleColumn] = field(default_factory=dict)
    missing: list[tuple[Flags, str]] = field(default_factory=list)
    reasons: list[tuple[Flags, str]] = field(default_factory=list)
    shapes: dict[RuleLevel, ColumnShape] = field(default_factory=dict)  # by level of ranks
    term: str = ""

    def unknown(self, jobs: Flags, reason: str) -> None:
        """Note why a value of some jobs is unknown in this term."""
        self.remark(jobs, f"{reason} in {self.term}" if self.term else reason)

    def remark(self, jobs: Flags, reason: str) -> None:
        """Note why a value of some jobs is unknown."""
        if jobs.any():
            self.reasons.append((jobs, reason))

    def wrong(self, node: Node, jobs: Flags, message: str) -> None:
        """Note that values of the wrong type were given."""
        self.unknown(jobs, message)

    def compare_choices(self, node: Node, holds: RuleColumn, *values: RuleColumn) -> None:
        """Do nothing: whether both values of an `if` can be used alike is decided by a trial."""

    def finite(self, column: RuleColumn) -> RuleColumn:
        """Return a column without numbers that are too large."""
        if column.kind is not float:
            return column
        finite = np.isfinite(column.values)
        if finite.all():
            return column
        self.unknown(column.shape.jobs_of(column.known & ~finite), "a number too large")
        return replace(column, known=column.known & finite)

    def shape_of(self, level: RuleLevel) -> ColumnShape:
        """Return the shape of a value for each job, or for each rank of a level."""
        shape = self.shapes.get(level)
        if shape is None:
            if level == "job":
                shape = single_shape(self.jobs.count)
            else:
                counts = self.jobs.rank_counts(level)
                shape = ColumnShape(
                    np.where(counts > 0, RANKS, SINGLE).astype(np.uint8), np.maximum(counts, 1)
                )
            self.shapes[level] = shape
        return shape

    def value(self, node: Node) -> RuleColumn:
        """Return the values of an expression."""
        return _EVALUATED[node.kind](self, node)

    def constant(self, node: Node) -> RuleColumn:
        return constant_column(self.shape_of("job"), node.value)

    def read_parameter(self, node: Node) -> RuleColumn:
        value = known_number(self.parameters.get(node.word))
        if value is None:
            every_job = np.ones(self.jobs.count, bool)
            self.unknown(every_job, f"no value of parameter {node.word}")
        return constant_column(self.shape_of("job"), value)

    def read_metric(self, node: Node) -> RuleColumn:
        """Return a metric of the jobs, or a value for each rank; unknown where there is no rank."""
        known, values = self.jobs.values(node.word, node.level, is_text=bool(node.value))
        column = self.of_ranks(node, known, values)
        jobs = column.shape.jobs_of(~column.known)
        if jobs.any():
            self.missing.append((jobs, node.word))
        return column

    def of_ranks(self, node: Node, known: Flags, values: Any) -> RuleColumn:
        """Return the column of values of the ranks that there are, or of jobs."""
        shape, kind = self.shape_of(node.level), str if values.dtype == object else float
        if len(values) == len(shape.owners):
            return RuleColumn(shape, kind, known, values)
        exists = shape.forms[shape.owners] > 0
        padded = np.zeros(len(exists), values.dtype)
        padded[exists] = values
        all_known = np.zeros(len(exists), bool)
        all_known[exists] = known
        return RuleColumn(shape, kind, all_known, padded)

    def read_labels(self, node: Node) -> RuleColumn:
        values = np.array(
            [str(name)[:LONGEST_TEXT] for name in self.jobs.labels(node.level)], object
        )
        return self.of_ranks(node, np.ones(len(values), bool), values)

    def aligned(
        self, node: Node, columns: Sequence[RuleColumn]
    ) -> tuple[ColumnShape, Sequence[RuleColumn], Flags | None]:
        """Return columns in one shape, and the jobs whose lists do not fit to each other."""
        aligned = align(columns)
        if aligned.mixed is None or aligned.unequal is None:
            return aligned.shape, aligned.columns, None
        message = "a whole list stands beside the value of one rank; use SelectMetric for both"
        for jobs, reason in (
            (aligned.mixed, message),
            (aligned.unequal, "these lists do not have the same length"),
        ):
            if jobs.any():
                self.wrong(node, jobs, reason)
        return aligned.shape, aligned.columns, aligned.mixed | aligned.unequal

    def operation(self, node: Node) -> RuleColumn:
        """Return what operators make of values, from left to right."""
        result = self.value(node.parts[0])
        for symbol, part in zip(node.marks, node.parts[1:], strict=True):
            result = self.operate(node, symbol, result, self.value(part), divisor=part)
        return result

    def unary(self, node: Node) -> RuleColumn:
        """Return a number with a sign or without, a negation, or a part of a pair."""
        symbol = f"{node.word} before" if node.kind == "sign" else node.word
        return self.operate(node, symbol, self.value(node.parts[0]))

    def operate(
        self, node: Node, symbol: str, *operands: RuleColumn, divisor: Node | None = None
    ) -> RuleColumn:
        """Return what an operator makes of values; of lists, value by value."""
        types, work = OPERATORS[symbol]
        shape, columns, unfit = self.aligned(node, operands)
        kinds = {column.kind for column in columns if column.kind is not None}
        of_one_type = types is not SCALAR or len(kinds) <= 1 or work is pair_column
        if not (kinds <= types and of_one_type):
            return self.mistyped(node, symbol, types, columns)
        if len(kinds) < 1 and work is not pair_column:
            return unknown_column(shape)
        if symbol == "/":
            columns = [columns[0], self.divisor(columns[1], divisor, columns[0].known)]
        with np.errstate(all="ignore"):
            result = self.finite(work(*columns))
        if unfit is not None and unfit.any():
            result = replace(result, known=result.known & ~unfit[shape.owners])
        return result

    def divisor(self, column: RuleColumn, node: Node | None, divided: Flags) -> RuleColumn:
        """Return the values to divide by: 0 is unknown, and a reason where the `divided` is not."""
        zeros = divided & column.known & (column.values == 0)
        if not zeros.any():
            return column
        name = "a divisor" if node is None else self.divisor_name(node)
        reason = f"{name} is 0, so {self.term or 'the result'} cannot be computed"
        self.remark(column.shape.jobs_of(zeros), reason)
        return replace(column, known=column.known & ~zeros)

    def mistyped(
        self, node: Node, word: str, types: frozenset[type], columns: Sequence[RuleColumn]
    ) -> RuleColumn:
        """Return unknown values: they are wrong unless one of them is unknown."""
        shape, known = columns[0].shape, np.all([column.known for column in columns], axis=0)
        if known.any():
            needed = f"{word} needs {NEEDED.get(types, 'values of one type')}"
            self.wrong(node, shape.jobs_of(known), needed)
        return unknown_column(shape)

    def choose(self, node: Node) -> RuleColumn:
        """Return `if(condition; then; otherwise)`, elementwise for a list as condition.

        Without `otherwise`: the list of values for which the condition holds.
        """
        holds, *values = map(self.value, node.parts)
        if len(values) == 1:
            return self.select(node, holds, values[0])
        self.compare_choices(node, holds, *values)
        if holds.kind not in LOGICAL:
            return self.mistyped(node, "if", TRUTH, [holds])
        then, otherwise = values
        if not (then.shape.is_single and otherwise.shape.is_single):
            # a single condition takes one of both as a whole
            first = holds.shape.starts[:-1]
            true = holds.values[np.minimum(first, len(holds.values) - 1)].astype(bool)
            listed, known = holds.shape.forms > 0, holds.shape.jobs_of(holds.known)
            then = then.only(listed | (known & true))
            otherwise = otherwise.only(listed | (known & ~true))
        shape, (holds, then, otherwise), unfit = self.aligned(node, (holds, then, otherwise))
        kinds = {column.kind for column in (then, otherwise) if column.kind is not None}
        if len(kinds) > 1:
            return self.mistyped(node, "if", SCALAR, (then, otherwise))
        result = chosen(holds.values.astype(bool), then, otherwise)
        known = result.known & holds.known
        if unfit is not None:
            known &= ~unfit[shape.owners]
        return replace(result, known=known)

    def select(self, node: Node, holds: RuleColumn, then: RuleColumn) -> RuleColumn:
        """Return the lists of the values for which a condition holds."""
        of_ranks = (holds.shape.forms == RANKS) | (then.shape.forms == RANKS)
        if of_ranks.any():
            message = "for one rank, if needs a third value: if(condition; value; otherwise)"
            self.wrong(node, of_ranks, message)
        absent = (then.shape.forms == SINGLE) & then.shape.jobs_of(~then.known)
        undecided = holds.shape.jobs_of(~holds.known)
        if holds.kind not in LOGICAL:
            return self.mistyped(node, "if", TRUTH, [holds.only(~(of_ranks | absent))])
        known = ~(of_ranks | absent | undecided)
        shape, (holds, then), unfit = self.aligned(node, (holds.only(known), then.only(known)))
        if unfit is not None:
            known &= ~unfit
        kept = holds.values.astype(bool) & known[shape.owners]
        kept[shape.starts[:-1][~known]] = True  # the slot of an unknown list
        slots = np.flatnonzero(kept)
        counts = np.bincount(shape.owners[slots], minlength=len(known))
        result = then.take(slots, ColumnShape(np.where(known, LIST, SINGLE), counts))
        return replace(result, known=result.known & known[result.shape.owners])

    def gather(self, node: Node) -> RuleColumn:
        """Return a list of a value for each rank, also where it is the same for all."""
        column = self.value(node.parts[0])
        shape, of_level = column.shape, self.shape_of(node.level)
        nested = shape.forms == LIST
        if nested.any():
            message = "this would be a list of lists; inside for_each use SelectMetric"
            self.wrong(node.parts[0], nested, message)
        none = (shape.forms == SINGLE) & (of_level.forms == SINGLE)
        self.unknown(none, f"no {node.level} is known")
        if shape is of_level:
            return replace(column, shape=shape.as_list, known=column.known & ~none[shape.owners])
        is_known = ~(none | nested)
        own = shape.forms == RANKS
        counts = np.where(own, shape.counts, np.where(nested, 1, of_level.counts))
        # the ranks' own shape, where it is theirs, fits to other lists without being compared
        lists = of_level.as_list
        if own.any() or nested.any():
            lists = ColumnShape(np.where(is_known, LIST, SINGLE), counts)
        result = column.only(~nested)
        result = result.take(result.shape.slots_for(counts, own), lists)
        return replace(result, known=result.known & is_known[lists.owners])

    def reduce(self, node: Node) -> RuleColumn:
        """Return one value of a list. A number is unknown where one of the values is."""
        name, column = node.word, self.value(node.parts[0])
        shape = column.shape
        is_list, has_unknown = shape.forms == LIST, shape.jobs_of(~column.known)
        wrong = (shape.forms == RANKS) | ((shape.forms == SINGLE) & ~has_unknown)
        if wrong.any():
            self.wrong(node, wrong, f"{name} needs a list; GatherFromAllRanks(x) is one")
        types, kind, work = REDUCTIONS[name]
        filled = shape.counts > 0
        if column.kind is not None and column.kind not in types:
            mistyped = is_list & filled & ~has_unknown
            if mistyped.any():
                needed = f"{name} needs {NEEDED.get(types, 'values of one type')}"
                self.wrong(node, mistyped, needed)
            is_list &= ~filled
        if types is NUMBER:
            is_list &= ~has_unknown
            if name != "sum":
                self.unknown(is_list & ~filled, "a statistic of no values")
                is_list &= filled
        known = np.zeros(len(filled), bool)
        values: Any = np.zeros(len(filled), kind)
        # lists of one length are the rows of a matrix
        for count in np.unique(shape.counts[is_list]):
            jobs = np.flatnonzero(is_list & (shape.counts == count))
            slots = shape.starts[jobs][:, None] + np.arange(count)
            with np.errstate(all="ignore"):
                known[jobs], values[jobs] = work(column.known[slots], column.values[slots])
        return self.finite(RuleColumn(self.shape_of("job"), kind, known, values))

    def divisor_name(self, node: Node) -> str:
        """Return the name of a divisor, such as `the median work of its GPUs`, a term or metric."""
        statistic = self.defined(node)
        if statistic.kind == "reduce" and REDUCTIONS[statistic.word][0] is NUMBER:
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


_EVALUATED: Mapping[str, Callable[[_TermColumns, Node], RuleColumn]] = {
    "constant": _TermColumns.constant,
    "term": lambda columns, node: columns.terms[node.word],
    "parameter": _TermColumns.read_parameter,
    "metric": _TermColumns.read_metric,
    "labels": _TermColumns.read_labels,
    "operation": _TermColumns.operation,
    "sign": _TermColumns.unary,
    "not": _TermColumns.unary,
    "part": _TermColumns.unary,
    "abs": _TermColumns.unary,
    "if": _TermColumns.choose,
    "gather": _TermColumns.gather,
    "reduce": _TermColumns.reduce,
}


class RuleEvaluation:
    """One rule over jobs: its alerts (None: unknown), and the outcome of each job."""

    def __init__(
        self, program: RuleProgram, jobs: JobMetrics, parameters: Mapping[str, float]
    ) -> None:
        """Evaluate all terms."""
        self.columns = _TermColumns(program, jobs, parameters)
        for name, node in program.terms.items():
            self.columns.term = name
            self.columns.terms[name] = self.columns.value(node)
        self.columns.term = ""
        self.answer = self.columns.terms[program.rule.output]
        self.alerts = _alerts(self.answer)
        self._texts: dict[int, RuleColumn] = {}

    def outcome(self, index: int) -> RuleOutcome:
        """Return the outcome of a job, with texts where the rule alerts."""
        columns, alert = self.columns, self.alerts[index]
        values = {name: column.of_job(index) for name, column in columns.terms.items()}
        if alert:
            return self._alerted(index, values)
        if alert is None:
            return replace(self.undetermined(index), values=values)
        return RuleOutcome(False, values)

    def undetermined(self, index: int) -> RuleOutcome:
        """Return what is missing of a job, and the reasons; without values."""
        unknown, reasons = (
            tuple(dict.fromkeys(text for jobs, text in notes if jobs[index]))
            for notes in (self.columns.missing, self.columns.reasons)
        )
        return RuleOutcome(None, unknown=unknown, reasons=reasons[:_MOST_REASONS])

    def _alerted(self, index: int, values: Mapping[str, Any]) -> RuleOutcome:
        """Return the outcome of a job for which the rule alerts, with its texts."""
        program, alerting = self.columns.program, None
        answer = values[program.rule.output]
        if isinstance(answer, RankValues):
            alerting = [rank for rank, value in enumerate(answer) if value is True]
        shown: dict[str, Any] = {}
        text = self._text(index, program.template, alerting, shown)
        pieces = program.output_metric
        named: dict[str, Any] = {}
        metric = self._text(index, pieces, alerting, named)
        is_value_alone = all(piece.node is not None and not piece.inner for piece in pieces)
        if not is_value_alone:
            text = " ".join(filter(None, (text, metric)))
        if alerting is None:
            ranks = [value for values in named.values() for value in _as_list(values)]
        else:
            starts, labels = self._ranks
            ranks = [str(labels[starts[index] + rank])[:LONGEST_TEXT] for rank in alerting]
        return RuleOutcome(
            True,
            values,
            shown | named,
            tuple(dict.fromkeys(name for name in ranks if isinstance(name, str))),
            text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}...",
        )

    @cached_property
    def _ranks(self) -> tuple[Longs, Sequence[str]]:
        """The first rank of each job at the level of the rule, and the names of all ranks."""
        jobs, level = self.columns.jobs, self.columns.program.rule.level
        counts = jobs.rank_counts(level)
        return np.cumsum(counts) - counts, jobs.labels(level)

    def _text(
        self,
        index: int,
        pieces: Sequence[TextPiece],
        alerting: list[int] | None,
        shown: dict[str, Any],
    ) -> str:
        """Return a text with the values of a job, which `shown` takes by their source.

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
            if id(piece) not in self._texts:
                self._texts[id(piece)] = self.columns.value(piece.node)
            value = self._texts[id(piece)].of_job(index)
            if alerting is not None and isinstance(value, RankValues):
                value = [value[rank] for rank in alerting]
            if piece.inner is None:
                shown.setdefault(piece.text, value)
                phrases.append(_shown(value, piece.unit))
                after_condition = False
            elif any(item is True for item in _as_list(value)):
                phrases += [
                    "; " if after_condition else "",
                    self._text(index, piece.inner, alerting, shown),
                ]
                after_condition = True
        return "".join(phrases)


@dataclass(frozen=True, slots=True)
class SingleJob:
    """One job as JobMetrics. What is no number or text, or not of all ranks, is unknown."""

    job: Ranks
    count: int = 1

    def rank_counts(self, level: RuleLevel) -> Longs:
        """Return the number of its ranks."""
        return np.array([len(self.job.labels(level))])

    def labels(self, level: RuleLevel) -> Sequence[str]:
        """Return the names of its ranks."""
        return self.job.labels(level)

    def values(self, metric: str, level: RuleLevel, *, is_text: bool) -> tuple[Flags, Any]:
        """Return which values of a metric are known, and the values."""
        if level == "job":
            values: Sequence[Any] | None = [self.job.of_job(metric)]
        else:
            values, count = self.job.of_ranks(metric), len(self.job.labels(level))
            values = values if values is not None and len(values) == count else [None] * count
        known = list(map(known_text if is_text else known_number, values or ()))
        flags = np.array([value is not None for value in known], bool)
        return flags, np.array(known, object if is_text else float)


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
    return value[:LONGEST_TEXT] if isinstance(value, str) else None


def _alerts(answer: RuleColumn) -> list[bool | None]:
    """Return the alert of each job: of ranks, whether one of them alerts."""
    shape, jobs = answer.shape, len(answer.shape.counts)
    if answer.kind is not bool:
        return [None] * jobs
    alerting = shape.jobs_of(answer.known & answer.values)
    decided = alerting | ((shape.counts > 0) & ~shape.jobs_of(~answer.known))
    pairs = zip(alerting.tolist(), decided.tolist(), strict=True)
    return [alert if is_decided else None for alert, is_decided in pairs]


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
class _Trial(_TermColumns):
    """An evaluation in which a value of the wrong type is a RuleError."""

    compiler: RuleCompiler = field(kw_only=True)

    def wrong(self, node: Node, jobs: Flags, message: str) -> None:
        raise self.compiler.error(node.at, message)

    def compare_choices(self, node: Node, holds: RuleColumn, *values: RuleColumn) -> None:
        """Raise RuleError where one of both values of an `if` cannot stand for the other.

        A value for each rank may be the same for all, so it can stand beside a single one.
        """
        pairs = [column.parts for column in values if column.parts and column.known.any()]
        for alike in (values, *zip(*pairs, strict=True)):
            if len({column.kind for column in alike if column.known.any()}) > 1:
                self.wrong(node, holds.known, "if needs values of one type")
        absent = [column.shape.forms[0] == SINGLE and not column.known[0] for column in values]
        if holds.shape.forms[0] != SINGLE or any(absent):
            return
        then, otherwise = (column.shape.forms[0] == LIST for column in values)
        if then != otherwise:
            self.wrong(node, holds.known, "if needs two lists or two single values")

    def run(self) -> None:
        """Evaluate all terms and texts, also what stands behind conditions that do not hold."""
        rule, problems = self.program.rule, self.compiler.problems
        for term, node in zip(rule.terms, self.program.terms.values(), strict=True):
            self.term = problems.term = term.name
            self.compiler.text = term.text
            answer = self.terms[term.name] = self.value(node)
            if term.name != rule.output:
                continue
            form = answer.shape.forms[0]
            if form == LIST or (form == RANKS and rule.level == "job"):
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

    def check_truth(self, value: RuleColumn, at: int, name: str) -> None:
        if value.kind not in LOGICAL and value.known.any():
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
