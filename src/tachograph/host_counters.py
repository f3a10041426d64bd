"""The catalogue of host counters: what a node's own monitoring says beside its GPUs; one row per counter.

Sources: Prometheus node_exporter (metric names and labels; its perf collector is off unless asked for) and
lustre_exporter; LDMS samplers procstat, procstat2, meminfo, loadavg, procnetdev, lustre_client, lustre2_client and
papi, as their sources name the metrics. Cumulative counters are kept as they count, summed over a node's CPUs,
interfaces or file systems; rates follow from differences. A counter is added by one row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tachograph.counters import Kind, Storage


@dataclass(frozen=True, slots=True)
class HostCounter:
    """One host counter: its unit inside, valid range, and its names and units at the producers.

    `node_exporter`: (metric, {label: value}); values of series that differ in other labels are added up.
    `ldms`: (sampler, metric); a metric that exists once per CPU, interface or file system is added up.
    """

    name: str
    kind: Kind
    unit: str
    sentence: str
    node_exporter: tuple[tuple[str, Mapping[str, str]], ...] = ()
    node_exporter_unit: str | None = None
    ldms: tuple[tuple[str, str], ...] = ()
    ldms_unit: str | None = None
    low: float = 0.0
    high: float = float("inf")
    storage: Storage = "f64"
    zero_is_missing: bool = False


_I, _C = Kind.INSTANT, Kind.CUMULATIVE


def _cpu(mode: str) -> tuple[tuple[str, Mapping[str, str]], ...]:
    return (("node_cpu_seconds_total", MappingProxyType({"mode": mode})),)


def _metrics(*names: str) -> tuple[tuple[str, Mapping[str, str]], ...]:
    return tuple((name, MappingProxyType({})) for name in names)


HOST_COUNTERS: tuple[HostCounter, ...] = (
    HostCounter("cpu_user_s", _C, "s", "Time of all CPUs in user code.",
                _cpu("user"), "s", (("procstat", "user"),), "jiffy"),
    HostCounter("cpu_nice_s", _C, "s", "Time of all CPUs in user code of lowered priority.",
                _cpu("nice"), "s", (("procstat", "nice"),), "jiffy"),
    HostCounter("cpu_system_s", _C, "s", "Time of all CPUs in the kernel.",
                _cpu("system"), "s", (("procstat", "sys"), ("procstat2", "system")), "jiffy"),
    HostCounter("cpu_iowait_s", _C, "s", "Time of all CPUs waiting for I/O.",
                _cpu("iowait"), "s", (("procstat", "iowait"),), "jiffy"),
    HostCounter("cpu_idle_s", _C, "s", "Time of all CPUs with nothing to do.",
                _cpu("idle"), "s", (("procstat", "idle"),), "jiffy"),
    HostCounter("load_average", _I, "count", "Runnable tasks, averaged over one minute.",
                _metrics("node_load1"), "count", (("loadavg", "load1min"),), "count", high=1e6),
    HostCounter("memory_total_mib", _I, "MiB", "Host memory.",
                _metrics("node_memory_MemTotal_bytes"), "B", (("meminfo", "MemTotal"),), "KiB", high=1 << 30),
    HostCounter("memory_available_mib", _I, "MiB", "Host memory that programs could still have.",
                _metrics("node_memory_MemAvailable_bytes"), "B", (("meminfo", "MemAvailable"),), "KiB", high=1 << 30),
    HostCounter("network_rx_bytes", _C, "B", "Bytes received by all interfaces but the loopback.",
                _metrics("node_network_receive_bytes_total", "node_infiniband_port_data_received_bytes_total"), "B",
                (("procnetdev", "rx_bytes"),), "B"),
    HostCounter("network_tx_bytes", _C, "B", "Bytes sent by all interfaces but the loopback.",
                _metrics("node_network_transmit_bytes_total", "node_infiniband_port_data_transmitted_bytes_total"), "B",
                (("procnetdev", "tx_bytes"),), "B"),
    HostCounter("network_rx_packets", _C, "count", "Packets received by all interfaces but the loopback.",
                _metrics("node_network_receive_packets_total", "node_infiniband_port_packets_received_total"), "count",
                (("procnetdev", "rx_packets"),), "count"),
    HostCounter("network_tx_packets", _C, "count", "Packets sent by all interfaces but the loopback.",
                _metrics("node_network_transmit_packets_total", "node_infiniband_port_packets_transmitted_total"),
                "count", (("procnetdev", "tx_packets"),), "count"),
    HostCounter("fs_read_bytes", _C, "B", "Bytes read from parallel file systems.",
                _metrics("lustre_read_bytes_total"), "B",
                (("lustre_client", "read_bytes.sum"), ("lustre2_client", "read_bytes")), "B"),
    HostCounter("fs_write_bytes", _C, "B", "Bytes written to parallel file systems.",
                _metrics("lustre_write_bytes_total"), "B",
                (("lustre_client", "write_bytes.sum"), ("lustre2_client", "write_bytes")), "B"),
    HostCounter("fs_read_operations", _C, "count", "Reads from parallel file systems.",
                _metrics("lustre_read_samples_total"), "count"),
    HostCounter("fs_write_operations", _C, "count", "Writes to parallel file systems.",
                _metrics("lustre_write_samples_total"), "count"),
    HostCounter("l1_misses", _C, "count", "Misses of the first-level data caches.",
                _metrics("node_perf_cache_l1d_read_misses_total"), "count", (("papi", "PAPI_L1_DCM"),), "count"),
    HostCounter("llc_misses", _C, "count", "Misses of the last-level caches.",
                _metrics("node_perf_cache_ll_read_misses_total"), "count", (("papi", "PAPI_L3_TCM"),), "count"),
    HostCounter("cpu_power_w", _I, "W", "Power drawn by the CPUs.", high=1e5),
    HostCounter("memory_power_w", _I, "W", "Power drawn by host memory.", high=1e5),
    HostCounter("node_power_w", _I, "W", "Power drawn by the node.", high=1e6),
)  # fmt: skip
