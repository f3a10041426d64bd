"""Plots as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence

from tachograph.report.recording import Mark

_CHARACTERS = 118  # of a label that are as wide as a plot, about
_LONGEST_LABEL = 80


def lanes(marks: Sequence[Mark], length_s: float) -> list[list[Mark]]:
    """Return marks in rows, in order of begin, in which neither they nor their labels overlap.

    >>> early, late, long = (
    ...     Mark("finding", label, *span)
    ...     for label, span in (("a", (0, 10)), ("b", (50, 60)), ("c", (5, 70)))
    ... )
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
    """Return start and end of a mark with its label; a label at the edge ends with its bar."""
    label_s = (len(label_of(mark)) + 2) * length_s / _CHARACTERS
    if mark.begin_s + label_s <= length_s:
        return mark.begin_s, max(mark.end_s, mark.begin_s + label_s)
    return min(mark.begin_s, max(0.0, mark.end_s - label_s)), mark.end_s


def label_of(mark: Mark) -> str:
    """Return the label, truncated if too long."""
    return (
        mark.label if len(mark.label) <= _LONGEST_LABEL else f"{mark.label[: _LONGEST_LABEL - 1]}…"
    )
