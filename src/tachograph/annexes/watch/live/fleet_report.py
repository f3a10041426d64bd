"""The fleet page: held idle and unhealthy GPUs, counts, groups, heat map, selected GPUs.

Texts are those of the screen; everything is a table of texts, so that only what changed needs to be
sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tachograph.annexes.watch.live.fleet_rows import (
    FleetRows,
    groups_of,
    matching,
    number_name,
    parse_filter,
    sort_name,
    sorted_rows,
)
from tachograph.annexes.watch.live.looks import (
    FREE,
    HEALTH_SIGNS,
    HELD,
    LOOKS,
    MARKS,
    SHOWN_LOOKS,
    count_marks,
    count_states,
    looks,
    reduce_known,
)
from tachograph.annexes.watch.live.snapshot import GpuAllocation, GpuId, old_places
from tachograph.annexes.watch.live.view import FleetView, GpuHistory, gpu_reasons
from tachograph.catalog.arrays import Floats
from tachograph.catalog.errors import UsageError
from tachograph.catalog.units import plural, text
from tachograph.judge.finding import Finding
from tachograph.judge.health import CRIT, HEALTH_UNKNOWN, HOT, STATES, WARN

GROUPINGS = ("node", "partition", "job", "user", "class")
MAPS = ("class", "util", "real", "mem", "power", "temp")
MOST_ROWS = 100  # of the table of GPUs, and of each list
MOST_GROUPS = 500  # a page of thousands of jobs stays readable
_SICK = (CRIT, WARN, HOT)
_LEVELS = 10  # one digit of the map each
# headings; > before those of numbers
_OF_HELD = ("GPU", "job", "user", ">held for", ">memory")
_OF_ALL = (
    *("GPU", "job", "user", "class", "health"),
    *(">use", ">real use", ">memory", ">power", ">temp."),
)
_NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class FleetTable:
    """A table of texts. links: column -> kind of its names.

    keys: of its rows; while these stay, only cells change.

    more: rows that are not shown.
    """

    name: str
    headings: tuple[str, ...]
    keys: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    links: Mapping[int, str] = field(default_factory=dict)
    more: int = 0


@dataclass(frozen=True, slots=True)
class FleetReport:
    """Content of the fleet page. sentences: source problems. counts: (what, number).

    nodes: (node, its GPUs) of the heat map; heat: its cells in this order. others: GPUs that are
    not visible, in words; "" where all are.
    """

    t: float
    headline: str
    sentences: tuple[str, ...]
    counts: tuple[tuple[str, str], ...]
    held: FleetTable
    sick: FleetTable
    groups: FleetTable
    gpus: FleetTable
    nodes: tuple[tuple[str, tuple[str, ...]], ...]
    heat: tuple[str, ...]
    others: str = ""

    @property
    def tables(self) -> tuple[FleetTable, ...]:
        """All tables."""
        return self.held, self.sick, self.groups, self.gpus


def part_of(view: FleetView, allocations: Mapping[GpuId, GpuAllocation]) -> FleetView:
    """Return the view restricted to `allocations`, for viewers who may see only these.

    Processes and problems of the source name other GPUs and are left out.
    """
    gpus = view.snapshot.gpus
    visible = tuple(gpu for gpu in gpus if gpu in allocations)
    rows = old_places(gpus, visible)
    return replace(
        view,
        snapshot=replace(
            view.snapshot.of(visible),
            allocations=dict(allocations),
            processes={},
            problems=(),
            free=frozenset(),
        ),
        labels=view.labels[rows],
        real=view.real[rows],
        health=view.health[rows],
        current=view.current[rows],
        stale_s=view.stale_s[rows],
        means={name: column[rows] for name, column in view.means.items()},
        errors={name: column[rows] for name, column in view.errors.items()},
        history=GpuHistory(1),
    )


@dataclass(frozen=True, slots=True)
class FleetChoice:
    """View options: group by one of GROUPINGS, map by one of MAPS, filter and order."""

    by: str = "node"
    heat: str = "class"
    filter: str = ""
    sort: str = "gpu"

    def check(self) -> None:
        """Check the options. Errors: UsageError naming the invalid one."""
        if self.by not in GROUPINGS:
            raise UsageError(
                f"cannot group by {self.by!r}", do=f"use one of: {', '.join(GROUPINGS)}"
            )
        if self.heat not in MAPS:
            number_name(self.heat)
        parse_filter(self.filter)
        sort_name(self.sort)


def build_fleet_report(
    view: FleetView,
    choice: FleetChoice,
    *,
    whole: FleetView | None = None,
    partitions: Mapping[str, str] | None = None,
    findings: Mapping[str, Sequence[Finding]] | None = None,
) -> FleetReport:
    """Return the report of a view. whole: view of all GPUs, to count hidden ones.

    partitions: {job: its partition}; findings: {job: those of its last minute}. Errors: UsageError
    for the choice.
    """
    choice.check()
    rows = FleetRows(view)
    matches = matching(rows, parse_filter(choice.filter))
    ordered = sorted_rows(rows, choice.sort)
    ordered = ordered[matches[ordered]]
    # longest first, unknown durations last; worst first
    held = [row for row in sorted_rows(rows, "held").tolist() if rows.looks[row] == HELD]
    sick = [row for row in sorted_rows(rows, "health").tolist() if rows.view.state(row) in _SICK]
    return FleetReport(
        t=view.snapshot.t,
        headline=_headline(rows, held, sick),
        sentences=tuple(problem.sentence for problem in view.snapshot.problems),
        counts=tuple(
            (f"{mark} {name}".strip(), f"{count:,}") for mark, name, count in _counts(view)
        ),
        held=_gpu_table(rows, "held", held, _OF_HELD),
        sick=_gpu_table(rows, "sick", sick, ("GPU", "health", "reason", "job", "user")),
        groups=_groups(rows, choice.by, partitions or {}, findings or {}),
        gpus=_gpu_table(rows, "gpus", ordered.tolist(), _OF_ALL),
        nodes=_nodes_of_map(rows),
        heat=tuple(_heat(rows, choice.heat)),
        others=_others(view, whole),
    )


def _headline(rows: FleetRows, held: Sequence[int], sick: Sequence[int]) -> str:
    size = len(rows)
    if not size:
        return "No GPU."
    counts = count_marks(rows.looks)
    idle = {
        "free": counts[LOOKS[FREE].mark],
        "idle, not known whether held": counts[MARKS["idle"]],
        "of unknown use": counts[MARKS["unknown"]],
    }
    working = size - len(held) - sum(idle.values())
    parts = [f"{working:,} of {plural(size, 'GPU')} at work", f"{len(held):,} held idle"]
    parts += [f"{count:,} {words}" for words, count in idle.items() if count]
    judged = int((rows.view.health != STATES.index(HEALTH_UNKNOWN)).sum())
    parts.append(f"{len(sick):,} unhealthy" if judged or sick else "health not known")
    current = int(rows.view.current.sum())
    missing = "" if current == size else f"; {size - current:,} without values now"
    return f"{'; '.join(parts)}{missing}."


def _counts(view: FleetView) -> list[tuple[str, str, int]]:
    """Return (letter or sign, name, GPUs) by look, then by health, without zeros."""
    names = {LOOKS[look].mark: LOOKS[look].name for look in SHOWN_LOOKS}
    by_mark = count_marks(looks(view))
    counts = [(mark, names[mark], count) for mark, count in by_mark.items()]
    counts += [
        (HEALTH_SIGNS[state], state, count)
        for state, count in count_states(view.health).items()
        if state in _SICK
    ]
    return [count for count in counts if count[2]]


def _others(view: FleetView, whole: FleetView | None) -> str:
    """Return the activity of invisible GPUs, without names."""
    count = 0 if whole is None else len(whole.snapshot.gpus) - len(view.snapshot.gpus)
    if whole is None or not count:
        return ""
    visible = {name: number for _, name, number in _counts(view)}
    hidden = [(name, number - visible.get(name, 0)) for _, name, number in _counts(whole)]
    listed = ", ".join(f"{number:,} {name}" for name, number in hidden if number)
    return f"{plural(count, 'other GPU')}: {listed}."


_LINKS: Mapping[str, str] = {"GPU": "node", "job": "job", "user": "user"}


def _gpu_table(
    rows: FleetRows, name: str, selected: Sequence[int], headings: Sequence[str]
) -> FleetTable:
    """Return some of the columns of GPUs, the first MOST_ROWS of them."""
    util, real, power, temp = (rows.number(name) for name in ("util", "real", "power", "temp"))
    columns: Mapping[str, Callable[[int], str]] = {
        "GPU": lambda row: rows.text("gpu")[row],
        "job": lambda row: rows.text("job")[row],
        "user": lambda row: rows.text("user")[row],
        "class": lambda row: LOOKS[int(rows.looks[row])].text,
        "health": lambda row: _state(rows.text("health")[row]),
        "reason": lambda row: gpu_reasons(rows.view, row).health_why,
        ">held for": lambda row: _minutes(rows.number("held")[row]),
        ">use": lambda row: _percent(util[row]),
        ">real use": lambda row: _percent(real[row]),
        ">memory": lambda row: _memory(rows, row),
        ">power": lambda row: _whole(power[row], "W"),
        ">temp.": lambda row: _whole(temp[row], "C"),
    }
    shown = selected[:MOST_ROWS]
    return FleetTable(
        name,
        tuple(headings),
        tuple(rows.text("gpu")[row] for row in shown),
        tuple(tuple(columns[heading](row) for heading in headings) for row in shown),
        {column: _LINKS[heading] for column, heading in enumerate(headings) if heading in _LINKS},
        len(selected) - len(shown),
    )


def _groups(
    rows: FleetRows,
    by: str,
    partitions: Mapping[str, str],
    findings: Mapping[str, Sequence[Finding]],
) -> FleetTable:
    listed = groups_of(_group_names(rows, by, partitions), sorted_rows(rows, "gpu"))
    shown = listed[:MOST_GROUPS]
    util, real, power = (rows.number(name) for name in ("util", "real", "power"))
    cells = []
    for group in shown:
        mine = group.rows
        cells.append(
            (
                group.name or _NOT_KNOWN,
                f"{len(mine):,}",
                " ".join(f"{count} {mark}" for mark, count in rows.marks(mine).items()),
                _state(rows.worst_health(mine)),
                _percent(reduce_known(np.mean, util[mine])),
                _percent(reduce_known(np.mean, real[mine])),
                _power(power[mine]),
                *((_named_findings(findings.get(group.name, ())),) if by == "job" else ()),
            )
        )
    more = ("findings",) if by == "job" else ()
    headings = (by, ">GPUs", "classes", "worst health", ">use", ">real use", ">power", *more)
    links = {0: by} if by in ("node", "job", "user") else {}
    keys = tuple(group.name for group in shown)
    return FleetTable("groups", headings, keys, tuple(cells), links, len(listed) - len(shown))


def _group_names(rows: FleetRows, by: str, partitions: Mapping[str, str]) -> Sequence[str]:
    if by == "class":
        return [LOOKS[index].text for index in rows.looks.tolist()]
    if by != "partition":
        return rows.text(by)
    return [
        job if look == FREE else partitions.get(job, "")
        for job, look in zip(rows.text("job"), rows.looks.tolist(), strict=True)
    ]


def _named_findings(findings: Sequence[Finding]) -> str:
    return "; ".join(finding.title for finding in findings if finding.reported)


def _nodes_of_map(rows: FleetRows) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Nodes and their GPUs, in the order of the heat map."""
    nodes = groups_of(rows.text("node"), sorted_rows(rows, "gpu"))
    names = rows.text("gpu")
    return tuple((node.name, tuple(names[row] for row in node.rows.tolist())) for node in nodes)


def _heat(rows: FleetRows, by: str) -> list[str]:
    """Letter of the class, or digit of the level, and health mark, by `_nodes_of_map`."""
    order = sorted_rows(rows, "gpu").tolist()
    sign_of_state = [HEALTH_SIGNS[state] if state in _SICK else "" for state in STATES]
    signs = [sign_of_state[state] for state in rows.view.health.tolist()]
    if by == "class":
        marks = [LOOKS[index].mark for index in rows.looks.tolist()]
    else:
        values = rows.number(by)
        low, high = _bounds(values, by)
        span = high - low if high > low else 1.0
        levels = np.clip((values - low) / span * _LEVELS, 0, _LEVELS - 1)
        marks = ["-" if level != level else str(int(level)) for level in levels.tolist()]
    return [marks[row] + signs[row] for row in order]


def _bounds(values: Floats, by: str) -> tuple[float, float]:
    """Return level boundaries of a number, stable between readings where possible."""
    fixed = {"power": (0.0, 1000.0), "temp": (20.0, 100.0), "mem": (0.0, 80.0)}
    if by in fixed:
        return fixed[by]
    top = reduce_known(np.max, values)
    return (0.0, top) if top > 1.0 else (0.0, 1.0)


def _power(values: Floats) -> str:
    watts = reduce_known(np.sum, values)
    if watts != watts:
        return text(None)
    return text(round(watts, -2 if watts >= 1000 else -1), "W")


def _percent(value: float) -> str:
    return text(None) if value != value else f"{value * 100:.0f} %"


def _whole(value: float, unit: str) -> str:
    return text(None if value != value else float(round(value)), unit)


def _minutes(seconds: float) -> str:
    """Whole minutes, so that it changes rarely."""
    return text(None if seconds != seconds else 60.0 * (max(0.0, seconds) // 60), "s")


def _memory(rows: FleetRows, row: int) -> str:
    used_gib, capacity = float(rows.number("mem")[row]), float(rows.memory_gib[row])
    if used_gib != used_gib:
        return text(None)
    return (
        _percent(used_gib / capacity)
        if capacity == capacity and capacity > 0
        else f"{used_gib:.0f} GiB"
    )


def _state(state: str) -> str:
    return f"{state} {HEALTH_SIGNS[state]}".rstrip() if state in _SICK else state
