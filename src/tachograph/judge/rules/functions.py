"""Every function of the language: how it is called, what it takes and returns, what it means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from tachograph.judge.rules import values

Base = Literal["number", "boolean", "text", "pair", "any"]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A function that makes one value of a list. positive: of values above 0 it is above 0 itself."""

    takes: Base
    returns: Base
    make: Callable[[values.Run], values.Run]
    meaning: str
    positive: bool = False


def _statistic(work: Callable[[values.State, list[float]], Any], cost: int = 1) -> Callable[[values.Run], values.Run]:
    return lambda inner: values.reduce_list(work, inner, cost=cost)


def _logic(work: Callable[[list[bool | None]], bool | None]) -> Callable[[values.Run], values.Run]:
    return lambda inner: values.all_known(work, inner)


REDUCTIONS: Mapping[str, Aggregate] = MappingProxyType(
    {
        "max": Aggregate("number", "number", _statistic(values.largest), "the largest", True),
        "min": Aggregate("number", "number", _statistic(values.smallest), "the smallest", True),
        "sum": Aggregate("number", "number", _statistic(values.total), "the sum; 0 of no values", False),
        "mean": Aggregate("number", "number", _statistic(values.mean), "the arithmetic mean", True),
        "median": Aggregate("number", "number", _statistic(values.median, 4), "the middle, or the mean of two", True),
        "lower_quartile": Aggregate(
            "number", "number", _statistic(values.lower_quartile, 4), "a quarter of the values lie below it", True
        ),
        "upper_quartile": Aggregate(
            "number", "number", _statistic(values.upper_quartile, 4), "three quarters of the values lie below it", True
        ),
        "cardinality": Aggregate("any", "number", lambda inner: values.all_known(_count, inner), "how many there are"),
        "any": Aggregate("boolean", "boolean", _logic(values.any_of), "whether one of them is true"),
        "all": Aggregate("boolean", "boolean", _logic(values.all_of), "whether all of them are true"),
    }
)

# functions that the checker knows by name: {name: (as it is called, what it means)}
SPECIAL: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "SelectMetric": ("SelectMetric(metric, OverAll)", "the value of one rank over the whole job"),
        "GatherFromAllRanks": ("GatherFromAllRanks(x)", "the list of x of every rank"),
        "for_each": ("for_each(Process, x)", "the same, with x computed for each rank"),
        "make_tuple": ("make_tuple(a, b)", "a tuple; its parts are .first and .second"),
        "if": ("if(condition; x)", "the values for which the condition holds; if(condition; x; y) chooses one of two"),
        "abs": ("abs(x)", "x without its sign"),
        "and": ("and(a, b)", "whether all hold; also a and b"),
        "or": ("or(a, b)", "whether one holds; also a or b"),
    }
)
FUNCTIONS = (*REDUCTIONS, *SPECIAL, "not")


def _count(found: list[Any]) -> float:
    return float(len(found))
