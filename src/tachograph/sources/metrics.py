"""Metric names and labels: which counter a Prometheus metric is, which node, GPU and MIG slice its labels name.

Sources: dcgm-exporter (DCGM field names of both generations), node_exporter, and nvidia_gpu_prometheus_exporter as
Princeton's jobstats uses it. Exporters, relabelling rules and generations of dcgm-exporter spell labels differently. A
label that Prometheus renamed because of its own label of that name begins with `exported_`: it has the value of the
exporter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Literal

import msgspec

from tachograph.catalog.counters import (
    COUNTERS_BY_NAME,
    HOST_COUNTERS,
    HOST_UNITS,
    CounterKind,
    jobstats_names,
    outside_names,
)
from tachograph.catalog.errors import ConfigError, InputError
from tachograph.catalog.units import factor

# in order of preference; labels of the exporter come before those of the scraper
_NODE = ("exported_Hostname", "Hostname", "exported_hostname", "hostname", "nodename", "exported_node", "node", "host")
_ADDRESS = ("exported_instance", "instance")  # HOST:PORT of the exporter
_GPU = ("exported_gpu", "gpu", "gpu_id", "ordinal")  # as DCGM and NVML number GPUs
_MINOR = ("minor_number", "device")  # of the device file, another numbering
_MIG = ("GPU_I_ID", "gpu_i_id")
_UUID = ("UUID", "uuid", "gpu_uuid")
_PCI = ("pci_bus_id",)
_MODEL = ("modelName", "model_name", "name")
_JOB = ("hpc_job", "jobid", "slurm_job_id", "slurm_jobid", "slurm_job", "job_id", "slurmjobid", "hpc_job_id")
_STEP = ("slurm_step", "slurm_step_id", "slurm_stepid", "hpc_step", "step_id", "stepid", "jobstep", "step")
_PARTS_OF_A_GPU = ("nvlink", "nvswitch", "cpu", "cpucore")  # links, switches, Grace CPUs: not the GPU itself

# what stands where no job is, lower case
NO_JOB = frozenset({"", "0", "-1", "-", "n/a", "na", "nan", "none", "null", "(null)", "unknown", "<null>"})

# which label names the index; the better numbering first
OWN_INDEX, DCGM_INDEX, MINOR_NUMBER, NO_INDEX = range(4)

_INDEX = re.compile(r"(?:nvidia)?(\d{1,4})", re.ASCII)
_IPV4 = re.compile(r"\d+\.\d+\.\d+\.\d+", re.ASCII)
_ADDRESS_PARTS = re.compile(r"(?:\w+://)?(\[[^\]]*\]|[^/:]*)(?::\d+)?(?:/.*)?")
_HERE = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})  # every node calls itself so


class LabelNames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A site's own label names, tried before the usual ones."""

    node: tuple[str, ...] = ()
    gpu: tuple[str, ...] = ()
    mig: tuple[str, ...] = ()
    uuid: tuple[str, ...] = ()
    pci: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    job: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SeriesLocation:
    """What a set of labels names. Null: not in the labels; `mig` null: the whole GPU; `job` null: none.

    `rank`: of the label that names the index: a site's own, one of DCGM's numbering, a minor number, none.
    """

    node: str | None
    gpu: int | None = None
    mig: int | None = None
    uuid: str | None = None
    pci: str | None = None
    model: str | None = None
    job: str | None = None
    rank: int = NO_INDEX


@dataclass(frozen=True, slots=True)
class UnusableLabels:
    """Why a set of labels names no place: the reason it is counted under, and the label."""

    reason: str
    example: str


USUAL_LABELS = LabelNames()


def locate(labels: Mapping[str, str], *, names: LabelNames = USUAL_LABELS) -> SeriesLocation | UnusableLabels:
    """Return what the labels of one series name.

    >>> locate({"Hostname": "n1.example.org", "gpu": "0", "GPU_I_ID": "7", "UUID": "GPU-a", "hpc_job": "0"})
    SeriesLocation(node='n1', gpu=0, mig=7, uuid='GPU-a', pci=None, model=None, job=None, rank=1)
    >>> locate({"instance": "n2:9100", "device": "eth0"}).node
    'n2'
    >>> locate({"gpu": "all"})
    UnusableLabels(reason='bad_gpu', example='gpu=all')

    Misplaced: `bad_gpu` and `bad_mig`, an index that is no number; `not_a_gpu`, one link of a GPU, a switch, a CPU.
    """
    found = _gpu(labels, names.gpu)
    mig = _index(labels, (*names.mig, *_MIG), "bad_mig")
    if isinstance(found, UnusableLabels):
        return found
    if isinstance(mig, UnusableLabels):
        return mig
    gpu, rank = found
    uuid, pci = _first(labels, (*names.uuid, *_UUID)), _first(labels, (*names.pci, *_PCI))
    node = _node(labels, names.node)
    if gpu is None and uuid is None and pci is None:
        return SeriesLocation(node)
    part = next((name for name in _PARTS_OF_A_GPU if labels.get(name)), None)
    if part is not None:
        return UnusableLabels("not_a_gpu", f"{part}={labels[part]}"[:200])
    return SeriesLocation(
        node,
        gpu,
        mig,
        uuid,
        pci,
        _first(labels, (*names.model, *_MODEL)),
        job_of(_first(labels, (*names.job, *_JOB))),
        rank,
    )


def job_of(written: str | None) -> str | None:
    """Return the id of the job that holds a GPU, as an exporter writes it; None where no job does.

    >>> job_of("45916256"), job_of("4.5916256e+07"), job_of("0"), job_of("")
    ('45916256', '45916256', None, None)
    """
    if not written or not written.strip("0"):
        return None
    if written.isdigit():
        return written
    try:
        number = float(written)
    except ValueError:
        return written
    return str(int(number)) if 0 < number < 1e18 and number.is_integer() else None


def host_of(address: str) -> str | None:
    """Return the host of HOST:PORT or of a URL; None where every host is called so.

    >>> host_of("n1.example.org:9400"), host_of("[fe80::1]:9400"), host_of("http://n1:9400/metrics")
    ('n1.example.org', 'fe80::1', 'n1')
    >>> host_of("localhost:9400") is None
    True
    """
    found = _ADDRESS_PARTS.fullmatch(address.strip())
    host = found[1].strip("[]") if found else address.strip()
    return None if not host or host.lower() in _HERE else host


def short_node(host: str) -> str:
    """Return a host name without its domain; an IP address stays whole.

    >>> short_node("nid001.chn.example.org"), short_node("10.0.0.7"), short_node("fe80::1")
    ('nid001', '10.0.0.7', 'fe80::1')
    """
    return host if is_address(host) else host.partition(".")[0]


def is_address(host: str) -> bool:
    """Return whether a host is an IP address in place of a name.

    >>> is_address("10.0.0.7"), is_address("fe80::1"), is_address("n1")
    (True, True, False)
    """
    return ":" in host or _IPV4.fullmatch(host) is not None


def _first(labels: Mapping[str, str], wanted: tuple[str, ...]) -> str | None:
    return next((labels[name] for name in wanted if labels.get(name)), None)


def _node(labels: Mapping[str, str], own: tuple[str, ...]) -> str | None:
    """The first name; an address only where no label gives a name."""
    given = [labels[name] for name in (*own, *_NODE, *_ADDRESS) if labels.get(name)]
    hosts = [host for host in map(host_of, given) if host]
    best = next((host for host in hosts if not is_address(host)), hosts[0] if hosts else None)
    return None if best is None else short_node(best)


def _gpu(labels: Mapping[str, str], own: tuple[str, ...]) -> tuple[int | None, int] | UnusableLabels:
    """The index, and the rank of its label."""
    for rank, wanted in ((OWN_INDEX, own), (DCGM_INDEX, _GPU), (MINOR_NUMBER, _MINOR)):
        found = _index(labels, wanted, "bad_gpu")
        if isinstance(found, UnusableLabels):
            return found
        if found is not None:
            return found, rank
    return None, NO_INDEX


def _index(labels: Mapping[str, str], wanted: tuple[str, ...], reason: str) -> int | UnusableLabels | None:
    """The first index; `device` counts only where it names a GPU, since disks and interfaces are called so, too."""
    for name in wanted:
        written = labels.get(name)
        if not written:
            continue
        found = _INDEX.fullmatch(written)
        if found:
            return int(found[1])
        if name != "device":
            return UnusableLabels(reason, f"{name}={written}"[:200])
    return None


TableName = Literal["gpu_samples", "node_samples", "devices", "allocations"]
SiteMetrics = Mapping[str, tuple[str, str]]  # {a site's metric: (counter, unit it is written in)}
NO_SITE_METRICS: SiteMetrics = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class MetricTarget:
    """Where the values of a metric belong, and their unit.

    `devices`: a fact that hardly changes; `allocations`: the value is the id of the job that holds the GPU, 0 for none.
    `adds_up`: series of one node that differ in other labels (CPUs, interfaces) are added up. Otherwise they are the
    same value, written once for every job, pod or container.
    """

    table: TableName
    column: str
    unit: str
    adds_up: bool = False


@dataclass(frozen=True, slots=True)
class _MetricChoice:
    """A target for the series of a metric that have these labels."""

    target: MetricTarget
    labels: Mapping[str, str]

    def fits(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(name) == value for name, value in self.labels.items())


_CLOCK = "nvidia_gpu_clock"
_CLOCK_TYPES = (("sm", "sm_clock_mhz"), ("mem", "mem_clock_mhz"))
_FACTS = (
    ("DCGM_FI_DEV_FB_TOTAL", MetricTarget("devices", "hbm_mib", "MiB")),
    ("nvidia_gpu_memory_total_bytes", MetricTarget("devices", "hbm_mib", "B")),
    ("nvidia_gpu_jobId", MetricTarget("allocations", "job_id", "")),
)
NODE_INFO = "node_uname_info"  # node_exporter reports its host here and nowhere else
_LOOPBACK = "lo"


def metric_target(metric: str, labels: Mapping[str, str], *, own: SiteMetrics = NO_SITE_METRICS) -> MetricTarget | None:
    """Return where the values of a series belong; None for one that is unknown here.

    >>> metric_target("DCGM_FI_DEV_GPU_UTIL", {})
    MetricTarget(table='gpu_samples', column='gpu_util', unit='percent', adds_up=False)
    >>> metric_target("node_cpu_seconds_total", {"cpu": "3", "mode": "iowait"}).column
    'cpu_iowait_s'
    >>> metric_target("gpu_busy", {}, own={"gpu_busy": ("gpu_util", "fraction")}).unit
    'fraction'
    """
    if metric in own:
        return _own_target(*own[metric])
    choices = _choices().get(metric)
    if choices is None or labels.get("device") == _LOOPBACK:
        return None
    return next((choice.target for choice in choices if choice.fits(labels)), None)


def metric_target_of_all(metric: str, *, own: SiteMetrics = NO_SITE_METRICS) -> MetricTarget | None:
    """Return the target that every series of a metric has; None where it depends on their labels, or it is unknown.

    >>> metric_target_of_all("DCGM_FI_DEV_GPU_UTIL").column, metric_target_of_all("node_cpu_seconds_total")
    ('gpu_util', None)
    """
    if metric in own:
        return _own_target(*own[metric])
    choices = _choices().get(metric, ())
    alike = len(choices) == 1 and not choices[0].labels and not choices[0].target.adds_up
    return choices[0].target if alike else None


def metric_names(*, own: SiteMetrics = NO_SITE_METRICS) -> tuple[str, ...]:
    """Return every metric for which `metric_target` has a target."""
    return tuple(dict.fromkeys((*own, *_choices())))


def refuse_unknown_metrics(own: SiteMetrics, *, where: str) -> None:
    """Check a site's own metric names.

    Errors: ConfigError naming a counter that does not exist or a unit that cannot be converted.
    """
    for metric, (counter, unit) in own.items():
        inside = COUNTERS_BY_NAME[counter].unit if counter in COUNTERS_BY_NAME else HOST_UNITS.get(counter)
        if inside is None:
            what, do = f"metrics.{metric}: no counter {counter!r}", "see docs/counters.md"
            raise ConfigError(what, where=where, do=do)
        try:
            factor(unit, inside)
        except InputError as problem:
            raise ConfigError(f"metrics.{metric}: {problem.what}", where=where, do=problem.do) from None


def _own_target(counter: str, unit: str) -> MetricTarget:
    if counter in COUNTERS_BY_NAME:
        return MetricTarget("gpu_samples", counter, unit)
    return next(t for t in _host_targets(unit) if t.column == counter)


@cache
def _choices() -> Mapping[str, tuple[_MetricChoice, ...]]:
    """{metric: its targets, by the labels they require}"""
    found: dict[str, list[_MetricChoice]] = {}
    for metric, choice in _all_choices():
        found.setdefault(metric, []).append(choice)
    return MappingProxyType({metric: tuple(choices) for metric, choices in found.items()})


def _all_choices() -> Iterator[tuple[str, _MetricChoice]]:
    for metric, (counter, unit) in (*outside_names().items(), *jobstats_names().items()):
        if metric not in COUNTERS_BY_NAME:  # a metric called like one of our counters may be anything
            yield metric, _MetricChoice(MetricTarget("gpu_samples", counter, unit), {})
    for kind, counter in _CLOCK_TYPES:
        yield _CLOCK, _MetricChoice(MetricTarget("gpu_samples", counter, "MHz"), {"type": kind})
    for metric, fact in _FACTS:
        yield metric, _MetricChoice(fact, {})
    for counter_row, host in zip(HOST_COUNTERS, _host_targets(), strict=True):
        for metric, labels in counter_row.node_exporter:
            yield metric, _MetricChoice(host, labels)


def _host_targets(unit: str | None = None) -> Iterable[MetricTarget]:
    """One target per host counter, in `unit` or in that of node_exporter."""
    for counter in HOST_COUNTERS:
        given = unit or counter.node_exporter_unit or counter.unit
        yield MetricTarget("node_samples", counter.name, given, adds_up=counter.kind is CounterKind.CUMULATIVE)
