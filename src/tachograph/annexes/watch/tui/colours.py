"""Styles of limits, classes and health: a colour, and a sign readable without colour.

The sixteen colours of a terminal, as set by the user: they work over ssh and in tmux, and NO_COLOR
drops them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rich.style import Style

from tachograph.annexes.watch.live import looks
from tachograph.annexes.watch.live.looks import CLASS_LIMITS, FREE, HEALTH_SIGNS, HELD, MARKS, Look
from tachograph.judge.health import CRIT, HEALTH_UNKNOWN, HOT, OK, STATES, WARN
from tachograph.judge.workload.classes import COLOURS, WORKLOAD_BY_NAME, Bottleneck, bottleneck

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
HEALTH_STYLES: Mapping[str, Style] = MappingProxyType(
    {
        CRIT: Style(color="red", bold=True, reverse=True),
        WARN: NOTICE,
        HOT: ALARM,
        OK: PLAIN,
        HEALTH_UNKNOWN: DIM,
    }
)
# by place in CLASSES and in STATES, for drawing from arrays
CLASS_MARKS = tuple(MARKS[limit] for limit in CLASS_LIMITS)
CLASS_STYLES = tuple(STYLES[limit] for limit in CLASS_LIMITS)
STATE_STYLES = tuple(HEALTH_STYLES[state] for state in STATES)


@dataclass(frozen=True, slots=True)
class StyledLook(Look):
    """A look with its style."""

    style: Style


_OF_IDLE = {HELD: Style(color="blue"), FREE: DIM}
LOOKS: tuple[StyledLook, ...] = tuple(
    StyledLook(look.mark, look.name, look.text, _OF_IDLE.get(place) or STYLES[CLASS_LIMITS[place]])
    for place, look in enumerate(looks.LOOKS)
)
# One of each letter, in the order of counts.
SHOWN_LOOKS = tuple(LOOKS[place] for place in looks.SHOWN_LOOKS)


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
