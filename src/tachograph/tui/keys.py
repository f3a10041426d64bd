"""Every key: its action, and its place. Bindings, footer, help and docs are made from this table.

A key of the place "" works everywhere. `action` is a method `action_NAME` of the widget of that place, or of the app.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from textual.binding import Binding


@dataclass(frozen=True, slots=True)
class ScreenKey:
    """One row: keys as Textual names them, as people write them, their effect.

    place: name of a screen, "" everywhere. short: for the footer; empty: not shown there.
    """

    place: str
    keys: str
    shown: str
    action: str
    text: str
    short: str = ""


KEYS: tuple[ScreenKey, ...] = (
    ScreenKey("", "question_mark,f1", "? F1", "help", "show or hide this help", "help"),
    ScreenKey("", "colon", ":", "prompt('command')", "type a command; Tab completes names", "command"),
    ScreenKey("", "q,f10,ctrl+c", "q F10", "quit", "quit", "quit"),
    ScreenKey("", "ctrl+z", "Ctrl-Z", "suspend", "suspend; fg continues"),
    ScreenKey("", "escape,backspace", "Esc", "back", "go back; drop a filter; cancel input", "back"),
    ScreenKey("", "f", "f", "open('fleet')", "fleet: all GPUs"),
    ScreenKey("", "p", "p", "open('plot')", "plot: counters over time", "plot"),
    ScreenKey("", "j", "j", "open('job')", "job of the selected GPU: all its GPUs", "job"),
    ScreenKey("", "e", "e", "open('events')", "events: changes", "events"),
    ScreenKey("", "space", "Space", "pause", "pause or continue; the history continues", "pause"),
    ScreenKey("", "plus,equals_sign", "+", "slower_polls", "poll half as often"),
    ScreenKey("", "minus", "-", "faster_polls", "poll twice as often"),
    ScreenKey("", "ctrl+r", "Ctrl-R", "poll_now", "poll now"),
    ScreenKey("", "right_square_bracket", "]", "speed(2.0)", "recording: play twice as fast"),
    ScreenKey("", "left_square_bracket", "[", "speed(0.5)", "recording: play half as fast"),
    ScreenKey("", "left_curly_bracket", "{", "restart", "recording: restart"),
    ScreenKey("fleet", "enter", "Enter", "choose", "focus on the GPU; fold or unfold the group", "focus"),
    ScreenKey(
        "fleet",
        "slash,f4",
        "/ F4",
        "prompt('filter')",
        "filter: text, user=ana, class=idle, health!=OK, sm<20",
        "filter",
    ),
    ScreenKey("fleet", "f6,s", "F6 s", "prompt('sort')", "sort by a column, typed; Tab completes", "sort"),
    ScreenKey("fleet", "f5,g,t", "F5 g", "group", "group by node, job, user, class, none", "group"),
    ScreenKey("fleet", "h,H", "h H", "heat", "heat map: a cell per GPU, or the table", "heat map"),
    ScreenKey("fleet", "v", "v", "heat_next", "next colour of the map: class, real, sm, tensor, ..."),
    ScreenKey("fleet", "f3", "F3", "prompt('search')", "search: next matching GPU"),
    ScreenKey("fleet", "n", "n", "seek_next", "next match"),
    ScreenKey("fleet", "less_than_sign,comma", "<", "sort_next(-1)", "sort by the column to the left"),
    ScreenKey("fleet", "greater_than_sign,full_stop", ">", "sort_next(1)", "sort by the column to the right"),
    ScreenKey("fleet", "I,r", "I r", "reverse", "reverse the order"),
    ScreenKey(
        "fleet", "o", "o", "order", "then n, u, g, s, b, t: sort by name, user, memory, SM, DRAM, time; N reverses"
    ),
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
    ScreenKey("fleet", "z,asterisk", "z *", "fold_all", "fold all groups, or unfold them"),
    ScreenKey("fleet", "up,k,shift+tab", "↑ k", "move(0, -1)", "up; also Shift-Tab"),
    ScreenKey("fleet", "down,tab", "↓ Tab", "move(0, 1)", "down"),
    ScreenKey("fleet", "left", "←", "move(-1, 0)", "hidden columns; in the map: left"),
    ScreenKey("fleet", "right", "→", "move(1, 0)", "hidden columns; in the map: right"),
    ScreenKey("fleet", "circumflex_accent,ctrl+a", "^ Ctrl-A", "columns(-1)", "first columns"),
    ScreenKey("fleet", "dollar_sign,ctrl+e", "$ Ctrl-E", "columns(1)", "last columns"),
    ScreenKey("fleet", "pageup", "PgUp", "page(-1)", "one screen up"),
    ScreenKey("fleet", "pagedown", "PgDn", "page(1)", "one screen down"),
    ScreenKey("fleet", "home", "Home", "end(-1)", "first line"),
    ScreenKey("fleet", "end", "End", "end(1)", "last line"),
    ScreenKey("focus", "right,n", "→ n", "next", "next GPU", "next"),
    ScreenKey("focus", "left,N", "← N", "previous", "previous GPU"),
    ScreenKey("plot", "plus,equals_sign", "+", "widen", "longer window: 1, 5, 10 minutes", "window"),
    ScreenKey("plot", "minus", "-", "narrow", "shorter window"),
    ScreenKey("plot", "1", "1", "put('gpu_util')", "utilisation on or off"),
    ScreenKey("plot", "2", "2", "put('sm_active')", "SM activity"),
    ScreenKey("plot", "3", "3", "put('tensor_active')", "tensor activity"),
    ScreenKey("plot", "4", "4", "put('dram_active')", "memory activity"),
    ScreenKey("plot", "5", "5", "put('fp64_active')", "FP64 activity"),
    ScreenKey("plot", "6", "6", "put('hbm_used_mib')", "memory in use"),
    ScreenKey("plot", "7", "7", "put('power_w')", "power"),
    ScreenKey("plot", "8", "8", "put('gpu_temp_c')", "temperature"),
    ScreenKey("plot", "9", "9", "put('pcie_rx_bytes_per_s')", "bytes from the host"),
    ScreenKey("plot", "0", "0", "put('nvlink_rx_bytes_per_s')", "bytes over NVLink"),
    ScreenKey("plot", "c", "c", "next_counter", "next reported counter, alone", "counter"),
    ScreenKey("plot", "C", "C", "previous_counter", "previous counter, alone"),
    ScreenKey("plot", "z", "z", "zoom", "scale: visible values or full range"),
    ScreenKey("plot", "o", "o", "arrange", "GPUs overlaid or separate", "arrange"),
    ScreenKey("plot", "a", "a", "amount", "number of GPUs: 1, 2, 4, 8", "GPUs"),
    ScreenKey("plot", "right,n", "→ n", "next", "next GPUs"),
    ScreenKey("plot", "left,N", "← N", "previous", "previous GPUs"),
    ScreenKey("job", "up,k", "↑ k", "move(-1)", "GPU above"),
    ScreenKey("job", "down", "↓", "move(1)", "GPU below"),
    ScreenKey("job", "enter", "Enter", "choose", "focus on the GPU", "focus"),
    ScreenKey("job", "s", "s", "order", "order: stragglers first, by index, by activity, by memory", "order"),
    ScreenKey("events", "up,k", "↑ k", "move(-1)", "event above; holds the position"),
    ScreenKey("events", "down", "↓", "move(1)", "event below"),
    ScreenKey("events", "home", "Home", "follow", "newest event; follow", "newest"),
    ScreenKey("events", "enter", "Enter", "choose", "focus on the GPU of the event", "focus"),
    ScreenKey("events", "t", "t", "kind", "next event type only", "type"),
    ScreenKey("events", "g", "g", "of_gpu", "events of this GPU only, or all", "GPU"),
    ScreenKey("events", "a", "a", "alarms", "only alarms, or all", "alarms"),
    ScreenKey("events", "b", "b", "bell", "bell at alarms: on or off"),
)


# keys of the fleet on its heat map, and those without effect there
_MAPPED = {"heat": "table", "heat_next": "colour"}
_UNMAPPED = {"heat", "prompt('sort')"}


def bindings(place: str) -> list[Binding]:
    """Return the bindings of a screen's widget, or of the app for ""."""
    return [Binding(key.keys, key.action, key.text, show=False) for key in of(place)]


def of(place: str) -> list[ScreenKey]:
    """Return the keys of a screen, or those that work everywhere for ""."""
    return [key for key in KEYS if key.place == place]


@cache
def prompting(place: str) -> frozenset[str]:
    """Return the keys of a screen, and of all, that open the input line.

    >>> sorted(prompting("plot"))
    ['colon']
    """
    prompting_keys = [key for key in (*of(place), *of("")) if key.action.startswith("prompt(")]
    return frozenset(name for key in prompting_keys for name in key.keys.split(","))


def shown(place: str, *, mapped: bool = False) -> Iterator[ScreenKey]:
    """Yield the keys for the footer of a screen: its own first. mapped: of the fleet as a heat map."""
    if mapped:
        yield from (replace(key, short=_MAPPED[key.action]) for key in KEYS if key.action in _MAPPED)
    yield from (key for key in KEYS if key.place == place and key.short and not (mapped and key.action in _UNMAPPED))
    yield from (key for key in KEYS if not key.place and key.short)
