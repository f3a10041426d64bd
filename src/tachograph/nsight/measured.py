"""The metrics of launches, kept as arrays: a report may hold a quarter of a million launches of a hundred metrics."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import nan


class Measured(Mapping[str, float]):
    """The metrics of one launch: a number per metric of its table, the names kept once per table.

    `places` may grow while `numbers` does not: what lies behind its end was not measured, nor was NaN.
    """

    __slots__ = ("_numbers", "_places")

    def __init__(self, places: Mapping[str, int], numbers: array[float]) -> None:
        self._places = places
        self._numbers = numbers

    def __getitem__(self, metric: str) -> float:
        place = self._places[metric]
        number = self._numbers[place] if place < len(self._numbers) else nan
        if number != number:  # NaN
            raise KeyError(metric)
        return number

    def __iter__(self) -> Iterator[str]:
        return (metric for metric, number in zip(self._places, self._numbers, strict=False) if number == number)

    def __len__(self) -> int:
        return sum(1 for number in self._numbers if number == number)

    def __repr__(self) -> str:
        return f"Measured({dict(self)!r})"


class Columns:
    """Metrics of many launches, each metric as a list of its values in their order; NaN: not measured.

    >>> columns = Columns([{"a": 1.0}, {"a": 2.0, "b": 3.0}])
    >>> sorted(columns.names()), columns["a"], columns["b"]
    (['a', 'b'], [1.0, 2.0], [nan, 3.0])
    """

    def __init__(self, launches: Iterable[Mapping[str, float]]) -> None:
        self._runs = [_Run(places, list(run)) for places, run in groupby(launches, key=_places)]

    def names(self) -> set[str]:
        """Return all metrics that any launch may have."""
        return {name for run in self._runs for name in run.names()}

    def __getitem__(self, metric: str) -> list[float]:
        if len(self._runs) == 1:
            return self._runs[0].column(metric)
        return [value for run in self._runs for value in run.column(metric)]


class _Run:
    """Launches one after the other that share their places, or have none."""

    def __init__(self, places: Mapping[str, int] | None, launches: Sequence[Mapping[str, float]]) -> None:
        self._places = places
        self._launches = launches
        self._rows = [metrics._numbers for metrics in launches if isinstance(metrics, Measured)]
        self._shortest = min(map(len, self._rows), default=0)

    def names(self) -> Iterable[str]:
        return self._places if self._places is not None else {name for metrics in self._launches for name in metrics}

    def column(self, metric: str) -> list[float]:
        if self._places is None:
            return [metrics.get(metric, nan) for metrics in self._launches]
        place = self._places.get(metric)
        if place is None:
            return [nan] * len(self._rows)
        if place < self._shortest:
            return [row[place] for row in self._rows]
        return [row[place] if place < len(row) else nan for row in self._rows]


def _places(metrics: Mapping[str, float]) -> Mapping[str, int] | None:
    return metrics._places if isinstance(metrics, Measured) else None
