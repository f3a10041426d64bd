"""Allocations of GPUs in live views: polled from Slurm, and from a job's environment.

Slurm reports GPU indices only while a job runs, and none of MIG slices: these stay without an
allocation.

Traps of a job's environment; sources have this priority:
- A UUID in CUDA_VISIBLE_DEVICES names a GPU on any node and in any cgroup.
- SLURM_STEP_GPUS and SLURM_JOB_GPUS count the GPUs of the node. Inside a cgroup that hides the
  others NVML counts again from 0: where a source shows no more GPUs than the job has, these are its
  GPUs, with any numbers.
- Indices in CUDA_VISIBLE_DEVICES count the GPUs visible to the process. Inside a cgroup GPU 0 is
  the job's first, while in dcgm-exporter and DCGM, outside it, 0 is another one: there they are
  meaningless.
- Numbers of Slurm are minor numbers of device files, or indices of NVML (AutoDetect=nvml), as
  configured by the site.
"""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Final

from tachograph.annexes.watch.live.selection import UUID, GpuSelection, GpuSelector, GpuTerm, holds
from tachograph.annexes.watch.live.snapshot import (
    GpuAllocation,
    GpuId,
    LiveSource,
    Snapshot,
    SourceInfo,
    SourceProblem,
)
from tachograph.catalog.errors import TachographError
from tachograph.catalog.units import plural
from tachograph.sources.metrics import short_node

if TYPE_CHECKING:
    from tachograph.catalog.config import Configuration
    from tachograph.lake.places import ClusterNames
    from tachograph.sources.slurm.records import SlurmCluster


EVERY_S: Final = 30.0  # between two polls: the load on Slurm must stay low
LONGEST_S: Final = 600.0  # between two polls of a Slurm that does not answer
JOB_WAIT_S: Final = 5.0  # longest wait for a job that was requested by its id
_SOURCE = "slurm-live"
_USER = re.compile(r"^\s*UserId=([^\s(]+)", re.MULTILINE)
_ARRAY = re.compile(r"\bArrayJobId=(\d+) ArrayTaskId=(\d+)\b")
_HET = re.compile(r"\bHetJobId=(\d+) HetJobOffset=(\d+)\b")


@dataclass(frozen=True, slots=True)
class SlurmAllocations:
    """Slurm's allocations by cluster, None where it is not reported.

    gpus: {cluster: {(short host, number): allocation}}; jobs: {cluster: {raw id: allocation}}.
    minor_numbers: numbers of GPUs are those of device files. complete: the GPUs of every job are
    reported, and jobs of several users, so that no job is hidden: a GPU without allocation is free.
    accounted: names of clusters that differ in the accounting, as far as known.
    """

    gpus: Mapping[str | None, Mapping[tuple[str, int], GpuAllocation]] = field(default_factory=dict)
    jobs: Mapping[str | None, Mapping[str, GpuAllocation]] = field(default_factory=dict)
    minor_numbers: bool = True
    complete: bool = False
    accounted: frozenset[str] = frozenset()

    def names(self, job: str) -> frozenset[str]:
        """All ids of the same job: 14 and 3_0.

        >>> sorted(SlurmAllocations(jobs={None: {"14": GpuAllocation("3_0", "ana")}}).names("3_0"))
        ['14', '3_0']
        """
        names = {job}
        for cluster, jobs in self.jobs.items():
            for raw, allocation in jobs.items():
                for before in ("", f"{cluster}/"):
                    aliases = {f"{before}{raw}", f"{before}{allocation.job_id or raw}"}
                    names |= aliases if job in aliases else set()
        return frozenset(names)


def read_allocations(content: bytes, *, where: str, cluster: SlurmCluster) -> SlurmAllocations:
    """Return the allocations in an answer of `squeue --json`, `scontrol show job -d` or slurmrestd.

    A job whose GPUs are not reported is among the jobs alone. Errors: InputError for an invalid
    answer.
    """
    from tachograph.sources.slurm.allocations import read_scontrol
    from tachograph.sources.slurm.exports import detect
    from tachograph.sources.slurm.fields import json_objects, json_value

    gpus: dict[str | None, dict[tuple[str, int], GpuAllocation]] = {}
    jobs: dict[str | None, dict[str, GpuAllocation]] = {}
    whole = True
    export = detect(content, where=where)
    if export.kind == "scontrol":
        text = content.decode("utf-8", "replace")
        for entry in read_scontrol(text, where=where, trusted=True):  # of a call per job
            fields = entry.fields or {}
            whole &= _add(gpus, jobs, _names_in(str(fields.get("record"))), fields, cluster)
    else:
        for job in json_objects(json_value(export.document, "jobs")):
            whole &= _add(gpus, jobs, _names_of(job), job, cluster)
    allocations = chain.from_iterable(of_cluster.values() for of_cluster in jobs.values())
    several = len({allocation.user for allocation in allocations if allocation.user}) > 1
    return SlurmAllocations(gpus, jobs, complete=several and whole)


def _add(
    gpus: dict[str | None, dict[tuple[str, int], GpuAllocation]],
    jobs: dict[str | None, dict[str, GpuAllocation]],
    named: tuple[str, GpuAllocation] | None,
    fields: Mapping[str, object],
    cluster: SlurmCluster,
) -> bool:
    """Note the GPUs of a job; return whether all of them are known."""
    from tachograph.sources.slurm.allocations import running_job
    from tachograph.sources.slurm.fields import BadRowError

    if named is None:
        return False
    raw, allocation = named
    whole = True
    name = cluster.name
    try:
        running = running_job(fields, cluster)
        name = running.cluster.name
        rows = running.gpu_rows()
    except BadRowError:  # slices, indices that are not reported: the job itself is known
        rows, whole = [], False
    for row in rows:
        start, node, gpu = row["start"], row["node"], row["gpu"]
        since = start.timestamp() if isinstance(start, datetime) else allocation.since
        allocation = replace(allocation, since=since)
        if isinstance(node, str) and isinstance(gpu, int):
            gpus.setdefault(name, {})[short_node(node), gpu] = allocation
        else:
            whole = False
    jobs.setdefault(name, {})[raw] = allocation
    return whole


def _names_of(job: Mapping[str, object]) -> tuple[str, GpuAllocation] | None:
    """The raw id of a job in JSON, and the job as an allocation."""
    from tachograph.sources.slurm.fields import BadRowError, json_number, json_text, reported_job_id

    try:
        job_id = reported_job_id(
            json_number(job.get("job_id")),
            array=json_number(job.get("array_job_id")),
            task=json_number(job.get("array_task_id")),
            het=json_number(job.get("het_job_id")),
            offset=json_number(job.get("het_job_offset")),
        )
    except BadRowError:
        return None
    start = json_number(job.get("start_time"))
    return job_id.raw, GpuAllocation(
        job_id.display or job_id.raw,
        json_text(job.get("user_name")),
        float(start) if start else None,
    )


def _names_in(record: str) -> tuple[str, GpuAllocation] | None:
    """The same of a record of scontrol."""
    job = re.match(r"JobId=(\d+)\b", record)
    if job is None:
        return None
    array, het, user = _ARRAY.search(record), _HET.search(record), _USER.search(record)
    shown = job[1]
    if array:
        shown = f"{array[1]}_{array[2]}"
    elif het:
        shown = f"{het[1]}+{het[2]}"
    return job[1], GpuAllocation(shown, user[1] if user else None)


def allocation_poller(configuration: Configuration) -> Callable[[], SlurmAllocations] | None:
    """Return the configured poller of Slurm, else `squeue`; None if neither is available.

    Nothing is polled or imported yet: wrong settings are reported at the first poll.
    """
    if (
        not any(raw.get("source") == _SOURCE for raw in configuration.sources)
        and shutil.which("squeue") is None
    ):
        return None
    return _SlurmControllers(configuration)


class _SlurmControllers:
    """The controllers of a configuration, connected at the first poll."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._pollers: list[Callable[[], bytes]] = []
        self._where: list[str] = []

    def __call__(self) -> SlurmAllocations:
        from tachograph.sources.slurm.controller import NO_JOBS
        from tachograph.sources.slurm.records import SlurmCluster

        if not self._pollers:
            self._connect()
        gpus: dict[str | None, dict[tuple[str, int], GpuAllocation]] = {}
        jobs: dict[str | None, dict[str, GpuAllocation]] = {}
        complete = True
        for poll, where in zip(self._pollers, self._where, strict=True):
            content = poll()
            if not content.startswith(NO_JOBS):
                answer = read_allocations(
                    content, where=where, cluster=SlurmCluster.of(self._configuration)
                )
                for cluster, held in answer.gpus.items():
                    gpus.setdefault(cluster, {}).update(held)
                for cluster, by_id in answer.jobs.items():
                    jobs.setdefault(cluster, {}).update(by_id)
                complete = complete and answer.complete
        minor_numbers = self._configuration.slurm.gpu_numbers == "minor_number"
        return SlurmAllocations(gpus, jobs, minor_numbers, complete and bool(jobs))

    def _connect(self) -> None:
        from tachograph.sources.registry import entry_errors, settings_in
        from tachograph.sources.slurm.commands import check_how
        from tachograph.sources.slurm_live import SlurmLiveSettings, controller_of

        for settings in settings_in(self._configuration, _SOURCE):
            if isinstance(settings, SlurmLiveSettings):
                with entry_errors(settings.title):
                    check_how(settings.how, url=settings.url, command=settings.command)
                    controller = controller_of(settings)
                self._pollers.append(controller.fetch_jobs)
                self._where.append(controller.where)


class AllocatedSource:
    """A source completed with Slurm's allocations; its own take precedence.

    names: of clusters, as a lake knows them.
    """

    def __init__(
        self,
        source: LiveSource,
        poll: Callable[[], SlurmAllocations],
        *,
        names: ClusterNames | None = None,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._poll = poll
        self._accounted = names.accounted if names else frozenset()
        self._every_s = every_s
        self._clock = clock
        self._of_slurm = SlurmAllocations()
        self._problem: SourceProblem | None = None
        self._answered = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._before: tuple[SlurmAllocations, Snapshot] | None = None
        self._merged: Mapping[GpuId, GpuAllocation] = {}
        self._free: frozenset[GpuId] = frozenset()

    @property
    def about(self) -> SourceInfo:
        """Description of the source."""
        return self._source.about

    def start(self) -> None:
        """Start polling; `read` does it, too."""
        if self._thread is None and not self._closed.is_set():
            self._thread = threading.Thread(
                target=self._keep_polling, name="allocations", daemon=True
            )
            self._thread.start()

    def wait(self, seconds: float = JOB_WAIT_S) -> bool:
        """Wait for the first poll, successful or not; return whether it ended."""
        self.start()
        return self._answered.wait(seconds)

    def names(self, job: str) -> frozenset[str]:
        """All known ids of the same job."""
        return self._of_slurm.names(job)

    def read(self) -> Snapshot:
        """Return the newest snapshot with the last known allocations. Errors: as the source."""
        snapshot = self._source.read()
        self.start()  # after the first snapshot, which imports must not delay
        slurm, problem = self._of_slurm, self._problem
        problems = (*snapshot.problems, problem) if problem else snapshot.problems
        allocations = self._allocations(snapshot, slurm)
        return replace(snapshot, allocations=allocations, problems=problems, free=self._free)

    def close(self) -> None:
        """Stop polling, and close the source."""
        self._closed.set()
        self._source.close()

    def _allocations(
        self, snapshot: Snapshot, slurm: SlurmAllocations
    ) -> Mapping[GpuId, GpuAllocation]:
        before = self._before
        unchanged = before is not None and before[0] is slurm and before[1].gpus == snapshot.gpus
        if not unchanged or before is None or before[1].allocations != snapshot.allocations:
            self._merged = merged_allocations(snapshot, slurm)
            self._free = free_gpus(snapshot, slurm) - self._merged.keys()
            self._before = slurm, snapshot
        return self._merged

    def _keep_polling(self) -> None:
        wait_s = self._every_s
        while not self._closed.is_set():
            try:
                self._of_slurm = replace(self._poll(), accounted=self._accounted)
                self._problem, wait_s = None, self._every_s
            except TachographError as problem:
                self._problem = SourceProblem(
                    f"GPU allocations unknown: {problem.what}", problem.where, problem.do
                )
                wait_s = min(wait_s * 2, LONGEST_S)
            self._answered.set()
            self._closed.wait(wait_s)


def merged_allocations(
    snapshot: Snapshot, slurm: SlurmAllocations
) -> Mapping[GpuId, GpuAllocation]:
    """Return GPU allocations: the source's, completed by Slurm's of that job; else Slurm's.

    >>> from numpy import zeros
    >>> gpus = GpuId("n1.example.org", 0), GpuId("n1", 1)
    >>> reported = Snapshot(0.0, gpus, zeros(2), {}, allocations={gpus[1]: GpuAllocation("14")})
    >>> held = {("n1", 0): GpuAllocation("7", "bo")}
    >>> slurm = SlurmAllocations({None: held}, {None: {"14": GpuAllocation("3_0", "ana")}})
    >>> [allocation.user for allocation in merged_allocations(reported, slurm).values()]
    ['bo', 'ana']
    """
    merged: dict[GpuId, GpuAllocation] = {}
    of_snapshot = _SlurmOfSnapshot(snapshot, slurm)
    held = of_snapshot.held()
    for gpu in snapshot.gpus:
        labelled = snapshot.allocations.get(gpu)
        if labelled is not None and labelled.job_id is not None:
            of_slurm = [of_snapshot.of_job(gpu, job) for job in labelled.jobs]
            merged[gpu] = _completed(labelled, of_slurm)
            continue
        allocation = held.get(gpu) or labelled
        if allocation is not None:
            merged[gpu] = allocation
    return merged


def free_gpus(snapshot: Snapshot, slurm: SlurmAllocations) -> frozenset[GpuId]:
    """Return GPUs that neither the source nor a complete answer of Slurm reports as held."""
    if not slurm.complete:
        return snapshot.free
    held = _SlurmOfSnapshot(snapshot, slurm).held()
    return snapshot.free | {gpu for gpu, allocation in held.items() if allocation is None}


class _SlurmOfSnapshot:
    """Slurm's allocations of the GPUs of a snapshot.

    A GPU is of the cluster that its telemetry names. Where Slurm knows none of this name, its node
    decides, if all else of that name is of one cluster, unless the accounting has both names.
    """

    def __init__(self, snapshot: Snapshot, slurm: SlurmAllocations) -> None:
        self._slurm, self._gpus = slurm, snapshot.gpus
        self._numbers = slurm_numbers(snapshot) if slurm.minor_numbers else {}
        self._sampled = {gpu.cluster for gpu in snapshot.gpus} - {None}
        hosts = {(short_node(gpu.node), gpu.cluster) for gpu in snapshot.gpus}
        self._namesakes = Counter(node for node, _ in hosts)
        self._busy_nodes = {
            cluster: {node for node, _ in held} for cluster, held in slurm.gpus.items()
        }

    def of_job(self, gpu: GpuId, job: str) -> GpuAllocation | None:
        """Return what is known of a job on a GPU, by its id."""
        jobs = self._slurm.jobs
        candidates = [
            jobs[name][job]
            for name in self._clusters(gpu)
            if job in jobs.get(name, {}) and self._may_hold(gpu, name, jobs[name][job])
        ]
        return candidates[0] if len(candidates) == 1 else None

    def held(self) -> Mapping[GpuId, GpuAllocation | None]:
        """Return who holds each GPU that Slurm can name; None: no job."""
        held: dict[GpuId, GpuAllocation | None] = {}
        for gpu in self._gpus:
            number, node = self._numbers.get(gpu, gpu.gpu), short_node(gpu.node)
            if gpu.mig is not None or number is None:
                continue
            clusters = self._clusters(gpu)
            if not clusters:  # its cluster is not one of Slurm's
                continue
            if not self._is_named(gpu):
                clusters = [name for name in clusters if node in self._busy_nodes.get(name, ())]
                if self._namesakes[node] > 1 or len(clusters) > 1:
                    continue
                if not clusters and len(self._sampled) > 1:  # Slurm may not answer for its cluster
                    continue
            holders = [self._slurm.gpus.get(name, {}).get((node, number)) for name in clusters]
            held[gpu] = holders[0] if holders else None
        return held

    def _may_hold(self, gpu: GpuId, cluster: str | None, job: GpuAllocation) -> bool:
        """Whether a job of that id is not a namesake of another cluster, as far as nodes tell.

        Where telemetry names no cluster, a job whose GPUs Slurm does not report may be on any node.
        """
        if self._is_named(gpu):
            return True
        node = short_node(gpu.node)
        if node in self._busy_nodes.get(cluster, ()):
            return self._namesakes[node] == 1
        held = self._slurm.gpus.get(cluster, {}).values()
        return not self._sampled and job.job_id not in {of.job_id for of in held}

    def _is_named(self, gpu: GpuId) -> bool:
        return gpu.cluster in self._slurm.jobs or gpu.cluster in self._slurm.gpus

    def _clusters(self, gpu: GpuId) -> list[str | None]:
        """Return the clusters of Slurm that a GPU may be of."""
        if self._is_named(gpu):
            return [gpu.cluster]
        accounted = self._slurm.accounted
        return [
            name
            for name in dict.fromkeys((*self._slurm.jobs, *self._slurm.gpus))
            if name not in self._sampled and not accounted.issuperset({gpu.cluster, name})
        ]


def slurm_numbers(snapshot: Snapshot) -> Mapping[GpuId, int | None]:
    """Return device file numbers on nodes where one differs from the index; None: not reported.

    >>> from numpy import zeros
    >>> from tachograph.annexes.watch.live.snapshot import GpuDevice
    >>> gpus = GpuId("n1", 0), GpuId("n1", 1), GpuId("n2", 0)
    >>> devices = {gpus[0]: GpuDevice(minor_number=1), gpus[2]: GpuDevice(minor_number=0)}
    >>> list(slurm_numbers(Snapshot(0.0, gpus, zeros(3), {}, devices)).values())
    [1, None]
    """
    minors = {gpu: snapshot.device(row).minor_number for row, gpu in enumerate(snapshot.gpus)}
    differing = {
        gpu.host for gpu, minor in minors.items() if minor is not None and minor != gpu.gpu
    }
    return {gpu: minor for gpu, minor in minors.items() if gpu.host in differing}


def _completed(labelled: GpuAllocation, of_slurm: Sequence[GpuAllocation | None]) -> GpuAllocation:
    """Displayed ids; user and start from any source. of_slurm: of each job of `labelled`."""
    if not any(of_slurm):
        return labelled
    jobs = [(of and of.job_id) or job for of, job in zip(of_slurm, labelled.jobs, strict=True)]
    users = dict.fromkeys(of.user for of in of_slurm if of is not None and of.user)
    began = [of.since for of in of_slurm if of is not None and of.since is not None]
    return GpuAllocation(
        ",".join(jobs),
        labelled.user or ",".join(users) or None,
        min(began) if began else labelled.since,
    )


_NONE_VISIBLE: Final = frozenset({"", "-1", "nodevfiles", "none", "void"})


@dataclass(frozen=True, slots=True)
class JobEnvironment:
    """GPUs of a process by its environment. job: None outside of Slurm.

    numbers: of the node's GPUs, as counted by Slurm; devices: CUDA_VISIBLE_DEVICES. None: not
    reported; empty: none.
    """

    job: str | None = None
    display_job: str | None = None  # of an array: 3_0
    user: str | None = None
    since: float | None = None
    node: str | None = None
    nodes: int = 1
    numbers: tuple[int, ...] | None = None
    devices: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        """The id of the job as people write it, else the variable that names the GPUs."""
        return f"job {self.display_job or self.job}" if self.job else "CUDA_VISIBLE_DEVICES"

    @property
    def allocation(self) -> GpuAllocation | None:
        """The job as an allocation."""
        return (
            GpuAllocation(self.display_job or self.job, self.user, self.since) if self.job else None
        )

    @property
    def count(self) -> int | None:
        """Number of GPUs of the process; None if not reported."""
        listed = self.numbers if self.numbers is not None else self.devices
        return None if listed is None else len(listed)


def job_environment(environment: Mapping[str, str]) -> JobEnvironment | None:
    """Return the GPUs in a process's environment; None outside of jobs without any.

    >>> job_environment({"SLURM_JOB_ID": "14", "SLURM_JOB_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": "0,1"}).numbers
    (2, 3)
    >>> job_environment({}) is None, job_environment({"CUDA_VISIBLE_DEVICES": "GPU-8932f937"}).devices
    (True, ('GPU-8932f937',))
    """
    job = environment.get("SLURM_JOB_ID") or environment.get("SLURM_JOBID")
    devices = _devices(environment.get("CUDA_VISIBLE_DEVICES"))
    if not job:
        return None if devices is None else JobEnvironment(devices=devices)
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    start = environment.get("SLURM_JOB_START_TIME", "")
    nodes = environment.get("SLURM_JOB_NUM_NODES") or environment.get("SLURM_NNODES") or "1"
    return JobEnvironment(
        job,
        f"{array}_{task}" if array and task else job,
        environment.get("SLURM_JOB_USER") or environment.get("USER"),
        float(start) if start.isdigit() else None,
        environment.get("SLURMD_NODENAME"),
        int(nodes) if nodes.isdigit() else 1,
        _numbers(environment.get("SLURM_STEP_GPUS") or environment.get("SLURM_JOB_GPUS")),
        devices,
    )


def _devices(written: str | None) -> tuple[str, ...] | None:
    """Return the entries before the first invalid one, as CUDA does."""
    if written is None:
        return None
    devices: list[str] = []
    for part in (part.strip() for part in written.split(",")):
        if part.lower() in _NONE_VISIBLE:
            break
        devices.append(part)
    return tuple(devices)


def _numbers(written: str | None) -> tuple[int, ...] | None:
    """GPU numbers in Slurm's form: `0,1`, `0-3`; None if invalid."""
    numbers: list[int] = []
    for part in (written or "").split(","):
        ends = re.fullmatch(r"(?:gpu:)?(\d{1,4})(?:-(\d{1,4}))?", part.strip(), re.ASCII)
        if ends is None:
            return None
        numbers += range(int(ends[1]), int(ends[2] or ends[1]) + 1)
    return tuple(dict.fromkeys(numbers))


def select_own(environment: JobEnvironment, *, host: str) -> GpuSelector:
    """Return the selection of the own job's GPUs, or CUDA_VISIBLE_DEVICES, on this host.

    Where they are undetermined, all GPUs of the host are selected, with a remark on that.
    """

    def pick(snapshot: Snapshot, about: SourceInfo) -> GpuSelection:
        shown = plural(len(snapshot.gpus), "GPU")
        here = _rows_of_host(
            snapshot, {short_node(name) for name in (host, environment.node) if name}
        )
        if environment.count == 0 or (environment.count is None and environment.devices is None):
            return GpuSelection(tuple(here), f"{shown}, as {environment.name} lists none")
        rows = _own_rows(snapshot, about, environment, here)
        if rows is None:
            unknown = (
                f"which of them belong to {environment.name} is unknown; select them with --gpus"
            )
            return GpuSelection(tuple(here), f"{shown}: {unknown}")
        return GpuSelection(
            tuple(rows),
            f"{len(rows)} of {shown}, those of {environment.name}",
            environment.allocation,
        )

    return pick


def _fits_any(snapshot: Snapshot, row: int, terms: Sequence[GpuTerm]) -> bool:
    gpu, device = snapshot.gpus[row], snapshot.device(row)
    return any(term.fits(gpu, device) for term in terms)


def _own_rows(
    snapshot: Snapshot, about: SourceInfo, environment: JobEnvironment, here: Sequence[int]
) -> Sequence[int] | None:
    """Rows of the process's own GPUs; None if unknown. See the traps above."""
    uuids = [GpuTerm(name, uuid=name) for name in environment.devices or () if UUID.fullmatch(name)]
    by_uuid = [row for row in here if _fits_any(snapshot, row, uuids)]
    if by_uuid:
        return by_uuid
    if confined(snapshot, environment, here):
        return here
    sliced = any(snapshot.gpus[row].mig is not None for row in here)
    if environment.numbers is not None and not sliced:
        minors = slurm_numbers(snapshot)
        of_slurm = [
            row
            for row in here
            if minors.get(snapshot.gpus[row], snapshot.gpus[row].gpu) in environment.numbers
        ]
        return of_slurm or None
    of_job = [
        row
        for row in here
        if environment.job and holds(snapshot, row, {environment.job, environment.display_job})
    ]
    if of_job:
        return of_job
    indices = {int(name) for name in environment.devices or () if name.isdigit()}
    if uuids or sliced or (environment.job and about.name != "nvml"):
        return None  # they count from 0 inside a cgroup; NVML runs inside it, too
    return [row for row in here if snapshot.gpus[row].gpu in indices] or None


def confined(
    snapshot: Snapshot, environment: JobEnvironment, rows: Sequence[int] | None = None
) -> bool:
    """Return whether a source shows only GPUs that this process may use, hence its own."""
    units = [snapshot.gpus[row] for row in rows] if rows is not None else snapshot.gpus
    return environment.count is not None and 0 < len(units) <= environment.count


def _rows_of_host(snapshot: Snapshot, names: set[str]) -> list[int]:
    """Rows of a host; all if there is one host, whose name may differ (containers)."""
    if len({gpu.host for gpu in snapshot.gpus}) <= 1:
        return list(range(len(snapshot.gpus)))
    return [row for row, gpu in enumerate(snapshot.gpus) if short_node(gpu.node) in names]
