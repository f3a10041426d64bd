"""CEEMS: which job holds which GPU, the host; its GPUs are those of dcgm-exporter or AMD's.

`uuid` is the job where the manager is Slurm. Chassis of Redfish may hold other nodes, too.
"""

from __future__ import annotations

from types import MappingProxyType

from tachograph.sources.exporter_mapping import ExporterMapping, LabelNames

_MODES = ("user", "nice", "system", "iowait", "idle")

EXPORTER = ExporterMapping(
    "CEEMS",
    "ceems-dev/ceems, pkg/collector; pages of its tests in pkg/collector/testdata/output",
    MappingProxyType(
        {
            'ceems_compute_unit_gpu_index_flag{manager="slurm"}': ("job", ""),
            **{
                f'ceems_cpu_seconds_total{{mode="{mode}"}}': (f"cpu_{mode}_s", "s")
                for mode in _MODES
            },
            "ceems_meminfo_MemTotal_bytes": ("memory_total_mib", "B"),
            "ceems_meminfo_MemAvailable_bytes": ("memory_available_mib", "B"),
            "ceems_netdev_receive_bytes_total": ("network_rx_bytes", "B"),
            "ceems_netdev_transmit_bytes_total": ("network_tx_bytes", "B"),
            "ceems_netdev_receive_packets_total": ("network_rx_packets", "count"),
            "ceems_netdev_transmit_packets_total": ("network_tx_packets", "count"),
            "ceems_rdma_port_data_received_bytes_total": ("network_rx_bytes", "B"),
            "ceems_rdma_port_data_transmitted_bytes_total": ("network_tx_bytes", "B"),
            "ceems_rdma_port_packets_received_total": ("network_rx_packets", "count"),
            "ceems_rdma_port_packets_transmitted_total": ("network_tx_packets", "count"),
            'ceems_cray_pm_counters_power_watts{domain="node"}': ("node_power_w", "W"),
            'ceems_cray_pm_counters_power_watts{domain="cpu"}': ("cpu_power_w", "W"),
            'ceems_cray_pm_counters_power_watts{domain="memory"}': ("memory_power_w", "W"),
            "ceems_ipmi_dcmi_power_current_watts": ("node_power_w", "W", "fallback"),
            "ceems_ipmi_dcmi_current_watts": ("node_power_w", "W", "fallback"),  # early versions
            # the same as node_exporter's, which a node may have, too
            "ceems_rapl_package_joules_total": ("cpu_energy_j", "J", "fallback"),
            "ceems_rapl_dram_joules_total": ("memory_energy_j", "J", "fallback"),
        }
    ),
    LabelNames(gpu=("index",), uuid=("gpuuuid",), mig=("gpuiid",), job=("uuid",)),
)
