"""What screens have in common, and how one opens another.

A screen is a widget that fills the space between header and footer. The app makes it when it is
opened (`app.SCREENS`), gives it the focus, calls `show` at once and at each new view, and keeps it
until another is opened. Keys are those of its place in `keys.KEYS`:
`BINDINGS = keys.bindings("job")`. It opens another by
`self.post_message(OpenScreen("focus", gpu))`.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from textual.message import Message

from tachograph.annexes.watch.live.snapshot import GpuId
from tachograph.annexes.watch.live.view import FleetView


@runtime_checkable
class ShowsView(Protocol):
    """Methods of every screen."""

    def show(self, view: FleetView) -> None:
        """Draw the changes of a new view; runs in the screen's thread, with stable history."""
        ...


@runtime_checkable
class ChoosesGpu(Protocol):
    """A screen with a GPU under the cursor, for which focus and job are opened."""

    @property
    def selected_gpu(self) -> GpuId | None:
        """The GPU, or None."""
        ...


@runtime_checkable
class Dismissible(Protocol):
    """A screen with a state that Esc clears before it leads back: a filter, a selection."""

    def dismiss(self) -> bool:
        """Clear it; False if empty."""
        ...


class ShowNote(Message):
    """Shows a sentence."""

    def __init__(self, sentence: str) -> None:
        super().__init__()
        self.sentence = sentence


class OpenScreen(Message):
    """Opens a screen: its name, and its GPU or job."""

    def __init__(self, name: str, of: GpuId | str | None = None) -> None:
        super().__init__()
        self.name, self.of = name, of
