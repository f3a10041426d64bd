"""Partitions and nodes as `scontrol show partition` and `scontrol show node` print them.

Text of every version, or JSON (from 23.11 on); one file may hold the outputs of both commands, one
after the other. Here alone is decided whether a partition gives whole nodes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

from tachograph.catalog.config import SlurmOptions
from tachograph.catalog.errors import InputError
from tachograph.catalog.units import slurm_duration_s
from tachograph.sources.slurm.fields import (
    BadRowError,
    expand_nodes,
    json_limit_s,
    json_number,
    json_objects,
    json_text,
    json_value,
)
from tachograph.sources.slurm.gres import gpus, gres_counts
from tachograph.sources.slurm.nodes import NODE_FIELDS, TEXT_FIELD, timed_documents

_OF_JOB = re.compile(r"DefMemPerGPU=(\d+)")
_NAMES = re.compile(r"[^,\s]+")


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """What a node has: GPUs, CPUs, host memory (MiB)."""

    gpus: int
    cpus: int
    memory_mib: float


@dataclass(frozen=True, slots=True)
class SlurmPartition:
    """What a partition gives, and to whom. None: no limit, or not recorded.

    whole_nodes: OverSubscribe=EXCLUSIVE; of_one_user: ExclusiveUser=YES. closed: no job of a user
    starts there now (State other than UP, RootOnly, or in reservations only). accounts, qos,
    groups: those allowed, None: all; denied_accounts, denied_qos: count only where none are
    allowed by name. memory_per_gpu_mib: given where a job requests none.
    """

    name: str
    nodes: tuple[SlurmNode, ...] = ()
    whole_nodes: bool | None = None
    of_one_user: bool | None = None
    closed: bool = False
    least_nodes: int = 0
    most_time_s: float | None = None
    most_cpus: int | None = None
    most_memory_mib: float | None = None
    most_memory_per_cpu_mib: float | None = None
    memory_per_gpu_mib: float | None = None
    accounts: frozenset[str] | None = None
    qos: frozenset[str] | None = None
    groups: frozenset[str] | None = None
    denied_accounts: frozenset[str] = frozenset()
    denied_qos: frozenset[str] = frozenset()

    @property
    def node(self) -> SlurmNode | None:
        """The smallest node: what holds for it holds for each. None: nodes are not recorded."""
        if not self.nodes:
            return None
        return SlurmNode(
            min(node.gpus for node in self.nodes),
            min(node.cpus for node in self.nodes),
            min(node.memory_mib for node in self.nodes),
        )

    @property
    def memory_mib(self) -> float:
        """The most host memory that a job gets on each of its nodes."""
        limit = self.most_memory_mib or math.inf
        if self.node is None:
            return limit
        of_cpus = (self.most_memory_per_cpu_mib or math.inf) * self.cpus
        return min(self.node.memory_mib, limit, of_cpus)

    @property
    def cpus(self) -> float:
        """The most CPUs that a job gets on each of its nodes."""
        of_node = math.inf if self.node is None else self.node.cpus
        return min(of_node, self.most_cpus or math.inf)


def read_partitions(file: str) -> dict[str, SlurmPartition]:
    """Return the partitions of a file by name; of those described twice the last.

    `file`: empty: there is none. Errors: InputError where it cannot be read or names no partition.
    """
    if not file:
        return {}
    partitions = parse_partitions(partitions_text(file))
    if not partitions:
        raise InputError(
            "names no partition",
            where=file,
            do="write `scontrol show partition` and `scontrol show node` to it",
        )
    return partitions


def gives_whole_nodes(
    slurm: SlurmOptions,
    recorded: Mapping[str, SlurmPartition],
    *,
    partition: str | None,
    qos: str | None = None,
) -> bool | None:
    """Return whether a job there has its nodes to itself; None: not known.

    Configured names of partitions and QOS count first, then what Slurm records of the partition. A
    job may name several partitions.

    >>> slurm = SlurmOptions(shared=("gpu_s*",), exclusive=("gpu*",))
    >>> [gives_whole_nodes(slurm, {}, partition=name) for name in ("gpu_s", "cpu,gpu", "cpu")]
    [False, True, None]
    """
    configured = _configured(slurm, partition, qos)
    if configured is not None:
        return configured
    described = recorded.get(partition or "")
    return None if described is None else described.whole_nodes


@lru_cache(maxsize=4096)
def _configured(slurm: SlurmOptions, partition: str | None, qos: str | None) -> bool | None:
    names = [name for written in (partition, qos) if written for name in written.split(",")]
    for patterns, answer in ((slurm.shared, False), (slurm.exclusive, True)):
        if any(fnmatchcase(name, pattern) for name in names for pattern in patterns):
            return answer
    return None


def partitions_text(file: str) -> str:
    """Return the text of a file of partitions. Errors: InputError where it cannot be read."""
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError as problem:
        raise InputError(f"cannot be read: {problem.strerror}", where=file) from None


def parse_partitions(written: str) -> dict[str, SlurmPartition]:
    """Return the partitions of one or several outputs, as text or JSON.

    >>> found = parse_partitions("PartitionName=gpu\\n   Nodes=n[1-2] OverSubscribe=EXCLUSIVE MaxTime=1:00:00")
    >>> found["gpu"].whole_nodes, found["gpu"].most_time_s, found["gpu"].most_cpus
    (True, 3600.0, None)
    """
    if written.lstrip().startswith("{"):
        records = list(_json_records(written))
    else:  # `scontrol` prints an empty line after each
        blocks = re.split(r"\n(?=PartitionName=|NodeName=)", "\n" + written)
        records = [dict(TEXT_FIELD.findall(block)) for block in blocks]
    nodes: dict[str, SlurmNode] = {}
    for record in records:
        if "NodeName" in record:
            nodes |= {name: _node(record) for name in _hosts(record["NodeName"])}
    return {
        record["PartitionName"]: _partition(record, nodes)
        for record in records
        if "PartitionName" in record
    }


def _json_records(written: str) -> Iterator[dict[str, str]]:
    """Documents, one after the other, with the fields named as in the text."""
    with suppress(InputError):
        for document, _ in timed_documents(written, ""):
            for key, fields in (("partitions", _JSON_PARTITION), ("nodes", NODE_FIELDS)):
                for row in json_objects(document, key):
                    yield _json_record(row, fields)


_JSON_PARTITION: Mapping[str, str] = {
    "PartitionName": "name",
    "Nodes": "nodes.configured",
    "MinNodes": "minimums.nodes",
    "MaxCPUsPerNode": "maximums.cpus_per_node",
    "MaxMemPerNode": "maximums.partition_memory_per_node",
    "MaxMemPerCPU": "maximums.partition_memory_per_cpu",
    "JobDefaults": "defaults.job",
    "AllowAccounts": "accounts.allowed",
    "DenyAccounts": "accounts.deny",
    "AllowQos": "qos.allowed",
    "DenyQos": "qos.deny",
    "AllowGroups": "groups.allowed",
    "State": "partition.state",
}
# as `scontrol` prints them; JSON has them as flags, or not at all
_JSON_FLAGS: Mapping[str, str] = {
    "EXCLUSIVE_USER": "ExclusiveUser",
    "ROOT_ONLY": "RootOnly",
    "REQ_RESV": "ReqResv",
}


def _json_record(row: Mapping[str, object], fields: Mapping[str, str]) -> dict[str, str]:
    record = {}
    for name, path in fields.items():
        value = json_value(row, *path.split("."))
        written = json_number(value) if isinstance(value, dict) else json_text(value)
        if written is not None:
            record[name] = str(written)
    if "PartitionName" in record:
        limit_s = json_limit_s(row, "maximums", "time")
        record["MaxTime"] = "UNLIMITED" if limit_s is None else f"{limit_s / 60:.0f}:00"
        shares = json_number(row, "maximums", "shares")
        if shares is not None:  # 0: none, the nodes are given whole
            record["OverSubscribe"] = "EXCLUSIVE" if shares == 0 else "NO"
        flags = json_value(row, "flags")
        if isinstance(flags, list):
            for flag, name in _JSON_FLAGS.items():
                record[name] = "YES" if flag in flags else "NO"
    return record


def _node(record: Mapping[str, str]) -> SlurmNode:
    try:
        count, _ = gpus(gres_counts(record.get("Gres", "").replace("(null)", "")))
    except BadRowError:
        count = None
    cpus, memory = (_count(record.get(name)) for name in ("CPUTot", "RealMemory"))
    return SlurmNode(count or 0, cpus or 0, float(memory or 0))


def _partition(record: Mapping[str, str], nodes: Mapping[str, SlurmNode]) -> SlurmPartition:
    oversubscribe, of_jobs = record.get("OverSubscribe"), record.get("JobDefaults", "")
    per_gpu = _OF_JOB.search(of_jobs)
    limit = slurm_duration_s(record.get("MaxTime", ""))
    hosts = _hosts(record.get("Nodes", ""))
    is_reserved = "YES" in (record.get("RootOnly"), record.get("ReqResv"))
    return SlurmPartition(
        record["PartitionName"],
        tuple(nodes[host] for host in hosts) if nodes.keys() >= set(hosts) else (),
        None if oversubscribe is None else oversubscribe.startswith("EXCLUSIVE"),
        None if "ExclusiveUser" not in record else record["ExclusiveUser"] == "YES",
        # State is UP, DOWN, DRAIN or INACTIVE
        is_reserved or record.get("State", "UP") != "UP",
        _count(record.get("MinNodes")) or 0,
        limit,
        _count(record.get("MaxCPUsPerNode")),
        _count(record.get("MaxMemPerNode")),
        _count(record.get("MaxMemPerCPU")),
        float(per_gpu[1]) if per_gpu else None,
        _allowed(record.get("AllowAccounts")),
        _allowed(record.get("AllowQos")),
        _allowed(record.get("AllowGroups")),
        _listed(record.get("DenyAccounts")),
        _listed(record.get("DenyQos")),
    )


def _hosts(written: str) -> tuple[str, ...]:
    try:
        return expand_nodes(written.replace("(null)", ""))
    except BadRowError:
        return ()


def _count(written: str | None) -> int | None:
    return int(written) if written and written.isascii() and written.isdigit() else None


def _listed(written: str | None) -> frozenset[str]:
    return frozenset(_NAMES.findall((written or "").replace("(null)", "")))


def _allowed(written: str | None) -> frozenset[str] | None:
    names = _listed(written)
    return None if not names or "ALL" in {name.upper() for name in names} else names
