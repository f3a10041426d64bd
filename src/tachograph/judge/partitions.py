"""What a smaller request frees for others, by what the job's partition gives: whole nodes or GPUs.

The one place that decides it, for the next request of a job, for advice and for recoverable hours.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import polars as pl

from tachograph.catalog.config import SlurmOptions
from tachograph.catalog.units import plural
from tachograph.sources.slurm.partitions import SlurmPartition, read_partitions

NODES = "slurm.partitions_file"  # whether Slurm's record describes a job's nodes
# of job_summaries, which decide what a request gives and where else it fits
REQUEST_COLUMNS = (
    *("user", "account", "partition", "qos", "exclusive", "nodes", "gpus", "cpus"),
    *("gpu_model", "elapsed_s", "timelimit_s", "mem_requested_mib"),
)


@dataclass(frozen=True, slots=True)
class PartitionUse:
    """Who ran in a partition, on which models, and the most that a job had there.

    gpus, memory_mib: of a node; time_s: limit or run time.
    """

    users: Collection[str]
    models: Collection[str]
    gpus: float = 0.0
    memory_mib: float = 0.0
    time_s: float = 0.0


def uses_of(jobs: pl.DataFrame) -> dict[str, PartitionUse]:
    """Return the use of each partition by its jobs: REQUEST_COLUMNS."""
    grouped = jobs.group_by("partition").agg(
        pl.col("user").unique(),
        pl.col("gpu_model").unique(),
        (pl.col("gpus") / pl.col("nodes")).max().fill_null(0.0),
        (pl.col("mem_requested_mib") / pl.col("nodes")).max().fill_null(0.0),
        pl.max_horizontal("timelimit_s", "elapsed_s").max().fill_null(0.0),
    )
    return {name: PartitionUse(*facts) for name, *facts in grouped.iter_rows() if name}


@dataclass(frozen=True, slots=True)
class Freed:
    """A change of the request. options: for sbatch; gpus: that the job would hold.

    freed: GPUs that it holds now and others could have; nodes: whole nodes among them.
    of_one_user: only for other jobs of the same user.
    """

    options: tuple[str, ...]
    gpus: int
    freed: int
    nodes: int = 0
    of_one_user: bool = False
    partition: str | None = None

    @property
    def gain(self) -> str:
        """What others gain."""
        nodes = f" ({plural(self.nodes, 'node')})" if self.nodes else ""
        whom = "your other jobs" if self.of_one_user else "others"
        return f"frees {plural(self.freed, 'GPU')}{nodes} for {whom}"


@dataclass(frozen=True, slots=True)
class SitePartitions:
    """The partitions of a site: configured patterns, those recorded by Slurm, and their use."""

    slurm: SlurmOptions = field(default_factory=SlurmOptions)
    recorded: Mapping[str, SlurmPartition] = field(default_factory=dict)
    use: Mapping[str, PartitionUse] = field(default_factory=dict)

    def whole_nodes(self, job: Mapping[str, Any]) -> bool | None:
        """Return whether a job's nodes are its own; None: not known.

        Its own request or accounting counts first, then configured names of partitions and QOS,
        then what Slurm records of the partition.

        >>> site = SitePartitions(SlurmOptions(exclusive=("gpu*",)))
        >>> site.whole_nodes({"partition": "gpu_a"}), site.whole_nodes({"partition": "cpu"})
        (True, None)
        """
        if job.get("exclusive"):
            return True
        names = [job[name] for name in ("partition", "qos") if job.get(name)]
        for patterns, answer in ((self.slurm.shared, False), (self.slurm.exclusive, True)):
            if any(fnmatchcase(name, pattern) for name in names for pattern in patterns):
                return answer
        known = self.of(job)
        return None if known is None else known.whole_nodes

    def of(self, job: Mapping[str, Any]) -> SlurmPartition | None:
        """Return what Slurm records of the job's partition."""
        return self.recorded.get(job.get("partition") or "")

    def most_memory_mib(self, job: Mapping[str, Any]) -> float:
        """Return the most host memory that a job gets on each node of its partition."""
        known = self.of(job)
        return math.inf if known is None else known.memory_mib

    def most_time_s(self, job: Mapping[str, Any]) -> float:
        """Return the longest time limit that its partition allows; infinite: unknown."""
        known = self.of(job)
        return math.inf if known is None else known.most_time_s or math.inf

    def default_memory_mib(self, partition: str | None, gpus: int) -> float:
        """Return the host memory that a job with GPUs gets if it requests none; infinite: unknown.

        Where it is given per GPU, a request for fewer GPUs is one for less memory.
        """
        known = self.recorded.get(partition or "")
        of_gpu = None if known is None else known.memory_per_gpu_mib
        return math.inf if of_gpu is None else of_gpu * gpus

    def freed(self, job: Mapping[str, Any], used: int) -> Freed | None:
        """Return the change that frees most GPUs of a job of which `used` worked; None: none does.

        `job`: REQUEST_COLUMNS. With as many GPUs a node as the job has, fewer nodes hold its work
        whatever the partition gives; fewer GPUs of a node help only where GPUs are given singly.
        """
        changes = [*self._fewer_nodes(job, used), *self._single_gpus(job, used)]
        changes += self._other_partitions(job, used)
        return max(changes, key=lambda change: change.freed, default=None)

    def _fewer_nodes(self, job: Mapping[str, Any], used: int) -> Iterator[Freed]:
        kept = self._kept(job, used)
        if kept is not None and kept < job["nodes"]:
            left = job["gpus"] * kept // job["nodes"]
            freed = job["gpus"] - left
            yield Freed((f"--nodes={kept}",), left, freed, job["nodes"] - kept)

    def _single_gpus(self, job: Mapping[str, Any], used: int) -> Iterator[Freed]:
        kept, known = self._kept(job, used), self.of(job)
        if kept is None or used >= job["gpus"] or self.whole_nodes(job) is not False:
            return
        fewer = (f"--nodes={kept}",) if kept < job["nodes"] else ()
        one_user = known is not None and known.of_one_user
        options = (*fewer, f"--gpus={used}")
        yield Freed(options, used, job["gpus"] - used, 0, of_one_user=one_user)

    def _kept(self, job: Mapping[str, Any], used: int) -> int | None:
        """Nodes that hold the GPUs at work."""
        gpus: int | None = job.get("gpus")
        nodes: int | None = job.get("nodes")
        known = self.of(job)
        if not gpus or not nodes or gpus % nodes or not 0 < used <= gpus:
            return None
        least = known.least_nodes if known else 0
        return max(1, least, math.ceil(used * nodes / gpus))

    def _other_partitions(self, job: Mapping[str, Any], used: int) -> Iterator[Freed]:
        """Yield moves from whole nodes to a partition in which the user has run jobs, or may."""
        if self.whole_nodes(job) is not True or self._kept(job, used) is None:
            return
        for name in sorted({*self.recorded, *self.use} - {job.get("partition") or ""}):
            other = {**job, "partition": name, "exclusive": None}
            if self.whole_nodes(other) is False and self._fits(other, used):
                options = (f"--partition={name}", "--nodes=1", f"--gpus={used}")
                yield Freed(options, used, job["gpus"] - used, partition=name)

    def _fits(self, job: Mapping[str, Any], used: int) -> bool:
        """Whether a job on `used` GPUs of one node fits a partition, and its user may use it.

        Where no limits are recorded, what has run there fits.
        """
        use, known = self.use.get(job["partition"]), self.of(job)
        if use is None or job.get("gpu_model") not in use.models:
            return False
        ran_there = job.get("user") in use.users
        node = None if known is None else known.node
        if known is None or node is None:
            may, most_gpus, most_s, most_mib = ran_there, use.gpus, use.time_s, use.memory_mib
            most_cpus = math.inf
        else:
            may = _allows(known, job, ran_there=ran_there)
            most_gpus, most_mib = node.gpus, known.memory_mib
            most_s, most_cpus = known.most_time_s or math.inf, known.most_cpus or math.inf
        time_s = job.get("timelimit_s") or job.get("elapsed_s") or math.inf
        memory_mib = (job.get("mem_requested_mib") or 0.0) / job["nodes"]
        cpus = (job.get("cpus") or 0) * used / job["gpus"]
        return (
            may
            and used <= most_gpus
            and time_s <= most_s
            and memory_mib <= most_mib
            and cpus <= most_cpus
        )


def _allows(partition: SlurmPartition, job: Mapping[str, Any], *, ran_there: bool) -> bool:
    """Whether its limits let the job in; who ran there is in one of its groups."""
    return (
        not partition.of_one_user
        and partition.least_nodes <= 1
        and (partition.groups is None or ran_there)
        and (partition.accounts is None or job.get("account") in partition.accounts)
        and (partition.qos is None or job.get("qos") in partition.qos)
        and partition.denied.isdisjoint({job.get("account"), job.get("qos")})
    )


NOT_RECORDED = SitePartitions()  # no partition of the site is known


def with_nodes(jobs: pl.DataFrame, slurm: SlurmOptions) -> pl.DataFrame:
    """Return job_summaries with what each node of a job has, and a mark where that is recorded.

    Null where the file of partitions does not describe the job's, or its nodes differ. Errors:
    InputError where the file cannot be read.
    """
    recorded = read_partitions(slurm.partitions_file) if slurm.partitions_file else {}
    alike = {name: known.node for name, known in recorded.items() if len({*known.nodes}) == 1}
    schema = {"partition": pl.String, NODES: pl.Boolean}
    schema |= dict.fromkeys(("node_gpus", "node_cpus", "node_memory_mib"), pl.Float64)
    rows = [
        (name, True, node.gpus, node.cpus, node.memory_mib)
        for name, node in alike.items()
        if node is not None
    ]
    frame = pl.DataFrame(rows, schema, orient="row")
    return jobs.join(frame, on="partition", how="left", maintain_order="left")


def recoverable_share(jobs: pl.DataFrame, site: SitePartitions) -> pl.Series:
    """Return per job the share of its never used GPUs that a smaller request frees for others.

    `jobs`: REQUEST_COLUMNS, gpu_hours, gpu_hours_unmeasured, gpu_hours_never_used.
    """
    never, measured = pl.col("gpu_hours_never_used"), pl.col("gpu_hours")
    measured -= pl.col("gpu_hours_unmeasured").fill_null(0.0)
    # never used throughout, so the ratio is a number of GPUs, but for minutes measured in part
    ratio = pl.col("gpus") * never / pl.when(measured > 0).then(measured)
    unused = pl.when(never > 0).then(ratio.round().clip(1, pl.col("gpus")))
    counted = jobs.with_row_index("index").with_columns(unused=unused.fill_null(0.0).cast(pl.Int64))
    shares = [0.0] * jobs.height
    for row in counted.filter(pl.col("unused") > 0).iter_rows(named=True):
        used = row["gpus"] - row["unused"]
        # a job of which no GPU worked needs none: its nodes are free
        freed = row["unused"] if used <= 0 else 0
        change = site.freed(row, used)
        if change is not None:
            freed = change.freed
        shares[row["index"]] = min(1.0, freed / row["unused"])
    return pl.Series("share", shares, dtype=pl.Float64)
