"""Intel XPU Manager 1.x: GPUs by DRM device, PCI address and UUID; `sub_dev` is a tile.

Values of a GPU have no `sub_dev`; memory in use, clocks and temperatures of several tiles have only
theirs. `dram_active` is the share of the bandwidth in use; NVIDIA counts cycles. Read for the Max
1550. No page of the program was read yet.
"""

from __future__ import annotations

from types import MappingProxyType

from tachograph.sources.exporter_mapping import ExporterMapping, LabelNames

EXPORTER = ExporterMapping(
    "Intel XPU Manager",
    "intel/xpumanager (1.x), rest/prometheus_exporter: prometheus_exporter_types.py",
    MappingProxyType(
        {
            'xpum_engine_ratio{sub_dev=""}': ("gpu_util", "fraction"),
            'xpum_memory_bandwidth_ratio{sub_dev=""}': ("dram_active", "fraction"),
            "xpum_memory_used_bytes": ("hbm_used_mib", "B", "sum sub_dev"),
            'xpum_power_watts{sub_dev="",card=""}': ("power_w", "W"),
            'xpum_energy_joules_total{sub_dev=""}': ("energy_j", "J"),
            'xpum_temperature_celsius{location="gpu"}': ("gpu_temp_c", "C", "max sub_dev"),
            'xpum_temperature_celsius{location="mem"}': ("mem_temp_c", "C", "max sub_dev"),
            'xpum_frequency_mhz{location="gpu",type="actual"}': (
                "sm_clock_mhz",
                "MHz",
                "max sub_dev",
            ),
        }
    ),
    LabelNames(gpu=("dev_file",), uuid=("uuid",), pci=("pci_bdf",), model=("dev_name",)),
    MappingProxyType(
        {
            "xpum_eu_active_ratio": (
                "cycles in which EUs executed instructions, not those with a thread resident"
            ),
            "xpum_eu_stall_ratio": "cycles in which EUs were stalled",
        }
    ),
)
