"""Columns of the fleet table: values, widths, which columns are hidden, titles."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.style import Style

from tachograph.annexes.watch.live.fleet_rows import FleetGroup, FleetRows, absent_columns
from tachograph.annexes.watch.live.looks import MISSING, reduce_known
from tachograph.annexes.watch.live.render import real_definition
from tachograph.annexes.watch.tui import colours
from tachograph.annexes.watch.tui.page import Pieces, filled
from tachograph.catalog.arrays import Floats, Longs
from tachograph.judge.health import CRIT, HEALTH_UNKNOWN, HOT, OK
from tachograph.report.lines import THIN, bar
from tachograph.report.tables import cut, fitted_widths

_SUM = "Σ"
_ALL_TEXT = 24  # characters of a name, at most
_BAR_FROM, _BAR_TO = (
    13,
    45,
)  # characters of real utilisation that have a bar: longer ones add nothing
_LETTER = 3  # characters of a class that is shown as its letter
_SHORT_HEALTH = 4  # characters of a state without its sign
# added where a wide screen has room, in this order
_FURTHER = (
    "occ",
    "fp64",
    "memtemp",
    "clock",
    "rx",
    "tx",
    "nvlink",
    "fp32",
    "fp16",
    "held",
    "model",
)


@dataclass(frozen=True, slots=True)
class FleetColumn:
    """A column: name to sort by, texts of GPU and group, width (0: from the data).

    brief: its title where the column is narrower than `title`; empty: the first word.
    """

    name: str
    title: str
    width: int
    of_gpu: Callable[[FleetRows, int], str]
    of_group: Callable[[FleetRows, FleetGroup], str]
    left_aligned: bool = False
    brief: str = ""


@dataclass(frozen=True, slots=True)
class ColumnPlace:
    """A column on the screen."""

    column: FleetColumn
    width: int
    at: int = 0


def percent(value: float) -> str:
    """Return a fraction in at most four characters.

    >>> percent(0.423), percent(1.0), percent(float("nan"))
    ('42%', '100%', '-')
    """
    return MISSING if value != value else f"{value * 100:.0f}%"


def short(value: float) -> str:
    """Return a large number in at most five characters.

    >>> short(2.13e9), short(950.4), short(12_345), short(float("nan"))
    ('2.1G', '950', '12k', '-')
    """
    if value != value:
        return MISSING
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return (
                f"{value / size:.1f}{prefix}"
                if abs(value) < 9.95 * size
                else f"{value / size:.0f}{prefix}"
            )
    return f"{value:.0f}"


def span(seconds: float) -> str:
    """Return a duration in at most six characters.

    >>> span(59), span(7325), span(3 * 86400), span(float("nan"))
    ('59s', '2h02', '3d00h', '-')
    """
    if seconds != seconds:
        return MISSING
    whole = max(0, int(seconds))
    if whole < 3600:
        return f"{whole}s" if whole < 60 else f"{whole // 60}m{whole % 60:02d}"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def percent_bar(value: float, width: int) -> str:
    """Return a thin bar, and the percent after it.

    >>> percent_bar(0.5, 14)
    '━━━━╸      50%'
    """
    if value != value:
        return MISSING.rjust(width)
    steps = len(THIN) * (width - 5)
    return (
        f"{bar(round(value * steps) / steps, width - 5, marks=THIN, empty=' ')}{percent(value):>5}"
    )


def fit(
    rows: FleetRows, width: int, *, skip: int = 0, first: int = 8, group: str = "", sort: str = ""
) -> list[ColumnPlace]:
    """Return the columns that fit, from left to right.

    skip: number of optional columns that are skipped. first: least width of the name of a GPU or a
    group. group: the grouping, which needs no column then. sort: the column that is never hidden.
    """
    natural = {
        name: min(_ALL_TEXT, max(map(len, rows.text(name)), default=0))
        for name in ("gpu", "job", "user")
    }
    steps = _steps(natural, skip, sort, absent_columns(rows.view))
    steps = [step for step in steps if step[0] != group or group == "class"]  # classes are counted
    widths = fitted_widths({}, [("gpu", max(first, natural["gpu"])), *steps], width, gap=1)
    if widths.get("real", 0) >= _BAR_FROM:
        widths["real"] += min(width - sum(widths.values()) - len(widths) + 1, _BAR_TO - _BAR_FROM)
    placed, at = [], 0
    for column in COLUMNS:
        if column.name in widths:
            placed.append(ColumnPlace(column, widths[column.name], at))
            at += widths[column.name] + 1
    return placed


def _steps(
    natural: Mapping[str, int], skip: int, sort: str, absent: Collection[str]
) -> list[tuple[str, int]]:
    """(column, width) by importance, as `fitted_widths` takes; some only if reported."""
    always = [("class", _LETTER), ("real", 4), ("health", _SHORT_HEALTH)]
    if not skip:
        always += [("util", 4), ("mem", 9), ("power", 6), ("temp", 4)]
    first = [
        "sm",
        "tensor",
        "dram",
        "job",
        "user",
        "health",
        "class",
        "real",
        "class",
        "util",
        "mem",
        "power",
        "temp",
    ]
    more = [name for name in _FURTHER if name not in absent or name == sort]
    widths = {column.name: column.width for column in COLUMNS}
    widths |= {"job": max(4, natural["job"]), "user": max(4, natural["user"])}
    if sort in (*first, *more) and sort not in dict(always):
        always.append((sort, widths[sort]))
    optional = [name for name in (*first, *more) if not skip or name not in dict(always)]
    steps = [(name, widths[name]) for name in optional[min(skip, len(optional) - 1) :]]
    return [*always, *steps]


def _gpu_of_group(rows: FleetRows, group: FleetGroup) -> str:
    return f"{'▸' if group.folded else '▾'} {group.name or '(none)'} ({len(group.rows)})"


def _of_all(name: str) -> Callable[[FleetRows, FleetGroup], str]:
    def common_text(rows: FleetRows, group: FleetGroup) -> str:
        texts = rows.text(name)
        different = {texts[row] for row in group.rows.tolist()} - {""}
        if not different:
            return MISSING
        return different.pop() if len(different) == 1 else f"{len(different)} {name}s"

    return common_text


def _classes_of_group(rows: FleetRows, group: FleetGroup) -> str:
    return " ".join(f"{count}{mark}" for mark, count in rows.marks(group.rows).items())


def _letter(rows: FleetRows, line: int | FleetGroup) -> str:
    """Letter of the class; of a group the most frequent one, `+` if there are others."""
    if not isinstance(line, FleetGroup):
        return colours.LOOKS[int(rows.looks[line])].mark
    marks = rows.marks(line.rows)
    return max(marks, key=lambda mark: marks[mark]) + ("+" if len(marks) > 1 else "")


def _health_of_group(rows: FleetRows, group: FleetGroup) -> str:
    return _state(rows.worst_health(group.rows))


def _class(rows: FleetRows, row: int) -> str:
    return colours.LOOKS[int(rows.looks[row])].text


def _health(rows: FleetRows, row: int) -> str:
    return _state(rows.view.state(row))


def _state(state: str) -> str:
    return state if state == HEALTH_UNKNOWN else colours.state_text(state)


def _brief_state(state: str) -> str:
    """A state of health without its sign, in four characters."""
    return "?" if state == HEALTH_UNKNOWN else state


def _sums(used_gib: Floats, there: Floats, rows: Longs) -> tuple[float, float]:
    """Used and total memory, only of GPUs that report the used memory."""
    reporting = rows[~np.isnan(used_gib[rows])]
    whole, total = not np.isnan(there[reporting]).any(), reduce_known(np.sum, there[reporting])
    return reduce_known(np.sum, used_gib[reporting]), total if whole else float("nan")


def _text(name: str, title: str, width: int = 0) -> FleetColumn:
    return FleetColumn(
        name,
        title,
        width,
        lambda rows, row: rows.text(name)[row] or MISSING,
        _of_all(name),
        left_aligned=True,
    )


def _number(
    name: str,
    title: str,
    width: int,
    written: Callable[[float], str],
    reduce: Callable[[Floats], np.floating[Any]],
) -> FleetColumn:
    def of_group(rows: FleetRows, group: FleetGroup) -> str:
        value = written(reduce_known(reduce, rows.number(name)[group.rows]))
        return _summed(value) if reduce is np.sum else value

    return FleetColumn(
        name, title, width, lambda rows, row: written(rows.value(name, row)), of_group
    )


def _summed(written: str) -> str:
    """A marked sum: other group numbers are means, temperatures maxima."""
    return written if written == MISSING else f"{_SUM}{written}"


def _memory(used_gib: float, there: float) -> str:
    if used_gib != used_gib:
        return MISSING
    written = f"{used_gib:.1f}" if used_gib < 99.95 else short(used_gib)
    if there != there:
        return written
    return f"{written}/{there:.0f}" if there < 1e3 else f"{written}/{short(there)}"


def _degrees(value: float) -> str:
    return MISSING if value != value else f"{value:.0f}°"


def _watts(value: float) -> str:
    return f"{short(value)}W" if value == value else MISSING


COLUMNS: tuple[FleetColumn, ...] = (
    FleetColumn(
        "gpu", "gpu", 0, lambda rows, row: rows.text("gpu")[row], _gpu_of_group, left_aligned=True
    ),
    _number("util", "GPU%", 4, percent, np.mean),
    FleetColumn(
        "mem",
        "memory GiB",
        10,
        lambda rows, row: _memory(rows.value("mem", row), float(rows.memory_gib[row])),
        lambda rows, group: _summed(
            _memory(*_sums(rows.number("mem"), rows.memory_gib, group.rows))
        ),
        brief="mem GiB",
    ),
    _number("power", "power", 6, _watts, np.sum),
    _number("temp", "temp", 4, _degrees, np.max),
    FleetColumn("class", "class", 22, _class, _classes_of_group, left_aligned=True, brief="cls"),
    FleetColumn(
        "real",
        "real utilisation",
        _BAR_FROM,
        lambda rows, row: percent(_real(rows, row)),
        lambda rows, group: percent(_real(rows, group)),
        left_aligned=True,
    ),
    _number("sm", "SM", 4, percent, np.mean),
    _number("tensor", "TENS", 4, percent, np.mean),
    _number("dram", "DRAM", 4, percent, np.mean),
    _text("job", "job"),
    _text("user", "user"),
    FleetColumn("health", "health", 7, _health, _health_of_group, left_aligned=True, brief="hlth"),
    _number("occ", "OCC", 4, percent, np.mean),
    _number("fp64", "FP64", 4, percent, np.mean),
    _number("fp32", "FP32", 4, percent, np.mean),
    _number("fp16", "FP16", 4, percent, np.mean),
    _number("memtemp", "mem°", 4, _degrees, np.max),
    _number(
        "clock", "MHz", 4, lambda value: MISSING if value != value else f"{value:.0f}", np.mean
    ),
    _number("rx", "PCIe<", 5, short, np.sum),
    _number("tx", "PCIe>", 5, short, np.sum),
    _number("nvlink", "NVLnk", 5, short, np.sum),
    _number("held", "held", 6, span, np.max),
    _text("model", "model", 24),
)


def pieces(
    rows: FleetRows, line: int | FleetGroup, positions: Sequence[ColumnPlace]
) -> list[tuple[str, Style]]:
    """Return a line as texts and styles, neighbours of one style together."""
    cells = [
        (_cell(rows, line, position), _style(rows, line, position.column.name))
        for position in positions
    ]
    joined: list[tuple[str, Style]] = []
    for text, style in cells:
        if joined:
            before, style_before = joined[-1]
            if style_before is style:
                joined[-1] = (f"{before} {text}", style)
                continue
            if style_before is colours.HEALTH_STYLES[CRIT]:
                text = f" {text}"
            else:
                joined[-1] = (f"{before} ", style_before)
        joined.append((text, style))
    return joined


def _cell(rows: FleetRows, line: int | FleetGroup, position: ColumnPlace) -> str:
    column = position.column
    if column.name == "real" and position.width >= _BAR_FROM:
        return percent_bar(_real(rows, line), position.width)
    if column.name == "class" and position.width <= _LETTER:
        return _letter(rows, line).ljust(position.width)
    if column.name == "health" and position.width <= _SHORT_HEALTH:
        return _brief_state(_health_of(rows, line)).ljust(position.width)
    text = (
        column.of_group(rows, line) if isinstance(line, FleetGroup) else column.of_gpu(rows, line)
    )
    return filled(text, position.width, column.left_aligned and column.name != "real")


def _real(rows: FleetRows, line: int | FleetGroup) -> float:
    """Real utilisation of a GPU; of a group the mean."""
    if isinstance(line, FleetGroup):
        return reduce_known(np.mean, rows.view.real[line.rows])
    return rows.value("real", line)


def _health_of(rows: FleetRows, line: int | FleetGroup) -> str:
    """Health of a GPU; of a group the worst."""
    if isinstance(line, FleetGroup):
        return rows.worst_health(line.rows)
    return rows.view.state(line)


def _style(rows: FleetRows, line: int | FleetGroup, name: str) -> Style:
    if isinstance(line, FleetGroup):
        if name == "gpu":
            return colours.GROUP
        worst = rows.worst_health(line.rows)
        return colours.HEALTH_STYLES[worst] if name == "health" and worst != OK else colours.BOLD
    if name in ("class", "real"):
        return colours.LOOKS[int(rows.looks[line])].style
    if name == "health":
        return colours.STATE_STYLES[int(rows.view.health[line])]
    if name == "temp" and rows.view.state(line) == HOT:
        return colours.ALARM
    return colours.PLAIN if rows.view.current[line] else colours.DIM


def legend(rows: FleetRows | None, *, width: int) -> Pieces:
    """Return the meaning of `real`; the header's counts explain the class letters."""
    return (
        []
        if rows is None
        else [(cut(real_definition(rows.view.settings.weights), width), colours.DIM)]
    )


MORE = "›"  # columns did not fit
# Sorted from A to Z, numbers from the highest.
_NAMES = ("gpu", "node", "job", "user", "class", "model")


def titles(
    positions: Sequence[ColumnPlace],
    *,
    sort: str,
    reverse: bool,
    group: str,
    width: int,
    absent: Collection[str] = (),
) -> Pieces:
    """Return the column titles; an arrow marks the sort column.

    absent: columns that the exporter has no metric for.
    """
    arrow = "▲" if (sort in _NAMES) != reverse else "▼"
    headings: Pieces = []
    gap = ""
    for position in positions:
        if position.column.name == sort:
            headings.append((f"{gap}{_written(position, arrow)}", colours.SORTED))
        else:
            headings.append((f"{gap}{_written(position, '')}", colours.TITLE))
        gap = " "
    possible = len(COLUMNS) - len(set(absent) & set(_FURTHER))
    return [*headings, *_more(positions, possible, group=group, width=width)]


def _written(position: ColumnPlace, arrow: str) -> str:
    column = position.column
    fits = len(column.title) + len(arrow) <= position.width
    title = column.title if fits else column.brief or column.title.split()[0]
    title = f"{title[: position.width - len(arrow)]}{arrow}"
    return title.ljust(position.width) if column.left_aligned else title.rjust(position.width)


def _more(positions: Sequence[ColumnPlace], possible: int, *, group: str, width: int) -> Pieces:
    """Mark at the right edge for hidden columns."""
    grouped = group not in ("", "class")  # that column is the heading of groups
    if not positions or len(positions) + grouped >= possible:
        return []
    end = positions[-1].at + positions[-1].width
    return [(MORE.rjust(width - end), colours.BOLD)] if end < width else []
