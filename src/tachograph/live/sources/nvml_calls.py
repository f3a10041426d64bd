"""What plain NVML is asked of a GPU: calls and the counters they answer, as the catalogue names them.

`Library` is the module pynvml of the package nvidia-ml-py, or what behaves like it; its errors are `NVMLError`s with a
`value`. The names of codes are those of nvml.h.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tachograph.counters import COUNTERS, NAMES
from tachograph.units import factor

Library: TypeAlias = Any
Handle: TypeAlias = Any
Answer: TypeAlias = Mapping[str, float]

# return codes
UNINITIALIZED, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 1, 3, 4, 6
DRIVER_NOT_LOADED, TIMEOUT, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 9, 10, 12, 13
GPU_IS_LOST, RESET_REQUIRED, VERSION_MISMATCH, IN_USE = 15, 16, 18, 19
ARGUMENT_VERSION_MISMATCH, DEPRECATED, GPU_NOT_FOUND, UNKNOWN = 25, 26, 28, 999

DRIVER_GONE = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, VERSION_MISMATCH})
GPU_GONE = frozenset({GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND})
# for as long as nothing else changes; asked again after a while all the same
REFUSED = frozenset({NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, DEPRECATED, IN_USE})

_GPU_SENSOR, _SM_CLOCK, _MEMORY_CLOCK, _MEMORY_TEMPERATURE = 0, 1, 2, 82
# which member of the union a field value lies in, by its type; later types are not those of the fields asked for
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def _utilization(nvml: Library, handle: Handle) -> Answer:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {"gpu": rates.gpu, "memory": rates.memory}


def memory(nvml: Library, handle: Handle) -> Answer:
    """Bytes of device memory: total, reserved, used, free. What driver and firmware keep is not `used`, as in DCGM.

    Drivers before 510 only know the first form of the call, in which it is.
    """
    try:
        told = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except nvml.NVMLError as error:
        if error.value not in (FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH):
            raise
        told = nvml.nvmlDeviceGetMemoryInfo(handle)
        return {"total": told.total, "used": told.used, "free": told.free}
    return {"total": told.total, "reserved": told.reserved, "used": told.used, "free": told.free}


def _reasons(nvml: Library, handle: Handle) -> Answer:
    try:
        return {"": nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)}
    except nvml.NVMLError as error:  # the name before driver 535
        if error.value != FUNCTION_NOT_FOUND:
            raise
    return {"": nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)}


def _memory_temperature(nvml: Library, handle: Handle) -> Answer:
    field = nvml.nvmlDeviceGetFieldValues(handle, [_MEMORY_TEMPERATURE])[0]
    if field.nvmlReturn:  # the call succeeds, each field has a result of its own
        raise nvml.NVMLError(field.nvmlReturn)
    return {"": getattr(field.value, _MEMBERS[field.valueType])}


def _remapped(nvml: Library, handle: Handle) -> Answer:
    correctable, uncorrectable, _, failure = nvml.nvmlDeviceGetRemappedRows(handle)
    return {"correctable": correctable, "uncorrectable": uncorrectable, "failure": failure}


def _one(name: str, *arguments: int) -> Callable[[Library, Handle], Answer]:
    def ask(nvml: Library, handle: Handle) -> Answer:
        return {"": getattr(nvml, name)(handle, *arguments)}

    return ask


_ASKED: Mapping[str, Callable[[Library, Handle], Answer]] = {
    "nvmlDeviceGetUtilizationRates": _utilization,
    "nvmlDeviceGetMemoryInfo": memory,
    "nvmlDeviceGetMemoryInfo_v2": memory,
    "nvmlDeviceGetPowerUsage": _one("nvmlDeviceGetPowerUsage"),
    "nvmlDeviceGetTotalEnergyConsumption": _one("nvmlDeviceGetTotalEnergyConsumption"),
    "nvmlDeviceGetTemperature": _one("nvmlDeviceGetTemperature", _GPU_SENSOR),
    "NVML_FI_DEV_MEMORY_TEMP": _memory_temperature,
    "nvmlDeviceGetClockInfo.SM": _one("nvmlDeviceGetClockInfo", _SM_CLOCK),
    "nvmlDeviceGetClockInfo.MEM": _one("nvmlDeviceGetClockInfo", _MEMORY_CLOCK),
    "nvmlDeviceGetCurrentClocksEventReasons": _reasons,
    "nvmlDeviceGetPcieReplayCounter": _one("nvmlDeviceGetPcieReplayCounter"),
    "nvmlDeviceGetRemappedRows": _remapped,
}


@dataclass(frozen=True, slots=True)
class Call:
    """One call. wants: (part of its answer, place of the counter in NAMES, factor to the unit of the catalogue)."""

    name: str
    ask: Callable[[Library, Handle], Answer]
    wants: tuple[tuple[str, int, float], ...]

    @property
    def counters(self) -> tuple[str, ...]:
        """What it tells."""
        return tuple(NAMES[place] for _, place, _ in self.wants)


def _calls() -> tuple[Call, ...]:
    wants: dict[str, list[tuple[str, int, float]]] = {}
    for place, counter in enumerate(COUNTERS):
        if not counter.nvml or not counter.nvml_unit or counter.nvml.startswith("GPM "):
            continue
        head, _, part = counter.nvml.partition(".")
        name, part = (counter.nvml, "") if counter.nvml in _ASKED else (head, part)
        if name not in _ASKED:  # a row of the catalogue that nobody asks for yet
            continue
        wants.setdefault(name, []).append((part, place, factor(counter.nvml_unit, counter.unit)))
    return tuple(Call(name, _ASKED[name], tuple(parts)) for name, parts in wants.items())


CALLS: tuple[Call, ...] = _calls()
# what a MIG slice answers for itself; the rest is told of the whole GPU, for each of its slices
CALLS_OF_SLICES: tuple[Call, ...] = tuple(call for call in CALLS if call.name.startswith("nvmlDeviceGetMemoryInfo"))
CALLS_OF_WHOLE: tuple[Call, ...] = tuple(call for call in CALLS if call not in CALLS_OF_SLICES)


def cure(code: int, *, gpm: bool = False) -> str:
    """Return how to enable what NVML refuses with a code; "" where that cannot be done.

    >>> cure(NOT_SUPPORTED), cure(NOT_SUPPORTED, gpm=True)
    ('', 'NVML measures it on Hopper and newer only: use DCGM (dcgm-exporter or dcgmi dmon)')
    """
    if code == NO_PERMISSION:
        return (
            "not permitted: ask the administrator for profiling by users (NVreg_RestrictProfilingToAdminUsers=0), "
            "or use the site's DCGM"
            if gpm
            else "not permitted: ask the administrator, or use the site's DCGM"
        )
    if code == FUNCTION_NOT_FOUND:
        return f"the driver is too old for it: {'520' if gpm else '535'} or newer, or use DCGM"
    if code == IN_USE:
        return "another profiler holds the counters: end it (Nsight, or dcgmi profiling --pause)"
    return "NVML measures it on Hopper and newer only: use DCGM (dcgm-exporter or dcgmi dmon)" if gpm else ""
