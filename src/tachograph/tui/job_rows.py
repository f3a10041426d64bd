"""A job as rows: what it is and does, a map of all its GPUs, a line for each, its processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from rich.segment import Segment
from rich.style import Style

from tachograph.live.view import View
from tachograph.tui import colours
from tachograph.tui.fleet_columns import percent
from tachograph.tui.focus_counters import span
from tachograph.tui.job_facts import JobFacts, mean, programs, total
from tachograph.tui.job_spread import WINDOW_S
from tachograph.tui.lines import blocks, spark
from tachograph.tui.page import MISSING, Row, cell, flow, heading, paragraph, quantity, words
from tachograph.units import plural, printable
from tachograph.workload.classes import CLASSES, CODES

BEHIND, AHEAD, UNUSED, LOST = "<", ">", "0", "!"
MAPPED = 16  # GPUs from which on a map shows all at once
_NAMED = 6  # GPUs that a sentence lists
_PROGRAMS = 6
ORDERS = ("stragglers first", "in place", "least active first", "most memory first")
_COLUMNS = (("real", 6), ("SM", 6), ("tensor", 7), ("DRAM", 6), ("memory", 10), ("power", 8))
_COUNTERS = ("sm_active", "tensor_active", "dram_active", "hbm_used_mib", "power_w")
_UNITS = ("fraction", "fraction", "fraction", "fraction", "MiB", "W")


def title(view: View, job: JobFacts, *, width: int) -> list[Row]:
    """Return who the job is, what it does, how evenly, and which GPUs stand out."""
    snapshot, holder = view.snapshot, job.holder
    nodes = len({snapshot.gpus[row].node for row in job.rows})
    since = "" if holder.since is None else f"for {quantity(max(0.0, snapshot.t - holder.since), 's')}"
    places = list(job.rows)
    who = words([f"user {holder.user or MISSING}", f"{plural(len(places), 'GPU')} on {plural(nodes, 'node')}", since])
    means = words(
        [
            f"real {quantity(mean(view.real[places]), 'fraction')}",
            *(
                f"{name} {quantity(mean(snapshot.column(counter)[places]), 'fraction')}"
                for name, counter in (("SM", "sm_active"), ("tensor", "tensor_active"), ("DRAM", "dram_active"))
            ),
            f"Σ memory {quantity(total(snapshot.column('hbm_used_mib')[places]), 'MiB')}",
            f"Σ power {quantity(total(snapshot.column('power_w')[places]), 'W')}",
        ]
    )
    first: Row = [Segment(f"job {printable(job.job_id)}  ", colours.BOLD), Segment(printable(who))]
    return [first, *_kinds(view, job, width=width), *paragraph(means, width), *evenness(view, job, width=width)]


def _kinds(view: View, job: JobFacts, *, width: int) -> list[Row]:
    """How many GPUs are of which class, the most frequent first."""
    found = np.bincount(view.labels[list(job.rows)], minlength=len(CLASSES))
    seen = [place for place in np.argsort(-found, kind="stable").tolist() if found[place]]
    return flow(
        (
            [Segment(f"{colours.CLASS_MARKS[one]} {found[one]} {CLASSES[one]}  ", colours.CLASS_STYLES[one])]
            for one in seen
        ),
        width,
    )


def evenness(view: View, job: JobFacts, *, width: int) -> list[Row]:
    """Return spatial imbalance, stragglers, GPUs that were not used and that tell nothing, as sentences."""
    if job.counter is None:
        return paragraph("how evenly the GPUs work is not known: no activity is told", width, colours.DIM)
    of = job.spread
    rows: list[Row] = []
    if len(job.rows) > 1:
        counted = f"over {plural(of.windows - of.zero_windows, 'window')} of {WINDOW_S:.0f} s"
        if of.growing_s is not None:
            counted = f"of the first window, {of.growing_s:.0f} of {WINDOW_S:.0f} s"
        written = quantity(of.imbalance, "ratio")
        rest = "" if of.imbalance is not None else ": nothing was active" if of.windows else ": no window is over yet"
        rows += paragraph(f"spatial imbalance {written} {counted} ({job.counter}){rest}", width)
    told = view.told[list(job.rows)]
    marked = (
        (of.behind & told & ~job.unused, f"{BEHIND} far behind the others", colours.NOTICE),
        (of.ahead & told, f"{AHEAD} far ahead of the others", colours.NOTICE),
        (job.unused & told, f"{UNUSED} not used in the last {quantity(_kept_s(job), 's')}", colours.NOTICE),
        (~told, f"{LOST} tells nothing now", colours.ALARM),
    )
    for flags, said, style in marked:
        if flags.any():
            rows += paragraph(f"{said}: {_named(view, job, np.flatnonzero(flags).tolist())}", width, style, indent=2)
    return rows


def _kept_s(job: JobFacts) -> float:
    return float(job.times[-1] - job.times[0]) if len(job.times) > 1 else 0.0


def _named(view: View, job: JobFacts, places: Sequence[int]) -> str:
    names = [view.snapshot.gpus[job.rows[place]].name for place in places[:_NAMED]]
    return ", ".join(names) + (f" and {len(places) - _NAMED} more" if len(places) > _NAMED else "")


def mapped(view: View, job: JobFacts, *, width: int) -> list[Row]:
    """Return a block for each GPU, node by node: as high as it is active, coloured by what limits it."""
    values = view.snapshot.column(job.counter or "gpu_util")[list(job.rows)]
    drawn = [
        block if known else "?"
        for block, known in zip(blocks(values, low=0.0, high=1.0), values == values, strict=True)
    ]
    nodes: dict[str, list[int]] = {}
    for place, row in enumerate(job.rows):
        nodes.setdefault(view.snapshot.gpus[row].node, []).append(place)
    labels = view.labels[list(job.rows)].tolist()
    longest = max(len(name) for name in nodes)
    most = max(len(places) for places in nodes.values())
    each = longest + 1 + most + 2
    rows: list[Row] = [heading("All GPUs", width, f"{job.counter or 'nothing told'}, now")]
    fit = max(1, width // each)
    named = list(nodes.items())
    for begin in range(0, len(named), fit):
        together: Row = []
        for name, places in named[begin : begin + fit]:
            together.append(cell(name, longest + 1, colours.DIM))
            for label, alike in groupby(places, key=labels.__getitem__):
                together.append(Segment("".join(drawn[place] for place in alike), colours.CLASS_STYLES[label]))
            together.append(Segment(" " * (most - len(places) + 2)))
        rows.append(together)
    return rows


def ordered(view: View, job: JobFacts, order: str) -> list[int]:
    """Return places in `job.rows` in the order of lines; what is missing last."""
    rows = list(job.rows)
    lags = job.spread.lags
    match order:
        case "stragglers first":
            told = view.told[rows]
            rank = np.select([~told, job.unused, job.spread.behind, job.spread.ahead], [0, 1, 2, 3], 4)
            keys = rank + np.where((rank == 2) | (rank == 3), 0.5 - np.nan_to_num(lags) / 2, 0.0)  # worst first
        case "least active first":
            values = view.snapshot.column(job.counter or "gpu_util")[rows]
            keys = np.where(np.isfinite(values), values, np.inf)
        case "most memory first":
            used = view.snapshot.column("hbm_used_mib")[rows]
            keys = np.where(np.isfinite(used), -used, np.inf)
        case _:
            keys = np.zeros(len(rows))
    found: list[int] = np.argsort(keys, kind="stable").tolist()
    return found


@dataclass(frozen=True, slots=True)
class Table:
    """What the lines of GPUs are made of. names, classes, history, programs: characters of these columns.

    each: seconds that a block of the history stands for.
    """

    names: int
    classes: int
    history: int
    programs: int
    each: float


def table(view: View, job: JobFacts, *, width: int) -> Table:
    """Return the columns that fit."""
    names = min(24, max(len(view.snapshot.gpus[row].name) for row in job.rows))
    fixed = 2 + names + 1 + sum(size for _, size in _COLUMNS) + 1
    classes = 23 if width - fixed >= 60 else 15
    programs_width = 26 if width - fixed - classes >= 66 else 0
    left = max(0, width - fixed - classes - programs_width - 1)
    return Table(names, classes, left, programs_width, span(job.times, max(1, left)))


def table_head(columns: Table) -> Row:
    """Return the names of the columns."""
    row: Row = [cell("", 2), cell("GPU", columns.names + 1, colours.BOLD), cell("class", columns.classes, colours.BOLD)]
    row += [cell(name, size, colours.BOLD, right=True) for name, size in _COLUMNS]
    reach = f" last {quantity(columns.history * columns.each, 's')}" if columns.history >= 12 else ""
    row += [Segment(" "), cell(reach, columns.history, colours.DIM)]
    return [*row, cell(" processes" if columns.programs else "", columns.programs + 1, colours.BOLD)]


def gpu_row(view: View, job: JobFacts, place: int, columns: Table) -> Row:
    """Return the line of one GPU."""
    row = job.rows[place]
    snapshot = view.snapshot
    sign, style = _sign(view, job, place)
    label = int(view.labels[row])
    name = CLASSES[label] if columns.classes > 20 else CODES[label]
    values = (float(view.real[row]), *(snapshot.value(counter, row) for counter in _COUNTERS))
    found: Row = [
        cell(sign, 2, style),
        cell(snapshot.gpus[row].name, columns.names + 1, style),
        cell(f"{colours.CLASS_MARKS[label]} {name}", columns.classes, colours.CLASS_STYLES[label]),
    ]
    for value, unit, (_, size) in zip(values, _UNITS, _COLUMNS, strict=True):
        known = float("nan") if value is None else value
        written = percent(known) if unit == "fraction" else quantity(value, unit)
        found.append(cell(written, size, right=True))
    past = spark(job.times, job.activity[:, place], width=columns.history, each=columns.each, low=0.0, high=1.0)
    found += [Segment(" "), cell(past, columns.history)]
    if columns.programs:
        running = snapshot.processes.get(snapshot.gpus[row], ())
        users = ", ".join(sorted({printable(one.user or MISSING) for one in running}))
        used = quantity(total(np.array([one.hbm_used_mib for one in running], np.float64)), "MiB")
        found.append(cell(f" {len(running)}: {users} {used}" if running else f" {MISSING}", columns.programs + 1))
    return found


def _sign(view: View, job: JobFacts, place: int) -> tuple[str, Style]:
    if not view.told[job.rows[place]]:
        return LOST, colours.ALARM
    if job.unused[place]:
        return UNUSED, colours.NOTICE
    if job.spread.behind[place]:
        return BEHIND, colours.NOTICE
    return (AHEAD, colours.NOTICE) if job.spread.ahead[place] else (" ", colours.PLAIN)


def programs_rows(view: View, job: JobFacts, *, width: int) -> list[Row]:
    """Return what runs on the job's GPUs, by user and command."""
    found = programs(view, job.rows)
    rows: list[Row] = [heading("Processes", width)]
    if not found:
        return rows + paragraph("none is known", width, colours.DIM)
    for one in found[:_PROGRAMS]:
        count = "1 process" if one.processes == 1 else f"{one.processes:,} processes"
        what = f"{count} on {plural(one.gpus, 'GPU')}"
        who = printable(one.user or MISSING)
        used = quantity(one.hbm_used_mib, "MiB")
        rows.append([cell(f"{who}  {used}  {what}  {printable(one.command or MISSING)}", width)])
    more = len(found) - _PROGRAMS
    return rows + (paragraph(f"and {more} more", width, colours.DIM) if more > 0 else [])
