"""Every key: what it does, and where. Bindings, footer, help and docs are made of this table.

A key of the place "" works everywhere. `action` is a method `action_NAME` of the widget of that place, or of the app.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

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
    Key("", "colon", ":", "ask('command')", "write a command; Tab completes names", "command"),
    Key("", "q,f10,ctrl+c", "q F10", "quit", "quit", "quit"),
    Key("", "ctrl+z", "Ctrl-Z", "suspend", "stop, back to the shell; fg goes on"),
    Key("", "escape,backspace", "Esc", "back", "go back; drop a filter; give up what is being written", "back"),
    Key("", "f", "f", "open('fleet')", "fleet: all GPUs"),
    Key("", "p", "p", "open('plot')", "plot: lines over time", "plot"),
    Key("", "j", "j", "open('job')", "job of the chosen GPU: all its GPUs side by side", "job"),
    Key("", "e", "e", "open('events')", "events: what changed", "events"),
    Key("", "space", "Space", "pause", "pause and go on; the history misses nothing of a live source", "pause"),
    Key("", "plus,equals_sign", "+", "slower_looks", "look half as often"),
    Key("", "minus", "-", "faster_looks", "look twice as often"),
    Key("", "right_square_bracket", "]", "speed(2.0)", "recording: play twice as fast"),
    Key("", "left_square_bracket", "[", "speed(0.5)", "recording: play half as fast"),
    Key("", "left_curly_bracket", "{", "restart", "recording: start again"),
    Key("fleet", "enter", "Enter", "choose", "focus on the GPU; fold or unfold the group", "focus"),
    Key(
        "fleet", "slash,f4", "/ F4", "ask('filter')", "filter: text, user=ana, class=idle, health!=OK, sm<20", "filter"
    ),
    Key("fleet", "f6,s", "F6 s", "ask('sort')", "sort by a column that is written; Tab completes it", "sort"),
    Key("fleet", "f5,g,t", "F5 g", "group", "group by node, by job, by user, by class, not at all", "group"),
    Key("fleet", "h,H", "h H", "heat", "heat map: a cell per GPU, or the table", "heat map"),
    Key("fleet", "v", "v", "heat_next", "colour the map by the next: class, real, sm, tensor, ..."),
    Key("fleet", "f3", "F3", "ask('search')", "search: the cursor goes to the next GPU that matches"),
    Key("fleet", "n", "n", "seek_next", "search once more"),
    Key("fleet", "less_than_sign,comma", "<", "sort_next(-1)", "sort by the column to the left"),
    Key("fleet", "greater_than_sign,full_stop", ">", "sort_next(1)", "sort by the column to the right"),
    Key("fleet", "I,r", "I r", "reverse", "turn the order round"),
    Key("fleet", "N", "N", "sort('gpu')", "sort by name"),
    Key("fleet", "R", "R", "sort('real')", "sort by real utilisation"),
    Key("fleet", "S", "S", "sort('sm')", "sort by SM activity"),
    Key("fleet", "M", "M", "sort('mem')", "sort by memory in use"),
    Key("fleet", "P", "P", "sort('power')", "sort by power"),
    Key("fleet", "T", "T", "sort('temp')", "sort by temperature"),
    Key("fleet", "J", "J", "sort('job')", "sort by job"),
    Key("fleet", "U", "U", "sort('user')", "sort by user"),
    Key("fleet", "C", "C", "sort('class')", "sort by class"),
    Key("fleet", "X", "X", "sort('health')", "sort by health, the worst first"),
    Key("fleet", "z,asterisk", "z *", "fold_all", "fold all groups, or unfold them"),
    Key("fleet", "up,k", "↑ k", "move(0, -1)", "up"),
    Key("fleet", "down", "↓", "move(0, 1)", "down"),
    Key("fleet", "left", "←", "move(-1, 0)", "columns that did not fit; in the map, to the left"),
    Key("fleet", "right", "→", "move(1, 0)", "columns that did not fit; in the map, to the right"),
    Key("fleet", "pageup", "PgUp", "page(-1)", "a screen up"),
    Key("fleet", "pagedown", "PgDn", "page(1)", "a screen down"),
    Key("fleet", "home", "Home", "end(-1)", "to the first"),
    Key("fleet", "end", "End", "end(1)", "to the last"),
    Key("focus", "right,n", "→ n", "next", "next GPU", "next"),
    Key("focus", "left,N", "← N", "previous", "GPU before"),
    Key("plot", "plus,equals_sign", "+", "widen", "longer window: 1, 5, 10 minutes", "window"),
    Key("plot", "minus", "-", "narrow", "shorter window"),
    Key("plot", "1", "1", "put('gpu_util')", "utilisation, on and off"),
    Key("plot", "2", "2", "put('sm_active')", "SM activity"),
    Key("plot", "3", "3", "put('tensor_active')", "tensor activity"),
    Key("plot", "4", "4", "put('dram_active')", "memory activity"),
    Key("plot", "5", "5", "put('fp64_active')", "FP64 activity"),
    Key("plot", "6", "6", "put('hbm_used_mib')", "memory in use"),
    Key("plot", "7", "7", "put('power_w')", "power"),
    Key("plot", "8", "8", "put('gpu_temp_c')", "temperature"),
    Key("plot", "9", "9", "put('pcie_rx_bytes_per_s')", "bytes from the host"),
    Key("plot", "0", "0", "put('nvlink_rx_bytes_per_s')", "bytes over NVLink"),
    Key("plot", "c", "c", "next_counter", "the next counter of the catalogue that is told, alone", "counter"),
    Key("plot", "C", "C", "previous_counter", "the counter before, alone"),
    Key("plot", "z", "z", "zoom", "scale to what is seen, or to all that may be"),
    Key("plot", "o", "o", "arrange", "GPUs over each other, or each by itself", "arrange"),
    Key("plot", "a", "a", "amount", "how many GPUs: 1, 2, 4, 8", "GPUs"),
    Key("plot", "right,n", "→ n", "next", "the next GPUs"),
    Key("plot", "left,N", "← N", "previous", "the GPUs before"),
    Key("job", "up,k", "↑ k", "move(-1)", "GPU above"),
    Key("job", "down", "↓", "move(1)", "GPU below"),
    Key("job", "enter", "Enter", "choose", "focus on the GPU", "focus"),
    Key("job", "s", "s", "order", "stragglers first, in place, by activity, by memory", "order"),
    Key("events", "up,k", "↑ k", "move(-1)", "event above; holds the position"),
    Key("events", "down", "↓", "move(1)", "event below"),
    Key("events", "home", "Home", "follow", "the newest, and follow it", "newest"),
    Key("events", "enter", "Enter", "choose", "focus on the GPU of the event", "focus"),
    Key("events", "t", "t", "kind", "only one type of event: the next", "type"),
    Key("events", "g", "g", "of_gpu", "only events of the GPU of this one, or of all", "GPU"),
    Key("events", "a", "a", "alarms", "only alarms, or all", "alarms"),
    Key("events", "b", "b", "bell", "ring the bell at an alarm, or not"),
)


# what keys of the fleet do on its heat map, and which do nothing there
_MAPPED = {"heat": "table", "heat_next": "colour"}
_UNMAPPED = {"heat", "ask('sort')"}


def bindings(place: str) -> list[Binding]:
    """Return the bindings of a screen's widget, or of the app for ""."""
    return [Binding(key.keys, key.action, key.text, show=False) for key in of(place)]


def of(place: str) -> list[Key]:
    """Return the keys of a screen, or those that work everywhere for ""."""
    return [key for key in KEYS if key.place == place]


@cache
def asking(place: str) -> frozenset[str]:
    """Return the keys of a screen, and of all, after which a line is written.

    >>> sorted(asking("plot"))
    ['colon']
    """
    asked = [key for key in (*of(place), *of("")) if key.action.startswith("ask(")]
    return frozenset(name for key in asked for name in key.keys.split(","))


def shown(place: str, *, mapped: bool = False) -> Iterator[Key]:
    """Yield the keys for the footer of a screen: its own first. mapped: of the fleet as a heat map."""
    if mapped:
        yield from (replace(key, short=_MAPPED[key.action]) for key in KEYS if key.action in _MAPPED)
    yield from (key for key in KEYS if key.place == place and key.short and not (mapped and key.action in _UNMAPPED))
    yield from (key for key in KEYS if not key.place and key.short)
