"""all-smi: GPUs of several vendors, by index and UUID; `gpu` is the name of the model.

Its energy is power that it integrated itself, not the counter of the GPU.
"""

from __future__ import annotations

from types import MappingProxyType

from tachograph.sources.exporter_mapping import ExporterMapping, LabelNames

EXPORTER = ExporterMapping(
    "all-smi",
    "lablup/all-smi, API.md; src/api/metrics: gpu.rs, hardware.rs, mig.rs",
    MappingProxyType(
        {
            "all_smi_gpu_info": ("device", ""),
            "all_smi_gpu_utilization": ("gpu_util", "percent"),
            "all_smi_gpu_sm_occupancy": ("sm_occupancy", "fraction"),
            "all_smi_gpu_memory_bandwidth_utilization": ("dram_active", "fraction"),
            "all_smi_gpu_memory_used_bytes": ("hbm_used_mib", "B"),
            "all_smi_gpu_memory_total_bytes": ("hbm_mib", "B"),
            "all_smi_gpu_power_consumption_watts": ("power_w", "W"),
            "all_smi_gpu_temperature_celsius": ("gpu_temp_c", "C"),
            "all_smi_gpu_frequency_mhz": ("sm_clock_mhz", "MHz"),
            "all_smi_mig_instance_utilization_gpu": ("gpu_util", "percent"),
            "all_smi_mig_instance_memory_used_bytes": ("hbm_used_mib", "B"),
            "all_smi_mig_instance_memory_total_bytes": ("hbm_mib", "B"),
        }
    ),
    # Early versions call the labels `index` and `uuid`.
    LabelNames(
        gpu=("gpu_index", "index"),
        uuid=("gpu_uuid", "uuid"),
        mig=("gpu_instance_id",),
        model=("gpu",),
    ),
    MappingProxyType(
        {
            "all_smi_energy_consumed_joules_total": (
                "power integrated by all-smi, not the energy counter of the GPU"
            ),
        }
    ),
)
