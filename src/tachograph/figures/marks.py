"""Intervals that plots over time mark, and in which rows above the plot they stand; nothing is drawn here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_CHARACTERS = 118  # of a label that are as wide as a plot, about
_LONGEST_LABEL = 80


@dataclass(frozen=True, slots=True)
class Mark:
    """An interval that a plot over time shows: seconds from its begin, and what happened."""

    label: str
    begin_s: float
    end_s: float


def lanes(marks: Sequence[Mark], length_s: float) -> list[list[Mark]]:
    """Return marks in rows, in order of begin, in which neither they nor their labels overlap.

    >>> early, late, long = Mark("a", 0, 10), Mark("b", 50, 60), Mark("c", 5, 70)
    >>> [[mark.label for mark in lane] for lane in lanes([early, late, long], 100)]
    [['a', 'b'], ['c']]
    """
    rows: list[list[Mark]] = []
    for mark in sorted(marks, key=lambda one: (one.begin_s, -one.end_s)):
        taken = extent(mark, length_s)[0]
        row = next((row for row in rows if extent(row[-1], length_s)[1] <= taken), None)
        if row is None:
            rows.append([mark])
        else:
            row.append(mark)
    return rows


def extent(mark: Mark, length_s: float) -> tuple[float, float]:
    """Return where bar and label of a mark begin and end; a label that does not fit to the right ends with its bar."""
    label_s = (len(label_of(mark)) + 2) * length_s / _CHARACTERS
    if mark.begin_s + label_s <= length_s:
        return mark.begin_s, max(mark.end_s, mark.begin_s + label_s)
    return min(mark.begin_s, max(0.0, mark.end_s - label_s)), mark.end_s


def label_of(mark: Mark) -> str:
    """Return the label, cut where it is too long."""
    return mark.label if len(mark.label) <= _LONGEST_LABEL else f"{mark.label[: _LONGEST_LABEL - 1]}…"
