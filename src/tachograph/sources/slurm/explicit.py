"""Explicit maps: a table of (job, node, GPU, interval), and the log that a prolog and an epilog write."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from tachograph.sources.slurm.fields import BadRowError, job_id
from tachograph.sources.slurm.live import allocation_row, indices
from tachograph.sources.slurm.nodes import expand_nodes, short_name
from tachograph.sources.slurm.records import Cluster, Row
from tachograph.sources.slurm.times import instants

Rejected = tuple[int, str, str]
_COLUMNS = frozenset({"job_id", "node", "gpu", "mig", "start", "end", "cluster"})


def read_table(text: str, *, cluster: Cluster) -> tuple[list[Row], list[Rejected], int]:
    """Return (rows of `allocations`, rejected, records) of a CSV with a header; other columns are left out.

    >>> rows, _, _ = read_table("job_id,node,gpu\\n7,gpu[1-2],0;3\\n", cluster=Cluster())
    >>> [(row["node"], row["gpu"]) for row in rows]
    [('gpu1', 0), ('gpu1', 3), ('gpu2', 0), ('gpu2', 3)]
    """
    lines = text.split("\n")
    head = next((number for number, line in enumerate(lines) if line.strip()), 0)
    between = max(",;\t", key=lines[head].count)
    names = [name.strip().strip('"').lower() for name in lines[head].strip().split(between)]
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


def _table_rows(line: str, names: list[str], between: str, cluster: Cluster) -> Iterator[Row]:
    try:
        values = next(csv.reader([line.rstrip("\r")], delimiter=between, skipinitialspace=True))
    except csv.Error:
        raise BadRowError("field_count") from None
    if len(values) != len(names):
        raise BadRowError("field_count")
    row = {name: value.strip() for name, value in zip(names, values, strict=True) if name in _COLUMNS}
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
class _Event:
    """One line of the log."""

    time: datetime
    kind: str
    cluster: str | None
    job: str
    node: str
    gpus: tuple[int, ...]


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
    events: list[_Event] = []
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
    return list(_intervals(sorted(events, key=lambda event: event.time))), rejected, count


def _event(line: str, cluster: Cluster) -> _Event:
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
    gpus = indices(values["gpus"]) if values.get("gpus") else ()
    return _Event(time, found[2], values.get("cluster") or cluster.name, job.raw, node, gpus)


def _intervals(events: list[_Event]) -> Iterator[Row]:
    opened: dict[tuple[str | None, str, str], _Event] = {}
    for event in events:
        key = (event.cluster, event.job, event.node)
        begun = opened.pop(key, None)
        if event.kind == "prolog":
            opened[key] = event
        if begun:
            yield from _held(begun, begun.time, event.time)
        elif event.kind == "epilog":
            yield from _held(event, None, event.time)
    for begun in opened.values():
        yield from _held(begun, begun.time, None)


def _held(event: _Event, start: datetime | None, end: datetime | None) -> Iterator[Row]:
    for gpu in event.gpus:
        yield allocation_row(event.cluster, event.job, event.node, gpu, start=start, end=end, provenance="explicit")
