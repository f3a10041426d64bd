"""How values are computed with: unknown stays unknown, nothing grows without bounds, every value costs a step.

A value is a number, a truth, a text, a pair, or a list of these; None is unknown. What works on single values is lifted
to lists, value by value. Numbers are finite: what is not, is unknown, and a reason is noted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tachograph.judge.rules.model import Ranks, RuleLevel, RulePair

LARGEST = 1.7976931348623157e308


class ExhaustedError(Exception):
    """The budget is spent."""


@dataclass(slots=True)
class State:
    """One evaluation: the job, what it may still cost, and what was found out. reasons, missing: in order, no value."""

    job: Ranks
    parameters: Mapping[str, float]
    left: int
    values: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, None] = field(default_factory=dict)
    reasons: dict[str, None] = field(default_factory=dict)
    term: str = ""

    def spend(self, steps: int) -> None:
        """Take steps from the budget. Errors: ExhaustedError."""
        self.left -= steps
        if self.left < 0:
            raise ExhaustedError

    def reason(self, why: str) -> None:
        """Note why a value is unknown."""
        self.remark(f"{why} in {self.term}" if self.term else why)

    def remark(self, why: str) -> None:
        """Note a reason that itself names where it holds."""
        if len(self.reasons) < 20:
            self.reasons[why] = None


Run = Callable[[State], Any]
Work = Callable[[State, float, float], float | None]  # two known numbers to one


def finite(state: State, value: float) -> float | None:
    """Return the number; None where it is none or too large."""
    if -LARGEST <= value <= LARGEST:
        return value
    state.reason("a number too large")
    return None


def add(state: State, x: float, y: float) -> float | None:
    """x + y."""
    return finite(state, x + y)


def subtract(state: State, x: float, y: float) -> float | None:
    """x - y."""
    return finite(state, x - y)


def multiply(state: State, x: float, y: float) -> float | None:
    """x * y."""
    return finite(state, x * y)


def divide_by(divisor: str) -> Work:
    """Return what makes x / y; None where y is 0, with a reason that names the `divisor` in words."""

    def divide(state: State, x: float, y: float) -> float | None:
        if y == 0:
            state.remark(f"{divisor} is 0, so {state.term or 'the result'} cannot be computed")
            return None
        return finite(state, x / y)

    return divide


def both(state: State, x: bool | None, y: bool | None) -> bool | None:
    """And: false if one is false, else unknown if one is unknown."""
    return False if x is False or y is False else None if x is None or y is None else True


def either(state: State, x: bool | None, y: bool | None) -> bool | None:
    """Or: true if one is true, else unknown if one is unknown."""
    return True if x is True or y is True else None if x is None or y is None else False


def pair(state: State, x: Any, y: Any) -> RulePair:
    """(x, y), either of which may be unknown."""
    return RulePair(x, y)


def chosen(state: State, condition: bool | None, x: Any, y: Any) -> Any:
    """x where the condition holds, y where it does not."""
    return None if condition is None else x if condition else y


def lift1(work: Callable[[State, Any], Any], inner: Run) -> Run:
    """Return what works on a value, or on each of a list."""

    def run(state: State) -> Any:
        value = inner(state)
        if isinstance(value, list):
            state.spend(len(value))
            return [None if one is None else work(state, one) for one in value]
        state.spend(1)
        return None if value is None else work(state, value)

    return run


def fold(first: Run, rest: Sequence[tuple[Callable[[State, Any, Any], Any], Run]], *, unknown: bool = False) -> Run:
    """Return what works from left to right on values, or on each of lists; unknown: unknown ones are worked on, too."""
    works = [(work, work if unknown else _of_known(work), right) for work, right in rest]

    def run(state: State) -> Any:
        value = first(state)
        for work, known, right in works:
            other = right(state)
            if type(value) is list or type(other) is list:
                value = _apply(state, known, value, other)
                continue
            state.left -= 1
            if state.left < 0:
                raise ExhaustedError
            value = None if not unknown and (value is None or other is None) else work(state, value, other)
        return value

    return run


def _of_known(work: Callable[[State, Any, Any], Any]) -> Callable[[State, Any, Any], Any]:
    def known(state: State, x: Any, y: Any) -> Any:
        return None if x is None or y is None else work(state, x, y)

    return known


def _apply(state: State, work: Callable[[State, Any, Any], Any], x: Any, y: Any) -> Any:
    if isinstance(x, list):
        state.spend(len(x))
        if isinstance(y, list):
            return [work(state, one, other) for one, other in zip(x, y, strict=False)]
        return [work(state, one, y) for one in x]
    state.spend(len(y))
    return [work(state, x, other) for other in y]


def choose(condition: Run, then: Run, otherwise: Run) -> Run:
    """Return `if(condition; then; otherwise)`, for each of a list where the condition is one."""

    def run(state: State) -> Any:
        holds, x, y = condition(state), then(state), otherwise(state)
        if not isinstance(holds, list):
            state.spend(1)
            return chosen(state, holds, x, y)
        state.spend(len(holds))
        xs = x if isinstance(x, list) else [x] * len(holds)
        ys = y if isinstance(y, list) else [y] * len(holds)
        return [chosen(state, *three) for three in zip(holds, xs, ys, strict=False)]

    return run


def keep(condition: Run, then: Run) -> Run:
    """Return `if(condition; then)`: a list of the values for which the condition holds."""

    def run(state: State) -> Any:
        holds, values = condition(state), then(state)
        if not isinstance(holds, list):
            state.spend(1)
            kept = values if isinstance(values, list) else [values]
            return None if holds is None or values is None else kept if holds else []
        state.spend(len(holds))
        if values is None or None in holds:
            return None
        values = values if isinstance(values, list) else [values] * len(holds)
        return [value for held, value in zip(holds, values, strict=False) if held]

    return run


def reduce_list(work: Callable[[State, list[Any]], Any], inner: Run, *, cost: int = 1) -> Run:
    """Return what makes one value of a list; unknown where one of them is."""

    def run(state: State) -> Any:
        values = inner(state)
        if values is None:
            return None
        state.spend(cost * len(values) + 1)
        return None if None in values else work(state, values)

    return run


def all_known(work: Callable[[list[Any]], Any], inner: Run) -> Run:
    """Return what makes one value of a list that may hold unknown ones; unknown where the list is unknown."""

    def run(state: State) -> Any:
        values = inner(state)
        if values is None:
            return None
        state.spend(len(values) + 1)
        return work(values)

    return run


def any_of(values: list[bool | None]) -> bool | None:
    """Whether one is true: unknown where none is and some are unknown.

    >>> any_of([False, None]), any_of([True, None]), any_of([])
    (None, True, False)
    """
    return True if True in values else None if None in values else False


def all_of(values: list[bool | None]) -> bool | None:
    """Whether none is false: unknown where none is and some are unknown."""
    return False if False in values else None if None in values else True


def total(state: State, values: list[float]) -> float | None:
    """The sum; 0 of no values."""
    return finite(state, sum(values, 0.0))


def _of_some(work: Callable[[State, list[float]], float | None]) -> Callable[[State, list[float]], float | None]:
    def run(state: State, values: list[float]) -> float | None:
        if not values:
            state.reason("a statistic of no values")
            return None
        return work(state, values)

    return run


def quantile(values: list[float], share: float) -> float:
    """Return the value below which a share of the values lie, linear between the two nearest (type 7, as in numpy).

    >>> [quantile([4.0, 1.0, 2.0, 3.0], share) for share in (0.25, 0.5, 0.75)]
    [1.75, 2.5, 3.25]
    """
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] * (1 - (place - below)) + ordered[above] * (place - below)


largest = _of_some(lambda state, values: max(values))
smallest = _of_some(lambda state, values: min(values))
mean = _of_some(lambda state, values: finite(state, sum(values) / len(values)))
median = _of_some(lambda state, values: finite(state, quantile(values, 0.5)))
lower_quartile = _of_some(lambda state, values: finite(state, quantile(values, 0.25)))
upper_quartile = _of_some(lambda state, values: finite(state, quantile(values, 0.75)))


def known_number(value: object) -> float | None:
    """Return a number that can be computed with, of what a job holds; None for anything else.

    >>> known_number(3), known_number(True), known_number(float("nan")), known_number("3")
    (3.0, 1.0, None, None)
    """
    if type(value) is float:
        return value if -LARGEST <= value <= LARGEST else None
    if isinstance(value, int | float):
        try:
            number = float(value)
        except OverflowError:
            return None
        return number if -LARGEST <= number <= LARGEST else None
    return None


def select_ranks(metric: str, kind: RuleLevel, *, text: bool) -> Run:
    """Return what reads a metric of ranks: a value for each, some or all unknown; unknown where there are no ranks."""
    key = f" {metric}"  # no name of a term: they are kept side by side

    def run(state: State) -> Any:
        if key in state.values:
            return state.values[key]
        values, count = state.job.of_ranks(metric), len(state.job.labels(kind))
        if values is None or not count or len(values) != count:
            state.missing[metric] = None
            read: list[float | str | None] | None = [None] * count if count else None
        else:
            state.spend(len(values))
            read = [_text(one) if text else known_number(one) for one in values]
            if None in read:
                state.missing[metric] = None
        state.values[key] = read
        return read

    return run


def select_job(metric: str, *, text: bool) -> Run:
    """Return what reads a metric of the job."""

    def run(state: State) -> Any:
        value = state.job.of_job(metric)
        known = _text(value) if text else known_number(value)
        if known is None:
            state.missing[metric] = None
        return known

    return run


def _text(value: object) -> str | None:
    return value[:200] if isinstance(value, str) else None


def labels(kind: RuleLevel) -> Run:
    """Return what reads the names of the ranks."""

    def run(state: State) -> Any:
        names = state.job.labels(kind)
        state.spend(len(names))
        return [str(name)[:200] for name in names] or None

    return run


def each(kind: RuleLevel, inner: Run) -> Run:
    """Return a list of a value for each rank, also where it is the same for all."""

    def run(state: State) -> Any:
        value = inner(state)
        if isinstance(value, list):
            return value
        count = len(state.job.labels(kind))
        state.spend(count)
        if not count:
            state.reason(f"no {kind} is known")
        return [value] * count or None

    return run
