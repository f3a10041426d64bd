"""slurm-job-exporter: GPUs of running jobs, each series with the job that holds the GPU.

With DCGM `slurm_job_utilization_gpu` is the activity of the SMs, and `..._gpu_memory` that of the
memory; with NVML both are NVML's utilisation. `gpu` is the index within the job on nodes that
confine devices.
"""

from __future__ import annotations

from types import MappingProxyType

from tachograph.sources.exporter_mapping import ExporterMapping, LabelNames

EXPORTER = ExporterMapping(
    "slurm-job-exporter",
    "guilbaults/slurm-job-exporter, slurm-job-exporter.py",
    MappingProxyType(
        {
            "slurm_job_utilization_gpu": ("gpu_util", "percent"),
            "slurm_job_utilization_gpu_memory": ("mem_copy_util", "percent"),
            "slurm_job_memory_usage_gpu": ("hbm_used_mib", "B"),
            "slurm_job_memory_total_gpu": ("hbm_mib", "B"),
            "slurm_job_power_gpu": ("power_w", "mW"),
            "slurm_job_sm_active_gpu": ("sm_active", "percent"),
            "slurm_job_sm_occupancy_gpu": ("sm_occupancy", "percent"),
            "slurm_job_tensor_gpu": ("tensor_active", "percent"),
            "slurm_job_fp64_gpu": ("fp64_active", "percent"),
            "slurm_job_fp32_gpu": ("fp32_active", "percent"),
            "slurm_job_fp16_gpu": ("fp16_active", "percent"),
            'slurm_job_pcie_gpu{direction="tx"}': ("pcie_tx_bytes_per_s", "B/s"),
            'slurm_job_pcie_gpu{direction="rx"}': ("pcie_rx_bytes_per_s", "B/s"),
            'slurm_job_nvlink_gpu{direction="tx"}': ("nvlink_tx_bytes_per_s", "B/s"),
            'slurm_job_nvlink_gpu{direction="rx"}': ("nvlink_rx_bytes_per_s", "B/s"),
        }
    ),
    LabelNames(job=("slurmjobid",), model=("gpu_type",)),
)
