"""Health of a GPU: CRIT, WARN, HOT, OK, or unknown; the meaning of driver codes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from tachograph.catalog import devices
from tachograph.catalog.arrays import Bytes, Flags, Floats
from tachograph.catalog.devices import Device
from tachograph.catalog.units import plural, text

# source: NVIDIA, "XID Errors" (GPU Deployment and Management documentation)
XID_MEANINGS: Mapping[int, str] = {
    13: "graphics engine exception",
    31: "memory page fault",
    43: "GPU stopped processing",
    45: "preemptive cleanup after an earlier error",
    48: "double-bit ECC error",
    63: "row remapping event",
    64: "row remapping failure",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "high rate of single-bit ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "timeout of the GPU system processor",
    120: "error of the GPU system processor",
}
XID_OFTEN_THE_PROGRAM = frozenset({13, 31, 43, 45})
XID_CRITICAL = frozenset({48, 63, 64, 74, 79, 92, 94, 95, 119, 120})  # the device needs attention

# bits of throttle_reasons that lower clocks for heat or power. Idle (1), clocks that an application
# requested (2) and boost in step with other GPUs (0x10) are harmless.
CLOCKS_LOWERED: Mapping[int, str] = {
    0x04: "the power limit",
    0x08: "a hardware slowdown",
    0x20: "heat (the driver's limit)",
    0x40: "heat (the hardware's limit)",
    0x80: "the power brake",
}


def xid_meaning(code: int) -> str:
    """Return what an XID code means.

    >>> xid_meaning(79), xid_meaning(7777)
    ('GPU has fallen off the bus', "see NVIDIA's list of XID errors")
    """
    return XID_MEANINGS.get(code, "see NVIDIA's list of XID errors")


def clock_reasons(bits: int) -> tuple[str, ...]:
    """Return why clocks are lowered, without harmless reasons.

    >>> clock_reasons(0x1 | 0x4 | 0x40)
    ('the power limit', "heat (the hardware's limit)")
    """
    return tuple(name for bit, name in CLOCKS_LOWERED.items() if bits & bit)


CRIT, WARN, HOT, OK, HEALTH_UNKNOWN = "CRIT", "WARN", "HOT", "OK", "unknown"
STATES = (CRIT, WARN, HOT, OK, HEALTH_UNKNOWN)  # what an array of states holds are places in it
WORST_FIRST = (CRIT, WARN, HOT, HEALTH_UNKNOWN, OK)

# what decides, named like the counters; of those in NEW_ERRORS how many came up in the time
# considered
INPUTS = (
    "row_remap_failure",
    "remapped_rows_uncorrectable",
    "pcie_replays",
    "gpu_temp_c",
    "mem_temp_c",
    "ecc_dbe",
    "ecc_sbe",
    "nvlink_errors",
)
NEW_ERRORS: Mapping[str, str] = {  # each with its name
    "ecc_dbe": "uncorrectable ECC error",
    "pcie_replays": "PCIe replay",
    "nvlink_errors": "NVLink or XGMI error",
    "ecc_sbe": "corrected ECC error",
}
_OPTIONAL = INPUTS[5:]  # few sites record them: without them a GPU may be OK


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """Temperatures (C) of a model: usual at most, warning, critical; the memory has its own.

    has_memory_sensor, remaps_rows: False for devices that do not report it; then it is not needed.
    """

    normal_c: float
    warning_c: float
    critical_c: float
    memory_warning_c: float
    memory_critical_c: float
    has_memory_sensor: bool = True
    remaps_rows: bool = True


# family -> normal, warning, critical (C). Source: KempnerPulse
_PUBLISHED: Mapping[str, tuple[float, float, float]] = {
    "a100": (85, 93, 95),
    "h100": (85, 95, 105),
    "h200": (80, 95, 105),
    "rtx 6000": (85, 92, 105),
}
_OTHER = (85.0, 93.0, 105.0)
_BEFORE_REMAPPING = (
    "Pascal",
    "Volta",
    "Turing",
)  # architectures that retire pages, and remap no rows
# Device.hbm_tolerance of models without stacked memory, whose memory reports no temperature.
_GDDR = 0.1


@dataclass(frozen=True, slots=True)
class LimitColumns:
    """Limits of many GPUs, one array each: made once for GPUs that stay, read at every look."""

    warning_c: Floats
    memory_warning_c: Floats
    has_memory_sensor: Flags
    remaps_rows: Flags


def limit_columns(limits: Sequence[HealthLimits]) -> LimitColumns:
    """Return the limits of GPUs, one place each, as arrays."""
    return LimitColumns(
        np.array([one.warning_c for one in limits], np.float64),
        np.array([one.memory_warning_c for one in limits], np.float64),
        np.array([one.has_memory_sensor for one in limits], np.bool_),
        np.array([one.remaps_rows for one in limits], np.bool_),
    )


@dataclass(frozen=True, slots=True)
class HealthReading:
    """Health of a GPU. None: missing.

    NEW_ERRORS: new ones in the period; rows: all since production.
    """

    row_remap_failure: float | None = None
    remapped_rows_uncorrectable: float | None = None
    pcie_replays: float | None = None
    gpu_temp_c: float | None = None
    mem_temp_c: float | None = None
    ecc_dbe: float | None = None
    ecc_sbe: float | None = None
    nvlink_errors: float | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """State of a GPU. needs: counters that are missing for a better result."""

    state: str
    needs: tuple[str, ...] = ()


@lru_cache(maxsize=1024)
def limits_of(model: str | None, slowdown_c: float | None = None) -> HealthLimits:
    """Return the temperatures of a device, named as in the catalogue or as its driver writes it.

    slowdown_c: at which the device itself reports that it lowers its clocks (DCGM field 158); it
    takes precedence. Then what is publicly recorded of the very model, then what is published of
    its family.

    >>> limits_of("NVIDIA H100 80GB HBM3").warning_c, limits_of("NVIDIA GH200 480GB").warning_c
    (95, 93.0)
    >>> limits_of("NVIDIA RTX 6000 Ada Generation").warning_c, limits_of("NVIDIA RTX A6000").warning_c
    (92, 93.0)
    """
    device = devices.DEVICES_BY_NAME.get(model or "") or devices.match_device(model)
    normal, warning, critical = _PUBLISHED.get(_family(model or ""), _OTHER)
    limits = HealthLimits(normal, warning, critical, warning, critical)
    if device is not None:
        limits = _with_device(limits, device)
    if slowdown_c is not None:
        limits = replace(
            limits, warning_c=slowdown_c, critical_c=max(limits.critical_c, slowdown_c)
        )
    return limits


def health_of(reading: HealthReading, limits: HealthLimits) -> Health:
    """Return the state of one GPU.

    >>> limits = limits_of("A100 SXM 40GB")
    >>> health_of(HealthReading(0, 0, 0, 93, 60), limits), health_of(HealthReading(0, 0, 0, 60), limits)
    (Health(state='HOT', needs=()), Health(state='unknown', needs=('mem_temp_c',)))
    """
    values = {name: np.array([_nan(getattr(reading, name))]) for name in INPUTS}
    state = STATES[int(health_states(values, limit_columns([limits]))[0])]
    missing = tuple(name for name in needed(limits) if getattr(reading, name) is None)
    better = {CRIT: (), WARN: INPUTS[:2], HOT: INPUTS[:3]}.get(state, INPUTS)
    return Health(state, tuple(name for name in missing if name in better))


def health_states(values: Mapping[str, Floats], limits: LimitColumns) -> Bytes:
    """Return GPU states as indices into STATES.

    `values`: {one of INPUTS: value per GPU, NaN missing}.
    """
    failure, rows, replays, gpu, memory, uncorrected, *others = (values[name] for name in INPUTS)
    critical = (failure > 0) | (rows > 0) | (uncorrected > 0)
    warning = np.any([replays > 0, *(errors > 0 for errors in others)], axis=0)
    hot = (gpu >= limits.warning_c) | (memory >= limits.memory_warning_c)
    missing = (np.isnan(failure) | np.isnan(rows)) & limits.remaps_rows
    missing |= np.isnan(replays) | np.isnan(gpu) | (np.isnan(memory) & limits.has_memory_sensor)
    places = [STATES.index(state) for state in (CRIT, WARN, HOT, HEALTH_UNKNOWN)]
    found: Bytes = np.select([critical, warning, hot, missing], places, STATES.index(OK)).astype(
        np.uint8
    )
    return found


def health_reason(reading: HealthReading, limits: HealthLimits, *, within_s: float) -> str:
    """Return the reason why a GPU is not OK, with numbers; "" if it is OK.

    within_s: the time in which new errors count.

    >>> limits = limits_of("A100 SXM 40GB")
    >>> health_reason(HealthReading(0, 0, 3, 94, 60), limits, within_s=600)
    '3 PCIe replays in 10 min, GPU at 94 °C, limit 93 °C'
    """
    known = (
        ["remapping a faulty memory row has failed"] if (reading.row_remap_failure or 0) > 0 else []
    )
    if rows := reading.remapped_rows_uncorrectable:
        known.append(f"{plural(rows, 'memory row')} remapped after uncorrectable errors")
    for name, error in NEW_ERRORS.items():
        if count := getattr(reading, name):
            known.append(f"{plural(count, error)} in {text(within_s, 's')}")
    for name, value, limit in (
        ("GPU", reading.gpu_temp_c, limits.warning_c),
        ("memory", reading.mem_temp_c, limits.memory_warning_c),
    ):
        if value is not None and value >= limit:
            known.append(f"{name} at {text(value, 'C')}, limit {text(limit, 'C')}")
    return ", ".join(known)


def needed(limits: HealthLimits) -> tuple[str, ...]:
    """Return those of INPUTS that a device can report."""
    absent = {
        *(() if limits.remaps_rows else INPUTS[:2]),
        *(() if limits.has_memory_sensor else INPUTS[4:5]),
        *_OPTIONAL,
    }
    return tuple(name for name in INPUTS if name not in absent)


def worst(states: list[str]) -> str | None:
    """Return the worst of some states; None without states.

    >>> worst(["OK", "HOT", "unknown"]), worst(["OK", "unknown"]), worst([])
    ('HOT', 'unknown', None)
    """
    return min(states, key=WORST_FIRST.index, default=None)


def _family(model: str) -> str:
    """Return the model family whose published temperatures apply; whole words are compared."""
    words: list[str] = re.findall(r"[a-z0-9]+", model.lower())
    for word in words:
        if word in _PUBLISHED:
            return word
        if word in ("rtx6000", "rtx6000ada"):
            return "rtx 6000"
    return "rtx 6000" if ("rtx", "6000") in pairwise(words) else ""


def _with_device(limits: HealthLimits, device: Device) -> HealthLimits:
    slowdown, shutdown = device.slowdown_temp_c, device.shutdown_temp_c
    return replace(
        limits,
        warning_c=limits.warning_c if slowdown is None else slowdown,
        critical_c=limits.critical_c if shutdown is None else shutdown,
        has_memory_sensor=device.hbm_tolerance < _GDDR,
        remaps_rows=device.architecture not in _BEFORE_REMAPPING and device.vendor == "NVIDIA",
    )


def _nan(value: float | None) -> float:
    return float("nan") if value is None else float(value)
