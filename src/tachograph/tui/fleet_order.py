"""The lines of the fleet: GPUs that are shown, in their order, below the headings of their groups."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from tachograph.arrays import Flags, Longs
from tachograph.errors import UsageError
from tachograph.tui.fleet_rows import GROUPS, TEXTS, FleetRows, natural, number_name


@dataclass(frozen=True, slots=True)
class Group:
    """GPUs that have something in common. name: "" of those of which it is not told. rows: in their order."""

    name: str
    rows: Longs
    folded: bool = False


Line = int | Group  # the row of a GPU, or a heading


def sort_name(name: str) -> str:
    """Return the name of a column by which can be sorted, as given.

    Errors: UsageError where there is none.
    """
    return name if name in TEXTS else number_name(name)


def direction(by: str, *, reverse: bool) -> str:
    """Return which come first where GPUs are sorted by a column.

    >>> direction("power", reverse=True), direction("health", reverse=False), direction("user", reverse=True)
    ('smallest first', 'worst first', 'Z to A')
    """
    if by in TEXTS:
        forward, backward = ("worst first", "best first") if by == "health" else ("A to Z", "Z to A")
    else:
        forward, backward = "largest first", "smallest first"
    return backward if reverse else forward


def group_name(name: str) -> str:
    """Return the name of a column by which can be grouped, as given; "" is by nothing.

    Errors: UsageError where there is none.
    """
    if name and name not in GROUPS:
        raise UsageError(f"nothing is grouped by {name!r}", do=f"write {', '.join(GROUPS[:-1])} or {GROUPS[-1]}")
    return name


def order(rows: FleetRows, by: str, *, reverse: bool = False) -> Longs:
    """Return all rows, sorted: names upwards, numbers and health from the highest and the worst; missing ones last.

    Errors: UsageError for a column that is none.
    """
    if by == "health":
        return _descending(rows.health_rank, rows, reverse=reverse)
    if by in TEXTS:
        return _by_text(rows, by, reverse=reverse)
    return _descending(rows.number(sort_name(by)), rows, reverse=reverse)


def grouped(rows: FleetRows, ordered: Longs, by: str) -> list[Group]:
    """Return groups in the order of their first GPU; the one of which nothing is told comes last.

    Errors: UsageError for a column by which nothing is grouped.
    """
    texts = rows.text(group_name(by))
    members: dict[str, list[int]] = {}
    for row in ordered.tolist():
        members.setdefault(texts[row], []).append(row)
    names = [name for name in members if name] + [name for name in members if not name]
    return [Group(name, np.array(members[name], np.int64)) for name in names]


def lines(
    rows: FleetRows,
    *,
    by: str = "gpu",
    reverse: bool = False,
    shown: Flags | None = None,
    group: str = "",
    folded: Collection[str] = (),
) -> list[Line]:
    """Return what is drawn, line by line. shown: rows that pass the filter; group: "" for none; folded: groups."""
    ordered = order(rows, by, reverse=reverse)
    if shown is not None:
        ordered = ordered[shown[ordered]]
    if not group:
        return list(ordered.tolist())
    found: list[Line] = []
    for one in grouped(rows, ordered, group):
        hidden = one.name in folded
        found.append(Group(one.name, one.rows, hidden))
        if not hidden:
            found += one.rows.tolist()
    return found


def _descending(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]], rows: FleetRows, *, reverse: bool) -> Longs:
    keys = values if reverse else -values
    return np.lexsort((rows.place, keys))  # NaN sorts last either way


def _by_text(rows: FleetRows, by: str, *, reverse: bool) -> Longs:
    if by in ("gpu", "node"):
        upwards = np.argsort(rows.place, kind="stable")
        return upwards[::-1] if reverse else upwards
    texts = rows.text(by)
    rank = {name: place for place, name in enumerate(sorted({*texts} - {""}, key=natural, reverse=reverse))}
    keys = np.array([rank.get(text, len(rank)) for text in texts], np.int64)
    return np.lexsort((rows.place, keys))
