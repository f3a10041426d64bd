"""The tables of the lake: grain, columns, units, and the meaning of null in each.

Source of the metrics of job summaries: Cankur, Austin, Kulkarni, Bhatele, "Characterizing
Production GPU Workloads using System-wide Telemetry Data" (IPDPS 2026); variations are options of
the analysis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import polars as pl

from tachograph.catalog.counters import (
    COUNTERS,
    HOST_COUNTERS,
    JOB_COUNTERS,
    Counter,
    CounterKind,
    HostCounter,
)
from tachograph.catalog.table_columns import (
    HOST_USE,
    NOT_KNOWN,
    NOT_MEASURED,
    RECORDED_USE,
    TASK_GPU_USE,
    XID_EVENTS,
    TableColumn,
    count,
    energy,
    flag,
    host_use,
    imbalances,
    index,
    pm_sampling,
    real,
    recorded_use,
    roofline,
    scores,
    speed,
    statistics,
    text,
    texts,
    time,
    waste,
)
from tachograph.catalog.table_columns import TIME as TIME
from tachograph.catalog.table_columns import LakeTable as LakeTable

STORAGE_TYPES: Mapping[str, pl.DataType] = {
    "f32": pl.Float32(),
    "f64": pl.Float64(),
    "i64": pl.Int64(),
}


GPU_KEY = ("node", "gpu", "mig")  # one GPU, or one MIG slice of it

_T = time("t", "When the value was read.", None)
_NODE = text("node", "Host name, short form.", None)
_GPU = index("gpu", "Index of the GPU on its node.", None)
_MIG = index("mig", "GPU instance id of a MIG slice.", "the whole GPU")
_SEQ = count(
    "seq",
    "Version of the table in which the row was committed: of rows with the same key the "
    "highest version wins.",
    None,
    unit="",
)
_CLUSTER = text("cluster", "Slurm cluster.", "one cluster only, or not recorded")
_JOB_ID = text(
    "job_id", "Raw job id (JobIDRaw): unique for each array task and het component.", None
)


def _counter_column(counter: Counter | HostCounter) -> TableColumn:
    return TableColumn(
        counter.name, STORAGE_TYPES[counter.storage], counter.unit, counter.sentence, NOT_MEASURED
    )


GPU_SAMPLES = LakeTable(
    "gpu_samples",
    "one row per (node, cluster, gpu, mig, t)",
    ("node", "cluster", "gpu", "mig", "t"),
    (_T, _CLUSTER, _NODE, _GPU, _MIG, *map(_counter_column, COUNTERS), _SEQ),
    sort=("node", "cluster", "gpu", "mig", "t"),
    by_day=True,
)
NODE_SAMPLES = LakeTable(
    "node_samples",
    "one row per (node, cluster, t)",
    ("node", "cluster", "t"),
    (_T, _CLUSTER, _NODE, *map(_counter_column, HOST_COUNTERS), _SEQ),
    sort=("node", "cluster", "t"),
    by_day=True,
)
_STEP = text(
    "step",
    "Step of the job, as Slurm names it: 0, 1, batch, extern.",
    "the whole job, or the step is not known",
)
JOB_NODE_SAMPLES = LakeTable(
    "job_node_samples",
    "one row per (job_id, step, node, cluster, t): what a job used of a node",
    ("job_id", "step", "node", "cluster", "t"),
    (_T, _CLUSTER, _NODE, _JOB_ID, _STEP, *map(_counter_column, JOB_COUNTERS), _SEQ),
    sort=("job_id", "step", "node", "cluster", "t"),
    by_day=True,
)
_PM_KEY = ("node", "cluster", "gpu", "mig", "t")
GPU_SCORES = LakeTable(
    "gpu_scores",
    "one row per (node, cluster, gpu, mig, t): at most a minute of PM sampling",
    _PM_KEY,
    (_T, _CLUSTER, _NODE, _GPU, _MIG, *pm_sampling(), _SEQ),
    sort=_PM_KEY,
    by_day=True,
)
DEVICES = LakeTable(
    "devices",
    "one row per (node, cluster, gpu, mig) as last seen",
    ("node", "cluster", "gpu", "mig"),
    (
        _CLUSTER,
        _NODE,
        _GPU,
        _MIG,
        text("uuid", "UUID of the GPU."),
        text("pci", "PCI bus address."),
        index("nvml_index", "Index by NVML and DCGM, which count in the order of PCI addresses."),
        index("minor_number", "Number of the device file, /dev/nvidia0 ..."),
        text("model", "Model as the driver writes it."),
        text("mig_profile", "Profile of the MIG slice: 1g.10gb.", "the whole GPU, or not known"),
        real("hbm_mib", "MiB", "Capacity of device memory, as reported.", NOT_KNOWN),
        real(
            "usable_mib",
            "MiB",
            "Memory used plus free in samples: capacity less reserved memory.",
            NOT_KNOWN,
        ),
        text(
            "history",
            "JSON: [uuid, from, to] of the GPUs that had this index; uuid null: sources contradict "
            "each other.",
            "always the same GPU",
        ),
        _SEQ,
    ),
    sort=("node", "cluster", "gpu", "mig"),
)
JOBS = LakeTable(
    "jobs",
    "one row per run of a job: (cluster, job_id, submit); a requeued job has several",
    ("cluster", "job_id", "submit"),
    (
        _CLUSTER,
        _JOB_ID,
        text(
            "display_id",
            "Job id as people write it: 123, 123_4 (array), 123+1 (het).",
            "same as job_id",
        ),
        text("array_job_id", "Id of the array the task belongs to.", "not an array task"),
        count(
            "array_task_id", "Index of the task in its array.", "not an array task", unit="index"
        ),
        text(
            "het_job_id",
            "Id of the heterogeneous job the component belongs to.",
            "not heterogeneous",
        ),
        count("het_offset", "Position of the component.", "not heterogeneous", unit="index"),
        text("name", "Job name."),
        text("user", "User name."),
        text("account", "Account or project."),
        text("partition", "Partition."),
        text("qos", "Quality of service."),
        text(
            "state",
            (
                "Base state: PENDING, RUNNING, COMPLETED, FAILED, CANCELLED, TIMEOUT, "
                "OUT_OF_MEMORY, ..."
            ),
        ),
        count("exit_code", "Exit code of the batch script.", NOT_KNOWN, unit="code"),
        count("exit_signal", "Signal that ended it.", "none or not known", unit="signal"),
        time("submit", "When it was submitted."),
        time("eligible", "When it could have started."),
        time("start", "When it started.", "has not started"),
        time("end", "When it ended.", "still running, or has not started"),
        real("elapsed_s", "s", "Run time as accounted.", NOT_KNOWN),
        real("timelimit_s", "s", "Requested time limit.", "unlimited or not known"),
        count("nodes", "Nodes allocated.", NOT_KNOWN),
        text("node_list", "Node list as written.", "never ran or not known"),
        count("gpus", "Whole GPUs allocated.", NOT_KNOWN),
        text("gpu_type", "GPU type in the allocation.", "untyped or not known"),
        count(
            "shards", "Shards of GPUs allocated (gres/shard); other jobs may hold the rest.", "none"
        ),
        count("mps", "MPS shares of GPUs allocated (gres/mps), usually 100 per GPU.", "none"),
        *host_use(),
        *recorded_use(),
        real(
            "consumed_energy_j",
            "J",
            "Energy of its nodes as accounted, other jobs there included (ConsumedEnergy).",
            "not measured",
        ),
        text("constraints", "Requested features.", "none or not known"),
        text("hbm_request", "Requested memory tier of the GPU, for example 80g.", "none requested"),
        flag("exclusive", "The job had exclusive use of its nodes."),
        text("submit_line", "Submit line."),
        real(
            "time_precision_s",
            "s",
            "How coarse the recorded times are: 0 for whole seconds, 60 for minutes.",
            NOT_KNOWN,
        ),
        flag(
            "saved",
            "The record is of a saved file: a running job is known up to start plus `elapsed_s`.",
            "not accounting",
        ),
        _SEQ,
    ),
    sort=("start", "job_id"),
)
# As prolog, epilog and controller number GPUs: `slurm.gpu_numbers` names which one it is.
SLURM_NUMBERING = "slurm"
BY_SAMPLES = "samples"  # provenance of allocations that samples name themselves
ALLOCATIONS = LakeTable(
    "allocations",
    "one row per (job, node, gpu) and interval; gpu null: on this node, GPUs not recorded",
    ("cluster", "job_id", "step", "node", "gpu", "mig", "start", "provenance"),
    (
        _CLUSTER,
        _JOB_ID,
        _STEP,
        _NODE,
        index("gpu", "Index of the GPU on its node.", "GPUs not recorded"),
        _MIG,
        time("start", "Start, inclusive.", "from the start of the job"),
        time("end", "End, exclusive.", "to the end of the job, or still held"),
        text("provenance", "Source of the row: explicit, samples, live_index or node_list.", None),
        flag("shared", "A share of the GPU: other jobs may hold it, too.", "all of it"),
        real(
            "share",
            "fraction",
            "Part of the GPU: its shards or MPS over those of the GPU.",
            "all of it, or not known",
        ),
        text("numbering", "Numbering of `gpu`: slurm or nvml_index.", "as in samples and devices"),
        _SEQ,
    ),
    sort=("node", "gpu", "start"),
)
STEPS = LakeTable(
    "steps",
    "one row per step of a run of a job, as accounted",
    ("cluster", "job_id", "step", "start"),
    (
        _CLUSTER,
        _JOB_ID,
        text("step", "Step as Slurm names it: 0, 1, batch, extern, interactive.", None),
        text("name", "Name: the program that srun started."),
        time("start", "When it started."),
        time("end", "When it ended.", "still running"),
        count("nodes", "Nodes it ran on.", NOT_KNOWN),
        text("node_list", "Node list as written."),
        count("tasks", "Tasks it started.", NOT_KNOWN),
        count("gpus", "GPUs allocated to it.", NOT_KNOWN),
        real(
            "max_rss_mib", "MiB", "Peak host memory of its largest task, as polled.", "not polled"
        ),
        text("state", "State of the step, as for jobs."),
        count("exit_code", "Exit code.", NOT_KNOWN, unit="code"),
        count("exit_signal", "Signal that ended it.", "none or not known", unit="signal"),
        text("submit_line", "Its srun line."),
        _SEQ,
    ),
    sort=("job_id", "start"),
)
STATE_HOLDS_S = 900  # between two polls of a node that are no further apart, its state is known
NODE_STATES = LakeTable(
    "node_states",
    "one row per (node, cluster, start, provenance, state): a node with GPUs, and how long it was so",
    ("cluster", "node", "start", "provenance", "state"),
    (
        _CLUSTER,
        _NODE,
        time("start", "From when on it was seen so, inclusive.", None),
        time("end", "Until when it was seen so.", "still so"),
        text("provenance", "poll of the controller, event of the accounting, reservation.", None),
        text("state", "up, down, drained, maintenance or reserved.", None),
        count("gpus", "GPUs installed.", "not of a poll, or Slurm counts MIG slices"),
        text("gpu_type", "Type of the GPUs, as Slurm names it.", "untyped or not known"),
        count("shards", "Shards of all its GPUs (gres/shard).", "none"),
        count("mps", "MPS shares of all its GPUs.", "none"),
        count("gpus_held", "GPUs that jobs held.", NOT_KNOWN),
        count("cpus_free", "CPUs that no job held.", NOT_KNOWN),
        real("memory_free_mib", "MiB", "Host memory that no job held.", NOT_KNOWN),
        text("partitions", "Its partitions, separated by commas.", "none or not known"),
        text("features", "Its active features, separated by commas.", "none or not known"),
        _SEQ,
    ),
    sort=("node", "start"),
    completes=False,
)
WAITING_JOBS = LakeTable(
    "waiting_jobs",
    "one row per (job, start): a job with GPUs that waited, and for what",
    ("cluster", "job_id", "start"),
    (
        _CLUSTER,
        _JOB_ID,
        time("start", "When a poll saw it first with this reason.", None),
        time("end", "When a poll saw it last with this reason.", None),
        text("reason", "Slurm's name of the reason: Resources, Priority, ...", NOT_KNOWN),
        text("partition", "Partitions, separated by commas."),
        count("nodes", "Nodes requested.", NOT_KNOWN),
        count("gpus", "GPUs requested.", NOT_KNOWN),
        text("gpu_type", "GPU type requested.", "any or not known"),
        count("cpus", "CPUs requested.", NOT_KNOWN),
        real("mem_requested_mib", "MiB", "Host memory requested for the whole job.", NOT_KNOWN),
        text("constraints", "Requested features.", "none or not known"),
        _SEQ,
    ),
    sort=("job_id", "start"),
    completes=False,
)
REJECTS = LakeTable(
    "rejects",
    "one row per (chunk, reason, column): what ingest removed",
    ("chunk", "target", "reason", "column"),
    (
        text("chunk", "Which chunk was read.", None),
        text("source", "Name of the source."),
        text("origin", "File or address."),
        text("target", "Table it was meant for.", None),
        text("reason", "Why it was removed.", None),
        text("column", "Column whose value was removed.", "the whole row was removed"),
        count("removed", "Number of rows or values.", NOT_KNOWN),
        text("example", "Example, as written in the input.", "not kept"),
        _SEQ,
    ),
)

# what sources fill; computed tables: COMPUTED
TABLES: Mapping[str, LakeTable] = MappingProxyType(
    {
        table.name: table
        for table in (
            GPU_SAMPLES,
            NODE_SAMPLES,
            JOB_NODE_SAMPLES,
            GPU_SCORES,
            DEVICES,
            JOBS,
            STEPS,
            ALLOCATIONS,
            NODE_STATES,
            WAITING_JOBS,
            REJECTS,
        )
    }
)


PIPES: Mapping[str, str] = MappingProxyType(
    {"fp64": "fp64_active", "fp32": "fp32_active", "fp16": "fp16_active", "tensor": "tensor_active"}
)


@dataclass(frozen=True, slots=True)
class LimitingResource:
    """What may limit the speed of a job: of its counters the busiest decides.

    at_work: column of its mean, samples weighted by themselves. share: of the time at work.
    """

    counters: tuple[str, ...]
    at_work: str
    share: str


ARITHMETIC = LimitingResource(tuple(PIPES.values()), "main_pipe_at_work", "work_fraction")
MEMORY = LimitingResource(("dram_active",), "dram_at_work", "dram_work_fraction")
LINK_TRAFFIC: Mapping[str, LimitingResource] = MappingProxyType(
    {
        link: LimitingResource(
            (f"{link}_tx_bytes_per_s", f"{link}_rx_bytes_per_s"),
            f"{link}_bytes_per_s_at_work",
            f"{link}_work_fraction",
        )
        for link in ("nvlink", "pcie")
    }
)
RESOURCES = (ARITHMETIC, MEMORY, *LINK_TRAFFIC.values())
# counters of which windows are kept for imbalance; all those with a per-minute mean, and with a
# per-minute maximum
WINDOWED = (
    "gpu_util",
    "sm_active",
    "gr_engine_active",
    "fp64_active",
    "fp32_active",
    "fp16_active",
    "tensor_active",
    "dram_active",
    "power_w",
)
MINUTE_MEANS = (
    *WINDOWED,
    "mem_copy_util",
    "pcie_tx_bytes_per_s",
    "pcie_rx_bytes_per_s",
    "nvlink_tx_bytes_per_s",
    "nvlink_rx_bytes_per_s",
)
MINUTE_MAXIMA = ("hbm_used_mib",)
OTHER_IMBALANCES = tuple(name for name in WINDOWED if name not in ("gpu_util", "power_w"))
RATE_VOLUMES: Mapping[str, str] = MappingProxyType(
    {c.name: c.name.removesuffix("_per_s") for c in COUNTERS if c.kind is CounterKind.RATE}
)

_OF_JOB = (
    text("job_key", "cluster:job_id:submit (seconds since 1970): one run of a job.", None),
    text("job_id", "Raw job id.", None),
)
_PEAK_AND_ENERGY = (
    real(
        "hbm_peak_fraction",
        "fraction",
        "Peak of memory used over capacity, largest of its GPUs.",
    ),
    *energy("Energy of the GPUs whose energy is known"),
    text("energy_source", "counter, or power (integrated); both are joined with +.", NOT_MEASURED),
)
_ZERO_UTIL = real("zero_util_fraction", "fraction", "Share of samples with utilisation zero.")
_COMPUTED_SEQ = count("seq", "When it was computed: the latest row counts.", None, unit="")


SCORES = ("score_gpu", "score_gpumem", "score_gpumem_normalized")
# causes of GPU time that did no work, in the order in which an hour is given to them: none is given
# to two
LOST_TO = MappingProxyType(
    {
        "never_used": "GPUs without activity in every sample",
        "hung": "GPUs in intervals of hangs, stalls and busy waiting",
        "cold_start": "GPUs before the first work of the job, where it began late",
        "idle": "GPUs that were used at other times, in minutes without activity",
        "imbalance": "GPUs that worked less than the busiest one, where the work was uneven",
    }
)
WASTE = tuple(LOST_TO)
WASTE_ENERGY = WASTE[:-1]  # a GPU that waits for others draws power for their work, too
# the other measured hours: a counter showed work, or none tells work from waiting
IN_USE = ("in_use", "in_use_unknown")
JUDGED = frozenset(  # columns that are null until the jobs are judged
    {
        *SCORES,
        *("limiter", "workload", "workload_fractions", "workload_samples", "health"),
        *("remapped_rows_uncorrectable_last", "gpu_hours_unmeasured", "gpu_hours_idle_long"),
        *(f"gpu_hours_{name}" for name in (*WASTE, *IN_USE)),
        *(f"energy_j_{cause}" for cause in WASTE_ENERGY),
    }
)


_OF_EVERY_RUN = ("display_id", "start")  # known of a run that held GPUs
_JOB_COLUMNS = tuple(
    replace(column, null=None) if column.name in _OF_EVERY_RUN else column
    for column in JOBS.columns
    if column.name
    in {
        "cluster",
        "display_id",
        "array_job_id",
        "het_job_id",
        "name",
        "user",
        "account",
        "partition",
        "qos",
        "state",
        "exit_code",
        "exit_signal",
        "submit",
        "start",
        "end",
        "elapsed_s",
        "timelimit_s",
        "nodes",
        "gpus",
        "shards",
        "mps",
        "hbm_request",
        "exclusive",
        "time_precision_s",
        *HOST_USE,
        *RECORDED_USE,
        *TASK_GPU_USE,
    }
)

JOB_SUMMARIES = LakeTable(
    "job_summaries",
    "one row per run of a job that held, or may have held, GPUs",
    ("job_key",),
    (
        *_OF_JOB,
        *_JOB_COLUMNS,
        real(
            "cpu_efficiency",
            "fraction",
            "CPU time over (run time x CPUs).",
            "one of them is not known",
        ),
        count("host_nodes", "Nodes on which samples name its processes (docs/metrics.md)."),
        real("cpu_time_s_sampled", "s", "CPU time on these nodes, up to the last sample on each."),
        real(
            "cpu_efficiency_sampled",
            "fraction",
            "The same over (time from the start to that sample x CPUs it may use there).",
        ),
        real("memory_mib_max", "MiB", "Largest sample of host memory on one of these nodes."),
        real(
            "node_energy_j",
            "J",
            "Energy of its nodes, GPUs included, while it had them to itself.",
            "not measured, or its nodes were shared",
        ),
        text(
            "node_energy_source",
            "samples of the power of nodes, or accounting (ConsumedEnergy).",
            "node_energy_j is null",
        ),
        real(
            "node_energy_measured",
            "fraction",
            "Share of the time on its nodes that samples cover; from it the energy is scaled.",
            "not from samples",
        ),
        text("gpu_model", "Model of its GPUs; several are joined with +."),
        real(
            "hbm_mib",
            "MiB",
            "Capacity of one of its GPUs (the smallest where they differ).",
            NOT_KNOWN,
        ),
        real(
            "gpu_hours",
            "h",
            "Allocated GPUs times run time, idle GPUs included; of shares of GPUs, gpu_share.",
            NOT_KNOWN,
        ),
        real(
            "gpu_share",
            "GPUs",
            "GPUs that its shares amount to (docs/attribution.md).",
            "it had whole GPUs, or not known",
        ),
        text(
            "share_by",
            "How gpu_share is known: count (of shards or MPS) or time (divided by the jobs on a GPU).",
            "gpu_share is null",
        ),
        text("attribution", "explicit, live_index, whole_node or ambiguous.", None),
        text(
            "ambiguous_because", "Why it is ambiguous (docs/attribution.md).", "it is not ambiguous"
        ),
        text(
            "telemetry_cluster",
            "Clusters that telemetry of its nodes names, none of which is its own.",
            "telemetry may be of its cluster, or there is none",
        ),
        real(
            "coverage",
            "fraction",
            "Samples present over samples expected at the job's own interval.",
            "ambiguous",
        ),
        count("samples", "GPU samples that belong to it."),
        real(
            "interval_s",
            "s",
            "Sampling interval: median time between samples of a GPU.",
            "fewer than two samples",
        ),
        count("gpus_seen", "GPUs with samples."),
        *statistics(without=("power_w_mean",)),
        *(
            real(volume, "B", f"Integral of {rate} over time and GPUs.")
            for rate, volume in RATE_VOLUMES.items()
        ),
        real(
            "spatial_imbalance",
            "fraction",
            "Mean over windows of 1 - sum / (GPUs x max).",
            "one GPU, or no activity",
        ),
        count("spatial_windows", "Windows with data."),
        real(
            "spatial_zero_fraction", "fraction", "Share of windows in which all GPUs were at zero."
        ),
        real(
            "temporal_imbalance", "fraction", "Largest of its GPUs' 1 - mean / max.", "no activity"
        ),
        *(column for name in OTHER_IMBALANCES for column in imbalances(name)),
        *(column for pipe in PIPES for column in roofline(pipe)),
        *speed(),
        texts("pipes", "Pipes in use: fp64, fp32, fp16, tensor.", NOT_MEASURED),
        *_PEAK_AND_ENERGY,
        count("energy_gpus", "GPUs whose energy is known and in `energy_j`."),
        real("power_w_mean", "W", "Mean over GPUs of the power while it was measured."),
        real("power_w_sampled_mean", "W", "Mean over GPUs of the mean of the power samples."),
        count("gpus_never_used", "GPUs whose utilisation never left zero."),
        _ZERO_UTIL,
        *scores(),
        text(
            "workload",
            "Workload class of most of its GPU time; unknown: counters are missing.",
            "no samples",
        ),
        TableColumn(
            "workload_fractions",
            pl.List(pl.Float64()),
            "fraction",
            (
                "Share of its GPU time in each workload class, in the order of `WORKLOAD_CLASSES`; "
                "the last is unknown."
            ),
            "no samples",
        ),
        text("health", "Worst of its GPUs: CRIT, WARN, HOT, unknown, OK.", "no samples"),
        *waste(LOST_TO, WASTE_ENERGY),
        *XID_EVENTS,
        TableColumn(
            "intensity_histogram",
            pl.List(pl.Int64()),
            "count",
            "Samples by arithmetic intensity (30 bins from 1e-3 to 1e3 FLOP/B, one under, one "
            "over), "
            "concatenated for fp64, fp32, fp16, tensor.",
            "device peaks not known, or not measured",
        ),
        text(
            "excluded",
            "Reasons for leaving it out of a study, separated by commas.",
            "in the study",
        ),
        time(
            "as_of", "Up to when it was summarized: its end, or the analysis while it runs.", None
        ),
        _COMPUTED_SEQ,
    ),
    sort=("start", "job_id"),
    completes=False,
)

_OF_NODE = (
    *_OF_JOB,
    _CLUSTER,
    text("node", "Host name.", None),
)
_GPU_KEY = (
    *_OF_NODE,
    _GPU,
    _MIG,
)

JOB_GPUS = LakeTable(
    "job_gpus",
    "one row per (job_key, node, gpu, mig)",
    ("job_key", "node", "gpu", "mig"),
    (
        *_GPU_KEY,
        text("gpu_model", "Model."),
        real("hbm_mib", "MiB", "Capacity.", NOT_KNOWN),
        count(
            "samples",
            "Samples that belong to the job; 0: it held this GPU but nothing was recorded.",
        ),
        real("interval_s", "s", "Its sampling interval.", "fewer than two samples"),
        time("first_t", "First sample.", "no samples"),
        time("last_t", "Last sample.", "no samples"),
        *statistics(),
        real("temporal_imbalance", "fraction", "1 - mean / max of utilisation.", "no activity"),
        real("hbm_peak_fraction", "fraction", "Peak of memory used over capacity."),
        *energy("Energy"),
        _ZERO_UTIL,
        *scores(),
        TableColumn(
            "workload_samples",
            pl.List(pl.Int64()),
            "count",
            (
                "Samples in minutes of each workload class, in the order of `WORKLOAD_CLASSES`; "
                "the last is unknown."
            ),
            "no samples",
        ),
        count(
            "remapped_rows_uncorrectable_last",
            "Rows remapped after uncorrectable errors, up to its last sample.",
        ),
        text("health", "CRIT, WARN, HOT, OK, or unknown: not all was measured.", "no samples"),
        *XID_EVENTS,
        _COMPUTED_SEQ,
    ),
    sort=("job_key", "node", "gpu", "mig"),
    completes=False,
)

JOB_NODES = LakeTable(
    "job_nodes",
    "one row per (job_key, node, step): what its processes used of a node, shared or not",
    ("job_key", "node", "step"),
    (
        *_OF_NODE,
        _STEP,
        count("samples", "Samples of its processes on the node.", None),
        time("last_t", "Last sample: what was used later is not in it.", None),
        real("cpu_time_s", "s", "CPU time up to the last sample, user and system."),
        real("memory_mib_max", "MiB", "Largest sample of resident memory."),
        real("memory_limit_mib", "MiB", "Memory that it may use there."),
        count("cpus", "CPUs that it may use there."),
        _COMPUTED_SEQ,
    ),
    sort=("job_key", "node", "step"),
    completes=False,
)

_STEP_FACTS = (
    "step",
    "name",
    "start",
    "end",
    "nodes",
    "tasks",
    "state",
    "exit_code",
    "exit_signal",
    "max_rss_mib",
)
STEP_SUMMARIES = LakeTable(
    "step_summaries",
    "one row per (job_key, step, start): what a step did with the GPUs of its job",
    ("job_key", "step", "start"),
    (
        *_OF_JOB,
        *(c for c in STEPS.columns if c.name in _STEP_FACTS),
        real(
            "elapsed_s",
            "s",
            "From its start to its end, or to the analysis while it runs.",
            NOT_KNOWN,
        ),
        text(
            "attribution",
            "explicit: samples name it; time: it had all GPUs of the job on its nodes while it "
            "ran; ambiguous.",
            None,
        ),
        count("gpus", "GPUs it held.", "ambiguous"),
        real("measured_s", "s", "GPU-seconds that the numbers cover.", "ambiguous"),
        real(
            "coverage",
            "fraction",
            "Samples present over samples expected at its own interval.",
            "ambiguous",
        ),
        count("samples", "GPU samples that belong to it.", "ambiguous"),
        real("interval_s", "s", "Its sampling interval.", "fewer than two samples"),
        *statistics(),
        *_PEAK_AND_ENERGY,
        _ZERO_UTIL,
        *XID_EVENTS,
        _COMPUTED_SEQ,
    ),
    sort=("job_key", "start", "step"),
    completes=False,
)

_MINUTE = (
    TableColumn("minute", pl.Int32(), "min", "Whole minutes since the job's start.", None),
    time("t", "Start of the minute.", None),
)
JOB_MINUTES = LakeTable(
    "job_minutes",
    "one row per (job_key, node, gpu, mig, minute); minutes are counted from the job's start",
    ("job_key", "node", "gpu", "mig", "minute"),
    (
        *_GPU_KEY,
        *_MINUTE,
        TableColumn("samples", pl.Int32(), "count", "Samples in the minute.", None),
        *(
            TableColumn(name, pl.Float32(), "", f"Mean of {name} in the minute.", NOT_MEASURED)
            for name in MINUTE_MEANS
        ),
        *(
            TableColumn(name, pl.Float32(), "", f"Maximum of {name}.", NOT_MEASURED)
            for name in MINUTE_MAXIMA
        ),
        _COMPUTED_SEQ,
    ),
    sort=("job_key", "node", "gpu", "mig", "minute"),
    by_day=True,
    completes=False,
)

# host characteristics of a node: {name: (unit, host counter it is made of)}; of counters that add
# up their rate. cpu_user and cpu_nice are shares of the time of all CPUs of the node
HOST_CHARACTERISTICS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "cpu_user": ("fraction", "cpu_user_s"),
        "cpu_nice": ("fraction", "cpu_nice_s"),
        "load_average": ("count", "load_average"),
        "l1_misses_per_s": ("1/s", "l1_misses"),
        "llc_misses_per_s": ("1/s", "llc_misses"),
        "network_rx_bytes_per_s": ("B/s", "network_rx_bytes"),
        "network_tx_bytes_per_s": ("B/s", "network_tx_bytes"),
        "network_rx_packets_per_s": ("1/s", "network_rx_packets"),
        "network_tx_packets_per_s": ("1/s", "network_tx_packets"),
        "fs_read_bytes_per_s": ("B/s", "fs_read_bytes"),
        "fs_write_bytes_per_s": ("B/s", "fs_write_bytes"),
        "fs_read_operations_per_s": ("1/s", "fs_read_operations"),
        "fs_write_operations_per_s": ("1/s", "fs_write_operations"),
    }
)

JOB_NODE_MINUTES = LakeTable(
    "job_node_minutes",
    (
        "one row per (job_key, node, minute) of nodes that the job had to itself; minutes from the "
        "job's start"
    ),
    ("job_key", "node", "minute"),
    (
        *_OF_NODE,
        *_MINUTE,
        *(
            TableColumn(name, pl.Float32(), unit, f"From {counter}, in the minute.", NOT_MEASURED)
            for name, (unit, counter) in HOST_CHARACTERISTICS.items()
        ),
        _COMPUTED_SEQ,
    ),
    sort=("job_key", "node", "minute"),
    by_day=True,
    completes=False,
)

FINDINGS = LakeTable(
    "findings",
    "one row per (job_key, code): what was checked in a job, and the result",
    ("job_key", "code"),
    (
        *_OF_JOB,
        text("code", "Name of the finding, for example one_gpu_of_many.", None),
        text("kind", "check, score, workload or health.", None),
        text("verdict", "yes, no, or unknown: not enough was measured.", None),
        text(
            "confidence",
            "high: published threshold; low: shorter time without work.",
            "not triggered, or the check has one threshold",
        ),
        text("severity", "problem, hint, or fact: nothing to fix.", None),
        text("title", "What it is, in a few words.", None),
        text("sentence", "What was seen, with its numbers.", None),
        text("advice", "What to do.", "nothing to do"),
        time("begin", "Start of the interval it covers.", "the whole job"),
        time("end", "End of the interval it covers.", "the whole job"),
        text("evidence", "JSON object: the numbers behind it.", None),
        text("checks", "JSON list: values against thresholds.", None),
        texts("needs", "Required counters that were not measured."),
        text("covered_by", "Code of the finding that is reported instead.", "it is reported"),
        _COMPUTED_SEQ,
    ),
    sort=("job_key", "code"),
    completes=False,
    apart=("verdict", "yes"),  # of ten rows about nine: no, or unknown
)

COMPUTED: Mapping[str, LakeTable] = MappingProxyType(
    {
        table.name: table
        for table in (
            JOB_SUMMARIES,
            JOB_GPUS,
            STEP_SUMMARIES,
            JOB_MINUTES,
            JOB_NODE_MINUTES,
            JOB_NODES,
            FINDINGS,
        )
    }
)


LABELS = LakeTable(
    "labels",
    "one row per (job_key, code): a person's label on a page: is the finding right?",
    ("job_key", "code"),
    (
        *_OF_JOB,
        text("code", "The finding.", None),
        flag("holds", "confirmed: the finding is right; rejected: it is wrong.", "withdrawn"),
        text("by", "Who labelled it.", None),
        time("at", "When.", None),
        text("comment", "Comment of that person.", "none was written"),
        _SEQ,
    ),
    sort=("job_key", "code"),
    completes=False,
)
PROFILES = LakeTable(
    "profiles",
    "one row per (job_key, digest): a report of Nsight Compute that a person attached to a job",
    ("job_key", "digest"),
    (
        *_OF_JOB,
        text("digest", "SHA-256 of the file, in hexadecimal digits.", None),
        text("report", "File name, its last part.", None),
        time("at", "When it was attached.", None),
        count("launches", "Launches in the file.", "detached"),
        count("launches_kept", "Launches stored in `content`: the longest ones.", "detached"),
        texts("kernels", "Names of its kernels, referenced by `content`."),
        texts("ranges", "Names of its NVTX ranges, referenced by `content`."),
        texts("problems", "Sentences: what could not be read."),
        text(
            "content",
            "JSON object: version, metrics, chips, launches with values (docs/kernels.md).",
            "detached",
        ),
        _SEQ,
    ),
    sort=("job_key", "digest"),
    completes=False,
    group_rows=8,
)
# what an analysis reads; earlier versions read none of the last ones
_READ_LATER = (NODE_SAMPLES, STEPS, JOB_NODE_SAMPLES)
ANALYSED = (GPU_SAMPLES, JOBS, ALLOCATIONS, DEVICES, *_READ_LATER)


ANALYSES = LakeTable(
    "analyses",
    "one row per analysis that is complete",
    ("seq",),
    (
        *(
            count(
                f"{table.name}_version",
                f"Version of {table.name} that was read.",
                "was not read" if table in _READ_LATER else None,
                unit="version",
            )
            for table in ANALYSED
        ),
        text("method", "Digest of the options that affect the numbers.", None),
        text(
            "same_clusters",
            "JSON object: names of clusters in telemetry, with those in the accounting.",
            "both are the same",
        ),
        time("as_of", "When it was made.", None),
        count("jobs", "Jobs summarized.", None),
        count("samples", "Samples read.", None),
        count("attributed", "Samples that belong to a job.", None),
        count("seq", "Number of the analysis, in the rows it wrote.", None, unit=""),
    ),
    sort=("seq",),
    completes=False,
)
# In the order in which they are filled.
ALL_TABLES = (*TABLES.values(), *COMPUTED.values(), ANALYSES, LABELS, PROFILES)
