"""All keys with actions and contexts, the source of bindings, footer, help and docs.

A key of the screen "" works everywhere. `action` is a method `action_NAME` of the widget of that
screen, or of the app.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from textual.binding import Binding


@dataclass(frozen=True, slots=True)
class ScreenKey:
    """One key: Textual names, display names, effect.

    screen: its name, "" everywhere. short: for the footer; empty: not shown there.
    """

    screen: str
    keys: str
    shown: str
    action: str
    text: str
    short: str = ""


KEYS: tuple[ScreenKey, ...] = (
    ScreenKey("", "question_mark,f1", "? F1", "help", "show or hide this help", "help"),
    ScreenKey("", "q,f10,ctrl+c", "q F10", "quit", "quit", "quit"),
    ScreenKey("", "ctrl+z", "Ctrl-Z", "suspend", "suspend; fg continues"),
    ScreenKey(
        "", "escape,backspace", "Esc", "back", "go back; drop a filter; cancel input", "back"
    ),
    ScreenKey("", "j", "j", "open('job')", "job of the selected GPU: all its GPUs", "job"),
    ScreenKey("", "space", "Space", "pause", "pause or continue; the history continues", "pause"),
    ScreenKey("", "plus,equals_sign", "+", "slower_polls", "poll half as often"),
    ScreenKey("", "minus", "-", "faster_polls", "poll twice as often"),
    ScreenKey(
        "fleet", "enter", "Enter", "choose", "focus on the GPU; fold or unfold the group", "focus"
    ),
    ScreenKey(
        "fleet",
        "slash,f4",
        "/ F4",
        "app.filter",
        "filter: text, user=ana, class=idle, sm<20",
        "filter",
    ),
    ScreenKey("fleet", "f5,g", "F5 g", "group", "group by node, job, user, class, none", "group"),
    ScreenKey(
        "fleet",
        "less_than_sign,comma",
        "<",
        "sort_next(-1)",
        "sort by the column to the left",
        "sort",
    ),
    ScreenKey(
        "fleet",
        "greater_than_sign,full_stop",
        ">",
        "sort_next(1)",
        "sort by the column to the right",
    ),
    ScreenKey("fleet", "I,r", "I r", "reverse", "reverse the order"),
    ScreenKey("fleet", "N", "N", "sort('gpu')", "sort by name"),
    ScreenKey("fleet", "R", "R", "sort('real')", "sort by real utilisation"),
    ScreenKey("fleet", "S", "S", "sort('sm')", "sort by SM activity"),
    ScreenKey("fleet", "M", "M", "sort('mem')", "sort by memory in use"),
    ScreenKey("fleet", "P", "P", "sort('power')", "sort by power"),
    ScreenKey("fleet", "T", "T", "sort('temp')", "sort by temperature"),
    ScreenKey("fleet", "J", "J", "sort('job')", "sort by job"),
    ScreenKey("fleet", "U", "U", "sort('user')", "sort by user"),
    ScreenKey("fleet", "C", "C", "sort('class')", "sort by class"),
    ScreenKey("fleet", "X", "X", "sort('health')", "sort by health, worst first"),
    ScreenKey("fleet", "up,k,shift+tab", "↑ k", "move(-1)", "up; also Shift-Tab"),
    ScreenKey("fleet", "down,tab", "↓ Tab", "move(1)", "down"),
    ScreenKey("fleet", "left", "←", "columns(-1)", "columns to the left"),
    ScreenKey("fleet", "right", "→", "columns(1)", "hidden columns"),
    ScreenKey("fleet", "pageup", "PgUp", "page(-1)", "one screen up"),
    ScreenKey("fleet", "pagedown", "PgDn", "page(1)", "one screen down"),
    ScreenKey("fleet", "home", "Home", "end(-1)", "first line"),
    ScreenKey("fleet", "end", "End", "end(1)", "last line"),
    ScreenKey("focus", "right,n", "→ n", "next", "next GPU", "next"),
    ScreenKey("focus", "left,N", "← N", "previous", "previous GPU"),
    ScreenKey("job", "up,k", "↑ k", "move(-1)", "GPU above"),
    ScreenKey("job", "down", "↓", "move(1)", "GPU below"),
    ScreenKey("job", "enter", "Enter", "choose", "focus on the GPU", "focus"),
    ScreenKey(
        "job",
        "s",
        "s",
        "order",
        "order: stragglers first, by index, by activity, by memory",
        "order",
    ),
)


def bindings(screen: str) -> list[Binding]:
    """Return the bindings of a screen's widget, or of the app for ""."""
    return [Binding(key.keys, key.action, key.text, show=False) for key in of(screen)]


def of(screen: str) -> list[ScreenKey]:
    """Return the keys of a screen, or those that work everywhere for ""."""
    return [key for key in KEYS if key.screen == screen]


def prompting(screen: str) -> frozenset[str]:
    """Return the keys of a screen that open the input line.

    >>> sorted(prompting("fleet")), sorted(prompting("job"))
    (['f4', 'slash'], [])
    """
    keys = [key.keys for key in of(screen) if key.action == "app.filter"]
    return frozenset(name for names in keys for name in names.split(","))


def shown(screen: str) -> Iterator[ScreenKey]:
    """Yield the keys for the footer of a screen: its own first."""
    yield from (key for key in KEYS if key.screen == screen and key.short)
    yield from (key for key in KEYS if not key.screen and key.short)
