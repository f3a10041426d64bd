"""The lines around a screen: which source, when, how many GPUs of which kind, what is wrong; below, keys or a note."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from tachograph.live.snapshot import Problem
from tachograph.live.view import View
from tachograph.tui import colours, keys
from tachograph.units import plural, printable
from tachograph.workload.classes import CLASSES
from tachograph.workload.health import STATES, WORST_FIRST

Pieces = list[tuple[str, Style]]
_PROBLEMS = 2  # lines of problems, at most


@dataclass(frozen=True, slots=True)
class Told:
    """What is told beside a view. interval: how often it looks, in words; summary: what the screen says of itself."""

    interval: str
    paused: bool = False
    summary: str = ""
    problems: Sequence[Problem] = ()


class Lines(Widget):
    """A few lines, drawn anew only where they changed."""

    def __init__(self, *, id: str) -> None:  # noqa: A002  as Textual names it
        super().__init__(id=id)
        self._strips: list[Strip] = []

    def tell(self, lines: Sequence[Pieces]) -> None:
        """Show these."""
        strips = [Strip([Segment(printable(text), style) for text, style in line]) for line in lines]
        if len(strips) != len(self._strips):
            self.styles.height = len(strips)
        if strips != self._strips:
            self._strips = strips
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """Draw one."""
        strip = self._strips[y] if y < len(self._strips) else Strip([])
        return strip.adjust_cell_length(self.size.width)


def header(view: View | None, told: Told, *, width: int) -> list[Pieces]:
    """Return the lines above a screen."""
    if view is None:
        return [[("tachograph watch", colours.BOLD)], *_problems(told.problems, width=width)]
    lines = [_source(view, told, width=width), _counts(view, width=width)]
    blind = _blind(view, width=width)
    return [*lines, *([blind] if blind else []), *_problems(told.problems, width=width)]


def footer(place: str, *, width: int, mapped: bool = False) -> Pieces:
    """Return the keys of a screen, as many as fit; how to quit always. mapped: of the heat map of the fleet."""
    shown = [(key, key.shown.split()[0]) for key in keys.shown(place, mapped=mapped)]
    left = width - sum(_room(key, name) for key, name in shown if key.action == "quit")
    found: Pieces = []
    for key, name in shown:
        if key.action != "quit":
            if _room(key, name) > left:
                continue
            left -= _room(key, name)
        found += [(name, colours.KEY), (f" {key.short}  ", colours.PLAIN)]
    return found


def _room(key: keys.Key, name: str) -> int:
    return cell_len(name) + len(key.short) + 3


def _source(view: View, told: Told, *, width: int) -> Pieces:
    at = time.strftime("%H:%M:%S", time.localtime(view.snapshot.t))
    right = f"{told.interval}  {at} "
    paused: Pieces = [(" PAUSED ", colours.CURSOR), (" ", colours.PLAIN)] if told.paused else []
    room = width - len(right) - sum(len(text) for text, _ in paused)
    summary = f"  {printable(told.summary)}" if told.summary else ""
    said = _cut(printable(view.about.sentence), max(12, room - 1 - len(summary)))
    return [(_cut(f"{said}{summary}", room - 1).ljust(room), colours.BOLD), *paused, (right, colours.PLAIN)]


def _counts(view: View, *, width: int) -> Pieces:
    """How many GPUs by what limits them, and by health: in words, or where there is no room in letters."""
    labels = np.bincount(view.labels, minlength=len(CLASSES)).tolist()
    limits = dict.fromkeys(colours.LIMITS, 0)
    for limit, count in zip(colours.CLASS_LIMITS, labels, strict=True):
        limits[limit] += count
    states = dict(zip(STATES, np.bincount(view.health, minlength=len(STATES)).tolist(), strict=True))
    healths = [(state, states[state]) for state in WORST_FIRST if states[state]]
    for wordy in (True, False):
        found: Pieces = [(f"{plural(len(view.snapshot.gpus), 'GPU')}  ", colours.PLAIN)]
        for limit, count in limits.items():
            if count:
                name = f" {colours.NAMES[limit]}" if wordy else ""
                found.append((f"{colours.MARKS[limit]} {count}{name}  ", colours.STYLES[limit]))
        found.append(("│ ", colours.DIM))
        for state, count in healths:
            found.append((f"{colours.state_text(state)} {count}", colours.HEALTH_STYLES[state]))
            found.append(("  ", colours.PLAIN))
        if sum(cell_len(text) for text, _ in found) <= width:
            break
    lost = int((~view.told).sum())
    return [*found, (f"{lost} silent", colours.ALARM)] if lost else found


def _blind(view: View, *, width: int) -> Pieces:
    if not view.about.blind:
        return []
    return [(_cut(f"cannot see {', '.join(view.about.blind)}", width - 20) + " (? tells more)", colours.NOTICE)]


def _problems(problems: Sequence[Problem], *, width: int) -> list[Pieces]:
    shown: list[Pieces] = [
        [(_cut(f"! {printable(one.sentence)}", width), colours.ALARM if one.fatal else colours.NOTICE)]
        for one in problems[:_PROBLEMS]
    ]
    if len(problems) > _PROBLEMS:
        shown[-1] = [(f"! {plural(len(problems) - _PROBLEMS + 1, 'more problem')} (? tells them)", colours.NOTICE)]
    return shown


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
