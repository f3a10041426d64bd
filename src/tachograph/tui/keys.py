"""Every key: what it does, and where. Bindings, footer, help and docs are made of this table.

A key of the place "" works everywhere. `action` is a method `action_NAME` of the widget of that place, or of the app.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from textual.binding import Binding


@dataclass(frozen=True, slots=True)
class Key:
    """One row: keys as Textual names them, as people write them, what they do.

    place: name of a screen, "" everywhere. short: for the footer; empty: not shown there.
    """

    place: str
    keys: str
    shown: str
    action: str
    text: str
    short: str = ""


KEYS: tuple[Key, ...] = (
    Key("", "question_mark,f1", "? F1", "help", "show or hide this help", "help"),
    Key("", "colon", ":", "command", "write a command; Tab completes names", "command"),
    Key("", "q,f10,ctrl+c", "q F10", "quit", "quit", "quit"),
    Key("", "escape,backspace", "Esc", "back", "go back; give up what is being written"),
    Key("", "f", "f", "open('fleet')", "fleet: all GPUs"),
    Key("", "j", "j", "open_job", "job of the chosen GPU, or the only one", "job"),
    Key("", "p", "p", "open('plot')", "plot: lines over time", "plot"),
    Key("", "e", "e", "open('events')", "events: what changed", "events"),
    Key("", "space", "Space", "pause", "pause and go on; what happens meanwhile is kept", "pause"),
    Key("", "plus,equals_sign", "+", "longer", "look less often"),
    Key("", "minus", "-", "shorter", "look more often"),
    Key("", "right_square_bracket", "]", "faster", "recording: play faster"),
    Key("", "left_square_bracket", "[", "slower", "recording: play slower"),
    Key("fleet", "enter", "Enter", "choose", "focus on the GPU; fold or unfold a group", "focus"),
)


def bindings(place: str) -> list[Binding]:
    """Return the bindings of a screen's widget, or of the app for ""."""
    return [Binding(key.keys, key.action, key.text, show=False) for key in KEYS if key.place == place]


def shown(place: str) -> Iterator[Key]:
    """Yield the keys for the footer of a screen: its own first."""
    yield from (key for key in KEYS if key.place == place and key.short)
    yield from (key for key in KEYS if not key.place and key.short)
