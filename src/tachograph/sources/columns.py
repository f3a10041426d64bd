"""What producers call their columns: which one is the time, the node, the GPU, a counter, a fact about the device.

Counters come from the catalogue; here are the keys, and the names that a file may carry without meaning a counter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from tachograph.counters import COUNTERS, outside_names
from tachograph.sources.host_columns import INSTANCE_NAMES, UNITS, HostColumns, Meaning, gathered
from tachograph.sources.host_columns import meaning as host_meaning

# in order of preference, lower case
TIME_NAMES = ("t", "ts_ns", "timestamp", "ts", "time", "#time", "datetime", "date_time")
NODE_NAMES = ("node", "hostname", "producername", "host", "nodename")
GPU_NAMES = ("gpu", "gpu_id", "gpuid", "gpu_index")
MIG_NAMES = ("mig", "gpu_i_id", "gpu_instance_id")
NODE_VALUES: Mapping[str, str] = MappingProxyType(
    {
        "cpu_power": "cpu_power_w",
        "memory_power": "memory_power_w",
        "node_power": "node_power_w",
        "cpu_power_w": "cpu_power_w",
        "memory_power_w": "memory_power_w",
        "node_power_w": "node_power_w",
    }
)
DEVICE_VALUES: Mapping[str, str] = MappingProxyType(
    {
        "uuid": "uuid",
        "gpu_uuid": "uuid",
        "pci": "pci",
        "pci_bus_id": "pci",
        "model": "model",
        "modelname": "model",
        "gpu_model": "model",
        "hbm_mib": "hbm_mib",
        "nersc_ldms_dcgm_fb_total": "hbm_mib",
        "dcgm_fi_dev_fb_total": "hbm_mib",
    }
)
# row numbers, jobs (who held a GPU is for the accounting to say), and LDMS's own bookkeeping;
# component_id is the number of the node, not of the GPU
IGNORED = frozenset(
    {"", "(last)", "index", "unnamed: 0", "__index_level_0__", "jobid", "job_id", "job id", "app_id", "userid"}
    | {"component_id", "time_usec", "dt_usec", "seq"}
)


@dataclass(frozen=True, slots=True)
class Recognised:
    """The columns of a file by what they mean. Null: the file has none."""

    time: str | None
    node: str | None
    gpu: str | None
    mig: str | None
    counters: Mapping[str, tuple[str, str]]  # file column -> (counter, unit)
    node_values: Mapping[str, str]  # file column -> column of node_samples
    device_values: Mapping[str, str]  # file column -> column of devices
    host: Mapping[str, HostColumns]  # host counter -> the file's columns that add up to it
    instance: str | None  # what tells rows of one node apart, where host counters come in a row each
    repeated: tuple[str, ...]  # a second column for what another one already gives
    unknown: tuple[str, ...]

    @property
    def used(self) -> tuple[str, ...]:
        """Columns worth reading."""
        keys = (self.time, self.node, self.gpu, self.mig, self.instance)
        host = (name for found in self.host.values() for name in found.columns)
        told = (name for name in keys if name is not None)
        return tuple(dict.fromkeys((*told, *self.counters, *self.node_values, *host, *self.device_values)))


@cache
def counter_names() -> Mapping[str, tuple[str, str]]:
    """Return {name in lower case: (counter, unit)}: the catalogue's names, and the LDMS names without prefix.

    >>> counter_names()["gpu_utilization"], counter_names()["gpu_power"]
    (('gpu_util', 'percent'), ('power_w', 'W'))
    """
    names = {name.lower(): meaning for name, meaning in outside_names().items()}
    for counter in COUNTERS:
        if counter.ldms_name and counter.ldms_unit:
            names.setdefault(counter.ldms_name, (counter.name, counter.ldms_unit))
    names["gpu_power"] = ("power_w", "W")
    return MappingProxyType(names)


def recognise(names: Iterable[str], sampler: str = "") -> Recognised:
    """Return what the columns called `names` mean; case does not matter. `sampler`: of LDMS, where the file tells.

    >>> found = recognise(["index", "#Time", "ProducerName", "gpu_id", "fb_used", "fan"])
    >>> found.time, found.node, found.gpu, dict(found.counters), found.unknown
    ('#Time', 'ProducerName', 'gpu_id', {'fb_used': ('hbm_used_mib', 'MiB')}, ('fan',))
    """
    repeated: list[str] = []
    given: dict[str, str] = {}
    for name in names:
        lower = name.lower().strip()
        if lower in given:
            repeated.append(name)
        else:
            given[lower] = name
    time, node, gpu, mig = (_first(given, wanted) for wanted in (TIME_NAMES, NODE_NAMES, GPU_NAMES, MIG_NAMES))
    counters: dict[str, tuple[str, str]] = {}
    node_values: dict[str, str] = {}
    device_values: dict[str, str] = {}
    hosts: list[tuple[str, Meaning]] = []
    unknown: list[str] = []
    taken: set[str] = set()
    for lower, name in given.items():
        if name in (time, node, gpu, mig) or lower in IGNORED:
            continue
        meaning = counter_names().get(lower)
        into = meaning[0] if meaning else NODE_VALUES.get(lower) or DEVICE_VALUES.get(lower)
        if into is None and (of_host := host_meaning(name, sampler)):
            hosts.append((name, of_host))
        elif into is None:
            unknown.append(name)
        elif into in taken:
            repeated.append(name)
        elif meaning:
            counters[name] = meaning
        elif lower in NODE_VALUES:
            node_values[name] = into
        else:
            device_values[name] = into
        if into is not None:
            taken.add(into)
    host, again = gathered((name, means) for name, means in hosts if means.counter not in taken)
    instance = _first(given, INSTANCE_NAMES) if host and gpu is None else None
    if host:  # all that is known of nodes goes one way
        host |= {column: HostColumns((name,), UNITS[column]) for name, column in node_values.items()}
        node_values = {}
    left = tuple(name for name in unknown if name != instance)
    return Recognised(
        time, node, gpu, mig, counters, node_values, device_values, host, instance, (*repeated, *again), left
    )


def _first(given: Mapping[str, str], wanted: Iterable[str]) -> str | None:
    return next((given[name] for name in wanted if name in given), None)
