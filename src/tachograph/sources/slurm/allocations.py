"""GPUs of jobs from `scontrol`, `squeue --json`, slurmrestd, tables, prolog logs."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain

from tachograph.catalog.errors import InputError
from tachograph.sources.metrics import short_node
from tachograph.sources.slurm.fields import (
    BadRowError,
    absent,
    any_job_id,
    base_state,
    expand_nodes,
    instants,
    job_state,
    json_number,
    json_text,
    json_time,
    json_value,
)
from tachograph.sources.slurm.gres import SHARES, indices, read_gres, tres
from tachograph.sources.slurm.records import (
    RejectedRecord,
    SlurmCluster,
    SlurmEntry,
    SlurmRow,
    allocation_row,
)

_RECORD = re.compile(r"^JobId=", re.MULTILINE)
_NODE_LINE = re.compile(
    r"\bNodes=(?P<nodes>\S+)(?P<rest>(?:\s+(?:CPU_IDs|Mem|GRES(?:_IDX)?)=\S*)+)"
)
_GRES = re.compile(r"\bGRES(?:_IDX)?=(\S+)")
# States in which Slurm names the GPUs of a job that has any.
_WITH_GPUS = frozenset({"RUNNING", "SUSPENDED"})
# The nodes are known, where GPUs were held; which ones not.
UNKNOWN_GPUS = frozenset({"mig_index", "index_not_told"})


def held_gpus(gres: str) -> dict[int, bool]:
    """Return a node's GPUs from its GRES, {index: is only a share}; {} without any.

    >>> held_gpus("gpu:h100:2(IDX:0-1),gpu:h200:4(IDX:2-3,6-7)") == dict.fromkeys((0, 1, 2, 3, 6, 7), False)
    True
    >>> held_gpus("shard:4(IDX:0),nvme:1")
    {0: True}

    Errors: BadRowError `index_not_told` where no index is reported, `mig_index` for slices: their
    index is not the GPU's, `index_count_mismatch` for other indices than GPUs.
    """
    gpus: dict[int, bool] = {}
    # One that has all of a GPU has no share.
    for part in sorted(read_gres(gres), key=lambda part: part.name == "gpu"):
        if part.count == 0:
            continue
        if part.is_mig:
            raise BadRowError("mig_index")
        if not part.devices:
            raise BadRowError("index_not_told")
        if part.name == "gpu" and part.count is not None and part.count != len(part.devices):
            raise BadRowError("index_count_mismatch")
        gpus |= dict.fromkeys(part.devices, part.name != "gpu")
    return gpus


def gpu_shares(gres: str) -> dict[int, float]:
    """Return {index: part of the GPU} of the shares of a node's GRES whose part is written.

    >>> gpu_shares("shard:4(IDX:0(4/8)),gpu:1(IDX:1)")
    {0: 0.5}

    Errors: BadRowError as `read_gres`.
    """
    shares = [part for part in read_gres(gres) if part.name != "gpu" and part.count != 0]
    return {device: part for share in shares for device, part in share.parts}


def read_scontrol(content: str, *, where: str, trusted: bool = False) -> Iterator[SlurmEntry]:
    """Yield records of `scontrol show job -d`, one per job; `place`: first line number.

    Record without users' texts; `two_readings` if that is ambiguous. `trusted`: no name or comment
    contains a record. Errors: InputError for several records, one of which may be a job name.
    """
    starts = [match.start() for match in _RECORD.finditer(content)]
    if len(starts) > 1 and not trusted:
        raise InputError(
            "of several jobs: one of them may be a text that a user wrote",
            where=where,
            do=(
                "export squeue --json, or scontrol show job -d of each job into a file of its "
                "own, or add --trusted"
            ),
        )
    for begin, end in zip(starts, [*starts[1:], len(content)], strict=True):
        position, record = content.count("\n", 0, begin) + 1, content[begin:end]
        unwritable = identity_record(record)
        if unwritable is None:
            yield SlurmEntry(position, record.strip()[:4000], reason="two_readings")
        else:
            yield SlurmEntry(position, record.strip()[:4000], {"record": unwritable})


# Fields of scontrol that no user can write; each stands in a record once, so a second one is in a
# text. TRES (as in 22.05) and AllocTRES (as in 24.11) are two names of one field.
_FIELD = re.compile(
    r"(?<!\S)(?:Alloc(?=TRES=))?"
    r"(JobId|UserId|JobState|StartTime|NodeList|TRES|Socks/Node|MinCPUsNode)=(\S*)"
)


def identity_record(record: str) -> str | None:
    """Return the parts of an scontrol record that no user can forge; None if ambiguous.

    >>> job = "JobId=7 JobName=a\\n   UserId=ana(1)\\n   JobState=RUNNING Reason=None\\n   Comment=x"
    >>> identity_record(job)
    'JobId=7\\n   UserId=ana(1)\\n   JobState=RUNNING\\n'
    >>> identity_record(job + "\\n   JobState=PENDING") is None
    True
    """
    fields = {match[1]: match for match in _FIELD.finditer(record)}
    if len(fields) != len(_FIELD.findall(record)) or "JobId" not in fields:
        return None
    # the lines of GPUs stand between these two: elsewhere they are somebody's text
    begin = fields["Socks/Node"].end() if "Socks/Node" in fields else 0
    end = fields["MinCPUsNode"].start() if "MinCPUsNode" in fields else len(record)
    nodes = [
        f"\n     {' '.join(line[0].split())}" for line in _NODE_LINE.finditer(record, begin, end)
    ]
    head = record[: record.find(" JobName=")] if " JobName=" in record else fields["JobId"][0]
    parts = [f"\n   {match[0]}" for name, match in fields.items() if name != "JobId"]
    at = next(
        (position for position, part in enumerate(parts) if "MinCPUsNode" in part), len(parts)
    )
    return "".join((" ".join(head.split()), *parts[:at], *nodes, *parts[at:], "\n"))


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job as the controller reports it, in text or JSON.

    gres: of each line of nodes, or of each node. nodes: those lines; None: `places` has the nodes.
    places: all nodes. Nodes, start (a time in text, or seconds) and TRES are as written: of a job
    without GPUs they need not be readable.
    """

    id: str
    state: str | None
    start: str | int | None
    allocated: str
    nodes: Sequence[str] | None
    gres: Sequence[str]
    places: Sequence[str]
    cluster: SlurmCluster

    def gpu_rows(self) -> list[SlurmRow]:
        """Return rows of `allocations`, one per node and GPU; None for waiting or finished jobs.

        Errors: BadRowError with the reason when it cannot be read.
        """
        if self.state == "PENDING":  # nodes that it was promised, or that it requests
            return []
        held = [held_gpus(gres) for gres in self.gres]
        if not any(held):
            if self.state in _WITH_GPUS and _names_gpus(self.allocated):
                raise BadRowError("index_not_told")
            return []
        holding = self._nodes_with_gres()
        if len(holding) != len(held):
            raise BadRowError("index_count_mismatch")
        start = self._start()
        rows = []
        for nodes, gres, gpus in zip(holding, self.gres, held, strict=True):
            shares = gpu_shares(gres)
            rows += [
                allocation_row(
                    self.cluster.name,
                    self.id,
                    node,
                    gpu,
                    start=start,
                    shared=shared,
                    share=shares.get(gpu) if shared else None,
                )
                for node in expand_nodes(nodes)
                for gpu, shared in gpus.items()
            ]
        return rows

    def node_rows(self) -> list[SlurmRow]:
        """Return one row of `allocations` per node on which the job has GPUs, with `gpu` null.

        Errors: BadRowError with the reason when it cannot be read.
        """
        held = [[part.name for part in read_gres(gres) if part.count != 0] for gres in self.gres]
        nodes = self.places
        holding = self._nodes_with_gres()
        if len(holding) == len(held):
            nodes = [node for node, gpus in zip(holding, held, strict=True) if gpus] or nodes
        names: set[str] = set().union(*held)
        start = self._start()
        return [
            allocation_row(
                self.cluster.name, self.id, node, None, start=start, provenance="node_list",
                shared=bool(names) and "gpu" not in names,
            )
            for node in chain.from_iterable(map(expand_nodes, nodes))
        ]  # fmt: skip

    def _nodes_with_gres(self) -> Sequence[str]:
        if self.nodes is not None:
            return self.nodes
        return list(chain.from_iterable(map(expand_nodes, self.places)))

    def _start(self) -> datetime | None:
        if isinstance(self.start, str):
            return _instant(self.start, self.cluster)
        return json_time(self.start)


def _names_gpus(allocated: str) -> bool:
    return any(count for name, count in tres(allocated).items() if name.startswith("gres/"))


def running_job(fields: Mapping[str, object], cluster: SlurmCluster) -> RunningJob:
    """Return the job of an entry of `read_scontrol` or `read_controller`.

    Errors: BadRowError with the reason when it cannot be read.
    """
    if "record" in fields:
        return _in_text(str(fields["record"]), cluster)
    raw = json_number(fields, "job_id")
    if not raw or raw < 0:
        raise BadRowError("bad_job_id")
    listed = json_text(fields, "nodes") or ""
    detail = fields.get("gres_detail")  # one text per node, in the order of the node list
    return RunningJob(
        str(raw),
        job_state(fields.get("job_state")).base,
        json_number(fields, "start_time"),
        json_text(fields, "tres_alloc_str") or "",
        None,
        list(map(str, detail))
        if isinstance(detail, list)
        else list(filter(None, [json_text(detail)])),
        [] if absent(listed) else [listed],
        replace(cluster, name=json_text(fields, "cluster") or cluster.name),
    )


def _in_text(record: str, cluster: SlurmCluster) -> RunningJob:
    job = re.match(r"JobId=(\d+)\b", record)
    if not job:
        raise BadRowError("bad_job_id")
    fields = {match[1]: match[2] for match in _FIELD.finditer(record)}
    state = fields.get("JobState")
    lines = list(_NODE_LINE.finditer(record))
    pairs = [(line["nodes"], gres[1]) for line in lines for gres in _GRES.finditer(line["rest"])]
    listed = fields.get("NodeList", "")
    return RunningJob(
        job[1],
        base_state(state) if state else None,
        fields.get("StartTime", ""),
        fields.get("TRES", ""),
        [nodes for nodes, _ in pairs],
        [gres for _, gres in pairs],
        [line["nodes"] for line in lines] or ([] if absent(listed) else [listed]),
        cluster,
    )


def read_controller(document: object) -> Iterator[SlurmEntry]:
    """Yield jobs of an answer of `squeue --json`, `scontrol show job --json` or slurmrestd.

    `place` counts them.
    """
    jobs = json_value(document, "jobs")
    for position, job in enumerate(jobs if isinstance(jobs, list) else [], start=1):
        if isinstance(job, dict):
            brief = ", ".join(
                f"{name}={job.get(name)}"
                for name in ("job_id", "job_state", "nodes", "gres_detail")
            )
            yield SlurmEntry(position, brief, job)
        else:
            yield SlurmEntry(position, str(job)[:200], reason="not_an_object")


_REQUIRED = frozenset({"job_id", "node", "gpu"})
_COLUMNS = frozenset({"job_id", "node", "gpu", "mig", "start", "end", "cluster", "shards", "mps"})


def read_table(
    text: str, *, cluster: SlurmCluster
) -> tuple[list[SlurmRow], list[RejectedRecord], int]:
    """Return (rows of `allocations`, rejects, records) of a CSV with a header.

    Other columns are ignored.

    >>> rows, _, _ = read_table("job_id,node,gpu\\n7,gpu[1-2],0;3\\n", cluster=SlurmCluster())
    >>> [(row["node"], row["gpu"]) for row in rows]
    [('gpu1', 0), ('gpu1', 3), ('gpu2', 0), ('gpu2', 3)]
    """
    lines = text.split("\n")
    head = next((number for number, line in enumerate(lines) if line.strip()), 0)
    between, names = header(lines[head])
    rows: list[SlurmRow] = []
    rejected: list[RejectedRecord] = []
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
    """Return the delimiter of a table and its lower-case column names.

    >>> header('job_id;"node";gpu')
    (';', ['job_id', 'node', 'gpu'])
    """
    between = max(",;\t", key=line.count)
    return between, [name.strip(' "\ufeff\r').lower() for name in line.split(between)]


def _table_rows(
    line: str, names: list[str], between: str, cluster: SlurmCluster
) -> Iterator[SlurmRow]:
    try:
        values = next(csv.reader([line.rstrip("\r")], delimiter=between, skipinitialspace=True))
    except csv.Error:
        raise BadRowError("field_count") from None
    if len(values) != len(names):
        raise BadRowError("field_count")
    row = {
        name: value.strip() for name, value in zip(names, values, strict=True) if name in _COLUMNS
    }
    if _REQUIRED - row.keys():
        raise BadRowError("field_count")
    start = _instant(row.get("start", ""), cluster)
    end = _instant(row.get("end", ""), cluster, later=True)
    if start and end and end < start:
        raise BadRowError("end_before_start")
    slices = indices(row["mig"]) if row.get("mig") else ()
    if len(slices) > 1:
        raise BadRowError("bad_mig")
    job = any_job_id(row["job_id"])
    held = indices(row["gpu"])
    return (
        allocation_row(
            row.get("cluster") or cluster.name,
            job,
            node,
            gpu,
            mig=slices[0] if slices else None,
            start=start,
            end=end,
            provenance="explicit",
            shared=_is_share(row.get("shards"), row.get("mps")),
            share=_share(row.get("shards"), row.get("mps")),
            numbering="nvml_index",
        )
        for node in expand_nodes(row["node"])
        for gpu in held
    )


def _instant(written: str, cluster: SlurmCluster, *, later: bool = False) -> datetime | None:
    """Return the time; in a repeated hour the first for a start, the second for an end."""
    times = instants(written, cluster.time_zone)
    if not times:
        return None
    return times[-1] if later else times[0]


@dataclass(frozen=True, slots=True)
class HoldEvent:
    """One line of the log."""

    time: datetime
    kind: str
    cluster: str | None
    job: str
    node: str
    gpus: tuple[int, ...]
    shared: bool = False  # it has shares of them only
    share: float | None = None  # of each of them, where it is known
    restart: str | None = None  # which start of the job, where the log names it

    @property
    def key(self) -> tuple[str | None, str, str]:
        """Whose interval it is."""
        return self.cluster, self.job, self.node

    def repeats(self, begun: HoldEvent) -> bool:
        """Return whether the event repeats the job's start, as after a prolog that ran twice."""
        if self.restart is not None and begun.restart is not None:
            return self.restart == begun.restart
        return (self.time, self.gpus) == (begun.time, begun.gpus)


_LINE = re.compile(r"(\S+) (prolog|epilog) (.*)")


def read_log(
    text: str, *, cluster: SlurmCluster
) -> tuple[list[SlurmRow], list[RejectedRecord], int, int]:
    """Return (rows of `allocations`, rejected, records, jobs without GPUs) of a prolog log.

    A prolog opens the interval of its (job, node), the epilog closes it. A second prolog closes the
    one before (the job was started again); without epilog it stays open; an epilog alone has held
    since the start of the job.

    >>> log = "1795247442 prolog job=1 node=n1 gpus=0,1\\n1795247444 epilog job=1 node=n1 gpus=0,1\\n"
    >>> rows, _, _, _ = read_log(log, cluster=SlurmCluster())
    >>> [(row["gpu"], (row["end"] - row["start"]).seconds) for row in rows]
    [(0, 2), (1, 2)]
    """
    events, rejected, count = read_events(text, cluster=cluster)
    intervals = HoldIntervals()
    with_gpus = {event.key for event in events if event.gpus}
    without = sum(event.key not in with_gpus for event in events)
    return [*intervals.ended(events), *intervals.open()], rejected, count, without


def read_events(
    text: str, *, cluster: SlurmCluster
) -> tuple[list[HoldEvent], list[RejectedRecord], int]:
    """Return (events in the order of time, rejected, records) of a prolog and epilog log."""
    events: list[HoldEvent] = []
    rejected: list[RejectedRecord] = []
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


def _event(line: str, cluster: SlurmCluster) -> HoldEvent:
    match = _LINE.fullmatch(line)
    if not match:
        raise BadRowError("not_understood")
    values = dict(part.partition("=")[::2] for part in match[3].split())
    time = _instant(match[1], cluster, later=match[2] == "epilog")
    if time is None:
        raise BadRowError("bad_time")
    job = any_job_id(values.get("job", ""))
    node = short_node(values.get("node", ""))
    if not node:
        raise BadRowError("bad_node_list")
    if values.get("mig") and not values.get("gpus"):
        raise BadRowError("mig_index")
    gpus = indices(values["gpus"]) if values.get("gpus") else ()
    counts = [values.get(key) for name in SHARES for key in (f"{name}s", name)]
    return HoldEvent(
        time,
        match[2],
        values.get("cluster") or cluster.name,
        job,
        node,
        gpus,
        shared=_is_share(*counts),
        share=_share(*counts),
        restart=values.get("restart") or None,
    )


def _is_share(*written: str | None) -> bool:
    """Whether a count of shards, or of MPS, is above 0."""
    return any(value and value.partition("/")[0].strip("0") for value in written)


def _share(*written: str | None) -> float | None:
    """Part of the GPU, where a count is written with that of the GPU: 3/4."""
    for value in written:
        counts = re.fullmatch(r"(\d{1,9})/(\d{1,9})", value or "", re.ASCII)
        if counts and 0 < int(counts[1]) <= int(counts[2]):
            return int(counts[1]) / int(counts[2])
    return None


@dataclass(slots=True)
class HoldIntervals:
    """Joins events to intervals, across pieces of a log, tracking open ones."""

    _opened: dict[tuple[str | None, str, str], HoldEvent] = field(default_factory=dict)

    def ended(self, events: Iterable[HoldEvent]) -> Iterator[SlurmRow]:
        """Yield rows of `allocations` for intervals that the events end, in order of time."""
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

    def open(self, events: Iterable[HoldEvent] | None = None) -> Iterator[SlurmRow]:
        """Yield the rows of open intervals; with `events`, only of those they concern."""
        keys = self._opened if events is None else dict.fromkeys(event.key for event in events)
        for begun in (self._opened[key] for key in keys if key in self._opened):
            yield from _held(begun, begun.time, None)


def _held(event: HoldEvent, start: datetime | None, end: datetime | None) -> Iterator[SlurmRow]:
    for gpu in event.gpus:
        yield allocation_row(
            event.cluster,
            event.job,
            event.node,
            gpu,
            start=start,
            end=end,
            provenance="explicit",
            shared=event.shared,
            share=event.share,
        )
