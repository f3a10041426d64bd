"""Explicit maps: a table of (job, node, GPU, interval), and the log that a prolog and an epilog write."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from tachograph.sources.slurm.fields import BadRowError, job_id
from tachograph.sources.slurm.live import allocation_row, indices
from tachograph.sources.slurm.nodes import expand_nodes, short_name
from tachograph.sources.slurm.records import Cluster, Row
from tachograph.sources.slurm.times import instants
from tachograph.sources.slurm.told import Rejected

_REQUIRED = frozenset({"job_id", "node", "gpu"})
_COLUMNS = frozenset({"job_id", "node", "gpu", "mig", "start", "end", "cluster"})


def read_table(text: str, *, cluster: Cluster) -> tuple[list[Row], list[Rejected], int]:
    """Return (rows of `allocations`, rejected, records) of a CSV with a header; other columns are left out.

    >>> rows, _, _ = read_table("job_id,node,gpu\\n7,gpu[1-2],0;3\\n", cluster=Cluster())
    >>> [(row["node"], row["gpu"]) for row in rows]
    [('gpu1', 0), ('gpu1', 3), ('gpu2', 0), ('gpu2', 3)]
    """
    lines = text.split("\n")
    head = next((number for number, line in enumerate(lines) if line.strip()), 0)
    between, names = header(lines[head])
    rows: list[Row] = []
    rejected: list[Rejected] = []
    count = 0
    for number, line in enumerate(lines[head + 1 :], start=head + 2):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        count += 1
        try:
            rows += _table_rows(line, names, between, cluster)
        except BadRowError as problem:
            rejected.append((number, problem.reason, line.rstrip("\r")[:2000]))
    return rows, rejected, count


def header(line: str) -> tuple[str, list[str]]:
    """Return what stands between the columns of a table, and their names in lower case.

    >>> header('job_id;"node";gpu')
    (';', ['job_id', 'node', 'gpu'])
    """
    between = max(",;\t", key=line.count)
    return between, [name.strip(' "\ufeff\r').lower() for name in line.split(between)]


def _table_rows(line: str, names: list[str], between: str, cluster: Cluster) -> Iterator[Row]:
    try:
        values = next(csv.reader([line.rstrip("\r")], delimiter=between, skipinitialspace=True))
    except csv.Error:
        raise BadRowError("field_count") from None
    if len(values) != len(names):
        raise BadRowError("field_count")
    row = {name: value.strip() for name, value in zip(names, values, strict=True) if name in _COLUMNS}
    if _REQUIRED - row.keys():
        raise BadRowError("field_count")
    start = _instant(row.get("start", ""), cluster)
    end = _instant(row.get("end", ""), cluster, later=True)
    if start and end and end < start:
        raise BadRowError("end_before_start")
    slices = indices(row["mig"]) if row.get("mig") else ()
    if len(slices) > 1:
        raise BadRowError("bad_mig", "mig")
    job = job_id(row["job_id"])
    if job.is_step:
        raise BadRowError("bad_job_id")
    held = indices(row["gpu"])
    return (
        allocation_row(
            row.get("cluster") or cluster.name,
            job.raw,
            node,
            gpu,
            mig=slices[0] if slices else None,
            start=start,
            end=end,
            provenance="explicit",
        )
        for node in expand_nodes(row["node"])
        for gpu in held
    )


def _instant(written: str, cluster: Cluster, *, later: bool = False) -> datetime | None:
    """The time written; of an hour that occurs twice the outer bound: its first for a start, its second for an end."""
    times = instants(written, cluster.time_zone)
    return times[-1 if later else 0] if times else None


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the log."""

    time: datetime
    kind: str
    cluster: str | None
    job: str
    node: str
    gpus: tuple[int, ...]
    restart: str | None = None  # which start of the job, where the log tells

    @property
    def key(self) -> tuple[str | None, str, str]:
        """Whose interval it is."""
        return self.cluster, self.job, self.node

    def repeats(self, begun: Event) -> bool:
        """Whether it tells once more that the job began, as after a prolog that was called twice."""
        if self.restart is not None and begun.restart is not None:
            return self.restart == begun.restart
        return (self.time, self.gpus) == (begun.time, begun.gpus)


_LINE = re.compile(r"(\S+) (prolog|epilog) (.*)")


def read_log(text: str, *, cluster: Cluster) -> tuple[list[Row], list[Rejected], int]:
    """Return (rows of `allocations`, rejected, records) of a prolog and epilog log.

    A prolog opens the interval of its (job, node), the epilog closes it. A second prolog closes the one before (the
    job was started again); without epilog it stays open; an epilog alone has held since the start of the job.

    >>> log = "1795247442 prolog job=1 node=n1 gpus=0,1\\n1795247444 epilog job=1 node=n1 gpus=0,1\\n"
    >>> rows, _, _ = read_log(log, cluster=Cluster())
    >>> [(row["gpu"], (row["end"] - row["start"]).seconds) for row in rows]
    [(0, 2), (1, 2)]
    """
    events, rejected, count = read_events(text, cluster=cluster)
    intervals = Intervals()
    return [*intervals.ended(events), *intervals.open()], rejected, count


def read_events(text: str, *, cluster: Cluster) -> tuple[list[Event], list[Rejected], int]:
    """Return (events in the order of time, rejected, records) of a prolog and epilog log."""
    events: list[Event] = []
    rejected: list[Rejected] = []
    count = 0
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        count += 1
        try:
            events.append(_event(line.strip(), cluster))
        except BadRowError as problem:
            rejected.append((number, problem.reason, line[:2000]))
    return sorted(events, key=lambda event: event.time), rejected, count


def _event(line: str, cluster: Cluster) -> Event:
    found = _LINE.fullmatch(line)
    if not found:
        raise BadRowError("not_understood")
    values = dict(part.partition("=")[::2] for part in found[3].split())
    time = _instant(found[1], cluster, later=found[2] == "epilog")
    if time is None:
        raise BadRowError("bad_time")
    job = job_id(values.get("job", ""))
    node = short_name(values.get("node", ""))
    if not node:
        raise BadRowError("bad_node_list", "node")
    if values.get("mig") and not values.get("gpus"):
        raise BadRowError("mig_index", "gpu")
    gpus = indices(values["gpus"]) if values.get("gpus") else ()
    return Event(
        time, found[2], values.get("cluster") or cluster.name, job.raw, node, gpus, values.get("restart") or None
    )


@dataclass(slots=True)
class Intervals:
    """Events put together to intervals, also where a log is read piece by piece: it knows what is still open."""

    _opened: dict[tuple[str | None, str, str], Event] = field(default_factory=dict)

    def ended(self, events: Iterable[Event]) -> Iterator[Row]:
        """Yield the rows of `allocations` of the intervals that end with one of the events, in the order of time."""
        for event in events:
            begun = self._opened.get(event.key)
            if begun and event.kind == "prolog" and event.repeats(begun):
                continue
            self._opened.pop(event.key, None)
            if event.kind == "prolog":
                self._opened[event.key] = event
            if begun:
                yield from _held(begun, begun.time, event.time)
            elif event.kind == "epilog":
                yield from _held(event, None, event.time)

    def open(self, events: Iterable[Event] | None = None) -> Iterator[Row]:
        """Yield the rows of the intervals that are open; of those alone that one of `events` is about, if given."""
        keys = self._opened if events is None else dict.fromkeys(event.key for event in events)
        for begun in (self._opened[key] for key in keys if key in self._opened):
            yield from _held(begun, begun.time, None)


def _held(event: Event, start: datetime | None, end: datetime | None) -> Iterator[Row]:
    for gpu in event.gpus:
        yield allocation_row(event.cluster, event.job, event.node, gpu, start=start, end=end, provenance="explicit")
