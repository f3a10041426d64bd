"""Pods that hold GPUs, and the workloads they belong to, as rows of accounting.

A workload is a job: a Job, RayJob, PyTorchJob, ..., or a pod without owner. Its pods are its steps.
Each pod of a Deployment, StatefulSet or DaemonSet is a job of its own, a task of the array named
after the owner: such owners replace their pods for ever. Pods that request no GPU are left out.

API reference: Pod v1 core, ObjectMeta. A pod holds its GPUs from its start to the end of its last
container, whatever its containers do in between.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from operator import itemgetter

from tachograph.sources.metrics import short_node
from tachograph.sources.schedulers.documents import host_list, shell_status
from tachograph.sources.slurm.exports import AccountingReading
from tachograph.sources.slurm.fields import (
    BadRowError,
    JobId,
    any_job_id,
    instants,
    json_number,
    json_objects,
    json_text,
    json_value,
)
from tachograph.sources.slurm.records import (
    JobRecord,
    SlurmCluster,
    allocation_row,
    job_row,
    step_row,
)

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe")
SHARED_RESOURCES = ("nvidia.com/gpu.shared",)  # time slicing, MPS: the device plugin's renaming
_MIG = re.compile(r"nvidia\.com/mig-(\d{1,2}g\.\d{1,3}gb)(?:\.me)?", re.ASCII)
_PRODUCTS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name")  # labels of nodes
QUEUES = (
    "kueue.x-k8s.io/queue-name",
    "kueue.x-k8s.io/local-queue-name",
    "volcano.sh/queue-name",
    "scheduling.volcano.sh/queue-name",
    "runai/queue",
)
# Owners that replace their pods, and those whose children are workloads of their own: schedules of
# Kubernetes, Argo and Kubeflow Pipelines start each run as an object below them.
REPLACING = frozenset({"ReplicaSet", "StatefulSet", "DaemonSet", "ReplicationController"})
_NO_WORKLOADS = frozenset({"CronJob", "CronWorkflow", "ScheduledWorkflow", "Node"})
_PHASES: Mapping[str, str] = {
    "Pending": "PENDING",
    "Running": "RUNNING",
    "Succeeded": "COMPLETED",
    "Failed": "FAILED",
}
_REASONS: Mapping[str, str] = {  # of a pod that failed
    "DeadlineExceeded": "TIMEOUT",
    "Evicted": "PREEMPTED",
    "Preempting": "PREEMPTED",
    "NodeLost": "NODE_FAIL",
    "NodeShutdown": "NODE_FAIL",
    "Shutdown": "NODE_FAIL",
    "Terminated": "NODE_FAIL",
}
# Conditions whose transition is the end of a pod that failed without its containers, by precedence.
_FAILURES = (("DisruptionTarget", "True"), ("Ready", "False"))
_SUFFIXES = {"m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_QUANTITY = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)(m|k|[KMGTP]i|[MGT])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """An object by kind and name; uid: of this one, and not of one that had its name before."""

    api: str  # apiVersion: batch/v1
    kind: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Owner:
    """What controls pods: `ref`, the owner of it, when it was created, and its queue."""

    ref: ObjectRef
    above: ObjectRef | None = None
    created: datetime | None = None
    queue: str | None = None


Owners = Mapping[ObjectRef, Owner]


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that requests GPUs. Times UTC; start None: no container has started."""

    ref: ObjectRef
    owner: ObjectRef | None
    created: datetime | None
    queue: str | None
    user: str | None
    node: str | None
    priority: str | None
    state: str
    start: datetime | None
    end: datetime | None
    exit_code: int | None
    exit_signal: int | None
    counts: Mapping[str, int]  # as Slurm's TRES: gres/gpu, gres/gpu:TYPE, gres/shard, cpu
    memory_mib: float | None
    timelimit_s: float | None

    @property
    def id(self) -> str:
        """The id that labels of samples give it: POD.NAMESPACE."""
        return f"{self.ref.name}.{self.ref.namespace}"

    @property
    def is_over(self) -> bool:
        """Whether no container will run any more."""
        return self.state not in ("PENDING", "RUNNING")

    def following(self, earlier: Pod | None, moment: datetime | None) -> Pod:
        """Return the pod with what an earlier reading of it knew; `moment`: when it was as it is.

        The first known start stays: it is in the key of rows, and an eviction may remove it from the
        API. A pod that failed without its containers (its node was
        lost) ends when it was first seen so: without an end it would hold its GPUs for ever.
        """
        start, end = self.start, self.end
        if earlier is not None and earlier.start is not None:
            start = earlier.start
        if self.is_over and start is not None:
            if self.start is None and end is not None and end <= start:
                end = None  # of a condition older than the containers, see _failure_time
            if end is None and earlier is not None and earlier.is_over:
                end = earlier.end
            if end is None:
                end = max(moment or start, start)
        return replace(self, start=start, end=end)

    def gone(self, last_seen: datetime, *, deleted: bool) -> Pod:
        """Return the pod when it is no more: deleted, or not listed any more (state unknown)."""
        if self.is_over:
            return self.following(None, last_seen)
        end = None if self.start is None else max(last_seen, self.start)
        return replace(self, state="CANCELLED" if deleted else "", end=end)


def object_ref(document: object) -> ObjectRef:
    """Return what an object is. Errors: BadRowError `no_name` where it has none."""
    names = [json_text(document, "metadata", key) for key in ("namespace", "name", "uid")]
    namespace, name, uid = (text or "" for text in names)
    if not name or not uid:
        raise BadRowError("no_name")
    kind, api = json_text(document, "kind"), json_text(document, "apiVersion")
    return ObjectRef(api or "v1", kind or "Pod", namespace, name, any_job_id(uid))


def owner_of(document: object) -> ObjectRef | None:
    """Return the controller of an object, None without one."""
    namespace = json_text(document, "metadata", "namespace") or ""
    for written in json_objects(document, "metadata", "ownerReferences"):
        kind, uid = json_text(written, "kind"), json_text(written, "uid")
        name, api = json_text(written, "name"), json_text(written, "apiVersion")
        named = bool(kind and uid and name and api) and kind not in _NO_WORKLOADS
        if written.get("controller") is True and named:
            return ObjectRef(api or "", kind or "", namespace, name or "", any_job_id(uid or ""))
    return None


def read_owner(document: object) -> Owner:
    """Return an owner. Errors: BadRowError with the reason."""
    queue = _labelled(document, QUEUES) or json_text(document, "spec", "queue")
    created = _time(json_text(document, "metadata", "creationTimestamp"))
    return Owner(object_ref(document), owner_of(document), created, queue)


def read_pod(document: object, *, user_labels: Sequence[str] = ()) -> Pod | None:
    """Return a pod; None if it requests no GPU.

    user_labels: labels and annotations with the name of the user, the first that is set counts.
    Errors: BadRowError with the reason when it cannot be read.
    """
    counts, memory_mib = _requests(document)
    if not any(name.startswith("gres/") for name in counts):
        return None
    phase = json_text(document, "status", "phase") or ""
    if phase not in _PHASES and phase != "Unknown":  # the node does not answer
        raise BadRowError("bad_state")
    state = _PHASES.get(phase, "RUNNING")
    statuses = json_objects(document, "status", "containerStatuses")
    start = _start(document, statuses)
    ends = [_time(json_text(status, "state", "terminated", "finishedAt")) for status in statuses]
    over = state in ("COMPLETED", "FAILED")
    end = max((time for time in ends if time), default=None) if over else None
    if over and end is None:
        end = _failure_time(document, start)
    code, signal, reason = _exit(statuses)
    if state == "FAILED":
        of_pod = _REASONS.get(json_text(document, "status", "reason") or "")
        state = "OUT_OF_MEMORY" if reason == "OOMKilled" else of_pod or state
    limit = json_number(document, "spec", "activeDeadlineSeconds")
    node = json_text(document, "spec", "nodeName")
    return Pod(
        object_ref(document),
        owner_of(document),
        _time(json_text(document, "metadata", "creationTimestamp")),
        _labelled(document, QUEUES),
        _labelled(document, user_labels),
        None if node is None else short_node(node),
        json_text(document, "spec", "priorityClassName"),
        state,
        start,
        end,
        code if over else None,
        signal if over else None,
        counts,
        memory_mib,
        None if limit is None else float(limit),
    )


def _labelled(document: object, names: Sequence[str]) -> str | None:
    for name in names:
        for part in ("labels", "annotations"):
            value = json_text(document, "metadata", part, name)
            if value:
                return value
    return None


def _time(written: str | None) -> datetime | None:
    times = instants(written, "UTC") if written else ()
    return times[0] if times else None


def deletion_time(document: object, otherwise: datetime) -> datetime:
    """Return when an object was to be deleted at the latest."""
    return _time(json_text(document, "metadata", "deletionTimestamp")) or otherwise


def _start(document: object, statuses: Sequence[object]) -> datetime | None:
    """When the node took on a pod of which a container started: its GPUs are held from then on.

    The start of containers does not decide: restarts replace it, and it is in the key of rows.
    """
    begun = [
        _time(json_text(status, *path, "startedAt"))
        for status in statuses
        for path in (("state", "running"), ("state", "terminated"), ("lastState", "terminated"))
    ]
    first = min((time for time in begun if time), default=None)
    admitted = _time(json_text(document, "status", "startTime"))
    return admitted if first is not None and admitted else first


def _failure_time(document: object, start: datetime | None) -> datetime | None:
    """When a pod was disrupted, or no longer ready; None where its conditions do not say.

    A pod that never became ready is not ready since before its start: that says nothing.
    """
    conditions = json_objects(document, "status", "conditions")
    for kind, value in _FAILURES:
        for condition in conditions:
            if (json_text(condition, "type"), json_text(condition, "status")) != (kind, value):
                continue
            time = _time(json_text(condition, "lastTransitionTime"))
            if time is not None and (start is None or time > start):
                return time
    return None


def _exit(statuses: Sequence[object]) -> tuple[int | None, int | None, str | None]:
    """(Exit code, signal, reason) of the container that failed, else of any."""
    terminated = [json_value(status, "state", "terminated") for status in statuses]
    coded = [
        (json_number(status, "exitCode"), json_text(status, "reason"))
        for status in terminated
        if status
    ]
    failed = [(code, reason) for code, reason in coded if code]
    code, reason = next(iter([*failed, *coded]), (None, None))
    return (None, None, reason) if code is None else (*shell_status(code), reason)


def _requests(document: object) -> tuple[dict[str, int], float | None]:
    """Counts of GPUs and CPUs of all containers, and memory in MiB, as requested."""
    containers = json_objects(document, "spec", "containers")
    totals: dict[str, float] = {}
    for container in containers:
        requests: dict[str, float] = {}
        for kind in ("limits", "requests"):
            resources = json_value(container, "resources", kind)
            for name, value in resources.items() if isinstance(resources, dict) else ():
                number = quantity(json_text(value) or "")
                if number is not None:
                    requests[name] = number
        for name, number in requests.items():
            totals[name] = totals.get(name, 0.0) + number
    counts: dict[str, int] = {}
    for name, number in totals.items():
        slices = _MIG.fullmatch(name)
        if name in GPU_RESOURCES or slices:
            counts["gres/gpu"] = counts.get("gres/gpu", 0) + int(number)
        if slices:
            counts[f"gres/gpu:{slices[1]}"] = int(number)
        if name in SHARED_RESOURCES:
            counts["gres/shard"] = int(number)
    selector = json_value(document, "spec", "nodeSelector")
    products = [json_text(selector, name) for name in _PRODUCTS if isinstance(selector, dict)]
    product = next((name for name in products if name), None)
    if product and counts.get("gres/gpu") and len(counts) == 1:
        counts[f"gres/gpu:{product}"] = counts["gres/gpu"]
    held = {name: count for name, count in counts.items() if count}
    if totals.get("cpu"):
        held["cpu"] = max(1, round(totals["cpu"]))
    memory = totals.get("memory")
    return held, None if memory is None else memory / 2**20


def quantity(written: str) -> float | None:
    """Return a quantity of Kubernetes as a number; None for another notation.

    >>> quantity("500m"), quantity("8Gi"), quantity("2"), quantity("x")
    (0.5, 8589934592.0, 2.0, None)
    """
    match = _QUANTITY.fullmatch(written)
    if match is None:
        return None
    suffix = match[2] or ""
    return float(match[1]) * (_BINARY[suffix] if suffix in _BINARY else _SUFFIXES[suffix])


def workload_of(pod: Pod, owners: Owners) -> ObjectRef:
    """Return the object that is the job of a pod; `owners`: those known."""
    chain = owner_chain(pod, owners)
    return pod.ref if not chain or chain[0].kind in REPLACING else chain[-1]


def owner_chain(pod: Pod, owners: Owners) -> list[ObjectRef]:
    """Return what controls a pod, the nearest first, as far as it is known."""
    chain: list[ObjectRef] = []
    above = pod.owner
    while above is not None and above not in chain:
        chain.append(above)
        owner = owners.get(above)
        above = None if owner is None else owner.above
    return chain


def job_id_of(workload: ObjectRef, owners: Owners, *, is_pod: bool) -> str:
    """Return the id of a workload: its UID, where the server has named it.

    Who creates a pod may write any UID into the reference to its owner. So an owner that was not
    read has the name of its kind, which nobody in another namespace can give it.
    """
    if is_pod or workload in owners:
        return workload.uid
    return any_job_id(f"{workload.name}.{workload.kind.lower()}.{workload.namespace}")


def add_workload(
    reading: AccountingReading,
    workload: ObjectRef,
    pods: Sequence[Pod],
    owners: Owners,
    cluster: SlurmCluster,
    *,
    changed: Container[str] | None = None,
) -> None:
    """Add the rows of a workload: a job, a step per pod, an allocation per pod.

    changed: UIDs of the pods whose steps and allocations are added; None: of all.
    Errors: BadRowError with the reason.
    """
    record = _job(workload, pods, owners, cluster)
    row = job_row(record, cluster)
    begun = [
        pod for pod in pods if pod.start is not None and (changed is None or pod.ref.uid in changed)
    ]
    steps = [_step(record, pod) for pod in begun]
    rows = [step_row(step) for step in steps]
    reading.add_job(record, row)
    for step, of_step in zip(steps, rows, strict=True):
        reading.steps.append(of_step)
        reading.step_usages.append(step.usage)
    for pod in begun:
        if pod.node is not None:
            held = allocation_row(
                cluster.name,
                record.id.raw,
                pod.node,
                None,
                start=pod.start,
                end=pod.end,
                provenance="node_list",
                shared="gres/gpu" not in pod.counts,
            )
            reading.allocations.append({**held, "step": pod.id})


def _job(
    workload: ObjectRef, pods: Sequence[Pod], owners: Owners, cluster: SlurmCluster
) -> JobRecord:
    chain = owner_chain(pods[0], owners)
    job_owners = [owners[ref] for ref in chain if ref in owners]
    is_pod = workload.uid == pods[0].ref.uid
    starts = [pod.start for pod in pods if pod.start]
    ends = [pod.end for pod in pods if pod.end]
    over = all(pod.is_over for pod in pods)
    start = min(starts, default=None)
    end = max(ends, default=None) if over and start else None
    last = _deciding(pods) if over else None
    state = "RUNNING" if start else "PENDING"
    queues = [owner.queue for owner in job_owners if owner.queue]
    created = [owner.created for owner in job_owners if owner.ref == workload]
    begun = min((pod.created for pod in pods if pod.created), default=None)
    array = chain[-1] if is_pod and chain else None
    hosts = [pod.node for pod in pods if pod.node and pod.start]
    return JobRecord(
        id=JobId(
            job_id_of(workload, owners, is_pod=is_pod),
            display=f"{workload.name}.{workload.namespace}",
            array_job_id=None if array is None else f"{array.name}.{array.namespace}",
        ),
        cluster=cluster.name,
        name=workload.name,
        user=next((pod.user for pod in pods if pod.user), None),
        account=workload.namespace or None,
        partition=next(iter([*queues, *(pod.queue for pod in pods if pod.queue)]), None),
        qos=next((pod.priority for pod in pods if pod.priority), None),
        state=state if last is None else last.state or None,
        exit_code=None if last is None else last.exit_code,
        exit_signal=None if last is None else last.exit_signal,
        submit=next(iter(created), begun),
        start=start,
        end=end,
        elapsed_s=(end - start).total_seconds() if start and end else None,
        timelimit_s=max((pod.timelimit_s for pod in pods if pod.timelimit_s), default=None),
        nodes=len(set(hosts)) or None,
        node_list=host_list(hosts),
        allocated=_at_once(pods),
        mem_requested_mib=sum(pod.memory_mib or 0.0 for pod in pods) or None,
    )


def _deciding(pods: Sequence[Pod]) -> Pod:
    """The pod whose end is that of the workload; one that was tried again does not count."""
    latest = max((pod.start for pod in pods if pod.start), default=None)
    final = [pod for pod in pods if _is_good(pod) or not (pod.end and latest and pod.end <= latest)]
    bad = [pod for pod in final if not _is_good(pod) and pod.state != "CANCELLED"]
    good = [pod for pod in final if _is_good(pod)]
    return (bad or good or final or list(pods))[0]


def _is_good(pod: Pod) -> bool:
    return pod.state == "COMPLETED"


def _at_once(pods: Sequence[Pod]) -> dict[str, int]:
    """The most of each resource that pods held at one time.

    A sweep over the sorted starts and ends: comparing each pod with each takes seconds from some
    thousand pods on. A pod that ended where another began does not add to it.
    """
    begun = [(pod.start, pod.end, pod.counts) for pod in pods if pod.start]
    begun.sort(key=itemgetter(0))
    # Pods that ended at once hold what they requested at that moment, beside those that run on.
    ends = sorted(
        [(end, counts) for start, end, counts in begun if end is not None and end > start],
        key=itemgetter(0),
    )
    running: dict[str, int] = {}
    maxima: dict[str, int] = {}
    ended = 0
    for moment, of_moment in groupby(begun, key=itemgetter(0)):
        while ended < len(ends) and ends[ended][0] <= moment:
            _add(running, ends[ended][1], -1)
            ended += 1
        brief: list[Mapping[str, int]] = []
        for start, end, counts in of_moment:
            if end is None or end > start:
                _add(running, counts, 1)
            else:
                brief.append(counts)
        for counts in [{}, *brief]:
            for name in {**running, **counts}:
                held = running.get(name, 0) + counts.get(name, 0)
                maxima[name] = max(maxima.get(name, 0), held)
    return {name: count for name, count in maxima.items() if count}


def _add(total: dict[str, int], counts: Mapping[str, int], sign: int) -> None:
    for name, count in counts.items():
        total[name] = total.get(name, 0) + sign * count


def _step(job: JobRecord, pod: Pod) -> JobRecord:
    return JobRecord(
        id=replace(job.id, step=pod.id),
        cluster=job.cluster,
        name=pod.ref.name,
        state=pod.state or None,
        exit_code=pod.exit_code,
        exit_signal=pod.exit_signal,
        start=pod.start,
        end=pod.end,
        nodes=None if pod.node is None else 1,
        node_list=pod.node,
        allocated=pod.counts,
    )
