"""What a smaller request frees for others, by what the job's partition gives: whole nodes or GPUs.

The one place that decides it, for the next request of a job, for advice and for recoverable hours.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from tachograph.catalog.config import SlurmOptions
from tachograph.catalog.units import plural
from tachograph.judge.bounds import (
    GIB,
    WORTH,
    HostMemory,
    PastRuns,
    needed_memory_mib,
    time_bounds_s,
)
from tachograph.sources.slurm.partitions import SlurmNode, SlurmPartition, gives_whole_nodes

NODES = "slurm.partitions_file"  # whether Slurm's record describes a job's nodes
# of job_summaries, which decide what a request gives and where else it fits
REQUEST_COLUMNS = (
    "cluster",
    "user",
    "account",
    "partition",
    "qos",
    "exclusive",
    "nodes",
    "gpus",
    "cpus",
    "cpu_efficiency",
    "gpu_model",
    "elapsed_s",
    "timelimit_s",
    "mem_requested_mib",
)
_CPU_MARGIN = 1.0  # of busy CPUs, on top of them: means over the run hide peaks


@dataclass(frozen=True, slots=True)
class PartitionUse:
    """Who ran in a partition, on which models, and the most that a job had there.

    gpus, cpus, memory_mib: of a node; time_s: limit or run time.
    """

    users: Collection[str]
    models: Collection[str]
    gpus: float = 0.0
    cpus: float = math.inf
    memory_mib: float = 0.0
    time_s: float = 0.0


def uses_of(jobs: pl.DataFrame) -> dict[tuple[str | None, str], PartitionUse]:
    """Return the use of each (cluster, partition) by its jobs: REQUEST_COLUMNS."""
    of_node = [
        (pl.col(name) / pl.col("nodes")).max().fill_null(0.0)
        for name in ("gpus", "cpus", "mem_requested_mib")
    ]
    grouped = jobs.group_by("cluster", "partition").agg(
        pl.col("user").drop_nulls().unique(),
        pl.col("gpu_model").drop_nulls().unique(),
        *of_node,
        pl.max_horizontal("timelimit_s", "elapsed_s").max().fill_null(0.0),
    )
    return {
        (cluster, name): PartitionUse(*facts)
        for cluster, name, *facts in grouped.iter_rows()
        if name
    }


@dataclass(frozen=True, slots=True)
class JobNeeds:
    """What a job needed. gpus: None: not known; runs_s: run times of jobs alike, see next_time."""

    gpus: int | None = None
    runs_s: Sequence[float] = ()
    memory: HostMemory = field(default_factory=HostMemory)

    def beside(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a job's row with its needs, as SitePartitions takes it."""
        return next(rows_with_needs([row], [self]))


def rows_with_needs(
    rows: Sequence[Mapping[str, Any]], needs: Sequence[JobNeeds]
) -> Iterator[dict[str, Any]]:
    """Yield the row of each job with its needs, as SitePartitions takes it."""
    needed_mib = needed_memory_mib([job.memory for job in needs])
    needed_s = _needed_times_s(rows, needs)
    for row, job, memory_mib, time_s in zip(rows, needs, needed_mib, needed_s, strict=True):
        requested_mib = row.get("mem_requested_mib")
        sufficed = row.get("state") in (None, "COMPLETED") and not job.memory.killed
        if memory_mib and requested_mib and sufficed:
            memory_mib = min(memory_mib, requested_mib / (row.get("nodes") or 1))
        yield {
            **row,
            "gpus_needed": job.gpus,
            "memory_needed_mib": memory_mib,
            "time_needed_s": time_s,
        }


def _needed_times_s(
    rows: Sequence[Mapping[str, Any]], needs: Sequence[JobNeeds]
) -> list[float | None]:
    """Return a time limit for each job, by the runs alike and by itself; None: no run is known.

    Jobs alike share one list of runs, which is read once.
    """
    samples = {id(job.runs_s): job.runs_s for job in needs}
    numbers = {key: number for number, key in enumerate(samples)}
    sample = np.array([numbers[id(job.runs_s)] for job in needs], np.int64)
    elapsed_s = np.array([row.get("elapsed_s") or 0.0 for row in rows], np.float64)
    runs_s = PastRuns.of(list(samples.values())).with_further(sample, elapsed_s)
    bounds_s = time_bounds_s(runs_s).tolist()
    return [bound if job.runs_s else None for bound, job in zip(bounds_s, needs, strict=True)]


@dataclass(frozen=True, slots=True)
class Freed:
    """A change of the request. options: for sbatch; gpus: that the job would hold.

    freed: GPUs that it holds now and others could have; nodes: whole nodes among them.
    of_one_user: only for other jobs of the same user; None: not recorded. memory_mib (of its node),
    time_s: to request with it; None: as now. options are empty where the script has no place for
    the number of GPUs.
    """

    options: tuple[str, ...]
    gpus: int
    freed: int
    nodes: int = 0
    of_one_user: bool | None = False
    partition: str | None = None
    memory_mib: float | None = None
    time_s: float | None = None

    @property
    def gain(self) -> str:
        """What others gain."""
        nodes = f" ({plural(self.nodes, 'node')})" if self.nodes else ""
        whom = {True: "your other jobs", False: "others", None: "other jobs"}[self.of_one_user]
        return f"frees {plural(self.freed, 'GPU')}{nodes} for {whom}"


@dataclass(frozen=True, slots=True)
class SitePartitions:
    """The partitions of a site: configured patterns, those recorded by Slurm, and their use.

    cluster: that the record describes; empty: the only one there is. A job is given by
    REQUEST_COLUMNS, with `gpus_needed`, `memory_needed_mib` of a node and `time_needed_s` as they
    were measured, margins included (missing or null: not known); a script by the same, with its
    `gpu_option` and `memory_option`.
    """

    slurm: SlurmOptions = field(default_factory=SlurmOptions)
    recorded: Mapping[str, SlurmPartition] = field(default_factory=dict)
    use: Mapping[tuple[str | None, str], PartitionUse] = field(default_factory=dict)
    cluster: str = ""

    def whole_nodes(self, job: Mapping[str, Any]) -> bool | None:
        """Return whether a job's nodes are its own; None: not known.

        >>> site = SitePartitions(SlurmOptions(exclusive=("gpu*",)))
        >>> site.whole_nodes({"partition": "gpu_a"}), site.whole_nodes({"partition": "cpu"})
        (True, None)
        """
        return True if job.get("exclusive") else self._gives_whole_nodes(job, job.get("partition"))

    def requests_exclusive(self, job: Mapping[str, Any]) -> bool:
        """Return whether it is the job that asks for whole nodes, not its partition.

        Of a script it is known, the record of a job does not tell its option from its partition.
        """
        if "requests_exclusive" in job:
            return bool(job["requests_exclusive"])
        given = self._gives_whole_nodes(job, job.get("partition"))
        return bool(job.get("exclusive")) and given is not True

    def _gives_whole_nodes(self, job: Mapping[str, Any], partition: str | None) -> bool | None:
        """Whether a partition of the job's cluster gives it whole nodes."""
        recorded = self.recorded if self._describes(job) else {}
        return gives_whole_nodes(self.slurm, recorded, partition=partition, qos=job.get("qos"))

    def _describes(self, job: Mapping[str, Any]) -> bool:
        return not self.cluster or job.get("cluster") in (None, self.cluster)

    def of(self, job: Mapping[str, Any]) -> SlurmPartition | None:
        """Return what Slurm records of the job's partition."""
        return self.recorded.get(job.get("partition") or "") if self._describes(job) else None

    def most_memory_mib(self, job: Mapping[str, Any]) -> float:
        """Return the most host memory that a job gets on each node of its partition."""
        known = self.of(job)
        return math.inf if known is None else known.memory_mib

    def most_time_s(self, job: Mapping[str, Any]) -> float:
        """Return the longest time limit that its partition allows; infinite: unknown."""
        known = self.of(job)
        return math.inf if known is None else known.most_time_s or math.inf

    def freed(self, job: Mapping[str, Any]) -> Freed | None:
        """Return the change that frees most GPUs of a job; None: none does, or its need is unknown.

        With as many GPUs a node as the job has, fewer nodes hold its work whatever the partition
        gives; fewer GPUs of a node help only where GPUs are given singly.
        """
        used = job.get("gpus_needed")
        kept = None if used is None else self._kept(job, used)
        if used is None or kept is None:
            return None
        memory_mib = self._merged_memory(job, kept)
        changes = list(self._single_gpus(job, used, kept, memory_mib))
        if kept < job["nodes"]:
            left = job["gpus"] * kept // job["nodes"]
            fewer = Freed(
                _options(job, left, kept),
                left,
                job["gpus"] - left,
                job["nodes"] - kept,
                memory_mib=memory_mib,
            )
            changes.insert(0, fewer)
        changes += self._other_partitions(job, used)
        return max(changes, key=lambda change: change.freed, default=None)

    def _kept(self, job: Mapping[str, Any], used: int) -> int | None:
        """Nodes that hold the GPUs at work, and the CPUs and memory of all tasks."""
        gpus: int | None = job.get("gpus")
        nodes: int | None = job.get("nodes")
        known = self.of(job)
        if not gpus or not nodes or gpus % nodes or not 0 < used < gpus:
            return None
        least = known.least_nodes if known else 0
        # 0 MiB or CPUs of a node: not recorded
        most_mib = (known.memory_mib if known else 0.0) or math.inf
        most_cpus = (known.cpus if known else 0.0) or math.inf
        needed_mib = job.get("memory_needed_mib") or 0.0
        requested_mib = (job.get("mem_requested_mib") or 0.0) / nodes
        if math.isinf(most_mib):
            most_mib = requested_mib or math.inf  # a node has that much at least
        else:
            needed_mib = needed_mib or requested_mib
        kept = max(1, least, math.ceil(used * nodes / gpus))
        while kept < nodes and (
            needed_mib * nodes / kept > most_mib or _cpus_needed(job) / kept > most_cpus
        ):
            kept += 1
        return kept

    def _merged_memory(self, job: Mapping[str, Any], kept: int) -> float | None:
        """Return host memory of a node to request with fewer nodes; None: as now.

        The tasks of the others are put beside those that are there.
        """
        nodes, requested_mib = job["nodes"], job.get("mem_requested_mib")
        if kept == nodes or requested_mib is None:
            return None
        needed_mib: float | None = job.get("memory_needed_mib")
        if needed_mib is None:
            if math.isinf(self.most_memory_mib(job)):  # whether a node has more is not known
                return None
            needed_mib = requested_mib / nodes
        merged_mib = needed_mib * nodes / kept
        return merged_mib if merged_mib > requested_mib / nodes else None

    def _single_gpus(
        self, job: Mapping[str, Any], used: int, kept: int, merged_mib: float | None
    ) -> Iterator[Freed]:
        """Yield fewer GPUs of a node. CPUs and memory that the job keeps, others do not get.

        merged_mib: of a node, where the job's tasks are put on fewer.
        """
        known = self.of(job)
        if self.whole_nodes(job) is not False:
            return
        gpus = math.ceil(used / kept) * kept if _of_node(job) else used
        memory_mib = merged_mib or self._memory_to_request(job, gpus)
        held_mib = (memory_mib or 0.0) * kept or job.get("mem_requested_mib") or 0.0
        node = None if known is None else known.node
        freed = job["gpus"] - _not_usable(node, gpus, job.get("cpus") or 0, held_mib)
        if freed > 0:
            one_user = False if known is None else known.of_one_user
            options = _options(job, gpus, kept)
            yield Freed(options, gpus, freed, 0, one_user, memory_mib=memory_mib)

    def _memory_to_request(self, job: Mapping[str, Any], gpus: int) -> float | None:
        """Return host memory to request with fewer GPUs of a node; None: as now.

        Less where less is needed. Where it is given per GPU, fewer GPUs are given less.
        """
        if job["nodes"] != 1:  # how many tasks a node will have is not known
            return None
        known, requested = self.of(job), job.get("mem_requested_mib")
        of_gpu = None if known is None else known.memory_per_gpu_mib
        default_mib = math.inf if of_gpu is None else of_gpu * gpus
        needed_mib: float | None = job.get("memory_needed_mib") or requested
        if needed_mib is None or needed_mib > self.most_memory_mib(job):
            return None
        smaller = requested is not None and needed_mib <= WORTH * requested
        return needed_mib if smaller or needed_mib > default_mib else None

    def _other_partitions(self, job: Mapping[str, Any], used: int) -> Iterator[Freed]:
        """Yield moves from whole nodes to partitions in which the user has run jobs, or may."""
        if self.whole_nodes(job) is not True or self.requests_exclusive(job):
            return
        partitions = {name for cluster, name in self.use if cluster == job.get("cluster")}
        for name in sorted(partitions - {job.get("partition") or ""}):
            if self._gives_whole_nodes(job, name) is False:
                target = {**job, "partition": name, "exclusive": None}
                limits = self._limits(target)
                if limits is not None:
                    yield from self._moved(target, used, limits)

    def _limits(self, target: Mapping[str, Any]) -> PartitionUse | None:
        """Return what a job gets in a partition at most; None: its user may not use it.

        Where no nodes are recorded, what has run there fits.
        """
        use = self.use[(target.get("cluster"), target["partition"])]
        known = self.of(target)
        if target.get("gpu_model") not in use.models:
            return None
        ran_there = target.get("user") in use.users
        if known is None:
            return use if ran_there else None
        if not _allows(known, target, ran_there=ran_there):
            return None
        if known.node is None:
            time_s = known.most_time_s or use.time_s
            return replace(use, time_s=time_s) if ran_there else None
        return replace(
            use,
            gpus=known.node.gpus,
            cpus=known.cpus,
            memory_mib=known.memory_mib,
            time_s=known.most_time_s or math.inf,
        )

    def _moved(self, target: Mapping[str, Any], used: int, limits: PartitionUse) -> Iterator[Freed]:
        """Yield the move to one node of a partition within its limits.

        On a whole node a job has all CPUs and often all memory, so there counts what it needs.
        Tasks of several nodes are put together.
        """
        nodes = min(target["nodes"], used)
        requested_mib = target.get("mem_requested_mib")
        memory_mib = target.get("memory_needed_mib")
        if memory_mib is None and requested_mib is not None:
            memory_mib = requested_mib / target["nodes"]
        limit_s, time_s = target.get("timelimit_s"), target.get("time_needed_s")
        if limit_s is not None and limit_s <= limits.time_s:
            time_s = None  # the limit stays
        elif time_s is None or time_s > limits.time_s:
            return
        cpus = _cpus_needed(target)
        if memory_mib is None or memory_mib * nodes > limits.memory_mib:
            return
        if used > limits.gpus or cpus > limits.cpus:
            return
        known, memory_mib = self.of(target), memory_mib * nodes
        node = None if known is None else known.node
        freed = target["gpus"] - _not_usable(node, used, cpus, memory_mib)
        if freed > 0:
            name = target["partition"]
            options = _options(target, used, 1)
            options = (f"--partition={name}", "--nodes=1", *options[-1:]) if options else ()
            yield Freed(options, used, freed, partition=name, memory_mib=memory_mib, time_s=time_s)


def _of_node(job: Mapping[str, Any]) -> bool:
    """Whether the script requests GPUs per node."""
    return not str(job.get("gpu_option", "--gpus={}")).startswith("--gpus=")


def _options(job: Mapping[str, Any], gpus: int, nodes: int) -> tuple[str, ...]:
    """Options for GPUs on nodes, as the script requests them; none where it has no place for them.

    The number of nodes only where it changes: with all GPUs, fewer nodes would get more each.
    """
    option: str = job.get("gpu_option", "--gpus={}")
    if not option:
        return ()
    fewer = (f"--nodes={nodes}",) if nodes < job["nodes"] else ()
    return (*fewer, option.format(gpus // nodes if _of_node(job) else gpus))


def memory_option(job: Mapping[str, Any], mib: float, gpus: int) -> str | None:
    """Return the option for host memory of a node, as the script requests it; None: has no place.

    >>> memory_option({}, 30 * GIB, 1), memory_option({"memory_option": "mem-per-gpu"}, 3000.0, 2)
    ('--mem=30G', '--mem-per-gpu=1500M')
    """
    name = job.get("memory_option", "mem")
    if name == "mem":
        # not rounded up to more than a partition allows
        return f"--mem={math.ceil(mib)}M" if mib % GIB else f"--mem={mib / GIB:.0f}G"
    units = gpus if name == "mem-per-gpu" else job.get("cpus")
    return f"--{name}={math.ceil(mib * (job.get('nodes') or 1) / units)}M" if units else None


def _cpus_needed(job: Mapping[str, Any]) -> float:
    """CPUs that a job needs; where their use is not known, all that it had."""
    held, efficiency = job.get("cpus") or 0, job.get("cpu_efficiency")
    if efficiency is None:
        return float(held)
    return float(min(held, math.ceil(efficiency * held * (1 + _CPU_MARGIN))))


def _not_usable(node: SlurmNode | None, gpus: int, cpus: float, memory_mib: float) -> int:
    """Return the GPUs of a node that others do not get: the job's, or without CPUs or memory.

    To each GPU belongs its share of the node. Where nodes are not recorded, only those of the job.
    """
    if node is None:
        return gpus
    parts = [0.0]
    if node.cpus:
        parts.append(cpus / node.cpus)
    if node.memory_mib:
        parts.append(memory_mib / node.memory_mib)
    return max(gpus, math.ceil(max(parts) * node.gpus - 1e-9))


def _allows(partition: SlurmPartition, job: Mapping[str, Any], *, ran_there: bool) -> bool:
    """Whether its limits let the job in; who ran there is in one of its groups."""
    open_to_all = partition.groups is None and partition.of_one_user is False
    return (
        not partition.of_one_user
        and not partition.closed
        and partition.least_nodes <= 1
        and (open_to_all or ran_there)
        and _is_allowed(job.get("account"), partition.accounts, partition.denied_accounts)
        and _is_allowed(job.get("qos"), partition.qos, partition.denied_qos)
    )


def _is_allowed(name: str | None, allowed: Collection[str] | None, denied: Collection[str]) -> bool:
    """Whether a name passes both lists: Slurm ignores those denied where some are allowed."""
    return name not in denied if allowed is None else name in allowed


NOT_RECORDED = SitePartitions()  # no partition of the site is known


def with_nodes(
    jobs: pl.DataFrame, recorded: Mapping[str, SlurmPartition], *, cluster: str = ""
) -> pl.DataFrame:
    """Return job_summaries with what each node of a job has, and a mark: null where not recorded.

    Partitions whose nodes differ are left out. `cluster`: that these are of; empty: the only one
    there is.
    """
    rows = [
        (name, True, node.gpus, node.cpus, node.memory_mib)
        for name, known in recorded.items()
        if (node := known.node) is not None and len({*known.nodes}) == 1
    ]
    schema = {"partition": pl.String, NODES: pl.Boolean}
    schema |= dict.fromkeys(("node_gpus", "node_cpus", "node_memory_mib"), pl.Float64)
    nodes = pl.DataFrame(rows, schema, orient="row")
    joined = jobs.join(nodes, on="partition", how="left", maintain_order="left")
    if not cluster:
        return joined
    # another cluster may have a partition of the same name
    described = pl.col("cluster").is_null() | (pl.col("cluster") == cluster)
    return joined.with_columns(pl.when(described).then(pl.col(*nodes.columns[1:])))


def freed_share(job: Mapping[str, Any], site: SitePartitions) -> float:
    """Return the share of a job's never used GPUs that a change of its request frees for others.

    `job`: as in SitePartitions, with its gpu_hours, gpu_hours_unmeasured, gpu_hours_never_used.
    """
    never_h = job.get("gpu_hours_never_used") or 0.0
    measured_h = (job.get("gpu_hours") or 0.0) - (job.get("gpu_hours_unmeasured") or 0.0)
    if job.get("gpus_needed") == 0:
        return 1.0  # it needs none: its nodes are free
    change = site.freed(job)
    if change is None or measured_h <= 0:
        return 0.0
    # never used throughout, so this is a number of GPUs, but for minutes measured in part
    unused = max(1, round(job["gpus"] * never_h / measured_h))
    return float(min(1.0, change.freed / unused))
