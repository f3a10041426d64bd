"""cgroup_exporter: CPU time and memory of the cgroups of jobs and steps, also on shared nodes.

The original names the cgroup; Princeton's fork, which jobstats reads, names job, step and task.
Series of tasks are parts of those of their step. With cgroups of version 2 the original's resident
memory has the cache of files in it.
"""

from __future__ import annotations

from types import MappingProxyType

from tachograph.sources.exporter_mapping import ExporterMapping, LabelNames

EXPORTER = ExporterMapping(
    "cgroup_exporter",
    "treydock/cgroup_exporter, collector/collector.go; plazonic/cgroup_exporter, cgroup_exporter.go",
    MappingProxyType(
        {
            'cgroup_cpu_total_seconds{task=""}': ("job_cpu_s", "s"),
            'cgroup_memory_rss_bytes{task=""}': ("job_memory_mib", "B"),
            'cgroup_memory_total_bytes{task=""}': ("job_memory_limit_mib", "B"),
            'cgroup_cpus{task=""}': ("job_cpus", "count"),
        }
    ),
    LabelNames(job=("jobid",)),
)
