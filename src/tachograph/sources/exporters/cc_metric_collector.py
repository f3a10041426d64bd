"""cc-metric-collector of ClusterCockpit, as `line_protocol.collector_page` writes its points.

Names are those of the collector, and those to which ClusterCockpit's examples change them. A name
ends with the unit where it is a tag; in another unit it is a metric that no row names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from tachograph.sources.exporter_mapping import ExporterMapping, LabelNames, written_unit
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
_OF_GPUS: Mapping[str, str] = MappingProxyType(
    {
        "nv_util": "gpu_util",
        "acc_utilization": "gpu_util",
        "nv_mem_util": "mem_copy_util",
        # what the collector calls MByte are 1024 * 1024 bytes
        "nv_fb_mem_used": "hbm_used_mib",
        "acc_mem_used": "hbm_used_mib",
        "nv_fb_mem_total": "hbm_mib",
        "nv_power_usage": "power_w",
        "acc_power": "power_w",
        "nv_energy_abs": "energy_j",
        "nv_temp": "gpu_temp_c",
        "nv_sm_clock": "sm_clock_mhz",
        "nv_mem_clock": "mem_clock_mhz",
        "rocm_gfx_util": "gpu_util",
        "rocm_umc_util": "dram_active",
        "rocm_avg_power": "power_w",
        "rocm_temp_hotspot": "gpu_temp_c",
        "rocm_temp_mem": "mem_temp_c",
        "rocm_gfx_clock": "sm_clock_mhz",
        "rocm_u_clock": "mem_clock_mhz",
    }
)
_OF_NODES: Mapping[str, str] = MappingProxyType(
    {
        "load_one": "load_average",
        "cpu_load": "load_average",
        "mem_total": "memory_total_mib",
        "mem_available": "memory_available_mib",
        "net_bytes_in": "network_rx_bytes",
        "net_bytes_out": "network_tx_bytes",
        "net_pkts_in": "network_rx_packets",
        "net_pkts_out": "network_tx_packets",
        "ib_recv": "network_rx_bytes",
        "ib_xmit": "network_tx_bytes",
        "ib_recv_pkts": "network_rx_packets",
        "ib_xmit_pkts": "network_tx_packets",
        "lustre_read_bytes": "fs_read_bytes",
        "lustre_write_bytes": "fs_write_bytes",
        "lustre_read_requests": "fs_read_operations",
        "lustre_write_requests": "fs_write_operations",
        "gpfs_bytes_read": "fs_read_bytes",
        "gpfs_bytes_written": "fs_write_bytes",
        "gpfs_num_reads": "fs_read_operations",
        "gpfs_num_writes": "fs_write_operations",
    }
)
_OTHER_UNITS: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(("mem_total", "mem_available"), "KiB")
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
        for name, column in table.items():
            unit = _OTHER_UNITS.get(name) or written_unit(column)
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
