"""A widget of lines that scroll below titles: it keeps what is seen and lets the terminal have only what changed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.scroll_view import ScrollView
from textual.strip import Strip

Pieces = list[tuple[str, Style]]


class KeptLines(ScrollView):
    """Lines made by `line`, of the place in what is seen, titles among them; `draw` makes those that are seen."""

    def __init__(self, line: Callable[[int], Pieces]) -> None:
        super().__init__()
        self._line = line
        self.lines: list[Strip] = []  # what is seen

    @property
    def line_width(self) -> int:
        """Characters of a line, beside the scroll bar."""
        return self.scrollable_content_region.width or self.size.width

    def draw(self) -> None:
        """Make the lines that are seen; let the terminal have those that are not what they were."""
        width = self.line_width
        made = [strip_of(self._line(y)).adjust_cell_length(width) for y in range(self.size.height)]
        before = self.lines
        if len(before) != len(made) or not before or before[0].cell_length != width:
            self.lines = made
            self.refresh()
            return
        changed = [y for y, strip in enumerate(made) if strip != before[y]]
        for y in changed:
            before[y] = made[y]
        if changed:
            self.refresh(*regions(changed, width))

    def render_line(self, y: int) -> Strip:
        """Hand out a line that was made."""
        return self.lines[y] if y < len(self.lines) else Strip.blank(self.size.width)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Draw what came into sight."""
        super().watch_scroll_y(old_value, new_value)
        if round(old_value) != round(new_value):
            self.draw()

    def on_focus(self) -> None:
        """Show the cursor."""
        self.draw()

    def on_blur(self) -> None:
        """Hide the cursor."""
        self.draw()


def strip_of(made: Pieces) -> Strip:
    """Return pieces of text as a line of the screen."""
    return Strip([Segment(text, style) for text, style in made])


def regions(changed: list[int], width: int) -> list[Region]:
    """Return the regions of lines, given upwards; neighbours are one.

    >>> regions([2, 3, 7], 80) == [Region(0, 2, 80, 2), Region(0, 7, 80, 1)]
    True
    """
    starts = [changed[0], *(later for earlier, later in pairwise(changed) if later != earlier + 1)]
    ends = [*(earlier for earlier, later in pairwise(changed) if later != earlier + 1), changed[-1]]
    return [Region(0, start, width, end - start + 1) for start, end in zip(starts, ends, strict=True)]
