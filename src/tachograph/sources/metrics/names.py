"""Which counter a Prometheus metric is: DCGM, node_exporter, jobstats' GPU exporter, and a site's own names.

Sources: dcgm-exporter (DCGM field names of both generations), node_exporter, and nvidia_gpu_prometheus_exporter as
Princeton's jobstats uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Literal

from tachograph.counters import BY_NAME, Kind, outside_names
from tachograph.errors import ConfigError, InputError
from tachograph.host_counters import HOST_COUNTERS
from tachograph.units import factor

TableName = Literal["gpu_samples", "node_samples", "devices", "allocations"]
Own = Mapping[str, tuple[str, str]]  # {a site's metric: (counter, unit it is written in)}
NO_OWN: Own = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Target:
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
class _Choice:
    """A target for the series of a metric that have these labels."""

    target: Target
    labels: Mapping[str, str]

    def fits(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(name) == value for name, value in self.labels.items())


# The *_percent and *_util metrics of this exporter carry 0..1: it divides what GPM says by 100.
_JOBSTATS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "nvidia_gpu_duty_cycle": ("gpu_util", "percent"),
        "nvidia_gpu_memory_used_bytes": ("hbm_used_mib", "B"),
        "nvidia_gpu_power_usage_milliwatts": ("power_w", "mW"),
        "nvidia_gpu_temperature_celsius": ("gpu_temp_c", "C"),
        "nvidia_gpu_clock_event_reason": ("throttle_reasons", "bitmask"),
        "nvidia_gpu_graphics_util_percent": ("gr_engine_active", "fraction"),
        "nvidia_gpu_sm_util_percent": ("sm_active", "fraction"),
        "nvidia_gpu_sm_occupancy_percent": ("sm_occupancy", "fraction"),
        "nvidia_gpu_any_tensor_util_percent": ("tensor_active", "fraction"),
        "nvidia_gpu_dram_bw_util_percent": ("dram_active", "fraction"),
        "nvidia_gpu_fp64_util_percent": ("fp64_active", "fraction"),
        "nvidia_gpu_fp32_util_percent": ("fp32_active", "fraction"),
        "nvidia_gpu_fp16_util_percent": ("fp16_active", "fraction"),
        "nvidia_gpu_pcie_tx_per_sec": ("pcie_tx_bytes_per_s", "B/s"),
        "nvidia_gpu_pcie_rx_per_sec": ("pcie_rx_bytes_per_s", "B/s"),
        "nvidia_gpu_nvlink_total_tx_per_sec": ("nvlink_tx_bytes_per_s", "B/s"),
        "nvidia_gpu_nvlink_total_rx_per_sec": ("nvlink_rx_bytes_per_s", "B/s"),
    }
)
_CLOCK = "nvidia_gpu_clock"
_CLOCK_TYPES = (("sm", "sm_clock_mhz"), ("mem", "mem_clock_mhz"))
_FACTS = (
    ("DCGM_FI_DEV_FB_TOTAL", Target("devices", "hbm_mib", "MiB")),
    ("nvidia_gpu_memory_total_bytes", Target("devices", "hbm_mib", "B")),
    ("nvidia_gpu_jobId", Target("allocations", "job_id", "")),
)
NODE_INFO = "node_uname_info"  # node_exporter tells its host here and nowhere else
_LOOPBACK = "lo"
_HOST_UNITS: Mapping[str, str] = MappingProxyType({counter.name: counter.unit for counter in HOST_COUNTERS})


def target(metric: str, labels: Mapping[str, str], *, own: Own = NO_OWN) -> Target | None:
    """Return where the values of a series belong; None for one that nobody here knows.

    >>> target("DCGM_FI_DEV_GPU_UTIL", {})
    Target(table='gpu_samples', column='gpu_util', unit='percent', adds_up=False)
    >>> target("node_cpu_seconds_total", {"cpu": "3", "mode": "iowait"}).column
    'cpu_iowait_s'
    >>> target("gpu_busy", {}, own={"gpu_busy": ("gpu_util", "fraction")}).unit
    'fraction'
    """
    if metric in own:
        return _own_target(*own[metric])
    choices = _choices().get(metric)
    if choices is None or labels.get("device") == _LOOPBACK:
        return None
    return next((choice.target for choice in choices if choice.fits(labels)), None)


def target_of_all(metric: str, *, own: Own = NO_OWN) -> Target | None:
    """Return the target that every series of a metric has; None where it depends on their labels, or nobody knows it.

    >>> target_of_all("DCGM_FI_DEV_GPU_UTIL").column, target_of_all("node_cpu_seconds_total")
    ('gpu_util', None)
    """
    if metric in own:
        return _own_target(*own[metric])
    choices = _choices().get(metric, ())
    alike = len(choices) == 1 and not choices[0].labels and not choices[0].target.adds_up
    return choices[0].target if alike else None


def metric_names(*, own: Own = NO_OWN) -> tuple[str, ...]:
    """Return every metric that `target` knows."""
    return tuple(dict.fromkeys((*own, *_choices())))


def refuse_unknown(own: Own, *, where: str) -> None:
    """Check a site's own metric names.

    Errors: ConfigError naming a counter that does not exist or a unit that cannot be converted.
    """
    for metric, (counter, unit) in own.items():
        inside = BY_NAME[counter].unit if counter in BY_NAME else _HOST_UNITS.get(counter)
        if inside is None:
            what, do = f"metrics.{metric}: no counter {counter!r}", "see docs/counters.md"
            raise ConfigError(what, where=where, do=do)
        try:
            factor(unit, inside)
        except InputError as problem:
            raise ConfigError(f"metrics.{metric}: {problem.what}", where=where, do=problem.do) from None


def _own_target(counter: str, unit: str) -> Target:
    if counter in BY_NAME:
        return Target("gpu_samples", counter, unit)
    return next(t for t in _host_targets(unit) if t.column == counter)


@cache
def _choices() -> Mapping[str, tuple[_Choice, ...]]:
    """{metric: its targets, by the labels they ask for}"""
    found: dict[str, list[_Choice]] = {}
    for metric, choice in _all_choices():
        found.setdefault(metric, []).append(choice)
    return MappingProxyType({metric: tuple(choices) for metric, choices in found.items()})


def _all_choices() -> Iterator[tuple[str, _Choice]]:
    for metric, (counter, unit) in (*outside_names().items(), *_JOBSTATS.items()):
        if metric not in BY_NAME:  # a metric called like one of our counters may be anything
            yield metric, _Choice(Target("gpu_samples", counter, unit), {})
    for kind, counter in _CLOCK_TYPES:
        yield _CLOCK, _Choice(Target("gpu_samples", counter, "MHz"), {"type": kind})
    for metric, fact in _FACTS:
        yield metric, _Choice(fact, {})
    for counter_row, host in zip(HOST_COUNTERS, _host_targets(), strict=True):
        for metric, labels in counter_row.node_exporter:
            yield metric, _Choice(host, labels)


def _host_targets(unit: str | None = None) -> Iterable[Target]:
    """One target per host counter, in `unit` or in that of node_exporter."""
    for counter in HOST_COUNTERS:
        given = unit or counter.node_exporter_unit or counter.unit
        yield Target("node_samples", counter.name, given, adds_up=counter.kind is Kind.CUMULATIVE)
