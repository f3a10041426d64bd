"""The fleet: every GPU a line; sorted, filtered, grouped. Only visible lines are made."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message

from tachograph.annexes.watch.live.fleet_rows import (
    GROUPS,
    FilterTerm,
    FleetGroup,
    FleetRows,
    Line,
    absent_columns,
    direction,
    fleet_lines,
    matching,
    parse_filter,
    sort_name,
)
from tachograph.annexes.watch.live.snapshot import GpuId
from tachograph.annexes.watch.live.view import FleetView
from tachograph.annexes.watch.tui import colours, keys
from tachograph.annexes.watch.tui.fleet_plots import FleetActivity, fleet_activity, fleet_plots
from tachograph.annexes.watch.tui.fleet_table import (
    COLUMNS,
    MORE,
    ColumnPlace,
    fit,
    legend,
    pieces,
    titles,
)
from tachograph.annexes.watch.tui.page import KeptLines, Pieces
from tachograph.annexes.watch.tui.screens import OpenScreen
from tachograph.catalog.units import printable

_EXPLAINED_FROM = 10  # lines of a screen that explains its columns


class FleetScreen(KeptLines, can_focus=True):
    """All GPUs: fixed title lines, below them scrolling GPUs and group headings."""

    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings("fleet")]
    DEFAULT_CSS = (
        "FleetScreen { overflow-x: hidden; overflow-y: auto; scrollbar-size-vertical: 1; }"
    )

    class Changed(Message):
        """Filter, order or grouping changed."""

    def __init__(self) -> None:
        super().__init__()
        self.sort, self.reverse, self.group, self.filter = "gpu", False, "", ""
        self._terms: tuple[FilterTerm, ...] = ()
        self._folded: set[str] = set()
        self._rows: FleetRows | None = None
        self._lines: list[Line] = []
        self._places: list[ColumnPlace] = []
        self._activity: FleetActivity | None = None
        self._plots: list[Pieces] = []  # below the lines, where the screen has room
        self._skip = 0
        self._cursor = 0  # a line
        # Target of the cursor: a GPU, a group; None: the first line.
        self._target: GpuId | str | None = None
        self.filtered = 0

    # --- content

    @property
    def selected_gpu(self) -> GpuId | None:
        """The GPU under the cursor; on a heading, the first of the group."""
        if self._rows is None:
            return None
        line = self._line_here()
        if isinstance(line, FleetGroup):
            line = int(line.rows[0])
        return None if line is None else self._rows.gpus[line]

    @property
    def summary(self) -> str:
        """Order, grouping and filter, in a few words."""
        parts = []
        if self.filter and self._rows:
            parts.append(f"{self.filtered} of {len(self._rows)} shown: {self.filter}")
        if self.group:
            parts.append(f"by {self.group}")
        if self._is_sorted:
            parts.append(f"sorted by {self.sort}, {direction(self.sort, reverse=self.reverse)}")
        return ", ".join(parts)

    @property
    def _is_sorted(self) -> bool:
        return self.sort != "gpu" or self.reverse

    def show(self, view: FleetView) -> None:
        """Show a new view."""
        self._rows = FleetRows(view, self._rows)
        self._activity = fleet_activity(view, width=self.line_width)
        self._arrange()

    def sort_by(self, name: str, *, reverse: bool = False) -> None:
        """Sort.

        Errors: UsageError for an unknown column.
        """
        self.sort, self.reverse = sort_name(name), reverse
        self._change()

    def group_by(self, name: str) -> None:
        """Group by one of GROUPS; "" by nothing."""
        self.group, self._folded = name, set()
        self._change()

    def filter_by(self, written: str) -> None:
        """Show only GPUs that match a filter; "" shows all.

        Errors: UsageError for an invalid filter.
        """
        self._terms, self.filter = parse_filter(written), written
        self._change()

    # --- lines

    def _change(self) -> None:
        self._arrange()
        self._follow()
        self.post_message(self.Changed())

    def _arrange(self) -> None:
        """Sort the lines, keep the cursor on its target, draw changes."""
        if self._rows is None or not self.size.width:
            return
        matches = matching(self._rows, self._terms)
        self.filtered = int(matches.sum())
        self._lines = fleet_lines(
            self._rows,
            by=self.sort,
            reverse=self.reverse,
            shown=matches,
            group=self.group,
            folded=self._folded,
        )
        width = self.line_width
        named = max(
            (len(line.name) for line in self._lines if isinstance(line, FleetGroup)), default=0
        )
        first = min(24, max(8, named + 8 if named else 0))
        self._places = fit(
            self._rows,
            width - len(MORE),
            skip=self._skip,
            first=first,
            group=self.group,
            sort=self.sort,
        )
        self._find_cursor()
        self._plots = self._plotted(width)
        size = Size(width, len(self._lines) + self._titles)
        if size != self.virtual_size:
            self.virtual_size = size
        self.draw()

    def _plotted(self, width: int) -> list[Pieces]:
        """Plots of the GPUs in the order of the lines; none of groups."""
        if self._activity is None or self.group:
            return []
        rows = [line for line in self._lines if not isinstance(line, FleetGroup)]
        height = self.size.height - self._titles - len(self._lines)
        return fleet_plots(self._activity, rows, width=width, height=height)

    @property
    def _titles(self) -> int:
        """Fixed lines: meaning of `real`, and titles."""
        return 2 if self.size.height >= _EXPLAINED_FROM else 1

    def _find_cursor(self) -> None:
        """Move the cursor with its target; without the target it keeps its line."""
        line = self._place_of(self._target)
        self._cursor = min(self._cursor if line is None else line, max(0, len(self._lines) - 1))

    def _row_of(self, target: GpuId | str | None) -> int | None:
        if self._rows is None or not isinstance(target, GpuId):
            return None
        try:
            return self._rows.gpus.index(target)
        except ValueError:
            return None

    def _place_of(self, target: GpuId | str | None) -> int | None:
        """Return the line of a GPU or group; None if it is not shown."""
        if target is None:
            return 0
        row = self._row_of(target)
        for index, line in enumerate(self._lines):
            if (line.name == target) if isinstance(line, FleetGroup) else (line == row):
                return index
        return None

    def _line_here(self) -> Line | None:
        return self._lines[self._cursor] if self._cursor < len(self._lines) else None

    def _hold(self, index: int) -> None:
        """Move the cursor to a table line."""
        self._cursor = min(max(index, 0), max(0, len(self._lines) - 1))
        line = self._line_here()
        if line is None or self._rows is None or self._cursor == 0:
            self._target = None
        else:
            self._target = line.name if isinstance(line, FleetGroup) else self._rows.gpus[line]
        self._follow()

    def _follow(self) -> None:
        """Scroll until the cursor is visible."""
        y = self._cursor
        room = max(1, self.size.height - self._titles)
        top = int(self.scroll_offset.y)
        if y < top:
            self.scroll_to(y=y, animate=False)
        elif y >= top + room:
            self.scroll_to(y=y - room + 1, animate=False)
        self.draw()

    # --- drawing

    def line(self, y: int) -> Pieces:
        """Return a line of titles, or of the table."""
        if self._rows is None:
            return [("waiting for the first values", colours.DIM)] if y == 0 else []
        if y < self._titles:
            return self._title(y)
        index = y - self._titles + int(self.scroll_offset.y)
        if index >= len(self._lines):
            below = index - len(self._lines)
            if below < len(self._plots):
                return self._plots[below]
            nothing = index == 0 and not self._lines
            return [(self._nothing(), colours.NOTICE)] if nothing else []
        drawn_line = pieces(self._rows, self._lines[index], self._places)
        if index == self._cursor and self.has_focus:
            return [
                ("".join(text for text, _ in drawn_line).ljust(self.line_width), colours.CURSOR)
            ]
        return drawn_line

    def _nothing(self) -> str:
        if self.filter:
            return f"no GPU matches {printable(self.filter)}; Esc shows all"
        return "the source reports no GPU"

    def _title(self, y: int) -> Pieces:
        if y < self._titles - 1:
            return legend(self._rows, width=self.line_width)
        absent = absent_columns(self._rows.view) if self._rows else ()
        return titles(
            self._places,
            sort=self.sort,
            reverse=self.reverse,
            group=self.group,
            width=self.line_width,
            absent=absent,
        )

    def on_resize(self) -> None:
        """Fit columns to the new size."""
        self.lines = []
        self._arrange()
        self._follow()

    # --- keys and mouse

    def action_move(self, by: int) -> None:
        """Move the cursor by this many lines."""
        self._hold(self._cursor + by)

    def action_page(self, direction: int) -> None:
        """Move the cursor by a screen."""
        self.action_move(direction * max(1, self.size.height - self._titles - 1))

    def action_end(self, direction: int) -> None:
        """Move the cursor to the first or the last line."""
        self.action_move(direction * (len(self._lines) + 1))

    def action_choose(self) -> None:
        """Focus on the GPU, fold or unfold the group."""
        line = self._line_here()
        if isinstance(line, FleetGroup):
            self._folded ^= {line.name}
            self._change()
        elif self.selected_gpu is not None:
            self.post_message(OpenScreen("focus", self.selected_gpu))

    def action_sort(self, name: str) -> None:
        """Sort by a column; the same once more reverses the order."""
        self.sort_by(name, reverse=not self.reverse if name == self.sort else False)

    def action_sort_next(self, step: int) -> None:
        """Sort by the next or the previous visible column."""
        names = [position.column.name for position in self._places] or ["gpu"]
        at = names.index(self.sort) if self.sort in names else 0
        self.sort_by(names[(at + step) % len(names)])

    def action_reverse(self) -> None:
        """Reverse the order."""
        self.sort_by(self.sort, reverse=not self.reverse)

    def action_columns(self, by: int) -> None:
        """Scroll by this many columns, hiding those on the left."""
        self._skip = min(max(0, self._skip + by), len(COLUMNS) - 5)
        self._arrange()

    def action_group(self) -> None:
        """Group by the next: node, job, user, class, nothing."""
        leaves = ("", *GROUPS)
        self.group_by(leaves[(leaves.index(self.group) + 1) % len(leaves)])

    def dismiss(self) -> bool:
        """Clear the filter; False if there is none."""
        filtered = bool(self.filter)
        if filtered:
            self.filter_by("")
        return filtered

    def on_click(self, event: events.Click) -> None:
        """Select the clicked line; open it if selected already; a title sorts by its column."""
        y = event.y - self._titles + int(self.scroll_offset.y)
        if event.y < self._titles:
            self._click_title(event.x)
        elif y < len(self._lines):
            self.action_choose() if y == self._cursor else self._hold(y)

    def _click_title(self, x: int) -> None:
        for position in self._places:
            if position.at <= x <= position.at + position.width:
                self.action_sort(position.column.name)
