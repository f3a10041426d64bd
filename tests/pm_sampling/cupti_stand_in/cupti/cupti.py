from __future__ import annotations

from enum import IntEnum
from typing import Any

from .scenario import gpu


class Result(IntEnum):
    SUCCESS = 0
    ERROR_INVALID_PARAMETER = 1
    ERROR_INVALID_DEVICE = 2
    ERROR_INVALID_OPERATION = 7
    ERROR_OUT_OF_MEMORY = 8
    ERROR_HARDWARE = 9
    ERROR_NOT_COMPATIBLE = 14
    ERROR_NOT_INITIALIZED = 15
    ERROR_HARDWARE_BUSY = 26
    ERROR_NOT_SUPPORTED = 27
    ERROR_UM_PROFILING_NOT_SUPPORTED_WITH_MPS = 31
    ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED = 33
    ERROR_INSUFFICIENT_PRIVILEGES = 35
    ERROR_LEGACY_PROFILER_NOT_SUPPORTED = 38
    ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED = 39
    ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES = 40
    ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED = 41
    ERROR_CMP_DEVICE_NOT_SUPPORTED = 42
    ERROR_MIG_DEVICE_NOT_SUPPORTED = 43
    ERROR_WSL_DEVICE_NOT_SUPPORTED = 45
    ERROR_INVALID_CHIP_NAME = 46
    ERROR_UNKNOWN = 999


class PmSamplingTriggerMode(IntEnum):
    GPU_SYSCLK_INTERVAL = 0
    GPU_TIME_INTERVAL = 1
    COUNT = 2


class PmSamplingHardwareBufferAppendMode(IntEnum):
    KEEP_OLDEST = 0
    KEEP_LATEST = 1


class ProfilerType(IntEnum):
    RANGE_PROFILER = 0
    PM_SAMPLING = 1
    PROFILER_INVALID = 2


class cuptiError(Exception):  # noqa: N801 the name of the library
    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"{Result(status).name} ({int(status)})")


DEVICE_GET_CHIP_NAME_PARAMS_STRUCT_SIZE = 32


class DeviceGetChipNameParams:
    def __init__(self) -> None:
        self.struct_size = 0
        self.device_index = 0
        self.p_chip_name = ""

    @property
    def ptr(self) -> Any:
        return self


def device_get_chip_name(p_params: Any) -> None:
    if p_params.struct_size != DEVICE_GET_CHIP_NAME_PARAMS_STRUCT_SIZE:
        raise cuptiError(Result.ERROR_INVALID_PARAMETER)
    p_params.p_chip_name = gpu(p_params.device_index)["chip"]


def fail(device: int, step: str) -> None:
    """Raise what the scenario has for a step: an exception by name, or a result."""
    name = gpu(device).get("faults", {}).get(step)
    if name is None:
        return
    if name in Result.__members__:
        raise cuptiError(Result[name])
    kind, _, text = name.partition(":")
    raise {
        "PermissionError": PermissionError,
        "RuntimeError": RuntimeError,
        "ValueError": ValueError,
    }[kind](text)
