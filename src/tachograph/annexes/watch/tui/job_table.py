"""GPUs of one job in numbers: facts, spread among GPUs, and the rows of the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.segment import Segment
from rich.style import Style

from tachograph.annexes.watch.live.looks import MISSING, looks, reduce_known
from tachograph.annexes.watch.live.snapshot import (
    NO_ALLOCATION,
    GpuAllocation,
    Snapshot,
)
from tachograph.annexes.watch.live.view import FleetView
from tachograph.annexes.watch.tui import colours
from tachograph.annexes.watch.tui.counter_rows import span, spark
from tachograph.annexes.watch.tui.fleet_table import percent
from tachograph.annexes.watch.tui.page import (
    Row,
    cell,
    flow,
    join_parts,
    paragraph,
    quantity,
)
from tachograph.catalog.arrays import Bytes, Flags, Floats, Longs, Singles
from tachograph.catalog.units import plural, printable

# counters that show whether a GPU was working, most common first; MIG slices have no gpu_util
ACTIVITY = ("gpu_util", "gr_engine_active", "sm_active")
WINDOW_S = 60.0  # as in stored metrics
OVER_S = 300.0  # length of the examined past
FAR = 0.25  # from the median lag: more than noise and one slow step, and a third of a job's speed
# And from the median activity: GPUs that are all almost idle have no stragglers.
FAR_ACTIVITY = 0.05


@dataclass(frozen=True, slots=True)
class GpuSpread:
    """Load spread over a job's GPUs. imbalance: 0..1, None for one GPU or without activity.

    lags: per GPU, 0 the busiest, 1 idle; NaN of a GPU that reported nothing, and of all where
    nothing was active. windows: number of examined ones, `zero_windows` of them with all idle,
    which do not count. behind, ahead: whether the lag of each GPU is FAR above or below the job's
    median, and its activity FAR_ACTIVITY from it; none is where no window is over yet. growing_s:
    length so far of an only, incomplete window, None if there are whole ones.
    """

    imbalance: float | None
    lags: Floats
    windows: int
    zero_windows: int
    behind: Flags
    ahead: Flags
    growing_s: float | None = None


def spread(
    times: Floats, activity: Floats | Singles, *, anchor: float, window_s: float = WINDOW_S
) -> GpuSpread:
    """Return how evenly GPUs worked. activity: (times x GPUs), 0..1, NaN missing.

    Windows begin at `anchor` (the start of the job) and have `window_s` each. Only complete ones
    count: not the first where times begin within it, nor the last, which is incomplete, unless it
    is alone. A GPU without a value in a window counts 0 there, one that reported nothing at all is
    left out.

    >>> found = spread(np.arange(120.0), np.tile([0.8, 0.8, 0.4, 0.8], (120, 1)), anchor=0.0)
    >>> round(found.imbalance, 3), found.lags.round(3).tolist(), found.behind.tolist()
    (0.125, [0.0, 0.0, 0.5, 0.0], [False, False, True, False])
    """
    count = activity.shape[1]
    has_value = np.isfinite(activity)
    measured: Flags = np.logical_or.reduce(has_value, axis=0)
    values = np.where(has_value, activity, 0.0)
    counted, window, over = _windows(times, anchor=anchor, window_s=window_s)
    starts = np.flatnonzero(np.diff(window[counted], prepend=np.nan) != 0)
    totals = (
        np.add.reduceat(values[counted], starts, axis=0) if len(counted) else np.zeros((0, count))
    )
    busiest = totals.max(axis=1, initial=0.0)
    active = busiest > 0
    lags = np.full(count, np.nan)
    if active.any():
        lags[measured] = (1 - totals[active][:, measured] / busiest[active, None]).mean(axis=0)
    several = int(measured.sum()) > 1 and bool(active.any())
    imbalance = float(lags[measured].mean()) if several else None
    off, away = (
        _from_median(lags, measured),
        _from_median(values[counted].mean(axis=0) if len(counted) else lags, measured),
    )
    marked = over & (np.abs(away) >= FAR_ACTIVITY)
    growing_s = None if over or not len(counted) else float(times[counted[-1]] - times[counted[0]])
    behind, ahead = marked & (off >= FAR), marked & (off <= -FAR)
    return GpuSpread(imbalance, lags, len(totals), int((~active).sum()), behind, ahead, growing_s)


def _windows(times: Floats, *, anchor: float, window_s: float) -> tuple[Longs, Floats, bool]:
    """Return which times count, each time's window, and which windows are complete."""
    window = np.floor((times - anchor) / window_s)
    if not len(times):
        return np.empty(0, np.int64), window, False
    whole = (anchor + window * window_s >= times[0]) & (window < window[-1])
    over = bool(whole.any())
    return np.flatnonzero(whole if over else window == window[-1]), window, over


def _from_median(values: Floats, measured: Flags) -> Floats:
    """Deviation from the median of reported values; 0 if missing."""
    deviation: Floats = (
        np.nan_to_num(values - np.median(values[measured]))
        if measured.any()
        else np.zeros(len(values))
    )
    return deviation


def activity_counter(view: FleetView, rows: Sequence[int]) -> str | None:
    """Return the counter that shows whether GPUs work; None if none is reported."""
    for counter in ACTIVITY:
        values = view.snapshot.values.get(counter)
        if values is not None and np.isfinite(values[list(rows)]).any():
            return counter
    return None


def never_used(activity: Floats | Singles) -> Flags:
    """Return for each GPU whether all its known values are zero; False without values.

    >>> never_used(np.array([[0.0, 0.5, np.nan], [0.0, 0.0, np.nan]])).tolist()
    [True, False, False]
    """
    has_value = np.isfinite(activity)
    unused: Flags = has_value.any(axis=0) & (
        np.where(has_value, activity, 0.0).max(axis=0, initial=0.0) == 0
    )
    return unused


@dataclass(frozen=True, slots=True)
class JobFacts:
    """One row per GPU of the job, in the order of `rows` (indices in the view).

    looks: indices in LOOKS, which the header and the table of all GPUs show, too. counter: that of
    activity, None where no source reports one; activity: its values at `times`, the whole history.
    unused: GPUs at zero in all that time.
    """

    job_id: str
    rows: tuple[int, ...]
    allocation: GpuAllocation
    looks: Bytes
    counter: str | None
    times: Floats
    activity: Singles
    spread: GpuSpread
    unused: Flags


def job_facts(view: FleetView, job_id: str) -> JobFacts | None:
    """Return facts on a job; None if none of its GPUs is visible."""
    snapshot = view.snapshot
    rows = rows_of_job(snapshot, job_id)
    if not rows:
        return None
    allocation = snapshot.allocations[snapshot.gpus[rows[0]]]
    times = view.history.times()
    counter = activity_counter(view, rows)
    activity = view.history.block(counter or "gpu_util", rows)
    last = times > snapshot.t - OVER_S - WINDOW_S
    anchor = allocation.since if allocation.since is not None else 0.0
    evenness = spread(times[last], activity[last], anchor=anchor)
    return JobFacts(
        job_id,
        rows,
        allocation,
        looks(view)[list(rows)],
        counter,
        times,
        activity,
        evenness,
        never_used(activity),
    )


def rows_of_job(snapshot: Snapshot, job_id: str) -> tuple[int, ...]:
    """Return rows of GPUs that a job holds, alone or shared."""
    rows: list[int] = []
    for row, gpu in enumerate(snapshot.gpus):
        held = snapshot.allocations.get(gpu, NO_ALLOCATION)
        names = [*held.jobs, held.job_id, held.name_on(gpu), *map(gpu.job_name, held.jobs)]
        if job_id in names:
            rows.append(row)
    return tuple(rows)


BEHIND, AHEAD, UNUSED, LOST = "<", ">", "0", "!"
_NAMED = 6  # GPUs that a sentence lists
# of lines, the first is shown first
ORDERS = ("stragglers first", "by index", "least active first", "most memory first")
# columns of numbers with their characters; below the counters and units, `real` has no counter
_COLUMNS = (("real", 6), ("SM", 6), ("tensor", 7), ("DRAM", 6), ("memory", 10), ("power", 8))
_COUNTERS = ("sm_active", "tensor_active", "dram_active", "hbm_used_mib", "power_w")
_UNITS = ("fraction", "fraction", "fraction", "fraction", "MiB", "W")


def job_title(view: FleetView, job: JobFacts, *, width: int) -> list[Row]:
    """Return the job's identity, its classes, its imbalance, and unusual GPUs."""
    snapshot, allocation = view.snapshot, job.allocation
    nodes = len({snapshot.gpus[row].host for row in job.rows})
    since = (
        ""
        if allocation.since is None
        else f"for {quantity(max(0.0, snapshot.t - allocation.since), 's')}"
    )
    rows = list(job.rows)

    def mean(values: Floats) -> str:
        return quantity(reduce_known(np.mean, values[rows]), "fraction")

    def total(counter: str, unit: str) -> str:
        return quantity(reduce_known(np.sum, snapshot.column(counter)[rows]), unit)

    who = join_parts(
        [
            f"user {allocation.user or MISSING}",
            f"{plural(len(rows), 'GPU')} on {plural(nodes, 'node')}",
            since,
        ]
    )
    means = join_parts(
        [
            f"real {mean(view.real)}",
            f"SM {mean(snapshot.column('sm_active'))}",
            f"tensor {mean(snapshot.column('tensor_active'))}",
            f"DRAM {mean(snapshot.column('dram_active'))}",
            f"Σ memory {total('hbm_used_mib', 'MiB')}",
            f"Σ power {total('power_w', 'W')}",
        ]
    )
    first: Row = [Segment(f"job {printable(job.job_id)}  ", colours.BOLD), Segment(printable(who))]
    return [
        first,
        *_kinds(job, width=width),
        *paragraph(means, width),
        *evenness(view, job, width=width),
    ]


def _kinds(job: JobFacts, *, width: int) -> list[Row]:
    """Number of GPUs of each class, the most frequent first."""
    counts = np.bincount(job.looks, minlength=len(colours.LOOKS))
    frequent = [index for index in np.argsort(-counts, kind="stable").tolist() if counts[index]]
    parts: list[Row] = []
    for index in frequent:
        look = colours.LOOKS[index]
        written = f"{look.mark} {counts[index]} {look.text.removeprefix(look.mark).strip()}  "
        parts.append([Segment(written, look.style)])
    return flow(parts, width)


def evenness(view: FleetView, job: JobFacts, *, width: int) -> list[Row]:
    """Return sentences: spatial imbalance, stragglers, unused and silent GPUs."""
    if job.counter is None:
        return paragraph("imbalance unknown: no activity counter reported", width, colours.DIM)
    of = job.spread
    rows: list[Row] = []
    if len(job.rows) > 1:
        counted = f"over {plural(of.windows - of.zero_windows, 'window')} of {WINDOW_S:.0f} s"
        if of.growing_s is not None:
            counted = f"of the first window, {of.growing_s:.0f} of {WINDOW_S:.0f} s"
        written = quantity(of.imbalance, "ratio")
        rest = ""
        if of.imbalance is None:
            rest = ": no activity" if of.windows else ": no complete window yet"
        rows += paragraph(f"spatial imbalance {written} {counted} ({job.counter}){rest}", width)
    current = view.current[list(job.rows)]
    marked = (
        (of.behind & current & ~job.unused, f"{BEHIND} far behind the others", colours.NOTICE),
        (of.ahead & current, f"{AHEAD} far ahead of the others", colours.NOTICE),
        (
            job.unused & current,
            f"{UNUSED} not used in the last {quantity(_kept_s(job), 's')}",
            colours.NOTICE,
        ),
        (~current, f"{LOST} no values now", colours.ALARM),
    )
    for flags, message, style in marked:
        if flags.any():
            rows += paragraph(
                f"{message}: {_named(view, job, np.flatnonzero(flags).tolist())}",
                width,
                style,
                indent=2,
            )
    return rows


def _kept_s(job: JobFacts) -> float:
    return float(job.times[-1] - job.times[0]) if len(job.times) > 1 else 0.0


def _named(view: FleetView, job: JobFacts, indices: Sequence[int]) -> str:
    names = [view.snapshot.gpus[job.rows[index]].name for index in indices[:_NAMED]]
    return ", ".join(names) + (
        f" and {len(indices) - _NAMED} more" if len(indices) > _NAMED else ""
    )


def ordered(view: FleetView, job: JobFacts, order: str) -> list[int]:
    """Return indices of `job.rows` in line order; missing values last."""
    rows = list(job.rows)
    lags = job.spread.lags
    match order:
        case "stragglers first":
            current = view.current[rows]
            rank = np.select(
                [~current, job.unused, job.spread.behind, job.spread.ahead], [0, 1, 2, 3], 4
            )
            # Worst first.
            keys = rank + np.where((rank == 2) | (rank == 3), 0.5 - np.nan_to_num(lags) / 2, 0.0)
        case "least active first":
            values = view.snapshot.column(job.counter or "gpu_util")[rows]
            keys = np.where(np.isfinite(values), values, np.inf)
        case "most memory first":
            used_mib = view.snapshot.column("hbm_used_mib")[rows]
            keys = np.where(np.isfinite(used_mib), -used_mib, np.inf)
        case _:
            keys = np.zeros(len(rows))
    indices: list[int] = np.argsort(keys, kind="stable").tolist()
    return indices


@dataclass(frozen=True, slots=True)
class JobGpuTable:
    """Columns of the lines of GPUs. names, classes, history: characters of these columns.

    block_s: seconds of one block of the history.
    """

    names: int
    classes: int
    history: int
    block_s: float


def job_gpu_table(view: FleetView, job: JobFacts, *, width: int) -> JobGpuTable:
    """Return the columns that fit."""
    names = min(24, max(len(view.snapshot.gpus[row].name) for row in job.rows))
    fixed = 2 + names + 1 + sum(size for _, size in _COLUMNS) + 1
    classes = 23 if width - fixed >= 60 else 16  # with the letter: "C tensor compute"
    rest = max(0, width - fixed - classes - 1)
    return JobGpuTable(names, classes, rest, span(job.times, max(1, rest)))


def table_head(columns: JobGpuTable) -> Row:
    """Return the names of the columns."""
    row: Row = [
        cell("", 2),
        cell("GPU", columns.names + 1, colours.BOLD),
        cell("class", columns.classes, colours.BOLD),
    ]
    row += [cell(name, size, colours.BOLD, right=True) for name, size in _COLUMNS]
    reach = ""
    if columns.history >= 12:
        reach = f" last {quantity(columns.history * columns.block_s, 's')}"
    return [*row, Segment(" "), cell(reach, columns.history, colours.DIM)]


def gpu_row(view: FleetView, job: JobFacts, index: int, columns: JobGpuTable) -> Row:
    """Return the line of one GPU."""
    row = job.rows[index]
    snapshot = view.snapshot
    sign, style = _sign(view, job, index)
    look = colours.LOOKS[int(job.looks[index])]
    values = (float(view.real[row]), *(snapshot.value(counter, row) for counter in _COUNTERS))
    cells: Row = [
        cell(sign, 2, style),
        cell(snapshot.gpus[row].name, columns.names + 1, style),
        cell(look.text, columns.classes, look.style),
    ]
    for value, unit, (_, size) in zip(values, _UNITS, _COLUMNS, strict=True):
        number = float("nan") if value is None else value
        written = percent(number) if unit == "fraction" else quantity(value, unit)
        cells.append(cell(written, size, right=True))
    past = spark(
        job.times,
        job.activity[:, index],
        width=columns.history,
        block_s=columns.block_s,
        low=0.0,
        high=1.0,
    )
    return [*cells, Segment(" "), cell(past, columns.history)]


def _sign(view: FleetView, job: JobFacts, index: int) -> tuple[str, Style]:
    if not view.current[job.rows[index]]:
        return LOST, colours.ALARM
    if job.unused[index]:
        return UNUSED, colours.NOTICE
    if job.spread.behind[index]:
        return BEHIND, colours.NOTICE
    return (AHEAD, colours.NOTICE) if job.spread.ahead[index] else (" ", colours.PLAIN)
