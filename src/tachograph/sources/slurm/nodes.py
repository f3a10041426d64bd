"""Nodes, reservations and waiting jobs of the controller, and node events of the accounting.

Nobody's text decides: reasons, comments and names of reservations are not read. In text of
`scontrol show node` they may hold whole records, so that text is read only where it is trusted.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from tachograph.catalog.errors import InputError
from tachograph.sources.slurm.fields import (
    BadRowError,
    absent,
    expand_nodes,
    instants,
    json_example,
    json_number,
    json_objects,
    json_text,
    json_time,
    json_value,
    whole,
)
from tachograph.sources.slurm.gres import gpus, gres_counts, read_gres, shares, tres
from tachograph.sources.slurm.records import RejectedRecord, SlurmCluster, SlurmRow
from tachograph.sources.slurm.usage import requested_mib, tres_value

EVENT_FIELDS = "Cluster,NodeName,TimeStart,TimeEnd,State"
# Of several words the first of these decides: what takes a node away before what keeps it back.
_STATES: Mapping[str, frozenset[str]] = {
    "down": frozenset(
        {"DOWN", "FAIL", "ERROR", "NOT_RESPONDING", "NO_RESPOND", "REBOOT_ISSUED", "INVAL"}
    ),
    "drained": frozenset({"DRAIN", "DRAINED", "DRAINING", "FAILING", "INVALID_REG"}),
    "maintenance": frozenset({"MAINT", "MAINTENANCE"}),
    "reserved": frozenset({"RESERVED", "RES"}),
    "up": frozenset({"IDLE", "MIXED", "ALLOCATED", "COMPLETING", "PLANNED", "BLOCKED"}),
}
_NOT_INSTALLED = frozenset({"FUTURE"})
TEXT_FIELD = re.compile(r"(?:^|\s)([A-Za-z]+)=(\S*)")
_FREE_TEXT = re.compile(r"(?:^|\s)(?:Reason|Comment|Extra)=")
_RECORD = re.compile(r"^(?=NodeName=|ReservationName=)", re.MULTILINE)
_NOT_BLANK = re.compile(r"\S")
_SECONDS = re.compile(r"\d{9,11}", re.ASCII)
_TIME_LINE = re.compile(r"^(\d{9,11})\r?\n", re.ASCII | re.MULTILINE)
# {field of the text: path in JSON}
NODE_FIELDS: Mapping[str, str] = {
    "NodeName": "name",
    "Gres": "gres",
    "CPUTot": "cpus",
    "CPUAlloc": "alloc_cpus",
    "RealMemory": "real_memory",
    "AllocMem": "alloc_memory",
    "CfgTRES": "tres",
    "AllocTRES": "tres_used",
}


@dataclass(slots=True)
class NodeReading:
    """What a file or some answers hold: rows of `node_states`, of `waiting_jobs`, and rejects."""

    states: list[SlurmRow] = field(default_factory=list)
    waiting: list[SlurmRow] = field(default_factory=list)
    rejected: list[RejectedRecord] = field(default_factory=list)
    passed: Counter[str] = field(default_factory=Counter)
    rows_read: int = 0

    def add(self, row: SlurmRow | None) -> None:
        """Add a row of a node; None: it has no GPUs."""
        if row is None:
            self.passed["no_gpus"] += 1
        elif row not in self.states[-1:]:
            self.states.append(row)

    def reject(self, problem: BadRowError, example: str) -> None:
        """Count a record that cannot be read."""
        self.rejected.append((self.rows_read, problem.reason, example))


def is_node_text(head: str) -> bool:
    """Whether text holds nodes, reservations or node events, perhaps behind lines of times."""
    first = _TIME_LINE.sub("", head).lstrip()
    if first.startswith("{") and first != head.lstrip():  # JSON behind the time of a poll
        return '"nodes"' in first
    return first.startswith(("NodeName=", "ReservationName=", "Cluster|NodeName|TimeStart|"))


def read_nodes(
    content: bytes, *, where: str, cluster: SlurmCluster, at: datetime | None, trusted: bool = False
) -> NodeReading:
    """Return what saved answers hold: JSON documents or texts, one after the other.

    A line of seconds since 1970 names the time of what follows it, `at` that of the rest; answers
    in JSON name their own from Slurm 23.11 on. Raises InputError naming `where` for other content,
    for states of nodes whose time is not known, and for reasons in text that is not trusted.
    """
    text = content.decode("utf-8-sig", "replace")
    reading = NodeReading()
    if _TIME_LINE.sub("", text).lstrip()[:1] in ("{", ""):
        for document, time in timed_documents(text, where):
            read_document(document, reading, where=where, cluster=cluster, at=time or at)
        return reading
    if not is_node_text(text):
        raise InputError(
            "this is no answer about nodes",
            where=where,
            do="save `scontrol show nodes --json`, `scontrol show reservation` or `sacctmgr -P "
            f"show event format={EVENT_FIELDS}`",
        )
    if "NodeName=" in text and _FREE_TEXT.search(text) and not trusted:
        raise InputError(
            "reasons and comments in this text may imitate records of nodes",
            where=where,
            do="save `scontrol show nodes --json` (`sinfo --json` before Slurm 23.02), or trust it "
            "with --trusted",
        )
    before, *parts = _TIME_LINE.split(text)
    pieces = [("", before), *zip(parts[::2], parts[1::2], strict=True)]
    for seconds, piece in pieces:
        time = instants(seconds, "UTC")[0] if seconds else at
        _read_text(piece, reading, where=where, cluster=cluster, at=time)
    return reading


def timed_documents(text: str, where: str) -> Iterator[tuple[object, datetime | None]]:
    """Yield JSON documents, each with the time that a line before it names."""
    decoder, position, time = json.JSONDecoder(strict=False), 0, None
    while True:
        first = _NOT_BLANK.search(text, position)  # a slice would copy the rest of the file
        if first is None:
            return
        position = first.start()
        written = _SECONDS.match(text, position)
        if written:
            time, position = instants(written[0], "UTC")[0], written.end()
            continue
        try:
            document, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            raise InputError(
                f"no JSON, or cut off, at character {position + 1:,}",
                where=where,
                do="save it again",
            ) from None
        yield document, time


def read_document(
    document: object,
    reading: NodeReading,
    *,
    where: str,
    cluster: SlurmCluster,
    at: datetime | None,
) -> None:
    """Add nodes, reservations and waiting jobs of an answer in JSON. Raises as `read_nodes`."""
    try:
        time = at or json_time(document, "last_update")
    except BadRowError:
        time = None
    if not isinstance(document, dict) or not {"nodes", "reservations", "jobs"} & document.keys():
        raise InputError(
            "this JSON holds no nodes, reservations or jobs",
            where=where,
            do="save `scontrol show nodes --json` or `squeue --json`",
        )
    for key, row_of in (("nodes", _json_node), ("reservations", None), ("jobs", _waiting_row)):
        for record in json_objects(document, key):
            reading.rows_read += 1
            try:
                if row_of is None:
                    rows = _reservation_rows(_json_reservation(record), cluster, time)
                    reading.states += rows
                    continue
                row = row_of(record, cluster, _known(time, where))
            except BadRowError as problem:
                reading.reject(problem, json_example({"name": json_text(record, "name")}))
                continue
            if key == "nodes":
                reading.add(row)
            elif row is not None:
                reading.waiting.append(row)


def _known(time: datetime | None, where: str) -> datetime:
    if time is None:
        raise InputError(
            "the time of these states is not recorded",
            where=where,
            do="name it with --at, or put a line of `date +%s` before each answer",
        )
    return time


def _json_node(
    record: Mapping[str, object], cluster: SlurmCluster, time: datetime
) -> SlurmRow | None:
    fields = {name: _json_word(record, path) for name, path in NODE_FIELDS.items()}
    words = [*_words(record.get("state")), *_words(record.get("state_flags"))]
    lists = (_words(record.get(name)) for name in ("partitions", "active_features"))
    partitions, features = (",".join(names) or None for names in lists)
    named = json_text(record, "cluster_name")
    return _node_row(fields, words, partitions, features, cluster=named or cluster.name, time=time)


def _json_word(record: Mapping[str, object], name: str) -> str | None:
    """A value as text; null is an empty one, absent None."""
    if name not in record:
        return None
    value = record[name]
    number = json_number(value)
    return str(number) if number is not None else json_text(value) or ""


def _words(value: object) -> list[str]:
    values = value if isinstance(value, list) else [value]
    texts = (json_text(word) for word in values)
    return [word for text in texts if text for word in text.split(",")]


def _node_row(
    fields: Mapping[str, str | None],
    words: list[str],
    partitions: str | None,
    features: str | None,
    *,
    cluster: str | None,
    time: datetime,
) -> SlurmRow | None:
    """Return the row of a node; None without GPUs. Raises BadRowError if it cannot be read.

    Where Slurm counts MIG slices, the number of GPUs is not known.
    """
    state = state_of(words)
    written = _present(fields.get("Gres"))
    is_sliced = any(resource.is_mig for resource in read_gres(written))
    installed = gres_counts(written)
    count, kind = gpus(installed)
    shards, mps, _ = shares(installed)
    if not count or state is None:
        return None
    names = expand_nodes(fields.get("NodeName") or "")
    if len(names) != 1:
        raise BadRowError("bad_node_list")
    cpus, memory = _left(fields, "CPUTot", "CPUAlloc"), _left(fields, "RealMemory", "AllocMem")
    return {
        "cluster": cluster,
        "node": names[0],
        "start": time,
        "end": time,
        "provenance": "poll",
        "state": state,
        "gpus": None if is_sliced else count,
        "gpu_type": kind,
        "shards": shards,
        "mps": mps,
        "gpus_held": None if is_sliced else _gpus_held(fields),
        "cpus_free": cpus,
        "memory_free_mib": None if memory is None else float(memory),
        "partitions": partitions,
        "features": features,
    }


def _gpus_held(fields: Mapping[str, str | None]) -> int | None:
    """GPUs that jobs held; None where that is not reported, as where Slurm does not track GPUs."""
    held, configured = fields.get("AllocTRES"), fields.get("CfgTRES")
    if held is None or (configured and gpus(tres(configured))[0] is None):
        return None
    return gpus(tres(_present(held)))[0] or 0


def state_of(words: list[str]) -> str | None:
    """Return the state of a node by Slurm's words for it; None: it is not installed.

    >>> state_of(["MIXED", "DRAIN"]), state_of(["idle*"]), state_of(["IDLE", "MAINTENANCE", "RESERVED"])
    ('drained', 'down', 'maintenance')
    >>> state_of(["IDLE", "POWERED_DOWN"]), state_of(["FUTURE"])
    ('up', None)

    Raises BadRowError where no word is known.
    """
    flags = {word.upper().rstrip("~#!%$@^-*+") for word in words}
    if any("*" in word for word in words):
        flags.add("NOT_RESPONDING")
    if flags & _NOT_INSTALLED:
        return None
    for state, of_state in _STATES.items():
        if flags & of_state:
            return state
    raise BadRowError("bad_state")


def _present(written: str | None) -> str:
    return "" if written is None or absent(written) else written


def _left(fields: Mapping[str, str | None], total: str, taken: str) -> int | None:
    """What is free of a resource; None where one of the numbers is missing."""
    numbers = [whole(fields.get(name) or "") for name in (total, taken)]
    return None if None in numbers else max(0, (numbers[0] or 0) - (numbers[1] or 0))


def _read_text(
    text: str, reading: NodeReading, *, where: str, cluster: SlurmCluster, at: datetime | None
) -> None:
    if text.lstrip().startswith("Cluster|"):
        read_events(text, reading, cluster=cluster)
        return
    for block in _RECORD.split(text):
        if not block.strip():
            continue
        reading.rows_read += 1
        fields = dict(TEXT_FIELD.findall(_FREE_TEXT.split(block)[0]))
        try:
            if "ReservationName" in fields:
                reading.states += _reservation_rows(fields, cluster, at)
                continue
            words = fields.get("State", "").split("+")
            words += ["NOT_RESPONDING"] if "*" in fields.get("State", "") else []
            lists = (_present(fields.get(name)) for name in ("Partitions", "ActiveFeatures"))
            partitions, features = (names or None for names in lists)
            time = _known(at, where)
            reading.add(
                _node_row(fields, words, partitions, features, cluster=cluster.name, time=time)
            )
        except BadRowError as problem:
            reading.reject(problem, block[:200])


def _json_reservation(record: Mapping[str, object]) -> dict[str, str]:
    times = {"StartTime": "start_time", "EndTime": "end_time"}
    fields = {name: str(json_number(record, path) or "") for name, path in times.items()}
    flags = ",".join(_words(record.get("flags")))
    return {**fields, "Nodes": json_text(record, "node_list") or "", "Flags": flags}


def _reservation_rows(
    fields: Mapping[str, str], cluster: SlurmCluster, at: datetime | None
) -> list[SlurmRow]:
    """Return a row per node that is reserved, up to the time at which that was read.

    Raises BadRowError if it cannot be read.
    """
    ends = [instants(fields.get(name, ""), cluster.time_zone) for name in ("StartTime", "EndTime")]
    if not all(ends):
        raise BadRowError("bad_time")
    start, end = ends[0][0], ends[1][-1]
    if at is not None:
        end = min(end, at)  # it may be removed before its end
    nodes = _present(fields.get("Nodes"))
    if start > end or not nodes:
        return []
    is_maintenance = {"MAINT", "MAINTENANCE"} & {*fields.get("Flags", "").upper().split(",")}
    state = "maintenance" if is_maintenance else "reserved"
    return [
        _interval(cluster.name, node, start, end, "reservation", state)
        for node in expand_nodes(nodes)
    ]


def _interval(
    cluster: str | None,
    node: str,
    start: datetime,
    end: datetime | None,
    provenance: str,
    state: str,
) -> SlurmRow:
    of_polls = ("gpus", "gpu_type", "shards", "mps", "gpus_held", "cpus_free", "memory_free_mib")
    row: SlurmRow = dict.fromkeys((*of_polls, "partitions", "features"))
    return {
        **row,
        "cluster": cluster,
        "node": node,
        "start": start,
        "end": end,
        "provenance": provenance,
        "state": state,
    }


def read_events(text: str, reading: NodeReading, *, cluster: SlurmCluster) -> None:
    """Add the node events that `sacctmgr --parsable2 show event` printed with a header.

    An empty answer holds none.

    Raises InputError for a header with text that people write.
    """
    if not text.strip():
        return
    header, *lines = text.strip().splitlines()
    names = header.split("|")
    if "Reason" in names or not {*EVENT_FIELDS.split(",")} <= {*names}:
        raise InputError(
            "node events need their times and states, and no reasons, which people write",
            where=header[:80],
            do=f"save `sacctmgr -P show event format={EVENT_FIELDS}`",
        )
    for line in lines:
        reading.rows_read += 1
        fields = dict(zip(names, line.split("|"), strict=False))
        try:
            if len(fields) < len(names):
                raise BadRowError("field_count")
            if not fields["NodeName"]:  # of the cluster: its TRES changed
                reading.passed["facts"] += 1
                continue
            start, end = (
                instants(fields[name], cluster.time_zone) for name in ("TimeStart", "TimeEnd")
            )
            if not start:
                raise BadRowError("bad_time")
            state = state_of(fields["State"].split("+"))
            until = end[-1] if end else None
            if state in ("down", "drained", "maintenance"):
                name = fields["Cluster"] or cluster.name
                row = _interval(name, fields["NodeName"], start[0], until, "event", state)
                reading.states.append(row)
        except BadRowError as problem:
            reading.reject(problem, line)


def _waiting_row(
    record: Mapping[str, object], cluster: SlurmCluster, time: datetime
) -> SlurmRow | None:
    """Return the row of a job that waits for GPUs; None for another one."""
    requested = json_text(record, "tres_req_str") or ""
    count, kind = gpus(tres(requested))
    if "PENDING" not in _words(record.get("job_state")) or not count:
        return None
    nodes, number = json_number(record, "node_count"), json_number(record, "job_id")
    if not number:
        raise BadRowError("bad_job_id")
    return {
        "cluster": json_text(record, "cluster") or cluster.name,
        "job_id": str(number),
        "start": time,
        "end": time,
        "reason": json_text(record, "state_reason"),
        "partition": json_text(record, "partition"),
        "nodes": nodes,
        "gpus": count,
        "gpu_type": kind,
        "cpus": tres(requested).get("cpu"),
        "mem_requested_mib": requested_mib(tres_value(requested, "mem"), nodes=nodes, cpus=None),
        "constraints": json_text(record, "features"),
    }


def names_of(document: object) -> tuple[str, ...]:
    """Return which of nodes and reservations a document, or the first of several, lists."""
    if isinstance(document, list) and document:
        document = document[0]
    return tuple(
        key
        for key, has in (("nodes", "gres"), ("reservations", "node_list"))
        if any(has in row for row in json_objects(json_value(document, key))[:1])
    )
