"""Where all installed GPU-hours went: held by jobs, free, or not usable; and why free ones were.

Each second of each installed GPU is in exactly one part. Of what may be true of a node at one time
the first of these counts: held by a job that was measured then; down; held by another job; drained;
maintenance; free, where a poll saw the node usable and how many of its GPUs jobs held. All else is
not known. Nodes whose number of GPUs is not known are left out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tachograph.catalog.tables import IN_USE, STATE_HOLDS_S, WASTE
from tachograph.catalog.units import zone

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobRow, NodeStateRow, WaitingJobRow


HELD = ("in_use", "in_use_unknown", "lost", "unmeasured")
# of free GPUs while jobs waited, the best case for them first: each names what the next one lacks
WAITED = ("waited", "several_nodes", "limited", "no_host", "fragmented")
_CASES = {name: place for place, name in enumerate(WAITED)}
CAPACITY_LABELS: Mapping[str, str] = {
    "in_use": "in use",
    "in_use_unknown": "in use, work not known",
    "lost": "held without work",
    "unmeasured": "held, use not known",
    "no_host": "free, no CPUs or memory left",
    "fragmented": "free, fewer than any job needs",
    "reserved": "free, reserved",
    "limited": "free, limits of waiting jobs",
    "several_nodes": "free, jobs need several nodes",
    "waited": "free, jobs waited otherwise",
    "free": "free, no job waited",
    "down": "down",
    "drained": "drained",
    "maintenance": "maintenance",
    "unknown": "state not known",
}
CAPACITY_PARTS = tuple(CAPACITY_LABELS)
_DAY_S = 86_400
_NONE = np.empty(0, np.int64)
_GROUP = ("cluster", "partition", "gpu_model")
_UNUSABLE = ("down", "drained", "maintenance")
# beginnings of Slurm's reasons (squeue(1)): of limits, and of jobs that could not start anyway
_LIMITS = ("QOS", "Assoc", "Partition", "Max", "Grp", "JobArrayTaskLimit", "Licenses", "Account")
_NOT_READY = ("Dependency", "JobHeld", "BeginTime", "BadConstraints", "Invalid", "Reservation")
ACCOUNTED_COLUMNS = (  # of jobs: when they waited, and what for; where they ran
    *("cluster", "job_id", "submit", "eligible", "start", "partition", "nodes", "node_list"),
    *("gpus", "gpu_type", "cpus", "mem_requested_mib", "constraints", "array_job_id"),
)
SAME_GPUS = 1e-6  # sums of shares of GPUs are rounded
_EACH_HOURS = tuple(f"gpu_hours_{name}" for name in (*IN_USE, *WASTE, "unmeasured"))


@dataclass(frozen=True, slots=True)
class CapacityReport:
    """Installed GPU-hours and their parts.

    rows: one row per (`day`, `cluster`, `partition`, `gpu_model`): `installed`, and a column per
    CAPACITY_PARTS, in GPU-hours; parts add up to `installed`. A node in several partitions is
    counted once, under their names together. first, last: what is covered. nodes_left_out: number
    of nodes of which some time is not in the rows, as they had MIG slices.
    """

    rows: pl.DataFrame
    first: datetime
    last: datetime
    zone_name: str
    nodes_left_out: int = 0

    def by(self, *names: str) -> pl.DataFrame:
        """Return the hours by some of day, cluster, partition, gpu_model, in their order."""
        hours = pl.col("installed", *CAPACITY_PARTS).sum()
        return self.rows.group_by(names, maintain_order=True).agg(hours).sort(names)

    def hours(self, *parts: str) -> float:
        """Return the hours of some parts, or `installed`."""
        return float(sum(self.rows.get_column(part).sum() for part in parts))


@dataclass(frozen=True, slots=True)
class _Demand:
    """What alike waiting jobs need: so many nodes, and of each; cpus, memory_mib 0: any."""

    nodes: int
    partitions: frozenset[str]
    features: frozenset[str]
    gpu_type: str | None
    gpus: float
    cpus: float
    memory_mib: float
    limited: bool

    @property
    def best_case(self) -> str:
        """Which of WAITED is true of such jobs where all that they need of a node is free."""
        if self.limited:
            return "limited"
        return "waited" if self.nodes == 1 else "several_nodes"

    def is_for(self, node: _FreeKind) -> bool:
        """Whether such jobs may run on a node, if enough of it is free."""
        if self.partitions.isdisjoint(node.partitions):
            return False
        if node.features is not None and not self.features <= node.features:
            return False
        return not (self.gpu_type and node.gpu_type and self.gpu_type != node.gpu_type)


@dataclass(frozen=True, slots=True)
class _FreeKind:
    """What is free on a node at a time. None: not recorded."""

    partitions: frozenset[str]
    features: frozenset[str] | None
    gpu_type: str | None
    gpus: float
    cpus: int | None
    memory_mib: float | None


@dataclass(frozen=True, slots=True)
class _Hold:
    """GPUs of a node that a job held (s since 1970), up to when it was measured, its HELD shares."""

    start: int
    end: int
    gpus: float
    measured_to: int
    shares: tuple[float, ...]


@dataclass(slots=True)
class _Sums:
    """GPU-seconds by (day, group): installed first, then CAPACITY_PARTS."""

    seconds: dict[tuple[Any, ...], dict[str, float]] = field(default_factory=dict)

    def add(self, key: tuple[Any, ...], part: str, gpu_seconds: float) -> None:
        if gpu_seconds:
            row = self.seconds.setdefault(key, dict.fromkeys(("installed", *CAPACITY_PARTS), 0.0))
            row[part] += gpu_seconds


class WaitingTimes:
    """When jobs waited, by what they need.

    demands: times (s since 1970) at which jobs of each need waited.
    """

    def __init__(self, demands: Mapping[_Demand, Sequence[tuple[int, int]]]) -> None:
        self._demands = tuple(demands)
        self._fits: dict[tuple[object, ...], NDArray[np.bool_]] = {}
        each = self._demands
        self._gpus = np.array([demand.gpus for demand in each], np.float64)
        self._cpus = np.array([max(1.0, demand.cpus) for demand in each], np.float64)
        self._memory_mib = np.array([max(1.0, demand.memory_mib) for demand in each], np.float64)
        # where all that they need of a node is free
        self._else = np.array([_CASES[demand.best_case] for demand in each], np.int64)
        spans = [
            (number, *span)
            for number, times in enumerate(demands.values())
            for span in _merged(times)
        ]
        self._spans = np.array(spans, np.int64).reshape(-1, 3)
        by_day: dict[int, list[int]] = {}
        for place, (_, begin, end) in enumerate(spans):
            for day in range(begin // _DAY_S, (end - 1) // _DAY_S + 1):
                by_day.setdefault(day, []).append(place)
        self._by_day = {day: np.array(places, np.int64) for day, places in by_day.items()}

    def seconds(self, node: _FreeKind, begin: int, end: int) -> dict[str, int]:
        """Return the seconds of a time in which jobs waited, by the best case for them."""
        cases, begins, ends = self._waiting(node, begin, end)
        found: dict[str, int] = {}
        counted = 0
        for case, name in enumerate(WAITED):
            if counted == end - begin:
                break
            so_far = _seconds_of_any(begins[cases <= case], ends[cases <= case])
            if so_far > counted:
                found[name] = so_far - counted
            counted = so_far
        return found

    def _waiting(
        self, node: _FreeKind, begin: int, end: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the case of the jobs that waited, from when to when within a time."""
        days = range(begin // _DAY_S, (end - 1) // _DAY_S + 1)
        places = [self._by_day[day] for day in days if day in self._by_day]
        if not places:
            return _NONE, _NONE, _NONE
        spans = self._spans[np.concatenate(places)]
        of, begins, ends = spans[(spans[:, 1] < end) & (spans[:, 2] > begin)].T
        fits = self._fit(node)[of]
        of, begins, ends = of[fits], begins[fits], ends[fits]
        cases = self._else[of]
        if node.cpus is not None:
            cases[self._cpus[of] > node.cpus] = _CASES["no_host"]
        if node.memory_mib is not None:
            cases[self._memory_mib[of] > node.memory_mib] = _CASES["no_host"]
        cases[self._gpus[of] > node.gpus] = _CASES["fragmented"]
        return cases, np.maximum(begins, begin), np.minimum(ends, end)

    def _fit(self, node: _FreeKind) -> NDArray[np.bool_]:
        """Return which demands are for nodes of this kind at all."""
        key = (node.partitions, node.features, node.gpu_type)
        if key not in self._fits:
            self._fits[key] = np.array([demand.is_for(node) for demand in self._demands], np.bool_)
        return self._fits[key]


def _merged(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield times without overlaps."""
    first: int | None = None
    last = 0
    for begin, end in sorted(spans):
        if first is None or begin > last:
            if first is not None:
                yield first, last
            first, last = begin, end
        else:
            last = max(last, end)
    if first is not None:
        yield first, last


def _seconds_of_any(begins: NDArray[np.int64], ends: NDArray[np.int64]) -> int:
    """Return the seconds in which any of some times was."""
    if not begins.size:
        return 0
    order = np.argsort(begins)
    begins, last = begins[order], np.maximum.accumulate(ends[order])
    covered = np.concatenate(([begins[0]], last[:-1]))
    return int(np.maximum(last - np.maximum(begins, covered), 0).sum())


def build_capacity(
    states: pl.DataFrame,
    waiting: pl.DataFrame,
    accounted: pl.DataFrame,
    jobs: pl.DataFrame,
    held: pl.DataFrame,
    *,
    models: Mapping[str, str],
    until: datetime,
    since: datetime | None = None,
    zone_name: str = "UTC",
) -> CapacityReport | None:
    """Return where the installed GPU-hours went; None where no node was ever polled.

    states, waiting: rows of node_states and waiting_jobs. accounted: ACCOUNTED_COLUMNS of jobs.
    jobs: rows of job_summaries (LEDGER_COLUMNS), and whether they are `in_ledger`. held: (job_key,
    node, node_gpus, last_t), GPUs that a job held on a node, and its last sample there. models:
    {node: model}. Nothing after `until` is counted: up to then jobs are analyzed.
    """
    holds = _holds(jobs, held)
    bounds = _Bounds(_seconds(since) if since else 0, _seconds(until), zone_name)
    demand = WaitingTimes(_demands(accounted, waiting, bounds))
    sums = _Sums()
    span: list[int] = []
    left_out = 0
    for (node, cluster), rows in (
        states.sort("start", "end").partition_by(["node", "cluster"], as_dict=True).items()
    ):
        timeline = _NodeTimeline.of(rows, _of_cluster(holds.get(node, ()), cluster), bounds)
        if timeline is None:
            continue
        span += [timeline.first, timeline.last]
        left_out += any(row["gpus"] is None for *_, row in timeline.polls)
        _add_node(timeline, (cluster, models.get(str(node))), demand, bounds, sums)
    if not sums.seconds:
        return None
    table = [
        (*key, *(seconds / 3600 for seconds in row.values())) for key, row in sums.seconds.items()
    ]
    types = {"day": pl.Date(), **dict.fromkeys(_GROUP, pl.String())}
    hours = dict.fromkeys(("installed", *CAPACITY_PARTS), pl.Float64())
    rows = pl.DataFrame(table, schema={**types, **hours}, orient="row").sort("day", *_GROUP)
    first, last = (datetime.fromtimestamp(time, UTC) for time in (min(span), max(span)))
    return CapacityReport(rows, first, last, zone_name, left_out)


def _seconds(time: datetime) -> int:
    return int(time.timestamp())


class _Bounds:
    """What is counted: from `first` to `last` (s since 1970), by days of a zone."""

    def __init__(self, first: int, last: int, zone_name: str) -> None:
        self.first = first
        self.last = last
        self._zone = zone(zone_name)

    def clip(self, begin: int, end: int) -> tuple[int, int]:
        return max(begin, self.first), min(end, self.last)

    def days(self, begin: int, end: int) -> Iterator[tuple[date, int, int]]:
        """Yield (day, begin, end) of a time, cut at each midnight."""
        while begin < end:
            day = datetime.fromtimestamp(begin, self._zone).date()
            following = day + timedelta(days=1)
            midnight = datetime(following.year, following.month, following.day, tzinfo=self._zone)
            cut = min(end, max(begin + 1, _seconds(midnight)))
            yield day, begin, cut
            begin = cut


@dataclass(frozen=True, slots=True)
class _NodeTimeline:
    """A node from the first to the last time it was seen, and what was so in between.

    polls: (begin, end, row) without overlaps; away: (begin, end, state) of events and
    reservations.
    """

    first: int
    last: int
    polls: list[tuple[int, int, NodeStateRow]]
    away: list[tuple[int, int, str]]
    holds: list[_Hold]

    @classmethod
    def of(cls, rows: pl.DataFrame, holds: list[_Hold], bounds: _Bounds) -> _NodeTimeline | None:
        seen: list[int] = []
        polls: list[tuple[int, int, NodeStateRow]] = []
        away: list[tuple[int, int, str]] = []
        for row in cast("Iterator[NodeStateRow]", rows.iter_rows(named=True)):
            begin = _seconds(row["start"])
            end = bounds.last if row["end"] is None else _seconds(row["end"])
            seen += [begin, end]
            if row["provenance"] != "poll":
                away.append((begin, end, row["state"]))
                continue
            # What a poll shows is so until the next one, if that is not long after.
            if polls and begin - polls[-1][1] <= STATE_HOLDS_S:
                polls[-1] = (polls[-1][0], begin, polls[-1][2])
            polls.append((begin, max(begin, end), row))
        if not polls:
            return None
        first, last = bounds.clip(min(seen), max(seen))
        return None if first >= last else cls(first, last, polls, away, holds)

    def pieces(self) -> Iterator[tuple[int, int, NodeStateRow, bool, set[str], list[_Hold]]]:
        """Yield what was so from when to when: the poll, whether it covers that, and the others."""
        times = {self.first, self.last}
        spans: list[tuple[int, int, int, Any]] = [(*poll[:2], 0, poll[2]) for poll in self.polls]
        spans += [(*away[:2], 1, away[2]) for away in self.away]
        spans += [(hold.start, hold.end, 2, hold) for hold in self.holds]
        times |= {hold.measured_to for hold in self.holds}
        changes: list[tuple[int, int, int, Any]] = []
        for begin, end, kind, what in spans:
            if begin < end:
                changes += [(begin, 1, kind, what), (end, 0, kind, what)]
        times |= {time for time, *_ in changes}
        changes.sort(key=lambda change: change[:3])  # at one time ends come before begins
        inside = sorted(time for time in times if self.first <= time <= self.last)
        poll, covered, place = self.polls[0][2], False, 0
        states: list[str] = []
        held: list[_Hold] = []
        for begin, end in pairwise(inside):
            while place < len(changes) and changes[place][0] <= begin:
                _, starts, kind, what = changes[place]
                place += 1
                if kind == 0:
                    poll, covered = (what, True) if starts else (poll, False)
                elif starts:
                    (states if kind == 1 else held).append(what)
                else:
                    (states if kind == 1 else held).remove(what)
            yield begin, end, poll, covered, {*states}, held


def _add_node(
    timeline: _NodeTimeline,
    named: tuple[Any, str | None],
    demand: WaitingTimes,
    bounds: _Bounds,
    sums: _Sums,
) -> None:
    """Add the seconds of each GPU of a node."""
    excess = _HeldByOthers(timeline.holds)
    cluster, model = named
    for begin, end, poll, covered, states, holds in timeline.pieces():
        installed = poll["gpus"]
        if installed is None:
            continue
        states |= {poll["state"]} if covered else set()
        # Where more are held than installed, as shares of GPUs, each counts in part.
        is_down = "down" in states
        counting = [hold for hold in holds if not is_down or hold.measured_to > begin]
        total = sum(hold.gpus for hold in counting)
        scale = min(1.0, installed / total) if total else 0.0
        others = 0.0
        if covered and not is_down:
            others = min(excess.of(poll), installed - total * scale)
        left = installed - total * scale - others
        part = next((state for state in _UNUSABLE if state in states), None)
        part = part or ("free" if covered and poll["gpus_held"] is not None else "unknown")
        group = (cluster, poll["partitions"], model or poll["gpu_type"])
        for day, low, high in bounds.days(begin, end):
            key, seconds = (day, *group), high - low
            sums.add(key, "installed", installed * seconds)
            sums.add(key, "unmeasured", others * seconds)
            for hold in counting:
                for name, share in zip(HELD, hold.shares, strict=True):
                    sums.add(key, name, hold.gpus * scale * share * seconds)
            if part != "free" or not left:
                sums.add(key, part, left * seconds)
                continue
            waited = demand.seconds(_free_kind(poll, installed - left, left), low, high)
            for name, waited_s in waited.items():
                sums.add(key, "reserved" if "reserved" in states else name, left * waited_s)
            sums.add(key, "free", left * (seconds - sum(waited.values())))


class _HeldByOthers:
    """GPUs that jobs held by a poll, beyond those of the jobs that are known."""

    def __init__(self, holds: Iterable[_Hold]) -> None:
        changes: dict[int, float] = {}
        for hold in holds:
            changes[hold.start] = changes.get(hold.start, 0.0) + hold.gpus
            changes[hold.end] = changes.get(hold.end, 0.0) - hold.gpus
        self._times = sorted(changes)
        self._held: list[float] = []
        for time in self._times:
            self._held.append((self._held[-1] if self._held else 0.0) + changes[time])

    def of(self, poll: NodeStateRow) -> float:
        """Return them: as many as at the first and at the last moment that it was polled."""
        if poll["gpus_held"] is None:  # whether others held any is not known
            return 0.0
        start, end = poll["start"], poll["end"]
        held = max(self._at(_seconds(time)) for time in (start, end or start))
        others = float(poll["gpus_held"] - held)
        return others if others > SAME_GPUS else 0.0

    def _at(self, time: int) -> float:
        place = bisect_right(self._times, time) - 1
        return self._held[place] if place >= 0 else 0.0


def _free_kind(poll: NodeStateRow, held: float, left: float) -> _FreeKind:
    # Jobs that began or ended since the poll changed what else is free.
    polled = poll["gpus_held"]
    is_so_still = polled is not None and abs(polled - held) < SAME_GPUS
    return _FreeKind(
        _names(poll["partitions"]),
        None if poll["features"] is None else _names(poll["features"]),
        poll["gpu_type"],
        left,
        poll["cpus_free"] if is_so_still else None,
        poll["memory_free_mib"] if is_so_still else None,
    )


def _names(written: str | None, mark: str = ",") -> frozenset[str]:
    return frozenset((written or "").split(mark)) - {""}


def _holds(jobs: pl.DataFrame, held: pl.DataFrame) -> dict[Any, list[tuple[Any, _Hold]]]:
    """Return what jobs held, with their cluster, by node."""
    total = pl.sum_horizontal(_EACH_HOURS)
    lost = pl.sum_horizontal(f"gpu_hours_{cause}" for cause in WASTE)
    of_use = {f"share_{name}": pl.col(f"gpu_hours_{name}") / total for name in IN_USE}
    known = pl.col("in_ledger") & (total > 0)
    rows = jobs.filter(pl.col("start") < pl.col("as_of")).with_columns(
        **of_use, share_lost=lost / total, known=known
    )
    found: dict[Any, list[tuple[Any, _Hold]]] = {}
    for row in held.join(rows, on="job_key").sort("start", "job_key").iter_rows(named=True):
        shares = (0.0, 0.0, 0.0, 1.0)
        if row["known"]:
            of_job = [row[f"share_{name}"] for name in HELD[:3]]
            shares = (*of_job, 1.0 - sum(of_job))
        end = row["end"] or row["as_of"]
        measured = row["start"] if row["last_t"] is None else row["last_t"]
        hold = _Hold(
            _seconds(row["start"]),
            _seconds(end),
            row["node_gpus"],
            min(_seconds(end), _seconds(measured)),
            shares,
        )
        if hold.end > hold.start:
            found.setdefault(row["node"], []).append((row["cluster"], hold))
    return found


def _of_cluster(held: Sequence[tuple[Any, _Hold]], cluster: object) -> list[_Hold]:
    """Return what jobs of a cluster held; who names no cluster is of any."""
    return [hold for of, hold in held if None in (cluster, of) or cluster == of]


def _demands(
    accounted: pl.DataFrame, waiting: pl.DataFrame, bounds: _Bounds
) -> dict[_Demand, list[tuple[int, int]]]:
    """Return when jobs waited for GPUs, by what they need of a node.

    A job of the accounting waited from when it was eligible to its start; polls say why, and when
    others waited. While tasks of an array wait, they are one record under the id of the array.
    """
    polled: dict[tuple[Any, Any], list[tuple[int, int, str, WaitingJobRow]]] = {}
    waits = waiting.sort("start").iter_rows(named=True)
    for row in cast("Iterator[WaitingJobRow]", waits):
        spans = polled.setdefault((row["cluster"], row["job_id"]), [])
        begin, end = _seconds(row["start"]), _seconds(row["end"])
        if spans and begin - spans[-1][1] <= STATE_HOLDS_S:
            begin = spans[-1][1]
        spans.append((begin, end, row["reason"] or "", row))
    found: dict[_Demand, list[tuple[int, int]]] = {}
    started = accounted.filter(
        pl.col("start") > pl.col("eligible"),
        pl.col("start") > datetime.fromtimestamp(bounds.first, UTC),
        pl.col("gpus") > 0,
    )
    for job in cast("Iterator[JobRow]", started.iter_rows(named=True)):
        eligible, start = job["eligible"], job["start"]
        assert eligible is not None  # others are left out before
        assert start is not None
        begin, end = _seconds(eligible), _seconds(start)
        ids = ((job["cluster"], name) for name in (job["job_id"], job["array_job_id"]))
        polls = next((polled[key] for key in ids if key in polled), [])
        for low, high, reason, _ in polls:
            low, high = max(low, begin), min(high, end)
            if low < high and reason.startswith((*_LIMITS, *_NOT_READY)):
                _add_demand(found, job, begin, low, "")
                _add_demand(found, job, low, high, reason)
                begin = high
        _add_demand(found, job, begin, end, "")
    begun = {*started.select("cluster", "job_id").iter_rows()}
    for key, spans in polled.items():
        for begin, end, reason, row in () if key in begun else spans:
            _add_demand(found, row, begin, min(end, bounds.last), reason)
    return found


def _add_demand(
    demands: dict[_Demand, list[tuple[int, int]]],
    row: JobRow | WaitingJobRow,
    begin: int,
    end: int,
    reason: str,
) -> None:
    if begin >= end or reason.startswith(_NOT_READY):
        return
    nodes = row["nodes"] or 1
    wanted = row["constraints"] or ""
    demand = _Demand(
        nodes,
        _names(row["partition"]),
        # Only a list of features that are all needed can exclude a node.
        frozenset() if {*wanted} & {*"|()[]*!"} else _names(wanted.replace(",", "&"), "&"),
        row["gpu_type"],
        (row["gpus"] or 0) / nodes,
        (row["cpus"] or 0) / nodes,
        (row["mem_requested_mib"] or 0.0) / nodes,
        reason.startswith(_LIMITS),
    )
    demands.setdefault(demand, []).append((begin, end))
