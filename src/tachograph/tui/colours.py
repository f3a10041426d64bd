"""Style of limits, classes and health: a colour, and a letter or sign that is readable without colour.

The sixteen colours of a terminal, as set by the user: they work over ssh and in tmux, and NO_COLOR drops them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from rich.style import Style

from tachograph.catalog.arrays import Bytes
from tachograph.judge.health import CRIT, HEALTH_UNKNOWN, HOT, OK, STATES, WARN
from tachograph.judge.workload.classes import COLOURS, WORKLOAD_BY_NAME, WORKLOAD_CLASSES, Bottleneck, bottleneck
from tachograph.live.view import FREE as UNHELD
from tachograph.live.view import HELD_IDLE, View

MARKS: Mapping[Bottleneck, str] = MappingProxyType(
    {"idle": ".", "compute": "C", "io": "I", "memory": "M", "mixed": "X", "unknown": "?"}
)
LIMITS = tuple(MARKS)  # limits of a GPU, in the order of counts

PLAIN = Style()
DIM = Style(dim=True)
BOLD = Style(bold=True)
TITLE = Style(bold=True, underline=True)
CURSOR = Style(reverse=True)
SORTED = Style(bold=True, underline=True, color="cyan")
KEY = Style(reverse=True)
ALARM = Style(color="red", bold=True)
NOTICE = Style(color="yellow")
NOTE = Style(color="yellow", bold=True)
GROUP = Style(color="blue", bold=True)

STYLES: Mapping[Bottleneck, Style] = MappingProxyType(
    {limit: DIM if colour == "dim" else Style(color=colour) for limit, colour in COLOURS.items()}
)
# a cell of the heat map: the colour behind the letter
CELL_STYLES: Mapping[Bottleneck, Style] = MappingProxyType(
    {
        limit: DIM if colour == "dim" else Style(color="black", bgcolor=colour, bold=True)
        for limit, colour in COLOURS.items()
    }
)
LEVEL_STYLES = tuple(Style(color="black", bgcolor=name) for name in ("blue", "cyan", "green", "yellow", "red"))
SIGN = Style(color="red", bold=True, reverse=True)
CURSOR_CELL = Style(reverse=True, bold=True, underline=True)
NAMES: Mapping[Bottleneck, str] = MappingProxyType({limit: "I/O" if limit == "io" else limit for limit in MARKS})

HEALTH_STYLES: Mapping[str, Style] = MappingProxyType(
    {CRIT: Style(color="red", bold=True, reverse=True), WARN: NOTICE, HOT: ALARM, OK: PLAIN, HEALTH_UNKNOWN: DIM}
)
HEALTH_SIGNS: Mapping[str, str] = MappingProxyType({CRIT: "!!", WARN: "!", HOT: "^", OK: "", HEALTH_UNKNOWN: "?"})

# by place in CLASSES and in STATES, for drawing from arrays
CLASS_LIMITS: tuple[Bottleneck, ...] = tuple(bottleneck(name) for name in WORKLOAD_CLASSES)
CLASS_MARKS = tuple(MARKS[limit] for limit in CLASS_LIMITS)
CLASS_STYLES = tuple(STYLES[limit] for limit in CLASS_LIMITS)
STATE_STYLES = tuple(HEALTH_STYLES[state] for state in STATES)


@dataclass(frozen=True, slots=True)
class Look:
    """How a GPU is shown: a letter, a name in counts, in full, its style as text and as a cell of the heat map."""

    mark: str
    name: str
    text: str
    style: Style
    cell: Style


# by place: classes, then idle GPUs by what is known of their allocation
HELD, FREE = len(WORKLOAD_CLASSES), len(WORKLOAD_CLASSES) + 1
LOOKS: tuple[Look, ...] = (
    *(
        Look(MARKS[limit], NAMES[limit], f"{MARKS[limit]} {name}", STYLES[limit], CELL_STYLES[limit])
        for limit, name in zip(CLASS_LIMITS, WORKLOAD_CLASSES, strict=True)
    ),
    Look("H", "held idle", "H idle, held", Style(color="blue"), Style(color="white", bgcolor="blue", bold=True)),
    Look("_", "free", "_ free", DIM, DIM),
)
# one of each letter, in the order of counts
SHOWN_LOOKS = (LOOKS[FREE], LOOKS[HELD], *(LOOKS[CLASS_LIMITS.index(limit)] for limit in LIMITS))


def looks(view: View) -> Bytes:
    """Return the place in LOOKS of each GPU."""
    kinds = view.idle_kinds()
    found: Bytes = np.where(kinds == HELD_IDLE, HELD, np.where(kinds == UNHELD, FREE, view.labels)).astype(np.uint8)
    return found


def class_text(name: str) -> str:
    """Return a class with the letter of its limit.

    >>> class_text("tensor compute"), class_text("idle")
    ('C tensor compute', '. idle')
    """
    return f"{MARKS[bottleneck(name)]} {name}"


def state_text(state: str) -> str:
    """Return a state of health with its sign.

    >>> state_text("HOT"), state_text("OK")
    ('HOT ^', 'OK')
    """
    return f"{state} {HEALTH_SIGNS[state]}".rstrip()


def class_style(name: str) -> Style:
    """Return the style of a class."""
    return STYLES[bottleneck(name)] if name in WORKLOAD_BY_NAME else STYLES["unknown"]
