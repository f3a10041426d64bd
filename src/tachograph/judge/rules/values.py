"""How values are computed with: unknown stays unknown, and no list is longer than the ranks of a
job.

A value is a number (always a float), a truth, a text, a pair, or a list of these; None is unknown.
What works on single values is lifted to lists, value by value. Numbers are finite: any other result
is unknown, and a reason is noted. So is a value of the wrong type: rules are tried out on a job
where everything is known before they are used.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tachograph.judge.rules.model import Ranks, RuleLevel, RulePair

LARGEST = sys.float_info.max
_MOST_REASONS = 20


class RankValues(list[Any]):
    """One value of each rank, computed rank by rank. A plain list is one value: that of all
    ranks together.
    """


@dataclass(slots=True)
class EvaluationState:
    """One evaluation: the job, and what was computed.

    values: of terms. ranks: of metrics of ranks, which are read once. missing, reasons: in order,
    without values. mistakes: values of the wrong type, as (character of the expression, message).
    """

    job: Ranks
    parameters: Mapping[str, float]
    values: dict[str, Any] = field(default_factory=dict)
    ranks: dict[str, RankValues | None] = field(default_factory=dict)
    missing: dict[str, None] = field(default_factory=dict)
    reasons: dict[str, None] = field(default_factory=dict)
    mistakes: list[tuple[int, str]] = field(default_factory=list)
    term: str = ""

    def remark(self, reason: str) -> None:
        """Note why a value is unknown."""
        if len(self.reasons) < _MOST_REASONS:
            self.reasons[reason] = None

    def unknown(self, reason: str) -> Any:
        """Return the unknown value, and note why it is unknown in this term."""
        self.remark(f"{reason} in {self.term}" if self.term else reason)
        return None

    def wrong(self, at: int, message: str) -> Any:
        """Return the unknown value where one of the wrong type was given, and note the mistake."""
        if len(self.mistakes) < _MOST_REASONS:
            self.mistakes.append((at, message))
        return self.unknown(message)


Run = Callable[[EvaluationState], Any]
# On two values; either may be unknown, or a list.
Operation = Callable[[EvaluationState, Any, Any], Any]

_ARITHMETIC: Mapping[str, Callable[[float, float], float]] = MappingProxyType(
    {
        "+": operator.add,
        "-": operator.sub,
        "*": operator.mul,
        "/": operator.truediv,
        "max": max,
        "min": min,
    }
)
_RELATIONS: Mapping[str, Callable[[Any, Any], bool]] = MappingProxyType(
    {
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
        "==": operator.eq,
        "!=": operator.ne,
    }
)
_LOGICAL = (bool, type(None))


def _finite(state: EvaluationState, number: float) -> Any:
    if -LARGEST <= number <= LARGEST:
        return number
    return state.unknown("a number too large")


def arithmetic(symbol: str, at: int, divisor: str = "") -> Operation:
    """Return the operation of +, -, *, /, max or min. divisor: what a division divides by, in
    words.
    """
    work = _ARITHMETIC[symbol]

    def operation(state: EvaluationState, x: Any, y: Any) -> Any:
        if type(x) is float and type(y) is float:
            if divisor and y == 0:
                state.remark(f"{divisor} is 0, so {state.term or 'the result'} cannot be computed")
                return None
            number = work(x, y)
            if -LARGEST <= number <= LARGEST:  # as `_finite`: this is what most of the time goes to
                return number
            return _finite(state, number)
        return _lifted(state, operation, x, y, at, f"{symbol} needs numbers")

    return operation


def comparison(symbol: str, at: int) -> Operation:
    """Return the operation of a comparison: of numbers, or for equality also of two texts or
    truths.
    """
    work = _RELATIONS[symbol]
    equality = symbol in ("==", "!=")
    comparable = (str, bool) if equality else ()
    operands = "two values of one type" if equality else "numbers"

    def operation(state: EvaluationState, x: Any, y: Any) -> Any:
        if type(x) is float and type(y) is float:
            return work(x, y)
        if type(x) is type(y) and type(x) in comparable:
            return work(x, y)
        return _lifted(state, operation, x, y, at, f"{symbol} needs {operands}")

    return operation


def logic(word: str, at: int) -> Operation:
    """Return the operation of `and` or `or`: unknown unless what is known decides it."""
    decisive = word == "or"

    def operation(state: EvaluationState, x: Any, y: Any) -> Any:
        if type(x) is bool and type(y) is bool:
            return decisive if x is decisive or y is decisive else not decisive
        if type(x) not in _LOGICAL or type(y) not in _LOGICAL:
            return _lifted(state, operation, x, y, at, f"{word} needs true or false")
        return decisive if x is decisive or y is decisive else None

    return operation


def pair(at: int) -> Operation:
    """Return the operation of `make_tuple`: either part may be unknown."""

    def operation(state: EvaluationState, x: Any, y: Any) -> Any:
        if isinstance(x, RulePair | list) or isinstance(y, RulePair | list):
            return _lifted(state, operation, x, y, at, "a tuple cannot hold a tuple")
        return RulePair(x, y)

    return operation


def _lifted(
    state: EvaluationState, operation: Operation, x: Any, y: Any, at: int, message: str
) -> Any:
    """Return an operation on values that are not of its type: on lists value by value, on
    unknown ones unknown.
    """
    if isinstance(x, list) and isinstance(y, list):
        columns = _aligned(state, at, x, y)
        return (
            None
            if columns is None
            else type(x)([operation(state, *row) for row in zip(*columns, strict=True)])
        )
    if isinstance(x, list):
        return type(x)([operation(state, value, y) for value in x])
    if isinstance(y, list):
        return type(y)([operation(state, x, value) for value in y])
    return None if x is None or y is None else state.wrong(at, message)


def fold(first: Run, steps: Sequence[tuple[Operation, Run]]) -> Run:
    """Return what computes from left to right."""

    def run(state: EvaluationState) -> Any:
        value = first(state)
        for operation, right in steps:
            other = right(state)
            value = operation(state, value, other)
        return value

    return run


def _aligned(state: EvaluationState, at: int, *operands: Any) -> list[list[Any]] | None:
    """Return values, the first of them a list, as lists of its length; None where lists do not
    go together.
    """
    first = operands[0]
    columns = [
        operand if isinstance(operand, list) else type(first)([operand] * len(first))
        for operand in operands
    ]
    if len(set(map(type, columns))) > 1:
        state.wrong(
            at, "a whole list stands beside the value of one rank; use SelectMetric for both"
        )
        return None
    if len(set(map(len, columns))) > 1:
        state.wrong(at, "these lists do not have the same length")
        return None
    return columns


def lift(inner: Run, value_type: type, work: Callable[[Any], Any], at: int, message: str) -> Run:
    """Return what works on a value of a type, or on each value of a list; message: of a value of
    another type.
    """

    def single(state: EvaluationState, value: Any) -> Any:
        if type(value) is value_type:
            return work(value)
        return None if value is None else state.wrong(at, message)

    def run(state: EvaluationState) -> Any:
        value = inner(state)
        if isinstance(value, list):
            return type(value)([single(state, item) for item in value])
        return single(state, value)

    return run


def choose(condition: Run, then: Run, otherwise: Run, at: int) -> Run:
    """Return `if(condition; then; otherwise)`, for each value of a list where the condition is
    one.
    """

    def single(state: EvaluationState, holds: Any, x: Any, y: Any) -> Any:
        if type(holds) is bool:
            return x if holds else y
        return None if holds is None else state.wrong(at, "the condition of if is true or false")

    def run(state: EvaluationState) -> Any:
        holds, x, y = condition(state), then(state), otherwise(state)
        if not isinstance(holds, list):
            return single(state, holds, x, y)
        columns = _aligned(state, at, holds, x, y)
        return (
            None
            if columns is None
            else type(holds)([single(state, *row) for row in zip(*columns, strict=True)])
        )

    return run


def keep(condition: Run, then: Run, at: int) -> Run:
    """Return `if(condition; then)`: a list of the values for which the condition holds."""

    def run(state: EvaluationState) -> Any:
        holds, values = condition(state), then(state)
        if isinstance(holds, RankValues) or isinstance(values, RankValues):
            return state.wrong(
                at, "for one rank, if needs a third value: if(condition; value; otherwise)"
            )
        if not isinstance(holds, list):
            holds = [holds] * (len(values) if isinstance(values, list) else 1)
        if values is None or None in holds:
            return None
        if any(type(held) is not bool for held in holds):
            return state.wrong(at, "the condition of if is true or false")
        columns = _aligned(state, at, holds, values)
        return (
            None
            if columns is None
            else [value for held, value in zip(*columns, strict=True) if held]
        )

    return run


def any_of(values: Sequence[bool | None]) -> bool | None:
    """Whether one is true: unknown where none is and some are unknown.

    >>> any_of([False, None]), any_of([True, None]), any_of([])
    (None, True, False)
    """
    return True if True in values else None if None in values else False


def all_of(values: Sequence[bool | None]) -> bool | None:
    """Whether none is false: unknown where none is and some are unknown."""
    return False if False in values else None if None in values else True


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values lie, linear between the two nearest (type
    7, as in numpy).

    >>> [quantile([4.0, 1.0, 2.0, 3.0], share) for share in (0.25, 0.5, 0.75)]
    [1.75, 2.5, 3.25]
    """
    ordered = sorted(values)
    position = (len(ordered) - 1) * share
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] * (1 - (position - below)) + ordered[above] * (position - below)


# Functions that make one value of a list: {name: (type of its values, what computes the result)}.
REDUCTIONS: Mapping[str, tuple[type, Callable[[list[Any]], Any]]] = MappingProxyType(
    {
        "max": (float, max),
        "min": (float, min),
        "sum": (float, lambda values: sum(values, 0.0)),
        "mean": (float, lambda values: sum(values) / len(values)),
        "median": (float, lambda values: quantile(values, 0.5)),
        "lower_quartile": (float, lambda values: quantile(values, 0.25)),
        "upper_quartile": (float, lambda values: quantile(values, 0.75)),
        "cardinality": (object, lambda values: float(len(values))),
        "any": (bool, any_of),
        "all": (bool, all_of),
    }
)


def reduce_list(name: str, inner: Run, at: int) -> Run:
    """Return what makes one value of a list. A number is unknown where one of the values is."""
    value_type, work = REDUCTIONS[name]
    value_names = "numbers" if value_type is float else "true and false"

    def run(state: EvaluationState) -> Any:
        values = inner(state)
        if values is None:
            return None
        if type(values) is not list:
            return state.wrong(at, f"{name} needs a list; GatherFromAllRanks(x) is one")
        if value_type is float and None in values:
            return None
        if value_type is not object and not {value_type, type(None)}.issuperset(map(type, values)):
            return state.wrong(at, f"{name} needs a list of {value_names}")
        if value_type is float and not values and name != "sum":
            return state.unknown("a statistic of no values")
        result = work(values)
        return _finite(state, result) if type(result) is float else result

    return run


def known_number(value: object) -> float | None:
    """Return a number that can be computed with, of what a job holds; None for anything else.

    >>> known_number(3), known_number(True), known_number(float("nan")), known_number("3")
    (3.0, 1.0, None, None)
    """
    if type(value) is float:
        return value if -LARGEST <= value <= LARGEST else None
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


def select_ranks(metric: str, level: RuleLevel, *, text: bool) -> Run:
    """Return what reads a metric of ranks: a value for each, some or all unknown; unknown where
    there are no ranks.
    """
    known: Callable[[object], Any] = known_text if text else known_number

    def run(state: EvaluationState) -> Any:
        if metric in state.ranks:
            return state.ranks[metric]
        values, count = state.job.of_ranks(metric), len(state.job.labels(level))
        if values is None or len(values) != count:
            values = [None] * count
        result = RankValues(map(known, values))
        if None in result or not count:
            state.missing[metric] = None
        state.ranks[metric] = result if count else None
        return state.ranks[metric]

    return run


def select_job(metric: str, *, text: bool) -> Run:
    """Return what reads a metric of the job."""
    known: Callable[[object], Any] = known_text if text else known_number

    def run(state: EvaluationState) -> Any:
        value = known(state.job.of_job(metric))
        if value is None:
            state.missing[metric] = None
        return value

    return run


def select_parameter(name: str) -> Run:
    """Return what reads a parameter."""

    def run(state: EvaluationState) -> Any:
        value = known_number(state.parameters.get(name))
        return state.unknown(f"no value of parameter {name}") if value is None else value

    return run


def select_labels(level: RuleLevel) -> Run:
    """Return what reads the names of the ranks."""

    def run(state: EvaluationState) -> Any:
        names = state.job.labels(level)
        return RankValues(str(name)[:200] for name in names) or None

    return run


def gather(level: RuleLevel, inner: Run, at: int) -> Run:
    """Return a list of a value for each rank, also where it is the same for all."""

    def run(state: EvaluationState) -> Any:
        value = inner(state)
        if isinstance(value, RankValues):
            return list(value)
        if isinstance(value, list):
            return state.wrong(
                at, "this would be a list of lists; inside for_each use SelectMetric"
            )
        count = len(state.job.labels(level))
        if not count:
            state.unknown(f"no {level} is known")
        return [value] * count or None

    return run
