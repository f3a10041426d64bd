"""cc-metric-collector of ClusterCockpit, as `line_protocol.collector_page` writes its points.

Names are those of the collector, and those to which ClusterCockpit's examples change them. A name
ends with the unit where it is a tag; in another unit it is a metric that no row names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from tachograph.sources.exporter_mapping import ExporterMapping, LabelNames
from tachograph.sources.line_protocol import COLLECTOR_PREFIX

# {our unit: how units of the collector, and normalized ones, are written in a name}
_UNITS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "percent": ("_", "Percent"),
        "MiB": ("MByte", "MB"),
        "KiB": ("kB", "KB"),
        "B": ("bytes", "B"),
        "count": ("packets", "requests"),
        "W": ("watts", "Watt", "W"),
        "J": ("Joules", "J"),
        "C": ("degC",),
        "MHz": ("MHz",),
        "": (),
    }
)
_OF_GPUS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "nv_util": ("gpu_util", "percent"),
        "acc_utilization": ("gpu_util", "percent"),
        "nv_mem_util": ("mem_copy_util", "percent"),
        # what the collector calls MByte are 1024 * 1024 bytes
        "nv_fb_mem_used": ("hbm_used_mib", "MiB"),
        "acc_mem_used": ("hbm_used_mib", "MiB"),
        "nv_fb_mem_total": ("hbm_mib", "MiB"),
        "nv_power_usage": ("power_w", "W"),
        "acc_power": ("power_w", "W"),
        "nv_energy_abs": ("energy_j", "J"),
        "nv_temp": ("gpu_temp_c", "C"),
        "nv_sm_clock": ("sm_clock_mhz", "MHz"),
        "nv_mem_clock": ("mem_clock_mhz", "MHz"),
        "rocm_gfx_util": ("gpu_util", "percent"),
        "rocm_umc_util": ("dram_active", "percent"),
        "rocm_avg_power": ("power_w", "W"),
        "rocm_temp_hotspot": ("gpu_temp_c", "C"),
        "rocm_temp_mem": ("mem_temp_c", "C"),
        "rocm_gfx_clock": ("sm_clock_mhz", "MHz"),
        "rocm_u_clock": ("mem_clock_mhz", "MHz"),
    }
)
_OF_NODES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "load_one": ("load_average", "count"),
        "cpu_load": ("load_average", "count"),
        "mem_total": ("memory_total_mib", "KiB"),
        "mem_available": ("memory_available_mib", "KiB"),
        "net_bytes_in": ("network_rx_bytes", "B"),
        "net_bytes_out": ("network_tx_bytes", "B"),
        "net_pkts_in": ("network_rx_packets", "count"),
        "net_pkts_out": ("network_tx_packets", "count"),
        "ib_recv": ("network_rx_bytes", "B"),
        "ib_xmit": ("network_tx_bytes", "B"),
        "ib_recv_pkts": ("network_rx_packets", "count"),
        "ib_xmit_pkts": ("network_tx_packets", "count"),
        "lustre_read_bytes": ("fs_read_bytes", "B"),
        "lustre_write_bytes": ("fs_write_bytes", "B"),
        "lustre_read_requests": ("fs_read_operations", "count"),
        "lustre_write_requests": ("fs_write_operations", "count"),
        "gpfs_bytes_read": ("fs_read_bytes", "B"),
        "gpfs_bytes_written": ("fs_write_bytes", "B"),
        "gpfs_num_reads": ("fs_read_operations", "count"),
        "gpfs_num_writes": ("fs_write_operations", "count"),
    }
)
_PACKAGES = range(8)  # sockets of a node
_UNREAD: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            ("cpu_user", "cpu_nice", "cpu_system", "cpu_iowait", "cpu_idle"),
            "the share of the time since the last reading, not seconds of CPU time",
        ),
        **dict.fromkeys(
            ("job_mem_used", "job_user_cpu", "job_sys_cpu"),
            "of a hardware thread: no tag names the job",
        ),
        "nv_remapped_rows_corrected": "corrected and uncorrected rows have this one name",
    }
)


def _names(name: str, unit: str) -> Iterator[str]:
    for written in ("", *(f":{spelled}" for spelled in _UNITS[unit])):
        yield f"{COLLECTOR_PREFIX}{name}{written}"


def _metrics() -> Mapping[str, tuple[str, ...]]:
    rows: dict[str, tuple[str, ...]] = {}
    # A slice of MIG has stype="mig", and the name of its GPU.
    scopes = (('{type="accelerator",stype=""}', _OF_GPUS), ('{type="node"}', _OF_NODES))
    for labels, table in scopes:
        for name, (column, unit) in table.items():
            rows |= {f"{metric}{labels}": (column, unit) for metric in _names(name, unit)}
    # Zone psys has the others in it.
    for metric in _names("rapl_average_power", "W"):
        for package in _PACKAGES:
            labels = f'{{sub_zone_name="",zone_name="package-{package}"}}'
            rows[f"{metric}{labels}"] = ("cpu_power_w", "W", "sum id")
        rows[f'{metric}{{sub_zone_name="dram"}}'] = ("memory_power_w", "W", "sum id")
    return MappingProxyType(rows)


EXPORTER = ExporterMapping(
    "cc-metric-collector",
    "ClusterCockpit/cc-metric-collector, collectors: *.md, *.go (units)",
    _metrics(),
    LabelNames(pci=("pci_identifier",)),
    MappingProxyType(
        {metric: why for name, why in _UNREAD.items() for metric in _names(name, "percent")}
    ),
)
