"""The line of titles above the table of the fleet: the column sorted by, and whether there are more."""

from __future__ import annotations

from collections.abc import Sequence

from tachograph.tui import colours
from tachograph.tui.fleet_columns import COLUMNS, Place
from tachograph.tui.kept_lines import Pieces

MORE = "›"  # columns did not fit
_NAMES = ("gpu", "node", "job", "user", "class", "model")  # sorted from A to Z, numbers from the highest


def titles(places: Sequence[Place], *, sort: str, reverse: bool, group: str, width: int) -> Pieces:
    """Return the titles of columns at their places; the one sorted by is marked with an arrow."""
    arrow = "▲" if (sort in _NAMES) != reverse else "▼"
    made: Pieces = []
    for number, place in enumerate(places):
        is_sorted = place.column.name == sort
        written = _written(place, arrow if is_sorted else "")
        made.append((f" {written}" if number else written, colours.SORTED if is_sorted else colours.TITLE))
    return [*made, *_more(places, group=group, width=width)]


def _written(place: Place, arrow: str) -> str:
    column = place.column
    title = column.title if len(column.title) <= place.width else column.title.split()[0]
    title = f"{title[: place.width - len(arrow)]}{arrow}"
    return title.ljust(place.width) if column.left else title.rjust(place.width)


def _more(places: Sequence[Place], *, group: str, width: int) -> Pieces:
    """A sign at the right edge where there are columns that are not seen."""
    grouped = group not in ("", "class")  # that column is the heading of groups
    if not places or len(places) + grouped >= len(COLUMNS):
        return []
    used = places[-1].at + places[-1].width
    return [(MORE.rjust(width - used), colours.BOLD)] if used < width else []
