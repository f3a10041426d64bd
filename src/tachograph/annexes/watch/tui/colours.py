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
from tachograph.annexes.watch.live.looks import CLASS_LIMITS, FREE, HEALTH_SIGNS, HELD, Look
from tachograph.judge.health import CRIT, HEALTH_UNKNOWN, HOT, OK, STATES, WARN
from tachograph.judge.workload.classes import COLOURS, Bottleneck

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
# by place in STATES, for drawing from arrays
STATE_STYLES = tuple(HEALTH_STYLES[state] for state in STATES)


@dataclass(frozen=True, slots=True)
class StyledLook(Look):
    """A look with its style."""

    style: Style


_OF_IDLE = {HELD: Style(color="blue"), FREE: DIM}
# the classes in their order, then idle GPUs
LOOKS: tuple[StyledLook, ...] = tuple(
    StyledLook(look.mark, look.name, look.text, _OF_IDLE.get(index) or STYLES[CLASS_LIMITS[index]])
    for index, look in enumerate(looks.LOOKS)
)
# One of each letter, in the order of counts.
SHOWN_LOOKS = tuple(LOOKS[index] for index in looks.SHOWN_LOOKS)


def state_text(state: str) -> str:
    """Return a state of health with its sign.

    >>> state_text("HOT"), state_text("OK")
    ('HOT ^', 'OK')
    """
    return f"{state} {HEALTH_SIGNS[state]}".rstrip()
