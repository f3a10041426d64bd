"""nvidia_gpu_exporter: fields of nvidia-smi, GPUs by UUID, index in an info metric."""

from __future__ import annotations

from types import MappingProxyType

from tachograph.sources.exporter_mapping import ExporterMapping, LabelNames

EXPORTER = ExporterMapping(
    "nvidia_gpu_exporter",
    "utkuozdemir/nvidia_gpu_exporter, METRICS.md",
    MappingProxyType(
        {
            "nvidia_smi_gpu_info": ("device", ""),
            "nvidia_smi_index": ("index", ""),
            "nvidia_smi_utilization_gpu_ratio": ("gpu_util", "fraction"),
            "nvidia_smi_utilization_memory_ratio": ("mem_copy_util", "fraction"),
            "nvidia_smi_memory_used_bytes": ("hbm_used_mib", "B"),
            "nvidia_smi_memory_free_bytes": ("hbm_free_mib", "B"),
            "nvidia_smi_memory_total_bytes": ("hbm_mib", "B"),
            "nvidia_smi_power_draw_watts": ("power_w", "W"),
            "nvidia_smi_power_draw_average_watts": ("power_w", "W", "fallback"),
            "nvidia_smi_energy_joules_total": ("energy_j", "J"),
            "nvidia_smi_temperature_gpu": ("gpu_temp_c", "C"),
            "nvidia_smi_temperature_memory": ("mem_temp_c", "C"),
            "nvidia_smi_clocks_current_sm_clock_hz": ("sm_clock_mhz", "Hz"),
            "nvidia_smi_clocks_current_memory_clock_hz": ("mem_clock_mhz", "Hz"),
            "nvidia_smi_clocks_event_reasons_active": ("throttle_reasons", "bitmask"),
            "nvidia_smi_clocks_throttle_reasons_active": (
                "throttle_reasons",
                "bitmask",
                "fallback",
            ),
            "nvidia_smi_remapped_rows_uncorrectable": ("remapped_rows_uncorrectable", "count"),
            "nvidia_smi_remapped_rows_correctable": ("remapped_rows_correctable", "count"),
            "nvidia_smi_ecc_errors_corrected_volatile_total": ("ecc_sbe", "count"),
            "nvidia_smi_ecc_errors_uncorrected_volatile_total": ("ecc_dbe", "count"),
            "nvidia_smi_remapped_rows_failure": ("row_remap_failure", "flag"),
            "nvidia_smi_pcie_throughput_tx_bytes_per_second": ("pcie_tx_bytes_per_s", "B/s"),
            "nvidia_smi_pcie_throughput_rx_bytes_per_second": ("pcie_rx_bytes_per_s", "B/s"),
            "nvidia_smi_mig_memory_used_bytes": ("hbm_used_mib", "B"),
            "nvidia_smi_mig_memory_free_bytes": ("hbm_free_mib", "B"),
            "nvidia_smi_mig_memory_total_bytes": ("hbm_mib", "B"),
            "nvidia_smi_mig_graphics_activity_ratio": ("gr_engine_active", "fraction"),
            "nvidia_smi_mig_sm_activity_ratio": ("sm_active", "fraction"),
            "nvidia_smi_mig_sm_occupancy_ratio": ("sm_occupancy", "fraction"),
            "nvidia_smi_mig_tensor_activity_ratio": ("tensor_active", "fraction"),
            "nvidia_smi_mig_pcie_throughput_tx_bytes_per_second": ("pcie_tx_bytes_per_s", "B/s"),
            "nvidia_smi_mig_pcie_throughput_rx_bytes_per_second": ("pcie_rx_bytes_per_s", "B/s"),
        }
    ),
    LabelNames(gpu=("index",), mig=("gpu_instance_id",)),
)
