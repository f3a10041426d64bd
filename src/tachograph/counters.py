"""The catalogue of GPU counters: one row per counter, from which readers, schema and documentation derive.

Sources: NVIDIA DCGM field identifiers (dcgm_fields.h), the DCGM 4.6 field names, NERSC's LDMS sampler
`nersc_ldms_dcgm`, NVML and GPM metric identifiers (nvml.h). A counter is added by one row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from types import MappingProxyType
from typing import Literal


class Kind(StrEnum):
    """How samples of a counter are put together over time."""

    FRACTION = "fraction"  # 0..1; mean and max
    INSTANT = "instant"  # a level; mean and max
    CUMULATIVE = "cumulative"  # last minus first, corrected for resets
    RATE = "rate"  # per second; mean, max, integral over time


Storage = Literal["f32", "f64", "i64"]


@dataclass(frozen=True, slots=True)
class Counter:
    """One counter: what it is called by each producer, its unit on the way in and inside, its valid range."""

    name: str
    kind: Kind
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
    storage: Storage = "f32"
    zero_is_missing: bool = False


_F, _I, _C, _R = Kind.FRACTION, Kind.INSTANT, Kind.CUMULATIVE, Kind.RATE
_NO_END = float("inf")

COUNTERS: tuple[Counter, ...] = (
    Counter("gpu_util", _F, "fraction", 0, 1, "Share of time in which at least one kernel ran on the GPU.",
            203, "DEV_GPU_UTIL", "GPU_UTIL_RATIO", "percent", "gpu_utilization", "percent",
            "nvmlDeviceGetUtilizationRates.gpu", "percent"),
    Counter("sm_active", _F, "fraction", 0, 1, "Share of cycles in which an SM had a warp resident, averaged over SMs.",
            1002, "PROF_SM_ACTIVE", "SM_UTIL_RATIO", "fraction", "sm_active", "fraction", "GPM 2 SM_UTIL", "percent"),
    Counter("sm_occupancy", _F, "fraction", 0, 1, "Resident warps over the maximum of resident warps, per elapsed cycle.",
            1003, "PROF_SM_OCCUPANCY", "SM_OCCUPANCY_RATIO", "fraction", "sm_occupancy", "fraction",
            "GPM 3 SM_OCCUPANCY", "percent"),
    Counter("gr_engine_active", _F, "fraction", 0, 1, "Share of time in which the graphics or compute engine was busy.",
            1001, "PROF_GR_ENGINE_ACTIVE", "GR_ENGINE_UTIL_RATIO", "fraction", "gr_engine_active", "fraction",
            "GPM 1 GRAPHICS_UTIL", "percent"),
    Counter("fp16_active", _F, "fraction", 0, 1, "Share of cycles in which the FP16 pipe was active; tensor work not included.",
            1008, "PROF_PIPE_FP16_ACTIVE", "FP16_UTIL_RATIO", "fraction", "fp16_active", "fraction", "GPM 13 FP16", "percent"),
    Counter("fp32_active", _F, "fraction", 0, 1, "Share of cycles in which the FP32 pipe was active.",
            1007, "PROF_PIPE_FP32_ACTIVE", "FP32_UTIL_RATIO", "fraction", "fp32_active", "fraction", "GPM 12 FP32", "percent"),
    Counter("fp64_active", _F, "fraction", 0, 1, "Share of cycles in which the FP64 pipe was active; tensor work not included.",
            1006, "PROF_PIPE_FP64_ACTIVE", "FP64_UTIL_RATIO", "fraction", "fp64_active", "fraction", "GPM 11 FP64", "percent"),
    Counter("tensor_active", _F, "fraction", 0, 1, "Share of cycles in which any tensor pipe was active.",
            1004, "PROF_PIPE_TENSOR_ACTIVE", "TENSOR_UTIL_RATIO", "fraction", "tensor_active", "fraction",
            "GPM 5 ANY_TENSOR", "percent"),
    Counter("tensor_hmma_active", _F, "fraction", 0, 1, "Share of cycles in which the FP16/BF16 tensor pipe was active.",
            1014, "PROF_PIPE_TENSOR_HMMA_ACTIVE", None, "fraction", "tensor_hmma_active", "fraction", "GPM 7 HMMA", "percent"),
    Counter("tensor_imma_active", _F, "fraction", 0, 1, "Share of cycles in which the integer tensor pipe was active.",
            1013, "PROF_PIPE_TENSOR_IMMA_ACTIVE", None, "fraction", "tensor_imma_active", "fraction", "GPM 9 IMMA", "percent"),
    Counter("tensor_dfma_active", _F, "fraction", 0, 1, "Share of cycles in which the FP64 tensor pipe was active.",
            1015, "PROF_PIPE_TENSOR_DFMA_ACTIVE", None, "fraction", "tensor_dfma_active", "fraction", "GPM 6 DFMA", "percent"),
    Counter("dram_active", _F, "fraction", 0, 1, "Share of cycles in which device memory was sending or receiving data.",
            1005, "PROF_DRAM_ACTIVE", "DRAM_UTIL_RATIO", "fraction", "dram_active", "fraction",
            "GPM 10 DRAM_BW_UTIL", "percent"),
    Counter("mem_copy_util", _F, "fraction", 0, 1,
            "Share of time in which device memory was read or written; not the copy engine.",
            204, "DEV_MEM_COPY_UTIL", None, "percent", "mem_copy_utilization", "percent",
            "nvmlDeviceGetUtilizationRates.memory", "percent"),
    Counter("hbm_used_mib", _I, "MiB", 0, 1 << 21, "Device memory in use.",
            252, "DEV_FB_USED", None, "MiB", "fb_used", "MiB", "nvmlDeviceGetMemoryInfo.used", "B"),
    Counter("hbm_free_mib", _I, "MiB", 0, 1 << 21, "Device memory free.",
            251, "DEV_FB_FREE", None, "MiB", "fb_free", "MiB", "nvmlDeviceGetMemoryInfo.free", "B"),
    Counter("pcie_tx_bytes_per_s", _R, "B/s", 0, 1e12, "PCIe bytes per second from device to host.",
            1009, "PROF_PCIE_TX_BYTES", None, "B/s", "pcie_tx_bytes", "B/s", "GPM 20 PCIE_TX_PER_SEC", "MiB/s"),
    Counter("pcie_rx_bytes_per_s", _R, "B/s", 0, 1e12, "PCIe bytes per second from host to device.",
            1010, "PROF_PCIE_RX_BYTES", None, "B/s", "pcie_rx_bytes", "B/s", "GPM 21 PCIE_RX_PER_SEC", "MiB/s"),
    Counter("nvlink_tx_bytes_per_s", _R, "B/s", 0, 1e13, "NVLink bytes per second sent.",
            1011, "PROF_NVLINK_TX_BYTES", None, "B/s", "nvlink_tx_bytes", "B/s", "GPM 61 NVLINK_TOTAL_TX_PER_SEC", "MiB/s"),
    Counter("nvlink_rx_bytes_per_s", _R, "B/s", 0, 1e13, "NVLink bytes per second received.",
            1012, "PROF_NVLINK_RX_BYTES", None, "B/s", "nvlink_rx_bytes", "B/s", "GPM 60 NVLINK_TOTAL_RX_PER_SEC", "MiB/s"),
    Counter("power_w", _I, "W", 0, 3000, "Power drawn by the board.",
            155, "DEV_POWER_USAGE", "BOARD_POWER_WATTS", "W", "power_usage", "W", "nvmlDeviceGetPowerUsage", "mW"),
    Counter("energy_j", _C, "J", 0, _NO_END, "Energy drawn since the driver was loaded.",
            156, "DEV_TOTAL_ENERGY_CONSUMPTION", None, "mJ", "total_energy_consumption", "mJ",
            "nvmlDeviceGetTotalEnergyConsumption", "mJ", "f64"),
    Counter("gpu_temp_c", _I, "C", -40, 150, "Temperature of the GPU.",
            150, "DEV_GPU_TEMP", "GPU_TEMP_CELSIUS", "C", "gpu_temp", "C", "nvmlDeviceGetTemperature", "C"),
    Counter("mem_temp_c", _I, "C", -40, 150, "Temperature of the device memory; 0 means the device does not tell.",
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
            "nvmlDeviceGetCurrentClocksEventReasons", "bitmask", "i64"),
    Counter("xid", _I, "code", 0, 100_000, "Last XID error; it stays until the next one, so only a change is an event.",
            230, "DEV_XID_ERRORS", "XID_ERROR", "code", None, None, "nvmlEventTypeXidCriticalError", "code", "i64"),
    Counter("pcie_replays", _C, "count", 0, 1 << 53, "PCIe replays since the driver was loaded.",
            202, "DEV_PCIE_REPLAY_COUNTER", "PCIE_REPLAY_TOTAL", "count", None, None,
            "nvmlDeviceGetPcieReplayCounter", "count", "i64"),
    Counter("remapped_rows_uncorrectable", _C, "count", 0, 1 << 20, "Memory rows remapped after uncorrectable errors.",
            393, "DEV_UNCORRECTABLE_REMAPPED_ROWS", "ROW_REMAP_UNCORRECTABLE_TOTAL", "count", None, None,
            "nvmlDeviceGetRemappedRows.uncorrectable", "count", "i64"),
    Counter("remapped_rows_correctable", _C, "count", 0, 1 << 20, "Memory rows remapped after correctable errors.",
            394, "DEV_CORRECTABLE_REMAPPED_ROWS", "ROW_REMAP_CORRECTABLE_TOTAL", "count", None, None,
            "nvmlDeviceGetRemappedRows.correctable", "count", "i64"),
    Counter("row_remap_failure", _I, "flag", 0, 1, "1 when remapping a memory row has failed.",
            395, "DEV_ROW_REMAP_FAILURE", "ROW_REMAP_FAILED", "flag", None, None,
            "nvmlDeviceGetRemappedRows.failure", "flag", "i64"),
)  # fmt: skip

BY_NAME: Mapping[str, Counter] = MappingProxyType({counter.name: counter for counter in COUNTERS})
NAMES: tuple[str, ...] = tuple(BY_NAME)

LDMS_PREFIX = "nersc_ldms_dcgm_"
DCGM_PREFIX = "DCGM_FI_"


def get(name: str) -> Counter:
    """Return the counter called `name`.

    Errors: NotFoundError naming the counters that exist.
    """
    from tachograph.errors import NotFoundError

    try:
        return BY_NAME[name]
    except KeyError:
        raise NotFoundError(f"no counter {name!r}", do=f"use one of: {', '.join(NAMES)}") from None


@cache
def outside_names() -> Mapping[str, tuple[str, str]]:
    """Return {a producer's column name: (contract counter, unit the producer writes)}.

    Holds the contract names themselves, both DCGM names with their prefix, and the LDMS names with theirs.

    >>> outside_names()["DCGM_FI_DEV_GPU_UTIL"], outside_names()["nersc_ldms_dcgm_fb_used"]
    (('gpu_util', 'percent'), ('hbm_used_mib', 'MiB'))
    """
    names: dict[str, tuple[str, str]] = {}
    for counter in COUNTERS:
        names[counter.name] = (counter.name, counter.unit)
        for dcgm in (counter.dcgm_name, counter.dcgm_name_46):
            if dcgm and counter.dcgm_unit:
                names[DCGM_PREFIX + dcgm] = (counter.name, counter.dcgm_unit)
        if counter.ldms_name and counter.ldms_unit:
            names[LDMS_PREFIX + counter.ldms_name] = (counter.name, counter.ldms_unit)
    return MappingProxyType(names)
