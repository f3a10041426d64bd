"""omnistat: AMD GPUs by ROCm or AMD SMI, the host, and the job of the node in `rmsjob_info`.

`tensor_active` is the MFMA utilisation of ROCprofiler. `dram_active` is the activity of the memory
controllers, which the firmware of CDNA 3 derives from the bandwidth in use; NVIDIA counts cycles.
"""

from __future__ import annotations

from types import MappingProxyType

from tachograph.sources.exporter_mapping import OF_CAPACITY, ExporterMapping, LabelNames


def _ras_counts(
    blocks: tuple[str, ...], correctable: str, uncorrectable: str
) -> dict[str, tuple[str, ...]]:
    """Return the error counts of parts of a GPU, which are added up."""
    counters = {"correctable": correctable, "uncorrectable": uncorrectable}
    return {
        f"rocm_ras_{block}_{kind}_count": (counter, "count", "sum")
        for block in blocks
        for kind, counter in counters.items()
    }


EXPORTER = ExporterMapping(
    "omnistat",
    "ROCm/omnistat, docs/metrics.md",
    MappingProxyType(
        {
            "rocm_version_info": ("device", ""),
            "rocm_utilization_percentage": ("gpu_util", "percent"),
            "rocm_vram_busy_percentage": ("dram_active", "percent"),
            'omnistat_hardware_counter{name="MfmaUtil"}': ("tensor_active", "percent"),
            "rocm_vram_total_bytes": ("hbm_mib", "B"),
            "rocm_vram_used_bytes": ("hbm_used_mib", "B"),
            "rocm_vram_used_percentage": ("hbm_used_mib", OF_CAPACITY),
            "rocm_average_socket_power_watts": ("power_w", "W"),
            "rocm_energy_joules": ("energy_j", "J"),
            "rocm_temperature_celsius": ("gpu_temp_c", "C", "max location"),
            "rocm_temperature_memory_celsius": ("mem_temp_c", "C", "max location"),
            "rocm_sclk_clock_mhz": ("sm_clock_mhz", "MHz"),
            "rocm_mclk_clock_mhz": ("mem_clock_mhz", "MHz"),
            **_ras_counts(("umc", "sdma", "gfx", "mmhub", "pcie_bif", "hdp"), "ecc_sbe", "ecc_dbe"),
            **_ras_counts(("xgmi_wafl",), "nvlink_errors", "nvlink_errors"),
            "rmsjob_info": ("job", ""),
            "omnistat_rms_job_info": ("job", ""),
            "omnistat_mem_total_bytes": ("memory_total_mib", "B"),
            "omnistat_mem_available_bytes": ("memory_available_mib", "B"),
            "omnistat_host_cpu_load1": ("load_average", "count"),
            "omnistat_network_rx_bytes": ("network_rx_bytes", "B"),
            "omnistat_network_tx_bytes": ("network_tx_bytes", "B"),
        }
    ),
    LabelNames(gpu=("card",), model=("type",), job=("jobid",)),
    MappingProxyType(
        {
            "rocm_compute_unit_occupancy": (
                "the number of compute units in use, not the share of resident wavefronts"
            ),
        }
    ),
)
