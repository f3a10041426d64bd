"""One job from any source: `JobRecord`, its submit line, rows and rejects."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from tachograph.catalog.chunks import Reject
from tachograph.catalog.config import Configuration
from tachograph.catalog.table_columns import RECORDED_USE, TASK_GPU_USE
from tachograph.catalog.tables import SLURM_NUMBERING
from tachograph.sources.slurm.fields import (
    BadRowError,
    JobId,
    absent,
    base_state,
    count_nodes,
    exit_status,
    expand_nodes,
    instants,
    job_id,
    seconds,
    settle,
    whole,
)
from tachograph.sources.slurm.gres import gpus, gres_counts, requested_gres, shares, tres
from tachograph.sources.slurm.usage import HostUsage, UnreadValue, text_request, text_usage

_LONGEST_SUBMIT_LINE = 20_000  # characters of a submit line that are looked at
_TOKEN = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""")
_CONSTRAINT = re.compile(r"C|--const")
_SHORT_WITH_VALUE = frozenset("AaBbCcDdeFGiJLMmNnopqrSTtwx")
_LONG_OPTIONS = (
    "account array batch bb bbf begin chdir cluster-constraint clusters comment constraint "
    "container cores-per-socket "
    "core-spec cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution "
    "error exclude export "
    "export-file extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node "
    "gpus-per-socket gpus-per-task gres "
    "gres-flags hint input job-name jobid licenses mail-type mail-user mcs-label mem mem-bind "
    "mem-per-cpu mem-per-gpu "
    "mincpus network nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu "
    "ntasks-per-node ntasks-per-socket "
    "open-mode output partition power prefer priority profile qos relative reservation segment "
    "signal "
    "sockets-per-node switches task-prolog task-epilog thread-spec threads threads-per-core "
    "time time-min tmp "
    "tres-per-task uid wait-all-nodes wckey"
)
_LONG_WITH_VALUE = frozenset(_LONG_OPTIONS.split())


@lru_cache(maxsize=8192)
def submit_constraint(submit_line: str, het_offset: int | None = None) -> str | None:
    """Return the constraint of a submit line; `het_offset`: of this component.

    It describes the request. Users write submit lines, so nothing else is read from them: neither
    exclusive nodes nor GPUs.

    >>> submit_constraint("sbatch -N2 -C gpu&hbm80g job.sh -C mine")
    'gpu&hbm80g'
    """
    if not _CONSTRAINT.search(submit_line, 0, _LONGEST_SUBMIT_LINE):
        return None
    components = _components(_TOKEN.findall(submit_line[:_LONGEST_SUBMIT_LINE])[1:])
    if len(components) > 1 and (het_offset is None or het_offset >= len(components)):
        return None
    options = components[0 if len(components) == 1 or het_offset is None else het_offset]
    constraint: str | None = None
    for name, value in options:
        if name == "C" or (len(name) > 4 and "constraint".startswith(name)):
            constraint = value or None
    return constraint


def read_options(written: str) -> list[tuple[str, str]]:
    """Return the options (name, value) of a `#SBATCH` line, up to the first other word.

    >>> read_options("--gpus=4 -p gpu -t 30 # for a test --time=1")
    [('gpus', '4'), ('p', 'gpu'), ('t', '30')]
    """
    return _components(_TOKEN.findall(written[:_LONGEST_SUBMIT_LINE]))[0]


def _components(tokens: list[str]) -> list[list[tuple[str, str]]]:
    """Options (name, value) of each component, up to the program."""
    components: list[list[tuple[str, str]]] = [[]]
    position = 0
    while position < len(tokens):
        token = tokens[position]
        position += 1
        following = tokens[position] if position < len(tokens) else ""
        if token == ":":
            components.append([])
        elif (
            token == "--wrap"
            or token.startswith("--wrap=")
            or not token.startswith("-")
            or token == "--"
        ):
            break
        elif token.startswith("--"):
            name, mark, value = token[2:].partition("=")
            if not mark and name in _LONG_WITH_VALUE:
                value = following
                position += 1
            components[-1].append((name, value.strip("\"'")))
        else:
            name, value, words_read = _short_option(token, following)
            position += words_read
            components[-1].append((name, value.strip("\"'")))
    return components


def _short_option(token: str, following: str) -> tuple[str, str, int]:
    """Return the option with a value in a cluster of short ones, and tokens consumed."""
    for position, letter in enumerate(token[1:], start=1):
        if letter in _SHORT_WITH_VALUE:
            rest = token[position + 1 :]
            return (letter, rest, 0) if rest else (letter, following, 1)
    return token[1:], "", 0


_TIER = re.compile(r"(?<![a-z0-9])hbm_?(\d{2,4})g", re.ASCII)


def hbm_tier(constraint: str | None) -> str | None:
    """Return the memory tier a constraint requests; None without one, or with a choice.

    >>> hbm_tier("gpu&hbm80g"), hbm_tier("[hbm40g|hbm80g]"), hbm_tier("(gpu&hbm40g)"), hbm_tier("gpu")
    ('80g', None, '40g', None)
    """
    tiers = set(_TIER.findall(constraint.lower())) if constraint else set()
    return f"{tiers.pop()}g" if len(tiers) == 1 else None


RejectedRecord = tuple[int, str, str]  # place, reason, text


@dataclass(frozen=True, slots=True)
class RejectedBefore:
    """Everything a feed has reported since its process began."""

    _known: set[tuple[object, ...]] = field(default_factory=set)

    def first_time(self, *what: object) -> bool:
        """Whether this was not reported before; from now on it was.

        >>> reported = RejectedBefore()
        >>> reported.first_time("a", 1), reported.first_time("a", 1)
        (True, False)
        """
        is_known = what in self._known
        self._known.add(what)
        return not is_known

    def new(self, rejected: Iterable[RejectedRecord]) -> list[RejectedRecord]:
        """Return the records that were not reported before, wherever they stood in the answer."""
        return [
            (position, reason, text)
            for position, reason, text in rejected
            if self.first_time(reason, text)
        ]


def counted_rejects(
    rejected: Iterable[RejectedRecord], column: str | None = None
) -> tuple[Reject, ...]:
    """Return rejected rows, or their values of `column`, counted by reason, with the first of each.

    >>> counted_rejects([(3, "bad_time", "x"), (5, "bad_time", "y")])
    (Reject(reason='bad_time', column=None, count=2, example='3: x'),)
    """
    shown: dict[str, list[str]] = {}
    for position, reason, text in rejected:
        shown.setdefault(reason, []).append(f"{position}: {text}"[:200])
    return tuple(
        Reject(reason, column, len(texts), texts[0]) for reason, texts in sorted(shown.items())
    )


SlurmRow = dict[str, object]


@dataclass(frozen=True, slots=True)
class SlurmEntry:
    """One record of a file: place (line or position), text, fields or a reject reason."""

    place: int
    text: str
    fields: Mapping[str, object] | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class SlurmCluster:
    """Facts that the accounting lacks: name and time zone.

    `tracks_gpus` False: this export never names GPUs, so a job without any may have had some.
    """

    name: str | None = None
    time_zone: str = "UTC"
    tracks_gpus: bool = True

    @classmethod
    def of(cls, configuration: Configuration, *, tracks_gpus: bool = True) -> SlurmCluster:
        """Return the settings of the configuration."""
        site = configuration.site
        return cls(site.cluster or None, site.time_zone, tracks_gpus)


@dataclass(slots=True, kw_only=True)
class JobRecord:
    """One run of a job as accounted, or a step of it (`id.step`). Times UTC; None: not reported."""

    id: JobId
    cluster: str | None = None
    name: str | None = None
    user: str | None = None
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    state: str | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    submit: datetime | None = None
    eligible: datetime | None = None
    start: datetime | None = None
    end: datetime | None = None
    elapsed_s: float | None = None
    timelimit_s: float | None = None
    nodes: int | None = None
    node_list: str | None = None  # as written, "None assigned" too
    allocated: Mapping[str, int] | None = None  # TRES; None: the export has none
    requested: Mapping[str, int] = field(default_factory=dict)
    names_gpus: bool = False  # it held GPUs by another field, without their number
    cpus: int | None = None
    tasks: int | None = None
    constraints: str | None = None
    submit_line: str | None = None
    exclusive: bool | None = None
    time_precision_s: float = 0.0
    mem_requested_mib: float | None = None
    comment: str | None = None  # AdminComment
    usage: HostUsage = field(default_factory=HostUsage)
    unread: tuple[UnreadValue, ...] = ()


def requested_exclusive(written: object) -> bool | None:
    """Return True for Slurm's words for whole nodes; `NO` leaves it to the partition.

    >>> requested_exclusive("NODE"), requested_exclusive("NO"), requested_exclusive("USER")
    (True, None, None)
    """
    return True if written and str(written).strip().upper() in {"YES", "NODE", "TRUE"} else None


def from_fields(fields: Mapping[str, Any], cluster: SlurmCluster) -> JobRecord:
    """Return the job, or the step, of a sacct row, {field name in lower case: text}.

    `AllocGRES` and `ReqGRES` (Slurm up to 20.11) are used without TRES. Errors: BadRowError with
    the reason for an unreadable record.
    """
    get = fields.get
    identity = job_id(
        *(get(name, "") for name in ("jobid", "jobidraw")), has_steps="step" in fields
    )
    step = get("step", "").strip()
    if not absent(step):
        identity = replace(identity, step=step.removesuffix(".0"))
    elapsed = seconds(get("elapsedraw", ""), get("elapsed", ""))
    suspended = seconds("", get("suspended", "")) or 0.0
    zone = cluster.time_zone
    candidates = [instants(get(name, ""), zone) for name in ("submit", "eligible", "start", "end")]
    submit, eligible, start, end = settle(
        candidates, None if elapsed is None else elapsed + suspended
    )
    code, signal = exit_status(get("exitcode", ""))
    nodes = whole(get("nnodes") or get("allocnodes", ""))
    of_gres = get("reqgres", "")
    requested = requested_gres(of_gres, nodes) | tres(get("reqtres", ""))
    cpus = whole(get("alloccpus") or get("ncpus", ""))
    usage, unread = text_usage(fields)
    mem_requested_mib, unread_request = text_request(
        fields, nodes=nodes, cpus=requested.get("cpu") or whole(get("reqcpus", "")) or cpus
    )
    minutes, constraints = get("timelimitraw", "").strip(), get("constraints", "")
    return JobRecord(
        id=identity,
        cluster=get("cluster") or cluster.name,
        name=get("jobname") or None,
        user=get("user") or None,
        account=get("account") or None,
        partition=get("partition") or None,
        qos=get("qos") or None,
        state=base_state(get("state", "")),
        exit_code=code,
        exit_signal=signal,
        submit=submit,
        eligible=eligible,
        start=start,
        end=end,
        elapsed_s=elapsed,
        timelimit_s=seconds(minutes, "", scale=60)
        if minutes
        else seconds("", get("timelimit", "")),
        nodes=nodes,
        node_list=get("nodelist") or None,
        allocated=(gres_counts(get("allocgres", "")) | tres(get("alloctres", ""))) or None,
        requested=requested,
        names_gpus=any(gres_counts(of_gres).values()),
        cpus=cpus,
        tasks=whole(get("ntasks", "")),
        constraints=None if absent(constraints) else constraints,
        submit_line=get("submitline") or None,
        exclusive=requested_exclusive(get("exclusive", "")),
        mem_requested_mib=mem_requested_mib,
        comment=get("admincomment") or None,
        usage=usage,
        unread=(*unread, *unread_request),
    )


def job_row(job: JobRecord, cluster: SlurmCluster) -> SlurmRow:
    """Return the row of `jobs`, with memory tier and exclusivity.

    Errors: BadRowError for a time order that cannot be, or a broken node list.
    """
    waits = job.state == "PENDING"  # its start is expected
    node_list = _held_nodes(job.state, job.node_list)
    without_nodes = node_list is None and job.node_list is not None
    never_ran = waits or (without_nodes and job.state != "RUNNING")
    start = None if never_ran else job.start
    end = None if waits else job.end
    if start and end and end < start:
        raise BadRowError("end_before_start")
    if node_list is not None:
        count_nodes(node_list)
    of_line = submit_constraint(job.submit_line, job.id.het_offset) if job.submit_line else None
    constraints = job.constraints or of_line
    ran = start is not None
    count, kind = _held_gpus(job, cluster) if ran else (None, None)
    shards, mps, of_type = shares(job.allocated or job.requested) if ran else (None, None, None)
    return {
        "cluster": job.cluster,
        "job_id": job.id.raw,
        "display_id": job.id.display,
        "array_job_id": job.id.array_job_id,
        "array_task_id": job.id.array_task_id,
        "het_job_id": job.id.het_job_id,
        "het_offset": job.id.het_offset,
        "name": job.name,
        "user": job.user,
        "account": job.account,
        "partition": job.partition,
        "qos": job.qos,
        "state": job.state,
        "exit_code": job.exit_code if end else None,  # 0:0 while it waits or runs means nothing
        "exit_signal": job.exit_signal if end else None,
        "submit": job.submit,
        "eligible": job.eligible,
        "start": start,
        "end": end,
        "elapsed_s": job.elapsed_s,
        "timelimit_s": job.timelimit_s,
        "nodes": job.nodes if ran else None,
        "node_list": node_list,
        "gpus": count,
        "gpu_type": kind or of_type,
        "shards": shards,
        "mps": mps,
        "cpus": (job.allocated or {}).get("cpu", job.cpus) if ran else None,
        "cpu_time_s": None,  # of a run that has ended, with its steps: `add_usage`
        "mem_requested_mib": job.mem_requested_mib,
        "max_rss_mib": None,
        **dict.fromkeys((*RECORDED_USE, *TASK_GPU_USE)),  # as `cpu_time_s`
        "consumed_energy_j": job.usage.energy_j if end else None,
        "constraints": constraints,
        "hbm_request": hbm_tier(constraints) or hbm_tier(of_line),
        "exclusive": True if job.exclusive else None,  # its own request
        "submit_line": job.submit_line,
        "time_precision_s": job.time_precision_s,
        "saved": None,  # the reader knows
    }


def _held_nodes(state: object, node_list: object) -> str | None:
    """Return the node list of a job; None for Slurm's words for no node, and while it waits.

    The nodes of a job that waits are those it was promised or requests.
    """
    if state == "PENDING" or not isinstance(node_list, str) or absent(node_list):
        return None
    return node_list


def job_of_steps(job: JobRecord, step: JobRecord) -> JobRecord:
    """Return the job that its steps imply, extended by one step."""
    starts = [time for time in (job.start, step.start) if time]
    return replace(
        job,
        start=min(starts, default=None),
        end=max(job.end, step.end) if job.end and step.end else None,
        submit=job.submit or step.submit,
        elapsed_s=None,
        nodes=max((count for count in (job.nodes, step.nodes) if count is not None), default=None),
        state=job.state if job.state == step.state else None,
        exit_code=None,
        exit_signal=None,
        node_list=job.node_list if job.node_list == step.node_list else None,
        allocated=None,
        cpus=job.cpus if job.cpus == step.cpus else None,
        mem_requested_mib=None,
        usage=HostUsage(),
        unread=(),
    )


def step_row(step: JobRecord) -> SlurmRow:
    """Return the row of `steps`.

    Errors: BadRowError for a time order that cannot be, or a broken node list.
    """
    if step.start and step.end and step.end < step.start:
        raise BadRowError("end_before_start")
    named = step.node_list is not None and not absent(step.node_list)
    if named:
        count_nodes(str(step.node_list))
    return {
        "cluster": step.cluster,
        "job_id": step.id.raw,
        "step": step.id.step,
        "name": step.name,
        "start": step.start,
        "end": step.end,
        "nodes": step.nodes,
        "node_list": step.node_list if named else None,
        "tasks": step.tasks,
        "gpus": None if step.allocated is None else gpus(step.allocated)[0] or 0,
        "max_rss_mib": step.usage.max_rss_mib,
        "state": step.state,
        "exit_code": step.exit_code if step.end else None,
        "exit_signal": step.exit_signal if step.end else None,
        "submit_line": step.submit_line,
    }


def _held_gpus(job: JobRecord, cluster: SlurmCluster) -> tuple[int | None, str | None]:
    """Return whole GPUs and type, allocated or requested; 0 only if accounting names GPUs."""
    counts = job.allocated or job.requested
    if not counts:
        return None, None
    if any(shares(counts)[:2]):
        return gpus(counts)[0] or 0, gpus(counts)[1]
    held = gpus(counts)
    if held[0] is not None:
        return held
    contradicted = job.names_gpus or gpus(job.requested)[0]
    return (None, None) if contradicted or not cluster.tracks_gpus else (0, None)


def allocation_row(
    cluster: object,
    job: object,
    node: str,
    gpu: int | None,
    *,
    mig: int | None = None,
    start: object = None,
    end: object = None,
    provenance: str = "live_index",
    shared: bool = False,
    share: float | None = None,
    numbering: str = SLURM_NUMBERING,
) -> SlurmRow:
    """Return one row of `allocations`."""
    return {
        "cluster": cluster,
        "job_id": job,
        "step": None,
        "node": node,
        "gpu": gpu,
        "mig": mig,
        "start": start,
        "end": end,
        "provenance": provenance,
        "shared": shared or None,
        "share": share,
        "numbering": None if gpu is None else numbering,
    }


def allocation_rows(row: SlurmRow) -> Iterator[SlurmRow]:
    """Yield one row of `allocations` per node of a job that may have held GPUs; `gpu` null.

    row: of `jobs`, by `job_row` or as a file has it. Errors: BadRowError when the node list cannot
    be expanded.
    """
    shared = bool(row["shards"] or row["mps"]) and not row["gpus"]
    node_list = _held_nodes(row["state"], row["node_list"])
    if row["start"] is None or node_list is None or (row["gpus"] == 0 and not shared):
        return
    for node in expand_nodes(node_list):
        yield allocation_row(
            row["cluster"],
            row["job_id"],
            node,
            None,
            start=row["start"],
            end=row["end"],
            provenance="node_list",
            shared=shared,
        )
