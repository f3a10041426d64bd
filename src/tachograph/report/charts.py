"""Descriptions of plots: axes, and layers of data over them. `svg` draws them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

import msgspec

from tachograph.catalog.units import KI, printable, text, zone
from tachograph.report.recording import Colour, Mark, Values

MOST_LETTERS = 40  # of a name
MARK_LETTERS = 100  # of the label of a mark that are as wide as a plot, at most
_TIMES_S = (
    *(1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200),
    *(86_400, 172_800, 604_800, 1_209_600, 2_419_200),
)


class Tick(msgspec.Struct, frozen=True):
    """A place on an axis with its label, and a second line below it."""

    value: float
    label: str
    second: str = ""


class Axis(msgspec.Struct, frozen=True):
    """Values from `low` at the left or at the bottom to `high`; `ticks` have grid lines."""

    low: float
    high: float
    ticks: tuple[Tick, ...] = ()
    title: str = ""
    log: bool = False
    grid: bool = True

    def share(self, value: float) -> float:
        """Return the place of a value on the axis, 0..1; beyond an end it is at the end."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, self.low))
        return min(1.0, max(0.0, (value - low) / (high - low)))


class Curve(msgspec.Struct, frozen=True):
    """A line through points; it is broken where y is null."""

    xs: Sequence[float]
    ys: Values
    colour: Colour
    label: str = ""
    dashed: bool = False


class FilledArea(msgspec.Struct, frozen=True):
    """The area between two lines."""

    xs: Sequence[float]
    low: Values
    high: Values
    colour: Colour
    label: str = ""


class Box(msgspec.Struct, frozen=True):
    """A rectangle; `level` 0..1 colours it as in a strip, instead of `colour`."""

    x: tuple[float, float]
    y: tuple[float, float]
    colour: Colour = "accent"
    label: str = ""
    level: float | None = None
    opacity: float = 1.0
    legend: bool = True


class Bars(msgspec.Struct, frozen=True):
    """Upright bars of one kind from `low` to `high`, a part of each place's stack."""

    spans: Sequence[tuple[float, float]]
    low: Sequence[float]
    high: Sequence[float]
    colour: Colour
    label: str
    opacity: float = 1.0


class Dots(msgspec.Struct, frozen=True):
    """Points, and names beside the first ones."""

    xs: Sequence[float]
    ys: Sequence[float]
    colour: Colour
    label: str = ""
    names: tuple[str, ...] = ()


class Heat(msgspec.Struct, frozen=True):
    """Rows of values 0..1 as colours, top down; the cells end at `x_end`."""

    rows: tuple[Values, ...]
    x_end: float


Layer = Curve | FilledArea | Box | Bars | Dots | Heat


class Chart(msgspec.Struct, frozen=True):
    """Layers over two axes; layers with a label have an entry in the legend."""

    title: str
    height: float
    x: Axis
    y: Axis
    layers: tuple[Layer, ...]


def fraction_axis(*, step: float = 0.5, title: str = "") -> Axis:
    """Return 0 to 100 %."""
    ticks = (
        Tick(place * step, f"{100 * place * step:.0f} %") for place in range(round(1 / step) + 1)
    )
    return Axis(0.0, 1.0, tuple(ticks), title)


def amount_axis(most: float, unit: str, *, ticks: int = 4, title: str = "") -> Axis:
    """Return 0 to a little above `most`, with about `ticks` round values as people read them."""
    size = KI if unit == "MiB" and most >= KI else 1.0
    shown_unit = "GiB" if size == KI else unit
    high = 1.05 * most or size
    step = _round_step(high / size / ticks)
    values = [place * step for place in range(math.floor(high / size / step) + 1)]
    labels = (
        Tick(
            value * size,
            text(value, unit) if unit == "B/s" else f"{value:,.10g} {shown_unit}".strip(),
        )
        for value in values
    )
    return Axis(0.0, high, tuple(labels), title)


def _round_step(least: float) -> float:
    """Return the smallest of 1, 2, 2.5, 5, 10, 20 and so on that is not below `least`.

    >>> [_round_step(least) for least in (0.3, 7.0, 21.0, 100.0)]
    [0.5, 10.0, 25.0, 100.0]
    """
    power = 10.0 ** math.floor(math.log10(least))
    return next(size * power for size in (1, 2, 2.5, 5, 10) if size * power >= least * 0.999999)


def log_axis(low: float, high: float, *, title: str = "", percent: bool = False) -> Axis:
    """Return powers of ten from `low` to `high`."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    values = [10.0**power for power in range(first, last + 1)]
    ticks = (Tick(value, f"{100 * value:g} %" if percent else f"{value:g}") for value in values)
    return Axis(low, high, tuple(ticks), title, log=True)


def rows_axis(labels: Sequence[str]) -> Axis:
    """Return one row per label, top down: row i is from i - 0.5 to i + 0.5."""
    ticks = tuple(Tick(float(place), label) for place, label in enumerate(labels))
    return Axis(len(labels) - 0.5, -0.5, ticks, grid=False)


def time_axis(length_s: float, start_s: float | None = None, zone_name: str = "UTC") -> Axis:
    """Return the time since the start, at most seven ticks, and the wall clock if it is known."""
    step = next((step for step in _TIMES_S if length_s / step <= 6), _TIMES_S[-1])
    ticks: list[Tick] = []
    day = ""
    zoned = False  # whether the offset changes: then a time of the clock may occur twice
    if start_s is not None:
        ends = (datetime.fromtimestamp(at, zone(zone_name)) for at in (start_s, start_s + length_s))
        zoned = len({end.utcoffset() for end in ends}) > 1
    for place in range(math.floor(length_s / step) + 1):
        clock = ""
        if start_s is not None:
            local = datetime.fromtimestamp(start_s + place * step, zone(zone_name))
            date = f"{local.day} {local:%b}"
            clock = f"{local:%H:%M:%S}" if step < 60 else f"{local:%H:%M}"
            clock, day = (clock if date == day else f"{date} {clock}"), date
            clock = f"{clock} {local:%Z}" if zoned else clock
        ticks.append(Tick(float(place * step), _since_start(place * step), clock))
    return Axis(0.0, length_s, tuple(ticks))


def _since_start(seconds: int) -> str:
    """Return a time after the start.

    >>> [_since_start(seconds) for seconds in (0, 90, 5400, 172_800, 216_000)]
    ['start', '1 min 30 s', '1 h 30 min', '2 d', '2 d 12 h']
    """
    if seconds == 0:
        return "start"
    return f"{seconds // 86_400} d" if seconds % 86_400 == 0 else text(float(seconds), "s")


def shown_name(name: str | None, *, most: int = MOST_LETTERS) -> str:
    r"""Return a name on one line, at most `most` characters, without invisible ones.

    >>> shown_name(" "), shown_name("a\x1b"), shown_name("a" * 50, most=5)
    ('(no name)', 'a\\x1b', 'aaaa…')
    """
    shown = printable(name or "", most=400)
    if not shown.strip():
        return "(no name)"
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def lanes(marks: Sequence[Mark], length_s: float, letters: int = MARK_LETTERS) -> list[list[Mark]]:
    """Return marks in rows, in order of begin, in which neither they nor their labels overlap.

    letters: how many are as wide as the plot.

    >>> early, late, long = (
    ...     Mark("finding", label, *span)
    ...     for label, span in (("a", (0, 10)), ("b", (50, 60)), ("c", (5, 70)))
    ... )
    >>> [[mark.label for mark in lane] for lane in lanes([early, late, long], 100)]
    [['a', 'b'], ['c']]
    """
    rows: list[list[Mark]] = []
    for mark in sorted(marks, key=lambda mark: (mark.begin_s, -mark.end_s)):
        taken = extent(mark, length_s, letters)[0]
        row = next((row for row in rows if extent(row[-1], length_s, letters)[1] <= taken), None)
        if row is None:
            rows.append([mark])
        else:
            row.append(mark)
    return rows


def extent(mark: Mark, length_s: float, letters: int = MARK_LETTERS) -> tuple[float, float]:
    """Return start and end of a mark with its label; a label at the edge ends with its bar."""
    label_s = (len(label_of(mark, letters)) + 2) * length_s / letters
    if mark.begin_s + label_s <= length_s:
        return mark.begin_s, max(mark.end_s, mark.begin_s + label_s)
    return min(mark.begin_s, max(0.0, mark.end_s - label_s)), mark.end_s


def label_of(mark: Mark, letters: int = MARK_LETTERS) -> str:
    """Return the label, truncated if too long for a plot as wide as so many letters."""
    return shown_name(mark.label, most=4 * letters // 5)
