"""Style of limits, classes and health: a colour, and a letter or sign that is readable without colour.

The sixteen colours of a terminal, as set by the user: they work over ssh and in tmux, and NO_COLOR drops them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rich.style import Style

from tachograph.judge.health import CRIT, HEALTH_UNKNOWN, HOT, OK, STATES, WARN
from tachograph.judge.workload.classes import COLOURS, WORKLOAD_BY_NAME, WORKLOAD_CLASSES, Bottleneck, bottleneck

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
