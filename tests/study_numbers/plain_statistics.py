"""Statistics of jobs with loops: quartiles, whiskers, ranks. No array library."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean, median, quantiles
from typing import Any

Row = dict[str, Any]


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """First and third quartile, linear between ranks."""
    if len(values) == 1:
        return values[0], values[0]
    first, _, third = quantiles(values, n=4, method="inclusive")
    return first, third


def between(values: Sequence[float], part: float) -> float:
    """The percentile, linear between ranks."""
    ordered = sorted(values)
    place = part * (len(ordered) - 1)
    low = math.floor(place)
    return ordered[low] + (ordered[min(low + 1, len(ordered) - 1)] - ordered[low]) * (place - low)


def box(values: Sequence[float]) -> Row:
    """Tukey's box: whiskers end at the last value within 1.5 times the length of the box."""
    q1, q3 = quartiles(values)
    reach = 1.5 * (q3 - q1)
    inside = [value for value in values if q1 - reach <= value <= q3 + reach]
    return {
        "jobs": len(values), "mean": fmean(values), "median": median(values), "q1": q1, "q3": q3,
        "p5": between(values, 0.05), "p95": between(values, 0.95),
        "low": min(inside), "high": max(inside), "outside": len(values) - len(inside),
    }  # fmt: skip


def grouped(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    found = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return dict(found)


def counts(values: Iterable[float], edges: Sequence[float]) -> list[int]:
    """How many values lie in each bin; a bin holds its lower end, the last one both."""
    found = [0] * (len(edges) - 1)
    for value in values:
        if value == edges[-1]:
            found[-1] += 1
        else:
            found[sum(value >= edge for edge in edges) - 1] += 1
    return found


def steps(values: Sequence[float]) -> list[Row]:
    """Cumulative distribution: one row per value, in order."""
    ordered = sorted(values)
    return [
        {"value": v, "share": sum(other <= v for other in ordered) / len(ordered)} for v in ordered
    ]


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1, equal values at their average."""
    places = defaultdict(list)
    for place, value in enumerate(sorted(values), 1):
        places[value].append(place)
    return [fmean(places[value]) for value in values]


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Correlation of ranks; None of fewer than three, or where one side is all equal."""
    if len(one) < 3 or len(set(one)) < 2 or len(set(other)) < 2:
        return None
    a, b = ranks(one), ranks(other)
    mean_a, mean_b = fmean(a), fmean(b)
    together = math.fsum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    length_a, length_b = (math.fsum((x - m) ** 2 for x in s) for s, m in ((a, mean_a), (b, mean_b)))
    return together / math.sqrt(length_a * length_b)
