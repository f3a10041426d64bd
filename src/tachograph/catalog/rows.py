"""Types of rows of the lake: made from its tables by `make docs`, a change here is overwritten.

A reader selects columns, and lakes of earlier versions lack some: a key may be missing. A value is
None only where the table gives null a meaning. Import them where types are checked
(`TYPE_CHECKING`): a program that runs does not need them.
"""

from __future__ import annotations

from datetime import datetime
from typing import TypedDict


class GpuScoreRow(TypedDict, total=False):
    """Row of gpu_scores: one row per (node, cluster, gpu, mig, t): at most a minute of PM
    sampling.
    """

    t: datetime
    cluster: str | None
    node: str
    gpu: int
    mig: int | None
    duration_s: float | None
    measured_s: float | None
    pm_samples: int | None
    overflows: int | None
    lost_s: float | None
    sm_cycles_active: float | None
    sm_cycles_elapsed: float | None
    gpc_cycles_elapsed: float | None
    warps_active: float | None
    dram_cycles_active: float | None
    dram_cycles_elapsed: float | None
    pipe_tensor_cycles_active: float | None
    pipe_fp64_cycles_active: float | None
    pipe_fp32_cycles_active: float | None
    max_warps: int | None
    cut: str | None
    score_gpu: float | None
    score_gpumem: float | None
    score_gpumem_normalized: float | None
    seq: int


class DeviceRow(TypedDict, total=False):
    """Row of devices: one row per (node, cluster, gpu, mig) as last seen."""

    cluster: str | None
    node: str
    gpu: int
    mig: int | None
    uuid: str | None
    pci: str | None
    nvml_index: int | None
    minor_number: int | None
    model: str | None
    mig_profile: str | None
    hbm_mib: float | None
    usable_mib: float | None
    history: str | None
    seq: int


class JobRow(TypedDict, total=False):
    """Row of jobs: one row per run of a job: (cluster, job_id, submit); a requeued job has
    several.
    """

    cluster: str | None
    job_id: str
    display_id: str | None
    array_job_id: str | None
    array_task_id: int | None
    het_job_id: str | None
    het_offset: int | None
    name: str | None
    user: str | None
    account: str | None
    partition: str | None
    qos: str | None
    state: str | None
    exit_code: int | None
    exit_signal: int | None
    submit: datetime | None
    eligible: datetime | None
    start: datetime | None
    end: datetime | None
    elapsed_s: float | None
    timelimit_s: float | None
    nodes: int | None
    node_list: str | None
    gpus: int | None
    gpu_type: str | None
    shards: int | None
    mps: int | None
    cpus: int | None
    cpu_time_s: float | None
    mem_requested_mib: float | None
    max_rss_mib: float | None
    recorded_by: str | None
    recorded_gpu_util_mean: float | None
    recorded_hbm_used_mib_max: float | None
    recorded_hbm_peak_fraction: float | None
    recorded_gpus: str | None
    task_gpu_util_max: float | None
    task_gpu_mem_mib_max: float | None
    consumed_energy_j: float | None
    constraints: str | None
    hbm_request: str | None
    exclusive: bool | None
    submit_line: str | None
    time_precision_s: float | None
    saved: bool | None
    seq: int


class NodeStateRow(TypedDict, total=False):
    """Row of node_states: one row per (node, cluster, start, provenance, state): a node with
    GPUs, and how long it was so.
    """

    cluster: str | None
    node: str
    start: datetime
    end: datetime | None
    provenance: str
    state: str
    gpus: int | None
    gpu_type: str | None
    shards: int | None
    mps: int | None
    gpus_held: int | None
    cpus_free: int | None
    memory_free_mib: float | None
    partitions: str | None
    features: str | None
    seq: int


class WaitingJobRow(TypedDict, total=False):
    """Row of waiting_jobs: one row per (job, start): a job with GPUs that waited, and for what."""

    cluster: str | None
    job_id: str
    start: datetime
    end: datetime
    reason: str | None
    partition: str | None
    nodes: int | None
    gpus: int | None
    gpu_type: str | None
    cpus: int | None
    mem_requested_mib: float | None
    constraints: str | None
    seq: int


class JobSummaryRow(TypedDict, total=False):
    """Row of job_summaries: one row per run of a job that held, or may have held, GPUs."""

    job_key: str
    job_id: str
    cluster: str | None
    display_id: str
    array_job_id: str | None
    het_job_id: str | None
    name: str | None
    user: str | None
    account: str | None
    partition: str | None
    qos: str | None
    state: str | None
    exit_code: int | None
    exit_signal: int | None
    submit: datetime | None
    start: datetime
    end: datetime | None
    elapsed_s: float | None
    timelimit_s: float | None
    nodes: int | None
    gpus: int | None
    shards: int | None
    mps: int | None
    cpus: int | None
    cpu_time_s: float | None
    mem_requested_mib: float | None
    max_rss_mib: float | None
    recorded_by: str | None
    recorded_gpu_util_mean: float | None
    recorded_hbm_used_mib_max: float | None
    recorded_hbm_peak_fraction: float | None
    recorded_gpus: str | None
    task_gpu_util_max: float | None
    task_gpu_mem_mib_max: float | None
    hbm_request: str | None
    exclusive: bool | None
    time_precision_s: float | None
    cpu_efficiency: float | None
    host_nodes: int | None
    cpu_time_s_sampled: float | None
    cpu_efficiency_sampled: float | None
    memory_mib_max: float | None
    node_energy_j: float | None
    node_energy_source: str | None
    node_energy_measured: float | None
    gpu_model: str | None
    hbm_mib: float | None
    gpu_hours: float | None
    gpu_share: float | None
    share_by: str | None
    attribution: str
    ambiguous_because: str | None
    telemetry_cluster: str | None
    coverage: float | None
    samples: int | None
    interval_s: float | None
    gpus_seen: int | None
    gpu_util_mean: float | None
    gpu_util_max: float | None
    sm_active_mean: float | None
    sm_active_max: float | None
    sm_occupancy_mean: float | None
    sm_occupancy_max: float | None
    gr_engine_active_mean: float | None
    gr_engine_active_max: float | None
    fp16_active_mean: float | None
    fp16_active_max: float | None
    fp32_active_mean: float | None
    fp32_active_max: float | None
    fp64_active_mean: float | None
    fp64_active_max: float | None
    tensor_active_mean: float | None
    tensor_active_max: float | None
    tensor_hmma_active_mean: float | None
    tensor_hmma_active_max: float | None
    tensor_imma_active_mean: float | None
    tensor_imma_active_max: float | None
    tensor_dfma_active_mean: float | None
    tensor_dfma_active_max: float | None
    dram_active_mean: float | None
    dram_active_max: float | None
    mem_copy_util_mean: float | None
    mem_copy_util_max: float | None
    hbm_used_mib_mean: float | None
    hbm_used_mib_max: float | None
    hbm_free_mib_mean: float | None
    hbm_free_mib_max: float | None
    pcie_tx_bytes_per_s_mean: float | None
    pcie_tx_bytes_per_s_max: float | None
    pcie_rx_bytes_per_s_mean: float | None
    pcie_rx_bytes_per_s_max: float | None
    nvlink_tx_bytes_per_s_mean: float | None
    nvlink_tx_bytes_per_s_max: float | None
    nvlink_rx_bytes_per_s_mean: float | None
    nvlink_rx_bytes_per_s_max: float | None
    power_w_max: float | None
    energy_j_mean: float | None
    energy_j_max: float | None
    gpu_temp_c_mean: float | None
    gpu_temp_c_max: float | None
    mem_temp_c_mean: float | None
    mem_temp_c_max: float | None
    sm_clock_mhz_mean: float | None
    sm_clock_mhz_max: float | None
    mem_clock_mhz_mean: float | None
    mem_clock_mhz_max: float | None
    throttle_reasons_mean: float | None
    throttle_reasons_max: float | None
    xid_mean: float | None
    xid_max: float | None
    pcie_replays_mean: float | None
    pcie_replays_max: float | None
    remapped_rows_uncorrectable_mean: float | None
    remapped_rows_uncorrectable_max: float | None
    remapped_rows_correctable_mean: float | None
    remapped_rows_correctable_max: float | None
    row_remap_failure_mean: float | None
    row_remap_failure_max: float | None
    ecc_sbe_mean: float | None
    ecc_sbe_max: float | None
    ecc_dbe_mean: float | None
    ecc_dbe_max: float | None
    nvlink_errors_mean: float | None
    nvlink_errors_max: float | None
    pcie_tx_bytes: float | None
    pcie_rx_bytes: float | None
    nvlink_tx_bytes: float | None
    nvlink_rx_bytes: float | None
    spatial_imbalance: float | None
    spatial_windows: int | None
    spatial_zero_fraction: float | None
    temporal_imbalance: float | None
    spatial_imbalance_sm_active: float | None
    temporal_imbalance_sm_active: float | None
    spatial_imbalance_gr_engine_active: float | None
    temporal_imbalance_gr_engine_active: float | None
    spatial_imbalance_fp64_active: float | None
    temporal_imbalance_fp64_active: float | None
    spatial_imbalance_fp32_active: float | None
    temporal_imbalance_fp32_active: float | None
    spatial_imbalance_fp16_active: float | None
    temporal_imbalance_fp16_active: float | None
    spatial_imbalance_tensor_active: float | None
    temporal_imbalance_tensor_active: float | None
    spatial_imbalance_dram_active: float | None
    temporal_imbalance_dram_active: float | None
    bound: str | None
    compute_fraction: float | None
    memory_fraction: float | None
    idle_fraction: float | None
    bound_fp32: str | None
    compute_fraction_fp32: float | None
    memory_fraction_fp32: float | None
    idle_fraction_fp32: float | None
    bound_fp16: str | None
    compute_fraction_fp16: float | None
    memory_fraction_fp16: float | None
    idle_fraction_fp16: float | None
    bound_tensor: str | None
    compute_fraction_tensor: float | None
    memory_fraction_tensor: float | None
    idle_fraction_tensor: float | None
    main_pipe: str | None
    main_pipe_at_work: float | None
    work_fraction: float | None
    dram_at_work: float | None
    dram_work_fraction: float | None
    nvlink_bytes_per_s_at_work: float | None
    nvlink_work_fraction: float | None
    pcie_bytes_per_s_at_work: float | None
    pcie_work_fraction: float | None
    limiter: str | None
    pipes: list[str] | None
    hbm_peak_fraction: float | None
    energy_j: float | None
    energy_j_estimated: float | None
    energy_source: str | None
    energy_gpus: int | None
    power_w_mean: float | None
    power_w_sampled_mean: float | None
    gpus_never_used: int | None
    zero_util_fraction: float | None
    score_gpu: float | None
    score_gpumem: float | None
    score_gpumem_normalized: float | None
    workload: str | None
    workload_fractions: list[float] | None
    health: str | None
    gpu_hours_never_used: float | None
    gpu_hours_hung: float | None
    gpu_hours_cold_start: float | None
    gpu_hours_idle: float | None
    gpu_hours_imbalance: float | None
    gpu_hours_idle_long: float | None
    gpu_hours_in_use: float | None
    gpu_hours_in_use_unknown: float | None
    gpu_hours_unmeasured: float | None
    energy_j_never_used: float | None
    energy_j_hung: float | None
    energy_j_cold_start: float | None
    energy_j_idle: float | None
    xid_events: int | None
    xid_event_max: float | None
    intensity_histogram: list[int] | None
    excluded: str | None
    as_of: datetime
    seq: int


class JobGpuRow(TypedDict, total=False):
    """Row of job_gpus: one row per (job_key, node, gpu, mig)."""

    job_key: str
    job_id: str
    cluster: str | None
    node: str
    gpu: int
    mig: int | None
    gpu_model: str | None
    hbm_mib: float | None
    samples: int | None
    interval_s: float | None
    first_t: datetime | None
    last_t: datetime | None
    gpu_util_mean: float | None
    gpu_util_max: float | None
    sm_active_mean: float | None
    sm_active_max: float | None
    sm_occupancy_mean: float | None
    sm_occupancy_max: float | None
    gr_engine_active_mean: float | None
    gr_engine_active_max: float | None
    fp16_active_mean: float | None
    fp16_active_max: float | None
    fp32_active_mean: float | None
    fp32_active_max: float | None
    fp64_active_mean: float | None
    fp64_active_max: float | None
    tensor_active_mean: float | None
    tensor_active_max: float | None
    tensor_hmma_active_mean: float | None
    tensor_hmma_active_max: float | None
    tensor_imma_active_mean: float | None
    tensor_imma_active_max: float | None
    tensor_dfma_active_mean: float | None
    tensor_dfma_active_max: float | None
    dram_active_mean: float | None
    dram_active_max: float | None
    mem_copy_util_mean: float | None
    mem_copy_util_max: float | None
    hbm_used_mib_mean: float | None
    hbm_used_mib_max: float | None
    hbm_free_mib_mean: float | None
    hbm_free_mib_max: float | None
    pcie_tx_bytes_per_s_mean: float | None
    pcie_tx_bytes_per_s_max: float | None
    pcie_rx_bytes_per_s_mean: float | None
    pcie_rx_bytes_per_s_max: float | None
    nvlink_tx_bytes_per_s_mean: float | None
    nvlink_tx_bytes_per_s_max: float | None
    nvlink_rx_bytes_per_s_mean: float | None
    nvlink_rx_bytes_per_s_max: float | None
    power_w_mean: float | None
    power_w_max: float | None
    energy_j_mean: float | None
    energy_j_max: float | None
    gpu_temp_c_mean: float | None
    gpu_temp_c_max: float | None
    mem_temp_c_mean: float | None
    mem_temp_c_max: float | None
    sm_clock_mhz_mean: float | None
    sm_clock_mhz_max: float | None
    mem_clock_mhz_mean: float | None
    mem_clock_mhz_max: float | None
    throttle_reasons_mean: float | None
    throttle_reasons_max: float | None
    xid_mean: float | None
    xid_max: float | None
    pcie_replays_mean: float | None
    pcie_replays_max: float | None
    remapped_rows_uncorrectable_mean: float | None
    remapped_rows_uncorrectable_max: float | None
    remapped_rows_correctable_mean: float | None
    remapped_rows_correctable_max: float | None
    row_remap_failure_mean: float | None
    row_remap_failure_max: float | None
    ecc_sbe_mean: float | None
    ecc_sbe_max: float | None
    ecc_dbe_mean: float | None
    ecc_dbe_max: float | None
    nvlink_errors_mean: float | None
    nvlink_errors_max: float | None
    temporal_imbalance: float | None
    hbm_peak_fraction: float | None
    energy_j: float | None
    energy_j_estimated: float | None
    zero_util_fraction: float | None
    score_gpu: float | None
    score_gpumem: float | None
    score_gpumem_normalized: float | None
    workload_samples: list[int] | None
    remapped_rows_uncorrectable_last: int | None
    health: str | None
    xid_events: int | None
    xid_event_max: float | None
    seq: int


class JobNodeRow(TypedDict, total=False):
    """Row of job_nodes: one row per (job_key, node, step): what its processes used of a node,
    shared or not.
    """

    job_key: str
    job_id: str
    cluster: str | None
    node: str
    step: str | None
    samples: int
    last_t: datetime
    cpu_time_s: float | None
    memory_mib_max: float | None
    memory_limit_mib: float | None
    cpus: int | None
    seq: int


class StepSummaryRow(TypedDict, total=False):
    """Row of step_summaries: one row per (job_key, step, start): what a step did with the GPUs
    of its job.
    """

    job_key: str
    job_id: str
    step: str
    name: str | None
    start: datetime | None
    end: datetime | None
    nodes: int | None
    tasks: int | None
    max_rss_mib: float | None
    state: str | None
    exit_code: int | None
    exit_signal: int | None
    elapsed_s: float | None
    attribution: str
    gpus: int | None
    measured_s: float | None
    coverage: float | None
    samples: int | None
    interval_s: float | None
    gpu_util_mean: float | None
    gpu_util_max: float | None
    sm_active_mean: float | None
    sm_active_max: float | None
    sm_occupancy_mean: float | None
    sm_occupancy_max: float | None
    gr_engine_active_mean: float | None
    gr_engine_active_max: float | None
    fp16_active_mean: float | None
    fp16_active_max: float | None
    fp32_active_mean: float | None
    fp32_active_max: float | None
    fp64_active_mean: float | None
    fp64_active_max: float | None
    tensor_active_mean: float | None
    tensor_active_max: float | None
    tensor_hmma_active_mean: float | None
    tensor_hmma_active_max: float | None
    tensor_imma_active_mean: float | None
    tensor_imma_active_max: float | None
    tensor_dfma_active_mean: float | None
    tensor_dfma_active_max: float | None
    dram_active_mean: float | None
    dram_active_max: float | None
    mem_copy_util_mean: float | None
    mem_copy_util_max: float | None
    hbm_used_mib_mean: float | None
    hbm_used_mib_max: float | None
    hbm_free_mib_mean: float | None
    hbm_free_mib_max: float | None
    pcie_tx_bytes_per_s_mean: float | None
    pcie_tx_bytes_per_s_max: float | None
    pcie_rx_bytes_per_s_mean: float | None
    pcie_rx_bytes_per_s_max: float | None
    nvlink_tx_bytes_per_s_mean: float | None
    nvlink_tx_bytes_per_s_max: float | None
    nvlink_rx_bytes_per_s_mean: float | None
    nvlink_rx_bytes_per_s_max: float | None
    power_w_mean: float | None
    power_w_max: float | None
    energy_j_mean: float | None
    energy_j_max: float | None
    gpu_temp_c_mean: float | None
    gpu_temp_c_max: float | None
    mem_temp_c_mean: float | None
    mem_temp_c_max: float | None
    sm_clock_mhz_mean: float | None
    sm_clock_mhz_max: float | None
    mem_clock_mhz_mean: float | None
    mem_clock_mhz_max: float | None
    throttle_reasons_mean: float | None
    throttle_reasons_max: float | None
    xid_mean: float | None
    xid_max: float | None
    pcie_replays_mean: float | None
    pcie_replays_max: float | None
    remapped_rows_uncorrectable_mean: float | None
    remapped_rows_uncorrectable_max: float | None
    remapped_rows_correctable_mean: float | None
    remapped_rows_correctable_max: float | None
    row_remap_failure_mean: float | None
    row_remap_failure_max: float | None
    ecc_sbe_mean: float | None
    ecc_sbe_max: float | None
    ecc_dbe_mean: float | None
    ecc_dbe_max: float | None
    nvlink_errors_mean: float | None
    nvlink_errors_max: float | None
    hbm_peak_fraction: float | None
    energy_j: float | None
    energy_j_estimated: float | None
    energy_source: str | None
    zero_util_fraction: float | None
    xid_events: int | None
    xid_event_max: float | None
    seq: int


class FindingRow(TypedDict, total=False):
    """Row of findings: one row per (job_key, code): what was checked in a job, and the result."""

    job_key: str
    job_id: str
    code: str
    kind: str
    verdict: str
    confidence: str | None
    severity: str
    title: str
    sentence: str
    advice: str | None
    begin: datetime | None
    end: datetime | None
    evidence: str
    checks: str
    needs: list[str]
    covered_by: str | None
    seq: int


class ProfileRow(TypedDict, total=False):
    """Row of profiles: one row per (job_key, digest): a report of Nsight Compute that a person
    attached to a job.
    """

    job_key: str
    job_id: str
    digest: str
    report: str
    at: datetime
    launches: int | None
    launches_kept: int | None
    kernels: list[str]
    ranges: list[str]
    problems: list[str]
    content: str | None
    seq: int
