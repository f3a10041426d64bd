"""The fleet: every GPU a line."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from textual.binding import BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tachograph.live.snapshot import Gpu
from tachograph.live.view import View
from tachograph.tui import colours, keys
from tachograph.tui.screens import Open
from tachograph.units import text


class FleetScreen(ScrollView, can_focus=True):
    """All GPUs, one a line."""

    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings("fleet")]
    DEFAULT_CSS = "FleetScreen { overflow-x: hidden; }"

    def __init__(self) -> None:
        super().__init__()
        self._view: View | None = None
        self._cursor = 0

    @property
    def chosen(self) -> Gpu | None:
        """The GPU under the cursor."""
        return self._view.snapshot.gpus[self._cursor] if self._view and self._view.snapshot.gpus else None

    def show(self, view: View) -> None:
        """Take a new view."""
        self._view = view
        self.virtual_size = Size(self.size.width, len(view.snapshot.gpus))
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Draw the line of one GPU."""
        row = y + self.scroll_offset.y
        if self._view is None or row >= len(self._view.snapshot.gpus):
            return Strip.blank(self.size.width)
        name = self._view.snapshot.gpus[row].name
        real = float(self._view.real[row])
        written = f"{name:<14}{colours.class_text(self._view.label(row)):<24}{text(real, 'fraction'):>8}"
        style = colours.class_style(self._view.label(row))
        return Strip([Segment(written, style)]).adjust_cell_length(self.size.width)

    def action_choose(self) -> None:
        """Focus on the GPU under the cursor."""
        self.post_message(Open("focus", self.chosen))
