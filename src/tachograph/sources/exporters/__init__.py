"""Further exporters: one module each with its EXPORTER, and a line here."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from tachograph.sources.exporter_mapping import ExporterMapping

EXPORTER_MODULES: tuple[str, ...] = (
    "dcgm_errors",
    "nvidia_gpu_exporter",
    "slurm_job_exporter",
    "omnistat",
    "amd_device_metrics",
    "all_smi",
    "ceems",
    "xpumanager",
    "cgroup_exporter",
    "cc_metric_collector",
    "redfish",
)


@cache
def exporter_mappings() -> tuple[ExporterMapping, ...]:
    """Return all mappings by EXPORTER_MODULES; the first for a metric wins."""
    mappings: list[ExporterMapping] = []
    for name in EXPORTER_MODULES:
        mapping: ExporterMapping = import_module(f"{__name__}.{name}").EXPORTER
        mappings.append(mapping)
    return tuple(mappings)
