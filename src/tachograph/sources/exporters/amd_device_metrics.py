"""AMD device-metrics-exporter: lower-case, upper-case (early versions) or `amd_` names.

`tensor_active` is the MFMA utilisation. `dram_active` is the activity of the memory controllers
(UMC), which the firmware of CDNA 3 derives from the bandwidth in use; NVIDIA counts cycles.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from tachograph.sources.exporter_mapping import ExporterMapping, LabelNames

_T = TypeVar("_T")


def _reason(bit: int) -> tuple[str, ...]:
    """Return a reason for lower clocks, given where its metric is above 0."""
    return ("throttle_reasons", "bitmask", "sum", f"mark {bit}")


_METRICS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gpu_gfx_activity": ("gpu_util", "percent"),
        "gpu_umc_activity": ("dram_active", "percent"),
        "gpu_prof_tensor_active_percent": ("tensor_active", "percent"),
        "gpu_used_vram": ("hbm_used_mib", "MiB"),
        "gpu_used_visible_vram": ("hbm_used_mib", "MiB", "fallback"),
        "gpu_free_vram": ("hbm_free_mib", "MiB"),
        "gpu_free_visible_vram": ("hbm_free_mib", "MiB", "fallback"),
        "gpu_total_vram": ("hbm_mib", "MiB"),
        "gpu_package_power": ("power_w", "W"),
        "gpu_average_package_power": ("power_w", "W", "fallback"),
        "gpu_power_usage": ("power_w", "W", "fallback"),
        "gpu_energy_consumed": ("energy_j", "uJ"),
        "gpu_junction_temperature": ("gpu_temp_c", "C"),
        "gpu_edge_temperature": ("gpu_temp_c", "C", "fallback"),
        "gpu_memory_temperature": ("mem_temp_c", "C"),
        'gpu_clock{clock_type="GPU_CLOCK_TYPE_SYSTEM"}': ("sm_clock_mhz", "MHz", "max clock_index"),
        'gpu_clock{clock_type="GPU_CLOCK_TYPE_MEMORY"}': (
            "mem_clock_mhz",
            "MHz",
            "max clock_index",
        ),
        'gpu_clock{clock_type="system"}': ("sm_clock_mhz", "MHz", "max clock_index"),
        'gpu_clock{clock_type="memory"}': ("mem_clock_mhz", "MHz", "max clock_index"),
        "pcie_replay_count": ("pcie_replays", "count"),
        "gpu_ecc_correct_total": ("ecc_sbe", "count"),
        "gpu_ecc_uncorrect_total": ("ecc_dbe", "count"),
        "gpu_ecc_correct_xgmi_wafl": ("nvlink_errors", "count", "sum"),
        "gpu_ecc_uncorrect_xgmi_wafl": ("nvlink_errors", "count", "sum"),
        # shares of the time in which clocks were lowered for a reason, as NVIDIA's bits
        "gpu_violation_ppt_residency_percentage": _reason(0x04),
        "gpu_violation_vr_thermal_residency_percentage": _reason(0x08),
        "gpu_violation_socket_thermal_residency_percentage": _reason(0x20),
        "gpu_violation_hbm_thermal_residency_percentage": _reason(0x20),
        "gpu_violation_processor_hot_residency_percentage": _reason(0x40),
    }
)
_UNREAD: Mapping[str, str] = MappingProxyType(
    {
        "gpu_prof_sm_active": (
            "the share of time with vector instructions (VALU busy), not with resident wavefronts"
        ),
        "gpu_prof_occupancy_percent": "occupancy while the GPU is active, not per elapsed cycle",
    }
)


def _spelled(table: Mapping[str, _T]) -> Mapping[str, _T]:
    """The table under every spelling of its names."""
    spellings: dict[str, _T] = {}
    for written, value in table.items():
        name, brace, rest = written.partition("{")
        spellings |= {
            f"{spelling}{brace}{rest}": value for spelling in (name, name.upper(), f"amd_{name}")
        }
    return MappingProxyType(spellings)


EXPORTER = ExporterMapping(
    "AMD device-metrics-exporter",
    "ROCm/device-metrics-exporter, docs/configuration/metricslist.md",
    _spelled(_METRICS),
    LabelNames(model=("card_series", "card_model"), job=("job_id",), pci=("pcie_bus_id",)),
    _spelled(_UNREAD),
)
