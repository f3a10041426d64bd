"""Calls of NVML: queries, GPM metrics (Hopper and newer), XID events; units, errors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tachograph.catalog.arrays import Floats
from tachograph.catalog.counters import COUNTER_NAMES, COUNTERS
from tachograph.catalog.units import factor

NvmlLibrary: TypeAlias = Any
NvmlHandle: TypeAlias = Any
NvmlAnswer: TypeAlias = Mapping[str, float]

# return codes
UNINITIALIZED, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 1, 3, 4, 6
DRIVER_NOT_LOADED, TIMEOUT, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 9, 10, 12, 13
GPU_IS_LOST, RESET_REQUIRED, VERSION_MISMATCH, IN_USE = 15, 16, 18, 19
ARGUMENT_VERSION_MISMATCH, DEPRECATED, GPU_NOT_FOUND, UNKNOWN = 25, 26, 28, 999

DRIVER_GONE = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, VERSION_MISMATCH})
GPU_GONE = frozenset({GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND})
# permanent unless the setup changes; still repeated after a while
REFUSED = frozenset(
    {
        NOT_SUPPORTED,
        NO_PERMISSION,
        FUNCTION_NOT_FOUND,
        ARGUMENT_VERSION_MISMATCH,
        DEPRECATED,
        IN_USE,
    }
)

_GPU_SENSOR, _SM_CLOCK, _MEMORY_CLOCK, _MEMORY_TEMPERATURE = 0, 1, 2, 82
# which member of the union a field value lies in, by its type; later types are not those of the
# queried fields
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def _utilization(nvml: NvmlLibrary, handle: NvmlHandle) -> NvmlAnswer:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {"gpu": rates.gpu, "memory": rates.memory}


def memory(nvml: NvmlLibrary, handle: NvmlHandle) -> NvmlAnswer:
    """Bytes of device memory: total, reserved, used (as in DCGM, without reserved), free.

    Drivers before 510 support only the first version of the call, in which it is included.
    """
    try:
        info = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except nvml.NVMLError as error:
        if error.value not in (FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH):
            raise
        info = nvml.nvmlDeviceGetMemoryInfo(handle)
        return {"total": info.total, "used": info.used, "free": info.free}
    return {
        "total": info.total,
        "reserved": info.reserved,
        "used": info.used,
        "free": info.free,
    }


def _reasons(nvml: NvmlLibrary, handle: NvmlHandle) -> NvmlAnswer:
    try:
        return {"": nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)}
    except nvml.NVMLError as error:  # the name before driver 535
        if error.value != FUNCTION_NOT_FOUND:
            raise
    return {"": nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)}


def _memory_temperature(nvml: NvmlLibrary, handle: NvmlHandle) -> NvmlAnswer:
    field = nvml.nvmlDeviceGetFieldValues(handle, [_MEMORY_TEMPERATURE])[0]
    if field.nvmlReturn:  # the call succeeds, each field has a result of its own
        raise nvml.NVMLError(field.nvmlReturn)
    return {"": getattr(field.value, _MEMBERS[field.valueType])}


def _remapped(nvml: NvmlLibrary, handle: NvmlHandle) -> NvmlAnswer:
    correctable, uncorrectable, _, failure = nvml.nvmlDeviceGetRemappedRows(handle)
    return {"correctable": correctable, "uncorrectable": uncorrectable, "failure": failure}


def _ecc_errors(nvml: NvmlLibrary, handle: NvmlHandle) -> NvmlAnswer:
    kinds = {"corrected": 0, "uncorrected": 1}
    since_driver = 0
    return {
        kind: nvml.nvmlDeviceGetTotalEccErrors(handle, number, since_driver)
        for kind, number in kinds.items()
    }


def _number_of(name: str, *arguments: int) -> Callable[[NvmlLibrary, NvmlHandle], NvmlAnswer]:
    def query(nvml: NvmlLibrary, handle: NvmlHandle) -> NvmlAnswer:
        return {"": getattr(nvml, name)(handle, *arguments)}

    return query


_QUERIES: Mapping[str, Callable[[NvmlLibrary, NvmlHandle], NvmlAnswer]] = {
    "nvmlDeviceGetUtilizationRates": _utilization,
    "nvmlDeviceGetMemoryInfo": memory,
    "nvmlDeviceGetMemoryInfo_v2": memory,
    "nvmlDeviceGetPowerUsage": _number_of("nvmlDeviceGetPowerUsage"),
    "nvmlDeviceGetTotalEnergyConsumption": _number_of("nvmlDeviceGetTotalEnergyConsumption"),
    "nvmlDeviceGetTemperature": _number_of("nvmlDeviceGetTemperature", _GPU_SENSOR),
    "NVML_FI_DEV_MEMORY_TEMP": _memory_temperature,
    "nvmlDeviceGetClockInfo.SM": _number_of("nvmlDeviceGetClockInfo", _SM_CLOCK),
    "nvmlDeviceGetClockInfo.MEM": _number_of("nvmlDeviceGetClockInfo", _MEMORY_CLOCK),
    "nvmlDeviceGetCurrentClocksEventReasons": _reasons,
    "nvmlDeviceGetPcieReplayCounter": _number_of("nvmlDeviceGetPcieReplayCounter"),
    "nvmlDeviceGetRemappedRows": _remapped,
    "nvmlDeviceGetTotalEccErrors": _ecc_errors,
}


@dataclass(frozen=True, slots=True)
class NvmlCall:
    """One call. wants: (part of its result, index in NAMES, factor to catalogue unit)."""

    name: str
    query: Callable[[NvmlLibrary, NvmlHandle], NvmlAnswer]
    wants: tuple[tuple[str, int, float], ...]

    @property
    def counters(self) -> tuple[str, ...]:
        """Counters of the call."""
        return tuple(COUNTER_NAMES[index] for _, index, _ in self.wants)


def _calls() -> tuple[NvmlCall, ...]:
    wants: dict[str, list[tuple[str, int, float]]] = {}
    for index, counter in enumerate(COUNTERS):
        if not counter.nvml or not counter.nvml_unit or counter.nvml.startswith("GPM "):
            continue
        head, _, part = counter.nvml.partition(".")
        name, part = (counter.nvml, "") if counter.nvml in _QUERIES else (head, part)
        if name not in _QUERIES:  # a row of the catalogue without a query yet
            continue
        wants.setdefault(name, []).append((part, index, factor(counter.nvml_unit, counter.unit)))
    return tuple(NvmlCall(name, _QUERIES[name], tuple(parts)) for name, parts in wants.items())


CALLS: tuple[NvmlCall, ...] = _calls()
# calls with values of their own for a MIG slice; others have the value of the whole GPU in each
# slice
CALLS_OF_SLICES: tuple[NvmlCall, ...] = tuple(
    call for call in CALLS if call.name.startswith("nvmlDeviceGetMemoryInfo")
)
CALLS_OF_WHOLE: tuple[NvmlCall, ...] = tuple(call for call in CALLS if call not in CALLS_OF_SLICES)


def how_to_permit(code: int, *, gpm: bool = False) -> str:
    """Return how to enable a call that NVML rejects with a code, or "".

    >>> how_to_permit(NOT_SUPPORTED), how_to_permit(NOT_SUPPORTED, gpm=True)
    ('', 'NVML measures it on Hopper and newer only: use DCGM (dcgm-exporter or dcgmi dmon)')
    """
    if code == NO_PERMISSION:
        return (
            "not permitted: ask the administrator for profiling by users "
            "(NVreg_RestrictProfilingToAdminUsers=0), "
            "or use the site's DCGM"
            if gpm
            else "not permitted: ask the administrator, or use the site's DCGM"
        )
    if code == FUNCTION_NOT_FOUND:
        return f"the driver is too old for it: {'520' if gpm else '535'} or newer, or use DCGM"
    if code == IN_USE:
        return "another profiler uses the counters: end it (Nsight, or dcgmi profile --pause)"
    return (
        "NVML measures it on Hopper and newer only: use DCGM (dcgm-exporter or dcgmi dmon)"
        if gpm
        else ""
    )


MIN_GAP_S = 0.1  # between two samples; metrics of closer ones are noise (nvml.h)


@dataclass(frozen=True, slots=True)
class GpmMetric:
    """A metric of GPM: its id, its counter, the factor to the unit of the catalogue."""

    id: int
    counter: str
    factor: float


GPM_METRICS: tuple[GpmMetric, ...] = tuple(
    GpmMetric(
        int(counter.nvml.split()[1]), counter.name, factor(counter.nvml_unit or "", counter.unit)
    )
    for counter in COUNTERS
    if counter.nvml and counter.nvml.startswith("GPM ")
)


class GpmMetrics:
    """All metrics between two samples from NVML; one for all GPUs, since the request is large."""

    def __init__(self, nvml: NvmlLibrary) -> None:
        self._nvml = nvml
        self._request = nvml.c_nvmlGpmMetricsGet_t()
        self._request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(GPM_METRICS)
        metric_type = nvml.c_nvmlGpmMetric_t
        layout = np.dtype(
            {
                "names": ["id", "code", "value"],
                "formats": ["u4", "u4", "f8"],
                "offsets": [
                    metric_type.metricId.offset,
                    metric_type.nvmlReturn.offset,
                    metric_type.value.offset,
                ],
                "itemsize": ctypes.sizeof(metric_type),
            }
        )
        offset = nvml.c_nvmlGpmMetricsGet_t.metrics.offset
        rows = np.frombuffer(self._request, layout, len(GPM_METRICS), offset)
        rows["id"] = [metric.id for metric in GPM_METRICS]
        self._codes, self._values = rows["code"], rows["value"]
        self._factors: Floats = np.array([metric.factor for metric in GPM_METRICS])

    def between(self, older: NvmlHandle, newer: NvmlHandle) -> tuple[Floats, list[int]]:
        """Values in the order of METRICS, NaN: missing, and return codes. Errors: NVMLError."""
        # Values that the library leaves unset are missing.
        self._codes[:], self._values[:] = UNKNOWN, np.nan
        self._request.sample1, self._request.sample2 = older, newer
        self._nvml.nvmlGpmMetricsGet(self._request)
        values = np.where(
            (self._codes == 0) & np.isfinite(self._values), self._values * self._factors, np.nan
        )
        return values, self._codes.tolist()


class GpmGauge:
    """GPM samples of a GPU, or of a MIG slice (its GPU and GPU instance id).

    values: of the last two samples, NaN missing; None before the first. Errors of all calls:
    NVMLError.
    """

    def __init__(
        self, nvml: NvmlLibrary, handle: NvmlHandle, *, instance: int | None = None
    ) -> None:
        self._nvml = nvml
        self._handle = handle
        self._instance = instance
        self._samples: list[NvmlHandle] = []  # of which the first is the one before
        self._taken: float | None = None
        self.values: Floats | None = None
        self.codes: list[int] = []

    def wait_s(self, now: float) -> float:
        """Seconds until another sample can be taken; 0: now."""
        return 0.0 if self._taken is None else max(0.0, self._taken + MIN_GAP_S - now)

    def read(self, metrics: GpmMetrics, now: float) -> None:
        """Sample and compare with the previous one; no values if too close."""
        if self.wait_s(now) > 0:
            return
        while len(self._samples) < 2:
            self._samples.append(self._nvml.nvmlGpmSampleAlloc())
        before, spare = self._samples
        self._sample(spare)
        first = self._taken is None
        self._taken, self._samples = now, [spare, before]
        if not first:
            self.values, self.codes = None, []
            self.values, self.codes = metrics.between(before, spare)

    def forget(self) -> None:
        """Restart: earlier samples are not comparable any more."""
        self._taken, self.values, self.codes = None, None, []

    def close(self) -> None:
        """Free the samples."""
        samples, self._samples = self._samples, []
        self.forget()
        for sample in samples:
            try:
                self._nvml.nvmlGpmSampleFree(sample)
            except self._nvml.NVMLError:  # the driver ended first
                return

    def _sample(self, into: NvmlHandle) -> None:
        if self._instance is None:
            self._nvml.nvmlGpmSampleGet(self._handle, into)
        else:  # the handle of a slice is rejected here
            self._nvml.nvmlGpmMigSampleGet(self._handle, self._instance, into)


_XID = 0x8  # nvmlEventTypeXidCriticalError
_NO_INSTANCE = 0xFFFFFFFF  # of an event of the whole GPU
_MOST = 256  # events taken at a time: a GPU in trouble may report thousands


class XidEvents:
    """Events of GPUs since they were registered."""

    def __init__(self, nvml: NvmlLibrary) -> None:
        self._nvml = nvml
        self._set: NvmlHandle | None = None
        self._indices: dict[int | None, int] = {}
        self.refused: dict[int, str] = {}  # GPUs without events, and why

    def register(self, index: int, handle: NvmlHandle) -> int:
        """Register for a GPU's events; return 0, or the error code (also in `refused`)."""
        try:
            if self._set is None:
                self._set = self._nvml.nvmlEventSetCreate()
            self._nvml.nvmlDeviceRegisterEvents(handle, _XID, self._set)
        except self._nvml.NVMLError as error:
            permission = error.value == NO_PERMISSION
            self.refused[index] = (
                "not permitted: use DCGM, or check the kernel log" if permission else ""
            )
            return int(error.value)
        self._indices[_address(handle)] = index
        self.refused.pop(index, None)
        return 0

    def registered(self, index: int) -> bool:
        """Whether XID errors of a GPU would be reported."""
        return index in self._indices.values()

    def take(self) -> Mapping[tuple[int, int | None], int]:
        """Return {(GPU, MIG slice, None: the whole GPU): last code} since the last call.

        Does not block.
        """
        codes: dict[tuple[int, int | None], int] = {}
        for _ in range(_MOST if self._set is not None else 0):
            try:
                event = self._nvml.nvmlEventSetWait(self._set, 0)
            except self._nvml.NVMLError:
                break  # nothing more; or a GPU is lost, which its own calls report
            index = self._indices.get(_address(event.device))
            if index is not None and event.eventType & _XID:
                whole = event.gpuInstanceId == _NO_INSTANCE
                instance = None if whole else int(event.gpuInstanceId)
                codes[index, instance] = int(event.eventData)
        return codes

    def close(self) -> None:
        """Free the event set."""
        events, self._set = self._set, None
        self._indices = {}
        if events is not None:
            try:
                self._nvml.nvmlEventSetFree(events)
            except self._nvml.NVMLError:  # the driver ended first
                return


def _address(handle: NvmlHandle) -> int | None:
    """Address of a handle, equal for all handles of a GPU; a lost GPU has no index."""
    return ctypes.cast(handle, ctypes.c_void_p).value
