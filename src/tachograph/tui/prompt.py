"""The line that is written: a command, a filter, what to search for. It stands where the footer is."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

from tachograph.tui.commands import completed

SIGNS = {"command": ":", "filter": "filter ", "search": "search "}


class Prompt(Horizontal):
    """One line to write. complete: what a line may become. Tells `Changed` while it is written, `Done` at the end."""

    DEFAULT_CSS = """
    Prompt { height: 1; }
    Prompt Static { width: auto; text-style: bold; }
    """

    class Ready(Message):
        """The line takes keys."""

    class Changed(Message):
        """What is written now. candidates: what it may become."""

        def __init__(self, kind: str, text: str, candidates: list[str]) -> None:
            super().__init__()
            self.kind, self.text, self.candidates = kind, text, candidates

    class Done(Message):
        """The line is finished; `text` is None where it was given up."""

        def __init__(self, kind: str, text: str | None) -> None:
            super().__init__()
            self.kind, self.text = kind, text

    def __init__(self, kind: str, text: str, complete: Callable[[str], list[str]]) -> None:
        super().__init__()
        self.kind, self._text, self._complete = kind, text, complete
        self._candidates: list[str] = []

    def compose(self) -> ComposeResult:
        """Lay out sign and line."""
        yield Static(SIGNS[self.kind])
        yield Line(self._text, complete=self._tab)

    def on_mount(self) -> None:
        """Write here from now on."""
        self.screen.set_focus(self.query_one(Line))
        self.post_message(self.Ready())
        self._tell(self._text)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Tell."""
        event.stop()
        self._tell(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Done."""
        event.stop()
        self.post_message(self.Done(self.kind, event.value))

    def on_line_given_up(self) -> None:
        """Given up."""
        self.post_message(self.Done(self.kind, None))

    def _tell(self, text: str) -> None:
        self._candidates = self._complete(text)
        self.post_message(self.Changed(self.kind, text, self._candidates))

    def _tab(self, line: str) -> str:
        return completed(line, self._complete(line))


class Line(Input):
    """An input that is given up by Esc, or by Backspace where nothing is left, and completed by Tab."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c,ctrl+g", "give_up", show=False),
        Binding("tab", "complete", show=False),
    ]

    class GivenUp(Message):
        """Nothing shall come of it."""

    def __init__(self, text: str, *, complete: Callable[[str], str]) -> None:
        super().__init__(text, compact=True, select_on_focus=False)
        self.cursor_blink = False
        self._complete = complete

    def action_give_up(self) -> None:
        """Give up."""
        self.post_message(self.GivenUp())

    def action_complete(self) -> None:
        """Complete as far as it is certain."""
        self.value = self._complete(self.value)
        self.cursor_position = len(self.value)

    def action_delete_left(self) -> None:
        """Delete a letter; give up where there is none."""
        if self.value:
            super().action_delete_left()
        else:
            self.action_give_up()
