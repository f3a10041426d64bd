"""Metric names and labels: counter of a metric; node, GPU and MIG slice of labels.

Sources: dcgm-exporter (DCGM field names of both generations), node_exporter, and
nvidia_gpu_prometheus_exporter as Princeton's jobstats uses it. Exporters, relabelling rules and
generations of dcgm-exporter spell labels differently. A label that Prometheus renamed because of
its own label of that name begins with `exported_`: it has the value of the exporter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from math import nan
from types import MappingProxyType
from typing import Literal

import numpy as np

from tachograph.catalog.arrays import Floats
from tachograph.catalog.chunks import CLUSTER_MARK, GpuNumbering
from tachograph.catalog.counters import (
    COUNTERS_BY_NAME,
    HOST_COUNTERS,
    JOB_UNITS,
    CounterKind,
    jobstats_names,
    outside_names,
)
from tachograph.catalog.errors import ConfigError, InputError
from tachograph.catalog.units import factor
from tachograph.sources.exporter_mapping import (
    HOLDER,
    JOB_NUMBER,
    MAPPED_FACTS,
    OF_CAPACITY,
    USUAL_LABELS,
    LabelNames,
    MetricJoining,
    MetricKey,
    column_unit,
)
from tachograph.sources.exporters import exporter_mappings
from tachograph.sources.job_ids import is_slurm_job

# in order of preference; labels of the exporter come before those of the scraper
_NODE = (
    "exported_Hostname",
    "Hostname",
    "exported_hostname",
    "hostname",
    "nodename",
    "exported_node",
    "node",
    "host",
)
_ADDRESS = ("exported_instance", "instance")  # HOST:PORT of the exporter
_GPU = ("exported_gpu", "gpu", "gpu_id", "ordinal")  # as DCGM and NVML number GPUs
_MINOR = ("minor_number", "device")  # of the device file, another numbering
_MIG = ("GPU_I_ID", "gpu_i_id")
_PROFILE = ("GPU_I_PROFILE", "gpu_i_profile")
_UUID = ("UUID", "uuid", "gpu_uuid")
_PCI = ("pci_bus_id",)
_MODEL = ("modelName", "model_name", "name")
_CLUSTER = ("exported_cluster", "cluster", "Cluster")
# jobs and steps: lower case, as any exporter spells them; `job` is the scraper's own
_JOB = (
    "hpc_job",
    "jobid",
    "slurm_job_id",
    "slurm_jobid",
    "slurm_job",
    "job_id",
    "slurmjobid",
    "hpc_job_id",
)
_STEP = (
    "slurm_step",
    "slurm_step_id",
    "slurm_stepid",
    "hpc_step",
    "job_step",
    "jobstep",
    "step_id",
    "stepid",
    "step",
)
_EXPORTED = "exported_"
# pod, namespace, container of dcgm-exporter: renamed by Prometheus, as written, old names
_PODS = (
    ("exported_pod", "exported_namespace", "exported_container"),
    ("pod", "namespace", "container"),
    ("pod_name", "pod_namespace", "container_name"),
)
_WITH_JOBS = ("slurmd",)  # containers whose GPUs Slurm hands on to its jobs
# Links, switches, Grace CPUs: not the GPU itself.
_PARTS_OF_A_GPU = ("nvlink", "nvswitch", "cpu", "cpucore")

# what stands where no job is, lower case
NO_JOB = frozenset(
    {"", "0", "-1", "-", "n/a", "na", "nan", "none", "null", "(null)", "unknown", "<null>"}
)

_JOB_LABELS, _STEP_LABELS = (
    tuple(spelled for name in names for spelled in (f"{_EXPORTED}{name}", name))
    for names in (_JOB, _STEP)
)

# which label names the index; the better numbering first
OWN_INDEX, DCGM_INDEX, MINOR_NUMBER, NO_INDEX = range(4)
NUMBERINGS: Mapping[int, GpuNumbering] = MappingProxyType(
    {DCGM_INDEX: "nvml_index", MINOR_NUMBER: "minor_number"}
)

_INDEX = re.compile(r"(?:nvidia|card)?(\d{1,4})", re.ASCII)
_WRITTEN_UUID = re.compile(r"(?:GPU|MIG)-\S+", re.IGNORECASE)
_BARE_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)
# of Slurm: /slurm/uid_1000/job_12/step_0, /system.slice/slurmstepd.scope/job_12
_JOB_CGROUP = re.compile(r"/\S*/job_(\d{1,20})(?:/step_(\w{1,20}))?", re.ASCII)
_CODE = re.compile(r"\d{1,6}", re.ASCII)
_IPV4 = re.compile(r"\d+\.\d+\.\d+\.\d+", re.ASCII)
_ADDRESS_PARTS = re.compile(r"(?:\w+://)?(\[[^\]]*\]|[^/:]*)(?::\d+)?(?:/.*)?")
_HERE = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})  # every node calls itself so


@dataclass(frozen=True, slots=True)
class SeriesLocation:
    """Place named by labels. Null: not named; `mig` null: the whole GPU.

    `profile`: of the MIG slice. `job`: id of the job that holds it, with the step behind a dot
    where one is named; null: none.

    `rank`: of the label that names the index: a site's own, one of DCGM's numbering, a minor
    number, none.
    """

    node: str | None
    gpu: int | None = None
    mig: int | None = None
    uuid: str | None = None
    pci: str | None = None
    model: str | None = None
    job: str | None = None
    rank: int = NO_INDEX
    profile: str | None = None
    cluster: str | None = None

    def place(self, node: str | None) -> str | None:
        """Return a node with the cluster of these labels."""
        if node is None or self.cluster is None:
            return node
        return f"{node}{CLUSTER_MARK}{self.cluster}"


@dataclass(frozen=True, slots=True)
class UnusableLabels:
    """Why labels name no place: reason for the count, and the label."""

    reason: str
    example: str


def locate(
    labels: Mapping[str, str], *, names: LabelNames = USUAL_LABELS, over: str = ""
) -> SeriesLocation | UnusableLabels:
    """Return the place named by a series's labels.

    >>> found = locate({"Hostname": "n1.example.org", "gpu": "0", "GPU_I_ID": "7", "cluster": "a"})
    >>> found.node, found.gpu, found.mig, found.job, found.cluster
    ('n1', 0, 7, None, 'a')
    >>> locate({"instance": "n2:9100", "device": "eth0"}).node
    'n2'
    >>> locate({"gpu": "all"})
    UnusableLabels(reason='bad_gpu', example='gpu=all')

    over: the label of the parts of a GPU whose values are joined. Misplaced: `bad_gpu` and
    `bad_mig`, an index that is no number; `not_a_gpu`, one link of a GPU, a switch, a CPU.
    """
    unit = _gpu(labels, names.gpu)
    mig = _index(labels, (*names.mig, *_MIG), "bad_mig")
    if isinstance(unit, UnusableLabels):
        return unit
    if isinstance(mig, UnusableLabels):
        return mig
    gpu, rank = unit
    uuid, pci = _uuid(labels, names), _first(labels, (*names.pci, *_PCI))
    node = _node(labels, names.node)
    job = _job(labels, names.job)
    cluster = _first(labels, names.cluster or _CLUSTER)
    if gpu is None and uuid is None and pci is None:
        return SeriesLocation(node, job=job, cluster=cluster)
    part = next((name for name in _PARTS_OF_A_GPU if labels.get(name) and name != over), None)
    if part is not None:
        return UnusableLabels("not_a_gpu", f"{part}={labels[part]}"[:200])
    return SeriesLocation(
        node,
        gpu,
        mig,
        uuid,
        pci,
        _first(labels, (*names.model, *_MODEL)),
        job,
        rank,
        None if mig is None else _first(labels, _PROFILE),
        cluster,
    )


def _job(labels: Mapping[str, str], site_labels: tuple[str, ...]) -> str | None:
    """Job named by labels, with its step, 123.0, if another label has it."""
    folded = {name.lower(): value for name, value in labels.items() if value}
    group = _JOB_CGROUP.fullmatch(folded.get("cgroup", ""))
    if group is not None:
        return f"{group[1]}.{group[2]}" if group[2] else group[1]
    job = job_of(_first(labels, site_labels) or _first(folded, _JOB_LABELS))
    if job is None:
        return _pod(folded)
    if "." in job or not is_slurm_job(job):
        return job
    step = (_first(folded, _STEP_LABELS) or "").strip()
    named = step.lower() not in NO_JOB - {"0"} and not step.startswith("-") and " " not in step
    return f"{job}.{step.rpartition('.')[2]}" if named else job


def _pod(labels: Mapping[str, str]) -> str | None:
    """Return the pod that holds a GPU, as POD.NAMESPACE.

    An idle GPU has no such labels from the exporter: those of its own pod are the scraper's.
    """
    for pod_label, namespace_label, container_label in _PODS:
        pod, namespace = labels.get(pod_label), labels.get(namespace_label)
        if not pod or not namespace:
            continue
        container = labels.get(container_label, "")
        if container in _WITH_JOBS or "exporter" in container or "exporter" in pod:
            return None
        name = f"{pod}.{namespace}"
        # A slash makes it no job id, so that it is counted: it would be a step of a Slurm job.
        return f"{namespace}/{pod}" if is_slurm_job(name) else name
    return None


def job_of(written: str | None) -> str | None:
    """Return the job id on a GPU, as an exporter writes it; None without a job.

    >>> job_of("45916256"), job_of("4.5916256e+07"), job_of("123_4"), job_of("0"), job_of("")
    ('45916256', '45916256', '123_4', None, None)
    """
    if not written or not written.strip("0") or written.strip().lower() in NO_JOB:
        return None
    if written.isdigit() or "_" in written:  # an array task, which Python would take for a number
        return written
    try:
        number = float(written)
    except ValueError:
        return written
    return str(int(number)) if 0 < number < 1e18 and number.is_integer() else None


def host_of(address: str) -> str | None:
    """Return the host of HOST:PORT or a URL; None for names that every host has.

    >>> host_of("n1.example.org:9400"), host_of("[fe80::1]:9400"), host_of("http://n1:9400/metrics")
    ('n1.example.org', 'fe80::1', 'n1')
    >>> host_of("localhost:9400") is None
    True
    """
    match = _ADDRESS_PARTS.fullmatch(address.strip())
    host = match[1].strip("[]") if match else address.strip()
    return None if not host or host.lower() in _HERE else host


def short_node(host: str) -> str:
    """Return a host name without its domain; an IP address stays whole.

    >>> short_node("nid001.chn.example.org"), short_node("10.0.0.7"), short_node("fe80::1")
    ('nid001', '10.0.0.7', 'fe80::1')
    """
    return host if is_address(host) else host.partition(".")[0]


def is_address(host: str) -> bool:
    """Return whether a host is an IP address.

    >>> is_address("10.0.0.7"), is_address("fe80::1"), is_address("n1")
    (True, True, False)
    """
    return ":" in host or _IPV4.fullmatch(host) is not None


def _first(labels: Mapping[str, str], candidates: tuple[str, ...]) -> str | None:
    return next((labels[name] for name in candidates if labels.get(name)), None)


def _uuid(labels: Mapping[str, str], names: LabelNames) -> str | None:
    """Return the UUID, with the `GPU-` prefix that nvidia-smi exporters strip."""
    of_site = _first(labels, names.uuid)
    uuid = of_site or _first(labels, _UUID)
    if uuid is None:
        return next(
            (
                labels[name]
                for name in (*names.gpu, *_GPU)
                if _WRITTEN_UUID.fullmatch(labels.get(name, ""))
            ),
            None,
        )
    stripped = of_site is None and not labels.get("gpu_uuid") and _BARE_UUID.fullmatch(uuid)
    return f"GPU-{uuid.lower()}" if stripped else uuid


def _node(labels: Mapping[str, str], site_labels: tuple[str, ...]) -> str | None:
    """First host name; an address only without any name."""
    nodes = [labels[name] for name in (*site_labels, *_NODE, *_ADDRESS) if labels.get(name)]
    hosts = [host for host in map(host_of, nodes) if host]
    best = next((host for host in hosts if not is_address(host)), hosts[0] if hosts else None)
    return None if best is None else short_node(best)


def _gpu(
    labels: Mapping[str, str], site_labels: tuple[str, ...]
) -> tuple[int | None, int] | UnusableLabels:
    """The index, and the rank of its label."""
    for rank, candidates in ((OWN_INDEX, site_labels), (DCGM_INDEX, _GPU), (MINOR_NUMBER, _MINOR)):
        index = _index(labels, candidates, "bad_gpu")
        if isinstance(index, UnusableLabels):
            return index
        if index is not None:
            return index, rank
    return None, NO_INDEX


def _index(
    labels: Mapping[str, str], candidates: tuple[str, ...], reason: str
) -> int | UnusableLabels | None:
    """Return the first index; `device` counts only for GPUs, as disks use it, too."""
    for name in candidates:
        written = labels.get(name)
        if not written or _WRITTEN_UUID.fullmatch(written):
            continue
        match = _INDEX.fullmatch(written)
        if match:
            return int(match[1])
        if name != "device":
            return UnusableLabels(reason, f"{name}={written}"[:200])
    return None


TableName = Literal["gpu_samples", "node_samples", "job_node_samples", "devices", "allocations"]
# {METRIC{label="value"}: (column, unit it is written in, joining...)}.
SiteMetrics = Mapping[str, tuple[str, ...]]
NO_SITE_METRICS: SiteMetrics = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class MetricTarget:
    """Target of a metric's values, and their unit.

    `devices`: a fact that hardly changes; `allocations`: the value is the id of the job that holds
    the GPU, 0 for none, or (`job`) the labels name it. `adds_up`: series of one node that differ in
    other labels (CPUs, interfaces) are added up. Otherwise they are the same value, written once
    for every job, pod or container. `joining`: how parts of one GPU are joined; `part`: the part of
    one series; `mark`: what stands for its values above 0. `labels`: names of the exporter.
    """

    table: TableName
    column: str
    unit: str
    adds_up: bool = False
    joining: MetricJoining = field(default=MetricJoining(), repr=False)
    part: str = field(default="", repr=False)
    mark: float | None = field(default=None, repr=False)
    labels: LabelNames = field(default=USUAL_LABELS, compare=False, repr=False)

    def of_part(self, labels: Mapping[str, str]) -> MetricTarget:
        """Return the target of the part that the labels of a series name."""
        part = labels.get(self.joining.over, "") if self.joining.over else ""
        if self.joining.code:
            code = float(part) if _CODE.fullmatch(part) else nan
            return replace(self, part=part, mark=code)
        return replace(self, part=part) if part else self

    def marked(self, values: Floats) -> Floats:
        """Return the values of series as those of the column; without its mark 0 remains 0."""
        if self.mark is None:
            return values
        return np.where(values > 0, self.mark, np.minimum(values, 0.0))


@dataclass(frozen=True, slots=True)
class _MetricChoice:
    """A target for the series of a metric that have the labels of the key."""

    target: MetricTarget
    key: MetricKey
    exporter: str = ""  # that writes it; of dcgm-exporter and node_exporter its names tell


_CLOCK = "nvidia_gpu_clock"
_CLOCK_TYPES = (("sm", "sm_clock_mhz"), ("mem", "mem_clock_mhz"))
_FACTS = (
    ("DCGM_FI_DEV_FB_TOTAL", MetricTarget("devices", "hbm_mib", "MiB")),
    ("nvidia_gpu_memory_total_bytes", MetricTarget("devices", "hbm_mib", "B")),
    ("nvidia_gpu_jobId", MetricTarget("allocations", "job_id", "")),
)
NODE_INFO = "node_uname_info"  # node_exporter reports its host here and nowhere else
_LOOPBACK = "lo"
_ANY: Mapping[str, str] = MappingProxyType({})  # labels


def metric_target(
    metric: str, labels: Mapping[str, str], *, own: SiteMetrics = NO_SITE_METRICS
) -> MetricTarget | None:
    """Return the target of a series; None if unknown.

    >>> metric_target("DCGM_FI_DEV_GPU_UTIL", {})
    MetricTarget(table='gpu_samples', column='gpu_util', unit='percent', adds_up=False)
    >>> metric_target("node_cpu_seconds_total", {"cpu": "3", "mode": "iowait"}).column
    'cpu_iowait_s'
    >>> metric_target("gpu_busy", {}, own={"gpu_busy": ("gpu_util", "fraction")}).unit
    'fraction'
    """
    choices = _choices_of(metric, own)
    if not choices or _LOOPBACK in (labels.get("device"), labels.get("interface")):
        return None
    target = next((choice.target for choice in choices if choice.key.fits(labels)), None)
    return None if target is None else target.of_part(labels)


def metric_target_of_all(metric: str, *, own: SiteMetrics = NO_SITE_METRICS) -> MetricTarget | None:
    """Return the target common to all series of a metric; None if labels decide.

    >>> metric_target_of_all("DCGM_FI_DEV_GPU_UTIL").column, metric_target_of_all("node_cpu_seconds_total")
    ('gpu_util', None)
    """
    choices = _choices_of(metric, own)
    alike = len(choices) == 1 and not choices[0].key.labels
    target = choices[0].target if alike else None
    return None if target is None or target.adds_up or target.joining.over else target


def metric_names(*, own: SiteMetrics = NO_SITE_METRICS) -> tuple[str, ...]:
    """Return every metric with a target in `metric_target`, and those of `why_unread`."""
    return tuple(
        dict.fromkeys(
            (*(MetricKey.parse(written).metric for written in own), *_choices(), *_unread())
        )
    )


def why_unread(metric: str) -> str | None:
    """Return why a metric like a counter is not read; None for others.

    >>> why_unread("gpu_prof_sm_active")
    'the share of time with vector instructions (VALU busy), not with resident wavefronts'
    """
    return _unread().get(metric)


_DCGM_EXPORTER = "dcgm-exporter"
_JOBSTATS = "jobstats' exporter"


def exporter_of(metric: str) -> str:
    """Return the name of the exporter that writes a GPU metric; "" if unknown.

    >>> exporter_of("DCGM_FI_DEV_GPU_UTIL"), exporter_of("gpu_gfx_activity"), exporter_of("own_metric")
    ('dcgm-exporter', 'AMD device-metrics-exporter', '')
    """
    return _DCGM_EXPORTER if metric.startswith("DCGM_") else _exporters().get(metric, "")


@cache
def exporter_metrics(exporter: str) -> Mapping[str, str]:
    """Return {column: first metric it is read from} of an exporter; {} for dcgm-exporter.

    >>> exporter_metrics("AMD device-metrics-exporter")["tensor_active"]
    'gpu_prof_tensor_active_percent'
    """
    return MappingProxyType(
        {
            choice.target.column: choice.key.metric
            for choice in reversed(_known_metrics())
            if choice.exporter == exporter != _DCGM_EXPORTER
        }
    )


@cache
def _exporters() -> Mapping[str, str]:
    """Return {metric: exporter}, without dcgm-exporter."""
    return MappingProxyType(
        {
            choice.key.metric: choice.exporter
            for choice in reversed(_known_metrics())
            if choice.exporter
        }
    )


def refuse_unknown_metrics(metrics: SiteMetrics, *, where: str) -> None:
    """Check a site's own metrics.

    Errors: ConfigError naming a counter that does not exist, a unit that cannot be converted,
    another notation.
    """
    for written, (counter, *rest) in metrics.items():
        inside = column_unit(counter)
        if inside is None:
            what, do = f"metrics.{written}: unknown counter {counter!r}", "see docs/counters.md"
            raise ConfigError(what, where=where, do=do)
        try:
            MetricKey.parse(written)
            MetricJoining.parse(rest[1:])
            if not rest:
                raise ValueError("the unit is missing")
            if rest[0] != OF_CAPACITY or counter not in COUNTERS_BY_NAME:
                factor(rest[0], inside)
        except InputError as problem:
            raise ConfigError(
                f"metrics.{written}: {problem.what}", where=where, do=problem.do
            ) from None
        except ValueError as problem:
            do = """write it like 'METRIC{label="value"}' = ["counter", "unit"], with "sum LABEL" after the unit"""
            raise ConfigError(f"metrics.{written}: {problem}", where=where, do=do) from None


def _mapped(metric: str, rule: tuple[str, ...], labels: LabelNames = USUAL_LABELS) -> MetricTarget:
    """The target of one line of a mapping."""
    column, unit = rule[0], rule[1]
    joining = MetricJoining.parse(rule[2:])
    if column in COUNTERS_BY_NAME:
        part = metric if joining.metrics else ""
        mark = joining.mark
        return MetricTarget(
            "gpu_samples", column, unit, joining=joining, part=part, mark=mark, labels=labels
        )
    if column in MAPPED_FACTS:
        table: TableName = "allocations" if column in (HOLDER, JOB_NUMBER) else "devices"
        return MetricTarget(table, column, unit, labels=labels)
    if column in JOB_UNITS:
        return MetricTarget("job_node_samples", column, unit, labels=labels)
    host = next(target for target in _host_targets(unit) if target.column == column)
    return replace(host, joining=joining, labels=labels)


def _choices_of(metric: str, site_metrics: SiteMetrics) -> tuple[_MetricChoice, ...]:
    choices = _own_choices(tuple(site_metrics.items())).get(metric) if site_metrics else None
    return choices or _choices().get(metric, ())


@lru_cache(maxsize=64)
def _own_choices(
    site_metrics: tuple[tuple[str, tuple[str, ...]], ...],
) -> Mapping[str, tuple[_MetricChoice, ...]]:
    return _by_metric(
        _MetricChoice(_mapped(written, rule), MetricKey.parse(written))
        for written, rule in site_metrics
    )


def _by_metric(choices: Iterable[_MetricChoice]) -> Mapping[str, tuple[_MetricChoice, ...]]:
    by_name: dict[str, tuple[_MetricChoice, ...]] = {}
    for choice in choices:
        by_name[choice.key.metric] = (*by_name.get(choice.key.metric, ()), choice)
    return MappingProxyType(by_name)


@cache
def _unread() -> Mapping[str, str]:
    return MappingProxyType(
        {
            name: why
            for exporter_mapping in exporter_mappings()
            for name, why in exporter_mapping.unread.items()
        }
    )


@cache
def _choices() -> Mapping[str, tuple[_MetricChoice, ...]]:
    """{metric: its targets, by the labels they require}"""
    return _by_metric(_known_metrics())


@cache
def _known_metrics() -> tuple[_MetricChoice, ...]:
    return tuple(_all_choices())


def _all_choices() -> Iterator[_MetricChoice]:
    of_counters = [
        *((metric, means, "") for metric, means in outside_names().items()),
        *((metric, means, _JOBSTATS) for metric, means in jobstats_names().items()),
    ]
    for metric, (counter, unit), exporter in of_counters:
        # A metric called like one of our counters may be anything.
        if metric not in COUNTERS_BY_NAME:
            target = MetricTarget("gpu_samples", counter, unit)
            yield _MetricChoice(target, MetricKey(metric, _ANY), exporter)
    for kind, counter in _CLOCK_TYPES:
        target = MetricTarget("gpu_samples", counter, "MHz")
        yield _MetricChoice(target, MetricKey(_CLOCK, {"type": kind}))
    for metric, fact in _FACTS:
        yield _MetricChoice(fact, MetricKey(metric, _ANY))
    for counter_row, host in zip(HOST_COUNTERS, _host_targets(), strict=True):
        for metric, labels in counter_row.node_exporter:
            yield _MetricChoice(host, MetricKey(metric, labels))
    for mapping in exporter_mappings():
        for written, rule in mapping.metrics.items():
            target = _mapped(written, rule, mapping.labels)
            yield _MetricChoice(target, MetricKey.parse(written), mapping.name)


def _host_targets(unit: str | None = None) -> Iterable[MetricTarget]:
    """Return one target per host counter, in `unit` or node_exporter's unit."""
    for counter in HOST_COUNTERS:
        metric_unit = unit or counter.node_exporter_unit or counter.unit
        yield MetricTarget(
            "node_samples",
            counter.name,
            metric_unit,
            adds_up=counter.kind is CounterKind.CUMULATIVE,
        )
