"""The catalogues of GPU and host counters, one row per counter.

Sources: Prometheus node_exporter (metric names and labels) and the producers named in each row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from types import MappingProxyType
from typing import Literal


class CounterKind(StrEnum):
    """How samples of a counter are put together over time."""

    FRACTION = "fraction"  # 0..1; mean and max
    INSTANT = "instant"  # a level; mean and max
    CUMULATIVE = "cumulative"  # last minus first, corrected for resets
    RATE = "rate"  # per second; mean, max, integral over time


CounterStorage = Literal["f32", "f64", "i64"]


@dataclass(frozen=True, slots=True)
class Counter:
    """One counter: its names at producers, its units outside and inside, its valid range."""

    name: str
    kind: CounterKind
    unit: str
    low: float
    high: float
    sentence: str
    dcgm_id: int | None = None
    dcgm_name: str | None = None  # without DCGM_FI_
    dcgm_name_46: str | None = None  # without DCGM_FI_, DCGM 4.6 and later
    dcgm_unit: str | None = None  # unit DCGM and the exporters write
    ldms_name: str | None = None  # without nersc_ldms_dcgm_
    ldms_unit: str | None = None
    nvml: str | None = None
    nvml_unit: str | None = None
    storage: CounterStorage = "f32"
    zero_is_missing: bool = False
    jobstats: tuple[str, str] | None = None  # metric of jobstats' GPU exporter, unit it writes
    dcgm_aliases: tuple[str, ...] = ()  # other names of the field in DCGM, without DCGM_FI_


_F, _I, _C, _R = CounterKind.FRACTION, CounterKind.INSTANT, CounterKind.CUMULATIVE, CounterKind.RATE
_NO_END = float("inf")

COUNTERS: tuple[Counter, ...] = (
    Counter("gpu_util", _F, "fraction", 0, 1, "Share of time in which at least one kernel ran on the GPU.",
            203, "DEV_GPU_UTIL", "GPU_UTIL_RATIO", "percent", "gpu_utilization", "percent",
            "nvmlDeviceGetUtilizationRates.gpu", "percent",
            jobstats=("nvidia_gpu_duty_cycle", "percent")),
    Counter("sm_active", _F, "fraction", 0, 1, "Share of cycles in which an SM had a warp resident, averaged over SMs.",
            1002, "PROF_SM_ACTIVE", "SM_UTIL_RATIO", "fraction", "sm_active", "fraction", "GPM 2 SM_UTIL", "percent",
            jobstats=("nvidia_gpu_sm_util_percent", "fraction")),
    Counter("sm_occupancy", _F, "fraction", 0, 1, "Resident warps over the maximum of resident warps, per elapsed cycle.",
            1003, "PROF_SM_OCCUPANCY", "SM_OCCUPANCY_RATIO", "fraction", "sm_occupancy", "fraction",
            "GPM 3 SM_OCCUPANCY", "percent",
            jobstats=("nvidia_gpu_sm_occupancy_percent", "fraction")),
    Counter("gr_engine_active", _F, "fraction", 0, 1, "Share of time in which the graphics or compute engine was busy.",
            1001, "PROF_GR_ENGINE_ACTIVE", "GR_ENGINE_UTIL_RATIO", "fraction", "gr_engine_active", "fraction",
            "GPM 1 GRAPHICS_UTIL", "percent",
            jobstats=("nvidia_gpu_graphics_util_percent", "fraction")),
    Counter("fp16_active", _F, "fraction", 0, 1, "Share of cycles in which the FP16 pipe was active; tensor work not included.",
            1008, "PROF_PIPE_FP16_ACTIVE", "FP16_UTIL_RATIO", "fraction", "fp16_active", "fraction", "GPM 13 FP16", "percent",
            jobstats=("nvidia_gpu_fp16_util_percent", "fraction")),
    Counter("fp32_active", _F, "fraction", 0, 1, "Share of cycles in which the FP32 pipe was active.",
            1007, "PROF_PIPE_FP32_ACTIVE", "FP32_UTIL_RATIO", "fraction", "fp32_active", "fraction", "GPM 12 FP32", "percent",
            jobstats=("nvidia_gpu_fp32_util_percent", "fraction")),
    Counter("fp64_active", _F, "fraction", 0, 1, "Share of cycles in which the FP64 pipe was active; tensor work not included.",
            1006, "PROF_PIPE_FP64_ACTIVE", "FP64_UTIL_RATIO", "fraction", "fp64_active", "fraction", "GPM 11 FP64", "percent",
            jobstats=("nvidia_gpu_fp64_util_percent", "fraction")),
    Counter("tensor_active", _F, "fraction", 0, 1, "Share of cycles in which any tensor pipe was active.",
            1004, "PROF_PIPE_TENSOR_ACTIVE", "TENSOR_UTIL_RATIO", "fraction", "tensor_active", "fraction",
            "GPM 5 ANY_TENSOR", "percent",
            jobstats=("nvidia_gpu_any_tensor_util_percent", "fraction")),
    Counter("tensor_hmma_active", _F, "fraction", 0, 1, "Share of cycles in which the FP16/BF16 tensor pipe was active.",
            1014, "PROF_PIPE_TENSOR_HMMA_ACTIVE", None, "fraction", "tensor_hmma_active", "fraction", "GPM 7 HMMA", "percent"),
    Counter("tensor_imma_active", _F, "fraction", 0, 1, "Share of cycles in which the integer tensor pipe was active.",
            1013, "PROF_PIPE_TENSOR_IMMA_ACTIVE", None, "fraction", "tensor_imma_active", "fraction", "GPM 9 IMMA", "percent"),
    Counter("tensor_dfma_active", _F, "fraction", 0, 1, "Share of cycles in which the FP64 tensor pipe was active.",
            1015, "PROF_PIPE_TENSOR_DFMA_ACTIVE", None, "fraction", "tensor_dfma_active", "fraction", "GPM 6 DFMA", "percent"),
    Counter("dram_active", _F, "fraction", 0, 1, "Share of cycles in which device memory was sending or receiving data.",
            1005, "PROF_DRAM_ACTIVE", "DRAM_UTIL_RATIO", "fraction", "dram_active", "fraction",
            "GPM 10 DRAM_BW_UTIL", "percent",
            jobstats=("nvidia_gpu_dram_bw_util_percent", "fraction")),
    Counter("mem_copy_util", _F, "fraction", 0, 1,
            "Share of time in which device memory was read or written; not the copy engine.",
            204, "DEV_MEM_COPY_UTIL", None, "percent", "mem_copy_utilization", "percent",
            "nvmlDeviceGetUtilizationRates.memory", "percent"),
    Counter("hbm_used_mib", _I, "MiB", 0, 1 << 21, "Device memory in use.",
            252, "DEV_FB_USED", None, "MiB", "fb_used", "MiB", "nvmlDeviceGetMemoryInfo.used", "B",
            jobstats=("nvidia_gpu_memory_used_bytes", "B")),
    Counter("hbm_free_mib", _I, "MiB", 0, 1 << 21, "Device memory free.",
            251, "DEV_FB_FREE", None, "MiB", "fb_free", "MiB", "nvmlDeviceGetMemoryInfo.free", "B"),
    Counter("pcie_tx_bytes_per_s", _R, "B/s", 0, 1e12, "PCIe bytes per second from device to host.",
            1009, "PROF_PCIE_TX_BYTES", None, "B/s", "pcie_tx_bytes", "B/s", "GPM 20 PCIE_TX_PER_SEC", "MiB/s",
            jobstats=("nvidia_gpu_pcie_tx_per_sec", "B/s")),
    Counter("pcie_rx_bytes_per_s", _R, "B/s", 0, 1e12, "PCIe bytes per second from host to device.",
            1010, "PROF_PCIE_RX_BYTES", None, "B/s", "pcie_rx_bytes", "B/s", "GPM 21 PCIE_RX_PER_SEC", "MiB/s",
            jobstats=("nvidia_gpu_pcie_rx_per_sec", "B/s")),
    Counter("nvlink_tx_bytes_per_s", _R, "B/s", 0, 1e13, "NVLink bytes per second sent.",
            1011, "PROF_NVLINK_TX_BYTES", None, "B/s", "nvlink_tx_bytes", "B/s", "GPM 61 NVLINK_TOTAL_TX_PER_SEC", "MiB/s",
            jobstats=("nvidia_gpu_nvlink_total_tx_per_sec", "B/s")),
    Counter("nvlink_rx_bytes_per_s", _R, "B/s", 0, 1e13, "NVLink bytes per second received.",
            1012, "PROF_NVLINK_RX_BYTES", None, "B/s", "nvlink_rx_bytes", "B/s", "GPM 60 NVLINK_TOTAL_RX_PER_SEC", "MiB/s",
            jobstats=("nvidia_gpu_nvlink_total_rx_per_sec", "B/s")),
    Counter("power_w", _I, "W", 0, 3000,
            "Power drawn by the board; 0 means not measured: the second die of a module reports 0, the first the sum.",
            155, "DEV_POWER_USAGE", "BOARD_POWER_WATTS", "W", "power_usage", "W", "nvmlDeviceGetPowerUsage", "mW",
            zero_is_missing=True, jobstats=("nvidia_gpu_power_usage_milliwatts", "mW")),
    Counter("energy_j", _C, "J", 0, _NO_END, "Energy drawn since the driver was loaded.",
            156, "DEV_TOTAL_ENERGY_CONSUMPTION", None, "mJ", "total_energy_consumption", "mJ",
            "nvmlDeviceGetTotalEnergyConsumption", "mJ", "f64"),
    Counter("gpu_temp_c", _I, "C", -40, 150, "Temperature of the GPU.",
            150, "DEV_GPU_TEMP", "GPU_TEMP_CELSIUS", "C", "gpu_temp", "C", "nvmlDeviceGetTemperature", "C",
            jobstats=("nvidia_gpu_temperature_celsius", "C")),
    Counter("mem_temp_c", _I, "C", -40, 150, "Temperature of the device memory; 0 means not supported.",
            140, "DEV_MEMORY_TEMP", "MEMORY_TEMP_CELSIUS", "C", "memory_temp", "C", "NVML_FI_DEV_MEMORY_TEMP", "C",
            zero_is_missing=True),
    Counter("sm_clock_mhz", _I, "MHz", 0, 10_000, "Clock of the SMs.",
            100, "DEV_SM_CLOCK", None, "MHz", None, None, "nvmlDeviceGetClockInfo.SM", "MHz"),
    Counter("mem_clock_mhz", _I, "MHz", 0, 20_000, "Clock of the device memory.",
            101, "DEV_MEM_CLOCK", None, "MHz", None, None, "nvmlDeviceGetClockInfo.MEM", "MHz"),
    Counter("throttle_reasons", _I, "bitmask", 0, 1 << 32,
            "Why clocks are lowered: 1 idle, 2 application clocks, 4 power cap, 8 hardware slowdown, 0x10 sync boost, "
            "0x20 software thermal, 0x40 hardware thermal, 0x80 power brake.",
            112, "DEV_CLOCK_THROTTLE_REASONS", "CLOCKS_EVENT_REASONS", "bitmask", None, None,
            "nvmlDeviceGetCurrentClocksEventReasons", "bitmask", "i64",
            jobstats=("nvidia_gpu_clock_event_reason", "bitmask"),
            dcgm_aliases=("DEV_CLOCKS_EVENT_REASONS",)),
    Counter("xid", _I, "code", 0, 100_000, "Last XID error; it stays until the next one, so only a change is an event.",
            230, "DEV_XID_ERRORS", "XID_ERROR", "code", None, None, "nvmlEventTypeXidCriticalError", "code", "i64"),
    Counter("pcie_replays", _C, "count", 0, 1 << 53, "PCIe replays since the driver was loaded.",
            202, "DEV_PCIE_REPLAY_COUNTER", "PCIE_REPLAY_TOTAL", "count", None, None,
            "nvmlDeviceGetPcieReplayCounter", "count", "i64"),
    Counter("remapped_rows_uncorrectable", _C, "count", 0, 1 << 20, "Memory rows remapped after uncorrectable errors; pages retired, on GPUs before Ampere.",
            393, "DEV_UNCORRECTABLE_REMAPPED_ROWS", "ROW_REMAP_UNCORRECTABLE_TOTAL", "count", None, None,
            "nvmlDeviceGetRemappedRows.uncorrectable", "count", "i64"),
    Counter("remapped_rows_correctable", _C, "count", 0, 1 << 20, "Memory rows remapped after correctable errors; pages retired, on GPUs before Ampere.",
            394, "DEV_CORRECTABLE_REMAPPED_ROWS", "ROW_REMAP_CORRECTABLE_TOTAL", "count", None, None,
            "nvmlDeviceGetRemappedRows.correctable", "count", "i64"),
    Counter("row_remap_failure", _I, "flag", 0, 1, "1 when remapping a memory row has failed.",
            395, "DEV_ROW_REMAP_FAILURE", "ROW_REMAP_FAILED", "flag", None, None,
            "nvmlDeviceGetRemappedRows.failure", "flag", "i64"),
    Counter("ecc_sbe", _C, "count", 0, 1 << 53, "Corrected (single-bit) ECC errors since the driver was loaded.",
            310, "DEV_ECC_SBE_VOL_TOTAL", None, "count", None, None,
            "nvmlDeviceGetTotalEccErrors.corrected", "count", "i64"),
    Counter("ecc_dbe", _C, "count", 0, 1 << 53, "Uncorrectable (double-bit) ECC errors since the driver was loaded.",
            311, "DEV_ECC_DBE_VOL_TOTAL", None, "count", None, None,
            "nvmlDeviceGetTotalEccErrors.uncorrected", "count", "i64"),
    Counter("nvlink_errors", _C, "count", 0, 1 << 53,
            "Errors of the links between GPUs (NVLink: CRC, replay, recovery; XGMI) since the driver was loaded.",
            storage="i64"),
)  # fmt: skip

COUNTERS_BY_NAME: Mapping[str, Counter] = MappingProxyType(
    {counter.name: counter for counter in COUNTERS}
)
COUNTER_NAMES: tuple[str, ...] = tuple(COUNTERS_BY_NAME)

LDMS_PREFIX = "nersc_ldms_dcgm_"
DCGM_PREFIX = "DCGM_FI_"


def get(name: str) -> Counter:
    """Return the counter called `name`.

    Errors: NotFoundError naming the counters that exist.
    """
    from tachograph.catalog.errors import NotFoundError

    try:
        return COUNTERS_BY_NAME[name]
    except KeyError:
        raise NotFoundError(
            f"no counter {name!r}", do=f"use one of: {', '.join(COUNTER_NAMES)}"
        ) from None


@cache
def outside_names() -> Mapping[str, tuple[str, str]]:
    """Return {a producer's column name: (contract counter, unit the producer writes)}.

    Holds the contract names themselves, all DCGM names with their prefix, and the LDMS names with
    theirs.

    >>> outside_names()["DCGM_FI_DEV_GPU_UTIL"], outside_names()["nersc_ldms_dcgm_fb_used"]
    (('gpu_util', 'percent'), ('hbm_used_mib', 'MiB'))
    """
    names: dict[str, tuple[str, str]] = {}
    for counter in COUNTERS:
        names[counter.name] = (counter.name, counter.unit)
        for dcgm in (counter.dcgm_name, counter.dcgm_name_46, *counter.dcgm_aliases):
            if dcgm and counter.dcgm_unit:
                names[DCGM_PREFIX + dcgm] = (counter.name, counter.dcgm_unit)
        if counter.ldms_name and counter.ldms_unit:
            names[LDMS_PREFIX + counter.ldms_name] = (counter.name, counter.ldms_unit)
    return MappingProxyType(names)


def jobstats_names() -> Mapping[str, tuple[str, str]]:
    """Return {metric of jobstats' GPU exporter: (contract counter, unit it writes)}.

    Its *_percent and *_util metrics carry 0..1: it divides what GPM reports by 100.
    """
    names = {
        counter.jobstats[0]: (counter.name, counter.jobstats[1])
        for counter in COUNTERS
        if counter.jobstats
    }
    return MappingProxyType(names)


@dataclass(frozen=True, slots=True)
class HostCounter:
    """One host counter: its unit inside, valid range, and its names and units at the producers.

    `node_exporter`: (metric, {label: value}); values of series that differ in other labels are
    added up. `ldms`: (sampler, metric); a metric that exists once per CPU, interface or file system
    is added up.
    """

    name: str
    kind: CounterKind
    unit: str
    sentence: str
    node_exporter: tuple[tuple[str, Mapping[str, str]], ...] = ()
    node_exporter_unit: str | None = None
    ldms: tuple[tuple[str, str], ...] = ()
    ldms_unit: str | None = None
    low: float = 0.0
    high: float = float("inf")
    storage: CounterStorage = "f64"
    zero_is_missing: bool = False


_HOST_INSTANT, _HOST_CUMULATIVE = CounterKind.INSTANT, CounterKind.CUMULATIVE


def _cpu(mode: str) -> tuple[tuple[str, Mapping[str, str]], ...]:
    return (("node_cpu_seconds_total", MappingProxyType({"mode": mode})),)


def _gpfs(operation: str) -> tuple[str, Mapping[str, str]]:
    return "gpfs_perf_operations_total", MappingProxyType({"operation": operation})


def _metrics(*names: str) -> tuple[tuple[str, Mapping[str, str]], ...]:
    return tuple((name, MappingProxyType({})) for name in names)


HOST_COUNTERS: tuple[HostCounter, ...] = (
    HostCounter("cpu_user_s", _HOST_CUMULATIVE, "s", "Time of all CPUs in user code.",
                _cpu("user"), "s", (("procstat", "user"),), "jiffy"),
    HostCounter("cpu_nice_s", _HOST_CUMULATIVE, "s", "Time of all CPUs in user code of lowered priority.",
                _cpu("nice"), "s", (("procstat", "nice"),), "jiffy"),
    HostCounter("cpu_system_s", _HOST_CUMULATIVE, "s", "Time of all CPUs in the kernel.",
                _cpu("system"), "s", (("procstat", "sys"), ("procstat2", "system")), "jiffy"),
    HostCounter("cpu_iowait_s", _HOST_CUMULATIVE, "s", "Time of all CPUs waiting for I/O.",
                _cpu("iowait"), "s", (("procstat", "iowait"),), "jiffy"),
    HostCounter("cpu_idle_s", _HOST_CUMULATIVE, "s", "Time of all CPUs idle.",
                _cpu("idle"), "s", (("procstat", "idle"),), "jiffy"),
    HostCounter("load_average", _HOST_INSTANT, "count", "Runnable tasks, averaged over one minute.",
                _metrics("node_load1"), "count", (("loadavg", "load1min"),), "count", high=1e6),
    HostCounter("memory_total_mib", _HOST_INSTANT, "MiB", "Host memory.",
                _metrics("node_memory_MemTotal_bytes"), "B", (("meminfo", "MemTotal"),), "KiB", high=1 << 30),
    HostCounter("memory_available_mib", _HOST_INSTANT, "MiB", "Host memory still available to programs.",
                _metrics("node_memory_MemAvailable_bytes"), "B", (("meminfo", "MemAvailable"),), "KiB", high=1 << 30),
    HostCounter("network_rx_bytes", _HOST_CUMULATIVE, "B", "Bytes received by all interfaces but the loopback.",
                _metrics("node_network_receive_bytes_total", "node_infiniband_port_data_received_bytes_total"), "B",
                (("procnetdev", "rx_bytes"),), "B"),
    HostCounter("network_tx_bytes", _HOST_CUMULATIVE, "B", "Bytes sent by all interfaces but the loopback.",
                _metrics("node_network_transmit_bytes_total", "node_infiniband_port_data_transmitted_bytes_total"), "B",
                (("procnetdev", "tx_bytes"),), "B"),
    HostCounter("network_rx_packets", _HOST_CUMULATIVE, "count", "Packets received by all interfaces but the loopback.",
                _metrics("node_network_receive_packets_total", "node_infiniband_port_packets_received_total"), "count",
                (("procnetdev", "rx_packets"),), "count"),
    HostCounter("network_tx_packets", _HOST_CUMULATIVE, "count", "Packets sent by all interfaces but the loopback.",
                _metrics("node_network_transmit_packets_total", "node_infiniband_port_packets_transmitted_total"),
                "count", (("procnetdev", "tx_packets"),), "count"),
    HostCounter("fs_read_bytes", _HOST_CUMULATIVE, "B", "Bytes read from parallel file systems.",
                _metrics("lustre_read_bytes_total", "gpfs_perf_read_bytes_total"), "B",
                (("lustre_client", "read_bytes.sum"), ("lustre2_client", "read_bytes")), "B"),
    HostCounter("fs_write_bytes", _HOST_CUMULATIVE, "B", "Bytes written to parallel file systems.",
                _metrics("lustre_write_bytes_total", "gpfs_perf_write_bytes_total"), "B",
                (("lustre_client", "write_bytes.sum"), ("lustre2_client", "write_bytes")), "B"),
    HostCounter("fs_read_operations", _HOST_CUMULATIVE, "count", "Reads from parallel file systems.",
                (*_metrics("lustre_read_samples_total"), _gpfs("reads")), "count"),
    HostCounter("fs_write_operations", _HOST_CUMULATIVE, "count", "Writes to parallel file systems.",
                (*_metrics("lustre_write_samples_total"), _gpfs("writes")), "count"),
    HostCounter("l1_misses", _HOST_CUMULATIVE, "count", "Misses of the first-level data caches.",
                _metrics("node_perf_cache_l1d_read_misses_total"), "count", (("papi", "PAPI_L1_DCM"),), "count"),
    HostCounter("llc_misses", _HOST_CUMULATIVE, "count", "Misses of the last-level caches.",
                _metrics("node_perf_cache_ll_read_misses_total"), "count", (("papi", "PAPI_L3_TCM"),), "count"),
    HostCounter("cpu_power_w", _HOST_INSTANT, "W", "Power drawn by the CPUs.", high=1e5),
    HostCounter("memory_power_w", _HOST_INSTANT, "W", "Power drawn by host memory.", high=1e5),
    HostCounter("node_power_w", _HOST_INSTANT, "W", "Power drawn by the node.",
                _metrics("ipmi_dcmi_power_consumption_watts"), "W", high=1e6),
    # RAPL: counters that begin at 0 again, after a quarter of an hour where much is drawn
    HostCounter("cpu_energy_j", _HOST_CUMULATIVE, "J", "Energy used by the CPUs alone, not by the node.",
                _metrics("node_rapl_package_joules_total"), "J"),
    HostCounter("memory_energy_j", _HOST_CUMULATIVE, "J", "Energy used by host memory.",
                _metrics("node_rapl_dram_joules_total"), "J"),
)  # fmt: skip

# of the processes of one job on a node, where its cgroup is measured: also on shared nodes
JOB_COUNTERS: tuple[HostCounter, ...] = (
    HostCounter("job_cpu_s", _HOST_CUMULATIVE, "s", "CPU time of a job on a node, user and system, since it began there."),
    HostCounter("job_memory_mib", _HOST_INSTANT, "MiB", "Host memory resident on a node for a job.", high=1 << 30),
    HostCounter("job_memory_limit_mib", _HOST_INSTANT, "MiB", "Host memory that a job may use on a node.", high=1 << 30),
    HostCounter("job_cpus", _HOST_INSTANT, "count", "CPUs that a job may use on a node.", high=1e6, zero_is_missing=True),
)  # fmt: skip

HOST_UNITS: Mapping[str, str] = MappingProxyType(
    {counter.name: counter.unit for counter in HOST_COUNTERS}
)
JOB_UNITS: Mapping[str, str] = MappingProxyType(
    {counter.name: counter.unit for counter in JOB_COUNTERS}
)
