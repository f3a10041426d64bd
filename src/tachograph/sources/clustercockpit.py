"""Source `clustercockpit`: a job archive of ClusterCockpit, read as a whole.

A job is a folder `CLUSTER/ID div 1000/ID mod 1000/START` with `meta.json` and `data.json`, which may
be packed. Series of scope `accelerator` become samples in the middle of each time step. Source:
cc-backend, pkg/archive (layout); cc-lib, schema (documents).
"""

from __future__ import annotations

import argparse
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import msgspec
import polars as pl

from tachograph.catalog.chunks import Chunk, ChunkPart, Reject
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import InputError
from tachograph.catalog.tables import ALLOCATIONS, DEVICES, JOBS, TIME
from tachograph.catalog.units import EPOCH
from tachograph.sources.files import filled_columns, read_unpacked
from tachograph.sources.gpu_indices import NO_GPU, pci_key
from tachograph.sources.metrics import short_node

NAME = "clustercockpit"
SUFFIXES: tuple[str, ...] = ()  # a folder is read as a whole
CHUNK_ROWS = 500_000
CLUSTER_FILE = "cluster.json"
# final states of the schema; the accounting's are the same in capitals
STATES = frozenset(
    {
        *("boot_fail", "cancelled", "completed", "deadline", "failed", "node_fail"),
        *("out_of_memory", "preempted", "timeout"),
    }
)
PREFIXES: Mapping[str, float] = MappingProxyType(
    {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
)


@dataclass(frozen=True, slots=True)
class ArchiveMetric:
    """A metric of ClusterCockpit, its counter, and its unit there.

    factor: what a unit of the counter is in units of the archive. footprint: the statistic of it
    that describes a job, if one does.
    """

    name: str
    counter: str
    factor: float
    base: str = ""
    prefix: str = ""
    footprint: str = ""
    scope: str = "accelerator"

    @property
    def unit(self) -> dict[str, str]:
        """The unit as the schema writes it; of a ratio it is empty."""
        return {"base": self.base, "prefix": self.prefix} if self.prefix else {"base": self.base}


METRICS: tuple[ArchiveMetric, ...] = (
    # Percent, as NVML reports it.
    ArchiveMetric("acc_utilization", "gpu_util", 100, footprint="avg"),
    # MiB, though the unit says MB: cc-metric-collector divides the bytes by 1024 * 1024 and calls
    # that MByte (nvidiaMetric.go, readMemoryInfo).
    ArchiveMetric("acc_mem_used", "hbm_used_mib", 1, "B", "M", footprint="max"),
    ArchiveMetric("acc_power", "power_w", 1, "W", footprint="avg"),
    ArchiveMetric("nv_mem_util", "mem_copy_util", 100),
    ArchiveMetric("acc_sm_active", "sm_active", 100),
    ArchiveMetric("acc_dram_active", "dram_active", 100),
    ArchiveMetric("acc_fp64_active", "fp64_active", 100),
    ArchiveMetric("acc_fp32_active", "fp32_active", 100),
    ArchiveMetric("acc_fp16_active", "fp16_active", 100),
    ArchiveMetric("acc_tensor_active", "tensor_active", 100),
    ArchiveMetric("nv_temp", "gpu_temp_c", 1, "°C"),
    ArchiveMetric("nv_sm_clock", "sm_clock_mhz", 1, "Hz", "M"),
)
# The collector's names where a site keeps them, and the name to which sites change another one.
_OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "nv_util": "acc_utilization",
        "nv_fb_mem_used": "acc_mem_used",
        "nv_power_usage": "acc_power",
        "acc_mem_util": "nv_mem_util",
    }
)
_BY_NAME = {metric.name: metric for metric in METRICS}
_INDEX = re.compile(r"(\d{1,4})(?::(\d{1,4}))?", re.ASCII)  # as `export clustercockpit` writes it
# A byte of another encoding in a text that is read is an error of its own in msgspec.
_NO_JSON = (msgspec.MsgspecError, UnicodeDecodeError)

# {(subcluster, address): (index, model)}; None: jobs whose subcluster does not list the address
KnownAccelerators = Mapping[tuple[str | None, str], tuple[int, str | None]]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
_Seconds = Annotated[int, msgspec.Meta(ge=0, le=1 << 33)]


class ArchivedNode(msgspec.Struct):
    """A node of a job with the ids of its accelerators."""

    hostname: str
    accelerators: list[str] | None = None


class ArchivedJob(msgspec.Struct, rename="camel"):
    """What is read of `meta.json`. `exclusive`: archives before `shared`; 0 is what Go leaves out."""

    job_id: _Count
    cluster: str
    start_time: Annotated[int, msgspec.Meta(ge=1, le=1 << 33)]
    duration: _Seconds
    resources: list[ArchivedNode]
    job_state: str = ""
    user: str = ""
    project: str = ""
    partition: str = ""
    sub_cluster: str = ""
    array_job_id: _Count = 0
    num_acc: _Count = 0
    walltime: _Seconds = 0
    submit_time: _Seconds = 0
    shared: str = ""
    exclusive: int | None = None
    meta_data: dict[str, str] | None = None

    @property
    def start(self) -> datetime:
        """Start of the job."""
        return _moment(self.start_time)

    @property
    def end(self) -> datetime:
        """End of the job, exclusive."""
        return _moment(self.start_time + self.duration)

    def row(self) -> dict[str, Any]:
        """Return the row of `jobs`."""
        exclusive = self.shared == "none" if self.shared else None
        if not self.shared and self.exclusive is not None:
            exclusive = self.exclusive == 1
        is_over = self.job_state in STATES
        return {
            "cluster": self.cluster,
            "job_id": str(self.job_id),
            "array_job_id": str(self.array_job_id) if self.array_job_id else None,
            "name": (self.meta_data or {}).get("jobName"),
            "user": self.user or None,
            "account": self.project or None,
            "partition": self.partition or None,
            "state": self.job_state.upper() if is_over else None,
            "submit": _moment(self.submit_time) if self.submit_time else None,
            "start": self.start,
            "end": self.end,
            "elapsed_s": float(self.duration),
            "timelimit_s": float(self.walltime) if self.walltime else None,
            "nodes": len(self.resources) or None,
            "node_list": ",".join(node.hostname for node in self.resources) or None,
            "gpus": self.num_acc or sum(len(node.accelerators or ()) for node in self.resources),
            "exclusive": exclusive,
            "time_precision_s": 0.0,
        }


class ArchivedUnit(msgspec.Struct):
    """A unit of the schema."""

    base: str = ""
    prefix: str = ""


class ArchivedSeries(msgspec.Struct):
    """Values of one accelerator from the start of the job on, null where nothing was measured."""

    hostname: str
    data: list[float | None]
    id: str = ""


class ArchivedMetric(msgspec.Struct):
    """A metric in one scope; timestep in seconds."""

    unit: ArchivedUnit
    timestep: Annotated[int, msgspec.Meta(ge=1, le=86400)]
    series: list[ArchivedSeries]


class ArchivedAccelerator(msgspec.Struct):
    """An accelerator of a topology."""

    id: str
    model: str = ""


class ArchivedTopology(msgspec.Struct):
    """Accelerators of a node: their order is that of their indices (cc-lib, GetAcceleratorID)."""

    accelerators: list[ArchivedAccelerator] | None = None


class ArchivedSubCluster(msgspec.Struct):
    """Nodes of one kind."""

    topology: ArchivedTopology
    name: str = ""


class ArchivedCluster(msgspec.Struct, rename="camel"):
    """What is read of `cluster.json`."""

    sub_clusters: list[ArchivedSubCluster]


def is_archive(path: Path) -> bool:
    """Return whether a folder is a job archive: one of its folders describes a cluster."""
    return path.is_dir() and any(path.glob(f"*/{CLUSTER_FILE}"))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the archives."""
    parser.add_argument("files", nargs="+", metavar="DIR", help="job archives, whole folders")


def read(
    options: argparse.Namespace, *, configuration: Configuration, now: datetime
) -> Iterator[Chunk]:
    """Yield chunks of up to 1,000 consecutive job ids. Errors: InputError for other folders."""
    for name in options.files:
        archive = Path(name)
        if not is_archive(archive):
            do = f"name the folder above CLUSTER/{CLUSTER_FILE}"
            raise InputError("no job archive of ClusterCockpit", where=archive, do=do)
        for description in sorted(archive.glob(f"*/{CLUSTER_FILE}")):
            accelerators = _accelerators(description)
            for folder in sorted(path for path in description.parent.iterdir() if path.is_dir()):
                yield from _chunks(folder, accelerators)


def _accelerators(description: Path) -> KnownAccelerators:
    """Return the accelerators of a cluster, without those with two indices.

    Errors: InputError for a description that cannot be read.
    """
    try:
        cluster = msgspec.json.decode(read_unpacked(description), type=ArchivedCluster)
    except _NO_JSON as problem:
        what = f"no description of a cluster: {problem}"
        raise InputError(what, where=description, do="copy it again") from None
    # Nodes of two kinds may have the same address at different indices.
    described_at: dict[tuple[str | None, str], set[tuple[int, str | None]]] = {}
    for kind in cluster.sub_clusters:
        for index, accelerator in enumerate(kind.topology.accelerators or ()):
            described = (index, accelerator.model or None)
            address = pci_key(accelerator.id)
            described_at.setdefault((kind.name, address), set()).add(described)
            described_at.setdefault((None, address), set()).add(described)
    accelerators: dict[tuple[str | None, str], tuple[int, str | None]] = {}
    for key, candidates in described_at.items():
        if len({index for index, _ in candidates}) == 1:
            index, model = next(iter(candidates))
            accelerators[key] = (index, model if len(candidates) == 1 else None)
    return accelerators


def _chunks(folder: Path, accelerators: KnownAccelerators) -> Iterator[Chunk]:
    jobs = ArchivedJobs(folder, accelerators)
    for meta in sorted(folder.glob("*/*/meta.json")):
        jobs.add(meta)
        if jobs.count >= CHUNK_ROWS:
            yield jobs.chunk()
            jobs = ArchivedJobs(folder, accelerators)
    if jobs.count:
        yield jobs.chunk()


@dataclass(slots=True)
class ArchivedJobs:
    """Rows of jobs of one folder; count: rows read."""

    folder: Path
    known: KnownAccelerators
    count: int = 0
    jobs: list[dict[str, Any]] = field(default_factory=list)
    allocations: list[dict[str, Any]] = field(default_factory=list)
    devices: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    samples: list[pl.DataFrame] = field(default_factory=list)
    rejects: Counter[tuple[str, str, str | None]] = field(default_factory=Counter)
    examples: dict[tuple[str, str, str | None], str] = field(default_factory=dict)
    _digest: Any = field(default_factory=lambda: hashlib.sha256(NAME.encode()))

    def add(self, meta: Path) -> None:
        """Add a job; one that cannot be read is rejected."""
        self.count += 1
        try:
            content = self._content(meta)
            job = msgspec.json.decode(content, type=ArchivedJob)
            measured = self._measured(meta.parent)
        except (InputError, *_NO_JSON) as problem:
            self._reject("jobs", "unreadable_job", None, f"{meta}: {problem}")
            return
        self.jobs.append(job.row())
        self._hold(job)
        self._sample(job, measured)

    def chunk(self) -> Chunk:
        """Return the rows; the same content has the same id."""
        frames: dict[str, pl.DataFrame] = {
            "gpu_samples": pl.concat(self.samples, how="diagonal") if self.samples else _NO_SAMPLES,
            "devices": filled_columns(DEVICES, list(self.devices.values())),
            "jobs": filled_columns(JOBS, self.jobs),
            "allocations": filled_columns(ALLOCATIONS, self.allocations),
        }
        parts = tuple(
            ChunkPart(table, frame, rejects=self._rejects_of(table), overlaps=True)
            for table, frame in frames.items()
        )
        mark = f"{NAME}:{self._digest.hexdigest()[:32]}"
        return Chunk(mark, NAME, str(self.folder), parts, self.count)

    def _content(self, path: Path) -> bytes:
        content = read_unpacked(path)
        self._digest.update(content)
        return content

    def _measured(self, folder: Path) -> list[tuple[ArchiveMetric, ArchivedMetric]]:
        """Return the metrics of accelerators that are known, in scope `accelerator`."""
        file = next((folder / name for name in _DATA if (folder / name).exists()), None)
        if file is None:
            return []
        scopes_of = msgspec.json.decode(self._content(file), type=dict[str, msgspec.Raw])
        measured = []
        for name, scopes in scopes_of.items():
            metric = _BY_NAME.get(_OTHER_NAMES.get(name, name))
            if metric is not None:
                by_scope = msgspec.json.decode(scopes, type=dict[str, ArchivedMetric])
                if metric.scope in by_scope:
                    measured.append((metric, by_scope[metric.scope]))
        return measured

    def _hold(self, job: ArchivedJob) -> None:
        """Add the allocations of a job; a node without accelerators only if none are named."""
        held = {
            "cluster": job.cluster,
            "job_id": str(job.job_id),
            "start": job.start,
            "end": job.end,
        }
        are_named = any(node.accelerators for node in job.resources)
        for node in job.resources:
            on_node = held | {"node": short_node(node.hostname)}
            for name in node.accelerators or ():
                unit = self._place(job, node.hostname, name, "allocations")
                if unit is not None:
                    key = {"gpu": unit[1], "mig": unit[2], "provenance": "explicit"}
                    self.allocations.append(on_node | key)
            if job.num_acc and not are_named:
                self.allocations.append(on_node | {"provenance": "node_list"})

    def _place(
        self, job: ArchivedJob, hostname: str, name: str, table: str
    ) -> tuple[str, int, int | None] | None:
        """Return (node, gpu, mig) of an accelerator, and note the device; None: not known."""
        node = short_node(hostname)
        written = _INDEX.fullmatch(name)
        address = pci_key(name)
        accelerator = self.known.get((job.sub_cluster, address)) or self.known.get((None, address))
        if written is not None:
            gpu, mig = int(written[1]), int(written[2]) if written[2] else None
            device: dict[str, Any] = {}
        elif accelerator is not None:
            (gpu, model), mig = accelerator, None
            device = {"pci": name, "model": model}
        else:
            self._reject(table, NO_GPU, None, f"{hostname}: {name}")
            return None
        key = {"cluster": job.cluster, "node": node, "gpu": gpu, "mig": mig}
        self.devices[tuple(key.values())] = key | device
        return node, gpu, mig

    def _sample(
        self, job: ArchivedJob, measured: Sequence[tuple[ArchiveMetric, ArchivedMetric]]
    ) -> None:
        """Add the samples of a job: those of a time step are one row per accelerator."""
        columns: dict[tuple[str, str, int], dict[str, pl.Series]] = {}
        for metric, archived in measured:
            scale = PREFIXES.get(archived.unit.prefix)
            base = archived.unit.base.replace("%", "")
            if scale is None or base != metric.base:
                unit = f"{metric.name}: {archived.unit.prefix}{archived.unit.base}"
                self._reject("gpu_samples", "unknown_unit", metric.counter, unit)
                continue
            factor = scale / PREFIXES[metric.prefix] / metric.factor
            for series in archived.series:
                key = (series.hostname, series.id, archived.timestep)
                # What is written after the end of the job is not the job's.
                length = -(-job.duration // archived.timestep)
                values = pl.Series(series.data[:length], dtype=pl.Float64) * factor
                columns.setdefault(key, {})[metric.counter] = values
        for (hostname, name, timestep), counters in columns.items():
            accelerator = self._place(job, hostname, name, "gpu_samples")
            if accelerator is not None:
                self._add_rows(job, accelerator, timestep, counters)

    def _add_rows(
        self,
        job: ArchivedJob,
        unit: tuple[str, int, int | None],
        timestep: int,
        counters: Mapping[str, pl.Series],
    ) -> None:
        length = max(map(len, counters.values()))
        # In the middle: at the begin of a job its GPUs may count for the job before.
        seconds = pl.int_range(length, eager=True) * timestep + (job.start_time + timestep // 2)
        seconds = seconds.clip(upper_bound=job.start_time + job.duration - 1)
        keys = {
            "t": (seconds * 1_000_000).cast(TIME),
            "cluster": pl.repeat(job.cluster, length, eager=True),
            "node": pl.repeat(unit[0], length, eager=True),
            "gpu": pl.repeat(unit[1], length, dtype=pl.Int16, eager=True),
            "mig": pl.repeat(unit[2], length, dtype=pl.Int16, eager=True),
        }
        padded = {
            name: values.extend_constant(None, length - len(values))
            for name, values in counters.items()
        }
        rows = pl.DataFrame(keys | padded)
        rows = rows.filter(pl.any_horizontal(pl.col(list(padded)).is_not_null()))
        self.count += rows.height
        self.samples.append(rows)

    def _reject(self, table: str, reason: str, column: str | None, example: str) -> None:
        self.rejects[table, reason, column] += 1
        self.examples.setdefault((table, reason, column), example)

    def _rejects_of(self, table: str) -> tuple[Reject, ...]:
        return tuple(
            Reject(key[1], key[2], count, self.examples[key])
            for key, count in self.rejects.items()
            if key[0] == table
        )


_DATA = ("data.json", "data.json.gz")
_NO_SAMPLES = pl.DataFrame(schema={"t": TIME, "node": pl.String, "gpu": pl.Int16})


def _moment(seconds: int) -> datetime:
    return EPOCH + timedelta(seconds=seconds)
